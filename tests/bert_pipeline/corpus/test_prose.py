"""Headings, lists, tables and references of plain text and of Markdown are no prose."""

import json
from collections import Counter
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_pipeline.corpus.job import build_corpus
from bert_pipeline.corpus.parquet import read_documents
from bert_pipeline.corpus.prose import form_of, prose_passages
from bert_pipeline.corpus.splits import CorpusConfig

TEXTS = Path(__file__).parents[2] / "data" / "prose"
HUB_TEXT = (TEXTS / "hub.txt").read_text(encoding="utf-8")
FINEWIKI_TEXT = (TEXTS / "finewiki.md").read_text(encoding="utf-8")


def test_plain_text_of_the_hub_keeps_its_sentences():
    dropped = Counter()
    assert prose_passages(HUB_TEXT, "plain", "en", dropped) == [
        "Lindford is a village on the river Esk. It has 214 inhabitants.",
        "The village was founded in 1204 by monks.",
        "It burnt down twice.",
    ]
    assert dropped == {"fragment": 2, "list": 4, "after references": 10}


def test_markdown_loses_its_marks_and_what_is_no_prose():
    dropped = Counter()
    assert prose_passages(FINEWIKI_TEXT, "markdown", "en", dropped) == [
        "Lindford is a village on the river Esk. It has 214 inhabitants*.",
        "The village was founded in 1204 by monks from the valley.",
        "Few people live in the village now.",
    ]
    counts = {"heading": 3, "list": 3, "table": 3, "after references": 4, "fragment": 1, "code": 1}
    assert dropped == counts


def test_targets_and_titles_of_links_may_have_brackets():
    text = 'It is in [Bar](https://a.org/Bar_(town) "Bar (town)"), on [Baz](/wiki/Baz_(river)) (or [Esk](Esk)).'
    assert prose_passages(text, "markdown", "en", Counter()) == ["It is in Bar, on Baz (or Esk)."]
    image = 'It is so. ![The church](church_(2).jpg "Church (2)")'
    assert prose_passages(image, "markdown", "en", Counter()) == ["It is so."]


@pytest.mark.parametrize("note", ["[[1]](#cite_note-1)", r"[\[note 2\]](#cite_note-Smith_(2001)-2)", "[^3]"])
def test_notes_of_markdown_are_removed(note):
    text = f"It is so.{note} It has [one](/wiki/One) or [two](#Two){note}{note} rivers."
    assert prose_passages(text, "markdown", "en", Counter()) == ["It is so. It has one or two rivers."]


@pytest.mark.parametrize(
    ("language", "heading"),
    [("de", "Einzelnachweise"), ("ja", "脚注"), ("ru", "Примечания"), ("simple", "Notes:")],
)
def test_what_follows_references_in_the_language_is_dropped(language, heading):
    text = f"It is so.\n\n{heading}\n\nA book about it. London, 1999."
    dropped = Counter()
    assert prose_passages(text, "plain", language, dropped) == ["It is so."]
    assert dropped["after references"] == 2
    assert len(prose_passages(text, "plain", "zu" if language != "simple" else "de", Counter())) == 2


def test_lines_that_are_broken_by_width_are_joined():
    text = "The village was founded\nin 1204 by monks of the\nvalley.\n\n村は\n1204年に建てられた。"
    first, *_ = prose_passages(text, "plain", "en", Counter())
    assert first == "The village was founded in 1204 by monks of the valley."


def test_columns_tell_the_layouts_of_the_hub():
    hub, finewiki = {"id", "url", "title", "text"}, {"text", "wikiname", "in_language", "page_id", "url", "title"}
    assert [form_of("auto", columns) for columns in (hub, finewiki, {"id", "title", "text"}, {"text"})] == [
        "plain", "markdown", "keep", "keep",
    ]  # fmt: skip
    assert form_of("keep", hub) == "keep"


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_corpora_of_the_hub_are_prose_unless_kept(tmp_path, kind):
    row = {"id": "7", "url": "https://example.org/7", "title": "Lindford", "text": HUB_TEXT}
    path = tmp_path / f"lindford.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist([row]), path)
    else:
        path.write_text(json.dumps(row) + "\n", encoding="utf-8")
    config = CorpusConfig(held_out_per_mille=0)
    manifest = build_corpus([f"{kind}:{path}"], tmp_path / "corpus", config, ["--workers=1"])
    (shard,) = (tmp_path / "corpus").rglob("*.parquet")
    (document,) = read_documents(shard)
    assert document.sentences[2:] == ("The village was founded in 1204 by monks.", "It burnt down twice.")
    assert manifest.counts["dropped_elements"]["after references"] == 10

    config = CorpusConfig(held_out_per_mille=0, prose="keep")
    manifest = build_corpus([f"{kind}:{path}"], tmp_path / "kept", config, ["--workers=1"])
    assert manifest.counts["sentences"] > 10


def test_finewiki_in_a_store_names_the_language_of_its_rows(tmp_path):
    row = {"text": FINEWIKI_TEXT, "wikiname": "enwiki", "in_language": "en", "id": "enwiki/7", "title": "Lindford"}
    with fsspec.open("memory://datasets/finewiki/data/enwiki/000.parquet", "wb") as stream:
        pq.write_table(pa.Table.from_pylist([row]), stream)
    config = CorpusConfig(held_out_per_mille=0, language="de")
    build_corpus(
        ["parquet:memory://datasets/finewiki/data/enwiki/*.parquet"], tmp_path / "corpus", config, ["--workers=1"]
    )
    (shard,) = (tmp_path / "corpus").rglob("*.parquet")
    (document,) = read_documents(shard)
    assert (document.language, len(document.passage_starts)) == ("en", 3)


def test_book_is_freed_of_lists_on_request(tmp_path):
    (tmp_path / "notes.txt").write_text("# Notes\n\nWe went to\nthe river.\n\n- bread\n- butter\n", encoding="utf-8")
    config = CorpusConfig(held_out_per_mille=0, prose="markdown")
    manifest = build_corpus([f"book:{tmp_path}/notes.txt"], tmp_path / "corpus", config, ["--workers=1"])
    assert manifest.counts["sentences"] == 1
