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

from bert_pipeline.wikipedia.links import keep_apart, replace_external_links, replace_plain_links
from bert_pipeline.wikipedia.marks import protect, remove_private
from bert_pipeline.wikipedia.nesting import Expander
from bert_pipeline.wikipedia.passages import PassageReader
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
    if "{" in text and "-{" in text:  # one sign is looked for ten times as fast as two: together 3 % of the time
        text = _VARIANT.sub(_choose_variant, text)
    if "_" in text and "__" in text:
        text = _MAGIC_WORD.sub("", text)
    if "&" in text:
        text = html.unescape(_MARKUP_BY_ENTITY.sub(lambda match: protect(html.unescape(match[0])), text))
    passages = PassageReader(site.language, dropped).read(text)
    return Extraction(passages=passages, dropped=dropped, templates=templates)


_VARIANT = re.compile(r"-\{([^{}\n]*+)\}-")
_MAGIC_WORD = re.compile(r"__[^\W\d_a-z]{3,}+(?:_[^\W\d_a-z]++)*+__")
_MARKUP_BY_ENTITY = re.compile(
    r"&(?:#(?:0*+(?:10|32|33|35|39|42|45|58|59|61|95|124)|[xX]0*+(?:[0aA]|2[01379aAdD]|3[aAbBdD]|5[fF]|7[cC]))"
    r"|apos|ast|num|equals|excl|colon|semi|verbar|vert|lowbar);"
)
"""Entities of signs that would be markup: &#39;&#39; is two apostrophes, &#42; a star."""


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
