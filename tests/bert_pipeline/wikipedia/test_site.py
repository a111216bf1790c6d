"""A wiki is known by exact names: of its namespaces, its magic words and its disambiguation templates."""

import pytest
from template_cases import read_rows

from bert_pipeline.wikipedia.dump import Page, open_dump, read_pages
from bert_pipeline.wikipedia.extract import drop_reason, extract
from bert_pipeline.wikipedia.site import Site, read_site

ENGLISH_NAMESPACES = '<namespace key="6" case="first-letter">File</namespace>'


def site_of(language: str) -> Site:
    """Return a wiki whose header has a language and only English names, as dumps made by hand have."""
    return read_site(f'<mediawiki xml:lang="{language}">{ENGLISH_NAMESPACES}')


def reason_of(text: str, language: str = "en", title: str = "T") -> str:
    return drop_reason(Page(title, 1, 0, 1, False, "wikitext", text), site_of(language))


@pytest.mark.parametrize(("language", "title", "namespace"), read_rows("namespaces.tsv"))
def test_namespaces_are_known_without_siteinfo(language, title, namespace):
    assert site_of(language).namespace_of(title) == int(namespace)


def test_names_in_the_header_take_precedence():
    site = read_site('<mediawiki xml:lang="de"><namespace key="100" case="x">Bild</namespace>')
    assert site.namespace_of("Bild:X") == 100


@pytest.mark.parametrize(
    "link", ["[[Kategorie:X]]", "[[Категория:X|Y]]", "[[分類:X]]", "[[Fichier:X.jpg|Y]]", "[[ملف:X.jpg]]"]
)
def test_links_of_all_languages_are_known_without_a_language(link):
    assert extract(f"A sentence.{link} Another.", read_site("")).passages == ["A sentence. Another."]


@pytest.mark.parametrize(("language", "text", "kind"), read_rows("redirects.tsv"))
def test_redirect_words_are_those_of_the_language(language, text, kind):
    assert (site_of(language).redirect.match(text) is not None) == (kind == "redirect")


@pytest.mark.parametrize(("language", "text", "expected"), read_rows("behavior_switches.tsv"))
def test_behavior_switches_are_those_of_the_language(language, text, expected):
    assert extract(text, site_of(language)).passages == [expected]


@pytest.mark.parametrize(("text", "title", "reason"), read_rows("dropped_pages.tsv"))
def test_drop_reason_tells_disambiguation_and_empty_pages(text, title, reason):
    assert reason_of(text, title=title) == reason


def test_disambiguation_does_not_depend_on_earlier_pages():
    site = site_of("en")
    pages = {
        "{{Infobox|a}} Prose.": False,
        "{{disambig}}": True,
        "{{Infobox|a}} {{disambig}}": True,
        "{{Infobox|see={{disambig}}}} Prose.": False,
        "{{Infobox<!-- a -->|a}} {{disambig}}": True,
    }
    for _ in range(2):
        assert {text: site.is_disambiguation("Foo", text) for text in pages} == pages


@pytest.mark.parametrize(("language", "template", "reason"), read_rows("disambiguation_templates.tsv"))
def test_disambiguation_templates_of_each_language_are_known(language, template, reason):
    assert (reason_of(f"{{{{{template}}}}}\nProse.", language) or "none") == reason


@pytest.mark.real_data
def test_japanese_articles_with_an_inline_template_are_kept(real_data):
    dump = open_dump(real_data / "wikipedia" / "languages" / "jawiki-every-second-page.xml.bz2")
    reasons = {page.title: drop_reason(page, dump.site) for page in read_pages(dump)}
    assert [title for title, reason in reasons.items() if reason == "disambiguation"] == [
        "タイ", "サンバ", "フォスター", "ゴスペル"
    ]  # fmt: skip
    assert reasons["日本語"] == reasons["両国国技館"] == ""
