"""A page to its passages of prose.

What is dropped from the middle of a line leaves a placeholder, so that the punctuation around it, and only there, can
be repaired afterwards. Every stage is linear in the length of the page: brackets are matched with a stack, and no
regular expression runs over the same text twice.
"""

import dataclasses
import html
import re
from collections import Counter

from bert_pipeline.wikipedia.dump import Page
from bert_pipeline.wikipedia.expand import expand_templates, replace_external_links, replace_plain_links
from bert_pipeline.wikipedia.markup import (
    drop_html_blocks,
    drop_opaque_tags,
    drop_tables,
    render_tags,
    separate_emphasis,
)
from bert_pipeline.wikipedia.paragraphs import OPEN_ENDS, PassageReader
from bert_pipeline.wikipedia.placeholders import DROPPED, protect, remove_private_use, unescape
from bert_pipeline.wikipedia.site import Site
from bert_pipeline.wikipedia.templates import load_wiki


@dataclasses.dataclass
class Extraction:
    """Passages of one page, and counts of what was left out."""

    passages: list[str]
    """Running text, one string per passage, without line ends."""
    dropped: Counter[str]
    """Kind of element, as in the manifest of a corpus -> number of dropped elements."""
    templates: Counter[str]
    """Names of called templates that are in no template file."""
    lost: Counter[str]
    """Those of them that stood for a word, without which a sentence is left out or shorter."""


def drop_reason(page: Page, site: Site) -> str:
    """Return why a page is not an article: "namespace", "redirect", "disambiguation", …; "" if it is one."""
    # By rising cost: only the last test searches the text.
    if page.namespace != 0:
        return "namespace"
    if page.is_redirect:
        return "redirect"
    if page.model != "wikitext":
        return "not wikitext"
    if not page.text.strip():
        return "empty"
    if site.is_disambiguation(page.title, page.text):
        return "disambiguation"
    return ""


def extract_article(page: Page, site: Site, *, templates: str = "") -> Extraction:
    """Extract the passages of one article; none if all of them only lead to lists ("Foo may be:")."""
    extraction = extract(page.text, site, page.title, templates=templates)
    if all(passage.endswith(OPEN_ENDS) for passage in extraction.passages):
        extraction.dropped["fragment"] += len(extraction.passages)
        extraction.passages.clear()
    return extraction


def extract(text: str, site: Site, title: str = "", *, templates: str = "") -> Extraction:
    """Extract the passages of prose from wikitext; `templates` is a template file of one's own, "" for none."""
    dropped: Counter[str] = Counter()
    unknown: Counter[tuple[str, bool]] = Counter()

    # Remove private-use characters that are not ours, unify line ends
    text = remove_private_use(text)
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")

    # Comments, references, formulas and code, before anything in them is taken for markup
    if "<" in text:
        text = drop_opaque_tags(text, dropped)

    # Links and templates; the simple links first, because the general expansion is slow
    if "''" in text:
        text = separate_emphasis(text)
    text = replace_plain_links(text)
    if "{{" in text or "[[" in text:
        text = expand_templates(text, site, title, dropped, unknown, templates)

    # Blocks, which templates may have opened or closed
    text = drop_tables(text, dropped)
    text = drop_html_blocks(text, dropped)

    # Inline markup; entities last, because "&lt;b>" is no tag. Most pages have no language variants or magic words, and
    # one character is found ten times as fast as two: the double conditions save 3 % of the time
    text = render_tags(text, dropped)
    text = replace_external_links(text, dropped)
    for _ in range(_MAX_VARIANT_DEPTH if "{" in text and "-{" in text else 0):  # one in another: from the inside
        text = _VARIANT.sub(_choose_variant, text)
    if "_" in text and "__" in text:
        text = site.switches.sub(DROPPED, text)
    if "&" in text:
        text = unescape(_MARKUP_ENTITY.sub(lambda match: protect(html.unescape(match[0])), text))

    # Lines to paragraphs; those that are prose lose their emphasis and placeholders there
    keeps_indented = load_wiki(site.language, templates, site.dbname).keeps_indented_prose
    passages = PassageReader(dropped, keeps_indented=keeps_indented).read(text)
    called = Counter(name for name, _ in unknown.elements())
    lost = Counter(name for name, is_word in unknown.elements() if is_word)
    return Extraction(passages=passages, dropped=dropped, templates=called, lost=lost)


# -{text}-, -{zh-hans:…; zh-hant:…}- (https://www.mediawiki.org/wiki/Writing_systems/Syntax)
_VARIANT = re.compile(r"-\{([^{}]{0,2000}+)\}-")
_MAX_VARIANT_DEPTH = 5
# zh, zh-hans, sr-ec, zh-TW
_VARIANT_CODE = re.compile(r"[a-z]{2,3}(?:-[A-Za-z]++)*+")
# Entities of characters that would be markup: &#39;&#39; is two apostrophes and no italics, &ast; is no list
_MARKUP_ENTITY = re.compile(
    r"&(?:#(?:0*+(?:10|32|33|35|39|42|45|58|59|61|95|124)|[xX]0*+(?:[0aA]|2[01379aAdD]|3[aAbBdD]|5[fF]|7[cC]))"
    r"|apos|ast|num|equals|excl|colon|semi|verbar|vert|lowbar);"
)


def _choose_variant(match: re.Match[str]) -> str:
    """Return the first text of language variant markup; "" for conversion rules like -{H|zh-hans:a;zh-hant:b}-."""
    content = match[1]
    flags, bar, rest = content.rpartition("|")
    if flags.strip() == "R":
        return rest
    if bar and flags.strip() and set(flags.strip()) <= set("HT-D+"):
        return ""
    # "zh-hans:a; zh-hant:b" has a code before its colon; any other colon is text: "12:30", "Re:Zero".
    first = rest.partition(";")[0]
    code, colon, text = first.partition(":")
    return text.strip() if colon and _VARIANT_CODE.fullmatch(code.strip()) else rest
