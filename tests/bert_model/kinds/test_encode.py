"""Examples are encoded as in google's code and in the paper, and nothing is lost."""

import dataclasses
import tracemalloc

import numpy as np
import pytest
import tiny_tasks
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_model.finetuning.config import FinetuningConfig
from bert_model.kinds import kind_of
from bert_model.kinds.encoded import EncodedSet, token_windows
from bert_model.kinds.span import maximum_context
from bert_model.kinds.tagging import by_word, document_windows
from bert_model.kinds.text import encode_texts, truncated_pair
from bert_model.model.config import IGNORED_LABEL
from bert_pipeline.errors import InputError
from bert_pipeline.tasks.catalogue import get_task
from bert_pipeline.tasks.example import Answer, ChoiceExample, SpanExample, TaggedExample, TextExample
from bert_pipeline.tasks.squad import NO_OFFSET

TOKENIZER = tiny_tasks.tokenizer()
CONFIG = FinetuningConfig(max_seq_length=24, doc_stride=5, max_query_length=6)


def rows_of(encoded):
    pieces = np.split(encoded.input_ids, encoded.offsets[1:-1])
    return [[TOKENIZER.tokens[index] for index in piece] for piece in pieces]


def encode(name, examples, config=CONFIG):
    return kind_of(get_task(name)).encode(examples, TOKENIZER, config)


def test_single_text_is_one_segment_between_cls_and_sep():
    encoded = encode("sst2", [TextExample("0", "the film was fine", None, "1")])
    assert rows_of(encoded) == [["[CLS]", "the", "film", "was", "fine", "[SEP]"]]
    assert encoded.padded(np.array([0]))["token_type_ids"].sum() == 0
    assert encoded.row_columns["labels"].tolist() == [1]


def test_second_text_is_segment_one_with_its_sep():
    encoded = encode("rte", [TextExample("0", "the film", "a song", "entailment")])
    assert rows_of(encoded) == [["[CLS]", "the", "film", "[SEP]", "a", "song", "[SEP]"]]
    batch = encoded.padded(np.array([0]))
    assert batch["token_type_ids"].tolist() == [[0, 0, 0, 0, 1, 1, 1]]


def _google_truncation(length_a, length_b, budget):
    while length_a + length_b > budget:
        if length_a > length_b:
            length_a -= 1
        else:
            length_b -= 1
    return length_a, length_b


@settings(deadline=None)
@given(st.integers(0, 40), st.integers(0, 40), st.integers(2, 40))
def test_pair_is_truncated_as_by_googles_loop(length_a, length_b, budget):
    assert truncated_pair(length_a, length_b, budget) == _google_truncation(length_a, length_b, budget)


def test_no_row_is_longer_than_max_seq_length():
    long = " ".join(["film"] * 60)
    encoded = encode("rte", [TextExample("0", long, long, "entailment"), TextExample("1", long, "a", "entailment")])
    assert encoded.lengths().tolist() == [24, 24]


def test_long_text_becomes_windows_with_its_label():
    config = FinetuningConfig(max_seq_length=8, stride=4)
    long = TextExample("1", "the film and a song was fine . ?", None, "1")
    encoded = encode("sst2", [TextExample("0", "a song", None, "0"), long], config)
    windows = ["the film and a song was", "song was fine . ?"]
    assert rows_of(encoded) == [["[CLS]", *text.split(), "[SEP]"] for text in ("a song", *windows)]
    assert encoded.row_columns["labels"].tolist() == [0, 1, 1]
    assert encoded.example_index.tolist() == [0, 1, 1]
    assert len(encoded.truncated) == 0


def test_pair_has_windows_of_its_longer_text_and_the_other_one_in_each():
    config = FinetuningConfig(max_seq_length=10, stride=3)
    long, song = "the film was fine and anna lives .", "a song"
    encoded = encode(
        "rte", [TextExample("0", long, song, "entailment"), TextExample("1", song, long, "entailment")], config
    )
    assert [" ".join(row) for row in rows_of(encoded)] == [
        "[CLS] the film was fine and [SEP] a song [SEP]",
        "[CLS] fine and anna lives . [SEP] a song [SEP]",
        "[CLS] a song [SEP] the film was fine and [SEP]",
        "[CLS] a song [SEP] fine and anna lives . [SEP]",
    ]
    assert (encoded.segment_b_start.tolist(), encoded.truncated.tolist()) == ([7, 7, 4, 4], [])

    # Of two long texts the shorter keeps half of a row, which is told.
    encoded = encode("rte", [TextExample("0", "film " * 6, "song " * 9, "entailment")], config)
    assert [row.count("film") for row in rows_of(encoded)] == [4] * 3
    assert [row.count("song") for row in rows_of(encoded)] == [3] * 3
    assert encoded.truncated.tolist() == [0]


