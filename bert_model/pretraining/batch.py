"""Micro-batches of pre-training: masked and padded, on a GPU and in bfloat16 in few sizes.

`packing.py` makes those of a GPU that attends without padding.

Shapes: B instances of a micro-batch, S its longest length, M its largest number of predictions, T its
tokens, P its predictions.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from bert_model.model.config import IGNORED_LABEL
from bert_model.pretraining.data import Integers, Samples, rank_rows
from bert_model.training.throughput import StepCounts
from bert_pipeline.instances.columns import pad
from bert_pipeline.instances.masking import MaskingConfig, mask_batch, sample_keys
from bert_pipeline.vocabulary.tokenizer import Tokenizer

CPU = torch.device("cpu")
ALIGNED_LENGTH = 8
"""On a GPU lengths are padded to a multiple of this, as its tensor cores require."""

SIZES_PER_OCTAVE = 16
"""Numbers of tokens and of predictions that `round_up` distinguishes from one power of 2 to the next."""


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """Tensors of a micro-batch, which subclasses name, and its counts."""

    counts: StepCounts

    @property
    def inputs(self) -> dict[str, Any]:
        """The arguments of `BertForPreTraining.loss_sums`."""
        return {name: value for name, value in vars(self).items() if name != "counts"}

    def to(self, device: torch.device) -> Self:
        """Move the tensors to a device; copies from pinned memory overlap with a GPU's computation."""
        return self if device.type == "cpu" else self._map(lambda item: item.to(device, non_blocking=True))

    def pinned(self, device: torch.device) -> Self:
        """Copy the tensors to pinned memory, which a GPU reads asynchronously; for a CPU, leave them."""
        if device.type == "cpu":
            return self
        with torch.cuda.device(device):  # the current device of a new thread is the first GPU
            return self._map(Tensor.pin_memory)

    def _map(self, function: Callable[[Tensor], Tensor]) -> Self:
        return dataclasses.replace(self, **tree_map_only(Tensor, function, self.inputs))


@dataclass(frozen=True, kw_only=True)
class Batch(MicroBatch):
    """A padded micro-batch under the model's names (Hugging Face's)."""

    input_ids: Tensor
    """(B, S) int64."""
    attention_mask: Tensor | None
    """(B, S) bool, None if nothing is padded."""
    token_indices: Tensor | None
    """(T,) int64: indices of the real tokens among the B * S positions, None if nothing is padded. With few sizes those
    of some padding follow."""
    token_type_ids: Tensor
    """(B, S) int64."""
    masked_lm_positions: Tensor
    """(B, M) int64, zero padded."""
    prediction_indices: Tensor
    """(P,) int64: indices of the predictions among the B * M; with few sizes one without a prediction may follow,
    several times."""
    labels: Tensor
    """(B, M) int64: the original tokens; -100 in the padding."""
    next_sentence_label: Tensor
    """(B,) int64; 1 is a random next sentence."""


class MaskedInstances(NamedTuple):
    """Padded instances with what is to be predicted."""

    input_ids: Integers
    """(B, S) int32."""
    lengths: Integers
    """(B,) int64."""
    token_type_ids: Integers
    """(B, S) int64."""
    positions: Integers
    """(B, M) int32, zero padded."""
    labels: Integers
    """(B, M) int64: the original tokens, -100 in the padding."""
    is_random_next: Integers
    """(B,) int64."""

    @property
    def sizes(self) -> StepCounts:
        """The counts of the micro-batch."""
        squared_lengths = int((self.lengths.astype(np.int64) ** 2).sum())
        return StepCounts(
            len(self.lengths), int(self.lengths.sum()), squared_lengths, int((self.labels != IGNORED_LABEL).sum())
        )


_NONE = np.zeros((0, 1), dtype=np.int64)
NO_INSTANCES = MaskedInstances(_NONE, _NONE[:, 0], _NONE, _NONE, _NONE, _NONE[:, 0])
"""Those of an empty micro-batch."""


