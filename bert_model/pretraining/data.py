"""Instance reader of pre-training: a deterministic order, read by position, and rank slices.

The order of samples is a function of (seed, epoch): the row groups of all shards are permuted, W consecutive ones form
a window, and the rows of a window are permuted. The position in a run is one integer, the number of samples seen, so
resuming at any position reads one window.

Data flow: InstanceSplit (files) -> InstanceReader.take (the global batch) -> batch.py: split_micro_batches (a rank's
part) -> make_batch (tensors).

Shapes: N instances.
"""

import functools
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bert_model.training.home import artifact_cache
from bert_pipeline.errors import ArtifactError, ConfigurationError
from bert_pipeline.instances.columns import InstanceColumns, join, offsets_of
from bert_pipeline.instances.directory import (
    Shard,
    check_vocabulary,
    load_instances,
    open_shard,
    shard_paths,
    verify_shard,
)
from bert_pipeline.manifest import local_artifact
from bert_pipeline.storage import version_of
from bert_pipeline.vocabulary.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

Integers = npt.NDArray[np.int64]

_READING = threading.Lock()
"""Held while a shard is read: the thread that reads ahead shares its open file with the others, and no library lets two
read from one at a time."""

MAX_REPORTED_ROWS = 1000
"""Rows of a batch that an error names."""

# Independent streams of numpy's generator for one (seed, epoch).
_GROUP_ORDER, _ROW_ORDER = 0, 1


@functools.lru_cache(maxsize=8)
def open_cached_shard(path: Path, version: str) -> Shard:
    """Open a shard of instances; the most recently used ones stay open, until they have another `version_of`."""
    return open_shard(path)


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Consecutive rows of a shard, the unit of reading."""

    path: Path
    index: int
    num_rows: int
    first_row: int
    """Index of the first row among all rows of the split; masks are keyed on it."""
    version: str
    """Version of the shard when it was verified."""


@dataclass(frozen=True, kw_only=True)
class Samples(InstanceColumns):
    """Instances and the keys of their masks."""

    sample_indices: Integers
    """(N,): row indices in the split."""
    epochs: Integers
    """(N,): the epoch in which each is read."""

    def select(self, rows: Integers) -> "Samples":
        """Return the instances at `rows`, in that order."""
        of_instances = ("segment_b_start", "is_random_next", "sample_indices", "epochs")
        chosen = {name: getattr(self, name)[rows] for name in of_instances}
        # Each offset belongs to one or two ragged arrays; without static masks the second does not exist.
        of_tokens = ["input_ids", *["continues_word"] * (self.continues_word is not None)]
        for ends, names in (("offsets", of_tokens), ("masked_offsets", ["masked_lm_positions", "masked_lm_ids"])):
            offsets = getattr(self, ends)
            if offsets is not None:
                lengths = offsets[rows + 1] - offsets[rows]
                chosen[ends] = offsets_of(lengths)
                # Value i of the result is value i of the source plus the shift of its row.
                source = np.repeat(offsets[rows] - chosen[ends][:-1], lengths) + np.arange(chosen[ends][-1])
                chosen |= {name: getattr(self, name)[source] for name in names}
        return Samples(**chosen)


class InstanceSplit:
    """The instances of one split ("train" or "held_out") of an instance directory."""

    def __init__(self, directory: Path | str, split: str) -> None:
        """Read the manifest and the shards' footers; raise ArtifactError if the directory is incomplete.

        A directory of TFRecord files written by google-research/bert needs no manifest. Of a directory in a store a
        copy is read, because rows are read in random order and again in each epoch.
        """
        self.manifest = load_instances(local_artifact(directory, artifact_cache()))
        self.split = split
        self.tokenizer: Tokenizer | None = None
        self.groups: list[RowGroup] = []
        # Rows are numbered across the shards, in the manifest's order; masks are keyed on these numbers.
        first_row = 0
        for path in shard_paths(self.manifest, split):
            verify_shard(self.manifest, path)
            version = version_of(path)
            shard = open_cached_shard(path, version)
            for index, num_rows in enumerate(shard.row_group_sizes):
                if num_rows:
                    self.groups.append(RowGroup(path, index, num_rows, first_row, version))
                    first_row += num_rows
            # A shard of another run has a valid footer too; google's files have no rows in the manifest.
            listed = self.manifest.files[path.relative_to(self.manifest.path).as_posix()].get("rows")
            total = sum(shard.row_group_sizes)
            if listed not in (None, total):
                raise ArtifactError(f"{path}: holds {total} instances, its manifest lists {listed}; make it again")
        self.num_instances = first_row

    def read(self, group: RowGroup) -> InstanceColumns:
        """Read one row group; after `check_vocabulary`, InputError if it does not fit the vocabulary either."""
        with _READING:
            columns = open_cached_shard(group.path, group.version).read_row_group(group.index)
        if self.tokenizer is not None:
            check_vocabulary(columns, self.tokenizer, f"{group.path}: row group {group.index}")
        return columns

    def sample(self, num_groups: int = 8) -> Samples:
        """Read up to `num_groups` row groups, evenly spread: what the split's instances are like."""
        indices = np.unique(np.linspace(0, len(self.groups) - 1, num_groups, dtype=np.int64))
        return _read_groups(self, [self.groups[index] for index in indices], epoch=0)

    def check_vocabulary(self, tokenizer: Tokenizer) -> None:
        """Raise InputError if the first row group does not fit the vocabulary; `read` checks the others."""
        self.tokenizer = tokenizer
        for group in self.groups[:1]:
            self.read(group)

    def check_fits(self, *, max_seq_length: int, where: str) -> None:
        """Raise ConfigurationError if the instances are longer than a phase allows, ArtifactError if there are none.

        Log a warning if they are shorter.
        """
        made_for = self.manifest.configuration.get("max_seq_length", max_seq_length)
        if made_for > max_seq_length:
            raise ConfigurationError(
                f"{where}: the instances in {self.manifest.path} were made for max_seq_length={made_for}, "
                f"the phase has {max_seq_length}"
            )
        if made_for < max_seq_length:
            logger.warning(
                f"{where}: {self.manifest.path} was made for max_seq_length={made_for}, the phase has "
                f"{max_seq_length}: positions from {made_for} on are not trained by it"
            )  # fmt: skip
        if not self.num_instances:
            raise ArtifactError(f"{self.manifest.path}: holds no instances in {self.split}/; make it from more text")


