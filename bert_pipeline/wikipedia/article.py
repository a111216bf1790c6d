"""Which pages are articles with prose, and what prose they hold."""

from bert_pipeline.wikipedia.disambiguation import is_disambiguation
from bert_pipeline.wikipedia.dump import Page
from bert_pipeline.wikipedia.prose import OPEN_ENDS
from bert_pipeline.wikipedia.siteinfo import Site
from bert_pipeline.wikipedia.wikitext import Extraction, extract


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
    if is_disambiguation(page.text, page.title, site.language):
        return "disambiguation"
    return ""


def extract_article(page: Page, site: Site, *, count_templates: bool = False) -> Extraction:
    """The passages of one article."""
    extraction = extract(page.text, site, page.title, count_templates=count_templates)
    if all(passage.endswith(OPEN_ENDS) for passage in extraction.passages):  # what leads to lists, without a sentence
        extraction.dropped["fragment"] += len(extraction.passages)
        extraction.passages.clear()
    return extraction
