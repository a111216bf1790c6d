"""Wikitext of one page to its passages of prose.

The stages run once each over the page: opaque tags (comments, references, formulas, code), plain links, nested
templates and links, tables and HTML blocks, inline markup, and at last line by line. What is dropped from the middle
of a line leaves a mark, so that the punctuation around it, and only there, can be mended afterwards. Every stage is
linear in the length of the page: brackets are matched with a stack, and no expression runs over the same text twice.
"""

import dataclasses
import html
import re
from collections import Counter

from bert_pipeline.wikipedia.apparatus import is_bold_heading, is_pointer, is_source, is_source_heading
from bert_pipeline.wikipedia.links import keep_apart, replace_external_links, replace_plain_links
from bert_pipeline.wikipedia.losses import settle_losses
from bert_pipeline.wikipedia.marks import FORMULA, MARK, VOID, mend, protect, remove_private, unprotect
from bert_pipeline.wikipedia.nesting import Expander
from bert_pipeline.wikipedia.quotes import remove_emphasis
from bert_pipeline.wikipedia.siteinfo import Site
from bert_pipeline.wikipedia.tables import drop_html_blocks, drop_tables
from bert_pipeline.wikipedia.tags import drop_opaque_tags, render_tags


@dataclasses.dataclass
class Extraction:
    """What one page gave."""

    passages: list[str]
    """Running text, one string a passage, without line ends."""
    dropped: Counter[str]
    """Kind of element -> how many were dropped."""
    templates: Counter[str]
    """Names of dropped templates, where asked for."""


def extract(text: str, site: Site, title: str = "", *, count_templates: bool = False) -> Extraction:
    """Return the passages of prose of a page's wikitext."""
    dropped: Counter[str] = Counter()
    templates: Counter[str] = Counter()
    text = remove_private(text)
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "<" in text:
        text = drop_opaque_tags(text, dropped)
    if "''" in text:
        text = keep_apart(text)
    text = replace_plain_links(text)
    if "{{" in text or "[[" in text:
        text = Expander(text, site, title, dropped, templates if count_templates else None).expand()
    text = drop_tables(text, dropped)
    text = drop_html_blocks(text, dropped)
    text = render_tags(text, dropped)
    text = replace_external_links(text, dropped)
    if "-{" in text:
        text = _VARIANT.sub(_choose_variant, text)
    if "__" in text:
        text = _MAGIC_WORD.sub("", text)
    if "&" in text:
        text = html.unescape(_MARKUP_BY_ENTITY.sub(lambda match: protect(html.unescape(match[0])), text))
    return Extraction(passages=_passages(text, dropped, site.language), dropped=dropped, templates=templates)


_VARIANT = re.compile(r"-\{([^{}\n]*+)\}-")
_MAGIC_WORD = re.compile(r"__[^\W\d_a-z]{3,}+(?:_[^\W\d_a-z]++)*+__")
_MARKUP_BY_ENTITY = re.compile(
    r"&(?:#(?:0*+(?:10|32|33|35|39|42|45|58|59|61|95|124)|[xX]0*+(?:[0aA]|2[01379aAdD]|3[aAbBdD]|5[fF]|7[cC]))"
    r"|apos|ast|num|equals|excl|colon|semi|verbar|vert|lowbar);"
)
"""Entities of signs that would be markup: &#39;&#39; is two apostrophes, &#42; a star."""
_HAS_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
_INVISIBLE = dict.fromkeys([0xAD, 0x200B, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2060, 0x2065), 0xFEFF])
"""Soft hyphens, direction marks and the like. Joiners (U+200C, U+200D) stay: they spell words in several scripts."""


def _choose_variant(match: re.Match[str]) -> str:
    """Language variant markup: -{text}- and -{zh-hans:…; zh-hant:…}- show their first text, rules show none."""
    content = match[1]
    flags, bar, rest = content.rpartition("|")
    if flags.strip() == "R":
        return rest
    if bar and set(flags.strip()) <= set("HT-D+"):
        return ""
    first = rest.partition(";")[0]
    code, colon, text = first.partition(":")
    return text.strip() if colon and code.strip().replace("-", "").isalnum() else rest


