"""The reference algorithm has the documented properties; `test_pairs.py` compares our pairs with it."""

import random

import pytest

from benchmarks.reference import ReferenceSettings, create_instances, pad_features

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
