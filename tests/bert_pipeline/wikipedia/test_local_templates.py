"""Inline templates of other Wikipedias render as on their wiki, which is in the address of the case."""

import pytest
from template_cases import Case, read_cases, render_call

from bert_pipeline.wikipedia.extract import extract
from bert_pipeline.wikipedia.site import read_site
from bert_pipeline.wikipedia.templates.local.numbers import write_number
from bert_pipeline.wikipedia.templates.local.templates import QUOTATIONS, follow_pattern
from bert_pipeline.wikipedia.templates.registry import LOCAL, Arguments

CASES = read_cases("local_templates.txt")


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.language}: {case.call}")
def test_template_renders_as_on_its_wiki(case: Case) -> None:
    assert render_call(case.call, case.language) == case.text


def test_every_language_has_cases() -> None:
    assert set(LOCAL) == {case.language for case in CASES} | set(QUOTATIONS)


@pytest.mark.parametrize("language", QUOTATIONS)
def test_block_quotations_are_kept_in_every_language(language: str) -> None:
    site = read_site(f'<mediawiki xml:lang="{language}">')
    for name in QUOTATIONS[language].split(", "):
        for words in ("The words are here.", "1=The words are here."):
            assert extract(f"{{{{{name.capitalize()}|{words}|2=A man}}}}\nSo it goes on.", site).passages == [
                "The words are here.",
                "So it goes on.",
            ]


def test_every_case_has_a_source() -> None:
    assert [case.call for case in CASES if case.source != "knowledge" and " https://" not in case.source] == []


def test_local_names_apply_to_their_wiki_only() -> None:
    assert render_call("the {{s-|XIX|e}} word", "fr") == "the XIXe siècle word"
    assert render_call("the {{s-|XIX|e}} word", "en") == "the word"
    assert render_call("a word{{citation|mot}}", "en") == "a word"


def test_language_variant_uses_templates_of_the_language() -> None:
    assert render_call("{{enS|word}}", "de-AT") == "englisch word"


def test_units_have_symbols_outside_of_english_wikis() -> None:
    assert render_call("{{convert|5|km|mi}}", "bg") == "5 km (3.1 mi)"
    assert render_call("{{convert|5|km|mi}}", "en") == "5 kilometres (3.1 mi)"


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        (["a", "b", "c"], "a (b) – c"),
        (["a", "", "c"], "a – c"),
        (["a"], "a"),
        (["x=d", "b"], "b"),
        (["", "b", "x=d"], "d (b)"),
        (["", "b"], None),
    ],
)
def test_pattern_omits_parts_without_arguments(parts: list[str], text: str | None) -> None:
    assert follow_pattern("{1|x}[ ({2})][ – {3}]")(Arguments("t", parts)) == text


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
def test_numbers_have_separators_of_the_language(number: str, language: str, text: str) -> None:
    assert write_number(number, language) == text
