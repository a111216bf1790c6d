"""Unpadding: run token-wise layers on real tokens only, as in MosaicBERT's bert_padding.py.

A padded batch (B, S, H) becomes one row per real token (T, H). Attention alone needs rectangular sequences: queries,
keys and values are padded before it, and its output is unpadded after it. torch's attention over sequences of various
lengths (`varlen_attention`), for GPUs and without dropout, needs neither.

Shapes: B sequences, S positions of the longest, T real tokens, A heads, D = H / A the size of one. Rows of padding may
follow the T tokens, so that T has few different values.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from bert_model.model.cpu_kernels import fast_dropout

MAX_UNFUSED_LENGTH = 256
"""Up to so many keys, on a CPU in bfloat16, attention is trained without torch's fused kernel (decision 0008)."""
MAX_HEAD_SIZE = 256
"""Largest D of torch's kernel of `varlen_attention`."""


class Unpadding:
    """Gather the real tokens of a padded batch and scatter them back, as whole vectors or head by head."""

    def __init__(self, token_indices: Tensor, batch_size: int, length: int, num_heads: int) -> None:
        """`token_indices` (T,) int64 are the indices of the real tokens among all B * S positions, ascending.

        Indices of padding may follow them.
        """
        self.batch_size, self.length, self.num_heads = batch_size, length, num_heads
        self.tokens = _row_map(token_indices, batch_size * length)
        # In (B, A, S, D) head a of token (b, s) is row (b * A + a) * S + s.
        sequences, positions = token_indices // length, token_indices % length  # (T,), (T,)
        heads = torch.arange(num_heads, device=token_indices.device)  # (A,)
        head_indices = (sequences.unsqueeze(1) * num_heads + heads) * length + positions.unsqueeze(1)  # (T, A)
        self.heads = _row_map(head_indices.flatten(), batch_size * num_heads * length)

    def unpad_input(self, padded: Tensor) -> Tensor:
        """Return the vectors of the real tokens: (B, S, H) to (T, H)."""
        return _move_rows(padded.flatten(0, 1), *self.tokens, False)

    def pad_input(self, real: Tensor) -> Tensor:
        """Return the vectors at their positions, zeros in the padding: (T, H) to (B, S, H)."""
        return _move_rows(real, *self.tokens, True).unflatten(0, (self.batch_size, self.length))

    def pad_heads(self, real: Tensor) -> Tensor:
        """Split the vectors into heads and pad each head's sequences with zeros: (T, A * D) to (B, A, S, D)."""
        rows = real.unflatten(-1, (self.num_heads, -1)).flatten(0, 1)  # (T * A, D)
        padded = _move_rows(rows, *self.heads, True)  # (B * A * S, D)
        return padded.unflatten(0, (self.batch_size, self.num_heads, self.length))

    def unpad_heads(self, padded: Tensor) -> Tensor:
        """Join the heads of each real token: (B, A, S, D) to (T, A * D)."""
        rows = _move_rows(padded.flatten(0, 2), *self.heads, False)  # (T * A, D)
        return rows.unflatten(0, (-1, self.num_heads)).flatten(1)

    def gather_positions(self, real: Tensor, positions: Tensor) -> Tensor:
        """Return the vectors at positions (B, Q), all of real tokens: (T, H) to (B, Q, H)."""
        _, to_real = self.tokens
        return real[to_real.unflatten(0, (self.batch_size, self.length)).gather(1, positions)]


class PackedRows(NamedTuple):
    """Whole sequences one behind the other, R tokens; the last ones are dummies, some of them empty.

    All rows are in some sequence, since the kernel of `varlen_attention` leaves others undefined.
    """

    input_ids: Tensor
    """(R,) int64."""
    token_type_ids: Tensor
    """(R,) int64."""
    position_ids: Tensor
    """(R,) int64: within the sequence."""
    starts: Tensor
    """(N + 1,) int32: the first row of each sequence, and R."""
    read_rows: Tensor
    """(Q,) int64: the rows that the heads read."""
    max_length: int
    """Of a sequence."""


class KeyValueInput(NamedTuple):
    """The states that keys and values are projected from, and which of them each query sees."""

    hidden: Tensor
    """(B, S, H), (T, H) if unpadded, (R, H) if packed."""
    mask: Tensor | None = None
    """Which keys each query may see, bool, broadcastable to (B, A, Q, S); None if all of them."""
    unpadding: Unpadding | None = None
    """How `hidden` was unpadded, None if it was not."""
    attentions: list[Tensor] | None = None
    """Gets the attention probabilities before dropout, (B, A, Q, S); None if nobody reads them."""
    starts: Tensor | None = None
    """Of packed rows, with `max_length` and `read_rows` as in `PackedRows`."""
    max_length: int = 0
    read_rows: Tensor | None = None
    """Rows that are computed after attention, None for all."""
    rotation: Tensor | None = None
    """In a modern encoder, cosines and sines of the positions of `hidden`, (2, S or T or R, 1, D / 2)."""
    query_rotation: Tensor | None = None
    """Those of queries at selected positions, (2, B, Q, 1, D / 2)."""
    reach: int | None = None
    """How many tokens on each side of one it sees in packed rows, None for all."""


