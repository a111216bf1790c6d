"""Sentence pairs: invariants, and distributions against a plain reference algorithm."""

import collections
import dataclasses
import itertools
import random
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from small_instances import assert_same

from benchmarks.reference import ReferenceSettings, create_instances
from bert_pipeline.errors import ConfigurationError
from bert_pipeline.instances.columns import join
from bert_pipeline.instances.pairs import (
    InstancesConfig,
    TokenizedDocuments,
    assemble,
    make_instances,
    make_pairs,
)
from bert_pipeline.randomness import binomial_half, combine, key_of_text
from bert_pipeline.vocabulary.files import SPECIAL_TOKENS
from bert_pipeline.vocabulary.tokenizer import Tokenizer

LEVEL = 1e-4
"""Of the statistical tests: chance alone fails one in ten thousand, and seeds are fixed, so it does not fail twice."""

VOCABULARY = Tokenizer.from_tokens([*SPECIAL_TOKENS, *(f"t{index}" for index in range(60_000))], do_lower_case=True)


def make_documents(sentence_lengths, names=None):
    """Documents of unique tokens, so that the origin of a span is known."""
    flat = [length for document in sentence_lengths for length in document]
    names = names or [f"d{index}" for index in range(len(sentence_lengths))]
    return TokenizedDocuments(
        tokens=np.arange(5, 5 + sum(flat), dtype=np.int32),
        sentence_offsets=np.concatenate([[0], np.cumsum(flat)]).astype(np.int64),
        document_offsets=np.concatenate([[0], np.cumsum([len(d) for d in sentence_lengths])]).astype(np.int64),
        keys=np.array([key_of_text(name) for name in names], dtype=np.uint64),
    )


def document_of(documents, token):
    sentence = np.searchsorted(documents.sentence_offsets, token, side="right") - 1
    return np.searchsorted(documents.document_offsets, sentence, side="right") - 1


def reference_pairs(documents, passes, short_seq_prob, rng):
    """The reference's pairs of `make_documents` at length 48: document, tokens of A, tokens of B, is random."""
    starts = documents.sentence_offsets
    sentences = [documents.tokens[start:end].tolist() for start, end in itertools.pairwise(starts)]
    texts = [sentences[start:end] for start, end in itertools.pairwise(documents.document_offsets)]
    settings = ReferenceSettings(max_seq_length=48, short_seq_prob=short_seq_prob, dupe_factor=passes)
    pairs = []
    for instance in create_instances(texts, ["[MASK]"], settings, rng):
        tokens = instance.tokens
        for position, label in zip(instance.masked_positions, instance.masked_labels):
            tokens[position] = label
        b_start = instance.segment_ids.index(1)
        # Tokens are unique and consecutive from 5: their index is their origin.
        a, b = ([token - 5 for token in part] for part in (tokens[1 : b_start - 1], tokens[b_start:-1]))
        pairs.append((int(document_of(documents, a[0])), a, b, instance.is_random_next))
    return pairs


lengths_strategy = st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=12), min_size=2, max_size=6)


@settings(max_examples=60, deadline=None)
@given(lengths_strategy, st.integers(8, 64), st.integers(1, 4), st.integers(0, 2**40))
def test_pair_invariants(sentence_lengths, max_seq_length, passes, seed):
    documents = make_documents(sentence_lengths)
    config = InstancesConfig(max_seq_length=max_seq_length, dupe_factor=passes, seed=seed, masking="static")
    pairs = make_pairs(documents, config)
    assert pairs.num_without_partner == 0
    a, b = pairs.a_length, pairs.b_length
    assert (a >= 1).all()
    assert (b >= 1).all()
    assert (a + b <= max_seq_length - 3).all()
    a_document, b_document = document_of(documents, pairs.a_start), document_of(documents, pairs.b_start)
    assert np.array_equal(a_document, document_of(documents, pairs.a_start + a - 1))
    assert np.array_equal(b_document, document_of(documents, pairs.b_start + b - 1))
    assert np.array_equal(a_document != b_document, pairs.is_random_next)
    follows = ~pairs.is_random_next
    assert (pairs.b_start[follows] >= (pairs.a_start + a)[follows]).all()
    # Untruncated text that follows, follows at once.
    whole = follows & (a + b < max_seq_length - 3)
    assert np.array_equal(pairs.b_start[whole], (pairs.a_start + a)[whole])
    assert len(np.unique(pairs.keys)) == len(pairs)


