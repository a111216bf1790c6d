"""Lines to paragraphs, and which of them are prose: not hatnotes, bold headings or bibliography entries."""

import functools
import re
from collections import Counter

from bert_pipeline.wikipedia.markup import remove_emphasis
from bert_pipeline.wikipedia.placeholders import DROPPED, FORMULA, UNKNOWN_VALUE, unprotect
from bert_pipeline.wikipedia.repair import count_unspaced_words, repair_punctuation, repair_sentences

_POINTERS = {
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
"""How a line begins that only points to other pages, as the headings of such sections are called: "see also" with a
colon or none behind it, and words which need one, since sentences may begin with them."""

_ENGLISH_IN_ITALICS = (
    r"|(?:this (?:article|page|section) is about\b|not to be confused with\b|see\b|.{1,80} redirects here\b"
    r"|for (?:more|other|further|additional|information|details|an?|the|all|any|another)\b(?=.*\bsee\b)"
    r"|for (?=[^.]*, see\b))"
)
"""Where nothing but the pointer is in italics, it may begin as a sentence does."""

_SOURCE_HEADINGS = (
    "references|reference|bibliography|selected bibliography|further reading|external links|works cited|citations"
    "|notes|footnotes|endnotes|notes and references|references and notes|primary sources|secondary sources|see also"
    "|literatur|einzelnachweise|weblinks|quellen|bibliographie|références|notes et références|liens externes"
    "|bibliografía|referencias|enlaces externos|bibliografia|collegamenti esterni|referências|ligações externas"
    "|literatuur|bronnen|externe links|литература|примечания|ссылки|источники|сноски|бележки|външни препратки"
    "|література|примітки|посилання|джерела|przypisy|linki zewnętrzne|externí odkazy|källor|litteratur"
)
"""Headings of sections that list sources. "Literature", which may be the subject of a section, is not among them."""
_SOURCES = frozenset(_SOURCE_HEADINGS.split("|"))

_YEAR = re.compile(r"\b(?:1[5-9]|20)\d\d\b|\bISBN\b")
_AUTHOR = re.compile(r"[^\W\d_][\w’'-]*+(?: [\w’'.-]++){0,3}, [^\W\d_]")
_BOLD = re.compile(rf"[{DROPPED} ]*+'''(?:'')?+(?!')((?:[^']|'(?!''))++)(?:''(?='''))?+'''[:. {DROPPED}]*+")
_NO_LETTER = re.compile(r"[^\w ]|_")


def is_source_heading(line: str) -> bool:
    """Whether a line "== Title ==" heads a list of sources."""
    return _NO_LETTER.sub("", line).strip().casefold() in _SOURCES


def is_source(passage: str) -> bool:
    """Whether a passage of such a section is an entry of the list: it begins with an author and names a year."""
    author = _AUTHOR.match(passage)
    return (
        author is not None
        and passage[0].isupper()
        and not passage[author.end() - 1].islower()
        and _YEAR.search(passage) is not None
    )


def is_bold_heading(paragraph: str) -> bool:
    """Whether a paragraph, emphasis still in it, is a few words in bold: a heading in all but name."""
    match = _BOLD.fullmatch(paragraph)
    return match is not None and match[1].count(" ") < 10


@functools.lru_cache(maxsize=32)
def _pointer(language: str) -> re.Pattern[str]:
    also, with_colon = _POINTERS[language]
    italic = _ENGLISH_IN_ITALICS if language == "en" else ""
    title = r"|(?-i:See (?:the )?[A-Z][^\s.]*+(?: [A-Z(][^\s.]*+){0,3}\.?)" if language == "en" else ""
    return re.compile(
        rf"[({DROPPED} ]*+(?:"
        rf"(?:(?:{also})\b:?|(?:{with_colon}) ?:)(?:(?![.!?] [^\W_]).)*+"  # one sentence at most
        rf"|''(?:{also}|(?:{with_colon})\b{italic})(?:[^']|'(?!'))*+''[.)]?{title})[) {DROPPED}]*+",
        re.IGNORECASE,
    )


def is_pointer(paragraph: str, language: str) -> bool:
    """Whether a paragraph, emphasis still in it, does no more than point to other pages."""
    base = language.partition("-")[0]
    base = "en" if base in ("", "simple") else base
    return base in _POINTERS and len(paragraph) < 400 and _pointer(base).fullmatch(paragraph) is not None


def finish_passage(text: str, dropped: Counter[str]) -> str:
    """Emphasis, marks and white space of one passage."""
    if "'" in text and "''" in text:
        text = remove_emphasis(text)
    if "  " in text or _ODD_SPACE.search(text):  # else splitting, a third of this function's time, would change nothing
        text = " ".join(text.split())
    text = text.strip()
    if FORMULA in text or UNKNOWN_VALUE in text:
        text = repair_sentences(text, dropped)
    text = repair_punctuation(text).strip()
    if not text.isascii():
        text = unprotect(text)
        if _HAS_INVISIBLE.search(text):
            text = text.translate(_INVISIBLE)
        text = " ".join(text.split()) if "  " in text else text.strip()
    if " ." in text or " ," in text:
        text = _LOOSE.sub("", text)
    return text


_HAS_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
_INVISIBLE = dict.fromkeys([0xAD, 0x200B, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2060, 0x2065), 0xFEFF])
"""Soft hyphens, direction marks and the like. Joiners (U+200C, U+200D) stay: they spell words in several scripts."""
_ODD_SPACE = re.compile(r"[\t-\r\x1c-\x1f\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]")
"""White space other than " "."""
_LOOSE = re.compile(r"(?<=[^\s.]) (?=[,.](?:[\s)\"”»]|$))(?!\. ?\.)")
"""Spaces that writers leave before a comma or full stop; not those of ". . ."."""


