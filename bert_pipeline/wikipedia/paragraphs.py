"""Lines to paragraphs, and which of them are prose: not hatnotes, bold headings or bibliography entries."""

import functools
import re
from collections import Counter

from bert_pipeline.wikipedia.markup import remove_emphasis
from bert_pipeline.wikipedia.placeholders import DROPPED, FORMULA, UNKNOWN_VALUE, unprotect
from bert_pipeline.wikipedia.punctuation import CLOSERS, COMMAS, PAUSES, QUOTATION_MARKS, SENTENCE_ENDS
from bert_pipeline.wikipedia.repair import (
    count_unspaced_words,
    remove_loose_spaces,
    repair_punctuation,
    repair_sentences,
)

_BLANKS = " \t\xa0" + DROPPED + FORMULA
_LINE_KINDS = {"=": "heading", "*": "list", "#": "list", ":": "list", ";": "list", "|": "table", "!": "table"}
"""First character of a line of markup -> the kind it is counted as."""
_SPECIAL_STARTS = frozenset(("", "}", *_BLANKS, *_LINE_KINDS))


class PassageReader:
    """Joins the lines of one page to paragraphs, keeps those that are prose, and counts the others in `dropped`."""

    def __init__(self, language: str, dropped: Counter[str]) -> None:
        self._hatnote = _hatnote_pattern(language)
        self._dropped = dropped
        self._passages: list[str] = []
        self._paragraph: list[str] = []
        """Lines of the paragraph that is not complete yet."""
        self._indented: list[str] = []
        """Lines that start with a space, which may be code or belong to that paragraph."""
        self._reference_level = 0
        """Level of the heading of the current list of references; 0 outside of one."""
        self._half_sentence = ""
        """The last fragment, if a formula may complete it."""

    def read(self, text: str) -> list[str]:
        """Return the passages of a page whose markup has been expanded up to lists, headings and emphasis."""
        for line in text.split("\n"):
            if line[:1] in _SPECIAL_STARTS and self._read_special_line(line):
                continue
            if self._indented:
                self._end_indented()
            if line.startswith("----"):  # a horizontal rule, which may have text after it
                self._end_paragraph()
                line = line.lstrip("-")
            self._paragraph.append(line)
        if self._indented:
            self._end_indented()
        self._end_paragraph()
        return self._passages

    def _read_special_line(self, line: str) -> bool:
        """Handle a line that starts with a blank or a sign of markup; return False if it is text nonetheless."""
        stripped = line.strip(_BLANKS)
        first = stripped[:1]
        if not first:  # a blank line
            if self._indented:
                self._end_indented()
            self._end_paragraph()
            return True
        # A space begins a line of code, unless something was dropped before or after it
        if line[0] == " " and DROPPED not in line[: len(line) - len(line.lstrip(_BLANKS))]:
            self._indented.append(line)
            return True
        if first == "}" and not stripped.strip("{}|]"):  # the end of a template that was never opened
            self._dropped["debris"] += 1
            self._end_paragraph()
            return True
        is_continued = first in ":;" and line[0] in DROPPED + FORMULA  # "<math>x</math>: the text goes on"
        if first not in _LINE_KINDS or is_continued or first == "=" and stripped[-1] != "=":
            return False

        # A heading, an item of a list or a row of a table
        if self._indented:
            self._end_indented()
        self._dropped[_LINE_KINDS[first]] += 1
        self._end_paragraph()
        if self._half_sentence:
            if first != "=" and FORMULA in line:  # "The distance between two points" and ":<math>…</math>" below
                self._passages.append(self._half_sentence)
                self._dropped["fragment"] -= 1
            self._half_sentence = ""
        if first == "=":
            level = len(stripped) - len(stripped.lstrip("="))
            if not self._reference_level or level <= self._reference_level:
                self._reference_level = level if _is_reference_heading(stripped) else 0
        return True

    def _end_indented(self) -> None:
        """Drop indented lines, which are shown as code; a single one of running text is a mistake and is kept."""
        if len(self._indented) == 1 and _is_running_text(self._indented[0]):
            self._paragraph.append(self._indented[0])
        else:
            self._dropped["code"] += 1
            self._end_paragraph()
        self._indented.clear()

    def _end_paragraph(self) -> None:
        """Keep the lines of the paragraph as a passage if they are prose."""
        paragraph = self._paragraph
        if not paragraph:
            return
        self._half_sentence = ""
        if len(paragraph) > 1 and paragraph[0].startswith("''") and self._is_hatnote(paragraph[0]):
            del paragraph[0]  # "''See also: [[Page]]''" with the text on the next line
            self._dropped["pointer"] += 1
        raw = " ".join(paragraph)
        paragraph.clear()
        kind = self._keep(raw)
        if kind:
            self._dropped[kind] += 1

    def _keep(self, raw: str) -> str:
        """Append a paragraph to the passages, or return the kind it is dropped as; "" also if nothing is left of it."""
        # Before the emphasis is removed: it distinguishes headings and hatnotes from sentences.
        if "'''" in raw[:16] and _is_bold_heading(raw):
            return "heading"
        if self._is_hatnote(raw):
            return "pointer"
        passage = _finish_passage(raw, self._dropped)
        if not passage:
            return ""
        if self._reference_level and _is_bibliography_entry(passage):
            return "reference"
        if _is_prose(passage):
            self._passages.append(passage)
            return ""
        # "The distance between two points" is a sentence if a formula follows on the next line.
        self._half_sentence = passage if passage.count(" ") >= 3 else ""
        return "fragment"

    def _is_hatnote(self, paragraph: str) -> bool:
        return self._hatnote is not None and len(paragraph) < 400 and self._hatnote.fullmatch(paragraph) is not None