@settings(max_examples=40, deadline=None)
@given(lengths_strategy, st.integers(0, 2**40))
def test_every_sentence_is_used_in_every_pass(sentence_lengths, seed):
    """With room for all there is no truncation, so each pass covers its documents from end to end."""
    documents = make_documents(sentence_lengths)
    pairs = make_pairs(documents, InstancesConfig(max_seq_length=2_000, dupe_factor=1, seed=seed, short_seq_prob=0.0))
    covered = np.zeros(len(documents.tokens), dtype=int)
    for index in range(len(pairs)):
        covered[pairs.a_start[index] : pairs.a_start[index] + pairs.a_length[index]] += 1
        if not pairs.is_random_next[index]:
            covered[pairs.b_start[index] : pairs.b_start[index] + pairs.b_length[index]] += 1
    assert (covered == 1).all()


@settings(max_examples=60, deadline=None)
@given(lengths_strategy, st.integers(8, 64), st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 2**40))
def test_rows_of_contiguous_text_cover_each_document_once_a_pass(sentence_lengths, max_seq_length, short, seed):
    documents = make_documents(sentence_lengths)
    config = InstancesConfig(
        pairs="none", max_seq_length=max_seq_length, dupe_factor=3, short_seq_prob=short, seed=seed
    )
    rows = make_pairs(documents, config)
    start, stop = rows.a_start, rows.a_start + rows.a_length
    assert (rows.a_length >= 1).all()
    assert (rows.a_length <= max_seq_length - 2).all()
    assert not rows.b_length.any()
    assert not rows.is_random_next.any()
    assert len(np.unique(rows.keys)) == len(rows)
    assert np.array_equal(document_of(documents, start), document_of(documents, stop - 1))
    covered = np.zeros(len(documents.tokens) + 1, dtype=int)
    np.add.at(covered, start, 1)
    np.add.at(covered, stop, -1)
    assert (np.cumsum(covered)[:-1] == 3).all()
    # A row ends with a sentence, unless a longer sentence fills it.
    assert (np.isin(stop, documents.sentence_offsets) | (rows.a_length == max_seq_length - 2)).all()


def test_rows_of_contiguous_text_depend_on_seed_document_and_pass_only():
    lengths = [[7, 9, 4, 12, 6, 8] * 3, [5, 11, 6] * 5, [9, 90, 3, 4] * 4]
    config = InstancesConfig(pairs="none", max_seq_length=48, dupe_factor=3, short_seq_prob=0.0)

    def rows_of(order, config=config):
        documents = make_documents([lengths[i] for i in order], [f"d{i}" for i in order])
        rows = make_pairs(documents, config)
        document = document_of(documents, rows.a_start)
        first = rows.a_start - documents.sentence_offsets[documents.document_offsets[document]]
        return set(zip([order[i] for i in document], first.tolist(), rows.a_length.tolist(), rows.keys.tolist()))

    rows = rows_of([0, 1, 2])
    assert rows == rows_of([2, 0, 1])
    assert rows > rows_of([2, 0])
    assert rows < rows_of([0, 1, 2], dataclasses.replace(config, dupe_factor=5))
    assert rows.isdisjoint(rows_of([0, 1, 2], dataclasses.replace(config, seed=1)))
    # The passes over a document end their rows elsewhere.
    assert len({first for document, first, _, _ in rows if document == 1}) > len(rows_of([1])) / 3


def test_padding_is_not_counted_as_unknown():
    vocabulary = Tokenizer.from_tokens(["[UNK]", "[PAD]", *SPECIAL_TOKENS[2:], "t"], do_lower_case=True)
    documents = dataclasses.replace(make_documents([[1, 2], [3, 1]]), tokens=np.array([0, 5, 0, 5, 5, 0, 5]))
    counts = collections.Counter()
    config = InstancesConfig(max_seq_length=16, pairs="none", dupe_factor=1, short_seq_prob=0)
    make_instances(documents, make_pairs(documents, config), vocabulary, config, counts)
    assert (counts["instances"], counts["tokens"], counts["unk_tokens"]) == (2, 11, 3)


