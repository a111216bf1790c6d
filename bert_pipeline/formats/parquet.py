"""Documents and instances in Parquet: written a row group at a time, read a row group at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bert_pipeline.errors import ArtefactError, InputError
from bert_pipeline.formats.columns import InstanceColumns

if TYPE_CHECKING:
    from bert_pipeline.documents import Document

DOCUMENT_SCHEMA = pa.schema(
    [
        ("document_id", pa.string()),
        ("title", pa.string()),
        ("language", pa.string()),
        ("sentences", pa.list_(pa.string())),
        ("passage_starts", pa.list_(pa.int32())),
        ("split", pa.string()),
    ]
)
DOCUMENTS_PER_ROW_GROUP = 512

INSTANCE_SCHEMA = pa.schema(
    [
        ("input_ids", pa.list_(pa.int32())),
        ("segment_b_start", pa.int32()),
        ("is_random_next", pa.bool_()),
    ]
)
MASKED_INSTANCE_SCHEMA = pa.schema(
    [
        *INSTANCE_SCHEMA,
        ("masked_lm_positions", pa.list_(pa.int32())),
        ("masked_lm_ids", pa.list_(pa.int32())),
    ]
)
INSTANCES_PER_ROW_GROUP = 4096


def write_documents(path: Path | str, documents: Iterable[Document]) -> int:
    """Write documents to one Parquet file, holding 512 of them at a time; returns how many."""
    count = 0
    with pq.ParquetWriter(path, DOCUMENT_SCHEMA, compression="zstd") as writer:
        batch: list[Document] = []
        for document in documents:
            batch.append(document)
            if len(batch) == DOCUMENTS_PER_ROW_GROUP:
                writer.write_table(document_table(batch))
                count += len(batch)
                batch = []
        if batch:
            writer.write_table(document_table(batch))
            count += len(batch)
    return count


def document_table(documents: list[Document]) -> pa.Table:
    """The documents as one table."""
    columns = [pa.array([getattr(d, field.name) for d in documents], type=field.type) for field in DOCUMENT_SCHEMA]
    return pa.Table.from_arrays(columns, schema=DOCUMENT_SCHEMA)


def read_documents(path: Path | str) -> Iterator[Document]:
    """Yield the documents of one Parquet file, a row group at a time. InputError when it is not a document shard."""
    # Training processes read instances only: they need not load the document sources.
    from bert_pipeline.documents import Document

    with _open(path, DOCUMENT_SCHEMA, "a corpus shard") as file:
        for index in range(file.num_row_groups):
            for row in _row_group(file, index, path, DOCUMENT_SCHEMA.names).to_pylist():
                row["sentences"] = tuple(row["sentences"])
                row["passage_starts"] = tuple(row["passage_starts"])
                yield Document(**row)


def read_sentences(path: Path | str) -> Iterator[tuple[pa.Table, np.ndarray, pa.Array]]:
    """Yield, for each row group of a document shard, what counting and instance making need, without Python objects.

    A triple: the table (`document_id`, `split`), the offsets (D + 1,) of each document's sentences, and the sentences
    of all of them as one string array.
    """
    with _open(path, DOCUMENT_SCHEMA, "a corpus shard") as file:
        for index in range(file.num_row_groups):
            table = _row_group(file, index, path, ["document_id", "split", "sentences"])
            sentences = _one_chunk(table, "sentences")
            yield table, _offsets(sentences), sentences.flatten()


class InstanceWriter:
    """Writes instances to one Parquet file, unpadded; every `write` makes row groups of at most 4,096 instances."""

    def __init__(self, path: Path | str, *, static_masks: bool) -> None:
        self.rows = 0
        self.static_masks = static_masks
        self.schema = MASKED_INSTANCE_SCHEMA if static_masks else INSTANCE_SCHEMA
        # Token ids repeat too little for dictionary pages to pay; byte streams of equal significance compress well.
        lists = [f"{name}.list.element" for name in ("input_ids", "masked_lm_ids") if name in self.schema.names]
        self._writer = pq.ParquetWriter(
            path,
            self.schema,
            compression="zstd",
            use_dictionary=False,
            use_byte_stream_split=lists,
            write_statistics=False,
        )

    def write(self, columns: InstanceColumns) -> None:
        """Append instances. ValueError when masks are there and not expected, or the reverse."""
        if columns.is_masked != self.static_masks:
            raise ValueError(f"instances {'with' if columns.is_masked else 'without'} masks, opened for the other kind")
        arrays = [
            _list_array(columns.offsets, columns.input_ids),
            pa.array(columns.segment_b_start, type=pa.int32()),
            pa.array(columns.is_random_next, type=pa.bool_()),
        ]
        if columns.masked_offsets is not None:
            assert columns.masked_lm_positions is not None
            assert columns.masked_lm_ids is not None
            arrays.append(_list_array(columns.masked_offsets, columns.masked_lm_positions))
            arrays.append(_list_array(columns.masked_offsets, columns.masked_lm_ids))
        table = pa.Table.from_arrays(arrays, schema=self.schema)
        self._writer.write_table(table, row_group_size=INSTANCES_PER_ROW_GROUP)
        self.rows += columns.num_instances

    def close(self) -> None:
        self._writer.close()

    def __enter__(self) -> InstanceWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class ParquetInstances:
    """One instance shard, read a row group at a time."""

    def __init__(self, path: Path | str) -> None:
        """InputError when the file is not an instance shard."""
        self.path = Path(path)
        self._file = _open(path, INSTANCE_SCHEMA, "an instance shard")
        metadata = self._file.metadata
        self.row_group_sizes: tuple[int, ...] = tuple(
            metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)
        )
        self.has_static_masks = "masked_lm_positions" in self._file.schema_arrow.names

    @property
    def num_row_groups(self) -> int:
        return len(self.row_group_sizes)

    @property
    def num_instances(self) -> int:
        return sum(self.row_group_sizes)

    def read_row_group(self, index: int) -> InstanceColumns:
        """Read one row group. ArtefactError when its bytes are damaged."""
        table = _row_group(self._file, index, self.path)
        input_ids = _one_chunk(table, "input_ids")
        masked: dict[str, np.ndarray] = {}
        if self.has_static_masks:
            positions = _one_chunk(table, "masked_lm_positions")
            masked["masked_lm_positions"] = positions.flatten().to_numpy()
            masked["masked_lm_ids"] = _one_chunk(table, "masked_lm_ids").flatten().to_numpy()
            masked["masked_offsets"] = _offsets(positions)
        return InstanceColumns(
            input_ids=input_ids.flatten().to_numpy(),
            offsets=_offsets(input_ids),
            segment_b_start=_one_chunk(table, "segment_b_start").to_numpy(),
            is_random_next=_one_chunk(table, "is_random_next").to_numpy(zero_copy_only=False),
            **masked,
        )

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> ParquetInstances:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def open_instances(path: Path | str) -> ParquetInstances:
    """Open one Parquet instance shard. InputError when it is not one."""
    return ParquetInstances(path)


def _open(path: Path | str, schema: pa.Schema, what: str) -> pq.ParquetFile:
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: not {what}: {error}") from error
    found = file.schema_arrow
    for field in schema:
        if field.name not in found.names:
            file.close()
            raise InputError(f"{path}: not {what}: found columns {', '.join(found.names)}, expected {field.name!r} too")
        if not _same_type(found.field(field.name).type, field.type):
            kind = found.field(field.name).type
            file.close()
            raise InputError(f"{path}: not {what}: column {field.name!r} holds {kind}, expected {field.type}")
    return file


def _row_group(file: pq.ParquetFile, index: int, path: Path | str, columns: list[str] | None = None) -> pa.Table:
    try:
        return file.read_row_group(index, columns=columns)
    except (pa.ArrowException, OSError) as error:
        raise ArtefactError(f"{path}: row group {index} cannot be read ({error}); make the file again") from error


def _same_type(found: pa.DataType, expected: pa.DataType) -> bool:
    """Compare types without the names that writers give to list elements."""
    if pa.types.is_list(found) and pa.types.is_list(expected):
        return found.value_type == expected.value_type
    return found == expected


def _list_array(offsets: np.ndarray, values: np.ndarray) -> pa.ListArray:
    base = offsets[0]
    flat = pa.array(values[base : offsets[-1]], type=pa.int32())
    return pa.ListArray.from_arrays(pa.array((offsets - base).astype(np.int32)), flat)


def _one_chunk(table: pa.Table, name: str) -> pa.Array:
    return table.column(name).combine_chunks() if table.num_rows else pa.array([], type=table.schema.field(name).type)


def _offsets(lists: pa.ListArray) -> np.ndarray:
    """Offsets (N + 1,) into `lists.flatten()`, which drops what a slice does not cover."""
    offsets = lists.offsets.to_numpy().astype(np.int64)
    return offsets - offsets[0]
