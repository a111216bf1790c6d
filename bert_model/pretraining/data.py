"""Instance reader of pre-training: a deterministic order, rank slices, micro-batches with little padding.

The order of samples is a function of (seed, epoch): the row groups of all shards are permuted, W consecutive ones form
a window, and the rows of a window are permuted. The position in a run is one integer, the number of samples seen, so
resuming at any position reads one window.

Data flow: InstanceSplit (files) -> InstanceReader.take_part (a rank's part of the global batch) -> split_micro_batches
-> make_batch (tensors).

Shapes: N instances, B instances of a micro-batch, S its longest length, M its largest number of predictions, T its
tokens, P its predictions.
"""

import functools
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bert_model.model.config import IGNORED_LABEL
from bert_model.training.metrics_log import artifact_cache
from bert_pipeline.errors import ArtifactError, ConfigurationError
from bert_pipeline.instances.columns import InstanceColumns, offsets_of, pad
from bert_pipeline.instances.directory import (
    Shard,
    check_vocabulary,
    load_instances,
    open_shard,
    shard_paths,
    verify_shard,
)
from bert_pipeline.instances.masking import MaskingConfig, MaskingVocabulary, mask_batch, sample_keys
from bert_pipeline.manifest import local_artifact
from bert_pipeline.vocabulary.tokenizer import Tokenizer

Integers = npt.NDArray[np.int64]
TokenIds = npt.NDArray[np.int32]

ALIGNED_LENGTH = 8
"""On a GPU lengths are padded to a multiple of this, as its tensor cores require."""

SIZES_PER_OCTAVE = 16
"""Numbers of tokens and of predictions that `round_up` distinguishes from one power of 2 to the next."""

_READING = threading.Lock()
"""Held while a shard is read: the thread that reads ahead shares its open file with the others, and no library lets two
read from one at a time."""

# Independent streams of numpy's generator for one (seed, epoch).
_GROUP_ORDER, _ROW_ORDER = 0, 1


@functools.lru_cache(maxsize=8)
def open_cached_shard(path: Path) -> Shard:
    """Open a shard of instances; the most recently used ones stay open."""
    return open_shard(path)


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Consecutive rows of a shard, the unit of reading."""

    path: Path
    index: int
    num_rows: int
    first_row: int
    """Index of the first row among all rows of the split; masks are keyed on it."""


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Instances and the keys of their masks."""

    columns: InstanceColumns
    sample_indices: Integers
    """(N,): row indices in the split."""
    epochs: Integers
    """(N,): the epoch in which each is read."""

    @property
    def num_samples(self) -> int:
        return len(self.sample_indices)

    def select(self, rows: Integers) -> "Samples":
        """Return the instances at `rows`, in that order."""
        return Samples(
            columns=select_rows(self.columns, rows),
            sample_indices=self.sample_indices[rows],
            epochs=self.epochs[rows],
        )


class Batch(NamedTuple):
    """A micro-batch under the model's names (Hugging Face's), and its counts."""

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
    num_tokens: int
    num_predictions: int
    squared_lengths: int
    """Sum of the squared numbers of tokens of the instances; attention is proportional to it."""

    def to(self, device: torch.device) -> "Batch":
        """Move the tensors to a device; copies from pinned memory overlap with a GPU's computation."""
        if device.type == "cpu":
            return self
        moved = [item.to(device, non_blocking=True) if isinstance(item, Tensor) else item for item in self]
        return Batch(*moved)  # type: ignore[arg-type]

    def mark_dynamic_lengths(self) -> None:
        """Tell torch.compile which sizes vary between padded batches, so that it compiles one graph for all."""
        if self.token_indices is None:
            return
        for tensor in (self.input_ids, self.attention_mask, self.token_type_ids, self.masked_lm_positions, self.labels):
            _mark_dynamic(tensor, 1)  # (B, S) and (B, M)
        for tensor in (self.token_indices, self.prediction_indices):
            _mark_dynamic(tensor, 0)  # (T,) and (P,)

    def pinned(self, device: torch.device) -> "Batch":
        """Copy the tensors to pinned memory, which a GPU reads asynchronously."""
        with torch.cuda.device(device):  # the current device of a new thread is the first GPU
            pinned = [item.pin_memory() if isinstance(item, Tensor) else item for item in self]
        return Batch(*pinned)  # type: ignore[arg-type]


