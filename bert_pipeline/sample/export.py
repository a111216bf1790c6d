"""The encyclopedia as wikitext, in a MediaWiki XML export, schema 0.11, as `dumpBackup` writes it.

Articles have infoboxes, links, references, inline templates, tables and lists; other pages are around them.
"""

import bz2
import hashlib
import random
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

import numpy as np

from bert_pipeline.sample.articles import Article
from bert_pipeline.sample.grammar import with_marks
from bert_pipeline.sample.lexicon import ARTICLES, Trade
from bert_pipeline.sample.world import Organization, Person, Town, Work, World

GENERATED_NOTICE = "This is a generated sample: every name and fact in it is invented."


class ExportPage(NamedTuple):
    """One page of the export."""

    title: str
    namespace: int
    text: str
    redirect: str = ""


def export_pages(world: World, articles: list[Article]) -> list[ExportPage]:
    """Return all pages of the wiki: articles, redirects, a disambiguation page, a talk page and project pages."""
    titles = frozenset(article.title for article in articles)
    texts, kinds = ARTICLES["pages"], ("persons", "towns", "organizations", "works")
    counts = {kind: len(getattr(world, kind)) for kind in kinds}
    pages = [ExportPage("Samplewiki:About", 4, texts["about"].format(world=world, notice=GENERATED_NOTICE, **counts))]
    # A generator for each title: no page depends on the order.
    for article in articles:
        rng = random.Random(f"{world.seed}:wikitext:{article.title}")
        pages.append(ExportPage(article.title, 0, article_wikitext(article, titles, rng)))
        # A tenth of the persons can also be found as "Surname, Given".
        other = f"{article.entity.surname}, {article.entity.given}" if isinstance(article.entity, Person) else ""
        if other and rng.random() < 0.1:
            text = f"#REDIRECT [[{article.title}]]\n\n{{{{R from other name}}}}\n"
            pages.append(ExportPage(other, 0, text, article.title))
    # The most frequent surname gets the disambiguation page.
    families: dict[str, list[str]] = {}
    for person in world.persons:
        families.setdefault(person.surname, []).append(person.title)
    surname, members = max(families.items(), key=lambda item: (len(item[1]), item[0]))
    targets = "\n".join(f"* [[{target}]]" for target in sorted(members))
    text = texts["disambiguation"].format(title=surname, targets=targets)
    pages.append(ExportPage(f"{surname} (disambiguation)", 0, text))
    title = world.persons[0].title
    pages.append(ExportPage(f"Talk:{title}", 1, texts["talk"].format(title=title, notice=GENERATED_NOTICE)))
    pages.append(ExportPage("Template:Reflist", 10, "<noinclude>Lists the references.</noinclude><references />\n"))
    pages.append(ExportPage("Category:Generated articles", 14, "Articles of the generated sample.\n"))
    return pages


def write_export(path: Path, pages: list[ExportPage]) -> None:
    """Write a bz2 export. The bytes depend on the pages alone: identifiers and times are counters."""
    with bz2.open(path, "wt", encoding="utf-8", newline="\n", compresslevel=9) as stream:
        stream.write(ARTICLES["export"]["head"])
        stream.writelines(_page_xml(number, page) for number, page in enumerate(pages, start=1))
        stream.write("</mediawiki>\n")


def _page_xml(number: int, page: ExportPage) -> str:
    data = page.text.encode()
    redirect = f"    <redirect title={quoteattr(page.redirect)} />\n" if page.redirect else ""
    # One page per minute, in months of 28 days: the number alone decides the time.
    minutes = number % 60, number // 60 % 24, number // 1440 % 28 + 1
    timestamp = f"2020-01-{minutes[2]:02d}T{minutes[1]:02d}:{minutes[0]:02d}:00Z"
    page_xml: str = ARTICLES["export"]["page"]
    return page_xml.format(
        title=escape(page.title),
        namespace=page.namespace,
        number=number,
        redirect=redirect,
        revision=number + 100000,
        timestamp=timestamp,
        size=len(data),
        sha1=base36_sha1(data),
        text=escape(page.text),
    )


def base36_sha1(data: bytes) -> str:
    """Return the sha1 as MediaWiki stores it: base 36, 31 digits."""
    return np.base_repr(int.from_bytes(hashlib.sha1(data).digest()), 36).lower().rjust(31, "0")


