"""Time and memory of an extraction are linear in the length of the page, whatever it contains."""

import time
import tomllib
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest
from steps import count_steps

from bert_pipeline.corpus.prose import prose_passages
from bert_pipeline.corpus.quality import count_broken_text
from bert_pipeline.wikipedia import repair
from bert_pipeline.wikipedia.extract import extract
from bert_pipeline.wikipedia.site import read_site

SITE = read_site("")
UNITS = tomllib.loads((Path(__file__).parents[2] / "data" / "wikitext" / "malformed_markup.toml").read_text("utf-8"))


@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
def test_steps_are_linear_in_page_length(unit):
    extract("Prose. " + unit, SITE)  # what is done once in a process does not count
    assert count_steps("Prose. " + unit * 600, SITE) <= 2.5 * count_steps("Prose. " + unit * 300, SITE)


def assert_linear(work, least_seconds=2e-3):
    """Check the processor time of `work(copies)`: 16 times as much would take 256 times as long if quadratic."""

    def seconds(copies):
        start = time.process_time()
        work(copies)
        return time.process_time() - start

    short = max(min(seconds(1000) for _ in range(3)), least_seconds)
    assert any(seconds(16000) <= 80 * short for _ in range(3))


@pytest.mark.parametrize("unit", ["{{a|{{dab}} ", "{{a {{dab}} ", "<!-- {{dab}} ", "{{dab ", "}} {{a|{{dab|"])
def test_search_for_a_disambiguation_template_is_linear(unit):
    assert_linear(lambda copies: SITE.is_disambiguation("T", "{{a|" + unit * copies))


@pytest.mark.parametrize("opener", ["(", "（", "(,", "“", "["])
def test_search_for_broken_text_is_linear(opener):
    assert_linear(lambda spaces: count_broken_text(opener + spaces * " " + "x"), 2e-4)


@pytest.mark.parametrize("unit", ["**a ", "__a ", "`", "[", "[a](b ", "![", "[^"])
def test_marks_of_markdown_that_are_not_closed_are_linear(unit):
    assert_linear(lambda copies: prose_passages("Prose. " + unit * copies, "markdown", "en", Counter()))


@pytest.mark.parametrize("text", ["# {}x", "{}x"], ids=["heading", "table"])
def test_a_row_of_one_mark_is_linear(text):
    unit = "#" if text.startswith("#") else "-"
    assert_linear(lambda copies: prose_passages(text.format(unit * copies), "markdown", "en", Counter()))


@pytest.mark.parametrize("end", ["", ">"])
def test_attributes_of_one_tag_are_linear(end):
    assert_linear(lambda copies: extract("Prose. <span " + "display:none;" * copies + end, SITE))


@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
def test_processor_time_is_linear_in_page_length(unit):
    """Work in regular expressions makes no steps that could be counted."""
    assert_linear(lambda copies: extract("Prose. " + unit * copies, SITE))


@pytest.mark.parametrize(
    "name", ["open templates", "opening brackets", "known templates", "everything at once", "words"]
)
def test_peak_memory_is_a_bounded_multiple_of_page_length(name):
    text = "Prose. " + UNITS[name] * (400_000 // len(UNITS[name]))
    tracemalloc.start()
    try:
        extract(text, SITE)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= 150 * len(text)


@pytest.mark.parametrize("unit", ["({{x}}) ", "( {{x}} ) ", "( ", ", {{x}} ,"])
def test_gap_of_a_long_paragraph_is_closed_by_what_is_near(monkeypatch, unit):
    lengths = []
    close_gap = repair._close_gap

    def counting(before: str, after: str, *, is_start: bool) -> tuple[str, str, bool]:
        lengths.append(len(before))
        return close_gap(before, after, is_start=is_start)

    monkeypatch.setattr(repair, "_close_gap", counting)
    text = "The word stands here " * 1000 + unit * 200
    extract(text + "{{x}} )" * 200, SITE)
    assert len(lengths) >= 200
    assert max(lengths) <= 2048


def test_very_long_word_is_kept_whole():
    word = "a" * 200_000
    (passage,) = extract(f"The word {word} is long.", SITE).passages
    assert passage == f"The word {word} is long."


def test_nesting_beyond_the_maximum_depth_is_dropped_and_counted():
    extraction = extract("Prose stands " + "{{nowrap|" * 100 + "deep" + "}}" * 100 + " here.", SITE)
    assert extraction.passages == ["Prose stands here."]
    assert extraction.dropped["nested too deeply"] == 1