def _mark_dynamic(tensor: Tensor | None, dimension: int) -> None:
    """Hint that a size varies. The hint is private to torch; without it torch.compile learns it by recompiling once."""
    mark = getattr(torch._dynamo, "maybe_mark_dynamic", None)
    if mark is not None:
        mark(tensor, dimension)


class InstanceSplit:
    """The instances of one split ("train" or "held_out") of an instance directory."""

    def __init__(self, directory: Path | str, split: str) -> None:
        """Read the manifest and the shards' footers; raise ArtifactError if the directory is incomplete.

        A directory of TFRecord files written by google-research/bert needs no manifest. Of a directory in a store a
        copy is read, because rows are read in random order and again in each epoch.
        """
        self.manifest = load_instances(local_artifact(directory, artifact_cache()))
        self.split = split
        self.groups: list[RowGroup] = []
        self.has_static_masks = False
        # Rows are numbered across the shards, in the manifest's order; masks are keyed on these numbers.
        first_row = 0
        for path in shard_paths(self.manifest, split):
            verify_shard(self.manifest, path)
            shard = open_cached_shard(path)
            self.has_static_masks |= shard.has_static_masks
            for index, num_rows in enumerate(shard.row_group_sizes):
                if num_rows:
                    self.groups.append(RowGroup(path, index, num_rows, first_row))
                    first_row += num_rows
            # A shard of another run has a valid footer too; google's files have no rows in the manifest.
            listed = self.manifest.files[path.relative_to(self.manifest.path).as_posix()].get("rows")
            found = sum(shard.row_group_sizes)
            if listed not in (None, found):
                raise ArtifactError(f"{path}: holds {found} instances, its manifest lists {listed}; make it again")
        self.num_instances = first_row

    def read(self, group: RowGroup) -> InstanceColumns:
        """Read one row group."""
        with _READING:
            return open_cached_shard(group.path).read_row_group(group.index)

    def check_vocabulary(self, tokenizer: Tokenizer) -> None:
        """Raise InputError if the first row group does not fit the vocabulary."""
        for group in self.groups[:1]:
            check_vocabulary(self.read(group), tokenizer, group.path)

    def check_fits(self, *, max_seq_length: int, where: str) -> None:
        """Raise ConfigurationError if the instances are longer than a phase allows, ArtifactError if there are none."""
        made_for = self.manifest.configuration.get("max_seq_length", max_seq_length)
        if made_for > max_seq_length:
            raise ConfigurationError(
                f"{where}: the instances in {self.manifest.path} were made for max_seq_length={made_for}, "
                f"the phase has {max_seq_length}"
            )
        if not self.num_instances:
            raise ArtifactError(f"{self.manifest.path}: holds no instances in {self.split}/; make it from more text")


class SampleOrder:
    """The permutation of one split: which row is read at which position."""

    def __init__(self, group_sizes: list[int], *, seed: int, groups_per_window: int) -> None:
        self.sizes = np.asarray(group_sizes, dtype=np.int64)
        self.num_samples = int(self.sizes.sum())
        self.seed = seed
        self.groups_per_window = groups_per_window
        self._epoch = -1
        self._order = np.empty(0, dtype=np.int64)
        self._window_ends = np.empty(0, dtype=np.int64)

    def locate(self, position: int) -> tuple[int, int, int]:
        """Return (epoch, window, offset in the window) of a position."""
        epoch, offset = divmod(position, self.num_samples)
        self._enter(epoch)
        window = int(np.searchsorted(self._window_ends, offset, side="right"))
        start = int(self._window_ends[window - 1]) if window else 0
        return epoch, window, offset - start

    def window_groups(self, epoch: int, window: int) -> Integers:
        """Return the row groups of a window, in permuted order."""
        self._enter(epoch)
        return self._order[window * self.groups_per_window : (window + 1) * self.groups_per_window]

    def window_rows(self, epoch: int, window: int) -> Integers:
        """Return the permutation of a window's rows, which are numbered across its row groups."""
        count = int(self.sizes[self.window_groups(epoch, window)].sum())
        return np.random.default_rng((self.seed, epoch, _ROW_ORDER, window)).permutation(count)

    def _enter(self, epoch: int) -> None:
        """Compute the order of an epoch's row groups and the position at which each window ends."""
        if epoch == self._epoch:
            return
        order = np.random.default_rng((self.seed, epoch, _GROUP_ORDER)).permutation(len(self.sizes))
        ends = np.cumsum(self.sizes[order])
        # Index of the last row group of each window; the last window may have fewer.
        last = np.arange(self.groups_per_window, len(order) + self.groups_per_window, self.groups_per_window) - 1
        self._order, self._window_ends = order, ends[np.minimum(last, len(order) - 1)]
        self._epoch = epoch


