import pyarrow as pa
import pytest

from bert_pipeline.vocabulary.files import SPECIAL_TOKENS
from bert_pipeline.vocabulary.quality import (
    count_marks,
    describe_scripts,
    marks_warnings,
    quality,
    script_of,
    unknown_warnings,
)
from bert_pipeline.vocabulary.tokenizer import Tokenizer, normalizer


def test_quality_counts_unknown_and_whole_words():
    tokenizer = Tokenizer.from_tokens([*SPECIAL_TOKENS, "the", "un", "##able"], do_lower_case=True)
    report = quality(tokenizer, {"the": 6, "unable": 3, "xyz": 1})
    assert report == {
        "words": 10,
        "tokens_per_word": 1.3,
        "unk_share": round(1 / 13, 6),
        "scripts": {"Latin": {"tokens": 13, "unk_share": round(1 / 13, 6)}},
        "characters_lost_share": round(3 / (18 + 18 + 3), 6),
        "whole_words_share": 0.6,
        "longest_pieces": ["##able", "the", "un"],
    }


@pytest.mark.parametrize(
    ("word", "script"),
    [
        ("word", "Latin"),
        ("é", "Latin"),
        ("слово", "Cyrillic"),
        ("語", "Han"),
        ("ひらがな", "Hiragana"),
        ("カナー", "Katakana"),
        ("말", "Hangul"),
        ("ಕನ್ನಡ", "Kannada"),
        ("1905", "Common"),
        ("3d", "Latin"),
        ("。", "Common"),
    ],
)
def test_script_of_a_word(word, script):
    assert script_of(word) == script


def test_unknown_words_are_counted_and_warned_about_by_script():
    tokenizer = Tokenizer.from_tokens([*SPECIAL_TOKENS, "the", "日", "本"], do_lower_case=True)
    report = quality(tokenizer, {"the": 9_990, "thé": 10, "日": 1_000, "本": 950, "語": 50, "щ": 999})
    assert report["scripts"] == {
        "Latin": {"tokens": 10_000, "unk_share": 0},
        "Han": {"tokens": 2_000, "unk_share": 0.025},
        "Cyrillic": {"tokens": 999, "unk_share": 1},
    }
    assert describe_scripts(report) == "Latin 0.000% of 10,000, Han 2.500% of 2,000, Cyrillic 100.000% of 999"
    (warning,) = unknown_warnings(report)
    assert warning.startswith("2.500% of the tokens of Han script are [UNK], at most 2.0% expected; ask for a larger")
    report = quality(tokenizer, {"the": 9_980, "zzz": 20})
    assert [warning[:38] for warning in unknown_warnings(report)] == ["0.200% of the tokens of Latin script a"]


@pytest.mark.parametrize(
    ("text", "marks", "characters"),
    [
        ("plain", 0, 5),
        ("café", 1, 5),
        ("й", 1, 2),
        ("が", 1, 2),
        ("말", 0, 3),  # letters of Hangul, which stay
        ("हिन्दी", 1, 6),  # virama; the two vowel signs have a width of their own and stay
        ("ที่", 2, 3),
    ],
)
def test_marks_are_those_that_lower_casing_removes(text, marks, characters):
    assert count_marks(pa.array([text, "", text])) == (2 * marks, 2 * characters)
    assert len(normalizer(do_lower_case=True).normalize_str(text)) == characters - marks


def test_text_of_few_accents_is_not_warned_about():
    assert not list(marks_warnings(5, 100))
    assert not list(marks_warnings(0, 0))
    (warning,) = marks_warnings(6, 100)
    assert warning.startswith("6.0% of the characters are accents or vowel signs, which lower-casing removes; --cased")
