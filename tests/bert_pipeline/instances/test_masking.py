"""Masked-LM choices: budget, shares, and independence of the batch."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from bert_pipeline.configuration import from_mapping, to_mapping
from bert_pipeline.errors import ConfigurationError
from bert_pipeline.instances.masking import PAPER_MIXES, MaskingConfig, mask_batch, num_to_predict, sample_keys
from bert_pipeline.instances.pairs import InstancesConfig
from bert_pipeline.vocabulary.files import SPECIAL_TOKENS
from bert_pipeline.vocabulary.tokenizer import Tokenizer

LEVEL = 1e-4
"""Of the statistical tests: chance alone fails one in ten thousand, and seeds are fixed, so it does not fail twice."""

# 5 special tokens, 45 words, 50 continuations
VOCABULARY = Tokenizer.from_tokens(
    [*SPECIAL_TOKENS, *(f"w{i}" for i in range(45)), *(f"##c{i}" for i in range(50))], do_lower_case=True
)
WIDTH = 64


def make_batch(lengths, seed=0, continuation_share=0.4):
    """Padded ids (B, S) of [CLS] A [SEP] B [SEP]."""
    rng = np.random.default_rng(seed)
    lengths = np.asarray(lengths)
    words = rng.integers(5, 50, (len(lengths), WIDTH))
    pieces = rng.integers(50, 100, (len(lengths), WIDTH))
    ids = np.where(rng.random((len(lengths), WIDTH)) < continuation_share, pieces, words).astype(np.int32)
    for row, length in enumerate(lengths):
        ids[row, 0] = VOCABULARY.cls_id
        ids[row, rng.integers(2, length - 2)] = VOCABULARY.sep_id
        ids[row, length - 1] = VOCABULARY.sep_id
        ids[row, length:] = 0
    return ids, lengths


def mask(ids, lengths, keys, **values):
    return mask_batch(ids, lengths, keys, VOCABULARY, MaskingConfig(**values))


def seen_by_the_model(batch):
    """The masked ids at the predicted positions, (M,)."""
    rows = np.repeat(np.arange(len(batch.input_ids)), np.diff(batch.masked_offsets))
    return batch.input_ids[rows, batch.masked_lm_positions]


def words_of(ids):
    """Plain reference: lists of positions, a "##" piece joined to the word before it but not across [SEP]."""
    words = []
    for position, index in enumerate(ids):
        if index in (VOCABULARY.cls_id, VOCABULARY.sep_id):
            continue
        opens = ids[position - 1] in (VOCABULARY.cls_id, VOCABULARY.sep_id)
        if VOCABULARY.is_continuation[index] and not opens:
            words[-1].append(position)
        else:
            words.append([position])
    return words


def reference_choice(ids, budget, rng):
    """google's loop over shuffled words: one that would overflow the budget is skipped."""
    words = words_of(ids)
    rng.shuffle(words)
    chosen = []
    for word in words:
        if len(chosen) >= budget:
            break
        if len(chosen) + len(word) <= budget:
            chosen += word
    return sorted(chosen)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(5, WIDTH), min_size=1, max_size=8),
    st.integers(0, 2**63),
    st.booleans(),
    st.integers(1, 20),
    st.sampled_from([0.05, 0.15, 0.5]),
)
def test_mask_invariants(lengths, seed, whole_words, most, share):
    ids, lengths = make_batch(lengths, seed % 1000)
    keys = sample_keys(seed, 3, np.arange(len(lengths)))
    values = {"whole_word_masking": whole_words, "max_predictions_per_seq": most, "masked_lm_prob": share}
    batch = mask(ids, lengths, keys, **values)
    assert batch.input_ids.dtype == batch.masked_lm_positions.dtype == batch.masked_lm_ids.dtype == np.int32
    assert batch.masked_lm_positions.shape == batch.masked_lm_ids.shape == (batch.masked_offsets[-1],)
    for row, length in enumerate(lengths.tolist()):
        own = slice(*batch.masked_offsets[row : row + 2])
        positions = batch.masked_lm_positions[own].tolist()
        count = len(positions)
        budget = min(most, max(1, round(length * share)))
        num_candidates = sum(len(word) for word in words_of(ids[row, :length]))
        assert positions == sorted(set(positions))
        assert not {VOCABULARY.cls_id, VOCABULARY.sep_id} & set(ids[row, positions].tolist())
        assert all(position < length for position in positions)
        assert batch.masked_lm_ids[own].tolist() == ids[row, positions].tolist()
        elsewhere = np.setdiff1d(np.arange(WIDTH), positions)
        assert np.array_equal(batch.input_ids[row, elsewhere], ids[row, elsewhere])
        if whole_words:
            assert count <= budget
            for word in words_of(ids[row, :length]):
                assert len(set(word) & set(positions)) in (0, len(word))
        else:
            assert count == min(budget, num_candidates)


