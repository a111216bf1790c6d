"""The reference algorithm has the documented properties, and our pairs match its distribution."""

import random

import numpy as np
import pytest

from benchmarks.reference import ReferenceSettings, create_instances, pad_features
from bert_pipeline.instances.pairs import InstancesConfig, TokenizedDocuments, make_pairs
from bert_pipeline.randomness import key_of_text

SETTINGS = ReferenceSettings(max_seq_length=64, max_predictions_per_seq=10, dupe_factor=5)
NAMES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{index}" for index in range(200))]


@pytest.fixture(scope="module")
def documents():
    rng = random.Random(3)
    return [
        [[f"w{rng.randrange(200)}" for _ in range(rng.randint(2, 25))] for _ in range(rng.randint(1, 30))]
        for _ in range(80)
    ]


@pytest.fixture(scope="module")
def instances(documents):
    return create_instances(documents, NAMES, SETTINGS, random.Random(1))


def test_instances_fit_the_length_and_have_two_parts(instances):
    for instance in instances:
        assert 5 <= len(instance.tokens) <= SETTINGS.max_seq_length
        assert instance.tokens[-1] == instance.tokens[instance.segment_ids.index(1) - 1] == "[SEP]"
        assert instance.segment_ids == sorted(instance.segment_ids)
        assert len(instance.segment_ids) == len(instance.tokens)


def test_masked_positions_are_sorted_limited_and_not_special(instances):
    for instance in instances:
        expected = min(SETTINGS.max_predictions_per_seq, max(1, round(len(instance.tokens) * 0.15)))
        assert len(instance.masked_positions) == min(expected, len(instance.tokens) - 3)
        assert instance.masked_positions == sorted(set(instance.masked_positions))
        assert not {"[CLS]", "[SEP]"} & set(instance.masked_labels)


def test_features_are_padded_to_fixed_lengths(instances):
    features = pad_features(instances[0], {name: index for index, name in enumerate(NAMES)}, SETTINGS)
    assert {name: len(values) for name, values in features.items()} == {
        **dict.fromkeys(("input_ids", "input_mask", "segment_ids"), 64),
        **dict.fromkeys(("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"), 10),
        "next_sentence_labels": 1,
    }
    assert sum(features["masked_lm_weights"]) == len(instances[0].masked_positions)


def test_our_pairs_match_the_reference_distribution(documents, instances):
    ids = {name: index for index, name in enumerate(NAMES)}
    sentences = [sentence for document in documents for sentence in document]
    ours = make_pairs(
        TokenizedDocuments(
            tokens=np.array([ids[token] for sentence in sentences for token in sentence], dtype=np.int32),
            sentence_offsets=np.cumsum([0, *map(len, sentences)]),
            document_offsets=np.cumsum([0, *map(len, documents)]),
            keys=np.array([key_of_text(str(index)) for index in range(len(documents))], dtype=np.uint64),
        ),
        InstancesConfig(max_seq_length=64, dupe_factor=5, masking="dynamic"),
    )
    lengths = np.array([len(instance.tokens) for instance in instances])
    our_lengths = ours.a_length + ours.b_length + 3
    assert len(ours) == pytest.approx(len(instances), rel=0.05)
    assert our_lengths.mean() == pytest.approx(lengths.mean(), rel=0.03)
    assert ours.is_random_next.mean() == pytest.approx(np.mean([i.is_random_next for i in instances]), abs=0.03)
    bins = np.linspace(0, 64, 9)
    shares = [np.histogram(values, bins)[0] / len(values) for values in (lengths, our_lengths)]
    assert np.abs(shares[0] - shares[1]).max() < 0.03