def _is_running_text(line: str) -> bool:
    words = line.split()
    if line.isupper() or " = " in line:  # an equation
        return False
    return len(words) >= 8 or len(words) >= 2 and words[-1][-1] in ".:,"


# Paragraphs that are not prose; emphasis is still in them

# "'''Title'''", "'''''Title''''':"
_BOLD = re.compile(rf"[{DROPPED} ]*+'''(?:'')?+(?!')((?:[^']|'(?!''))++)(?:''(?='''))?+'''[:. {DROPPED}]*+")


def _is_bold_heading(paragraph: str) -> bool:
    """Return True if a paragraph is a few words in bold: a heading without its markup."""
    match = _BOLD.fullmatch(paragraph)
    return match is not None and match[1].count(" ") < 10


_HATNOTES = {
    "bg": ("вижте също|виж също|виж още", "основна статия"),
    "ca": ("vegeu també", "article principal"),
    "cs": ("viz též|viz také", "hlavní článek"),
    "da": ("se også", "hovedartikel"),
    "de": ("siehe auch", "hauptartikel"),
    "en": ("see also", "main articles?|further information|further reading"),
    "es": ("véase también|ver también", "artículo principal"),
    "fi": ("katso myös", "pääartikkeli"),
    "fr": ("voir aussi", "articles? détaillés?|article principal|articles? connexes?"),
    "hu": ("lásd még", "bővebben|fő szócikk"),
    "it": ("vedi anche", "voce principale"),
    "nl": ("zie ook", "hoofdartikel"),
    "no": ("se også", "hovedartikkel"),
    "pl": ("zobacz też|zobacz także", "osobny artykuł|główny artykuł"),
    "pt": ("ver também|veja também", "artigo principal|ver artigo principal"),
    "ro": ("vezi și", "articol principal"),
    "ru": (r"см\. также|смотри(?:те)? также", "основная статья|подробнее по этой теме"),
    "sv": ("se även", "huvudartikel"),
    "tr": ("ayrıca bakınız", "ana madde"),
    "uk": (r"див\. також|дивіться також", "основна стаття|докладніше"),
}
"""Language -> how its hatnotes and "see also" lines begin: words that need no colon, and words that do, since sentences
may begin with them too (https://en.wikipedia.org/wiki/Wikipedia:Hatnote)."""

_ENGLISH_IN_ITALICS = (
    r"|(?:this (?:article|page|section) is about\b|not to be confused with\b|see\b|.{1,80} redirects here\b"
    r"|for (?:more|other|further|additional|information|details|an?|the|all|any|another)\b(?=.*\bsee\b)"
    r"|for (?=[^.]*, see\b))"
)
"""How a hatnote may begin if all of it is in italics: "''For other uses, see [[X]].''", as sentences do too."""
_ENGLISH_TITLE = r"|(?-i:See (?:the )?[A-Z][^\s.]*+(?: [A-Z(][^\s.]*+){0,3}\.?)"
"""A link to a title and nothing else: "See the French Revolution."."""


@functools.lru_cache(maxsize=32)
def _hatnote_pattern(language: str) -> re.Pattern[str] | None:
    """Compile the pattern of the paragraphs that only link to other pages; None for languages without a table."""
    base = language.partition("-")[0]
    base = "en" if base in ("", "simple") else base
    if base not in _HATNOTES:
        return None
    also, with_colon = _HATNOTES[base]
    in_italics, title = (_ENGLISH_IN_ITALICS, _ENGLISH_TITLE) if base == "en" else ("", "")
    return re.compile(
        rf"[({DROPPED} ]*+(?:"
        rf"(?:(?:{also})\b:?|(?:{with_colon}) ?:)(?:(?![.!?] [^\W_]).)*+"  # "See also: X, Y": one sentence at most
        rf"|''(?:{also}|(?:{with_colon})\b{in_italics})(?:[^']|'(?!'))*+''[.)]?{title})[) {DROPPED}]*+",
        re.IGNORECASE,
    )


