"""Reading instances for pre-training: an exact order, a slice for each rank, micro-batches almost without padding.

The order of samples is a function of (seed, epoch): the row groups of all shards are permuted, W of them at a time
form a window, and the rows of a window are permuted. The position in a training is one integer, the number of
samples seen; finding it again costs the reading of one window, wherever it lies.

Shapes: N instances, T tokens of all of them, B instances of a micro-batch, S its longest, M its most predictions.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bert_model.model.config import IGNORED_LABEL
from bert_pipeline.errors import ArtefactError, ConfigurationError
from bert_pipeline.instances.columns import InstanceColumns, pad
from bert_pipeline.instances.directory import Shard, check_vocabulary, load_instances, open_shard, shard_paths
from bert_pipeline.instances.masking import MaskingConfig, MaskingVocabulary, mask_batch, sample_keys
from bert_pipeline.vocabulary.tokenizer import Tokenizer

EVALUATION_SEED = 20181011
"""Masks of held-out instances are drawn from this for every training, so that their losses compare."""

# Independent streams of numpy's generator for one (seed, epoch).
_GROUP_ORDER, _ROW_ORDER = 0, 1


@functools.lru_cache(maxsize=8)
def open_once(path: Path) -> Shard:
    """Open a shard of instances; the few that were used last stay open."""
    return open_shard(path)


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A readable stretch of rows."""

    path: Path
    index: int
    num_rows: int
    first_row: int
    """Number of the first row among all rows of the split: what masks are keyed by."""


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Some instances with what names them."""

    columns: InstanceColumns
    sample_indices: np.ndarray
    """(N,) int64: row numbers in the split."""
    epochs: np.ndarray
    """(N,) int64: the epoch that each is read in."""

    @property
    def num_samples(self) -> int:
        return len(self.sample_indices)

    def select(self, rows: np.ndarray) -> "Samples":
        """Take some of the instances, in the order of `rows`."""
        return Samples(
            columns=select_rows(self.columns, rows),
            sample_indices=self.sample_indices[rows],
            epochs=self.epochs[rows],
        )


class Batch(NamedTuple):
    """A micro-batch as the model takes it (Hugging Face's names), and its counts."""

    input_ids: Tensor
    """(B, S) int64."""
    attention_mask: Tensor | None
    """(B, S) bool, None when nothing is padded."""
    token_rows: Tensor | None
    """(T,) int64: places of the real tokens among the B * S, None when nothing is padded."""
    token_type_ids: Tensor
    """(B, S) int64."""
    masked_lm_positions: Tensor
    """(B, M) int64, zero padded."""
    prediction_rows: Tensor
    """(P,) int64: places of the predictions among the B * M."""
    labels: Tensor
    """(B, M) int64: the original tokens; -100 in the padding."""
    next_sentence_label: Tensor
    """(B,) int64; 1 is a random next sentence."""
    num_tokens: int
    num_predictions: int
    squared_lengths: int
    """Sum of the instances' tokens squared, which attention grows with."""

    def to(self, device: torch.device) -> "Batch":
        """Move the tensors to a device; from pinned memory a GPU takes them while it computes."""
        if device.type == "cpu":
            return self
        moved = [item.to(device, non_blocking=True) if isinstance(item, Tensor) else item for item in self]
        return Batch(*moved)  # type: ignore[arg-type]

    def mark_lengths(self) -> None:
        """Tell torch.compile which sizes are others in each padded batch: it then makes one graph for all of these."""
        if self.token_rows is None:
            return
        for tensor in (self.input_ids, self.attention_mask, self.token_type_ids, self.masked_lm_positions, self.labels):
            torch._dynamo.maybe_mark_dynamic(tensor, 1)
        for rows in (self.token_rows, self.prediction_rows):
            torch._dynamo.maybe_mark_dynamic(rows, 0)

    def pinned(self, device: torch.device) -> "Batch":
        """Copy the tensors to memory that a GPU reads by itself."""
        with torch.cuda.device(device):  # a thread that prepares batches would turn to the first GPU
            pinned = [item.pin_memory() if isinstance(item, Tensor) else item for item in self]
        return Batch(*pinned)  # type: ignore[arg-type]


class InstanceSplit:
    """The instances of one split ("train" or "held_out") of an instance directory."""

    def __init__(self, directory: Path | str, split: str) -> None:
        """Read the manifest and the shards' footers. ArtefactError when the directory is not whole.

        A directory of TFRecord files that BERT's own script wrote needs no manifest.
        """
        self.manifest = load_instances(directory)
        self.split = split
        self.groups: list[RowGroup] = []
        self.has_static_masks = False
        first_row = 0
        for path in shard_paths(self.manifest, split):
            shard = open_once(path)
            self.has_static_masks |= shard.has_static_masks
            for index, num_rows in enumerate(shard.row_group_sizes):
                if num_rows:
                    self.groups.append(RowGroup(path, index, num_rows, first_row))
                    first_row += num_rows
            listed = self.manifest.files[path.relative_to(self.manifest.path).as_posix()].get("rows")
            found = sum(shard.row_group_sizes)
            if listed not in (None, found):
                raise ArtefactError(f"{path}: holds {found} instances, its manifest lists {listed}; make it again")
        self.num_instances = first_row

    def read(self, group: RowGroup) -> InstanceColumns:
        """Read one row group."""
        return open_once(group.path).read_row_group(group.index)

    def check_vocabulary(self, tokenizer: Tokenizer) -> None:
        """InputError when the instances, by their first row group, were made with another vocabulary."""
        for group in self.groups[:1]:
            check_vocabulary(self.read(group), tokenizer, group.path)

    def check_fits(self, *, max_seq_length: int, where: str) -> None:
        """ConfigurationError when the split is empty or was made for longer sequences than a phase has."""
        made_for = self.manifest.configuration.get("max_seq_length", max_seq_length)
        if made_for > max_seq_length:
            raise ConfigurationError(
                f"{where}: the instances in {self.manifest.path} were made for max_seq_length={made_for}, "
                f"the phase has {max_seq_length}"
            )
        if not self.num_instances:
            raise ArtefactError(f"{self.manifest.path}: holds no instances in {self.split}/; make it from more text")


class SampleOrder:
    """Which row is read at which position."""

    def __init__(self, group_sizes: list[int], *, seed: int, groups_per_window: int) -> None:
        self.sizes = np.asarray(group_sizes, dtype=np.int64)
        self.num_samples = int(self.sizes.sum())
        self.seed = seed
        self.groups_per_window = groups_per_window
        self._epoch = -1
        self._order = np.empty(0, dtype=np.int64)
        self._window_ends = np.empty(0, dtype=np.int64)

    def locate(self, position: int) -> tuple[int, int, int]:
        """Return (epoch, window, offset within the window) of a position from 0."""
        epoch, offset = divmod(position, self.num_samples)
        self._enter(epoch)
        window = int(np.searchsorted(self._window_ends, offset, side="right"))
        start = int(self._window_ends[window - 1]) if window else 0
        return epoch, window, offset - start

    def window_groups(self, epoch: int, window: int) -> np.ndarray:
        """Return the indices of the row groups of a window, in their permuted order."""
        self._enter(epoch)
        return self._order[window * self.groups_per_window : (window + 1) * self.groups_per_window]

    def window_rows(self, epoch: int, window: int) -> np.ndarray:
        """Return the permutation of a window's rows, which are numbered through its row groups."""
        count = int(self.sizes[self.window_groups(epoch, window)].sum())
        return np.random.default_rng((self.seed, epoch, _ROW_ORDER, window)).permutation(count)

    def _enter(self, epoch: int) -> None:
        if epoch == self._epoch:
            return
        order = np.random.default_rng((self.seed, epoch, _GROUP_ORDER)).permutation(len(self.sizes))
        ends = np.cumsum(self.sizes[order])
        last = np.arange(self.groups_per_window, len(order) + self.groups_per_window, self.groups_per_window) - 1
        self._order, self._window_ends = order, ends[np.minimum(last, len(order) - 1)]
        self._epoch = epoch


class InstanceReader:
    """Reads samples by position and holds one window of row groups at a time."""

    def __init__(self, split: InstanceSplit, *, seed: int, groups_per_window: int) -> None:
        self.source = split
        self.order = SampleOrder(
            [group.num_rows for group in split.groups], seed=seed, groups_per_window=groups_per_window
        )
        self._held: tuple[int, int] | None = None
        self._rows: Samples | None = None
        self._permutation = np.empty(0, dtype=np.int64)

    def take(self, position: int, count: int) -> Samples:
        """Read the samples at positions `position` to `position + count - 1`, over windows and epochs."""
        parts = []
        while count:
            epoch, window, offset = self.order.locate(position)
            if self._held != (epoch, window):
                self._load(epoch, window)
            assert self._rows is not None
            chosen = self._permutation[offset : offset + count]
            parts.append(self._rows.select(chosen))
            position += len(chosen)
            count -= len(chosen)
        return concatenate(parts)

    def _load(self, epoch: int, window: int) -> None:
        self._held, self._rows = None, None  # never two windows in memory
        groups = [self.source.groups[index] for index in self.order.window_groups(epoch, window)]
        self._rows = concatenate([_samples(self.source, group, epoch) for group in groups])
        self._permutation = self.order.window_rows(epoch, window)
        self._held = (epoch, window)


def held_out_samples(split: InstanceSplit, *, most: int, rank: int, world_size: int) -> Iterator[Samples]:
    """Yield a rank's share of the held-out instances, a row group at a time; together the ranks see each once.

    `most` > 0 takes that many, spread evenly over all of them.
    """
    total = split.num_instances
    count = min(most, total) if most else total
    chosen = np.arange(count, dtype=np.int64) * total // count if count else np.empty(0, dtype=np.int64)
    chosen = chosen[rank::world_size]
    for group in split.groups:
        start, end = np.searchsorted(chosen, [group.first_row, group.first_row + group.num_rows])
        if end > start:
            yield _samples(split, group, epoch=0).select(chosen[start:end] - group.first_row)


def _samples(split: InstanceSplit, group: RowGroup, epoch: int) -> Samples:
    columns = split.read(group)
    return Samples(
        columns=columns,
        sample_indices=np.arange(group.first_row, group.first_row + columns.num_instances, dtype=np.int64),
        epochs=np.full(columns.num_instances, epoch, dtype=np.int64),
    )


def rank_slice(samples: Samples, *, rank: int, world_size: int) -> Samples:
    """Return a rank's part of a global batch, sorted by falling length.

    The sorted batch is dealt out there and back (0, 1, 1, 0, …), so that ranks get nearly equal numbers of tokens.
    """
    order = np.argsort(-samples.columns.lengths, kind="stable")
    turns = np.arange(len(order)) // world_size
    dealt = np.arange(len(order)) % world_size
    owner = np.where(turns % 2 == 0, dealt, world_size - 1 - dealt)
    return samples.select(order[owner == rank])


def split_micro_batches(samples: Samples, micro_batch_size: int) -> list[Samples]:
    """Cut samples into the fewest micro-batches of at most `micro_batch_size`, of equal size as far as possible."""
    count = -(-samples.num_samples // micro_batch_size)
    return [samples.select(rows) for rows in np.array_split(np.arange(samples.num_samples), count)]


def collate(
    samples: Samples,
    *,
    vocabulary: MaskingVocabulary,
    masking: MaskingConfig,
    seed: int,
    pad_to_multiple: int = 1,
) -> Batch:
    """Mask where masks are not static, pad to the longest, and give everything the model's names.

    The mask of a sample is a function of (seed, its epoch, its row number).
    """
    columns = samples.columns
    lengths = columns.lengths
    width = int(lengths.max(initial=1))
    width = -(-width // pad_to_multiple) * pad_to_multiple
    input_ids = pad(columns.input_ids, columns.offsets, width)  # (B, S)
    if columns.masked_offsets is not None:
        assert columns.masked_lm_positions is not None
        assert columns.masked_lm_ids is not None
        counts = np.diff(columns.masked_offsets)  # (B,)
        most = int(counts.max(initial=1))
        positions = pad(columns.masked_lm_positions, columns.masked_offsets, most)  # (B, M)
        labels = pad(columns.masked_lm_ids, columns.masked_offsets, most)  # (B, M)
    else:
        keys = np.empty(samples.num_samples, dtype=np.uint64)
        for epoch in np.unique(samples.epochs):
            rows = samples.epochs == epoch
            keys[rows] = sample_keys(seed, int(epoch), samples.sample_indices[rows])
        masked = mask_batch(input_ids, lengths, keys, vocabulary, masking)
        counts = masked.masked_lm_weights.sum(axis=1).astype(np.int64)  # (B,)
        most = int(counts.max(initial=1))
        input_ids = masked.input_ids
        positions, labels = masked.masked_lm_positions[:, :most], masked.masked_lm_ids[:, :most]  # (B, M)
    extra = -most % pad_to_multiple
    if extra:
        positions, labels = (np.pad(item, ((0, 0), (0, extra))) for item in (positions, labels))
        most += extra
    is_prediction = np.arange(most) < counts[:, None]  # (B, M)
    labels = np.where(is_prediction, labels, IGNORED_LABEL)
    is_token = np.arange(width) < lengths[:, None]  # (B, S)
    is_padded = not is_token.all()
    return Batch(
        input_ids=torch.from_numpy(input_ids.astype(np.int64)),
        attention_mask=torch.from_numpy(is_token) if is_padded else None,
        token_rows=torch.from_numpy(np.flatnonzero(is_token)) if is_padded else None,
        token_type_ids=torch.from_numpy(_segments(columns.segment_b_start, lengths, width)),
        masked_lm_positions=torch.from_numpy(positions.astype(np.int64)),
        prediction_rows=torch.from_numpy(np.flatnonzero(is_prediction)),
        labels=torch.from_numpy(labels.astype(np.int64)),
        next_sentence_label=torch.from_numpy(columns.is_random_next.astype(np.int64)),
        num_tokens=int(lengths.sum()),
        num_predictions=int(counts.sum()),
        squared_lengths=int((lengths.astype(np.int64) ** 2).sum()),
    )


def _segments(segment_b_start: np.ndarray, lengths: np.ndarray, width: int) -> np.ndarray:
    """Return segment ids (B, S) int64: 1 from B's first token to the last, 0 in the padding, as in google's files."""
    positions = np.arange(width)
    return ((positions >= segment_b_start[:, None]) & (positions < lengths[:, None])).astype(np.int64)


def select_rows(columns: InstanceColumns, rows: np.ndarray) -> InstanceColumns:
    """Take some instances, in the order of `rows`."""
    input_ids, offsets = _select_ragged(columns.input_ids, columns.offsets, rows)
    positions = ids = masked_offsets = None
    if columns.masked_offsets is not None:
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


def _select_ragged(flat: np.ndarray, offsets: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    lengths = offsets[rows + 1] - offsets[rows]
    selected = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(lengths, out=selected[1:])
    source = np.repeat(offsets[rows] - selected[:-1], lengths) + np.arange(selected[-1])
    return flat[source], selected


def concatenate(parts: list[Samples]) -> Samples:
    """Join samples in order."""
    if len(parts) == 1:
        return parts[0]
    columns = [part.columns for part in parts]
    static = columns[0].is_masked
    if any(item.is_masked != static for item in columns):
        raise ArtefactError("some shards hold static masks and some do not; make the instances again in one go")

    def join(name: str) -> np.ndarray:
        return np.concatenate([getattr(item, name) for item in columns])

    def join_offsets(name: str) -> np.ndarray:
        lengths = np.concatenate([np.diff(getattr(item, name)) for item in columns])
        return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])

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
