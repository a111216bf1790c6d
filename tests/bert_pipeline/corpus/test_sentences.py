"""Sentence segmentation."""

from pathlib import Path

import pytest

from bert_pipeline.corpus.documents import split_sentences


def test_sentences_are_split_and_stripped() -> None:
    assert split_sentences(" One here.  Two, e.g. this! Three? ", "en") == ["One here.", "Two, e.g. this!", "Three?"]


def test_initials_and_abbreviations_do_not_end_sentences() -> None:
    text = "Dr. J. R. Smith of the U.S. Army met Mr. Jones on Jan. 5 at 3.5 km. He left."
    assert split_sentences(text, "en") == [text.removesuffix(" He left."), "He left."]


@pytest.mark.parametrize("language", ["bg", "de", "ja", "hi", "xx", "zh-yue"])
def test_every_language_code_works(language: str) -> None:
    assert split_sentences("Eins. Zwei.", language) == ["Eins.", "Zwei."]


@pytest.mark.parametrize(
    "sentence",
    [
        "ABBA's music was adapted into the successful musical Mamma Mia! that toured worldwide.",
        "He appeared in a Got Milk? advertisement in 2002.",
        "They released the album Greatest Hits Vol. 2, which sold well.",
        "(Others can be produced, but not by reacting the elements at standard conditions.)",
        "The claim is adequate; 2. the claim is of constitutional magnitude.",
        "2. The motion must be proposed by at least one tenth of the deputies.",
    ],
)
def test_titles_numbers_and_brackets_do_not_end_a_sentence(sentence: str) -> None:
    assert split_sentences(f"It was so. {sentence} It ended.", "en") == ["It was so.", sentence, "It ended."]


def test_sentence_in_brackets_is_separate() -> None:
    text = "It is old. (Some (of it) have survived.) Perhaps he refers to these. (U.S.) Army men came. (It is so.) Yes."
    assert split_sentences(text, "en") == [
        "It is old.", "(Some (of it) have survived.)", "Perhaps he refers to these.", "(U.S.) Army men came.",
        "(It is so.) Yes.",
    ]  # fmt: skip


@pytest.mark.parametrize("unit", ["a! ", "2. ", "(A b c d. ", "(A b c d.) ", ") ", "vol. 2. "])
def test_splitting_time_is_linear(unit: str) -> None:
    text = unit * 20_000
    assert "".join("".join(split_sentences(text, "en")).split()) == "".join(text.split())


def test_splitting_keeps_every_character() -> None:
    text = 'He said: "Go!" (And went.) Then… he came back?! "Yes." No'
    assert "".join("".join(split_sentences(text, "en")).split()) == "".join(text.split())


@pytest.mark.parametrize("text", ["", " \n "])
def test_empty_text_has_no_sentences(text: str) -> None:
    assert split_sentences(text, "en") == []


@pytest.mark.real_data
def test_published_english_cases(real_data: Path) -> None:
    blocks = (real_data / "sentences" / "en.txt").read_text(encoding="utf-8").split("\n===\n")
    right, total = 0, 0
    for block in blocks:
        lines = [line for line in block.strip("\n").split("\n") if not line.startswith("# ")]
        text, _, expected = "\n".join(lines).partition("\n---\n")
        if not expected:
            continue
        total += 1
        right += split_sentences(text, "en") == [line.strip() for line in expected.strip().split("\n")]
    print(f"{right} of {total}")
    assert total == 237
    assert right >= 233, f"{right} of {total}"
