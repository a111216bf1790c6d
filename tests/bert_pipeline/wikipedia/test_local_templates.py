"""Inline templates of other Wikipedias show what their readers see; the cases say on which wiki."""

import pytest
from template_cases import Case, read_cases, show

from bert_pipeline.wikipedia.dump import read_site
from bert_pipeline.wikipedia.extract import extract
from bert_pipeline.wikipedia.templates.local.numbers import write_number
from bert_pipeline.wikipedia.templates.local.templates import QUOTATIONS, follow_pattern
from bert_pipeline.wikipedia.templates.registry import LOCAL, Arguments, normalize_name

CASES = read_cases("local_templates.txt")


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.language}: {case.call}")
def test_template_shows_what_readers_of_its_wiki_see(case: Case) -> None:
    assert show(case.call, case.language) == case.text


def test_every_language_of_the_table_has_cases() -> None:
    assert set(LOCAL) == {case.language for case in CASES} | set(QUOTATIONS)


@pytest.mark.parametrize("language", QUOTATIONS)
def test_block_quotations_stay_in_every_language(language: str) -> None:
    site = read_site(f'<mediawiki xml:lang="{language}">')
    for name in QUOTATIONS[language].split(", "):
        for words in ("The words are here.", "1=The words are here."):
            assert extract(f"{{{{{name.capitalize()}|{words}|2=A man}}}}\nSo it goes on.", site).passages == [
                "The words are here.",
                "So it goes on.",
            ]


def test_every_case_says_how_its_text_is_known() -> None:
    assert [case.call for case in CASES if case.source != "knowledge" and " https://" not in case.source] == []


def test_names_of_one_wiki_mean_nothing_on_another() -> None:
    assert show("the {{s-|XIX|e}} word", "fr") == "the XIXe siècle word"
    assert show("the {{s-|XIX|e}} word", "en") == "the word"
    assert show("a word{{citation|mot}}", "en") == "a word"


def test_variants_of_a_language_read_as_the_language() -> None:
    assert show("{{enS|word}}", "de-AT") == "englisch word"


def test_measures_have_symbols_where_their_names_would_be_english() -> None:
    assert show("{{convert|5|km|mi}}", "bg") == "5 km (3.1 mi)"
    assert show("{{convert|5|km|mi}}", "en") == "5 kilometres (3.1 mi)"


def test_every_local_name_is_normalized() -> None:
    assert [name for names in LOCAL.values() for name in names if normalize_name(name) != name] == []


def test_no_local_renderer_fails_on_missing_or_odd_arguments() -> None:
    for parts in ([], [""], ["", "", ""], ["x"], ["-"], ["=", "a=b"], ["1", "2", "3", "4", "5", "6"], ["9" * 400] * 3):
        for renderers in LOCAL.values():
            for name, render in renderers.items():
                shown = render(Arguments(name, parts, "Title"))
                assert shown is None or isinstance(shown, str), name


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
def test_a_pattern_drops_the_parts_whose_arguments_are_missing(parts: list[str], text: str | None) -> None:
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
def test_numbers_have_the_separators_of_their_language(number: str, language: str, text: str) -> None:
    assert write_number(number, language) == text