def split_micro_batches(
    samples: Samples, micro_batch_size: int, *, rank: int = 0, world_size: int = 1
) -> list[Samples]:
    """Split a rank's part into the fewest micro-batches of at most `micro_batch_size`, of like lengths and sizes."""
    rows = rank_rows(samples.lengths, rank=rank, world_size=world_size)
    return [samples.select(part) for part in np.array_split(rows, -(-len(rows) // micro_batch_size))]


def make_batch(
    samples: Samples,
    masking: MaskingConfig,
    vocabulary: Tokenizer,
    *,
    seed: int,
    device: torch.device = CPU,
    few_sizes: bool = False,
) -> Batch:
    """Mask samples and pad them to the longest; a GPU gets aligned lengths and few sizes, in pinned memory.

    With `few_sizes` the numbers of tokens and of predictions to be computed are rounded up, by padding whose results
    nothing reads.
    """
    alignment = 1 if device.type == "cpu" else ALIGNED_LENGTH
    masked = mask_samples(samples, masking, vocabulary, seed=seed, pad_to_multiple=alignment)
    # Which of the padded places are real.
    is_prediction = masked.labels != IGNORED_LABEL  # (B, M)
    is_token = np.arange(masked.input_ids.shape[1]) < masked.lengths[:, None]  # (B, S)
    is_padded = not is_token.all()
    token_indices, prediction_indices = np.flatnonzero(is_token), np.flatnonzero(is_prediction)
    if few_sizes or device.type != "cpu":
        # Padding after all tokens, and so outside of every sequence; a place without a prediction has an ignored label.
        padding = np.flatnonzero(~is_token)[: round_up(len(token_indices)) - len(token_indices)]
        token_indices = np.concatenate([token_indices, padding])
        if unused := np.flatnonzero(~is_prediction)[:1].tolist():
            missing = min(round_up(len(prediction_indices)), is_prediction.size) - len(prediction_indices)
            prediction_indices = np.concatenate([prediction_indices, unused * missing]).astype(np.int64)
    batch = Batch(
        input_ids=torch.from_numpy(masked.input_ids.astype(np.int64)),
        attention_mask=torch.from_numpy(is_token) if is_padded else None,
        token_indices=torch.from_numpy(token_indices) if is_padded else None,
        token_type_ids=torch.from_numpy(masked.token_type_ids),
        masked_lm_positions=torch.from_numpy(masked.positions.astype(np.int64)),
        prediction_indices=torch.from_numpy(prediction_indices),
        labels=torch.from_numpy(masked.labels),
        next_sentence_label=torch.from_numpy(masked.is_random_next),
        counts=masked.sizes,
    )
    return batch.pinned(device)


def mask_samples(
    samples: Samples, masking: MaskingConfig, vocabulary: Tokenizer, *, seed: int, pad_to_multiple: int = 1
) -> MaskedInstances:
    """Pad samples, and mask tokens unless the instances hold static masks.

    The mask of a sample is a function of (seed, epoch, row index).
    """
    lengths = samples.lengths  # (B,)
    width = int(lengths.max(initial=1))
    width = -(-width // pad_to_multiple) * pad_to_multiple  # S
    input_ids = pad(samples.input_ids, samples.offsets, width)  # (B, S)
    if samples.masked_offsets is not None:  # static masks
        positions, labels, offsets = samples.masked_lm_positions, samples.masked_lm_ids, samples.masked_offsets
        assert positions is not None
        assert labels is not None
    else:  # dynamic masks: new ones in every epoch
        keys = sample_keys(seed, samples.epochs, samples.sample_indices)
        words = samples.continues_word
        continues = None if words is None else pad(words, samples.offsets, width)  # (B, S)
        masked = mask_batch(input_ids, lengths, keys, vocabulary, masking, continues)
        input_ids, offsets = masked.input_ids, masked.masked_offsets
        positions, labels = masked.masked_lm_positions, masked.masked_lm_ids
    counts = np.diff(offsets)  # (B,)
    max_count = -(-int(counts.max(initial=1)) // pad_to_multiple) * pad_to_multiple  # M, on a GPU aligned like S
    positions, labels = (pad(values, offsets, max_count) for values in (positions, labels))  # (B, M)
    labels = np.where(np.arange(max_count) < counts[:, None], labels, IGNORED_LABEL).astype(np.int64)
    # Segment ids: 1 from the first token of B to the last, 0 in the padding, as google's files have.
    places = np.arange(width)
    segments = ((places >= samples.segment_b_start[:, None]) & (places < lengths[:, None])).astype(np.int64)
    return MaskedInstances(input_ids, lengths, segments, positions, labels, samples.is_random_next.astype(np.int64))


def round_up(count: int) -> int:
    """Return the next of the few sizes: at most a sixteenth larger from 128 on, and a multiple of 8."""
    step = max(ALIGNED_LENGTH, 2 ** (count - 1).bit_length() // (2 * SIZES_PER_OCTAVE)) if count else 1
    return -(-count // step) * step