class Window(NamedTuple):
    """Row groups that are in memory, and shuffled, together."""

    positions: range
    epoch: int
    groups: Integers
    """Indices of its row groups, in permuted order."""
    rows: Integers
    """The permutation of its rows, which are numbered across its row groups."""


def window_at(position: int, group_sizes: Integers, *, seed: int, groups_per_window: int) -> Window:
    """Return the window that a position is in, of row groups with so many rows each."""
    num_samples = int(group_sizes.sum())
    epoch, offset = divmod(position, num_samples)
    order = np.random.default_rng((seed, epoch, _GROUP_ORDER)).permutation(len(group_sizes))
    starts = offsets_of(group_sizes[order])[:-1:groups_per_window]  # of the windows of this epoch
    window = int(np.searchsorted(starts, offset, side="right")) - 1
    groups = order[window * groups_per_window : (window + 1) * groups_per_window]
    count, start = int(group_sizes[groups].sum()), epoch * num_samples + int(starts[window])
    rows = np.random.default_rng((seed, epoch, _ROW_ORDER, window)).permutation(count)
    return Window(range(start, start + count), epoch, groups, rows)


class InstanceReader:
    """Reads samples by position; one window of row groups is in memory at a time.

    With an `executor` its thread reads the next window meanwhile, and two are in memory.
    """

    def __init__(
        self, split: InstanceSplit, *, seed: int, groups_per_window: int, executor: ThreadPoolExecutor | None = None
    ) -> None:
        self.source = split
        sizes = np.array([group.num_rows for group in split.groups], dtype=np.int64)
        self._window_at = functools.partial(
            window_at, group_sizes=sizes, seed=seed, groups_per_window=groups_per_window
        )
        self._executor = executor
        # The window in memory with its rows, and the one that is read ahead.
        self._held: tuple[Window, Samples] | None = None
        self._ahead: tuple[Window, Future[Samples]] | None = None

    def take(self, position: int, count: int) -> Samples:
        """Read the samples at positions `position` to `position + count - 1`, across windows and epochs."""
        parts = []
        while count:
            # A window may end here: then fewer rows than `count` are taken, and the next window or epoch follows.
            parts.append(self._take(position, count))
            position += parts[-1].num_instances
            count -= parts[-1].num_instances
        return concatenate(parts)

    def describe(self, start: int, end: int) -> str:
        """Name the samples of a step, and their rows of the split, counted over all its shards."""
        samples = self.take(start, min(end - start, MAX_REPORTED_ROWS))
        rows = ", ".join(map(str, sorted(samples.sample_indices.tolist())))
        return f"samples {start} to {end - 1} of {self.source.manifest.path}: rows {rows}"

    def _take(self, position: int, count: int) -> Samples:
        """Read the window of a position, and return its samples from there on, at most `count`."""
        if self._held is None or position not in self._held[0].positions:
            self._held = None  # free the old window before reading the new one
            ahead, self._ahead = self._ahead, None
            if ahead is not None and position in ahead[0].positions:
                self._held = ahead[0], ahead[1].result()
            else:
                window = self._window_at(position)
                self._held = window, self._read(window)
            if self._executor is not None:
                following = self._window_at(self._held[0].positions.stop)
                self._ahead = following, self._executor.submit(self._read, following)
        window, samples = self._held
        offset = position - window.positions.start
        return samples.select(window.rows[offset : offset + count])

    def _read(self, window: Window) -> Samples:
        return _read_groups(self.source, [self.source.groups[index] for index in window.groups], window.epoch)


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
    indices = np.arange(group.first_row, group.first_row + group.num_rows, dtype=np.int64)
    return Samples(**vars(split.read(group)), sample_indices=indices, epochs=np.full_like(indices, epoch))


def rank_rows(lengths: Integers, *, rank: int, world_size: int) -> Integers:
    """Return which rows of a global batch of these lengths a rank gets, by decreasing length.

    They are dealt in serpentine order (0, 1, 1, 0, …), so that ranks get nearly equal numbers of tokens.
    """
    order = np.argsort(-lengths, kind="stable")
    rounds, places = np.divmod(np.arange(len(order)), world_size)
    owner = np.where(rounds % 2 == 0, places, world_size - 1 - places)
    rows: Integers = order[owner == rank]
    return rows


def concatenate(parts: list[Samples]) -> Samples:
    """Concatenate samples in order."""
    if len(parts) == 1:
        return parts[0]
    for column in ("masked_lm_positions", "continues_word"):
        if len({getattr(part, column) is None for part in parts}) > 1:
            raise ArtifactError(f"some shards hold {column} and some do not; make the instances again in one run")
    return join(parts)
