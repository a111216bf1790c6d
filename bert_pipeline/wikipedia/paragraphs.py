"""Lines to paragraphs, and which of them are prose."""

import itertools
import re
from collections import Counter
from collections.abc import Sequence

from bert_pipeline.wikipedia.markup import remove_emphasis
from bert_pipeline.wikipedia.placeholders import DROPPED, FORMULA, UNKNOWN_VALUE, unprotect
from bert_pipeline.wikipedia.punctuation import (
    CJK,
    CLOSERS,
    COLONS,
    COMMAS,
    PAUSES,
    QUOTATION_MARKS,
    SENTENCE_ENDS,
    one_of,
)
from bert_pipeline.wikipedia.repair import (
    count_unspaced_words,
    count_words,
    remove_loose_spaces,
    repair_punctuation,
    repair_sentences,
)

_BLANKS = " \t\xa0" + DROPPED + FORMULA
_LINE_KINDS = {"=": "heading", "*": "list", "#": "list", ":": "list", ";": "list", "|": "table", "!": "table"}
"""First character of a line of markup -> the kind it is counted as."""
_SPECIAL_STARTS = frozenset(("}", *_BLANKS, *_LINE_KINDS))
_NO_SENTENCE_STARTS = frozenset(("", *_LINE_KINDS, "{", "※", "†", "‡"))
"""First characters of indented lines that are lists, tables or their legends."""
_MIN_INDENTED_WORDS = 6


class PassageReader:
    """Joins the lines of one page to paragraphs, keeps those that are prose, and counts the others in `dropped`."""

    def __init__(self, dropped: Counter[str], *, keeps_indented: bool = False) -> None:
        self._keeps_indented = keeps_indented
        self._dropped = dropped
        self._passages: list[str] = []
        self._paragraph: list[str] = []
        """Lines of the paragraph that is not complete yet."""
        self._is_code = False
        """The line before starts with a space."""
        self._half_sentence = ""
        """The last fragment, if a formula may complete it."""

    def read(self, text: str) -> list[str]:
        """Return the passages of a page whose markup has been expanded up to lists, headings and emphasis."""
        for line in text.split("\n"):
            if line and line[0] in _SPECIAL_STARTS and self._read_special_line(line):
                continue
            self._is_code = False
            if not line:
                self._end_paragraph()
                continue
            if line.startswith("----"):  # a horizontal rule, which may have text after it
                self._end_paragraph()
                line = line.lstrip("-")
            self._paragraph.append(line)
        self._end_paragraph()
        return self._passages

    def _read_special_line(self, line: str) -> bool:
        """Handle a line that starts with a blank or a sign of markup; return False if it is text nonetheless."""
        stripped = line.strip(_BLANKS)
        first = stripped[:1]
        was_code, self._is_code = self._is_code, False
        if not first:  # a blank line
            self._end_paragraph()
            return True
        # A space begins a line of code, unless something was dropped before or after it
        if line[0] == " " and DROPPED not in line[: len(line) - len(line.lstrip(_BLANKS))]:
            self._is_code = True
            self._dropped["code"] += not was_code
            self._end_paragraph()
            return True
        if first == "}" and not stripped.strip("{}|]"):  # the end of a template that was never opened
            self._dropped["debris"] += 1
            self._end_paragraph()
            return True
        is_continued = first in ":;" and line[0] in DROPPED + FORMULA  # "<math>x</math>: the text goes on"
        if first not in _LINE_KINDS or is_continued or first == "=" and stripped[-1] != "=":
            return False

        # A heading, an item of a list or a row of a table
        self._end_paragraph()
        if self._half_sentence:
            if first != "=" and FORMULA in line:  # "The distance between two points" and ":<math>…</math>" below
                self._passages.append(self._half_sentence)
                self._dropped["fragment"] -= 1
            self._half_sentence = ""
        self._dropped[self._keep_indented(stripped) if first == ":" else _LINE_KINDS[first]] += 1
        return True

    def _keep_indented(self, line: str) -> str:
        """Append a line indented by ":" to the passages if it is a sentence and the wiki's writers indent prose so.

        Return the kind that the line is counted as.
        """
        content = line.lstrip(":" + _BLANKS)
        is_notice = content.startswith("''") and content.endswith("''")  # all of it in italics or bold
        if is_notice or FORMULA in content or content[:1] in _NO_SENTENCE_STARTS:
            return "list"
        dropped: Counter[str] = Counter()
        passage = _finish_passage(content, dropped)
        if passage.rstrip(_QUOTES)[-1:] not in SENTENCE_ENDS or count_words(passage) < _MIN_INDENTED_WORDS:
            return "list"
        if not self._keeps_indented:
            return "indented sentence"
        self._passages.append(passage)
        self._dropped.update(dropped)
        return "indented sentence, kept"

    def _end_paragraph(self) -> None:
        """Keep the lines of the paragraph as a passage if they are prose."""
        paragraph = self._paragraph
        if not paragraph:
            return
        self._half_sentence = ""
        raw = paragraph[0] if len(paragraph) == 1 else join_lines(paragraph)
        paragraph.clear()
        kind = self._keep(raw)
        if kind:
            self._dropped[kind] += 1

    def _keep(self, raw: str) -> str:
        """Append a paragraph to the passages, or return the kind it is dropped as; "" also if nothing is left of it."""
        # Before the emphasis is removed: it distinguishes headings and titles from sentences.
        if "'''" in raw[:16] and _is_bold_heading(raw):
            return "heading"
        if raw[:1].isupper() and is_bibliography_entry(raw):  # nothing is left of a rule without text
            return "reference"
        passage = _finish_passage(raw, self._dropped)
        if not passage:
            return ""
        if is_prose(passage):
            self._passages.append(passage)
            return ""
        # "The distance between two points" is a sentence if a formula follows on the next line.
        self._half_sentence = passage if passage.count(" ") + count_unspaced_words(passage) >= 3 else ""
        return "fragment"


