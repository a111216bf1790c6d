"""Which pages are articles with prose, and what prose they hold."""

import functools
import re

from bert_pipeline.wikipedia.dump import Page
from bert_pipeline.wikipedia.siteinfo import Site
from bert_pipeline.wikipedia.wikitext import OPEN_ENDS, Extraction, extract

_TOPICS = (
    "airport|biology|call sign|callsign|caselaw|case law|chinese title|church|genus|geo|hn|hospital|human name|letter"
    "|letter[-–]number comb|letter[-–]number combination|math|mathematics|mathematical|mil-unit|military unit|music"
    "|number|opus|phonetics|place name|political party|portal|road|school|species latin name"
    "|species latin name abbreviation|split|station|synagogue|taxonomy|taxonomic authority|town hall|wo?o number"
).replace(" ", "[ _]")
_ENGLISH = (
    r"disambig(?:uation)?(?![ _](?:needed|link)|[ _-]inline)(?:[ _-][^|{}\[\]<>\n]*+)?|disamb|dab|hndis"
    rf"|(?:{_TOPICS})[ _-]?(?:disambig(?:uation)?|disamb|dab|dis)(?:[ _-][^|{{}}\[\]<>\n]*+)?"
)
"""https://en.wikipedia.org/wiki/Wikipedia:Disambiguation/Templates; many other wikis have the first of these too."""

_LOCAL = {
    "ar": "توضيح", "bg": "пояснение", "cs": "rozcestník", "da": "flertydig", "de": "begriffsklärung",
    "el": "αποσαφήνιση", "es": "desambiguaci[óo]n", "fa": "ابهام[\u200c ]?زدایی", "fi": "täsmennyssivu",
    "fr": "homonymie", "he": "פירושונים", "hu": "egyért", "it": "disambigua", "ja": "aimai|曖昧さ回避",
    "ko": "동음이의", "nl": r"dp\w*+|doorverwijspagina", "no": "peker|pekerside", "pl": "ujednoznacznienie",
    "pt": r"desambig\w*+", "ro": "dezambiguizare", "ru": "неоднозначность|многозначность",
    "sv": "förgrening|gren|grensida", "tr": "anlam ayrımı", "uk": "неоднозначність|багатозначність",
    "vi": "trang định hướng|định hướng", "zh": "消歧义|消歧義",
}  # fmt: skip
"""Local names of the template by language; where a wiki uses another, its pages go as lists do, for want of prose."""

_DISAMBIGUATION_WORDS = ("(disambiguation)", "(begriffsklärung)", "(homonymie)", "(desambiguación)", "(значения)")


@functools.lru_cache(maxsize=32)
def _disambiguation(language: str) -> re.Pattern[str]:
    """The template that marks a disambiguation page on the wikis of a language."""
    base = language.partition("-")[0]
    names = "|".join(filter(None, (_ENGLISH, _LOCAL.get(base))))
    return re.compile(rf"\{{\{{\s*+(?:{names})\s*+[|}}\n]", re.IGNORECASE)


def drop_reason(page: Page, site: Site) -> str:
    """Why a page is no article to read: "namespace", "redirect", "disambiguation", …; "" when it is one."""
    if page.namespace != 0:
        return "namespace"
    if page.is_redirect:
        return "redirect"
    if page.model != "wikitext":
        return "not wikitext"
    if not page.text.strip():
        return "empty"
    if page.title.lower().endswith(_DISAMBIGUATION_WORDS) or "__DISAMBIG__" in page.text:
        return "disambiguation"
    if _disambiguation(site.language).search(page.text):
        return "disambiguation"
    return ""


def extract_article(page: Page, site: Site, *, count_templates: bool = False) -> Extraction:
    """The passages of one article."""
    extraction = extract(page.text, site, page.title, count_templates=count_templates)
    if all(passage.endswith(OPEN_ENDS) for passage in extraction.passages):  # what leads to lists, without a sentence
        extraction.dropped["fragment"] += len(extraction.passages)
        extraction.passages.clear()
    return extraction
