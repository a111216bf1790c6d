"""Documents in Parquet: their columns, and readers that hold one row group at a time."""

import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterator, Sequence, Sized
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bert_pipeline.failed_records import failure
from bert_pipeline.parquet_io import list_array, list_offsets, open_parquet, read_row_group, string_array

Value = TypeVar("Value")

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


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """One article, book or pair: its sentences in order, and the starts of its passages."""

    document_id: str
    """Unique in its corpus, such as "enwiki:12"."""
    title: str
    language: str
    """Language code, such as "en"."""
    sentences: tuple[str, ...]
    passage_starts: tuple[int, ...]
    """Index of the first sentence of each passage; ascending, the first is 0."""
    split: Literal["train", "held_out"] = "train"

    @property
    def passages(self) -> list[tuple[str, ...]]:
        """The sentences of each passage."""
        stops = (*self.passage_starts[1:], len(self.sentences))
        return [self.sentences[start:stop] for start, stop in zip(self.passage_starts, stops)]


def document_table(documents: list[Document]) -> pa.Table:
    """Return documents as a table."""
    sentences = [document.sentences for document in documents]
    starts = [document.passage_starts for document in documents]
    columns = {
        field.name: string_array([getattr(document, field.name) for document in documents])
        for field in DOCUMENT_SCHEMA
        if field.type == pa.string()
    }
    columns["sentences"] = list_array(_bounds(sentences), string_array(list(itertools.chain.from_iterable(sentences))))
    columns["passage_starts"] = list_array(
        _bounds(starts), np.fromiter(itertools.chain.from_iterable(starts), np.int32)
    )
    return pa.Table.from_arrays([columns[name] for name in DOCUMENT_SCHEMA.names], schema=DOCUMENT_SCHEMA)


def _bounds(lists: Sequence[Sized]) -> np.ndarray:
    """Return the offsets (N + 1,) of N lists that are joined."""
    return np.cumsum([0, *map(len, lists)])


def read_documents(path: Path | str) -> Iterator[Document]:
    """Yield the documents of one Parquet file. InputError if it is not a document shard."""
    with open_parquet(path, DOCUMENT_SCHEMA, "a corpus shard") as file:
        for index in range(file.num_row_groups):
            for row in read_row_group(file, index, path, DOCUMENT_SCHEMA.names).to_pylist():
                row["sentences"] = tuple(row["sentences"])
                row["passage_starts"] = tuple(row["passage_starts"])
                yield Document(**row)


def read_sentences(
    path: Path | str, leave_out: Collection[str] = ()
) -> Iterator[tuple[pa.Table, np.ndarray, pa.Array]]:
    """Yield the sentences of each row group of a document shard, as arrays, without the documents of some ids.

    A triple: the table (`document_id`, `language`, `split`) of D documents, the offsets (D + 1,) of each document's
    sentences, and all sentences as one string array.
    """
    with open_parquet(path, DOCUMENT_SCHEMA, "a corpus shard") as file:
        for index in range(file.num_row_groups):
            table = read_row_group(file, index, path, ["document_id", "language", "split", "sentences"])
            if leave_out:
                table = table.filter(pc.invert(pc.is_in(table.column("document_id"), pa.array(leave_out, pa.string()))))
            sentences = table.column("sentences").combine_chunks()
            yield table, list_offsets(sentences), sentences.flatten()


def without_failures(
    path: Path | str, compute: Callable[[Collection[str]], Value], process: Callable[[pa.StringArray], object]
) -> tuple[Value, list[tuple[str, str]]]:
    """Compute something from a document shard; if that fails, without the documents whose sentences fail alone.

    `compute` takes the ids to leave out, `process` sentences. Returns the result, and ids and errors of the others.
    """
    try:
        return compute(()), []
    except BaseException as error:
        failure(error)
        failed: list[tuple[str, str]] = []
        for table, offsets, sentences in read_sentences(path):
            for row, document_id in enumerate(table.column("document_id").to_pylist()):
                try:
                    process(sentences.slice(offsets[row], offsets[row + 1] - offsets[row]))
                except BaseException as raised:
                    failed.append((document_id, failure(raised)))
        if not failed:  # no document is to blame
            raise
    return compute([document_id for document_id, _ in failed]), failed
