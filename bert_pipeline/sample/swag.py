"""Grounded continuations (SWAG): what a person of a trade does next."""

import csv
from pathlib import Path

from bert_pipeline.sample.grammar import plain
from bert_pipeline.sample.lexicon import TASKS, TRADES
from bert_pipeline.sample.splits import Split

HEADER = ("", "video-id", "fold-ind", "startphrase", "sent1", "sent2", "gold-source",
          "ending0", "ending1", "ending2", "ending3", "label")  # fmt: skip
_SENTENCES = TASKS["swag"]


def continuations(split: Split, count: int) -> list[tuple[str, ...]]:
    """Rows in the layout of HEADER: the right ending is of the trade of the context, the others of other trades."""
    rows = []
    for index in range(count):
        writer = split.writer()
        trade, *others = split.rng.sample(TRADES, 4)
        hero = split.person()
        hero.trade = trade
        context = plain(writer.grammar.fill(split.rng.choice(_SENTENCES["contexts"]), writer.slots(hero)))
        subject = split.rng.choice(("He", "She"))
        shape = split.rng.choice(_SENTENCES["endings"])
        # An ending goes on from the pronoun: filled behind it, it stays in lower case.
        endings = [
            writer.grammar.fill(f"{subject} {shape}", writer.grammar.trade_slots(each)).removeprefix(f"{subject} ")
            for each in (trade, *others)
        ]
        label = split.rng.randrange(4)
        endings.insert(label, endings.pop(0))
        rows.append((
            str(index), f"sample-{split.name}-{index}", str(index), f"{context} {subject}", context, subject, "gold",
            *endings, str(label),
        ))  # fmt: skip
    return rows


def write_swag(path: Path, rows: list[tuple[str, ...]], *, labelled: bool = True) -> int:
    """Write a SWAG file (test files have no label); returns the number of rows."""
    width = len(HEADER) - (not labelled)
    with open(path, "w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(HEADER[:width])
        writer.writerows(row[:width] for row in rows)
    return len(rows)
