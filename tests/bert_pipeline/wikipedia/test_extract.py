"""Wikitext becomes passages of prose, and nothing else: cases by construct, in tests/data/wikitext/passages."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_pipeline.corpus.quality import count_broken_text, count_markup
from bert_pipeline.wikipedia.dump import Page, open_dump, read_pages, read_site
from bert_pipeline.wikipedia.extract import drop_reason, extract, extract_article
from bert_pipeline.wikipedia.repair import repair_punctuation

CASE_FILES = sorted((Path(__file__).parents[2] / "data" / "wikitext" / "passages").glob("*.txt"))
SITE = read_site('<mediawiki xml:lang="en"><namespace key="6" case="first-letter">File</namespace>')


def read_cases(path: Path) -> list[object]:
    """Read the cases of a file: a name after "###", the wikitext, "---", and passages separated by blank lines."""
    cases = []
    for block in path.read_text(encoding="utf-8").split("\n### ")[1:]:
        name, _, rest = block.partition("\n")
        wikitext, _, expected = rest.rpartition("\n---")
        passages = [passage for passage in expected.strip().split("\n\n") if passage]
        cases.append(pytest.param(wikitext, passages, id=f"{path.stem}: {name}"))
    return cases


@pytest.mark.parametrize(("wikitext", "passages"), [case for path in CASE_FILES for case in read_cases(path)])
def test_passages_are_the_prose_that_a_reader_sees(wikitext: str, passages: list[str]) -> None:
    assert extract(wikitext, SITE, "Some Title").passages == passages


def test_case_files_cover_every_construct() -> None:
    num_cases = {path.stem: len(read_cases(path)) for path in CASE_FILES}
    expected = {
        "emphasis", "links", "lists", "magic_words", "references", "repair", "scripts", "tables", "tags", "unclosed"
    }  # fmt: skip
    assert expected <= set(num_cases)
    assert sum(num_cases.values()) >= 460


@pytest.mark.parametrize("path", CASE_FILES, ids=lambda path: path.stem)
def test_case_file_begins_with_a_description(path: Path) -> None:
    assert path.read_text(encoding="utf-8").startswith("# ")


def test_carriage_returns_are_line_ends() -> None:
    assert extract("== T ==\r\nOne two.\r\n\r\nThree.\r\n* item\r\n", SITE).passages == ["One two.", "Three."]


@pytest.mark.parametrize(
    "link", ["[[Kategorie:X]]", "[[Категория:X|Y]]", "[[分類:X]]", "[[Fichier:X.jpg|Y]]", "[[ملف:X.jpg]]"]
)
def test_local_namespaces_are_known_without_siteinfo(link: str) -> None:
    assert extract(f"A sentence.{link} Another.", read_site("")).passages == ["A sentence. Another."]


def test_article_that_only_leads_to_lists_has_no_passages() -> None:
    lists = "Foo can be one of these:\n* a place\nIn other languages it is called:\n* bar\n"
    page = Page("Foo", 1, 0, 1, False, "wikitext", lists)
    assert extract_article(page, SITE).passages == []
    with_prose = Page("Foo", 1, 0, 1, False, "wikitext", f"Foo is a word.\n\n{lists}")
    assert len(extract_article(with_prose, SITE).passages) == 3


@pytest.mark.parametrize(
    "wikitext", ["{{Infobox|a=b}}", "{{a}}{{b|{{c}}}}", "<!-- x -->", "[[Category:A]]", "== T ==\n* a"]
)
def test_page_without_prose_has_no_passage_but_counts(wikitext: str) -> None:
    extraction = extract(wikitext, SITE)
    assert extraction.passages == []
    assert sum(extraction.dropped.values()) >= 1


def test_dropped_elements_are_counted_by_kind() -> None:
    text = """{{Infobox|x}}