_REFERENCE_HEADINGS = frozenset(
    {"references", "reference", "bibliography", "selected bibliography", "further reading", "external links",
     "works cited", "citations", "notes", "footnotes", "endnotes", "notes and references", "references and notes",
     "primary sources", "secondary sources", "see also", "literatur", "einzelnachweise", "weblinks", "quellen",
     "bibliographie", "références", "notes et références", "liens externes", "bibliografía", "referencias",
     "enlaces externos", "bibliografia", "collegamenti esterni", "referências", "ligações externas", "literatuur",
     "bronnen", "externe links", "литература", "примечания", "ссылки", "источники", "сноски", "бележки",
     "външни препратки", "література", "примітки", "посилання", "джерела", "przypisy", "linki zewnętrzne",
     "externí odkazy", "källor", "litteratur"}
)  # fmt: skip
"""Titles of sections that list sources. "Literature", which may be the subject of a section, is not among them."""
# The signs around a title: "== Title ==", "''Title'':"
_NO_LETTER = re.compile(r"[^\w ]|_")
# "1999", "ISBN"
_YEAR = re.compile(r"\b(?:1[5-9]|20)\d\d\b|\bISBN\b")
# "Smith, J", "van der Waals, J"
_AUTHOR = re.compile(r"[^\W\d_][\w’'-]*+(?: [\w’'.-]++){0,3}, [^\W\d_]")


def _is_reference_heading(line: str) -> bool:
    """Return True if a line "== Title ==" is the heading of a list of references."""
    return _NO_LETTER.sub("", line).strip().casefold() in _REFERENCE_HEADINGS


def _is_bibliography_entry(passage: str) -> bool:
    """Return True if a passage of such a section is an entry of the list: it begins with an author and has a year."""
    author = _AUTHOR.match(passage)
    return (
        author is not None
        and passage[0].isupper()
        and not passage[author.end() - 1].islower()
        and _YEAR.search(passage) is not None
    )


# Paragraph to passage

_HAS_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
_INVISIBLE = dict.fromkeys([0xAD, 0x200B, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2060, 0x2065), 0xFEFF])
"""Soft hyphens, direction marks and the like. Joiners (U+200C, U+200D) stay: they spell words in several scripts."""
# White space other than " "
_ODD_SPACE = re.compile(r"[\t-\r\x1c-\x1f\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]")


def _finish_passage(text: str, dropped: Counter[str]) -> str:
    """Remove emphasis, placeholders and superfluous white space from a paragraph."""
    if "'" in text and "''" in text:
        text = remove_emphasis(text)
    if "  " in text or _ODD_SPACE.search(text):  # splitting takes a third of this function's time: only where needed
        text = " ".join(text.split())
    text = text.strip()
    # Sentences before punctuation: what is removed from them leaves DROPPED, whose gap is closed next.
    if FORMULA in text or UNKNOWN_VALUE in text:
        text = repair_sentences(text, dropped)
    text = repair_punctuation(text).strip()

    # Placeholders are not ASCII, so most English passages skip this.
    if not text.isascii():
        text = unprotect(text)
        if _HAS_INVISIBLE.search(text):
            text = text.translate(_INVISIBLE)
        text = " ".join(text.split()) if "  " in text else text.strip()
    return remove_loose_spaces(text)


_CLOSERS = "".join(CLOSERS | QUOTATION_MARKS | {" "})
OPEN_ENDS = tuple(PAUSES)
"""Ends of a passage that leads to a quotation, a list or a formula: "The signers were:"."""
_VERBS_OF_SPEECH = ("ed:", "said:", "says:", "wrote:", "writes:", "states:", "replies:")
"""Ends of two words that lead to a quotation: "Aldrin added:"; unlike "Early life:"."""
# The start of a line of data: "Great-grandfather: ", "Head coach: "
_LABEL = re.compile(r"[^\W\d_][\w-]*+(?: [\w-]++)?: ")


def _is_prose(passage: str) -> bool:
    """Return False for what is not a sentence: a label, a name, debris of a template."""
    if passage.startswith(("* ", "† ", "‡ ")):  # the legend of a table
        return False
    end = passage.rstrip(_CLOSERS)[-1:]
    if end in SENTENCE_ENDS:
        return True
    # No full stop: only the length can tell a sentence from a label.
    num_spaces = passage.count(" ")
    if not num_spaces or not passage.isascii() and num_spaces < 8:
        num_spaces += count_unspaced_words(passage)
    if end in PAUSES:
        return num_spaces >= (1 if end in COMMAS or passage.endswith(_VERBS_OF_SPEECH) else 2)
    return len(passage) >= 80 or num_spaces >= 8 and not _LABEL.match(passage)
