"""Intermediate page batches: documents in Arrow, statistics in .npy.

The statistics decide, with the signatures of near-duplicates, which documents are kept. The quality counts are among
them because all workers write batches at the same time. Arrow files are larger than Parquet but need neither encoding
nor compression (together 4 % of a corpus' time), and they are read once and removed.
"""

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bert_pipeline.atomic import atomic_write
from bert_pipeline.corpus.documents import content_digest, id_hash
from bert_pipeline.corpus.near_duplicates import SignedTexts, sign_documents, write_signed_texts
from bert_pipeline.corpus.parquet import DOCUMENT_SCHEMA, DOCUMENTS_PER_ROW_GROUP, Document, document_table
from bert_pipeline.corpus.quality import QUALITY_COUNTS, SUSPECT
from bert_pipeline.failed_records import FAILED, MAX_NAMED, dropped_line
from bert_pipeline.parquet_io import list_offsets, numbers_of
from bert_pipeline.storage import local_copy, open_binary

COUNTED = ("passages", "sentences", "words", "characters", "bytes", *QUALITY_COUNTS)
"""The counts of each document."""

STATISTICS = np.dtype(
    [
        ("id", "<u8"),  # hash of the document id
        ("revision", "<i8"),
        ("digest_high", "<u8"),  # hash of the sentences
        ("digest_low", "<u8"),
        *((name, "<i8") for name in COUNTED),
    ]
)
"""Statistics of one document: 88 bytes, whatever its length."""

DROPPED_SUFFIX = ".dropped"
"""Suffix of the files that list dropped articles, one per line."""


@dataclasses.dataclass(kw_only=True)
class PageBatch:
    """A run of pages of one split, as written to `<stem>.arrow` (documents) and `<stem>.npy` (statistics).

    Only this summary travels through Beam, so it holds counts and no text.
    """

    split: int
    number: int
    stem: str
    documents: int = 0
    texts: int = 0
    """Number of its `SignedTexts`: documents and passages that are compared."""
    is_last: bool = False
    """No batch of the split follows."""
    counts: Counter[str] = dataclasses.field(default_factory=Counter)
    dropped: Counter[str] = dataclasses.field(default_factory=Counter)
    """Number of dropped pages by reason."""
    dropped_elements: Counter[str] = dataclasses.field(default_factory=Counter)
    """Number of dropped parts of kept pages, by kind."""
    lost_templates: Counter[str] = dataclasses.field(default_factory=Counter)
    """Calls of templates that are in no file and stood for a word, by name."""
    problems: list[str] = dataclasses.field(default_factory=list)
    """One sentence for each thing that is missing from the input."""
    failures: list[str] = dataclasses.field(default_factory=list)
    """The first pages that failed, with their errors."""


def batch_stem(split: int, number: int) -> str:
    """Return the part that the names of a batch's files share."""
    return f"batch-{split:06d}-{number:06d}"


def read_statistics(stem: str, directory: Path) -> np.ndarray:
    """Return the `STATISTICS` (N,) of a batch's documents, in order."""
    with open_binary(directory / f"{stem}.npy") as stream:
        statistics: np.ndarray = np.load(stream)
    return statistics


@contextlib.contextmanager
def _open_documents(stem: str, directory: Path) -> Iterator[pa.ipc.RecordBatchFileReader]:
    with (
        local_copy(directory / f"{stem}.arrow") as path,
        pa.memory_map(str(path)) as stream,
        pa.ipc.open_file(stream) as reader,
    ):
        yield reader


def read_document_ids(stem: str, rows: np.ndarray, directory: Path) -> list[str]:
    """Return the ids of the documents at `rows` (N,) of a batch."""
    with _open_documents(stem, directory) as reader:
        ids: list[str] = reader.read_all().column("document_id").take(pa.array(rows)).to_pylist()
    return ids


def read_tables(stem: str, directory: Path) -> Iterator[pa.Table]:
    """Yield the documents of a batch, at most 512 at a time."""
    with _open_documents(stem, directory) as reader:
        for index in range(reader.num_record_batches):
            yield pa.Table.from_batches([reader.get_batch(index)])


