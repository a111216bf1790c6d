"""Time and memory of an extraction are linear in the length of the page, whatever it contains."""

import sys
import time
import tracemalloc

import pytest
from malformed_markup import UNITS

from bert_pipeline.corpus.quality import count_broken_text
from bert_pipeline.wikipedia.extract import extract
from bert_pipeline.wikipedia.site import read_site

SITE = read_site("")


def count_steps(text: str) -> int:
    """Count the steps of an extraction: executed lines of Python, and calls of C functions."""
    steps = 0

    def trace(frame: object, event: str, argument: object) -> object:
        nonlocal steps
        steps += 1
        return trace

    def profile(frame: object, event: str, argument: object) -> None:
        nonlocal steps
        steps += event == "c_call"

    previous = sys.gettrace()
    sys.settrace(trace)
    sys.setprofile(profile)
    try:
        extract(text, SITE)
    finally:
        sys.settrace(previous)
        sys.setprofile(None)
    return steps


@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
def test_steps_are_linear_in_page_length(unit: str) -> None:
    extract("Prose. " + unit, SITE)  # what is done once in a process does not count
    assert count_steps("Prose. " + unit * 600) <= 2.5 * count_steps("Prose. " + unit * 300)


@pytest.mark.parametrize("unit", ["{{a|{{dab}} ", "{{a {{dab}} ", "<!-- {{dab}} ", "{{dab ", "}} {{a|{{dab|"])
def test_search_for_a_disambiguation_template_is_linear(unit: str) -> None:
    def seconds(copies: int) -> float:
        text = "{{a|" + unit * copies
        start = time.process_time()
        SITE.is_disambiguation("T", text)
        return time.process_time() - start

    short = max(min(seconds(1000) for _ in range(3)), 2e-3)
    assert any(seconds(16000) <= 80 * short for _ in range(3))


@pytest.mark.parametrize("opener", ["(", "（", "(,", "“", "["])
def test_search_for_broken_text_is_linear(opener: str) -> None:
    def seconds(spaces: int) -> float:
        text = opener + spaces * " " + "x"
        start = time.process_time()
        count_broken_text(text)
        return time.process_time() - start

    short = max(min(seconds(1000) for _ in range(3)), 2e-4)
    assert any(seconds(16000) <= 80 * short for _ in range(3))


@pytest.mark.parametrize("end", ["", ">"])
def test_attributes_of_one_tag_are_linear(end: str) -> None:
    def seconds(copies: int) -> float:
        text = "Prose. <span " + "display:none;" * copies + end
        start = time.process_time()
        extract(text, SITE)
        return time.process_time() - start

    short = max(min(seconds(1000) for _ in range(3)), 2e-3)
    assert any(seconds(16000) <= 80 * short for _ in range(3))


@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
def test_processor_time_is_linear_in_page_length(unit: str) -> None:
    """A page is 16 times as long as another: work in regular expressions would take 256 times as long if quadratic."""

    def seconds(copies: int) -> float:
        text = "Prose. " + unit * copies
        start = time.process_time()
        extract(text, SITE)
        return time.process_time() - start

    short = max(min(seconds(1000) for _ in range(3)), 2e-3)
    assert any(seconds(16000) <= 80 * short for _ in range(3))


@pytest.mark.parametrize(
    "name", ["open templates", "opening brackets", "known templates", "everything at once", "words"]
)
def test_peak_memory_is_a_bounded_multiple_of_page_length(name: str) -> None:
    text = "Prose. " + UNITS[name] * (400_000 // len(UNITS[name]))
    tracemalloc.start()
    try:
        extract(text, SITE)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= 150 * len(text)


def test_very_long_word_is_kept_whole() -> None:
    word = "a" * 200_000
    (passage,) = extract(f"The word {word} is long.", SITE).passages
    assert passage == f"The word {word} is long."


def test_nesting_beyond_the_maximum_depth_is_dropped_and_counted() -> None:
    extraction = extract("Prose stands " + "{{nowrap|" * 100 + "deep" + "}}" * 100 + " here.", SITE)
    assert extraction.passages == ["Prose stands here."]
    assert extraction.dropped["nested too deeply"] == 1