def _passages(text: str, dropped: Counter[str], language: str) -> list[str]:
    passages: list[str] = []
    paragraph: list[str] = []
    indented: list[str] = []
    source_level = 0  # of the heading of the list of sources that is open, 0 where none is

    def close() -> None:
        if not paragraph:
            return
        raw = " ".join(paragraph)
        paragraph.clear()
        if "'''" in raw[:16] and is_bold_heading(raw):
            dropped["heading"] += 1
            return
        if is_pointer(raw, language):
            dropped["pointer"] += 1
            return
        passage = finish_passage(raw, dropped)
        if source_level and is_source(passage):
            dropped["reference"] += 1
        elif is_prose(passage):
            passages.append(passage)
        elif passage:
            dropped["fragment"] += 1

    def close_indented() -> None:
        """A line that a space opens is shown as code, unless it is a slip before running text."""
        if len(indented) == 1 and _is_running_text(indented[0]):
            paragraph.append(indented[0])
        else:
            dropped["code"] += 1
            close()
        indented.clear()

    for line in text.split("\n"):
        first = line[:1]
        if first in _SPECIAL_STARTS:
            stripped = line.strip(_BLANKS)
            first = stripped[:1]
            if not first:
                if indented:
                    close_indented()
                close()
                continue
            if line[0] == " " and MARK not in line[: len(line) - len(line.lstrip(_BLANKS))]:
                indented.append(line)
                continue
            if first == "}" and not stripped.strip("{}|]"):  # the end of a template that was never opened
                dropped["debris"] += 1
                close()
                continue
            is_continued = first in ":;" and line[0] in MARK + FORMULA  # the sign stands behind a formula
            if first in "=*#:;|!" and (first != "=" or stripped[-1] == "=") and not is_continued:
                if indented:
                    close_indented()
                dropped[_LINE_KINDS[first]] += 1
                close()
                if first == "=":
                    level = len(stripped) - len(stripped.lstrip("="))
                    if not source_level or level <= source_level:
                        source_level = level if is_source_heading(stripped) else 0
                continue
        if indented:
            close_indented()
        if first == "-" and line.startswith("----"):
            close()
            line = line.lstrip("-")
        paragraph.append(line)
    if indented:
        close_indented()
    close()
    return passages


_BLANKS = " \t\xa0" + MARK + FORMULA
_SPECIAL_STARTS = frozenset(("", " ", "\t", "\xa0", MARK, FORMULA, "=", "*", "#", ":", ";", "|", "!", "}"))
_LINE_KINDS = {"=": "heading", "*": "list", "#": "list", ":": "list", ";": "list", "|": "table", "!": "table"}


def _is_running_text(line: str) -> bool:
    words = line.split()
    if line.isupper():
        return False
    return len(words) >= 8 or len(words) >= 2 and words[-1][-1] in ".:,"


def finish_passage(text: str, dropped: Counter[str]) -> str:
    """Emphasis, marks and white space of one passage."""
    if "''" in text:
        text = remove_emphasis(text)
    text = " ".join(text.split())
    if FORMULA in text or VOID in text:
        text = settle_losses(text, dropped)
    text = mend(text).strip()
    if not text.isascii():
        text = unprotect(text)
        if _HAS_INVISIBLE.search(text):
            text = text.translate(_INVISIBLE)
        text = text.strip()
    if " ." in text or " ," in text:
        text = _LOOSE.sub("", text)
    return text


_LOOSE = re.compile(r"(?<=[^\s.]) (?=[,.](?:[\s)\"”»]|$))(?!\. ?\.)")
"""Spaces that writers leave before a comma or full stop; not those of ". . ."."""


def is_prose(passage: str) -> bool:
    """False for what stands alone without being a sentence: a label, a name, debris of a template."""
    if passage.startswith(("* ", "† ", "‡ ")):  # the legend of a table
        return False
    end = passage.rstrip(_CLOSERS)[-1:]
    if end in _SENTENCE_ENDS:
        return True
    if end in OPEN_ENDS:
        return passage.count(" ") >= 2
    return len(passage) >= 80 or passage.count(" ") >= 8


_CLOSERS = "\"'”’)]»› "
_SENTENCE_ENDS = frozenset(".!?…。！？।॥։؟۔")
OPEN_ENDS = (",", ":", ";", "،", "：")
"""What leads over to a quotation, a list or a formula: "The signers were:"; but not "Notes:"."""
