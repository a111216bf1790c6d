"""Quality of a corpus: leftover markup and broken sentences per million characters, and sampled passages."""

import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_pipeline.corpus.parquet import DOCUMENT_SCHEMA
from bert_pipeline.errors import count_of
from bert_pipeline.parquet_io import open_parquet, read_row_group
from bert_pipeline.wikipedia.punctuation import (
    BRACKETS,
    CLOSE_UP,
    CLOSERS,
    COLONS,
    FULL_STOPS,
    OPENERS,
    PARENTHESES,
    PAUSES,
    QUOTATIONS,
    one_of,
)

# Outside of lookarounds, the patterns below use only what RE2 reads in the same way: no \w, \s, \b or \d. Lookarounds
# contain no groups.

_MARKUP = (
    r"\[\[|\]\]|\{\{|\}\}|\{\||\|\}|\|\||''|~~~|-\{|\}-|<!--|-->|^[=*#|!:;]|==$|[\ue000-\ue02f]"
    r"|</?[a-zA-Z][a-zA-Z0-9]*+(?:[ /][^<>\n]*+)?+>"
    r"|</?(?:ref|br|div|span|small|su[bp]|gallery|math|table|t[drh]|nowiki|blockquote|center|references)(?!\w)"
    r"|&(?:[a-zA-Z]{2,8}|#[0-9]++|#x[0-9a-fA-F]++);|__[A-Z]{3,}+__|\[(?:https?|ftp):|\[//"
    r"|(?<=\w)\|(?=\w\w)"  # options and captions of files: "thumb|left"
    r"|(?<=\w):[^ /|:]+\.(?:jpe?g|png|svg|gif|tiff?|og[gv]|webm)(?!\w)"  # "File:Foo.jpg", in any language
    r"|(?<!\w)(?:style|class|align|width) ?= ?[\"']|(?:colspan|rowspan|bgcolor|cellpadding|cellspacing|valign) ?="
)


def _broken_text() -> str:
    """Return the pattern of text that lost a part: brackets and separators with nothing where a word belongs."""
    opener, closer, closer_or_quote = one_of(PARENTHESES), one_of(PARENTHESES.values()), one_of(CLOSERS, '"')
    pause, comma = one_of(PAUSES), one_of(PAUSES - COLONS)
    stop = one_of(FULL_STOPS - {"."})  # the other scripts' only: the Latin one also begins ".NET" and "..."
    latin_stop = r"\.(?! ?\.)(?=\s|$)"
    others = [f"{left}{right}" for left, right in BRACKETS.items() if left not in PARENTHESES and left != "{"]
    quotations = [pair for pair in QUOTATIONS if pair[0] in OPENERS - {"«", "‹"}]
    empty = "|".join(" *".join(map(re.escape, pair)) for pair in (*others, *quotations))
    word = rf"(?<=\w|{closer_or_quote})"
    return (
        rf"{opener} *+(?:{pause}|[〜～－]|//)?+ *+{closer}"
        rf"|{empty}|«»|‹›|(?<![^\s\(])[«‹] ++[»›]|(?<![\w\"])\"\"(?![\w\"])"
        rf"|{opener} (?![ \n])|{opener}{pause}|{opener}(?:\.(?=\s)|{stop})|(?<=\S) {closer}|{pause} ?{closer}"
        rf"|{word} (?:{one_of(CLOSE_UP - set(',.'))}|,(?=\s|$)|{latin_stop})"
        rf"|{pause} ?{comma}(?=\s|\w)|{comma} ?(?:{latin_stop}|{stop})"
        # In English: words that need another one after them, and a currency without its amount
        r"|(?<!['’-])(?<!\w)(?:the|such as)[.,;\)](?=\s|$)|(?<=[a-z] )[$£][.,;\)]"
        r"|(?<![0-9])(?<![0-9] )[$£€] (?:in|as|per|of|million|billion)(?!\w)"
    )


def _for_re2(pattern: str) -> str:
    """Return a looser pattern in RE2's syntax, which lacks lookarounds and possessive quantifiers."""
    pattern = pattern.replace(r"(?=\s|$)", "(?:[^!-~]|$)")  # or each " .NET" would be read once more
    pattern = re.sub(r"\(\?<?[=!](?:\\.|[^()\\])*\)", "", pattern)
    pattern = re.sub(r"(?<=[*+?}])\+", "", pattern)
    return re.sub(r"\\u([0-9a-f]{4})", r"\\x{\1}", pattern)


_LEFTOVER_MARKUP = re.compile(_MARKUP, re.MULTILINE)
_BROKEN_TEXT = re.compile(_broken_text(), re.MULTILINE)


