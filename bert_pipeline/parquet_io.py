"""Open Parquet files, check their columns and checksums, and read row groups as flat arrays.

Each page of a file that was written with `write_page_checksum` has a CRC-32, which is verified when it is read. The
footer, which says where the pages are and what they hold, has none: manifests have its hash. What is left are the
headers of pages: their damage is an error of the reader, or changes nothing.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bert_pipeline.errors import ArtifactError, BertError, InputError
from bert_pipeline.storage import arrow_source, failure_of, open_binary, read_errors


@contextlib.contextmanager
def arrow_errors(path: Path | str, kind: type[BertError], message: str) -> Iterator[None]:
    """Turn what Arrow raises in the block into the error of the store, or one whose message has the reason for {}."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeError) as error:  # UnicodeError: a name that is not UTF-8
        reason = " ".join(str(error).split())
        raise failure_of(error, path) or kind(f"{path}: {message.format(reason)}") from error


def open_parquet(
    path: Path | str, schema: pa.Schema, what: str, *, buffer_size: int = 0, remedy: str = ""
) -> pq.ParquetFile:
    """Open a Parquet file. InputError if it is not `what`: unreadable, or without the columns of `schema`.

    The error of a missing column ends with the `remedy`. With a `buffer_size` in bytes, a row group can be read in
    batches without holding all of it.
    """
    with arrow_errors(path, InputError, f"not {what}: {{}}"):
        file = pq.ParquetFile(
            arrow_source(path), buffer_size=buffer_size, pre_buffer=not buffer_size, page_checksum_verification=True
        )
    # Further columns are allowed. The caller gets no file to close on an error, so it is closed here.
    file_schema = file.schema_arrow
    for field in schema:
        if field.name not in file_schema.names:
            file.close()
            columns = ", ".join(file_schema.names)
            raise InputError(f"{path}: not {what}: found columns {columns}, expected {field.name!r} too{remedy}")
        if not _same_type(file_schema.field(field.name).type, field.type):
            kind = file_schema.field(field.name).type
            file.close()
            raise InputError(f"{path}: not {what}: column {field.name!r} holds {kind}, expected {field.type}")
    return file


def read_row_group(file: pq.ParquetFile, index: int, path: Path | str, columns: list[str] | None = None) -> pa.Table:
    """Read one row group. ArtifactError if its bytes are damaged."""
    with arrow_errors(path, ArtifactError, f"row group {index} cannot be read ({{}}); make the file again"):
        return file.read_row_group(index, columns=columns)


_MAX_ROWS_AT_ONCE = 128
_BYTES_AT_ONCE = 1 << 20
"""Size of the rows that are decoded at once, if all rows of a group have the mean: rows may be books."""


def parquet_rows(
    file: pq.ParquetFile, path: Path | str, groups: Iterable[int], columns: list[str] | None = None
) -> Iterator[dict[str, Any] | Exception]:
    """Yield the rows of row groups, as `rows_of` does. InputError if their bytes are damaged."""
    with file:
        for index in groups:
            group = file.metadata.row_group(index)
            mean = 1 + group.total_byte_size // max(1, group.num_rows)
            rows_at_once = min(max(1, _BYTES_AT_ONCE // mean), _MAX_ROWS_AT_ONCE)
            with arrow_errors(path, InputError, f"row group {index} cannot be read ({{}}); fetch the file again"):
                for batch in file.iter_batches(rows_at_once, [index], columns, use_threads=False):
                    yield from rows_of(batch)


_UNREADABLE = (ValueError, OverflowError)
"""What a value raises that Python cannot hold: a text that is not UTF-8, a date after the year 9999."""


def rows_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any] | Exception]:
    """Yield the rows of a batch; in place of one that Python cannot hold, the error."""
    try:
        yield from batch.to_pylist()
    except _UNREADABLE as error:
        if batch.num_rows == 1:
            yield error
            return
        for index in range(batch.num_rows):  # one by one, so that the other rows are read
            yield from rows_of(batch.slice(index, 1))


_TAIL = 8
"""Bytes at the end of a Parquet file: the length of the footer before them, and "PAR1"."""


def footer_sha256(path: Path | str) -> str:
    """Return the hash of what is not in a page: "PAR1", the footer and its length. InputError if it cannot be read."""
    with read_errors(path), open_binary(path) as stream:
        digest = hashlib.sha256(stream.read(4))
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - _TAIL))
        length = int.from_bytes(stream.read(4), "little")
        stream.seek(max(0, size - _TAIL - length))
        digest.update(stream.read())
        return digest.hexdigest()


def _same_type(found: pa.DataType, expected: pa.DataType) -> bool:
    """Compare types, ignoring the names that writers give to list elements and how they store text."""
    if pa.types.is_dictionary(found):
        found = found.value_type
    if pa.types.is_large_string(found) or pa.types.is_string_view(found):
        found = pa.string()
    if pa.types.is_list(found) and pa.types.is_list(expected):
        return bool(found.value_type == expected.value_type)
    return bool(found == expected)


# `pa.array` and `to_numpy` import pandas where it is installed, which takes a quarter second: these three do not.


def numbers_of(array: pa.Array) -> np.ndarray:
    """Return the numbers (N,) of an Arrow array without nulls; they may not be changed."""
    return np.from_dlpack(array)


def number_array(values: np.ndarray) -> pa.Array:
    """Return numbers (N,) in Arrow."""
    flat = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(flat.dtype), len(flat), [None, pa.py_buffer(flat)])


def string_array(texts: Sequence[str]) -> pa.StringArray:
    """Return texts in Arrow. InputError if they have 2^31 bytes or more, which one array cannot hold."""
    encoded = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, encoded)])
    if offsets[-1] >= 1 << 31:
        raise InputError(
            f"found {offsets[-1]:,} bytes in texts that are held at once, expected less than 2^31; cut them"
        )
    data = pa.py_buffer(b"".join(encoded))
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(offsets.astype(np.int32)), data)


def list_array(offsets: np.ndarray, values: np.ndarray | pa.Array) -> pa.ListArray:
    """Return N lists with `offsets` (N + 1,) into `values`, which are int32 if they are numbers."""
    base = offsets[0]
    elements = values[base : offsets[-1]]
    flat = elements if isinstance(elements, pa.Array) else number_array(elements.astype(np.int32))
    return pa.ListArray.from_arrays(number_array((offsets - base).astype(np.int32)), flat)


def list_offsets(lists: pa.ListArray) -> np.ndarray:
    """Return offsets (N + 1,) into `lists.flatten()`, which drops values outside of a slice."""
    offsets: np.ndarray = numbers_of(lists.offsets).astype(np.int64)
    offsets -= offsets[0]
    return offsets
