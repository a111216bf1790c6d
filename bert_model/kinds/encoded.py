"""Encoded examples as flat arrays, and batches of rows of similar length.

Rows are stored end to end without padding, so that a set takes no more memory than its tokens and can be mapped from
disk. Rows of similar length share a batch, so that little is padded.

Shapes: T tokens of all rows, R rows, N examples, C rows to an example (multiple choice), B units of a batch,
S positions, K hidden states of a frozen encoder, H hidden size.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from bert_model.model.config import IGNORED_LABEL
from bert_pipeline.vocabulary.tokenizer import Tokenizer

ARRAYS = ("input_ids", "offsets", "segment_b_start", "example_index", "truncated")
"""Fields of a set that are stored as they are."""
POOL_BATCHES = 16
"""Training sorts by length within pools of so many batches: wide enough to save padding, narrow enough to mix."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EncodedSet:
    """All rows of one split, in the order of its examples.

    A unit is what batches are counted in: a row, or for multiple choice the C rows of an example.
    """

    num_examples: int
    rows_per_example: int
    """C for multiple choice, whose rows are read together; 1 for every other kind."""
    input_ids: np.ndarray
    """(T,) int32."""
    offsets: np.ndarray
    """(R+1,) int64: row r is input_ids[offsets[r]:offsets[r+1]]."""
    segment_b_start: np.ndarray
    """(R,) int32: index in the row of the first token of segment B; the row's length where there is none."""
    example_index: np.ndarray
    """(R,) int32: the example that the row belongs to."""
    row_columns: Mapping[str, np.ndarray]
    """(R,) or, for multiple choice, (N,) arrays, such as labels, start_positions and end_positions."""
    token_columns: Mapping[str, np.ndarray]
    """(T,) arrays, such as labels of tokens and character offsets."""
    truncated: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    """Indices of the examples whose texts were cut to fit, ascending."""
    window_pooling: str = "mean"
    """How the outputs for the windows of an example become one: `mean` or `max`."""
    pad_id: int = 0
    """Id of [PAD], which fills a batch."""
    features: tuple[np.ndarray, ...] = ()
    """K arrays (T, H): what a feature-based tagger reads; not saved with the set."""

    @property
    def num_rows(self) -> int:
        return len(self.offsets) - 1

    @property
    def num_units(self) -> int:
        return self.num_rows // self.rows_per_example

    @property
    def per_token(self) -> bool:
        """Whether a model has an output for each token, as for spans and tags, rather than for each unit."""
        return bool(self.token_columns)

    def lengths(self) -> np.ndarray:
        """Return the number of tokens of each row, (R,)."""
        return np.diff(self.offsets)

    def unit_lengths(self) -> np.ndarray:
        """Return the length of the longest row of each unit, (units,)."""
        return np.asarray(self.lengths().reshape(self.num_units, self.rows_per_example).max(axis=1))

    def units_of_batch(self, batch_size: int) -> int:
        """Return how many units make a batch of so many examples, at most as many; a window of SQuAD counts as one.

        A row of tags may have many sentences: as many rows as hold `batch_size` sentences on average.
        """
        return min(batch_size, max(1, round(batch_size * self.num_rows / self.num_examples)))

    def token_indices(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return where a padded batch of rows has tokens, bool (rows, S), and the indices of these in (T,) arrays."""
        lengths = self.lengths()[rows]
        columns = np.arange(int(lengths.max()))
        inside = columns < lengths[:, None]  # (rows, S)
        return inside, (self.offsets[rows][:, None] + columns)[inside]

    def pooled(self, outputs: np.ndarray) -> np.ndarray:
        """Return the outputs for examples, (N, labels), of those for units: the mean or maximum over their windows."""
        if self.num_units == self.num_examples:
            return outputs
        windows = np.split(outputs, np.flatnonzero(np.diff(self.example_index)) + 1)
        return np.stack([getattr(own, self.window_pooling)(axis=0) for own in windows])

    def padded(self, units: np.ndarray) -> dict[str, np.ndarray]:
        """Gather units into a padded batch under Hugging Face's names.

        Shapes are (B, S), or (B, C, S) for multiple choice; row columns become (B,), token labels (B, S), features
        (B, S, K, H). All are int64 except float32 features and labels of a regression.
        """
        # The rows of all units in one list, which `reshape(shape)` folds back into units.
        count = self.rows_per_example
        rows = (units[:, None] * count + np.arange(count)).reshape(-1)  # (B*C,)
        inside, tokens = self.token_indices(rows)
        width = inside.shape[1]
        shape = (len(units), count, width) if count > 1 else (len(units), width)

        def gather(flat: np.ndarray, fill: int) -> np.ndarray:
            padded = np.full(inside.shape, fill, dtype=np.int64)
            padded[inside] = flat[tokens]
            return padded.reshape(shape)

        in_segment_b = inside & (np.arange(width) >= self.segment_b_start[rows][:, None])
        batch = {
            "input_ids": gather(self.input_ids, self.pad_id),
            "attention_mask": inside.astype(np.int64).reshape(shape),
            "token_type_ids": in_segment_b.astype(np.int64).reshape(shape),
        }

        # torch's losses take classes and positions as int64, numbers as float32.
        for name, values in self.row_columns.items():
            chosen = values[units]
            batch[name] = chosen if chosen.dtype == np.float32 else chosen.astype(np.int64)
        if "labels" in self.token_columns:
            batch["labels"] = gather(self.token_columns["labels"], IGNORED_LABEL)
        if self.features:
            shape = (*inside.shape, len(self.features), self.features[0].shape[1])
            batch["features"] = np.zeros(shape, dtype=np.float32)
            for index, states in enumerate(self.features):
                batch["features"][inside, index] = states[tokens]
        return batch

    def save(self, directory: Path) -> None:
        """Write the arrays as .npy files and the rest as JSON."""
        directory.mkdir(parents=True)
        names = ("num_examples", "rows_per_example", "window_pooling", "pad_id")
        description = {name: getattr(self, name) for name in names}
        (directory / "set.json").write_text(json.dumps(description), encoding="utf-8")
        arrays = {
            **{name: getattr(self, name) for name in ARRAYS},
            **{f"row.{name}": array for name, array in self.row_columns.items()},
            **{f"token.{name}": array for name, array in self.token_columns.items()},
        }
        for name, array in arrays.items():
            np.save(directory / f"{name}.npy", array, allow_pickle=False)

    @classmethod
    def load(cls, directory: Path) -> "EncodedSet":
        """Load a saved set; arrays larger than a megabyte are mapped."""
        description = json.loads((directory / "set.json").read_text(encoding="utf-8"))
        arrays = {
            path.stem: np.load(path, mmap_mode="r" if path.stat().st_size > 1 << 20 else None, allow_pickle=False)
            for path in sorted(directory.glob("*.npy"))
        }

        # File names tell the kinds apart: row.NAME, token.NAME, and the set's own arrays without a dot.
        row_columns = {name[4:]: array for name, array in arrays.items() if name.startswith("row.")}
        token_columns = {name[6:]: array for name, array in arrays.items() if name.startswith("token.")}
        main = {name: arrays[name] for name in ARRAYS}
        return cls(**description, **main, row_columns=row_columns, token_columns=token_columns)


class Row(NamedTuple):
    """A row of a set in the making."""

    input_ids: np.ndarray
    """int32, as all arrays of tokens."""
    segment_b_start: int
    example_index: int
    is_cut: bool = False
    """Whether texts of the example were cut to fit."""
    token_columns: Mapping[str, np.ndarray] = MappingProxyType({})
    """Each has one value for each token; all rows of a set have the same columns."""


def joined(rows: Sequence[Row], num_examples: int, tokenizer: Tokenizer, *, rows_per_example: int = 1) -> EncodedSet:
    """Return a set of rows, end to end, without row columns."""
    columns = {name: [row.token_columns[name] for row in rows] for name in (rows[0].token_columns if rows else ())}
    return EncodedSet(
        num_examples=num_examples,
        rows_per_example=rows_per_example,
        input_ids=np.concatenate([np.zeros(0, dtype=np.int32), *(row.input_ids for row in rows)]),
        offsets=np.cumsum([0, *(len(row.input_ids) for row in rows)], dtype=np.int64),
        segment_b_start=np.asarray([row.segment_b_start for row in rows], dtype=np.int32),
        example_index=np.asarray([row.example_index for row in rows], dtype=np.int32),
        row_columns={},
        token_columns={name: np.concatenate(arrays, dtype=np.int32) for name, arrays in columns.items()},
        truncated=np.unique([row.example_index for row in rows if row.is_cut]).astype(np.int32),
        pad_id=tokenizer.pad_id,
    )


def token_windows(num_tokens: int, room: int, stride: int) -> list[tuple[int, int]]:
    """Return (first, end) of the windows over a text, as in google's run_squad.py; without a stride the first alone.

    A stride longer than the window would skip tokens, so it is at most the window's length.
    """
    windows = []
    first = 0
    while True:
        end = min(first + room, num_tokens)
        windows.append((first, end))
        if end == num_tokens or not stride:
            return windows
        first += min(stride, end - first)


def training_batches(lengths: np.ndarray, batch_size: int, *, seed: int, epoch: int) -> list[np.ndarray]:
    """Return the batches of one epoch, each an array of unit indices: every unit exactly once.

    The order is a function of (seed, epoch): a permutation is cut into pools, each pool is sorted by length and cut
    into batches, and the batches are shuffled. The incomplete batch is cut off before sorting, so that it does not
    always hold the longest rows.
    """
    rng = np.random.default_rng([seed, epoch])
    order = rng.permutation(len(lengths))
    pool = POOL_BATCHES * batch_size
    batches = []
    for start in range(0, len(order), pool):
        # Sorted within the pool only, by a stable sort, so that equal lengths keep their random order.
        members = order[start : start + pool]
        full = len(members) - len(members) % batch_size
        whole, rest = members[:full], members[full:]
        ranked = whole[np.argsort(lengths[whole], kind="stable")]
        batches.extend(np.split(ranked, max(1, full // batch_size)) if full else [])
        if len(rest):
            batches.append(rest)
    return [batches[index] for index in rng.permutation(len(batches))]


def prediction_batches(lengths: np.ndarray, tokens_per_batch: int) -> list[np.ndarray]:
    """Return batches of unit indices sorted by length, each of at most `tokens_per_batch` padded tokens."""
    order = np.argsort(lengths, kind="stable")[::-1]  # the longest first, so that a lack of memory shows at once
    batches = []
    start = 0
    while start < len(order):
        width = max(1, int(lengths[order[start]]))
        count = max(1, tokens_per_batch // width)
        batches.append(order[start : start + count])
        start += count
    return batches


def num_training_steps(num_units: int, batch_size: int, epochs: float) -> int:
    """Return the optimizer steps of so many epochs, at least one."""
    return max(1, round(-(-num_units // batch_size) * epochs))