class InstanceReader:
    """Reads samples by position; one window of row groups is in memory at a time.

    With an `executor` its thread reads the next window meanwhile, and two are in memory.
    """

    def __init__(
        self, split: InstanceSplit, *, seed: int, groups_per_window: int, executor: ThreadPoolExecutor | None = None
    ) -> None:
        self.source = split
        self._executor = executor
        self._ahead: tuple[tuple[int, int], Future[Samples]] | None = None
        self.order = SampleOrder(
            [group.num_rows for group in split.groups], seed=seed, groups_per_window=groups_per_window
        )
        self._held: tuple[int, int] | None = None
        self._rows: Samples | None = None
        self._permutation = np.empty(0, dtype=np.int64)

    def take(self, position: int, count: int) -> Samples:
        """Read the samples at positions `position` to `position + count - 1`, across windows and epochs."""
        parts = []
        while count:
            # A window may end here: then fewer rows than `count` are taken, and the next window or epoch follows.
            chosen = self._find(position, count)
            parts.append(self._window.select(chosen))
            position += len(chosen)
            count -= len(chosen)
        return concatenate(parts)

    def take_part(self, position: int, count: int, *, rank: int, world_size: int) -> Samples:
        """Read a rank's part of these samples, as `rank_slice` defines it; only the rank's own rows are copied."""
        chosen = self._find(position, count)
        if len(chosen) < count:  # rare: the batch continues in the next window
            return rank_slice(self.take(position, count), rank=rank, world_size=world_size)
        mine = _rank_rows(self._window.columns.lengths[chosen], rank=rank, world_size=world_size)
        return self._window.select(chosen[mine])

    def _find(self, position: int, count: int) -> Integers:
        """Hold the window of a position; return its rows for that and the following positions, at most `count`."""
        epoch, window, offset = self.order.locate(position)
        if self._held != (epoch, window):
            self._load(epoch, window)
            self._read_ahead(position - offset + len(self._permutation))
        return self._permutation[offset : offset + count]

    @property
    def _window(self) -> Samples:
        assert self._rows is not None
        return self._rows

    def _load(self, epoch: int, window: int) -> None:
        self._held, self._rows = None, None  # free the old window before reading the new one
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] == (epoch, window):
            self._rows = ahead[1].result()
        else:
            self._rows = _read_groups(self.source, self._groups(epoch, window), epoch)
        self._permutation = self.order.window_rows(epoch, window)
        self._held = (epoch, window)

    def _read_ahead(self, position: int) -> None:
        """Start to read the window of a position."""
        if self._executor is not None:
            epoch, window, _ = self.order.locate(position)
            groups = self._groups(epoch, window)
            self._ahead = (epoch, window), self._executor.submit(_read_groups, self.source, groups, epoch)

    def _groups(self, epoch: int, window: int) -> list[RowGroup]:
        return [self.source.groups[index] for index in self.order.window_groups(epoch, window)]


def held_out_samples(split: InstanceSplit, *, limit: int, rank: int, world_size: int) -> Iterator[Samples]:
    """Yield a rank's share of the held-out instances, a row group at a time; together the ranks see each once.

    `limit` > 0 takes that many, evenly spaced.
    """
    total = split.num_instances
    count = min(limit, total) if limit else total
    # Choose across the whole split before dealing to ranks, so that the choice does not depend on their number.
    chosen = np.arange(count, dtype=np.int64) * total // count if count else np.empty(0, dtype=np.int64)
    chosen = chosen[rank::world_size]
    for group in split.groups:
        start, end = np.searchsorted(chosen, [group.first_row, group.first_row + group.num_rows])
        if end > start:
            yield _read_group(split, group, epoch=0).select(chosen[start:end] - group.first_row)


def _read_groups(split: InstanceSplit, groups: list[RowGroup], epoch: int) -> Samples:
    return concatenate([_read_group(split, group, epoch) for group in groups])


def _read_group(split: InstanceSplit, group: RowGroup, epoch: int) -> Samples:
    columns = split.read(group)
    return Samples(
        columns=columns,
        sample_indices=np.arange(group.first_row, group.first_row + columns.num_instances, dtype=np.int64),
        epochs=np.full(columns.num_instances, epoch, dtype=np.int64),
    )