@pytest.mark.parametrize("whole_words", [False, True])
def test_mask_does_not_depend_on_batch(whole_words):
    ids, lengths = make_batch([20, 64, 33, 50, 12])
    keys = sample_keys(7, 0, np.array([4, 10, 11, 900, 5]))
    values = {"whole_word_masking": whole_words, "max_predictions_per_seq": 20}
    whole = mask(ids, lengths, keys, **values)
    for row in range(5):
        narrow = ids[row : row + 1, : lengths[row]]
        alone = mask(narrow, lengths[row : row + 1], keys[row : row + 1], **values)
        assert np.array_equal(alone.input_ids[0], whole.input_ids[row, : lengths[row]])
        own = slice(*whole.masked_offsets[row : row + 2])
        assert np.array_equal(alone.masked_lm_positions, whole.masked_lm_positions[own])


def test_keys_differ_between_seeds_epochs_and_samples():
    keys = {
        int(sample_keys(seed, epoch, np.array([i]))[0]) for seed in range(9) for epoch in range(9) for i in range(9)
    }
    assert len(keys) == 9**3
    assert sample_keys(1, 2, np.arange(5))[3] == sample_keys(1, 2, np.array([3]))[0]


def test_num_to_predict_rounds_halves_to_even():
    lengths = np.arange(1, 513)
    for share in (0.15, 0.1, 0.25):
        expected = [min(76, max(1, round(length * share))) for length in lengths.tolist()]
        config = MaskingConfig(masked_lm_prob=share, max_predictions_per_seq=76)
        assert num_to_predict(lengths, config).tolist() == expected


@pytest.mark.parametrize("name", [*PAPER_MIXES, "33/33/34"])
def test_replacements_have_requested_shares(name):
    ids, lengths = make_batch([WIDTH] * 4000)
    mix = tuple(float(part) / 100 for part in name.split("/"))
    config = from_mapping(MaskingConfig, {"mix": name})
    batch = mask_batch(ids, lengths, sample_keys(1, 0, np.arange(4000)), VOCABULARY, config)
    seen = seen_by_the_model(batch)
    is_mask, is_same = seen == VOCABULARY.mask_id, seen == batch.masked_lm_ids
    # A random replacement is [MASK] or the token itself once in a hundred times each.
    other = mix[2] / 100
    observed = [is_mask.sum(), is_same.sum(), (~is_mask & ~is_same).sum()]
    expected = np.array([mix[0] + other, mix[1] + other, mix[2] - 2 * other]) * len(seen)
    for found, wanted in zip(observed, expected):
        assert found == wanted or stats.binomtest(int(found), len(seen), wanted / len(seen)).pvalue > LEVEL


def test_random_replacements_are_uniform_over_the_vocabulary():
    ids, lengths = make_batch([WIDTH] * 4000)
    batch = mask(ids, lengths, sample_keys(2, 0, np.arange(4000)), mask_share=0.0, same_share=0.0, random_share=1.0)
    counts = np.bincount(seen_by_the_model(batch), minlength=100)
    assert stats.chisquare(counts).pvalue > LEVEL


