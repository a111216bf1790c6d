"""Batches by length: rows of like length share a batch, so that little is padded."""

import numpy as np

POOL_BATCHES = 16
"""Training sorts by length within pools of so many batches: wide enough to save padding, narrow enough to mix."""


def training_batches(lengths: np.ndarray, batch_size: int, *, seed: int, epoch: int) -> list[np.ndarray]:
    """Return the batches of one epoch, each an array of unit indices: every unit exactly once.

    The order is a function of (seed, epoch): a permutation is cut into pools, each pool is sorted by length and cut
    into batches, and the batches are shuffled. The incomplete batch falls on no particular length, because it is cut
    off before the sorting.
    """
    rng = np.random.default_rng([seed, epoch])
    order = rng.permutation(len(lengths))
    pool = POOL_BATCHES * batch_size
    batches = []
    for start in range(0, len(order), pool):
        members = order[start : start + pool]
        full = len(members) - len(members) % batch_size
        whole, rest = members[:full], members[full:]
        ranked = whole[np.argsort(lengths[whole], kind="stable")]
        batches.extend(np.split(ranked, max(1, full // batch_size)) if full else [])
        if len(rest):
            batches.append(rest)
    return [batches[index] for index in rng.permutation(len(batches))]


def prediction_batches(lengths: np.ndarray, tokens_per_batch: int) -> list[np.ndarray]:
    """Return batches of unit indices sorted by length, each of at most `tokens_per_batch` padded tokens."""
    order = np.argsort(lengths, kind="stable")[::-1]  # the longest first: the largest batch meets memory limits at once
    batches = []
    start = 0
    while start < len(order):
        width = max(1, int(lengths[order[start]]))
        count = max(1, tokens_per_batch // width)
        batches.append(order[start : start + count])
        start += count
    return batches


def num_training_steps(num_units: int, batch_size: int, epochs: float) -> int:
    """Return the optimizer steps of so many epochs, at least one."""
    return max(1, round(-(-num_units // batch_size) * epochs))