def count_markup(text: str) -> int:
    """Count the matches of leftover wiki markup or HTML in plain text."""
    return sum(1 for _ in _LEFTOVER_MARKUP.finditer(text))


def count_broken_text(text: str) -> int:
    """Count the matches of text that lost a part, in any script: "( )", " ,", "（、", "the.", a lone "$"."""
    return sum(1 for _ in _BROKEN_TEXT.finditer(text))


QUALITY_COUNTS = {"markup": count_markup, "broken_text": count_broken_text}
"""Keys of leftover markup and broken text in manifests -> how they are counted."""
SUSPECT = f"(?m){_for_re2(_MARKUP)}|{_for_re2(_broken_text())}"
"""A pattern for RE2 that finds every text with some of either, and few others."""

SAMPLE_PASSAGES = 10
_SAMPLE_CHARACTERS = 400


def sample_passages(shards: Sequence[tuple[Path, int, str]]) -> list[dict[str, str]]:
    """Draw ten random passages, from different documents if there are enough; equal shards give equal passages.

    `shards` are (path, rows, sha256) in order. Returns "document_id", "title" and "passage", cut to 400 characters.
    """
    total = sum(rows for _, rows, _ in shards)
    rng = random.Random(" ".join(sha256 for _, _, sha256 in shards))
    # Choose rows over all shards first, then read only the row groups that hold one.
    chosen = sorted(rng.sample(range(total), min(SAMPLE_PASSAGES, total)))
    per_document = 1 if total >= SAMPLE_PASSAGES else SAMPLE_PASSAGES
    passages: list[dict[str, str]] = []
    first = 0  # row of all shards at which the current row group begins
    for path, rows, _ in shards:
        if not any(first <= row < first + rows for row in chosen):
            first += rows
            continue
        with open_parquet(path, DOCUMENT_SCHEMA, "a corpus shard") as file:
            for group in range(file.num_row_groups):
                size = file.metadata.row_group(group).num_rows
                in_group = [row - first for row in chosen if first <= row < first + size]
                first += size
                if in_group:
                    columns = ["document_id", "title", "sentences", "passage_starts"]
                    table = read_row_group(file, group, path, columns).take(in_group)
                    passages += [entry for record in table.to_pylist() for entry in _draw(record, per_document, rng)]
    # A small corpus gives several passages per document, which may be too many.
    return [passages[place] for place in sorted(rng.sample(range(len(passages)), min(SAMPLE_PASSAGES, len(passages))))]


def _draw(record: Mapping[str, Any], number: int, rng: random.Random) -> list[dict[str, str]]:
    """Draw at most `number` passages of one document, in order."""
    bounds = [*record["passage_starts"], len(record["sentences"])]
    drawn = []
    for place in sorted(rng.sample(range(len(bounds) - 1), min(number, len(bounds) - 1))):
        text = " ".join(record["sentences"][bounds[place] : bounds[place + 1]])
        shown = text if len(text) <= _SAMPLE_CHARACTERS else f"{text[: _SAMPLE_CHARACTERS - 1]}…"
        drawn.append({"document_id": record["document_id"], "title": record["title"], "passage": shown})
    return drawn


def describe_corpus(counts: Mapping[str, Any]) -> str:
    """Format the counts as text: pages read, kept and dropped, quality, and the sampled passages."""
    dropped = ", ".join(f"{number:,} {reason}" for reason, number in counts["dropped"].items())
    near = counts["near_duplicates"]
    elements = ", ".join(f"{number:,} {kind}" for kind, number in counts["dropped_elements"].items())
    lines = [
        f"pages: {counts.get('pages_read', 0):,} read, {counts['documents']:,} kept; dropped: {dropped or 'none'}",
        f"text: {counts['passages']:,} passages, {counts['sentences']:,} sentences;"
        f" characters: {counts.get('characters_in', 0):,} in, {counts['characters_out']:,} out",
        f"dropped of the pages kept: {elements or 'nothing'}",
        f"per million characters: {counts['markup_per_million_characters']:g} pieces of leftover markup,"
        f" {counts['broken_text_per_million_characters']:g} broken sentences",
        f"near duplicates: {count_of(near['documents'], 'documents')},"
        f" {count_of(near['passages'], 'passages of other documents')}",
        f"articles without text: {counts.get('articles_without_text', 0):,}, listed in dropped.tsv",
        "",
        "passages drawn at random:",
    ]
    lines += [f"  {entry['document_id']} {entry['title']}: {entry['passage']}" for entry in counts["passages_sample"]]
    return "\n".join(lines)
