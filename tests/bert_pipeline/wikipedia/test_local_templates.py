"""Inline templates of other Wikipedias render as on their wiki, which is in the address of the case."""

import dataclasses
import json
import tomllib
from collections import Counter

import pytest
from template_cases import read_cases, read_rows, render_call

from bert_pipeline.wikipedia.dump import open_dump, read_pages
from bert_pipeline.wikipedia.extract import drop_reason, extract, extract_article
from bert_pipeline.wikipedia.sentences import split_sentences
from bert_pipeline.wikipedia.site import read_site
from bert_pipeline.wikipedia.templates import load_wiki
from bert_pipeline.wikipedia.templates.files import DATA, GENERAL
from bert_pipeline.wikipedia.templates.numbers import write_number

CASES = read_cases("local_templates.txt")
ENTRIES = {path.stem: tomllib.loads(path.read_text()).get("templates", {}) for path in DATA.glob("*.toml")}
ENTRIES.pop(GENERAL)
QUOTATIONS = {
    language: [name for names, text in entries.items() if text == "=blockquote" for name in names.split(" | ")]
    for language, entries in sorted(ENTRIES.items())
    if "=blockquote" in entries.values()
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.language}: {case.call}")
def test_template_renders_as_on_its_wiki(case):
    assert render_call(case.call, case.language) == case.text


def test_every_language_with_texts_has_cases():
    texts = {language for language, entries in ENTRIES.items() if set(entries.values()) - {"", "=blockquote"}}
    assert texts <= {case.language for case in CASES}


@pytest.mark.parametrize("language", QUOTATIONS)
def test_block_quotations_are_kept_in_every_language(language):
    site = read_site(f'<mediawiki xml:lang="{language}">')
    for name in QUOTATIONS[language]:
        for words in ("The words are here.", "1=The words are here."):
            assert extract(f"{{{{{name.capitalize()}|{words}|2=A man}}}}\nSo it goes on.", site).passages == [
                "The words are here.",
                "So it goes on.",
            ]


def test_every_case_has_a_source():
    assert [case.call for case in CASES if case.source != "knowledge" and " https://" not in case.source] == []


@pytest.mark.parametrize(("language", "call", "text"), read_rows("names_of_wikis.tsv"))
def test_names_depend_on_the_language(language, call, text):
    assert render_call(call, language) == text


@pytest.mark.parametrize(
    ("number", "language", "text"),
    [
        ("1234567.5", "en", "1,234,567.5"),
        ("1234", "fr", "1 234"),
        ("1234", "ru", "1234"),
        ("12,345", "de", "12.345"),
        ("-0.5", "it", "−0,5"),
        ("about 5", "de", "about 5"),
        (".5", "de", ".5"),
        ("", "de", ""),
    ],
)
def test_numbers_have_separators_of_the_language(number, language, text):
    assert write_number(number, load_wiki(language)) == text


@pytest.mark.parametrize(
    ("language", "call", "text"),
    [
        ("de", "{{ZAHLENFORMAT:3700000}}", "3.700.000"),
        ("hu", "{{KISBETŰ:Abc}}", "abc"),
        ("ru", "{{НАЗВАНИЕ_СТРАНИЦЫ}}", "Title"),
        ("de-AT", "{{SEITENNAME}}", "Title"),
        ("nds-nl", "{{HL:abc}}", "ABC"),
    ],
)
def test_parser_functions_and_variables_have_the_names_of_the_wiki(language, call, text):
    site = read_site(f'<mediawiki xml:lang="{language}">')
    assert extract(f"So it is {call} in all of it.", site, "Title").passages == [f"So it is {text} in all of it."]


@pytest.mark.parametrize(("language", "call"), [("de", "JETZIGES_JAHR"), ("hu", "ÉV"), ("ru", "ТЕКУЩИЙ_ГОД")])
def test_sentence_with_the_present_year_is_dropped(language, call):
    site = read_site(f'<mediawiki xml:lang="{language}">')
    kept = "This one has nothing of the sort."
    assert extract(f"It is so since {{{{{call}}}}} and later. {kept}", site).passages == [kept]


@pytest.mark.parametrize("call", ["Hét", "HÉT|x", "HÉT|x=1"])
def test_template_with_the_name_of_a_variable_is_none(call):
    site = read_site('<mediawiki xml:lang="hu">')
    assert extract(f"It is so{{{{{call}}}}} and later.", site).passages == ["It is so and later."]


def test_sentence_without_its_population_is_dropped_in_every_language():
    site = read_site('<mediawiki xml:lang="de">')
    figure = "{{Metadaten Einwohnerzahl DE-BE|Berlin}}"
    text = (
        f"Berlin hatte am {{{{Metadaten Einwohnerzahl DE-BE|Berlin|Datum}}}} insgesamt {figure} Einwohner. "
        f"Die Stadt ist mit rund {{{{Formnum|{{{{#expr:{figure}/1000000 round 1}}}}}}}} Millionen Einwohnern groß. "
        "Sie liegt an der Spree und an der Havel."
    )
    extraction = extract(text, site)
    assert extraction.passages == ["Sie liegt an der Spree und an der Havel."]
    assert extraction.dropped["sentence without its value"] == 2


@pytest.mark.real_data
def test_dumps_read_without_the_templates_of_their_language_have_few_broken_sentences(real_data, tmp_path):
    mended, hurt = [], []
    for path in sorted([*real_data.glob("wikipedia/languages/*-head.xml.bz2"), *real_data.glob("wikipedia/enwiki-*")]):
        dump = open_dump(path)
        articles = [page for page in read_pages(dump) if not drop_reason(page, dump.site)]
        unlisted = dataclasses.replace(dump.site, language="eo", dbname="eowiki")
        lost = Counter(name for page in articles for name in extract_article(page, unlisted).lost)
        silent = tmp_path / f"{path.name}.toml"  # says of these templates that they show nothing
        entries = [f"{json.dumps(name, ensure_ascii=False)} = ''" for name in lost]
        silent.write_text("\n".join(["[templates]", *entries]))
        for page in articles if lost else ():
            whole, without, repaired = (
                Counter(
                    sentence
                    for passage in extract_article(page, site, templates=templates).passages
                    for sentence in split_sentences(passage, dump.site.language)
                )
                for site, templates in ((dump.site, ""), (unlisted, str(silent)), (unlisted, ""))
            )
            mended += (without - whole - repaired).elements()
            hurt += ((without & whole) - repaired).elements()
    print(*(f"mended: {sentence}" for sentence in mended), *(f"hurt: {sentence}" for sentence in hurt), sep="\n")
    assert len(mended) > 100
    assert len(mended) >= 10 * len(hurt)
