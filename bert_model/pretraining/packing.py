"""Packed micro-batches of a GPU: whole instances one behind the other, in tensors of one size throughout a phase.

One size means one graph of the compiler and no padding of heads. An instance that does not fit begins the next
micro-batch, so none is ever dropped; the rows that are left over are dummy sequences. Which instances a step has, their
masks and their order are the same as without packing.

Shapes: R rows (tokens), N sequences, P predictions of a micro-batch; B of the sequences are instances.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bert_model.model.config import IGNORED_LABEL, BertConfig, ModernConfig
from bert_model.model.unpadding import MAX_HEAD_SIZE, PackedRows, supports_varlen, supports_windows
from bert_model.pretraining.batch import NO_INSTANCES, MaskedInstances, MicroBatch, mask_samples
from bert_model.pretraining.config import PretrainingConfig
from bert_model.pretraining.data import Integers, Samples, rank_rows
from bert_model.pretraining.phases import Phase
from bert_model.training.distributed import Group
from bert_pipeline.errors import ConfigurationError
from bert_pipeline.instances.masking import MaskingConfig, num_to_predict
from bert_pipeline.vocabulary.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

ALIGNED_ROWS = 64
"""Sizes are multiples of this, so that a GPU multiplies all matrices at its full rate."""
MAX_TOKENS = 65_536
"""Larger micro-batches are not faster on any GPU."""
TRIAL_TOKENS = (4096, 8192)
"""Sizes whose memory is measured."""
SIMULATED_STEPS = 16
"""Steps that `choose_capacity` draws: its mean number of micro-batches is then within some percent."""


class Capacity(NamedTuple):
    """The size of every micro-batch of a phase."""

    rows: int
    """R: tokens, with those of dummies."""
    instances: int
    """At most so many in a micro-batch."""
    predictions: int
    """P, with those that are ignored."""
    max_length: int
    """Of a sequence, dummies too."""

    @property
    def sequences(self) -> int:
        """N: instances, and as many dummies as an empty micro-batch has."""
        return _aligned(self.instances + -(-self.rows // self.max_length))


@dataclass(frozen=True, kw_only=True)
class PackedBatch(MicroBatch):
    """A packed micro-batch; `packed.read_rows` are the first row of each sequence, then the predictions: (N + P,)."""

    packed: PackedRows
    labels: Tensor
    """(P,) int64: the original tokens of the predictions; -100 where there is none."""
    next_sentence_label: Tensor
    """(N,) int64; 1 is a random next sentence, -100 a dummy."""


def can_pack(config: BertConfig, device: torch.device, precision: str) -> bool:
    """Tell whether a model trains on packed rows: torch's kernel computes in 16 bits, and has no dropout."""
    head_size = config.hidden_size // config.num_attention_heads
    return (
        supports_varlen(device)
        and precision == "bfloat16"
        and config.attention == "bidirectional"
        and config.attention_probs_dropout_prob == 0
        and head_size % 8 == 0
        and head_size <= MAX_HEAD_SIZE
        and (not isinstance(config, ModernConfig) or config.global_attn_every_n_layers == 1 or supports_windows())
    )


