"""What looks like a paragraph and is none: pointers to other pages, headings set in bold, entries of bibliographies.

Emphasis, place and the words that each language uses for them are all that tells them from prose.
"""

import functools
import re

from bert_pipeline.wikipedia.marks import MARK

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
_BOLD = re.compile(rf"[{MARK} ]*+'''(?:'')?+(?!')((?:[^']|'(?!''))++)(?:''(?='''))?+'''[:. {MARK}]*+")
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
        rf"[({MARK} ]*+(?:"
        rf"(?:(?:{also})\b:?|(?:{with_colon}) ?:)(?:(?![.!?] [^\W_]).)*+"  # one sentence at most
        rf"|''(?:{also}|(?:{with_colon})\b{italic})(?:[^']|'(?!'))*+''[.)]?{title})[) {MARK}]*+",
        re.IGNORECASE,
    )


def is_pointer(paragraph: str, language: str) -> bool:
    """Whether a paragraph, emphasis still in it, does no more than point to other pages."""
    base = language.partition("-")[0]
    base = "en" if base in ("", "simple") else base
    return base in _POINTERS and len(paragraph) < 400 and _pointer(base).fullmatch(paragraph) is not None