def rank_slice(samples: Samples, *, rank: int, world_size: int) -> Samples:
    """Return a rank's part of a global batch, sorted by decreasing length.

    The sorted batch is dealt in serpentine order (0, 1, 1, 0, …), so that ranks get nearly equal numbers of tokens.
    """
    return samples.select(_rank_rows(samples.columns.lengths, rank=rank, world_size=world_size))


def _rank_rows(lengths: Integers, *, rank: int, world_size: int) -> Integers:
    """Return which rows of a batch of these lengths a rank gets."""
    order = np.argsort(-lengths, kind="stable")
    rounds, places = np.divmod(np.arange(len(order)), world_size)
    owner = np.where(rounds % 2 == 0, places, world_size - 1 - places)
    rows: Integers = order[owner == rank]
    return rows


def split_micro_batches(samples: Samples, micro_batch_size: int) -> list[Samples]:
    """Split samples into the fewest micro-batches of at most `micro_batch_size`, of nearly equal size."""
    count = -(-samples.num_samples // micro_batch_size)
    return [samples.select(rows) for rows in np.array_split(np.arange(samples.num_samples), count)]


def make_batch(
    samples: Samples,
    masking: MaskingConfig,
    vocabulary: MaskingVocabulary,
    *,
    seed: int,
    device: torch.device,
    few_sizes: bool = False,
) -> Batch:
    """Collate samples for a device; a GPU gets aligned lengths and few sizes, in pinned memory."""
    on_cpu = device.type == "cpu"
    batch = collate(
        samples,
        vocabulary=vocabulary,
        masking=masking,
        seed=seed,
        pad_to_multiple=1 if on_cpu else ALIGNED_LENGTH,
        few_sizes=few_sizes or not on_cpu,
    )
    return batch if on_cpu else batch.pinned(device)


def collate(
    samples: Samples,
    *,
    vocabulary: MaskingVocabulary,
    masking: MaskingConfig,
    seed: int,
    pad_to_multiple: int = 1,
    few_sizes: bool = False,
) -> Batch:
    """Mask tokens unless the instances hold static masks, and pad to the longest instance.

    The mask of a sample is a function of (seed, epoch, row index). With `few_sizes` the numbers of tokens and of
    predictions to be computed are rounded up, by padding whose results nothing reads.
    """
    columns = samples.columns
    lengths = columns.lengths  # (B,)
    width = int(lengths.max(initial=1))
    width = -(-width // pad_to_multiple) * pad_to_multiple  # S
    input_ids = pad(columns.input_ids, columns.offsets, width)  # (B, S)
    if columns.masked_offsets is not None:  # static masks
        assert columns.masked_lm_positions is not None
        assert columns.masked_lm_ids is not None
        counts = np.diff(columns.masked_offsets)  # (B,)
        max_count = int(counts.max(initial=1))  # M
        positions = pad(columns.masked_lm_positions, columns.masked_offsets, max_count)  # (B, M)
        labels = pad(columns.masked_lm_ids, columns.masked_offsets, max_count)  # (B, M)
    else:  # dynamic masks: new ones in every epoch
        keys = np.empty(samples.num_samples, dtype=np.uint64)
        # A batch between two epochs holds samples of both.
        for epoch in np.unique(samples.epochs):
            rows = samples.epochs == epoch
            keys[rows] = sample_keys(seed, int(epoch), samples.sample_indices[rows])
        masked = mask_batch(input_ids, lengths, keys, vocabulary, masking)
        counts = masked.masked_lm_weights.sum(axis=1).astype(np.int64)  # (B,)
        max_count = int(counts.max(initial=1))  # M
        input_ids = masked.input_ids
        positions, labels = masked.masked_lm_positions[:, :max_count], masked.masked_lm_ids[:, :max_count]  # (B, M)
    # On a GPU M is aligned like S.
    extra = -max_count % pad_to_multiple
    if extra:
        positions, labels = (np.pad(item, ((0, 0), (0, extra))) for item in (positions, labels))
        max_count += extra
    # Which of the padded places are real.
    is_prediction = np.arange(max_count) < counts[:, None]  # (B, M)
    labels = np.where(is_prediction, labels, IGNORED_LABEL)
    is_token = np.arange(width) < lengths[:, None]  # (B, S)
    is_padded = not is_token.all()
    token_indices, prediction_indices = np.flatnonzero(is_token), np.flatnonzero(is_prediction)
    if few_sizes:
        # Padding after all tokens, and so outside of every sequence; a place without a prediction has an ignored label.
        padding = np.flatnonzero(~is_token)[: round_up(len(token_indices)) - len(token_indices)]
        token_indices = np.concatenate([token_indices, padding])
        if unused := np.flatnonzero(~is_prediction)[:1].tolist():
            missing = min(round_up(len(prediction_indices)), is_prediction.size) - len(prediction_indices)
            prediction_indices = np.concatenate([prediction_indices, unused * missing]).astype(np.int64)
    return Batch(
        input_ids=torch.from_numpy(input_ids.astype(np.int64)),
        attention_mask=torch.from_numpy(is_token) if is_padded else None,
        token_indices=torch.from_numpy(token_indices) if is_padded else None,
        token_type_ids=torch.from_numpy(_segments(columns.segment_b_start, lengths, width)),
        masked_lm_positions=torch.from_numpy(positions.astype(np.int64)),
        prediction_indices=torch.from_numpy(prediction_indices),
        labels=torch.from_numpy(labels.astype(np.int64)),
        next_sentence_label=torch.from_numpy(columns.is_random_next.astype(np.int64)),
        num_tokens=int(lengths.sum()),
        num_predictions=int(counts.sum()),
        squared_lengths=int((lengths.astype(np.int64) ** 2).sum()),
    )


def round_up(count: int) -> int:
    """Return the next of the few sizes: at most a sixteenth larger from 128 on, and a multiple of 8."""
    step = max(ALIGNED_LENGTH, 2 ** (count - 1).bit_length() // (2 * SIZES_PER_OCTAVE)) if count else 1
    return -(-count // step) * step


def _segments(segment_b_start: TokenIds, lengths: Integers, width: int) -> Integers:
    """Return segment ids (B, S): 1 from the first token of B to the last, 0 in the padding, as google's files have."""
    positions = np.arange(width)
    return ((positions >= segment_b_start[:, None]) & (positions < lengths[:, None])).astype(np.int64)


def select_rows(columns: InstanceColumns, rows: Integers) -> InstanceColumns:
    """Return the instances at `rows`, in that order."""
    input_ids, offsets = _select_ragged(columns.input_ids, columns.offsets, rows)
    positions = ids = masked_offsets = None
    if columns.masked_offsets is not None:
        # Positions and tokens of static masks are ragged arrays with the same offsets.
        assert columns.masked_lm_positions is not None
        assert columns.masked_lm_ids is not None
        positions, masked_offsets = _select_ragged(columns.masked_lm_positions, columns.masked_offsets, rows)
        ids, _ = _select_ragged(columns.masked_lm_ids, columns.masked_offsets, rows)
    return InstanceColumns(
        input_ids=input_ids,
        offsets=offsets,
        segment_b_start=columns.segment_b_start[rows],
        is_random_next=columns.is_random_next[rows],
        masked_lm_positions=positions,
        masked_lm_ids=ids,
        masked_offsets=masked_offsets,
    )


def _select_ragged(flat: TokenIds, offsets: Integers, rows: Integers) -> tuple[TokenIds, Integers]:
    """Return (values, offsets) of the chosen rows of a ragged array."""
    lengths = offsets[rows + 1] - offsets[rows]
    selected = offsets_of(lengths)
    # Value i of the result is value i of the source plus the shift of its row.
    source = np.repeat(offsets[rows] - selected[:-1], lengths) + np.arange(selected[-1])
    return flat[source], selected


def concatenate(parts: list[Samples]) -> Samples:
    """Concatenate samples in order."""
    if len(parts) == 1:
        return parts[0]
    columns = [part.columns for part in parts]
    static = columns[0].is_masked
    if any(item.is_masked != static for item in columns):
        raise ArtifactError("some shards hold static masks and some do not; make the instances again in one run")

    def join(name: str) -> npt.NDArray[Any]:
        return np.concatenate([getattr(item, name) for item in columns])

    # Offsets begin at 0 in every part, so lengths are joined and summed up again.
    def join_offsets(name: str) -> Integers:
        return offsets_of(np.concatenate([np.diff(getattr(item, name)) for item in columns]))

    return Samples(
        columns=InstanceColumns(
            input_ids=join("input_ids"),
            offsets=join_offsets("offsets"),
            segment_b_start=join("segment_b_start"),
            is_random_next=join("is_random_next"),
            masked_lm_positions=join("masked_lm_positions") if static else None,
            masked_lm_ids=join("masked_lm_ids") if static else None,
            masked_offsets=join_offsets("masked_offsets") if static else None,
        ),
        sample_indices=np.concatenate([part.sample_indices for part in parts]),
        epochs=np.concatenate([part.epochs for part in parts]),
    )