== H ==
Prose.<ref>x</ref><!-- c --> [[File:A.jpg|thumb]] <math>x</math> [http://x.org]
* a
* b
{|
| x
|}
[[Category:X]] [[fr:Y]]
<gallery>A.jpg</gallery>
 code = 1
 more = 2
"""
    dropped = extract(text, SITE).dropped
    assert dropped == Counter(
        {"template": 1, "heading": 1, "reference": 1, "comment": 1, "file": 1, "formula": 1, "external link": 1,
         "list": 2, "table": 1, "category": 1, "interlanguage link": 1, "gallery": 1, "code": 1}
    )  # fmt: skip


def test_dropped_templates_are_counted_by_name_on_request() -> None:
    extraction = extract("{{Infobox X|a}} {{infobox_x}} {{nowrap|b}} stands here.", SITE, count_templates=True)
    assert extraction.templates == Counter({"infobox x": 2})


@pytest.mark.parametrize(
    ("text", "title", "reason"),
    [
        ("Prose.", "Title", ""),
        ("Prose.", "Foo (disambiguation)", "disambiguation"),
        ("Prose.", "Foo (Doorverwijspagina)", "disambiguation"),
        ("文。", "題 (曖昧さ回避)", "disambiguation"),
        ("Prose.", "Foo (song)", ""),
        ("'''Foo''' may be:\n* a\n{{disambiguation}}", "Foo", "disambiguation"),
        ("{{Disambig}}", "Foo", "disambiguation"),
        ("{{hndis|name=Foo}}", "Foo", "disambiguation"),
        ("{{Place name disambiguation}}", "Foo", "disambiguation"),
        ("{{disambiguation cleanup|date=May 2016}}", "Foo", "disambiguation"),
        ("{{letter-number combination disambiguation}}", "Foo", "disambiguation"),
        ("{{DP|Ceres}} is a dwarf planet.", "Foo", ""),
        ("__DISAMBIG__", "Foo", "disambiguation"),
        ("{{disambiguation needed}} Prose.", "Foo", ""),
        ("{{other uses|Foo (disambiguation)}} Prose.", "Foo", ""),
        ("  \n", "Foo", "empty"),
    ],
)
def test_drop_reason_tells_disambiguation_and_empty_pages(text: str, title: str, reason: str) -> None:
    page = Page(title, 1, 0, 1, False, "wikitext", text)
    assert drop_reason(page, SITE) == reason


@pytest.mark.parametrize(
    ("language", "template"),
    [
        ("de", "Begriffsklärung"),
        ("nl", "dp"),
        ("ru", "неоднозначность"),
        ("bg", "пояснение"),
        ("de-AT", "Disambig"),
        ("fr", "Patronyme"),
        ("fr", "Homonymie de clubs sportifs"),
        ("ja", "人名の曖昧さ回避"),
        ("ca", "Desambiguació"),
        ("uk", "DisambigG"),
        ("sr", "Вишезначна одредница"),
        ("sk", "Rozlišovacia stránka"),
        ("sv", "Efternamn"),
        ("be-tarask", "Неадназначнасьць"),
        ("cs", "Rozcestník - příjmení"),
        ("zh-yue", "搞清楚"),
        ("en", "Surname disambiguation"),
    ],  # fmt: skip
)
def test_disambiguation_templates_of_each_language_are_known(language: str, template: str) -> None:
    site = read_site(f'<mediawiki xml:lang="{language}">')
    assert drop_reason(Page("T", 1, 0, 1, False, "wikitext", f"{{{{{template}}}}}"), site) == "disambiguation"


@pytest.mark.parametrize(
    ("language", "template"),
    [
        ("fr", "Voir homonymes|Foo"),
        ("fr", "Confusion homonymie|Foo"),
        ("de", "Begriffsklärungshinweis"),
        ("en", "Dab needed"),
    ],
)
def test_links_to_disambiguation_pages_do_not_mark_one(language: str, template: str) -> None:
    site = read_site(f'<mediawiki xml:lang="{language}">')
    assert drop_reason(Page("T", 1, 0, 1, False, "wikitext", f"{{{{{template}}}}} Prose."), site) == ""


def test_redirects_other_namespaces_and_models_are_dropped() -> None:
    assert drop_reason(Page("T", 1, 0, 1, True, "wikitext", "x"), SITE) == "redirect"
    assert drop_reason(Page("T", 1, 1, 1, False, "wikitext", "x"), SITE) == "namespace"
    assert drop_reason(Page("T", 1, 0, 1, False, "javascript", "x"), SITE) == "not wikitext"


MARKUP = [
    "{{", "}}", "[[", "]]", "{|", "|}", "|", "\n", "''", "'''", "<ref>", "</ref>", "<!--", "-->", "<div>", "=", "a",
    "Word. ", "(", ")", "[http://x ", ",", "<nowiki>", "</nowiki>", "nowrap|", "File:", ":", "*", " ", "&lt;", "{{{",
    "<math>", "</math>", "]", "-{", "}-", "convert|5|km", "\ue000", "<br/>", "__X__",
]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(MARKUP), max_size=40))
def test_arbitrary_markup_leaves_no_placeholders(parts: list[str]) -> None:
    for passage in extract("".join(parts), SITE).passages:
        assert passage == passage.strip()
        assert "\n" not in passage
        assert not any("\ue000" <= char <= "\ue02f" for char in passage)


def test_punctuation_is_repaired_only_at_placeholders() -> None:
    text = "f( ) , g() [ ] ; (, x) stays ."
    assert repair_punctuation(text) == text


@pytest.mark.real_data
def test_english_articles_have_little_residue_and_few_scars(real_data: Path) -> None:
    path = real_data / "wikipedia" / "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
    dump = open_dump(path)
    text = ""
    empty = []
    for page in read_pages(dump):
        if not drop_reason(page, dump.site):
            passages = extract(page.text, dump.site, page.title).passages
            text += "\n".join(passages) + "\n"
            if not passages:
                empty.append(page.title)
    assert len(text) > 2_400_000
    assert count_markup(text) / len(text) * 1e6 < 20
    assert count_broken_text(text) / len(text) * 1e6 < 50
    assert len(empty) <= 2
