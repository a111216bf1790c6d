"""Counter-based random numbers: a draw is a function of its keys, independent of order and batch.

SplitMix64 (Steele, Lea and Flood, 2014, "Fast splittable pseudorandom number generators") as a keyed hash.
"""

import hashlib

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def combine(keys: np.ndarray | int, *counters: np.ndarray | int) -> np.ndarray:
    """Mix 64-bit keys with counters, one after another; arrays broadcast. Returns uint64."""
    state = _mixed(_as_uint64(keys) + _GOLDEN)
    # Plus one, so that a counter of 0 changes the state as well.
    for counter in counters:
        state = _mixed(state + (_as_uint64(counter) + np.uint64(1)) * _GOLDEN)
    return state


def key_of_text(text: str) -> int:
    """Return a 64-bit key of a name, such as a document id."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def fraction(bits: np.ndarray) -> np.ndarray:
    """Turn 64 random bits into float64 in [0, 1)."""
    fractions: np.ndarray = (bits >> np.uint64(11)) * 2.0**-53
    return fractions


def below(bits: np.ndarray, limit: np.ndarray | int) -> np.ndarray:
    """Turn 64 random bits into int64 in [0, limit), for limits below 2**31 (bias below 1e-9 times the limit)."""
    scaled: np.ndarray = (bits >> np.uint64(32)) * _as_uint64(limit) >> np.uint64(32)
    return scaled.astype(np.int64)


def binomial_half(keys: np.ndarray, trials: np.ndarray) -> np.ndarray:
    """Count the heads among `trials` (N,) fair coin tosses for each of `keys` (N,). Returns int64 (N,)."""
    remaining = np.asarray(trials, dtype=np.int64).copy()
    heads = np.zeros(len(remaining), dtype=np.int64)
    word = 0
    while (open_rows := np.flatnonzero(remaining > 0)).size:
        # The low bits of one 64-bit draw are up to 63 coins: a mask of all 64 would need a shift by 64.
        tossed = np.minimum(remaining[open_rows], 63)
        coins = combine(keys[open_rows], word) & ((np.uint64(1) << tossed.astype(np.uint64)) - np.uint64(1))
        heads[open_rows] += np.bitwise_count(coins)
        remaining[open_rows] -= tossed
        word += 1
    return heads


def _as_uint64(value: np.ndarray | int) -> np.ndarray:
    if isinstance(value, int):
        return np.array([value & 0xFFFFFFFFFFFFFFFF], dtype=np.uint64)
    return value.astype(np.uint64, copy=False)


def _mixed(state: np.ndarray) -> np.ndarray:
    state = state ^ (state >> np.uint64(30))
    state *= _FIRST
    state ^= state >> np.uint64(27)
    state *= _SECOND
    state ^= state >> np.uint64(31)
    return state
