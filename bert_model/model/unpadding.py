"""Real tokens without the padding between them, for all that is computed on each token by itself.

Attention alone sees sequences of equal length: its heads are spread out before it and collected behind it.

Shapes: B sequences, S positions of the longest, T real tokens, A heads, D the size of one.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional


class Places(NamedTuple):
    """Where packed vectors stand among the padded ones."""

    padded: Tensor
    """(N,) int64: the place of each packed vector among the padded ones."""
    packed: Tensor
    """(P,) int64: the number of the packed vector at each padded place, N where there is none."""


class Packing:
    """The real tokens of a padded batch: their vectors, and the vectors of their heads."""

    def __init__(self, token_rows: Tensor, batch_size: int, length: int, num_heads: int) -> None:
        """`token_rows` (T,) int64 are the places of the real tokens among the B * S, ascending."""
        self.batch_size, self.length, self.num_heads = batch_size, length, num_heads
        self.tokens = _places(token_rows, batch_size * length)
        sequences, positions = token_rows // length, token_rows % length  # (T,), (T,)
        numbers = torch.arange(num_heads, device=token_rows.device)
        heads = (sequences.unsqueeze(1) * num_heads + numbers) * length + positions.unsqueeze(1)  # (T, A)
        self.heads = _places(heads.flatten(), batch_size * num_heads * length)

    def pack(self, padded: Tensor) -> Tensor:
        """Return the vectors of the real tokens: (B, S, H) to (T, H)."""
        return _collect(padded.flatten(0, 1), self.tokens)

    def pad(self, packed: Tensor) -> Tensor:
        """Put the vectors of real tokens in their places, zeros elsewhere: (T, H) to (B, S, H)."""
        return _spread(packed, self.tokens).unflatten(0, (self.batch_size, self.length))

    def pad_heads(self, packed: Tensor) -> Tensor:
        """Give each head its sequences: (T, A * D) to (B, A, S, D), zeros in the padding."""
        spread = _spread(packed.unflatten(-1, (self.num_heads, -1)).flatten(0, 1), self.heads)
        return spread.unflatten(0, (self.batch_size, self.num_heads, self.length))

    def pack_heads(self, padded: Tensor) -> Tensor:
        """Take the vectors of the real tokens out of each head's sequences: (B, A, S, D) to (T, A * D)."""
        collected = _collect(padded.flatten(0, 2), self.heads)  # (T * A, D)
        return collected.unflatten(0, (-1, self.num_heads)).flatten(1)

    def at(self, packed: Tensor, positions: Tensor) -> Tensor:
        """Take the vectors at positions (B, Q) of the sequences, which must be those of real tokens: (B, Q, H)."""
        return packed[self.tokens.packed.unflatten(0, (self.batch_size, self.length)).gather(1, positions)]


def _places(padded: Tensor, num_places: int) -> Places:
    count = padded.shape[0]
    packed = torch.full((num_places,), count, dtype=torch.int64, device=padded.device)
    return Places(padded, packed.scatter(0, padded, torch.arange(count, device=padded.device)))


def _spread(packed: Tensor, places: Places) -> Tensor:
    return _Spread.apply(packed, places.padded, places.packed)


def _collect(padded: Tensor, places: Places) -> Tensor:
    return _Collect.apply(padded, places.padded, places.packed)


def _put(packed: Tensor, where: Tensor) -> Tensor:
    """Gather with a row of zeros for the padding: four times as fast on a CPU as writing into zeros."""
    return functional.pad(packed, (0, 0, 0, 1)).index_select(0, where)


# torch's own gradient of a gather adds rows up one by one; here none occurs twice, so each way is the other's gradient.


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, rows: Tensor, padded: Tensor, packed: Tensor) -> Tensor:
        context.save_for_backward(padded)
        return _put(rows, packed)

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (padded,) = context.saved_tensors
        return gradient.index_select(0, padded), None, None


class _Collect(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, rows: Tensor, padded: Tensor, packed: Tensor) -> Tensor:
        context.save_for_backward(packed)
        return rows.index_select(0, padded)

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (packed,) = context.saved_tensors
        return _put(gradient, packed), None, None