_CJK_PAIR = re.compile(f"[{CJK}]{{2}}")


def join_lines(lines: Sequence[str], close_up: re.Pattern[str] = _CJK_PAIR) -> str:
    """Join the lines of a paragraph: by a space, but not where `close_up` matches the characters on both sides."""
    joints = ["" if close_up.fullmatch(line[-1:] + after[:1]) else " " for line, after in itertools.pairwise(lines)]
    return "".join(map("".join, zip(lines, [*joints, ""])))


# "'''Title'''", "'''''Title''''':"
_BOLD = re.compile(rf"[{DROPPED} ]*+'''(?:'')?+(?!')((?:[^']|'(?!''))++)(?:''(?='''))?+'''[:. {DROPPED}]*+")


def _is_bold_heading(paragraph: str) -> bool:
    """Return True if a paragraph is a few words in bold: a heading without its markup."""
    match = _BOLD.fullmatch(paragraph)
    return match is not None and match[1].count(" ") + count_unspaced_words(match[1]) < 10


# "Smith, Jane, and Jean de la Tour", and the year or the title behind these names
_ENTRY = re.compile(
    r"[^\W\d_](?:[^\W_]|[’'-])*+, (?P<names>[^\W\d_](?:[^\W\d_]|[’'., -]){0,100}?)[., ]*+"
    r"(?:\(?(?:1[5-9]|20)\d\d[a-z]?\)?\.|(?P<title>(?:''|[“\"«„‘])++[^\W_a-z]))"
)
# What an entry ends with: "pp. 50–53", ", 1999.", "(London, 1999)"
_ENTRY_END = re.compile(rf"(?:\d[-–]\d{{1,9}}|[,(] ?\d{{4}}|\d{{4}}\))[.)\s{DROPPED}]*+$")
_NAME = re.compile(r"[^\W\d_]++")
_PARTICLES = frozenset(
    ("and", "et", "und", "y", "de", "du", "da", "das", "di", "dos", "la", "le", "van", "von", "der", "den", "el", "al")
)
"""Words that may be among the names in lower case."""


def is_bibliography_entry(paragraph: str) -> bool:
    """Return True for an entry of a bibliography without the markup of a list: inverted names, then a year or a title.

    Any other word in lower case among the names makes it a sentence: "However, Smith won it in 1999."
    """
    entry = _ENTRY.match(paragraph)
    if entry is None or not entry["names"][0].isupper():
        return False
    if any(name[0].islower() and name not in _PARTICLES for name in _NAME.findall(entry["names"])):
        return False
    return entry["title"] is None or _ENTRY_END.search(paragraph, max(0, len(paragraph) - 60)) is not None


# Paragraph to passage

# Soft hyphens, direction marks and the like. Joiners (U+200C, U+200D) stay: they spell words in several scripts
_INVISIBLE = re.compile("[\xad\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\u061c\ufeff]")
# White space other than " ", invisible characters, and all placeholders but DROPPED: one search instead of three
_SPECIAL = re.compile(
    "[\t-\r\x1c-\x1f\x85\xa0\xad\u1680\u2000-\u200f\u2028-\u202f\u205f-\u206f\u061c\u3000\ue001-\ue02f\ufeff]"
)


def _finish_passage(text: str, dropped: Counter[str]) -> str:
    """Remove emphasis, placeholders and superfluous white space from a paragraph."""
    if "'" in text and "''" in text:
        text = remove_emphasis(text)
    has_special = _SPECIAL.search(text) is not None
    if has_special:  # splitting takes as long as all else in this function: only where needed
        text = " ".join(text.split())
    while "  " in text:
        text = text.replace("  ", " ")
    text = text.strip()
    # Sentences before punctuation: what is removed from them leaves DROPPED, whose gap is closed next.
    if has_special and (FORMULA in text or UNKNOWN_VALUE in text):
        text = repair_sentences(text, dropped)
    text = repair_punctuation(text).strip()

    if has_special:
        text = " ".join(_INVISIBLE.sub("", unprotect(text)).split())
    return remove_loose_spaces(text)


_QUOTES = "".join(QUOTATION_MARKS)
_CLOSERS = "".join(CLOSERS | QUOTATION_MARKS | {" "})
OPEN_ENDS = tuple(PAUSES)
"""Ends of a passage that leads to a quotation, a list or a formula: "The signers were:"."""


# "Great-grandfather: Levi, third of twelve sons"
_LABEL = re.compile(rf"[^\W\d_][\w -]{{0,19}}+{one_of(COLONS)}")


def is_prose(passage: str) -> bool:
    """Return False for what is not a sentence: a label, a name, debris of a template."""
    if passage.startswith(("* ", "† ", "‡ ")):  # the legend of a table
        return False
    end = passage.rstrip(_CLOSERS)[-1:]
    if end in SENTENCE_ENDS:
        return any(map(str.isalnum, passage))
    # No full stop: only the length can tell a sentence from a label, or a list: "Tokyo - Kanagawa - Saitama - …".
    if end not in PAUSES and _LABEL.match(passage):
        return False
    num_spaces = passage.count(" ")
    if not num_spaces or not passage.isascii() and num_spaces < 8:
        num_spaces += count_unspaced_words(passage)
    if end in PAUSES:
        return num_spaces >= (1 if end in COMMAS else 2)
    return (len(passage) >= 80 or num_spaces >= 8) and passage.count(" - ") < 4
