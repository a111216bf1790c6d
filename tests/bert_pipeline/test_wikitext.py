"""Pages become their passages of prose, and nothing else."""

import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_pipeline.audit import count_residue, count_scars
from bert_pipeline.wikipedia import marks
from bert_pipeline.wikipedia.article import drop_reason
from bert_pipeline.wikipedia.dump import Page, open_dump, read_pages
from bert_pipeline.wikipedia.siteinfo import read_site
from bert_pipeline.wikipedia.wikitext import extract

DATA = Path(__file__).parent.parent / "data" / "wikitext"
SITE = read_site('<mediawiki xml:lang="en"><namespace key="6" case="first-letter">File</namespace>')


def read_cases(name: str) -> list[tuple[str, str, list[str]]]:
    """(name, wikitext, passages) of each case of a file."""
    cases = []
    for block in (DATA / name).read_text(encoding="utf-8").split("\n### ")[1:]:
        title, _, rest = block.partition("\n")
        wikitext, _, expected = rest.rpartition("\n---")
        cases.append((title, wikitext, [passage for passage in expected.strip().split("\n\n") if passage]))
    return cases


@pytest.mark.parametrize(
    ("wikitext", "passages"),
    [pytest.param(wikitext, passages, id=title) for title, wikitext, passages in read_cases("passages.txt")],
)
def test_passages_are_the_prose_and_nothing_else(wikitext: str, passages: list[str]) -> None:
    assert extract(wikitext, SITE).passages == passages


def test_carriage_returns_are_line_ends() -> None:
    assert extract("== T ==\r\nOne two.\r\n\r\nThree.\r\n* item\r\n", SITE).passages == ["One two.", "Three."]


def test_what_is_dropped_is_counted_by_kind() -> None:
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


def test_names_of_dropped_templates_are_listed_where_asked_for() -> None:
    extraction = extract("{{Infobox X|a}} {{infobox_x}} {{nowrap|b}} stands here.", SITE, count_templates=True)
    assert extraction.templates == Counter({"infobox x": 2})


@pytest.mark.parametrize(
    ("text", "title", "reason"),
    [
        ("Prose.", "Title", ""),
        ("Prose.", "Foo (disambiguation)", "disambiguation"),
        ("'''Foo''' may be:\n* a\n{{disambiguation}}", "Foo", "disambiguation"),
        ("{{Disambig}}", "Foo", "disambiguation"),
        ("{{hndis|name=Foo}}", "Foo", "disambiguation"),
        ("{{Begriffsklärung}}", "Foo", "disambiguation"),
        ("__DISAMBIG__", "Foo", "disambiguation"),
        ("{{disambiguation needed}} Prose.", "Foo", ""),
        ("{{other uses|Foo (disambiguation)}} Prose.", "Foo", ""),
        ("  \n", "Foo", "empty"),
    ],
)
def test_pages_that_are_no_articles_are_dropped_by_reason(text: str, title: str, reason: str) -> None:
    page = Page(title, 1, 0, 1, False, "wikitext", text)
    assert drop_reason(page) == reason


def test_redirects_other_namespaces_and_other_models_are_dropped() -> None:
    assert drop_reason(Page("T", 1, 0, 1, True, "wikitext", "x")) == "redirect"
    assert drop_reason(Page("T", 1, 1, 1, False, "wikitext", "x")) == "namespace"
    assert drop_reason(Page("T", 1, 0, 1, False, "javascript", "x")) == "not wikitext"


PATHOLOGICAL = {
    "open braces": "{{a|",
    "close braces": "}}",
    "braces": "{{",
    "odd braces": "{{{a|",
    "open links": "[[a|",
    "links and braces": "[[{{",
    "close before open": "]]}}[[{{",
    "tables": "\n{|\n|",
    "table ends": "\n|}",
    "unclosed references": "<ref>x",
    "unclosed references with quotes": '<ref name="',
    "open tags": "<div ",
    "unclosed comments": "<!-",
    "lists by tag": "<ul>",
    "external links": "[http://a",
    "long external link": "[http://a b",
    "quotes": "'''a''b",
    "marks": "a <ref/> , ( <math/> ) ",
    "variants": "-{a",
    "magic words": "__A",
    "entities": "&am",
    "hidden": '<span style="display:none',
    "nested known templates": "{{nowrap|",
    "closed known templates": "{{nowrap|x}}",
    "headings": "=",
    "spaces": " \t",
    "indented": "\n a b",
    "parentheses": "(",
    "links with spaces": "[[ ",
}


