"""Units of a corpus in the making: documents in a file, and beside it the numbers that are known of each.

The numbers alone decide which documents stay, so that only they are ever held together; the audit of the text is among
them, since units are made by all workers at once. The documents lie in plain Arrow files: they are read once more and
removed, which neither Parquet's encoding nor compression would pay for (together 4 % of a corpus' time).
"""

import dataclasses
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bert_pipeline.corpus.documents import Document, content_digest, id_hash
from bert_pipeline.corpus.parquet import DOCUMENT_SCHEMA, DOCUMENTS_PER_ROW_GROUP, document_table
from bert_pipeline.corpus.quality import SUSPECT, count_residue, count_scars
from bert_pipeline.manifest import written_whole

COUNTED = ("passages", "sentences", "characters", "residue", "scars")
"""What is counted in each document."""

NUMBERS = np.dtype(
    [
        ("id", "<u8"), ("revision", "<i8"), ("digest_high", "<u8"), ("digest_low", "<u8"),
        *((name, "<i8") for name in COUNTED),
    ]
)  # fmt: skip
"""What is known of a document across units: 72 bytes each, whatever its length."""

DROPPED = ".dropped"
"""End of the names of files that list what was dropped, a line each."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unit:
    """A run of documents, written to `<directory>/<stem>.arrow`, their numbers to `<stem>.npy`."""

    split: int
    number: int
    stem: str
    counts: dict[str, int]
    dropped: dict[str, int]
    dropped_elements: dict[str, int]
    problems: tuple[str, ...] = ()
    """What was lost, one sentence each."""


def dropped_line(document_id: str, reason: str, title: str) -> str:
    """A line of the list of articles without output."""
    return f"{document_id}\t{reason}\t{' '.join(title.split())}\n"


def read_numbers(unit: Unit, directory: Path) -> np.ndarray:
    """(N,) `NUMBERS`: a row for each document of a unit, in order."""
    return np.load(directory / f"{unit.stem}.npy")


def read_tables(stem: str, directory: Path) -> Iterator[pa.Table]:
    """The documents of a unit, some hundred at a time."""
    with pa.memory_map(str(directory / f"{stem}.arrow")) as stream, pa.ipc.open_file(stream) as reader:
        for index in range(reader.num_record_batches):
            yield pa.Table.from_batches([reader.get_batch(index)])


class UnitWriter:
    """Collects the documents and numbers of one unit after another."""

    def __init__(self, split: int, directory: Path) -> None:
        self._split = split
        self._directory = directory
        self._number = 0
        self.problems: list[str] = []
        self._clear()

    def _clear(self) -> None:
        self.counts: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.dropped_elements: Counter[str] = Counter()
        self._documents: list[Document] = []
        self._revisions: list[int] = []
        self._listed: list[str] = []

    @property
    def num_pages(self) -> int:
        return self.counts["pages_read"]

    def drop(self, reason: str, document_id: str, title: str) -> None:
        """Count a page that gives no document; one with an id is listed."""
        self.dropped[reason] += 1
        if document_id:
            self._listed.append(dropped_line(document_id, reason, title))

    def add(self, document: Document, *, revision: int) -> None:
        self._documents.append(document)
        self._revisions.append(revision)

    def finish(self) -> Unit:
        """Write the unit; the next one starts empty."""
        stem = f"unit-{self._split:06d}-{self._number:06d}"
        numbers = np.zeros(len(self._documents), dtype=NUMBERS)
        with (
            written_whole(self._directory / f"{stem}.arrow") as path,
            pa.OSFile(str(path), "wb") as sink,
            pa.ipc.new_file(sink, DOCUMENT_SCHEMA) as writer,
        ):
            for start in range(0, len(self._documents), DOCUMENTS_PER_ROW_GROUP):
                some = slice(start, start + DOCUMENTS_PER_ROW_GROUP)
                table = document_table(self._documents[some])
                writer.write_table(table)
                _fill_in(numbers[some], self._documents[some], self._revisions[some], table)
        with written_whole(self._directory / f"{stem}.npy") as path, open(path, "wb") as stream:
            np.save(stream, numbers)
        with written_whole(self._directory / f"{stem}{DROPPED}") as path:
            path.write_text("".join(self._listed), encoding="utf-8")
        unit = Unit(
            split=self._split,
            number=self._number,
            stem=stem,
            counts=dict(self.counts),
            dropped=dict(self.dropped),
            dropped_elements=dict(self.dropped_elements),
            problems=tuple(self.problems),
        )
        self._number += 1
        self._clear()
        return unit


def _fill_in(numbers: np.ndarray, documents: list[Document], revisions: list[int], table: pa.Table) -> None:
    """Set the numbers (N,) of N documents, which `table` holds too."""
    numbers["id"] = [id_hash(document.document_id) for document in documents]
    numbers["revision"] = revisions
    digests = np.frombuffer(b"".join(map(content_digest, documents)), dtype=">u8").reshape(-1, 2)
    numbers["digest_high"], numbers["digest_low"] = digests[:, 0], digests[:, 1]
    numbers["passages"] = [len(document.passage_starts) for document in documents]
    numbers["sentences"] = [len(document.sentences) for document in documents]
    lists = table.column("sentences").combine_chunks()
    sentences, document_of = lists.flatten(), pc.list_parent_indices(lists).to_numpy()  # (S,)
    np.add.at(numbers["characters"], document_of, pc.utf8_length(sentences).to_numpy())
    is_suspect = pc.match_substring_regex(sentences, SUSPECT)
    suspects = sentences.filter(is_suspect).to_pylist()
    for index, sentence in zip(document_of[is_suspect.to_numpy(zero_copy_only=False)], suspects):
        numbers["residue"][index] += count_residue(sentence)
        numbers["scars"][index] += count_scars(sentence)
