"""Sentence segmentation."""

import hashlib
import itertools
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sentencex

from bert_pipeline.wikipedia.dump import open_dump, read_pages
from bert_pipeline.wikipedia.extract import drop_reason, extract_article
from bert_pipeline.wikipedia.sentences import split_sentences

CASES = Path(__file__).parents[2] / "data" / "sentences" / "cases.txt"
MARKED, SCORES = CASES.with_name("marked.json"), CASES.with_name("scores.tsv")


def test_sentences_are_split_and_stripped():
    assert split_sentences(" One here.  Two, e.g. this! Three? ", "en") == ["One here.", "Two, e.g. this!", "Three?"]


def test_initials_and_abbreviations_do_not_end_sentences():
    text = "Dr. J. R. Smith of the U.S. Army met Mr. Jones on Jan. 5 at 3.5 km. He left."
    assert split_sentences(text, "en") == [text.removesuffix(" He left."), "He left."]


@pytest.mark.parametrize("language", ["bg", "de", "ja", "hi", "xx", "zh-yue"])
def test_every_language_code_works(language):
    assert split_sentences("Eins. Zwei.", language) == ["Eins.", "Zwei."]


def test_sentence_in_brackets_is_separate():
    text = "It is old. (Some (of it) have survived.) Perhaps he refers to these. (U.S.) Army men came. (It is so.) Yes."
    assert split_sentences(text, "en") == [
        "It is old.", "(Some (of it) have survived.)", "Perhaps he refers to these.", "(U.S.) Army men came.",
        "(It is so.) Yes.",
    ]  # fmt: skip


@pytest.mark.parametrize("case", [line for line in CASES.read_text("utf-8").splitlines() if line[0] != "#"])
def test_sentences_end_as_in_the_language(case):
    language, _, text = case.partition(": ")
    joint = "" if language[:2] in ("ja", "jp", "zh", "am") else " "
    assert split_sentences(text.replace("|", joint), language) == text.split("|")


def test_blank_line_separates_words():
    assert split_sentences("one  two.\n\nthree four.", "en") == ["one  two.", "three four."]


@pytest.mark.parametrize("language", ["en", "de", "he", "ja", "th", "zh"])
def test_white_space_of_every_kind_is_a_blank_and_stays(language):
    spaces = [chr(code) for code in range(0x80, sys.maxunicode + 1) if chr(code).isspace()]
    assert len(spaces) == 19
    for space in spaces:
        text = "_He lives in block_B_. It is_far away._Is it?__Yes._".replace("_", space)
        found = split_sentences(text, language)
        expected = split_sentences(text.replace(space, " "), language)
        assert [sentence.replace(space, " ") for sentence in found] == expected
        assert f"block{space}B{space}." in found[0]