# Wikitext


def article_wikitext(article: Article, titles: frozenset[str], rng: random.Random) -> str:
    """The whole page source of an article."""
    infobox: str = ARTICLES["infoboxes"].get(article.kind, "")
    parts = [infobox.format(article.entity), _hatnote(article, rng)]
    linked: set[str] = {article.title}
    # `linked` lasts for the article: only the first mention of a title is a link, as on Wikipedia.
    for section in article.sections:
        if section.heading:
            parts.append(f"== {section.heading} ==")
            parts.append(_furniture(article, section.heading, rng))
        for number, paragraph in enumerate(section.paragraphs):
            sentences = [_sentence(sentence, titles, linked, rng) for sentence in paragraph]
            if not section.heading and number == 0:
                sentences[0] = _bold_subject(sentences[0], article)
            parts.append(" ".join(sentences))
    parts.append(_see_also(article, rng, titles))
    parts.append("== References ==\n{{Reflist}}")
    categories = ["Generated articles", *ARTICLES["categories"].get(article.kind, ())]
    parts.append("\n".join(f"[[Category:{category.format(article.entity)}]]" for category in categories))
    return "\n\n".join(part for part in parts if part) + "\n"


def _sentence(sentence: str, titles: frozenset[str], linked: set[str], rng: random.Random) -> str:
    def render(kind: str, surface: str, target: str) -> str:
        if not target or target not in titles or target in linked:
            return f"''{surface}''" if kind == "MISC" and " " in surface else surface
        linked.add(target)
        return f"[[{target}]]" if target == surface else f"[[{target}|{surface}]]"

    text = with_marks(sentence, render)
    # A few sentences have a reference, a comment or a template in them.
    chance = rng.random()
    if chance < 0.04:
        year, page = rng.randrange(1850, 1990), rng.randrange(1, 400)
        text += f"<ref>{{{{cite book |title=Annals |year={year} |page={page}}}}}</ref>"
    elif chance < 0.06:
        text += '<ref name="annals" />'
    elif chance < 0.07:
        text += "<!-- a source is wanted here -->"
    elif chance < 0.09 and " river " in text:
        text = text.replace(" river ", " {{nowrap|river}} ", 1)
    return text


def _bold_subject(sentence: str, article: Article) -> str:
    for subject in (article.title, article.title.lower()):
        if subject in sentence:
            return sentence.replace(subject, f"'''{subject}'''", 1)
    return sentence


def _hatnote(article: Article, rng: random.Random) -> str:
    if rng.random() < 0.05:
        return f"{{{{About|the {article.kind}|other uses|{article.title} (disambiguation)}}}}"
    return ""


def _furniture(article: Article, heading: str, rng: random.Random) -> str:
    """Return the parts of an article other than prose, under some headings."""
    entity = article.entity
    # Tables, images, lists and quotations: constructs that the extraction has to drop or to read.
    if isinstance(entity, Town) and heading == "Character":
        rows = "".join(f"|-\n| {year} || {rng.randrange(2, 90) * 100:,}\n" for year in range(1700, 1901, 50))
        return f'{{| class="wikitable"\n|+ Population\n! Year !! Inhabitants\n{rows}|}}'
    if isinstance(entity, Town) and heading == "History":
        return (
            f"[[File:{entity.title} old map.jpg|thumb|right|A map of [[{entity.title}]] from {entity.founded + 400}]]"
        )
    if isinstance(entity, Work) and heading == "Plot":
        words = [noun.plural for noun in entity.trade.goods]
        return "\n".join(f"* chapter {number}: ''{word}''" for number, word in enumerate(words, start=1))
    if isinstance(entity, Organization) and heading == "Activities":
        return "\n".join(
            f"; {noun.plural}\n: kept in the {entity.trade.places[0].singular}" for noun in entity.trade.tools
        )
    if isinstance(entity, Person) and heading == "Death and legacy" and rng.random() < 0.2:
        return f"{{{{Quote|text=Nobody knew more about {entity.trade.goods[0].plural}.|author={entity.mentor}}}}}"
    return ""


def _see_also(article: Article, rng: random.Random, titles: frozenset[str]) -> str:
    entity = article.entity
    if isinstance(entity, Trade) or rng.random() < 0.5:
        return ""
    return f"== See also ==\n* [[{entity.trade.title}]]" if entity.trade.title in titles else ""
