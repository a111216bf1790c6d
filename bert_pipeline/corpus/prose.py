"""The prose of texts that also have headings, lists, tables and references: Wikipedia's on the hub, or Markdown.

The kinds that are dropped are counted by the names of those in dumps.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Literal

from bert_pipeline.wikipedia.languages import end_sections
from bert_pipeline.wikipedia.paragraphs import is_bibliography_entry, is_prose, join_lines

ProseForm = Literal["auto", "plain", "markdown", "keep"]

HUB_COLUMNS = {"id", "url", "title", "text"}
"""All columns of wikimedia/wikipedia, whose texts are plain."""
FINEWIKI_COLUMNS = {"wikiname", "in_language", "text"}
"""Some columns of HuggingFaceFW/finewiki, whose texts are Markdown."""

BLANK_LINES = re.compile(r"\n[ \t\r\f\v]*\n\s*")
_FENCE = re.compile(r"^(```|~~~).*?(?:^\1[^\n]*$|\Z)", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"(#{1,6})[ \t]+(.*)")
_ITEM = {"plain": re.compile(r"[-*•·‣◦▪–]\s"), "markdown": re.compile(r"(?:[-*+•]|\d{1,9}[.)])\s")}
_TABLE = re.compile(r"\|.*|(?=[-:| ]*---)[-:| ]+")
# ![image](…), [text](…), [^1], [[1]](#…), **bold**, _italics_, \*: of at most 1,000 characters, or the search for the
# end of what is never closed, from each of its beginnings, would take the square of a line's length.
_TARGET = r'\((?:(?:[^()\s]|\([^()\s]{0,1000}\)){0,1000}|[^)\s]{0,1000})(?:\s(?:"[^"]{0,1000}"|[^)]{0,1000}))?\)'
_IMAGE = re.compile(rf"!\[[^\]]{{0,1000}}\]{_TARGET}|\[\^[^\]]{{1,1000}}\]|\[\\?\[[^\[\]]{{1,100}}\]\](?=\(#){_TARGET}")
_LINK = re.compile(rf"\[([^\]]{{0,1000}})\]{_TARGET}")
_EMPHASIS = re.compile(r"(?<![\w\\])(\*{1,3}|_{1,3}|`{1,3})(?=\S)(.{1,1000}?)(?<=\S)\1(?!\w)")
_ESCAPE = re.compile(r"\\([!-/:-@\[-`{-~])")
_MIN_CONTINUED = 0.3
"""Share of the lines after a paragraph's first that begin in lower case where lines are broken by width."""


def form_of(form: ProseForm, columns: Collection[str]) -> ProseForm:
    """Return the form of a file's texts: `auto` knows two layouts of the hub by their columns, others are kept."""
    if form != "auto":
        return form
    return "plain" if set(columns) == HUB_COLUMNS else "markdown" if {*columns} >= FINEWIKI_COLUMNS else "keep"


def prose_passages(text: str, form: ProseForm, language: str, dropped: Counter[str]) -> list[str]:
    """Return the paragraphs of a text that are prose, as one line each, and count the others in `dropped`.

    `keep` returns the parts between blank lines as they are.
    """
    if form == "keep":
        return BLANK_LINES.split(text)
    passages: list[str] = []
    ends, skipped = end_sections(language), 0  # level of the heading whose section is dropped
    if form == "markdown" and ("```" in text or "~~~" in text):
        text, count = _FENCE.subn("\n\n", text)
        dropped["code"] += count
    for line in _lines(text):
        passage = " ".join(line.split())
        heading = _HEADING.fullmatch(passage) if form == "markdown" else None
        level, title = (len(heading[1]), heading[2].rstrip(" #")) if heading else (2, passage)
        if heading and level <= skipped:
            skipped = 0
        # Any line of plain text may be a heading; in Markdown, "# Notes" is the title of the whole.
        if not skipped and (heading and level > 1 or form == "plain") and title.rstrip(": ").casefold() in ends:
            skipped = level
        if form == "markdown":
            passage = _without_markdown(passage)
        kind = "after references" if skipped else "heading" if heading else _kind(line, passage, form)
        if kind:
            dropped[kind] += 1
        else:
            passages.append(passage)
    return passages


def _lines(text: str) -> Iterator[str]:
    """Yield the paragraphs of a text; those that are broken by width are joined."""
    for part in BLANK_LINES.split(text.strip("\n")):
        lines = [line for line in part.split("\n") if line.strip()]
        after = [line.lstrip("> ")[:1] for line in lines[1:]]
        is_broken = sum(map(str.islower, after)) > _MIN_CONTINUED * len(after)
        yield from [join_lines([line.strip("> \t") for line in lines])] if is_broken else lines


def _kind(line: str, passage: str, form: ProseForm) -> str:
    """Return what a paragraph is dropped as, "" for prose."""
    # The items of a list keep the blank behind their mark on the hub.
    if _ITEM[form].match(line.lstrip("> ")) or form == "plain" and line.startswith(" "):
        return "list"
    if _TABLE.fullmatch(line.strip()):
        return "table"
    if passage[:1].isupper() and is_bibliography_entry(passage):
        return "reference"
    return "" if is_prose(passage) else "fragment"


def _without_markdown(line: str) -> str:
    """Return a line of Markdown without its marks: links have their text, images and notes nothing."""
    line = _LINK.sub(r"\1", _IMAGE.sub("", line.lstrip("> ")))
    for _ in range(3):  # bold in italics in a quotation
        line = _EMPHASIS.sub(r"\2", line)
    return " ".join(_ESCAPE.sub(r"\1", line).split())
