"""Inline templates render as documented."""

import itertools
import re
import time
from pathlib import Path

import pytest
from template_cases import DATA, read_cases, render_call

from benchmarks.template_usage import called_names, read_blocks, title_of
from bert_pipeline.wikipedia.placeholders import UNKNOWN_VALUE
from bert_pipeline.wikipedia.templates import Arguments, Wiki, dates, load_wiki, normalize_name
from bert_pipeline.wikipedia.templates.numbers import format_value, parse_number
from bert_pipeline.wikipedia.templates.registry import FUNCTIONS


def cases(name: str) -> list[object]:
    return [pytest.param(case.call, case.text, id=case.call) for case in read_cases(name)]


@pytest.mark.parametrize(("call", "expected"), [*cases("convert.txt"), *cases("templates.txt")])
def test_template_renders_as_documented(call, expected):
    assert render_call(call) == expected


@pytest.mark.parametrize("name", ["convert.txt", "templates.txt"])
def test_every_case_has_an_address(name):
    assert [case.call for case in read_cases(name) if not case.address.startswith("https://")] == []


_KINDS = ("documentation", "module source", "module tests", "live page", "peer tests", "rule", "knowledge")
"""Kinds of sources, as explained at the top of templates.txt."""


@pytest.mark.parametrize("name", ["convert.txt", "templates.txt", "local_templates.txt"])
def test_every_source_has_a_known_kind(name):
    assert [case.call for case in read_cases(name) if not case.source.startswith(_KINDS)] == []


_WITHOUT_SOURCE = {
    "24hlm", "cite quran", "eqm", "lcons", "lord", "nuclide", "p.", "simplenuclide2", "us patent", "vol.",
}  # fmt: skip
"""Names of which no copy of their page, their code or a page that uses them was found."""


def test_most_used_templates_have_sources():
    names = ("convert.txt", "templates.txt")
    blocks = read_blocks(DATA / name for name in names)
    lines = (DATA / "most_used.txt").read_text(encoding="utf-8").splitlines()
    most_used = {title_of(line.split("\t")[1], blocks).lower() for line in lines if not line.startswith("#")}
    cases_with_source = [case for name in names for case in read_cases(name) if not case.source.startswith("knowledge")]
    sourced = {title_of(next(called_names(case.call), ""), blocks).lower() for case in cases_with_source}
    assert len(most_used) == 100
    assert most_used - sourced == _WITHOUT_SOURCE


def test_more_than_a_hundred_templates_have_cases():
    assert len({case.address for case in read_cases("templates.txt")}) > 100


def test_rendering_does_not_depend_on_the_date(monkeypatch):
    def fail() -> float:
        raise AssertionError("the clock was read")

    monkeypatch.setattr(time, "time", fail)
    for module in Path(dates.__file__).parent.rglob("*.py"):
        source = module.read_text(encoding="utf-8")
        assert not re.search(r"\.(?:now|today|utcnow)\(|\b(?:import|from) time\b", source), module
    for case in read_cases("templates.txt"):
        assert render_call(case.call) == case.text


def test_names_are_normalized():
    assert normalize_name(" Template:As_of ") == "as of"
    assert normalize_name("Key  Press") == "key press"
    # A name in capitals is another one than that in lower case, except for its first letter
    assert [normalize_name(name) for name in ("PHI", "Phi", "phi", "A", "subst:US$", "НП")] == [
        "PHI", "phi", "phi", "a", "US$", "НП"
    ]  # fmt: skip


def test_arguments_are_numbered_and_the_last_of_a_name_is_kept():
    arguments = Arguments("t", ["a", "k= v ", "b", "2=c", "k=w"], Wiki())
    assert arguments.positional() == ["a", "c"]
    assert arguments.get("k") == "w"
    assert arguments.get("missing", 1) == "a"


@pytest.mark.parametrize(
    ("text", "value", "precision"),
    [
        ("1,500", 1500.0, -2),
        ("-4.25", -4.25, 2),
        ("1.5e6", 1.5e6, -5),
        ("3+1/2", 3.5, 1),
        ("1/2", 0.5, 1),
        ("007", 7.0, 0),
    ],
)
def test_number_is_parsed_with_its_precision(text, value, precision):
    number = parse_number(text)
    assert number is not None
    assert (number.value, number.precision) == (value, precision)


@pytest.mark.parametrize("text", ["", "abc", "1/0", "--5", "1 2 3", "5 km", "."])
def test_text_without_a_number_is_not_parsed(text):
    assert parse_number(text) is None


def test_negative_precision_rounds_to_tens_and_hundreds():
    assert format_value(4048.6, -2) == "4,000"
    assert format_value(-0.04, 1) == "0.0"
    assert format_value(-12.345, 2) == "−12.35" or format_value(-12.345, 2) == "−12.34"


_ODD_VALUES = (
    "", "-5", "1e400", "1e99", "1e-99", "9" * 38, "9" * 5000, "٣", "²", ", 1/2", "1/0", "5-10", "km", "ftin", "e9km2",
    "kg/", "to", "(5)", "1.5.2", "1999-01-01", "nan", "sigfig=9", "round=99999999999999999999", UNKNOWN_VALUE,
)  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_accepts_any_arguments(name):
    """An error in one template of one page would end the job of a whole dump."""
    wiki = load_wiki("en")
    called = {"": name} | {title: title for title, renderer in wiki.renderers.items() if renderer is FUNCTIONS[name]}
    for title in sorted(called.values())[:3]:
        for first, parts in itertools.product(([], ["5"], ["5", "km"]), itertools.product(_ODD_VALUES, repeat=2)):
            text = FUNCTIONS[name](Arguments(title, [*first, *parts], wiki, "T", "3 {{x}} 4", (2, 7)))
            assert text is None or isinstance(text, str)
