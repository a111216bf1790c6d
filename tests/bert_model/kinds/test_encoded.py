"""Batches of training and prediction: every row once, similar lengths together."""

import numpy as np

from bert_model.kinds.encoded import num_training_steps, prediction_batches, training_batches


def test_training_batches_have_every_row_once_and_depend_on_seed_and_epoch():
    lengths = np.random.default_rng(0).integers(5, 60, 103)
    batches = training_batches(lengths, 8, seed=1, epoch=0)
    assert sorted(np.concatenate(batches).tolist()) == list(range(103))
    assert len(batches) == num_training_steps(103, 8, 1.0) == 13
    again = training_batches(lengths, 8, seed=1, epoch=0)
    assert [batch.tolist() for batch in batches] == [batch.tolist() for batch in again]
    for others in ({"seed": 1, "epoch": 1}, {"seed": 2, "epoch": 0}):
        assert np.concatenate(batches).tolist() != np.concatenate(training_batches(lengths, 8, **others)).tolist()


def test_length_bucketing_pads_far_less_than_chance():
    lengths = np.random.default_rng(0).integers(5, 60, 1000)

    def padded(batches):
        return sum(len(batch) * lengths[batch].max() for batch in batches)

    bucketed = padded(training_batches(lengths, 16, seed=1, epoch=0))
    shuffled = padded(np.array_split(np.random.default_rng(1).permutation(1000), 63))
    assert bucketed < 1.1 * lengths.sum() < shuffled


def test_prediction_batches_have_every_row_once_within_the_token_budget():
    lengths = np.random.default_rng(0).integers(1, 60, 200)
    batches = prediction_batches(lengths, 128)
    assert sorted(np.concatenate(batches).tolist()) == list(range(200))
    assert all(len(batch) * lengths[batch].max() <= 128 for batch in batches)