class PageBatchWriter:
    """Collects documents and counts, and writes them as numbered batches."""

    def __init__(self, split: int, directory: Path) -> None:
        self._directory = directory
        self._begin(split, 0)

    def _begin(self, split: int, number: int) -> None:
        self.batch = PageBatch(split=split, number=number, stem=batch_stem(split, number))
        self._documents: list[Document] = []
        self._revisions: list[int] = []
        self._listed: list[str] = []

    def drop(self, reason: str, document_id: str, title: str) -> None:
        """Count a page without a document; list it if it has an id."""
        self.batch.dropped[reason] += 1
        if document_id:
            self._listed.append(dropped_line(document_id, reason, title))

    def fail(self, reason: str, document_id: str, title: str) -> None:
        """Count and list a page that the code cannot digest."""
        self.batch.dropped[FAILED] += 1
        self._listed.append(dropped_line(document_id, f"{FAILED}: {reason}", title))
        if len(self.batch.failures) < MAX_NAMED:
            self.batch.failures.append(f"{' '.join(document_id.split())} ({reason})")

    def add(self, document: Document, *, revision: int) -> None:
        self._documents.append(document)
        self._revisions.append(revision)

    def finish(self, *, is_last: bool = False) -> PageBatch:
        """Write the batch and start the next one."""
        batch = self.batch
        statistics = np.zeros(len(self._documents), dtype=STATISTICS)
        signed: list[SignedTexts] = []
        # Statistics are taken from the Arrow table while it is in memory.
        with (
            atomic_write(self._directory / f"{batch.stem}.arrow") as path,
            pa.OSFile(str(path), "wb") as sink,
            pa.ipc.new_file(sink, DOCUMENT_SCHEMA) as writer,
        ):
            for start in range(0, len(self._documents), DOCUMENTS_PER_ROW_GROUP):
                rows = slice(start, start + DOCUMENTS_PER_ROW_GROUP)
                table = document_table(self._documents[rows])
                writer.write_table(table)
                _fill_in(statistics[rows], self._documents[rows], self._revisions[rows], table)
                signed.append(sign_documents(table, start))
                statistics["words"][rows] = signed[-1].num_words

        # The planning of shards reads the statistics; the dropped articles are listed at the end.
        with atomic_write(self._directory / f"{batch.stem}.npy") as path, open(path, "wb") as stream:
            np.save(stream, statistics)
        write_signed_texts(signed, batch.stem, self._directory)
        with atomic_write(self._directory / f"{batch.stem}{DROPPED_SUFFIX}") as path:
            path.write_text("".join(self._listed), encoding="utf-8")

        batch.documents, batch.texts = len(statistics), sum(len(part.texts) for part in signed)
        batch.is_last = is_last
        self._begin(batch.split, batch.number + 1)
        return batch


def _fill_in(statistics: np.ndarray, documents: list[Document], revisions: list[int], table: pa.Table) -> None:
    """Set the `STATISTICS` (N,) of N documents, which `table` holds too."""
    statistics["id"] = [id_hash(document.document_id) for document in documents]
    statistics["revision"] = revisions
    digests = np.frombuffer(b"".join(map(content_digest, documents)), dtype=">u8").reshape(-1, 2)
    statistics["digest_high"], statistics["digest_low"] = digests[:, 0], digests[:, 1]
    statistics["passages"] = [len(document.passage_starts) for document in documents]
    statistics["sentences"] = [len(document.sentences) for document in documents]
    lists = table.column("sentences").combine_chunks()
    sentences, first = lists.flatten(), list_offsets(lists)[:-1]  # (S,), (N,)
    sizes = {
        "characters": numbers_of(pc.utf8_length(sentences)),
        "bytes": numbers_of(pc.binary_length(sentences)),
        **count_flaws(sentences),
    }
    for name, counts in sizes.items():
        statistics[name] = np.add.reduceat(counts, first)


def count_flaws(sentences: pa.StringArray) -> dict[str, np.ndarray]:
    """Count leftover markup and broken text in each of S sentences: (S,) int64 by the name of the count."""
    counts = {name: np.zeros(len(sentences), dtype=np.int64) for name in QUALITY_COUNTS}
    # RE2 finds the few sentences that may have a flaw; Python's expressions count the flaws in those.
    is_suspect = pc.match_substring_regex(sentences, SUSPECT)
    for row, sentence in zip(pc.indices_nonzero(is_suspect).to_pylist(), sentences.filter(is_suspect).to_pylist()):
        for name, count in QUALITY_COUNTS.items():
            counts[name][row] = count(sentence)
    return counts
