"""The extraction agrees with articles whose prose was annotated by hand."""

import base64
import json
from pathlib import Path

import numpy as np
import pytest
from marked_articles import (
    MarkedArticle,
    Passage,
    hash_words,
    load_marks,
    mark_articles,
    score_article,
    score_dumps,
    write_marks,
)

MARKS = Path(__file__).parents[2] / "data" / "wikitext" / "marked_articles.json"


def article(*passages: str, optional: str = "") -> MarkedArticle:
    marked = [Passage(start=0, end=0, words=hash_words(text), is_optional=False) for text in passages]
    if optional:
        marked.append(Passage(start=0, end=0, words=hash_words(optional), is_optional=True))
    return MarkedArticle(dump="d", title="T", sha256="", passages=tuple(marked))


def write_dump(folder: Path, wikitext: str) -> None:
    page = f"<page><title>Foo</title><id>1</id><revision><text>{wikitext}</text></revision></page>"
    (folder / "d.xml").write_text(f"<mediawiki>{page}</mediawiki>")


def test_punctuation_and_joined_passages_do_not_lower_the_score():
    score = score_article(article("One is here.", "Two, are there."), ["One is HERE Two are (there)"])
    assert (score.found, score.marked, score.right, score.kept) == (2, 2, 1, 1)
    assert score.words_common == score.words_marked == score.words_kept == 6


def test_missed_and_wrong_passages_and_words_are_counted():
    score = score_article(article("One is here.", "Two are there."), ["One is here.", "A caption of a picture."])
    assert (score.found, score.marked, score.right, score.kept) == (1, 2, 1, 2)
    assert (score.words_common, score.words_marked, score.words_kept) == (3, 6, 8)
    assert score.missed == ((0, 0),)
    assert score.wrong == ("A caption of a picture.",)


@pytest.mark.parametrize("kept", [["One is here."], ["One is here.", "and then:"]])
def test_optional_passage_does_not_affect_the_score(kept):
    score = score_article(article("One is here.", optional="and then:"), kept)
    assert (score.found, score.marked, score.right, score.kept) == (1, 1, 1, 1)
    assert score.words_kept == 3


def test_marks_are_made_from_a_reading_and_contain_no_text(tmp_path):
    wikitext = "{{Box\n|a=b}}\n'''Foo'''{{fn|1}} is [[bar|a bar]] of {{convert|5|km}}.\n\n* no\nIt {{sic|goes}}\non."
    write_dump(tmp_path, wikitext)
    reading = "{{fn…}} =>\n@ d.xml | Foo\nkeep 2 5+6?\n{{convert|5|km}} => 5 kilometres (3.1 mi)\n{{sic|goes}} => goes"
    write_marks(mark_articles(reading, tmp_path), tmp_path / "marks.json")
    assert "kilometres" not in (tmp_path / "marks.json").read_text()
    (marked,) = load_marks(tmp_path / "marks.json")
    first, second = marked.passages
    assert wikitext[first.start : first.end].startswith("'''Foo'''")
    assert first.words == hash_words("Foo is a bar of 5 kilometres (3.1 mi)")
    assert (second.words, second.is_optional) == (hash_words("It goes on"), True)
    (score,) = score_dumps([marked], tmp_path)
    assert (score.found, score.right) == (1, 1)


def test_reading_with_unexplained_markup_is_refused(tmp_path):
    write_dump(tmp_path, "A {{b}} c.")
    with pytest.raises(ValueError, match="Foo, line 1: not explained"):
        mark_articles("@ d.xml | Foo\nkeep 1", tmp_path)


def test_marks_of_another_revision_are_refused(tmp_path):
    write_dump(tmp_path, "A b c.")
    words = base64.b64encode(np.array(hash_words("A b c"), dtype="<u2").tobytes()).decode()
    entry = {"dump": "d.xml", "title": "Foo", "sha256": "0", "passages": [[0, 6, words]]}
    (tmp_path / "marks.json").write_text(json.dumps([entry]))
    with pytest.raises(ValueError, match="not the text that was marked"):
        score_dumps(load_marks(tmp_path / "marks.json"), tmp_path)


@pytest.mark.real_data
def test_extraction_agrees_with_the_marked_articles(real_data):
    scores = score_dumps(load_marks(MARKS), real_data / "wikipedia")
    assert len(scores) >= 70
    for score in sorted(scores, key=lambda score: score.words_common - max(score.words_marked, score.words_kept))[:5]:
        print(
            f"{score.title}: {score.found} of {score.marked} found, {score.right} of {score.kept} right", score.missed
        )
    for name, min_share, part, whole in (
        ("passages found", 0.99, "found", "marked"),
        ("passages right", 0.99, "right", "kept"),
        ("words found", 0.9993, "words_common", "words_marked"),
        ("words right", 0.9998, "words_common", "words_kept"),
    ):
        num_part, num_whole = (sum(getattr(score, count) for score in scores) for count in (part, whole))
        print(f"{name}: {num_part:,} of {num_whole:,}, {num_part / num_whole:.4f}")
        assert num_part / num_whole >= min_share, name
