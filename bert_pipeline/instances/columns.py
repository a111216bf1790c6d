"""Instances as columns: flat arrays with offsets, returned by all readers and accepted by all writers."""

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True)
class InstanceColumns:
    """N instances without padding; instance i holds `input_ids[offsets[i]:offsets[i + 1]]`.

    With static masks `input_ids` are masked and `masked_lm_ids` are the original tokens; with dynamic masks the three
    masked fields are None.
    """

    input_ids: np.ndarray
    """(T,) int32: [CLS] A [SEP] B [SEP], or [CLS] A [SEP], of every instance, concatenated."""
    offsets: np.ndarray
    """(N + 1,) int64: where each instance starts in `input_ids`."""
    segment_b_start: np.ndarray
    """(N,) int32: index of B's first token within its instance; the length of segment 0, so of all without B."""
    is_random_next: np.ndarray
    """(N,) bool: B does not follow A in the text."""
    continues_word: np.ndarray | None = None
    """(T,) bool: the token belongs to the word before it, where its id does not tell; None where it does."""
    masked_lm_positions: np.ndarray | None = None
    """(M,) int32: masked positions within their instance, ascending."""
    masked_lm_ids: np.ndarray | None = None
    """(M,) int32: the original tokens at these positions."""
    masked_offsets: np.ndarray | None = None
    """(N + 1,) int64: where each instance starts in the masked fields."""

    @property
    def num_instances(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """(N,) int64: number of tokens of each instance."""
        return np.diff(self.offsets)

    @property
    def is_masked(self) -> bool:
        """True if masks are static."""
        return self.masked_lm_positions is not None


Columns = TypeVar("Columns", bound=InstanceColumns)


def join(parts: Sequence[Columns]) -> Columns:
    """Return the instances of several columns as one, in order."""
    joined: dict[str, np.ndarray] = {}
    for name, first in vars(parts[0]).items():
        arrays = [getattr(part, name) for part in parts if first is not None]
        if name.endswith("offsets") and arrays:
            joined[name] = offsets_of(np.concatenate([np.diff(offsets) for offsets in arrays]))
        elif arrays:
            joined[name] = np.concatenate(arrays)
    return type(parts[0])(**joined)


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """Return offsets (N + 1,) int64: where each of N runs of `lengths` (N,) values starts, and where the last ends."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def pad(flat: np.ndarray, offsets: np.ndarray, width: int) -> np.ndarray:
    """Return flat values (T,) with offsets (N + 1,) as zero-padded rows (N, width) of the same dtype.

    ValueError if a row is longer than `width`.
    """
    lengths = np.diff(offsets)
    if lengths.size and int(lengths.max()) > width:
        raise ValueError(f"a row of {int(lengths.max())} values does not fit into {width}")
    padded = np.zeros((len(lengths), width), dtype=flat.dtype)  # (N, W)
    padded[np.arange(width) < lengths[:, None]] = flat[offsets[0] : offsets[-1]]
    return padded


def unpad(padded: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first `lengths` (N,) values of rows (N, W) as flat values (T,) and offsets (N + 1,)."""
    return padded[np.arange(padded.shape[1]) < lengths[:, None]], offsets_of(lengths)