def test_every_candidate_is_chosen_equally_often():
    ids, lengths = make_batch([50])
    many = np.repeat(ids, 20_000, axis=0)
    batch = mask(many, np.repeat(lengths, 20_000), sample_keys(3, 0, np.arange(20_000)))
    counts = np.bincount(batch.masked_lm_positions, minlength=WIDTH)
    candidates = [position for word in words_of(ids[0, :50]) for position in word]
    assert counts.sum() == counts[candidates].sum() == 20_000 * 8
    # Eight of an instance's positions are distinct, so their spread is smaller than that of independent draws.
    shrink = 1 - 8 / len(candidates)
    chi_square = ((counts[candidates] - counts[candidates].mean()) ** 2 / counts[candidates].mean()).sum() / shrink
    assert stats.chi2.sf(chi_square, len(candidates) - 1) > LEVEL


def test_whole_words_are_chosen_as_the_reference_chooses_them():
    ids, lengths = make_batch([60], continuation_share=0.6)
    many = 4000
    batch = mask(
        np.repeat(ids, many, axis=0),
        np.repeat(lengths, many),
        sample_keys(4, 0, np.arange(many)),
        whole_word_masking=True,
    )
    ours = np.bincount(batch.masked_lm_positions, minlength=WIDTH)
    rng = random.Random(4)
    choices = [reference_choice(ids[0, :60].tolist(), 9, rng) for _ in range(many)]
    theirs = np.bincount(np.concatenate(choices), minlength=WIDTH)
    starts = [word[0] for word in words_of(ids[0, :60])]
    assert stats.chi2_contingency([ours[starts], theirs[starts]]).pvalue > LEVEL
    sizes = np.bincount(np.diff(batch.masked_offsets), minlength=10)
    reference_sizes = np.bincount([len(choice) for choice in choices], minlength=10)
    seen = (sizes + reference_sizes) > 0
    assert seen.sum() == 1 or stats.chi2_contingency([sizes[seen], reference_sizes[seen]]).pvalue > LEVEL


def test_piece_at_start_of_segment_b_is_a_word():
    word, piece, sep = 5, 60, VOCABULARY.sep_id
    ids = np.array([[VOCABULARY.cls_id, word, word, word, sep, piece, word, sep]], dtype=np.int32)
    many = np.repeat(ids, 500, axis=0)
    keys = sample_keys(1, 0, np.arange(500))
    batch = mask(many, np.full(500, 8), keys, whole_word_masking=True, max_predictions_per_seq=1)
    assert set(batch.masked_lm_positions.tolist()) == {1, 2, 3, 5, 6}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"masked_lm_prob": 0.0}, r"masked_lm_prob: found 0\.0"),
        ({"masked_lm_prob": 1.0}, r"masked_lm_prob: found 1\.0"),
        ({"max_predictions_per_seq": 0}, "max_predictions_per_seq: found 0"),
        ({"mask_share": 0.9}, "add up to 1.1"),
        ({"mask_share": -0.1, "same_share": 1.0}, "mask_share: found -0.1"),
    ],
)
def test_impossible_settings_raise(values, message):
    with pytest.raises(ConfigurationError, match=message):
        MaskingConfig(**values)


def test_mixes_of_table_8_are_accepted_everywhere():
    assert PAPER_MIXES == ("80/10/10", "100/0/0", "80/0/20", "80/20/0", "0/20/80", "0/0/100")
    shares = {"mask_share": 0.0, "same_share": 0.2, "random_share": 0.8}
    config = from_mapping(MaskingConfig, {"mix": "0/20/80", "whole_word_masking": True})
    assert config == MaskingConfig(**shares, whole_word_masking=True)
    assert from_mapping(MaskingConfig, to_mapping(config)) == config
    instances = from_mapping(InstancesConfig, {"masking_mix": "0/20/80", "masking": "static"})
    assert instances.masking_config() == MaskingConfig(**shares, max_predictions_per_seq=20)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mix": "80/10"}, r"masking: mix: 80/10: expected three percentages .* such as the paper's 80/10/10, 100/0/0"),
        ({"mix": "80/10/20"}, "add up to 100"),
        ({"mix": "a/b/c"}, "expected three"),
        ({"mix": "80/10/10", "same_share": 0.1}, "mix=80/10/10: same_share is set too"),
    ],
)
def test_malformed_mix_raises(values, message):
    with pytest.raises(ConfigurationError, match=message):
        from_mapping(MaskingConfig, values, where="masking")