def attend(query: Tensor, key: Tensor, value: Tensor, source: KeyValueInput, num_heads: int, dropout: float) -> Tensor:
    """Return the mean values of queries (B, Q, H) or (T, H) over the keys of a source."""
    # Attention needs rectangular sequences: pad the heads of an unpadded batch. Selected queries are not unpadded.
    query_unpadding = source.unpadding if query.dim() == 2 else None
    query = _split_heads(query, num_heads, query_unpadding)  # (B, A, Q, D)
    key = _split_heads(key, num_heads, source.unpadding)  # (B, A, S, D)
    value = _split_heads(value, num_heads, source.unpadding)  # (B, A, S, D)
    # On a CPU torch's fused attention has no dropout, where it falls back to these operations with slower dropout, and
    # its backward pass in bfloat16 is slower than theirs.
    trains_short = query.dtype == torch.bfloat16 and torch.is_grad_enabled() and key.shape[2] <= MAX_UNFUSED_LENGTH
    if source.attentions is not None or (query.device.type == "cpu" and (dropout or trains_short)):
        scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5  # (B, A, Q, S)
        if source.mask is not None:
            scores = scores.masked_fill(~source.mask, float("-inf"))
        probabilities = scores.softmax(dim=-1)
        if source.attentions is not None:
            source.attentions.append(probabilities)
        context = fast_dropout(probabilities, dropout, True) @ value  # (B, A, Q, D)
    else:
        context = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=source.mask, dropout_p=dropout
        )  # (B, A, Q, D)
    # Join the heads: (B, A, Q, D) to (B, Q, H), or back to real tokens (T, H).
    return context.transpose(1, 2).flatten(2) if query_unpadding is None else query_unpadding.unpad_heads(context)


def _split_heads(projected: Tensor, num_heads: int, unpadding: Unpadding | None) -> Tensor:
    if unpadding is not None:
        return unpadding.pad_heads(projected)  # (T, H) to (B, A, S, D)
    return projected.unflatten(-1, (num_heads, -1)).transpose(1, 2)  # (B, A, S, D)


def varlen_attention(
    query: Tensor, key: Tensor, value: Tensor, starts: Tensor, max_length: int, reach: int | None = None
) -> Tensor:
    """Attend within each sequence, by torch's kernel: (R, A, D) three times to (R, A, D).

    With `reach` a token sees as many on each side. The kernel is a prototype, whose arguments are these in torch 2.10
    to 2.13; those that follow differ. Source: https://docs.pytorch.org/docs/stable/nn.attention.varlen.html
    """
    # Imported where it is used: it imports torch's compiler.
    from torch.nn.attention.varlen import varlen_attn

    window: dict[str, Any] = {} if reach is None else {"window_size": (reach, reach)}
    return cast(Tensor, varlen_attn(query, key, value, starts, starts, max_length, max_length, **window))


def supports_varlen(device: torch.device) -> bool:
    """Tell whether torch has the kernel of `varlen_attention` for a device, a GPU of the generation A100 or later."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


def supports_windows() -> bool:
    """Tell whether this torch's kernel of `varlen_attention` has windows, as 2.13 does and 2.10 does not."""
    from torch.nn.attention.varlen import varlen_attn

    return "window_size" in inspect.signature(varlen_attn).parameters


def _row_map(to_padded: Tensor, num_padded: int) -> tuple[Tensor, Tensor]:
    """Return the padded row of each of N real rows, (N,) int64, and the real row of each padded one: N for padding."""
    count = to_padded.shape[0]
    to_real = torch.full((num_padded,), count, dtype=torch.int64, device=to_padded.device)
    return to_padded, to_real.scatter(0, to_padded, torch.arange(count, device=to_padded.device))


def _moved(rows: Tensor, to_padded: Tensor, to_real: Tensor, pads: bool) -> Tensor:
    if not pads:
        return rows.index_select(0, to_padded)
    # A gather with one appended row of zeros is four times as fast on a CPU as writing into zeros.
    return functional.pad(rows, (0, 0, 0, 1)).index_select(0, to_real)


class _MoveRows(torch.autograd.Function):
    """Gather real rows out of padded ones, or scatter them among padded ones, which are zero elsewhere.

    torch's gradient of a gather accumulates row by row. No row occurs twice here, so each is the gradient of the other.
    """

    @staticmethod
    def forward(context: Any, rows: Tensor, to_padded: Tensor, to_real: Tensor, pads: bool) -> Tensor:
        context.save_for_backward(to_padded, to_real)
        context.pads = pads
        return _moved(rows, to_padded, to_real, pads)

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        to_padded, to_real = context.saved_tensors
        return _moved(gradient, to_padded, to_real, not context.pads), None, None, None


_move_rows: Callable[..., Tensor] = _MoveRows.apply
