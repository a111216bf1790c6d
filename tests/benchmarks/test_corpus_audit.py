"""The comparison with wikiextractor finds missing sentences and explains them."""

import html
import json

import pytest
from small_exports import make_export, make_page

from benchmarks import corpus_audit
from benchmarks.corpus_audit import LOST, compare_dump, is_covered, prose_sentences, split_words, why_missing
from benchmarks.harness import PeerEnvironment
from bert_pipeline.errors import UsageError
from bert_pipeline.wikipedia.dump import Page

WIKITEXT = """{{Infobox|a=b}}
[[File:A.jpg|thumb|A caption of the first picture is here.]]
The town lies on a wide river in the north.<ref>A note
:with lines of its own is here.</ref> It has a market.
== The long heading of this section ==
* A list item that is a whole sentence too.
:An indented line that quotes somebody at length.
{|
| A cell of the table which holds a sentence.
Its second line is a sentence of the cell too.
|}
<div class="thumb">
This chart displays the numbers of the table above.
</div>
 A line that a space indents is shown as code.
"""


def page(text: str = WIKITEXT) -> Page:
    return Page("Town", 7, 0, 1, False, "wikitext", text)


def neighbors(text: str) -> set[tuple[str, str]]:
    words = split_words(text)
    return set(zip(words, words[1:]))


def test_sentence_is_covered_if_most_words_keep_a_neighbor():
    ours = neighbors("The town lies 5 kilometres (3 mi) from the sea, and CO₂ rises where x is small.")
    assert is_covered("The town lies from the sea.", ours)
    assert is_covered('CO2 rises where formula_1 "x" is small.', ours)
    assert not is_covered("A boat goes from the town to some island.", ours)


def test_headings_labels_and_short_lines_are_not_prose():
    text = "Town.\nThe long heading of this section.\nIt has a market.\nThe town lies on a wide river."
    assert list(prose_sentences(text, WIKITEXT, "en")) == ["The town lies on a wide river."]


def test_sentences_end_with_the_marks_of_every_script():
    text = "Il dit : « La ville est au nord. »\nनगर उत्तर में नदी पर है।\nLa ville est au nord,"
    assert list(prose_sentences(text, "", "fr")) == text.split("\n")[:2]


@pytest.mark.parametrize(
    ("sentence", "reason"),
    [
        ("A caption of the first picture is here.", "caption"),
        ("A list item that is a whole sentence too.", "list item"),
        ("An indented line that quotes somebody at length.", "indented line"),
        ("A cell of the table which holds a sentence.", "table cell"),
        ("Its second line is a sentence of the cell too.", "table cell"),
        ("This chart displays the numbers of the table above.", "caption or notice in a box"),
        ("A line that a space indents is shown as code.", "preformatted line"),
        ("The town lies on a wide river in the north.", LOST),
        ("The town lies on a formula_1 river in the north.", "mostly formulas"),
    ],
)
def test_missing_sentence_is_explained_by_its_source_line(sentence, reason):
    assert why_missing(sentence, page()) == reason


@pytest.fixture
def dump(tmp_path):
    pages = make_page(7, html.escape(WIKITEXT, quote=False), title="Town"), make_page(8, "* a", title="List")
    path = tmp_path / "small.xml"
    path.write_text(make_export(*pages, language="en"))
    return path


@pytest.fixture
def peer(tmp_path, monkeypatch):
    """The environment of the peer; its Python writes what wikiextractor would."""
    monkeypatch.setenv("BERT_HOME", str(tmp_path / "home"))
    text = "The town lies on a wide river in the north.\nA list item that is a whole sentence too."
    record = json.dumps({"id": "7", "title": "Town", "text": text})
    python = tmp_path / "home" / "benchmarks" / "corpus" / "environment" / "bin" / "python"
    python.parent.mkdir(parents=True)
    script = f'mkdir -p "$5/AA"\ncat > "$5/AA/wiki_00" <<\'END\'\n{record}\nEND\n'
    python.write_text(f'#!/bin/sh\nif [ "$1" = -c ]; then echo 0; exit; fi  # its version\n{script}')
    python.chmod(0o755)
    return PeerEnvironment(python.parents[1], ("wikiextractor",))


def test_dump_comparison_counts_found_and_missing_sentences(tmp_path, dump, peer):
    coverage = compare_dump(dump, peer, tmp_path)
    assert (coverage.sentences, coverage.found, dict(coverage.missing)) == (2, 1, {"list item": 1})
    assert (coverage.share, coverage.lost) == (0.5, [])


@pytest.mark.usefixtures("peer")
def test_audit_replaces_the_text_between_the_marks(tmp_path, dump):
    page = tmp_path / "corpus.md"
    page.write_text(f"before\n{corpus_audit.BEGIN}\nold\n{corpus_audit.END}\nafter\n")
    for _ in range(2):  # a second time changes nothing
        assert corpus_audit.main([str(dump), "--write", str(page)]) == 0
    written = page.read_text()
    assert written.startswith("before\n")
    assert written.endswith("\nafter\n")
    assert "old" not in written
    assert "| `small` | no prose | List |" in written
    assert "| `small` | 2 | 1 | 50.00% | 1 |" in written
    assert written.count("| `small` |") == 4


def test_file_without_marks_is_rejected(tmp_path):
    page = tmp_path / "corpus.md"
    page.write_text("nothing")
    with pytest.raises(UsageError, match="lacks the lines"):
        corpus_audit.write_between_marks(page, "x")
