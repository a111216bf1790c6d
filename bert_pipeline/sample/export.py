"""The encyclopedia as a MediaWiki XML export, schema 0.11, as `dumpBackup` writes it."""

import bz2
import hashlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

from bert_pipeline.sample.articles import Article
from bert_pipeline.sample.wikitext import (
    article_wikitext,
    disambiguation_wikitext,
    main_page_wikitext,
    redirect_wikitext,
    talk_wikitext,
)
from bert_pipeline.sample.world import Person, World

_BASE36 = "0123456789abcdefghijklmnopqrstuvwxyz"
_NAMESPACES: tuple[tuple[int, str], ...] = (
    (-2, "Media"), (-1, "Special"), (0, ""), (1, "Talk"), (2, "User"), (3, "User talk"), (4, "Samplewiki"),
    (5, "Samplewiki talk"), (6, "File"), (7, "File talk"), (8, "MediaWiki"), (9, "MediaWiki talk"), (10, "Template"),
    (11, "Template talk"), (12, "Help"), (13, "Help talk"), (14, "Category"), (15, "Category talk"),
)  # fmt: skip


class ExportPage(NamedTuple):
    """One page of the export."""

    title: str
    namespace: int
    text: str
    redirect: str = ""


def export_pages(world: World, articles: list[Article]) -> list[ExportPage]:
    """Return all pages of the wiki: articles, redirects, a disambiguation page, a talk page and project pages."""
    titles = frozenset(article.title for article in articles)
    pages = [ExportPage("Samplewiki:About", 4, main_page_wikitext(world))]
    # A generator for each title: no page depends on the order.
    for article in articles:
        rng = random.Random(f"{world.seed}:wikitext:{article.title}")
        pages.append(ExportPage(article.title, 0, article_wikitext(article, titles, rng)))
        # A tenth of the persons can also be found as "Surname, Given".
        other = f"{article.entity.surname}, {article.entity.given}" if isinstance(article.entity, Person) else ""
        if other and rng.random() < 0.1:
            pages.append(ExportPage(other, 0, redirect_wikitext(article.title), article.title))
    # The most frequent surname gets the disambiguation page.
    families: dict[str, list[str]] = {}
    for person in world.persons:
        families.setdefault(person.surname, []).append(person.title)
    surname, members = max(families.items(), key=lambda item: (len(item[1]), item[0]))
    pages.append(ExportPage(f"{surname} (disambiguation)", 0, disambiguation_wikitext(surname, sorted(members))))
    pages.append(ExportPage(f"Talk:{world.persons[0].title}", 1, talk_wikitext(world.persons[0].title)))
    pages.append(ExportPage("Template:Reflist", 10, "<noinclude>Lists the references.</noinclude><references />\n"))
    pages.append(ExportPage("Category:Generated articles", 14, "Articles of the generated sample.\n"))
    return pages


def write_export(path: Path, pages: list[ExportPage]) -> None:
    """Write a bz2 export. The bytes depend on the pages alone: identifiers and times are counters."""
    with bz2.open(path, "wt", encoding="utf-8", newline="\n", compresslevel=9) as stream:
        stream.writelines(_export_lines(pages))


def _export_lines(pages: list[ExportPage]) -> Iterator[str]:
    schema = "http://www.mediawiki.org/xml/export-0.11/"
    yield (
        f'<mediawiki xmlns="{schema}" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" '
        f'xsi:schemaLocation="{schema} http://www.mediawiki.org/xml/export-0.11.xsd" version="0.11" xml:lang="en">\n'
    )
    yield "  <siteinfo>\n    <sitename>Samplewiki</sitename>\n    <dbname>samplewiki</dbname>\n"
    yield "    <base>https://samplewiki.invalid/wiki/Main_Page</base>\n"
    yield "    <generator>bert-workflow sample</generator>\n    <case>first-letter</case>\n    <namespaces>\n"
    for key, name in _NAMESPACES:
        tail = f">{name}</namespace>" if name else " />"
        yield f'      <namespace key="{key}" case="first-letter"{tail}\n'
    yield "    </namespaces>\n  </siteinfo>\n"
    for number, page in enumerate(pages, start=1):
        yield _page_xml(number, page)
    yield "</mediawiki>\n"


def _page_xml(number: int, page: ExportPage) -> str:
    data = page.text.encode()
    sha1 = base36_sha1(data)
    redirect = f"    <redirect title={quoteattr(page.redirect)} />\n" if page.redirect else ""
    # One page per minute, in months of 28 days: the number alone decides the time.
    minutes = number % 60, number // 60 % 24, number // 1440 % 28 + 1
    timestamp = f"2020-01-{minutes[2]:02d}T{minutes[1]:02d}:{minutes[0]:02d}:00Z"
    return (
        f"  <page>\n    <title>{escape(page.title)}</title>\n    <ns>{page.namespace}</ns>\n    <id>{number}</id>\n"
        f"{redirect}    <revision>\n      <id>{number + 100000}</id>\n      <timestamp>{timestamp}</timestamp>\n"
        "      <contributor>\n        <username>Sample bot</username>\n        <id>1</id>\n      </contributor>\n"
        "      <comment>generated sample</comment>\n"
        f"      <origin>{number + 100000}</origin>\n"
        "      <model>wikitext</model>\n      <format>text/x-wiki</format>\n"
        f'      <text bytes="{len(data)}" sha1="{sha1}" xml:space="preserve">{escape(page.text)}</text>\n'
        f"      <sha1>{sha1}</sha1>\n    </revision>\n  </page>\n"
    )


def base36_sha1(data: bytes) -> str:
    """Return the sha1 as MediaWiki stores it: base 36, 31 digits."""
    number = int.from_bytes(hashlib.sha1(data).digest())
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = _BASE36[digit] + digits
    return digits.rjust(31, "0")
