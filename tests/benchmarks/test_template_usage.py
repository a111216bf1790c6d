"""Counts of inline templates: synonyms count together, titles once, templates without a renderer last."""

import pytest

from benchmarks import template_usage
from benchmarks.template_usage import called_names, read_blocks, title_of

CASES = """# What templates show.
@ https://en.wikipedia.org/wiki/Template:Frac
source: knowledge
{{frac|1|2}} => 1⁄2
about {{fraction|1|4}} and {{small|x}} => about 1⁄4 and x
@ https://en.wikipedia.org/wiki/Template:Nowrap/doc
{{nobr|a}} => a
{{small|x}} => x
@ https://en.wikipedia.org/wiki/Template:Small
@ https://en.wikipedia.org/wiki/Help:Magic_words
{{lc:ABC}} => abc
{{!}} => |
"""


@pytest.fixture
def cases(tmp_path):
    path = tmp_path / "cases.txt"
    path.write_text(CASES, encoding="utf-8")
    return path


def test_called_names_ignore_comments_nowiki_and_functions():
    wikitext = (
        "{{As_of|2001}}{{small\n|{{nobr|a}}}}<!--{{big|b}}--><nowiki>{{em}}</nowiki>{{{arg|}}}{{lc:A}}{{#if:a}}{{a"
    )
    assert list(called_names(wikitext)) == ["as of", "small", "nobr"]


def test_synonyms_count_as_the_template_of_their_block(cases):
    blocks = read_blocks([cases])
    names = ["fraction", "nobr", "small", "!", "lang-de", "ipa-fr", "other"]
    assert [title_of(name, blocks) for name in names] == ["frac", "nowrap", "small", "!", "lang-x", "ipa-xx", "other"]


def test_language_code_with_its_own_block_counts_separately():
    assert title_of("lang-zh", {"lang-zh": "lang-zh"}) == "lang-zh"


def test_output_is_sorted_by_calls_with_unrendered_last(dump, tmp_path, capsys):
    other = tmp_path / "other.xml"
    calls = "{{convert|1|km}} {{lang-de|Wort}} {{lang-fr|mot}} {{lang-fr|mot}} {{nobody knows}} it."
    text = dump.read_text().replace("Town 1 is on a river.", calls)
    other.write_text(text.replace("Town 2 is on a river.", "{{Cvt|1|km}} {{convert|2|km}}"))
    assert template_usage.main([str(other), str(dump), str(other)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["3\t1\tlang-x", "2\t2\tconvert", "1\t1\tcvt", "", "without a renderer", "1\t1\tnobody knows"]


def test_calls_in_running_text_are_counted_by_what_they_show(dump, tmp_path, capsys):
    other = tmp_path / "some-other.xml"
    text = (
        "{{Infobox|a={{small|b}}}}\n* In a list of {{small|towns}} that are on a river.\n{{Main|Another page}}\n"
        "It is said {{small|here}} that{{sfn|Foo}} it {{nobody\n|knows}} was the {{lc:WHOLE}} of it{{small|.}}"
    )
    other.write_text(dump.read_text().replace("Town 1 is on a river.", text))
    assert template_usage.main(["--share", str(other)]) == 0
    assert capsys.readouterr().out == "some\t5\t60.0\t20.0\t20.0\tnobody 1\n"
