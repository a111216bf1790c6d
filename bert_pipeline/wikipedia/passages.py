"""The lines of a page, its markup almost gone, to passages: what parts paragraphs, and which of them are no prose."""

from collections import Counter

from bert_pipeline.wikipedia.apparatus import (
    is_bold_heading,
    is_pointer,
    is_source,
    is_source_heading,
)
from bert_pipeline.wikipedia.marks import FORMULA, MARK
from bert_pipeline.wikipedia.prose import finish_passage, is_prose


class PassageReader:
    """Collects the paragraphs of one page from its lines, and counts what it leaves out."""

    def __init__(self, language: str, dropped: Counter[str]) -> None:
        self._language = language
        self._dropped = dropped
        self._passages: list[str] = []
        self._paragraph: list[str] = []
        self._indented: list[str] = []
        self._source_level = 0
        """Of the heading of the list of sources that is open, 0 where none is."""
        self._half_sentence = ""
        """The last fragment, if a formula may complete it."""

    def read(self, text: str) -> list[str]:
        """Return the passages of a page."""
        for line in text.split("\n"):
            if line[:1] in _SPECIAL_STARTS and self._take_special(line):
                continue
            if self._indented:
                self._close_indented()
            if line.startswith("----"):
                self._close()
                line = line.lstrip("-")
            self._paragraph.append(line)
        if self._indented:
            self._close_indented()
        self._close()
        return self._passages

    def _take_special(self, line: str) -> bool:
        """Whether a line that blanks or a sign of markup open is none of a paragraph, and all that follows from it."""
        stripped = line.strip(_BLANKS)
        first = stripped[:1]
        if not first:
            if self._indented:
                self._close_indented()
            self._close()
            return True
        if line[0] == " " and MARK not in line[: len(line) - len(line.lstrip(_BLANKS))]:
            self._indented.append(line)
            return True
        if first == "}" and not stripped.strip("{}|]"):  # the end of a template that was never opened
            self._dropped["debris"] += 1
            self._close()
            return True
        is_continued = first in ":;" and line[0] in MARK + FORMULA  # the sign stands behind a formula
        if first not in _LINE_KINDS or is_continued or first == "=" and stripped[-1] != "=":
            return False
        if self._indented:
            self._close_indented()
        self._dropped[_LINE_KINDS[first]] += 1
        self._close()
        if self._half_sentence:
            if first != "=" and FORMULA in line:  # "The distance between two points" and a formula below
                self._passages.append(self._half_sentence)
                self._dropped["fragment"] -= 1
            self._half_sentence = ""
        if first == "=":
            level = len(stripped) - len(stripped.lstrip("="))
            if not self._source_level or level <= self._source_level:
                self._source_level = level if is_source_heading(stripped) else 0
        return True

    def _close_indented(self) -> None:
        """Lines that a space opens are shown as code, unless it is one, a slip before running text."""
        if len(self._indented) == 1 and _is_running_text(self._indented[0]):
            self._paragraph.append(self._indented[0])
        else:
            self._dropped["code"] += 1
            self._close()
        self._indented.clear()

    def _close(self) -> None:
        """End the paragraph, and keep it if it is prose."""
        paragraph = self._paragraph
        if not paragraph:
            return
        self._half_sentence = ""
        if len(paragraph) > 1 and paragraph[0].startswith("''") and is_pointer(paragraph[0], self._language):
            del paragraph[0]  # "''See also: [[Page]]''" with the text on the next line
            self._dropped["pointer"] += 1
        raw = " ".join(paragraph)
        paragraph.clear()
        kind = self._keep(raw)
        if kind:
            self._dropped[kind] += 1

    def _keep(self, raw: str) -> str:
        """Keep a paragraph as a passage, or say what it is instead; "" also for nothing at all."""
        if "'''" in raw[:16] and is_bold_heading(raw):
            return "heading"
        if is_pointer(raw, self._language):
            return "pointer"
        passage = finish_passage(raw, self._dropped)
        if not passage:
            return ""
        if self._source_level and is_source(passage):
            return "reference"
        if is_prose(passage):
            self._passages.append(passage)
            return ""
        self._half_sentence = passage if passage.count(" ") >= 3 else ""
        return "fragment"


_BLANKS = " \t\xa0" + MARK + FORMULA
_LINE_KINDS = {"=": "heading", "*": "list", "#": "list", ":": "list", ";": "list", "|": "table", "!": "table"}
_SPECIAL_STARTS = frozenset(("", "}", *_BLANKS, *_LINE_KINDS))


def _is_running_text(line: str) -> bool:
    words = line.split()
    if line.isupper() or " = " in line:  # an equation
        return False
    return len(words) >= 8 or len(words) >= 2 and words[-1][-1] in ".:,"
