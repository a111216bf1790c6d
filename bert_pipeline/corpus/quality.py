"""Quality of a corpus: leftover markup and broken sentences per million characters, and sampled passages."""

import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

_RESIDUE = re.compile(
    r"\[\[|\]\]|\{\{|\}\}|\{\||\|\}|\|\||''|==|~~~|-\{|\}-|<!--|-->|^[=*#|!:;]|[\ue000-\ue02f]"
    r"|</?[a-zA-Z][a-zA-Z0-9]*+(?:\s[^<>\n]*+)?/?>"
    r"|</?(?:ref|br|div|span|small|su[bp]|gallery|math|table|t[drh]|nowiki|blockquote|center|references)\b"
    r"|&(?:[a-zA-Z]{2,8}|#\d++|#x[0-9a-fA-F]++);|__[A-Z]{3,}+__|\[(?:https?|ftp):|\[//"
    r"|\|(?:thumb|left|right|center|frame|frameless|upright|\d++px)\b|\bthumb\||\b(?:File|Image):\S+\.[a-zA-Z]{3}"
    r"|\b(?:style|class|align|width)\s?=\s?[\"']|\b(?:colspan|rowspan|bgcolor|cellpadding|cellspacing|valign)\s?=",
    re.MULTILINE,
)
_SCARS = re.compile(
    r"\(\s*[,;:]?\s*\)|\[\s*\]|“\s*”|‘\s*’|(?<![\w\"])\"\"(?![\w\"])"  # nothing in brackets or quotation marks
    r"|\( (?! )[^)\n]|\([,;:]|\(\.(?=\s)|(?<=\S) \)|[,;:] ?\)"  # brackets that lost their first or last word
    r"|[\w)\]”’\"] [,;](?=\s|$)|[,;:] ?[,;](?=[\s\w])|, ?\.(?=\s|$)"
    r"|[\w)\]”’\"] \.(?! ?\.)(?=\s|$)"
    r"|(?<!['’-])\b(?:the|an|such as)[.,;)](?=\s|$)"  # words that want another after them
    r"|(?<=\s)['’]s\b|(?<!\d)(?<!\d )[$£€](?=\s?[.,;()]| (?:in|as|per|of|million|billion)\b)"
)


SUSPECT = (
    r"\[\[|\]\]|\{\{|\}\}|\{\||\|[|}]|''|==|~~~|-\{|\}-|<!--|-->|^[=*#|!:;]|[\x{e000}-\x{e02f}]|</?[a-zA-Z]"
    r"|&(?:[a-zA-Z]{2,8};|#)|__[A-Z]|\[(?:https?|ftp|//)|\|(?:thumb|left|right|cent|frame|upright|\S+px)|thumb\|"
    r"|(?:File|Image):\S|(?:style|class|align|width|span|color|cellpadding|cellspacing)\s?="
    r"|\(\s*[,;:]?\s*\)|\[\s*\]|“\s*”|‘\s*’|\"\"|\( |\([,;:.]| \)|[,;:] ?\)| [,;.](?:\s|$)|[,;:] ?[,;]|, ?\.(?:\s|$)"
    r"|\b(?:the|an|such as)[.,;)](?:\s|$)|\s['’]s|[$£€](?:\s?[.,;()]| (?:in|as|per|of|million|billion))"
)
"""The two expressions above less what RE2 lacks: it finds, quickly, all that holds residue or scars and little else."""


def count_residue(text: str) -> int:
    """The number of places where wiki markup or HTML is left in plain text."""
    return sum(1 for _ in _RESIDUE.finditer(text))


def count_scars(text: str) -> int:
    """The number of places where it shows that something is missing: "( )", " ,", "(;", "the.", a lone "$"."""
    return sum(1 for _ in _SCARS.finditer(text))


SAMPLE_PASSAGES = 10
_SAMPLE_CHARACTERS = 400


def sample_passages(shards: Sequence[tuple[Path, int, str]], number: int = SAMPLE_PASSAGES) -> list[dict[str, str]]:
    """Draw passages, of different documents while there are enough; the same for the same shards.

    `shards` are (path, rows, sha256) in order. Returns "document_id", "title" and "passage", cut to 400 characters.
    """
    total = sum(rows for _, rows, _ in shards)
    rng = random.Random(" ".join(sha256 for _, _, sha256 in shards))
    chosen = sorted(rng.sample(range(total), min(number, total)))
    each = 1 if total >= number else number
    found: list[dict[str, str]] = []
    first = 0
    for path, rows, _ in shards:
        wanted = [row - first for row in chosen if first <= row < first + rows]
        first += rows
        if not wanted:
            continue
        with pq.ParquetFile(path) as file:
            start = 0
            for group in range(file.num_row_groups):
                stop = start + file.metadata.row_group(group).num_rows
                here = [row - start for row in wanted if start <= row < stop]
                if here:
                    columns = ["document_id", "title", "sentences", "passage_starts"]
                    table = file.read_row_group(group, columns=columns).take(here)
                    found += [entry for record in table.to_pylist() for entry in _draw_from(record, each, rng)]
                start = stop
    return [found[place] for place in sorted(rng.sample(range(len(found)), min(number, len(found))))]


def _draw_from(record: Mapping[str, Any], number: int, rng: random.Random) -> list[dict[str, str]]:
    """At most so many passages of one document, in its order."""
    bounds = [*record["passage_starts"], len(record["sentences"])]
    drawn = []
    for place in sorted(rng.sample(range(len(bounds) - 1), min(number, len(bounds) - 1))):
        text = " ".join(record["sentences"][bounds[place] : bounds[place + 1]])
        shown = text if len(text) <= _SAMPLE_CHARACTERS else f"{text[: _SAMPLE_CHARACTERS - 1]}…"
        drawn.append({"document_id": record["document_id"], "title": record["title"], "passage": shown})
    return drawn


def describe_corpus(counts: Mapping[str, Any]) -> str:
    """Lines for people: what was read, kept and dropped, how clean it is, and the sample."""
    dropped = ", ".join(f"{number:,} {reason}" for reason, number in counts["dropped"].items())
    elements = ", ".join(f"{number:,} {kind}" for kind, number in counts["dropped_elements"].items())
    lines = [
        f"pages: {counts.get('pages_read', 0):,} read, {counts['documents']:,} kept; dropped: {dropped or 'none'}",
        f"text: {counts['passages']:,} passages, {counts['sentences']:,} sentences;"
        f" characters: {counts.get('characters_in', 0):,} in, {counts['characters_out']:,} out",
        f"dropped of the pages kept: {elements or 'nothing'}",
        f"per million characters: {counts['residue_per_million_characters']:g} left-overs of markup,"
        f" {counts['scars_per_million_characters']:g} scars",
        f"articles without text: {counts.get('articles_without_text', 0):,}, listed in dropped.tsv",
        "",
        "passages drawn at random:",
    ]
    lines += [f"  {entry['document_id']} {entry['title']}: {entry['passage']}" for entry in counts["passages_sample"]]
    return "\n".join(lines)