def count_steps(text: str) -> int:
    """Lines of our own code and calls of C functions that an extraction takes, weighted by nothing: scanner steps."""
    steps = 0

    def trace(frame: object, event: str, argument: object) -> object:
        nonlocal steps
        steps += 1
        return trace

    def profile(frame: object, event: str, argument: object) -> None:
        nonlocal steps
        steps += event == "c_call"

    sys.settrace(trace)
    sys.setprofile(profile)
    try:
        extract(text, SITE)
    finally:
        sys.settrace(None)
        sys.setprofile(None)
    return steps


@pytest.mark.parametrize("unit", PATHOLOGICAL.values(), ids=PATHOLOGICAL)
def test_a_doubled_page_costs_at_most_two_and_a_half_times_the_steps(unit: str) -> None:
    once = count_steps("Prose. " + unit * 400)
    twice = count_steps("Prose. " + unit * 800)
    assert twice <= 2.5 * once


@pytest.mark.parametrize("unit", PATHOLOGICAL.values(), ids=PATHOLOGICAL)
def test_work_inside_regular_expressions_stays_linear(unit: str) -> None:
    """Processor time of a long page against one a sixteenth as long: quadratic work would take 256 times as much."""

    def seconds(copies: int) -> float:
        text = "Prose. " + unit * copies
        best = 1e9
        for _ in range(3):
            start = time.process_time()
            extract(text, SITE)
            best = min(best, time.process_time() - start)
        return best

    short = max(seconds(1500), 2e-3)
    assert seconds(24000) <= 80 * short


def test_nesting_deeper_than_the_limit_is_dropped_and_counted() -> None:
    text = "Prose stands " + "{{nowrap|" * 100 + "deep" + "}}" * 100 + " here."
    extraction = extract(text, SITE)
    assert extraction.passages == ["Prose stands here."]
    assert extraction.dropped["nested too deeply"] == 1


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                "{{",
                "}}",
                "[[",
                "]]",
                "{|",
                "|}",
                "|",
                "\n",
                "''",
                "'''",
                "<ref>",
                "</ref>",
                "<!--",
                "-->",
                "<div>",
                "=",
                "a",
                "Word. ",
                "(",
                ")",
                ",",
                "<nowiki>",
                "</nowiki>",
                "nowrap|",
                "File:",
                ":",
                "*",
                " ",
                "&lt;",
                "{{{",
                "<math>",
                "</math>",
                "[http://x ",
                "]",
                "-{",
                "}-",
                "convert|5|km",
                "\ue000",
                "<br/>",
                "__X__",
            ]
        ),  # fmt: skip
        max_size=40,
    )
)
def test_no_page_makes_the_extraction_fail_or_leave_marks(parts: list[str]) -> None:
    for passage in extract("".join(parts), SITE).passages:
        assert passage == passage.strip()
        assert "\n" not in passage
        assert not any("\ue000" <= char <= "\ue02f" for char in passage)


def test_mending_leaves_text_without_marks_alone() -> None:
    text = "f( ) , g() [ ] ; (, x) stays ."
    assert marks.mend(text) == text


@pytest.mark.real_data
def test_english_articles_have_little_residue_and_few_scars(real_data: Path) -> None:
    path = real_data / "wikipedia" / "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
    dump = open_dump(path)
    text = ""
    empty = []
    for page in read_pages(dump):
        if not drop_reason(page):
            passages = extract(page.text, dump.site, page.title).passages
            text += "\n".join(passages) + "\n"
            if not passages:
                empty.append(page.title)
    assert len(text) > 2_400_000
    assert count_residue(text) / len(text) * 1e6 < 20
    assert count_scars(text) / len(text) * 1e6 < 50
    assert len(empty) <= 2