class Packing:
    """The size of the micro-batches of each phase of a run, chosen once: sums depend on it in their last bits."""

    def __init__(self, config: PretrainingConfig, group: Group) -> None:
        self.config, self.group = config, group
        self.capacities: dict[str, Capacity] = {}
        """By the index of the phase, as text."""

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        config, batches = self.config, [phase.global_batch_size for phase in self.config.phases]
        made_for = [config.micro_batch_tokens, self.group.world_size, config.masking.masked_lm_prob, *batches]
        return {"made_for": made_for, "capacities": self.capacities}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take the sizes of a checkpoint, unless made for another ceiling, or for other ranks, masks or batches."""
        if state.get("made_for") == self.state()["made_for"]:
            self.capacities = {index: Capacity(*sizes) for index, sizes in state["capacities"].items()}

    def choose(self, phase: Phase, compute: Callable[[MicroBatch], None], memory_to_come: int) -> None:
        """Choose the size of a phase's micro-batches, on all ranks, unless it is known for its length.

        `compute` makes a forward and backward pass, to measure its memory; as much as `memory_to_come` bytes will be
        taken by other things.
        """
        if (known := self.capacities.get(str(phase.index))) and known.max_length == phase.config.max_seq_length:
            return
        max_tokens = self.config.micro_batch_tokens
        if max_tokens == "auto":
            max_tokens = self._tokens_that_fit(phase, compute, memory_to_come)
        self.capacities[str(phase.index)] = self.group.call_on_main(
            lambda: choose_capacity(
                phase.train.sample(),
                phase.masking,
                num_instances=phase.config.global_batch_size,
                world_size=self.group.world_size,
                max_tokens=max_tokens,
                max_length=phase.config.max_seq_length,
            )
        )

    def _tokens_that_fit(self, phase: Phase, compute: Callable[[MicroBatch], None], memory_to_come: int) -> int:
        """Return the tokens of a micro-batch that fit into the memory of every rank's GPU."""
        device, length = self.group.device, phase.config.max_seq_length
        if device.type != "cuda":
            return MAX_TOKENS
        peaks = []
        for tokens in TRIAL_TOKENS:
            # At least as many as those of `choose_capacity`, which has room for an instance of predictions alone.
            predictions = _aligned(length + int(tokens * phase.masking.masked_lm_prob))
            torch.cuda.reset_peak_memory_stats(device)
            compute(pack(NO_INSTANCES, Capacity(tokens, tokens // length, predictions, length)).to(device))
            peaks.append(torch.cuda.max_memory_allocated(device))
        memory = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - memory_to_come
        fitting = [0.0] * self.group.world_size
        fitting[self.group.rank] = float(tokens_that_fit(peaks, memory))
        return int(min(self.group.all_reduce_numbers(*fitting)))


def prediction_counts(samples: Samples, masking: MaskingConfig) -> Integers:
    """Return how many predictions each instance has at most, (B,); known before its mask is drawn."""
    if samples.masked_offsets is not None:
        return np.diff(samples.masked_offsets)
    return num_to_predict(samples.lengths, masking)


def choose_capacity(
    sample: Samples, masking: MaskingConfig, *, num_instances: int, world_size: int, max_tokens: int, max_length: int
) -> Capacity:
    """Return the capacity, of at most `max_tokens` rows, that computes the fewest rows in steps of `num_instances`.

    Steps are drawn from a sample of the data and dealt to the ranks. A larger capacity has more dummies, a smaller one
    begins another micro-batch more often.
    """
    lengths, predictions = sample.lengths, prediction_counts(sample, masking)
    generator = np.random.default_rng(0)
    draws = (generator.integers(len(lengths), size=num_instances) for _ in range(SIMULATED_STEPS))
    steps = [[drawn[rows] for rows in share_rows(lengths[drawn], world_size)] for drawn in draws]

    def cut(rows: int) -> list[list[list[Integers]]]:
        """Return the instances of each micro-batch, by step and rank."""
        free = Capacity(rows, num_instances, num_instances * int(predictions.max()), max_length)
        return [[[own[part] for part in split(lengths[own], predictions[own], free)] for own in step] for step in steps]

    def computed(rows: int) -> float:
        """Return the rows of a step that a rank computes."""
        return rows * float(np.mean([max(map(len, step)) for step in cut(rows)]))

    smallest = _aligned(max_length)
    largest = max(max_tokens // ALIGNED_ROWS * ALIGNED_ROWS, smallest)
    expected = num_instances / world_size * float(lengths.mean())
    fewest = -(-int(expected) // largest)
    margins = np.linspace(1.0, 1.5, 101)
    sizes = {_aligned(int(expected / count * margin)) for count in (fewest, fewest + 1) for margin in margins}
    rows = min(sorted({min(max(size, smallest), largest) for size in sizes}), key=computed)
    parts = [part for step in cut(rows) for own in step for part in own]
    # A little more than seen: one that is exceeded begins another micro-batch.
    instances = max(map(len, parts))
    most = max(int(predictions[part].sum()) for part in parts)
    predicted = _aligned(max(most + most // 64, max_length))
    tokens = sum(int(lengths[part].sum()) for part in parts) / SIMULATED_STEPS
    logger.info(
        f"micro-batches of {rows:,} tokens, {predicted} predictions; "
        f"{100 * (1 - tokens / computed(rows) / world_size):.1f} % are dummies, with {tokens:,.0f} tokens in a step "
        f"of {num_instances} instances"
    )  # fmt: skip
    return Capacity(rows, instances + instances // 16 + 1, predicted, max_length)


def tokens_that_fit(peaks: Sequence[int], memory: int) -> int:
    """Return the tokens of a micro-batch that take 85 % of memory, given the peaks in bytes of `TRIAL_TOKENS`."""
    slope = max(1.0, (peaks[1] - peaks[0]) / (TRIAL_TOKENS[1] - TRIAL_TOKENS[0]))
    return min(MAX_TOKENS, max(0, int((0.85 * memory - peaks[0]) / slope) + TRIAL_TOKENS[0]))


def split(lengths: Integers, predictions: Integers, capacity: Capacity) -> list[slice]:
    """Split instances in their order into micro-batches; each holds as many as fit."""
    ends = np.cumsum(lengths), np.cumsum(predictions)
    parts: list[slice] = []
    start = 0
    while start < len(lengths):
        before = [int(end[start - 1]) if start else 0 for end in ends]
        fitting = [
            int(np.searchsorted(end, used + limit, side="right"))
            for end, used, limit in zip(ends, before, (capacity.rows, capacity.predictions))
        ]
        end = min(*fitting, start + capacity.instances)
        parts.append(slice(start, end))
        start = end
    return parts


def share_rows(lengths: Integers, world_size: int) -> Iterator[Integers]:
    """Yield which instances of a step each rank gets, in reading order."""
    return (np.sort(rank_rows(lengths, rank=rank, world_size=world_size)) for rank in range(world_size))


def packed_batches(
    samples: Samples, capacity: Capacity, masking: MaskingConfig, vocabulary: Tokenizer, *, seed: int, group: Group
) -> list[MicroBatch]:
    """Return a rank's micro-batches of a step, given the samples of all ranks.

    All ranks get the same number, so that none waits in a collective. Missing ones are all dummies, and the last.
    """
    lengths, predictions = samples.lengths, prediction_counts(samples, masking)
    if (longest := int(lengths.max())) > (limit := capacity.max_length):  # of files that state none
        raise ConfigurationError(f"an instance has {longest} tokens, the phase has max_seq_length {limit}")
    shares = share_rows(lengths, group.world_size)
    parts = [[share[part] for part in split(lengths[share], predictions[share], capacity)] for share in shares]
    own = parts[group.rank]
    missing = max(map(len, parts)) - len(own)
    masked = [mask_samples(samples.select(rows), masking, vocabulary, seed=seed) for rows in own]
    batches = [pack(instances, capacity) for instances in (*masked, *[NO_INSTANCES] * missing)]
    return [batch.pinned(group.device) for batch in batches]


def pack(masked: MaskedInstances, capacity: Capacity) -> PackedBatch:
    """Return instances, all shorter than the capacity, as a micro-batch of its size."""
    count = len(masked.lengths)  # B
    # Lengths of all N sequences: instances, dummies over the rows that are left, and empty ones.
    left = capacity.rows - int(masked.lengths.sum())
    dummies = np.full(capacity.sequences - count, capacity.max_length, dtype=np.int64)
    dummies = np.diff(np.minimum(np.cumsum(dummies), left), prepend=0)
    lengths = np.concatenate([masked.lengths, dummies])  # (N,)
    starts = np.concatenate([[0], np.cumsum(lengths)])  # (N + 1,)

    is_token = np.arange(masked.input_ids.shape[1]) < masked.lengths[:, None]  # (B, S)
    is_prediction = masked.labels != IGNORED_LABEL  # (B, M)
    predicted = (starts[:count, None] + masked.positions)[is_prediction]
    # Places without a prediction read any row: all different, as gradients of one row would be added in turn.
    unused = np.arange(capacity.predictions - len(predicted)) % capacity.rows
    firsts = np.minimum(starts[:-1], capacity.rows - 1)  # empty sequences begin behind the last row
    return PackedBatch(
        packed=PackedRows(
            input_ids=_filled(masked.input_ids[is_token], capacity.rows),
            token_type_ids=_filled(masked.token_type_ids[is_token], capacity.rows),
            position_ids=torch.from_numpy(np.arange(capacity.rows) - np.repeat(starts[:-1], lengths)),
            starts=torch.from_numpy(starts.astype(np.int32)),
            read_rows=torch.from_numpy(np.concatenate([firsts, predicted, unused])),
            max_length=capacity.max_length,
        ),
        labels=_filled(masked.labels[is_prediction], capacity.predictions, IGNORED_LABEL),
        next_sentence_label=_filled(masked.is_random_next, capacity.sequences, IGNORED_LABEL),
        counts=masked.sizes,
    )


def _filled(values: Integers, size: int, filler: int = 0) -> Tensor:
    """Return values (at most `size`,) as int64, followed by fillers."""
    filled = np.full(size, filler, dtype=np.int64)
    filled[: len(values)] = values
    return torch.from_numpy(filled)


def _aligned(size: int) -> int:
    return -(-size // ALIGNED_ROWS) * ALIGNED_ROWS