@settings(max_examples=40, deadline=None)
@given(lengths_strategy, st.integers(8, 64), st.booleans(), st.sampled_from(["next_sentence", "none"]))
def test_instances_are_cls_a_sep_b_sep(sentence_lengths, max_seq_length, static, option):
    documents = make_documents(sentence_lengths)
    masking = "static" if static else "dynamic"
    config = InstancesConfig(max_seq_length=max_seq_length, dupe_factor=2, masking=masking, pairs=option)
    pairs = make_pairs(documents, config)
    counts = collections.Counter()
    columns = make_instances(documents, pairs, VOCABULARY, config, counts)
    plain, lengths = assemble(documents, pairs, VOCABULARY, max_seq_length)
    assert columns.is_masked == static
    assert np.array_equal(columns.lengths, lengths)
    for index in range(len(pairs)):
        ids = columns.input_ids[columns.offsets[index] : columns.offsets[index + 1]].copy()
        if static:
            chosen = slice(columns.masked_offsets[index], columns.masked_offsets[index + 1])
            ids[columns.masked_lm_positions[chosen]] = columns.masked_lm_ids[chosen]
        a = documents.tokens[pairs.a_start[index] : pairs.a_start[index] + pairs.a_length[index]]
        b = documents.tokens[pairs.b_start[index] : pairs.b_start[index] + pairs.b_length[index]]
        expected = [VOCABULARY.cls_id, *a, VOCABULARY.sep_id]
        expected += [*b, VOCABULARY.sep_id] if option == "next_sentence" else []
        assert ids.tolist() == expected
        assert plain[index].tolist() == expected + [0] * (max_seq_length - len(expected))
        assert columns.segment_b_start[index] == len(a) + 2
    assert counts["instances"] == len(pairs) == columns.num_instances
    assert counts["tokens"] == len(columns.input_ids)
    assert counts["random_next"] == pairs.is_random_next.sum()
    assert (
        counts["masked_tokens"]
        == counts["masked_as_mask"] + counts["masked_as_same"] + counts["masked_as_random"]
        == (len(columns.masked_lm_ids) if static else 0)
    )


@pytest.mark.parametrize("static", [False, True])
def test_long_instances_are_made_some_at_a_time(static):
    documents = make_documents([[400] * 100] * 3)
    masking = "static" if static else "dynamic"
    config = InstancesConfig(max_seq_length=8192, dupe_factor=20, masking=masking)
    pairs = make_pairs(documents, config)
    counts, of_singles = collections.Counter(), collections.Counter()
    tracemalloc.start()
    columns = make_instances(documents, pairs, VOCABULARY, config, counts)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50e6
    singles = [
        make_instances(documents, pairs.take([row]), VOCABULARY, config, of_singles) for row in range(len(pairs))
    ]
    assert_same(columns, join(singles))
    assert counts == of_singles


def sorted_pairs(pairs):
    return sorted(
        zip(*(getattr(pairs, name).tolist() for name in ("keys", "a_start", "a_length", "b_start", "b_length")))
    )


def test_pairs_depend_on_seed_and_pass():
    documents = make_documents([[7, 9, 4, 12, 6, 8, 10, 5] * 4] * 3)
    config = InstancesConfig(max_seq_length=32, dupe_factor=2)
    once = sorted_pairs(make_pairs(documents, config))
    assert once == sorted_pairs(make_pairs(documents, config))
    assert once != sorted_pairs(make_pairs(documents, dataclasses.replace(config, seed=1)))
    more = sorted_pairs(make_pairs(documents, dataclasses.replace(config, dupe_factor=5)))
    assert set(once) < set(more)


def test_chunks_of_a_document_depend_on_its_id_only():
    lengths = [[7, 9, 4, 12, 6, 8] * 3, [5, 11, 6] * 5, [9, 9, 3, 4] * 4]
    config = InstancesConfig(max_seq_length=48, dupe_factor=3, short_seq_prob=0.5)

    def first_sentences(order):
        documents = make_documents([lengths[i] for i in order], [f"d{i}" for i in order])
        pairs = make_pairs(documents, config)
        document = document_of(documents, pairs.a_start)
        start = documents.sentence_offsets[documents.document_offsets[document]]
        names = [order[index] for index in document]
        # The first token of A moves with the truncation, which depends on B's length: sentences do not.
        sentence = np.searchsorted(documents.sentence_offsets, pairs.a_start, side="right")
        sentence = sentence - documents.document_offsets[document]
        assert (pairs.a_start >= start).all()
        return sorted(zip(names, pairs.keys.tolist(), sentence.tolist(), pairs.is_random_next.tolist()))

    all_three = first_sentences([0, 1, 2])
    assert all_three == first_sentences([2, 0, 1])
    assert [row[1] for row in first_sentences([0, 1])] == [row[1] for row in all_three if row[0] != 2]


def test_one_document_has_no_random_pairs():
    documents = make_documents([[30, 30, 3, 4, 5, 6]])
    pairs = make_pairs(documents, InstancesConfig(max_seq_length=30, dupe_factor=20, short_seq_prob=0.0))
    assert not pairs.is_random_next.any()
    assert len(pairs) == 20
    assert pairs.num_without_partner == 40


