"""Quality of a corpus: leftover markup and broken sentences per million characters, and sampled passages."""

import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

QUALITY_COUNTS = ("residue", "scars")
"""Keys of leftover markup and broken text in manifests."""

_MARKUP = re.compile(
    r"\[\[|\]\]|\{\{|\}\}|\{\||\|\}|\|\||''|==|~~~|-\{|\}-|<!--|-->|^[=*#|!:;]|[\ue000-\ue02f]"
    r"|</?[a-zA-Z][a-zA-Z0-9]*+(?:\s[^<>\n]*+)?/?>"
    r"|</?(?:ref|br|div|span|small|su[bp]|gallery|math|table|t[drh]|nowiki|blockquote|center|references)\b"
    r"|&(?:[a-zA-Z]{2,8}|#\d++|#x[0-9a-fA-F]++);|__[A-Z]{3,}+__|\[(?:https?|ftp):|\[//"
    r"|\|(?:thumb|left|right|center|frame|frameless|upright|\d++px)\b|\bthumb\||\b(?:File|Image):\S+\.[a-zA-Z]{3}"
    r"|\b(?:style|class|align|width)\s?=\s?[\"']|\b(?:colspan|rowspan|bgcolor|cellpadding|cellspacing|valign)\s?=",
    re.MULTILINE,
)
_BROKEN_TEXT = re.compile(
    r"\(\s*[,;:]?\s*\)|\[\s*\]|“\s*”|‘\s*’|(?<![\w\"])\"\"(?![\w\"])"  # empty brackets or quotation marks
    r"|\( (?! )[^)\n]|\([,;:]|\(\.(?=\s)|(?<=\S) \)|[,;:] ?\)"  # brackets that lost their first or last word
    r"|[\w)\]”’\"] [,;](?=\s|$)|[,;:] ?[,;](?=[\s\w])|, ?\.(?=\s|$)"
    r"|[\w)\]”’\"] \.(?! ?\.)(?=\s|$)"
    r"|(?<!['’-])\b(?:the|an|such as)[.,;)](?=\s|$)"  # words that need another one after them
    r"|(?<=\s)['’]s\b|(?<!\d)(?<!\d )[$£€](?=\s?[.,;()]| (?:in|as|per|of|million|billion)\b)"
)


SUSPECT = (
    r"\[\[|\]\]|\{\{|\}\}|\{\||\|[|}]|''|==|~~~|-\{|\}-|<!--|-->|^[=*#|!:;]|[\x{e000}-\x{e02f}]|</?[a-zA-Z]"
    r"|&(?:[a-zA-Z]{2,8};|#)|__[A-Z]|\[(?:https?|ftp|//)|\|(?:thumb|left|right|cent|frame|upright|\S+px)|thumb\|"
    r"|(?:File|Image):\S|(?:style|class|align|width|span|color|cellpadding|cellspacing)\s?="
    r"|\(\s*[,;:]?\s*\)|\[\s*\]|“\s*”|‘\s*’|\"\"|\( |\([,;:.]| \)|[,;:] ?\)| [,;.](?:\s|$)|[,;:] ?[,;]|, ?\.(?:\s|$)"
    r"|\b(?:the|an|such as)[.,;)](?:\s|$)|\s['’]s|[$£€](?:\s?[.,;()]| (?:in|as|per|of|million|billion))"
)
"""The two expressions above for RE2, which lacks lookarounds: a fast prefilter without false negatives."""


def count_markup(text: str) -> int:
    """Count the matches of leftover wiki markup or HTML in plain text."""
    return sum(1 for _ in _MARKUP.finditer(text))


def count_broken_text(text: str) -> int:
    """Count the matches of text that lost a part: "( )", " ,", "(;", "the.", a lone "$"."""
    return sum(1 for _ in _BROKEN_TEXT.finditer(text))


SAMPLE_PASSAGES = 10
_SAMPLE_CHARACTERS = 400


def sample_passages(shards: Sequence[tuple[Path, int, str]], number: int = SAMPLE_PASSAGES) -> list[dict[str, str]]:
    """Draw random passages, from different documents if there are enough; equal shards give equal passages.

    `shards` are (path, rows, sha256) in order. Returns "document_id", "title" and "passage", cut to 400 characters.
    """
    total = sum(rows for _, rows, _ in shards)
    rng = random.Random(" ".join(sha256 for _, _, sha256 in shards))
    # Choose rows over all shards first, then read only the row groups that hold one.
    chosen = sorted(rng.sample(range(total), min(number, total)))
    per_document = 1 if total >= number else number
    found: list[dict[str, str]] = []
    first = 0  # row of all shards at which the current row group begins
    for path, rows, _ in shards:
        if not any(first <= row < first + rows for row in chosen):
            first += rows
            continue
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                size = file.metadata.row_group(group).num_rows
                here = [row - first for row in chosen if first <= row < first + size]
                first += size
                if here:
                    columns = ["document_id", "title", "sentences", "passage_starts"]
                    table = file.read_row_group(group, columns=columns).take(here)
                    found += [entry for record in table.to_pylist() for entry in _draw(record, per_document, rng)]
    # A small corpus gives several passages per document, which may be too many.
    return [found[place] for place in sorted(rng.sample(range(len(found)), min(number, len(found))))]


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
        f"per million characters: {counts['residue_per_million_characters']:g} pieces of leftover markup,"
        f" {counts['scars_per_million_characters']:g} broken sentences",
        f"near duplicates: {near['documents']:,} documents, {near['passages']:,} passages of other documents",
        f"articles without text: {counts.get('articles_without_text', 0):,}, listed in dropped.tsv",
        "",
        "passages drawn at random:",
    ]
    lines += [f"  {entry['document_id']} {entry['title']}: {entry['passage']}" for entry in counts["passages_sample"]]
    return "\n".join(lines)
