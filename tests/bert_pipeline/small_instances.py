"""Random instances for tests of file formats, and damaged files."""

import shutil

import numpy as np

from bert_pipeline.instances.columns import InstanceColumns, offsets_of


def make_columns(count, *, static, seed=0):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(5, 33, count)
    offsets = offsets_of(lengths)
    masked = {}
    if static:
        numbers = rng.integers(1, 5, count)
        masked_offsets = offsets_of(numbers)
        masked = {
            "masked_lm_positions": rng.integers(1, 5, masked_offsets[-1]).astype(np.int32),
            "masked_lm_ids": rng.integers(0, 30_000, masked_offsets[-1]).astype(np.int32),
            "masked_offsets": masked_offsets,
        }
    return InstanceColumns(
        input_ids=rng.integers(0, 30_000, offsets[-1]).astype(np.int32),
        offsets=offsets,
        segment_b_start=(lengths // 2).astype(np.int32),
        is_random_next=rng.random(count) < 0.5,
        **masked,
    )


def assert_same(left, right):
    for name in InstanceColumns.__dataclass_fields__:
        a, b = getattr(left, name), getattr(right, name)
        assert (a is None) == (b is None)
        if a is not None:
            assert a.dtype == b.dtype, name
            assert np.array_equal(a, b), name


def with_flipped_bits(source, target, name, *, places=12):
    """Yield a copy of a directory with one bit of a file flipped, at evenly spaced places from its start to its end."""
    shutil.copytree(source, target)
    whole = (target / name).read_bytes()
    for number, place in enumerate(np.linspace(0, len(whole) - 1, places).astype(int)):
        data = bytearray(whole)
        data[place] ^= 1 << number % 8
        (target / name).write_bytes(data)
        yield target