def is_prose(passage: str) -> bool:
    """False for what stands alone without being a sentence: a label, a name, debris of a template."""
    if passage.startswith(("* ", "† ", "‡ ")):  # the legend of a table
        return False
    end = passage.rstrip(_CLOSERS)[-1:]
    if end in _SENTENCE_ENDS:
        return True
    num_spaces = passage.count(" ")
    if not num_spaces or not passage.isascii() and num_spaces < 8:
        num_spaces += count_unspaced_words(passage)
    if end in OPEN_ENDS:
        return num_spaces >= (1 if end == "," or passage.endswith(_SAYS) else 2)
    return len(passage) >= 80 or num_spaces >= 8 and not _LABEL.match(passage)


_SAYS = ("ed:", "said:", "says:", "wrote:", "writes:", "states:", "replies:")
"""Two words that lead over to a quotation: "Aldrin added:"."""
_LABEL = re.compile(r"[^\W\d_][\w-]*+(?: [\w-]++)?: ")
"""What a line of data begins with: "Great-grandfather: "."""
_CLOSERS = "\"'”’)]»›）」』】 "
_SENTENCE_ENDS = frozenset(".!?…。！？।॥։؟۔")
OPEN_ENDS = (",", ":", ";", "،", "：")
"""What leads over to a quotation, a list or a formula: "The signers were:"; but not "Notes:"."""


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
        if line[0] == " " and DROPPED not in line[: len(line) - len(line.lstrip(_BLANKS))]:
            self._indented.append(line)
            return True
        if first == "}" and not stripped.strip("{}|]"):  # the end of a template that was never opened
            self._dropped["debris"] += 1
            self._close()
            return True
        is_continued = first in ":;" and line[0] in DROPPED + FORMULA  # the sign stands behind a formula
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


_BLANKS = " \t\xa0" + DROPPED + FORMULA
_LINE_KINDS = {"=": "heading", "*": "list", "#": "list", ":": "list", ";": "list", "|": "table", "!": "table"}
_SPECIAL_STARTS = frozenset(("", "}", *_BLANKS, *_LINE_KINDS))


def _is_running_text(line: str) -> bool:
    words = line.split()
    if line.isupper() or " = " in line:  # an equation
        return False
    return len(words) >= 8 or len(words) >= 2 and words[-1][-1] in ".:,"