def test_regression_labels_are_floats_and_unlabeled_rows_have_none():
    encoded = encode("stsb", [TextExample("0", "a film", "a song", 2.5)])
    assert encoded.row_columns["labels"].dtype == np.float32
    assert "labels" not in encode("stsb", [TextExample("0", "a film", "a song")]).row_columns


def test_label_outside_the_task_is_named_with_the_allowed_ones():
    with pytest.raises(InputError, match=r"example 7 has the label 'maybe', expected entailment, not_entailment"):
        encode("rte", [TextExample("7", "a", "a", "maybe")])


def test_empty_split_is_refused():
    with pytest.raises(InputError, match="without examples"):
        encode("rte", [])


def test_choice_gives_one_row_for_each_ending_in_order():
    example = ChoiceExample("0", "anna lives .", ("a film .", "a song .", "a meal .", "the story ."), 2)
    encoded = encode("swag", [example, dataclasses.replace(example, label=0)])
    assert [row[-3] for row in rows_of(encoded)] == ["film", "song", "meal", "story"] * 2
    batch = encoded.padded(np.array([1]))
    assert batch["input_ids"].shape == (1, 4, 9)
    assert batch["labels"].tolist() == [0]


def test_choice_with_another_number_of_endings_is_refused():
    good = ChoiceExample("0", "a", ("a", "the"), 0)
    with pytest.raises(InputError, match="example 1 has 3 endings, expected 2"):
        encode("swag", [good, ChoiceExample("1", "a", ("a", "the", "was"), 0)])


CONTEXT = "Boris was in Oslo . Anna lives in Rome . Clara lives in Cairo and David lives in Lima ."


def spans_of(example, config=CONFIG):
    encoded = encode("squad2", [example], config)
    starts, ends = encoded.row_columns["start_positions"], encoded.row_columns["end_positions"]
    texts = []
    for row, (start, end) in enumerate(zip(starts, ends)):
        if start == 0:
            texts.append(None)
            continue
        begin = int(encoded.offsets[row])
        first = encoded.token_columns["character_start"][begin + start]
        last = encoded.token_columns["character_end"][begin + end]
        texts.append(example.context[first:last])
    return encoded, texts


def test_answer_positions_give_back_the_original_characters():
    example = SpanExample("0", "t", CONTEXT, "where does anna live ?", (Answer("Rome", CONTEXT.index("Rome")),))
    encoded, texts = spans_of(example, FinetuningConfig(max_seq_length=16, doc_stride=5, max_query_length=6))
    assert encoded.num_rows > 1
    assert set(texts) == {"Rome", None}  # windows without the answer point at [CLS]
    assert encoded.lengths().max() <= 16


def test_answer_that_a_window_cuts_in_two_is_no_answer_there():
    answer = "Oslo . Anna lives in Rome . Clara lives in Cairo"
    example = SpanExample("0", "t", CONTEXT, "a ?", (Answer(answer, CONTEXT.index(answer)),))
    _, texts = spans_of(example, FinetuningConfig(max_seq_length=14, doc_stride=4, max_query_length=6))
    assert set(texts) == {None}


def test_answer_whose_place_is_unknown_is_no_training_signal():
    example = SpanExample("0", "t", "rome was rome .", "where ?", (Answer("rome .", NO_OFFSET),))
    encoded = encode("squad1", [example])
    assert encoded.row_columns["start_positions"].tolist() == encoded.row_columns["end_positions"].tolist() == [0]


def test_question_without_an_answer_points_at_cls():
    _, texts = spans_of(SpanExample("0", "t", CONTEXT, "who ?", (), True))
    assert set(texts) == {None}


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 400), st.integers(1, 60), st.integers(1, 80))
def test_maximum_context_equals_googles_formula_over_all_windows(num_tokens, room, stride):
    windows = token_windows(num_tokens, room, stride)
    assert all(0 < end - first <= room for first, end in windows)
    found = maximum_context(windows)
    for token in range(num_tokens):
        scores = [
            min(token - first, end - 1 - token) + 0.01 * (end - first) if first <= token < end else -1.0
            for first, end in windows
        ]
        (chosen,) = (
            number
            for number, ((first, end), is_max) in enumerate(zip(windows, found))
            if first <= token < end and is_max[token - first]
        )
        assert chosen == scores.index(max(scores))  # the first of equal windows


def test_memory_of_maximum_context_grows_with_the_context_alone():
    windows = token_windows(60_000, 300, 128)
    tracemalloc.start()
    maximum_context(windows)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5e6  # a table of windows and tokens has 225 MB


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=120), st.integers(20, 50))
def test_document_windows_score_every_word_exactly_once_and_fit(pieces, room):
    counts = np.asarray(pieces)
    scored = np.zeros(len(pieces), dtype=int)
    for first, end, (scored_first, scored_end) in document_windows(counts, room):
        assert first <= scored_first < scored_end <= end
        assert counts[first:end].sum() <= room
        scored[scored_first:scored_end] += 1
    assert (scored == 1).all()