@pytest.mark.parametrize("short_seq_prob", [0.1, 1.0])
def test_pairs_are_distributed_like_reference_algorithm(short_seq_prob):
    rng = random.Random(11)
    sentence_lengths = [[rng.randint(1, 30) for _ in range(rng.randint(1, 25))] for _ in range(8)]
    sentence_lengths.append([70, 3, 90, 2])
    passes = 800
    documents = make_documents(sentence_lengths)
    config = InstancesConfig(max_seq_length=48, dupe_factor=passes, short_seq_prob=short_seq_prob)
    pairs = make_pairs(documents, config)
    reference = reference_pairs(documents, passes, short_seq_prob, rng)
    first = documents.sentence_offsets

    def from_sentence_start(tokens):
        return tokens - first[np.searchsorted(first, tokens, side="right") - 1]

    ours = {
        "tokens cut from the front of A": from_sentence_start(pairs.a_start),
        "tokens cut from the front of B": from_sentence_start(pairs.b_start),
        "document": document_of(documents, pairs.a_start),
        "first token of A": pairs.a_start,
        "tokens of A": pairs.a_length,
        "first token of B": pairs.b_start,
        "tokens of B": pairs.b_length,
        "tokens of the pair": pairs.a_length + pairs.b_length,
    }
    theirs = {
        "tokens cut from the front of A": from_sentence_start(np.array([a[0] for _, a, _, _ in reference])),
        "tokens cut from the front of B": from_sentence_start(np.array([b[0] for _, _, b, _ in reference])),
        "document": [number for number, _, _, _ in reference],
        "first token of A": [a[0] for _, a, _, _ in reference],
        "tokens of A": [len(a) for _, a, _, _ in reference],
        "first token of B": [b[0] for _, _, b, _ in reference],
        "tokens of B": [len(b) for _, _, b, _ in reference],
        "tokens of the pair": [len(a) + len(b) for _, a, b, _ in reference],
    }
    for name, values in ours.items():
        for label in (False, True):  # true and random continuations on their own
            left = np.asarray(values)[pairs.is_random_next == label]
            right = np.array([value for value, pair in zip(theirs[name], reference) if pair[3] == label])
            assert stats.ks_2samp(left, right).pvalue > LEVEL, (name, label)
    counts = [[(pairs.is_random_next == label).sum() for label in (False, True)]]
    counts.append([sum(pair[3] == label for pair in reference) for label in (False, True)])
    assert stats.chi2_contingency(counts).pvalue > LEVEL
    assert pairs.is_random_next.mean() > 0.5


def test_short_targets_are_uniform_from_two_tokens_up():
    documents = make_documents([[1] * 60] * 3)  # sentences of one token reach a target exactly
    pairs = make_pairs(documents, InstancesConfig(max_seq_length=30, dupe_factor=3000, short_seq_prob=1.0))
    first = pairs.a_start % 60 == 0
    lengths = (pairs.a_length + pairs.b_length)[first & ~pairs.is_random_next]
    counts = np.bincount(lengths, minlength=28)
    assert counts[:2].sum() == 0
    assert len(counts) == 28
    assert stats.chisquare(counts[2:]).pvalue > LEVEL


def test_binomial_half_is_fair_for_few_and_many_trials():
    keys = combine(1, np.arange(2000))
    for throws in (1, 5, 63, 64, 200):
        heads = binomial_half(keys, np.full(2000, throws))
        assert heads.min() >= 0
        assert heads.max() <= throws
        expected = stats.binom(throws, 0.5)
        assert abs(heads.mean() - expected.mean()) < 5 * expected.std() / 2000**0.5
        assert abs(heads.std() / expected.std() - 1) < 0.1
    assert not binomial_half(keys, np.zeros(2000, dtype=int)).any()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_seq_length": 4}, "max_seq_length: found 4"),
        ({"short_seq_prob": 1.5}, "short_seq_prob: found 1.5"),
        ({"dupe_factor": 0}, "dupe_factor: found 0"),
        ({"format": "arrow"}, "format: found 'arrow'"),
        ({"masking": "always"}, "masking: found 'always'"),
        ({"format": "tfrecord", "masking": "dynamic"}, "needs masking='static'"),
        ({"tfrecord_compression": "gzip"}, "writes no TFRecord"),
        ({"whole_word_masking": True}, "whole_word_masking=True: it would be ignored"),
        ({"masking": "dynamic", "max_predictions_per_seq": 80}, "max_predictions_per_seq=80: it would be ignored"),
        ({"masking": "static", "mask_share": 0.9}, "add up to 1.1"),
    ],
)
def test_conflicting_settings_raise(values, message):
    with pytest.raises(ConfigurationError, match=message):
        InstancesConfig(**values)
