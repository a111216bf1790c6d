"""Which pages are articles with prose, and what prose they hold."""

import re

from bert_pipeline.wikipedia.dump import Page
from bert_pipeline.wikipedia.siteinfo import Site
from bert_pipeline.wikipedia.wikitext import Extraction, extract

_DISAMBIGUATION = re.compile(
    r"\{\{\s*+(?:disambig(?!uation[ _](?:needed|link))(?:uation)?(?:[ _-][^|{}]*+|-\w++)?|disamb|dab|dp|hndis(?:ambig)?"
    r"(?:-\w++)?|geodis|numberdis|mathdab|roaddis|schooldis|hospitaldis|letter[- ]disambig(?:uation)?"
    r"|letter-numbercombdisambig|airport[ _]disambig(?:uation)?"
    r"|begriffsklärung|homonymie|desambiguaci[óo]n|desambig|disambigua|ujednoznacznienie|неоднозначность"
    r"|многозначность|пояснение|неоднозначність|багатозначність|doorverwijspagina|dp\w*+|förgrening|gren|flertydig"
    r"|anlam ayrımı|aimai|曖昧さ回避|消歧义|消歧義|동음이의|توضيح|ابهام‌زدایی|פירושונים|rozcestník|egyért"
    r"|täsmennyssivu|αποσαφήνιση)\s*+[|}\n]",
    re.IGNORECASE,
)
"""Local names of the template; where a wiki uses another, its pages go as lists do, for want of prose."""

_DISAMBIGUATION_WORDS = ("(disambiguation)", "(begriffsklärung)", "(homonymie)", "(desambiguación)", "(значения)")


def drop_reason(page: Page) -> str:
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
    if _DISAMBIGUATION.search(page.text):
        return "disambiguation"
    return ""


def extract_article(page: Page, site: Site, *, count_templates: bool = False) -> Extraction:
    """The passages of one article."""
    return extract(page.text, site, page.title, count_templates=count_templates)