def test_long_document_gives_scored_words_context_on_both_sides():
    counts = np.ones(200, dtype=int)
    windows = list(document_windows(counts, 40))
    first, end, (scored_first, scored_end) = windows[len(windows) // 2]
    assert scored_first - first >= 8
    assert end - scored_end >= 8


def _sentence(number, words, document=0):
    return TaggedExample(str(number), document, tuple(words), tuple("O" for _ in words))


@pytest.mark.parametrize("document_context", [False, True])
def test_every_word_is_scored_once_even_if_longer_than_a_row(document_context):
    endless = "film" + "s" * 60
    sentences = [_sentence(i, ["the", "film", endless, "was", "\u200b"] * 4, i // 2) for i in range(5)]
    sentences.insert(2, _sentence("empty", [], 1))
    encoded = encode("ner", sentences, dataclasses.replace(CONFIG, document_context=document_context))
    scored = by_word(sentences, encoded, encoded.input_ids)
    pieces = [TOKENIZER.encode_words(sentence.words) for sentence in sentences]
    assert [own.tolist() for own in scored] == [[word[0] for word in own] for own in pieces]
    assert encoded.lengths().max() <= CONFIG.max_seq_length


def test_first_piece_carries_the_label_and_the_others_are_ignored():
    example = TaggedExample("0", 0, ("anna", "lives", "films"), ("B-PER", "O", "B-MISC"))
    encoded = encode("ner", [example])
    assert rows_of(encoded)[0] == ["[CLS]", "anna", "lives", "film", "##s", "[SEP]"]
    labels = get_task("ner").labels
    expected = [labels.index("B-PER"), labels.index("O"), labels.index("B-MISC")]
    ignored = IGNORED_LABEL
    assert encoded.token_columns["labels"].tolist() == [ignored, *expected, ignored, ignored]


SENTENCES = [
    _sentence(0, ["anna"], 0),
    _sentence(1, ["boris"], 0),
    _sentence(2, ["clara"], 1),
    _sentence(3, ["david"], None),
    _sentence(4, ["rome"], None),
]


def test_a_row_is_one_sentence():
    rows = rows_of(encode("ner", SENTENCES))
    assert rows == [["[CLS]", word, "[SEP]"] for word in ("anna", "boris", "clara", "david", "rome")]


def test_with_context_sentences_of_one_document_share_a_row_and_others_do_not():
    encoded = encode("ner", SENTENCES, dataclasses.replace(CONFIG, document_context=True))
    rows = [["anna", "boris"], ["clara"], ["david"], ["rome"]]
    assert rows_of(encoded) == [["[CLS]", *words, "[SEP]"] for words in rows]


def test_a_batch_of_tags_counts_sentences_within_bounds():
    config = dataclasses.replace(CONFIG, document_context=True)
    documents = encode("ner", [_sentence(i, ["anna"] * 5, i // 40) for i in range(400)], config)
    assert 90 < documents.num_rows < 210  # rows of two to four sentences
    assert documents.units_of_batch(32) == round(32 * documents.num_rows / 400)
    assert documents.units_of_batch(1) == 1
    endless = encode("ner", [_sentence(i, ["anna"] * 500) for i in range(3)])
    assert endless.num_rows > 60
    assert endless.units_of_batch(32) == 32  # not the windows of 32 sentences at once
    assert encode("squad1", tiny_tasks.task_data("squad1").train).units_of_batch(32) == 32


def test_tag_outside_the_task_is_named():
    with pytest.raises(InputError, match="tag 'B-FOO', expected O"):
        encode("ner", [TaggedExample("0", 0, ("anna",), ("B-FOO",))])


def test_padding_follows_the_tokens_and_is_masked():
    encoded = encode_texts([("the film", None), ("the film was fine .", None)], TOKENIZER, 24)
    batch = encoded.padded(np.array([1, 0]))
    assert batch["attention_mask"].tolist() == [[1] * 7, [1] * 4 + [0] * 3]
    assert batch["input_ids"][1, 4:].tolist() == [TOKENIZER.pad_id] * 3


@pytest.mark.parametrize("name", ["mnli", "stsb", "squad2", "swag", "ner"])
def test_saved_set_comes_back_the_same(name, tmp_path):
    encoded = encode(name, tiny_tasks.task_data(name).train, FinetuningConfig(max_seq_length=48, doc_stride=16))
    encoded.save(tmp_path / "set")
    loaded = EncodedSet.load(tmp_path / "set")
    units = np.arange(min(5, encoded.num_units))
    before, after = encoded.padded(units), loaded.padded(units)
    assert before.keys() == after.keys()
    for key in before:
        np.testing.assert_array_equal(before[key], after[key])
    assert (loaded.per_token, loaded.num_examples) == (encoded.per_token, encoded.num_examples)