@pytest.mark.parametrize("unit", ["「そうだ。」", "“Yes. No. ", '"Yes. ', "(He said “so”. ", "x", "He lives there. "])
def test_long_passage_is_segmented_some_text_at_a_time(monkeypatch, unit):
    lengths: list[int] = []
    segment = sentencex.segment

    def counting(language: str, text: str) -> list[str]:
        lengths.append(len(text))
        return segment(language, text)

    monkeypatch.setattr(sentencex, "segment", counting)
    text = unit * (120_000 // len(unit))
    found = split_sentences(text, "en")
    assert "".join("".join(found).split()) == "".join(text.split())
    assert max(lengths) <= 1 << 14  # its time grows with the square of the quotations and boundaries of a call
    assert sum(lengths) <= 2 * len(text)


def test_sentences_of_a_long_passage_are_those_of_a_short_one():
    given = [f"Mr. {name} said “It is so. I go.” at 3.5 km (see p. 4) and went." for name in ("Jones", "Smith") * 1000]
    assert split_sentences(" ".join(given), "en") == given


def test_bracket_that_is_never_closed_keeps_nothing_together():
    sentence = "เมืองนี้มีประชากรมากที่สุดในประเทศ "
    text = "( " + 40 * sentence
    assert len(split_sentences(text, "th")) > 10


@pytest.mark.parametrize("language", ["en", "de", "he", "ja", "th", "zh"])
@pytest.mark.parametrize(
    "unit",
    [
        "a! ",
        "2. ",
        "(A b c d. ",
        "(A b c d.) ",
        ") ",
        "vol. 2. ",
        "「。",
        'א"ב ',
        "กกก ",
        "กกก1 ",
        "aa bb cc. ",
        "(กกก ",
    ],
)
def test_splitting_time_is_linear(language, unit):
    text = unit * 20_000
    assert "".join("".join(split_sentences(text, language)).split()) == "".join(text.split())


@pytest.mark.real_data
def test_marked_sentences_of_26_wikipedias(real_data):
    """Compare with the sentence ends that a reader marked; positions count letters and digits only.

    The figures are those of a file beside the marks, which docs/corpus.md sums up.
    """
    lines = SCORES.read_text(encoding="utf-8").splitlines()[1:]
    rows = {language: [float(cell) for cell in cells] for language, *cells in (line.split("\t") for line in lines)}
    found_rows = {}
    for language, marked in json.loads(MARKED.read_text(encoding="utf-8")).items():
        passages = {_digest(passage): passage for passage in passages_of(real_data / "wikipedia", language)}
        known = [(passages[digest], *(*places, [])[:2]) for digest, places in marked.items() if digest in passages]
        assert len(known) >= 0.9 * len(marked), language
        right = wrong = missed = 0
        for passage, ends, undecided in known:
            lengths = [sum(map(str.isalnum, sentence)) for sentence in split_sentences(passage, language)]
            found = set(itertools.accumulate(lengths[:-1]))
            right += len(found & set(ends))
            wrong += len(found - set(ends) - set(undecided))
            missed += len(set(ends) - found)
        precision, recall = right / (right + wrong), right / (right + missed)
        f1 = 2 * precision * recall / (precision + recall)
        found_rows[language] = [right + missed, *(round(score, 3) for score in (precision, recall, f1))]
    print(found_rows)
    assert found_rows == rows


@pytest.mark.real_data
@pytest.mark.parametrize("language", ["bg", "de", "en", "et", "fr", "hr", "hu", "ja", "my", "pl", "sl", "th", "tr"])
def test_few_sentences_begin_in_lower_case_or_end_with_a_number(real_data, language):
    passages = [split_sentences(passage, language) for passage in passages_of(real_data / "wikipedia", language)]
    breaks = [pair for sentences in passages for pair in itertools.pairwise(sentences)]
    assert len(breaks) >= 15
    in_lower_case = sum((first := re.search(r"\w", after)) and first[0].islower() or False for _, after in breaks)
    after_number = sum(re.search(r"(?<![\w.,:–/-])(?:\d{1,3}|[IVXL]+)\.$", before) is not None for before, _ in breaks)
    assert in_lower_case <= 0.02 * len(breaks)
    assert after_number <= 0.02 * len(breaks)
    min_characters = 13 if language == "th" else 1  # Thai ones were cut after abbreviations
    assert [after for _, after in breaks if len(after) < min_characters or not re.search(r"\w", after)] == []


def _digest(passage: str) -> str:
    return hashlib.sha256("".join(filter(str.isalnum, passage)).encode()).hexdigest()[:12]


def passages_of(folder: Path, language: str) -> Iterator[str]:
    """Yield the passages of the dump that was marked."""
    name = {
        "en": "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2",
        "ja": "languages/jawiki-every-second-page.xml.bz2",
    }.get(language, f"languages/{language}wiki-head.xml.bz2")
    dump = open_dump(folder / name)
    for page in read_pages(dump):
        if not drop_reason(page, dump.site):
            yield from extract_article(page, dump.site).passages


def test_splitting_keeps_every_character():
    text = 'He said: "Go!" (And went.) Then… he came back?! "Yes." No'
    assert "".join("".join(split_sentences(text, "en")).split()) == "".join(text.split())


@pytest.mark.parametrize("text", ["", " \n "])
def test_empty_text_has_no_sentences(text):
    assert split_sentences(text, "en") == []


PUBLISHED_CASES = {
    "am": (2, 2), "ar": (2, 3), "bg": (5, 5), "da": (4, 4), "de": (24, 25), "el": (1, 2), "en": (231, 237),
    "es": (2, 2), "fr": (5, 5), "he": (1, 1), "hi": (1, 1), "hy": (22, 23), "ja": (4, 6), "ml": (5, 5),
    "mr": (5, 5), "my": (1, 1), "nl": (2, 3), "pl": (1, 1), "pt": (3, 3), "ru": (37, 37), "uk": (27, 27),
    "ur": (1, 1), "zh": (2, 2),
}  # fmt: skip
"""Language -> cases of sentencex that hold, of how many. The others begin a sentence in lower case or with a year, or
end one inside a quotation."""


@pytest.mark.real_data
@pytest.mark.parametrize("language", PUBLISHED_CASES)
def test_published_cases(real_data, language):
    blocks = (real_data / "sentences" / f"{language}.txt").read_text(encoding="utf-8").split("\n===\n")
    right, total = 0, 0
    for block in blocks:
        lines = [line for line in block.strip("\n").split("\n") if not line.startswith("# ")]
        text, _, expected = "\n".join(lines).partition("\n---\n")
        if not expected:
            continue
        total += 1
        right += split_sentences(text, language) == [line.strip() for line in expected.strip().split("\n")]
    least, all_cases = PUBLISHED_CASES[language]
    assert total == all_cases
    assert right >= least
