"""Inline templates show what their documentation says."""

import re
import time
from pathlib import Path

import pytest

from bert_pipeline.wikipedia import dates
from bert_pipeline.wikipedia.convert import format_value, parse_number
from bert_pipeline.wikipedia.registry import RENDERERS, Arguments, normalize_name
from bert_pipeline.wikipedia.siteinfo import read_site
from bert_pipeline.wikipedia.wikitext import extract

DATA = Path(__file__).parent.parent / "data" / "wikitext"
SITE = read_site("")


def read_calls(name: str) -> list[tuple[str, str, str]]:
    """The cases of a file: "call => text" lines, each below its "@ address" line; "#" lines are comments."""
    cases = []
    address = ""
    for line in (DATA / name).read_text(encoding="utf-8").splitlines():
        if line.startswith("@ "):
            address = line[2:]
        elif line and not line.startswith("#"):
            call, arrow, expected = line.partition(" =>")
            assert arrow, f"{name}: no arrow in {line!r}"
            cases.append((call, expected.strip(), address))
    return cases


def cases(name: str) -> list[object]:
    return [pytest.param(call, expected, id=call) for call, expected, _ in read_calls(name)]


def show(call: str) -> str:
    """What a reader sees of a call in the middle of a sentence."""
    (passage,) = extract(f"It is said that {call} was the whole of it.", SITE, "Some Title").passages
    assert passage.startswith("It is said that ")
    assert passage.endswith(" was the whole of it.")
    return passage.removeprefix("It is said that ").removesuffix("was the whole of it.").strip()


@pytest.mark.parametrize(("call", "expected"), cases("convert.txt"))
def test_convert_shows_what_the_template_shows(call: str, expected: str) -> None:
    assert show(call) == expected


@pytest.mark.parametrize(("call", "expected"), cases("templates.txt"))
def test_template_shows_what_its_documentation_says(call: str, expected: str) -> None:
    assert show(call) == expected


@pytest.mark.parametrize("name", ["convert.txt", "templates.txt"])
def test_every_case_names_its_documentation(name: str) -> None:
    assert [call for call, _, address in read_calls(name) if not address.startswith("https://")] == []


def test_more_than_a_hundred_inline_templates_have_cases() -> None:
    assert len({address for _, _, address in read_calls("templates.txt")}) > 100


def test_what_a_template_shows_does_not_depend_on_the_day(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> float:
        raise AssertionError("the clock was read")

    monkeypatch.setattr(time, "time", fail)
    for module in ("dates", "quantities", "templates", "names"):
        source = (Path(dates.__file__).parent / f"{module}.py").read_text(encoding="utf-8")
        assert not re.search(r"\.(?:now|today|utcnow)\(|\btime\.", source), module
    for call, expected, _ in read_calls("templates.txt"):
        assert show(call) == expected


def test_names_are_found_whatever_their_case_spaces_and_prefix() -> None:
    assert normalize_name(" Template:As_of ") == "as of"
    assert normalize_name("Key  Press") == "key press"


def test_every_registered_name_is_normalized() -> None:
    assert [name for name in RENDERERS if normalize_name(name) != name] == []


def test_no_renderer_fails_on_missing_or_odd_arguments() -> None:
    for parts in ([], [""], ["", "", ""], ["x"], ["-"], ["=", "a=b"], ["1", "2", "3", "4", "5", "6"], ["9" * 400] * 3):
        for name, render in RENDERERS.items():
            shown = render(Arguments(name, parts, "Title"))
            assert shown is None or isinstance(shown, str), name


def test_arguments_count_positional_ones_and_keep_the_last_of_a_name() -> None:
    arguments = Arguments("t", ["a", "k= v ", "b", "2=c", "k=w"])
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
def test_numbers_are_read_with_their_precision(text: str, value: float, precision: int) -> None:
    number = parse_number(text)
    assert number is not None
    assert (number.value, number.precision) == (value, precision)


@pytest.mark.parametrize("text", ["", "abc", "1/0", "--5", "1 2 3", "5 km", "."])
def test_what_is_no_number_is_not_read_as_one(text: str) -> None:
    assert parse_number(text) is None


def test_rounding_reaches_into_tens_and_hundreds() -> None:
    assert format_value(4048.6, -2) == "4,000"
    assert format_value(-0.04, 1) == "0.0"
    assert format_value(-12.345, 2) == "−12.35" or format_value(-12.345, 2) == "−12.34"
