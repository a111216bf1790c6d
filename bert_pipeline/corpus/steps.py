"""Sources to corpus shards, as pure steps for any runner: plan, read batches, resolve duplicates, write shards.

A *split* is what one worker reads at a time: a byte range of a file, or some row groups of Parquet. It yields *page
batches*, whose documents go to one file each. Batches are a function of the input and the configuration, never of the
runner. Only statistics leave a batch (hashes, lengths, counts); once those of all batches are known, each shard copies
the documents of its batches without the duplicates.
"""

import dataclasses
import functools
import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field, PositiveInt

from bert_pipeline.configuration import configuration
from bert_pipeline.corpus.batches import (
    COUNTED,
    DROPPED_SUFFIX,
    STATISTICS,
    PageBatch,
    PageBatchWriter,
    batch_stem,
    count_flaws,
    dropped_line,
    read_document_ids,
    read_statistics,
    read_tables,
)
from bert_pipeline.corpus.documents import make_document
from bert_pipeline.corpus.mixture import count_texts, sum_texts
from bert_pipeline.corpus.near_duplicates import TextGroups, count_words, group_pairs, unpack_pairs
from bert_pipeline.corpus.parquet import DOCUMENT_SCHEMA, DOCUMENTS_PER_ROW_GROUP
from bert_pipeline.corpus.readers import (
    Reader,
    detect_format,
    plan_row_groups,
    read_book_documents,
    read_json_documents,
    read_line_documents,
    read_pair_documents,
    read_parquet_documents,
)
from bert_pipeline.corpus.sources import SourceKind, parse_source, split_name
from bert_pipeline.corpus.text_files import WHOLE, Span, plan_spans, stem_of
from bert_pipeline.errors import ConfigurationError, InputError, UsageError
from bert_pipeline.manifest import atomic_write, file_sha256
from bert_pipeline.parquet_io import list_offsets
from bert_pipeline.wikipedia.dump import Dump, ReadReport, ends_with_end_tag, is_truncated_bzip2, open_dump, read_pages
from bert_pipeline.wikipedia.extract import drop_reason, extract_article

logger = logging.getLogger(__name__)


@configuration
class CorpusConfig:
    """How a corpus is made."""

    language: str = "en"
    """Language of sources that do not say it themselves; a dump does."""
    name: str = ""
    """What document ids start with where a dump has no <dbname>, and in other sources; "" takes the file's name."""
    strict: bool = False
    """Refuse a dump that breaks off, instead of keeping its whole pages and counting the loss."""
    templates: str = ""
    """Template file of a wiki that the project has none for, or whose entries it should replace (docs/templates.md)."""
    held_out_per_mille: Annotated[int, Field(ge=0, le=500)] = 5
    """Share of the documents that pre-training never sees, in thousandths; at least one document in any case."""
    shard_bytes: PositiveInt = 64 << 20
    """Least text in a shard, in bytes; a smaller corpus is one shard."""
    unit_bytes: PositiveInt = 4 << 20
    """Bytes of a dump (plain or .bz2), of a text file or of the texts of Parquet in a unit of work: little, so that no
    worker is left alone with the last one, and much beside the block of .bz2 that a unit reads beyond its end to finish
    its last page."""
    pages_per_unit: PositiveInt = 2000
    """Documents in a unit of work, in files that can only be read from the front (.gz, UTF-16);
    in other sources than dumps, at most."""
    near_duplicates: Literal["keep", "drop", "drop-passages"] = "keep"
    """Keep and count near-duplicate documents, drop all but the first of each group, or drop near-duplicate passages of
    other documents as well."""

    def __post_init__(self) -> None:
        if not self.language or not self.language.replace("-", "").isalnum():
            raise ConfigurationError(f"language: found {self.language!r}, expected a code such as 'en'")
        if any(char.isspace() or char in "/:" for char in self.name):
            raise ConfigurationError(f"name: found {self.name!r}, expected a name without spaces, '/' and ':'")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Split:
    """What one worker reads: a span of a file, in bytes, or in row groups of Parquet."""

    index: int
    kind: SourceKind
    """"lines" or "book" for a "text" source."""
    path: str
    start: int = 0
    stop: int | None = None
    first: int = 0
    """Number of records before it in the file."""
    name: str = ""
    """What its document ids begin with; "" takes the usual name."""


_CODES = ("same text", "train", "held_out", "same id", "near duplicate")
"""What becomes of a document: its split, or why it is dropped as a duplicate."""
_SAME_TEXT, _TRAIN, _HELD_OUT, _SAME_ID, _NEAR = range(len(_CODES))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard:
    """The plan of one shard: its batches, and which of their documents it keeps."""

    index: int
    stems: tuple[str, ...]
    splits: tuple[bytes, ...]
    """For each batch one byte per document: an index into `_CODES`."""
    counts: dict[str, int]
    """Counts of its kept documents, with the passages that are dropped."""
    resembled: bytes = b""
    """(M, 3) int64: for each near duplicate, in order, the document kept in its place: split, batch and row."""
    dropped_passages: bytes = b""
    """(M, 2) int64: rows, over all batches of the shard, and passages that are dropped; ascending."""


def plan_splits(sources: Sequence[str], config: CorpusConfig) -> list[Split]:
    """Split the sources for the workers, in order. InputError for the first file that does not match its kind."""
    if not sources:
        raise UsageError("no source given; name a dump, or files with their kind, such as jsonl:PATH")
    splits: list[Split] = []
    for source in sources:
        name, source = split_name(source)
        given, files = parse_source(source)
        formats: dict[SourceKind, list[str]] = {}
        for path in files:
            kind = given
            if kind != "wikipedia":
                _check_text_file(path)
            if kind == "text":
                kind = detect_format(Path(path), config.language)
                formats.setdefault(kind, []).append(os.path.basename(path))
            for span in _plan_spans(path, kind, config):
                where = dataclasses.asdict(span)
                splits.append(Split(index=len(splits), kind=kind, path=path, name=name, **where))
        for kind, names in formats.items():
            some = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            logger.info("%s: read as %s (%s): %s", source, kind, _FORMATS[kind], some)
    _warn_of_equal_names(splits, config)
    return splits


def _warn_of_equal_names(splits: Sequence[Split], config: CorpusConfig) -> None:
    """Warn of files whose documents may get the ids of those of another file, and then be dropped."""
    first: dict[tuple[str, str], str] = {}
    files = ((split.path, split.name) for split in splits if split.kind != "wikipedia")
    for path, name in dict.fromkeys(files):
        other = first.setdefault((name or config.name or _default_name(path), stem_of(Path(path))), path)
        if other != path:
            logger.warning(
                "%s: has the name of %s, and documents of equal ids are kept once; rename it unless they are the same",
                path, other,
            )  # fmt: skip


_FORMATS = {"lines": "one sentence per line", "book": "running text"}


def _check_text_file(path: str) -> None:
    if not os.access(path, os.R_OK):
        raise InputError(f"{path}: cannot be read; check its permissions")
    if not os.path.getsize(path):
        raise InputError(f"{path}: the file is empty; fetch or make it again, or leave it out")


def _plan_spans(path: str, kind: SourceKind, config: CorpusConfig) -> Iterable[Span]:
    step = config.unit_bytes
    if kind == "wikipedia":
        dump = _open_dump(path)
        if not dump.is_splittable:
            return [WHOLE]
        # Bounds ignore pages: a page belongs to the range that its first byte is in.
        return [Span(start, min(start + step, dump.size)) for start in range(0, dump.size, step)]
    if kind == "parquet":
        return plan_row_groups(path, step)
    assert kind != "text"
    return plan_spans(path, kind, step)


def _open_dump(path: str) -> Dump:
    try:
        status = os.stat(path)
    except OSError:
        return open_dump(path)  # raises InputError with the reason
    return _open_once(path, status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=64)
def _open_once(path: str, size: int, changed: int) -> Dump:
    # Size and time only belong to the cache's key: a file that has changed is opened again.
    return open_dump(path)


def read_batches(split: Split, config: CorpusConfig, directory: Path) -> Iterator[PageBatch]:
    """Read one split and write its batches to `directory`; a repeated call writes the same bytes."""
    if split.kind == "wikipedia":
        yield from _read_dump_batches(split, config, directory)
        return
    name = split.name or config.name or _default_name(split.path)
    writer = PageBatchWriter(split.index, directory)
    span = Span(split.start, split.stop, split.first)
    # These sources have no revisions: with 0 for all, the first document of an id is kept.
    for document in _READERS[split.kind](Path(split.path), name, config.language, span):
        writer.counts["pages_read"] += 1
        if document is None:
            writer.drop("empty", "", "")
            continue
        writer.counts["characters_in"] += sum(map(len, document.sentences))
        writer.add(document, revision=0)
        # A worker holds one batch: a compressed file may have any length, and a document may be a book.
        if writer.num_pages >= config.pages_per_unit or writer.counts["characters_in"] >= config.unit_bytes:
            yield writer.finish()
    yield writer.finish()


_READERS: dict[SourceKind, Reader] = {
    "lines": read_line_documents,
    "book": read_book_documents,
    "jsonl": read_json_documents,
    "parquet": read_parquet_documents,
    "pairs": read_pair_documents,
}


def _read_dump_batches(split: Split, config: CorpusConfig, directory: Path) -> Iterator[PageBatch]:
    dump = _open_dump(split.path)
    name = split.name or dump.site.dbname or config.name or _default_name(split.path)
    language = dump.site.language or config.language
    report = ReadReport()
    writer = PageBatchWriter(split.index, directory)
    bytes_read = 0

    # Every page read becomes a document or is counted as dropped, with the reason.
    for page in read_pages(dump, split.start, split.stop, report):
        writer.counts["pages_read"] += 1
        reason = drop_reason(page, dump.site)
        if reason:
            writer.drop(reason, "" if reason in _NO_ARTICLES else f"{name}:{page.page_id}", page.title)
        else:
            # Markup included, but of articles only: the share that becomes text measures the extraction.
            writer.counts["characters_in"] += len(page.text)
            extraction = extract_article(page, dump.site, templates=config.templates)
            writer.dropped_elements.update(extraction.dropped)
            document = make_document(
                document_id=f"{name}:{page.page_id}",
                title=page.title,
                language=language,
                passages=extraction.passages,
            )
            if document is None:
                writer.drop("no prose", f"{name}:{page.page_id}", page.title)
            else:
                writer.add(document, revision=page.revision_id)

        # A byte range makes one batch; a file read from the front is cut by the number of pages.
        if not dump.is_splittable and writer.num_pages >= config.pages_per_unit:
            writer.counts["bytes_in"] += report.bytes_read - bytes_read
            bytes_read = report.bytes_read
            yield writer.finish()

    # The last batch also reports how the file ends, which is known only now.
    writer.counts["bytes_in"] += report.bytes_read - bytes_read
    writer.problems.extend(_problems(dump, split, report))
    if report.unfinished_page:
        writer.drop("cut off", f"{name}:?", report.unfinished_page)
    yield writer.finish()


_NO_ARTICLES = ("namespace", "redirect")
"""Reasons to drop pages that are not articles: counted, but not listed by title."""


def _problems(dump: Dump, split: Split, report: ReadReport) -> Iterator[str]:
    """Yield one sentence if the dump is truncated, in the split that holds its end."""
    if report.unfinished_page:
        yield f"{dump.path}: breaks off inside page {report.unfinished_page!r}, which is lost with all that followed"
    elif split.stop is not None and split.stop < dump.size:
        return
    elif report.is_truncated or is_truncated_bzip2(dump):
        yield f"{dump.path}: the compressed file is cut off; whatever followed is lost"
    elif report.reached_end and not report.is_closed and not (dump.is_splittable and ends_with_end_tag(dump)):
        yield f"{dump.path}: ends without </mediawiki>; whatever followed is lost"


def _default_name(path: str) -> str:
    stem = os.path.basename(path).partition(".")[0]
    return "".join(char if char.isalnum() or char in "-_" else "-" for char in stem) or "corpus"


def plan_shards(
    batches: Iterable[PageBatch], config: CorpusConfig, directory: Path, pairs: Sequence[np.ndarray] = ()
) -> tuple[list[Shard], dict[str, int], dict[str, int]]:
    """Resolve duplicates and splits over all batches, and group the batches into shards.

    Of documents with one id the latest revision is kept, of documents with equal sentences the first. Documents that
    the packed pairs (M,) of all tasks join are in one split. Returns the shards, the number of dropped documents by
    reason, and the number of near duplicates, dropped or not.
    """
    ordered = sorted(batches, key=lambda batch: (batch.split, batch.number))
    parts = [read_statistics(batch.stem, directory) for batch in ordered]
    documents = np.concatenate(parts) if parts else np.zeros(0, dtype=STATISTICS)  # (N,)
    bounds = np.cumsum([0, *map(len, parts)])
    kept = np.ones(len(documents), dtype=bool)

    # Same id: sorted by id and falling revision, all but the first of each id are superseded.
    by_id = np.lexsort((-documents["revision"], documents["id"]))  # stable: of equal revisions the first is kept
    ids = documents["id"][by_id]
    kept[by_id[1:][ids[1:] == ids[:-1]]] = False
    is_same_id = ~kept

    # Same text: of the remaining documents, all but the first of each digest are repetitions.
    rest = np.flatnonzero(kept)
    high, low = documents["digest_high"][rest], documents["digest_low"][rest]
    by_digest = np.lexsort((low, high))
    same = (high[by_digest][1:] == high[by_digest][:-1]) & (low[by_digest][1:] == low[by_digest][:-1])
    kept[rest[by_digest[1:][same]]] = False
    num_same_id = int(is_same_id.sum())
    dropped = {"same id": num_same_id, "same text": int((~kept).sum()) - num_same_id}

    # Near text: all but the first of each group, where that is asked for.
    all_stems = [batch.stem for batch in ordered]
    # Most pairs are found by several tasks.
    all_pairs, are_near = unpack_pairs(np.unique(np.concatenate([np.zeros(0, dtype=np.uint64), *pairs])))
    near_texts = group_pairs(all_pairs[are_near], all_stems, directory)
    near = find_near(near_texts, bounds, kept, documents)
    is_near = kept & (near.first != np.arange(len(documents)))
    found = {"documents": int(is_near.sum()), "passages": len(near.passages)}
    drops_passages = config.near_duplicates == "drop-passages"
    if drops_passages:
        is_near |= near.has_no_passage
    if config.near_duplicates != "keep":
        kept &= ~is_near
        dropped["near duplicate"] = int(is_near.sum())

    # Documents that are similar to each other have one split, that of the first, so that none is held out in vain. All
    # dropped documents are first coded as "same text"; the others get their code after.
    similar = first_documents(group_pairs(all_pairs, all_stems, directory), bounds, kept)
    codes = _split_codes(documents["id"][similar], kept, config.held_out_per_mille)  # (N,)
    codes[is_same_id] = _SAME_ID
    if config.near_duplicates != "keep":
        codes[is_near] = _NEAR

    # Consecutive batches form a shard as soon as they hold enough text; a short rest joins the last shard.
    groups: list[list[int]] = [[]]
    size = 0
    for index, part in enumerate(parts):
        if size >= config.shard_bytes:
            groups.append([])
            size = 0
        groups[-1].append(index)
        size += int(part["characters"][kept[bounds[index] : bounds[index + 1]]].sum())
    if size < config.shard_bytes and len(groups) > 1:
        groups[-2].extend(groups.pop())

    # A shard's plan is small: the names of its batches, one byte per document, and a few numbers per near duplicate.
    place = np.array([(batch.split, batch.number) for batch in ordered], dtype=np.int64).reshape(-1, 2)
    passages = near.passages[kept[near.passages[:, 0]]] if drops_passages else near.passages[:0]
    shards: list[Shard] = []
    for group in groups if parts else []:
        splits = tuple(codes[bounds[index] : bounds[index + 1]].tobytes() for index in group)
        stems = tuple(ordered[index].stem for index in group)
        start, stop = bounds[group[0]], bounds[group[-1] + 1]
        rows = slice(start, stop)
        resembled = near.resembled[rows][codes[rows] == _NEAR]
        batch = np.searchsorted(bounds, resembled, side="right") - 1
        here = passages[np.searchsorted(passages[:, 0], start) : np.searchsorted(passages[:, 0], stop)]
        shards.append(
            Shard(
                index=len(shards),
                stems=stems,
                splits=splits,
                counts=_count(documents[rows], codes[rows]),
                resembled=np.column_stack([place[batch], resembled - bounds[batch]]).tobytes(),
                dropped_passages=(here - [start, 0]).tobytes(),
            )
        )
    return shards, dropped, found


@dataclasses.dataclass(frozen=True)
class NearDocuments:
    """What the near texts of a corpus mean for its N documents."""

    first: np.ndarray
    """(N,) int64: the first kept document of the group; the document itself where it is near to none."""
    passages: np.ndarray
    """(M, 2) int64: documents and passages that are near to an earlier one; ascending, without near documents."""
    has_no_passage: np.ndarray
    """(N,) bool: all passages of the document are among those."""
    resembled: np.ndarray
    """(N,) int64: `first`, or of a document without passages the document that has its first one."""


def first_documents(texts: TextGroups, bounds: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Return the first one (N,) of the group of each of N documents, among the `kept` (N,); itself if it is in none.

    `bounds` (B + 1,) are those of the B batches among the documents.
    """
    row = bounds[texts.batch] + texts.document  # (V,)
    is_document = texts.passage < 0
    everything = np.arange(len(kept))
    # Documents that are dropped for another reason still join the others of a group.
    group = everything.copy()
    group[row[is_document]] = row[texts.group[is_document]]
    first = np.full(len(kept), len(kept))
    np.minimum.at(first, group[kept], everything[kept])
    return np.where(kept, first[group], everything)


def find_near(texts: TextGroups, bounds: np.ndarray, kept: np.ndarray, documents: np.ndarray) -> NearDocuments:
    """Choose the first text of each group, among the `kept` (N,) of N documents with their statistics (N,)."""
    first = first_documents(texts, bounds, kept)
    stays = kept & (first == np.arange(len(kept)))

    # Passages: the first one in a document that stays, near documents being counted with their passages.
    row = bounds[texts.batch] + texts.document  # (V,)
    index = np.arange(len(row))
    is_passage = (texts.passage >= 0) & stays[row]
    first_passage = np.full(len(row), len(row))
    np.minimum.at(first_passage, texts.group[is_passage], index[is_passage])
    is_repeated = is_passage & (first_passage[texts.group] < index)
    passages = np.column_stack([row[is_repeated], texts.passage[is_repeated]])
    has_no_passage = np.bincount(passages[:, 0], minlength=len(kept)) == documents["passages"]
    resembled = first.copy()
    lost = np.flatnonzero(is_repeated & has_no_passage[row] & (texts.passage == 0))
    resembled[row[lost]] = row[first_passage[texts.group[lost]]]
    return NearDocuments(first=first, passages=passages, has_no_passage=has_no_passage, resembled=resembled)


_MAX_HELD_OUT_GROUP = 10


def _split_codes(ids: np.ndarray, kept: np.ndarray, held_out_per_mille: int) -> np.ndarray:
    """Return an index into `_CODES` for each of N documents, as uint8 (N,); similar documents have the id of the first.

    Each split gets at least one document if there are two that are not similar.
    """
    codes = np.full(len(ids), _SAME_TEXT, dtype=np.uint8)
    rows = np.flatnonzero(kept)
    first, group, sizes = np.unique(ids[rows], return_inverse=True, return_counts=True)  # (G,), (len(rows),), (G,)
    # A group goes to its split as a whole: the stubs of a bot would be most of the held-out documents.
    is_large = sizes > max(_MAX_HELD_OUT_GROUP, len(rows) * held_out_per_mille // 1000)
    is_held_out = (first % 1000 < held_out_per_mille) & ~is_large
    # A small corpus may leave a split empty: the group with the nearest bucket fills it, or the smallest large one.
    if held_out_per_mille and len(rows) >= 2:
        order = np.lexsort((first, first % 1000, np.where(is_large, sizes, 0)))
        if is_held_out.all():
            is_held_out[order[-1]] = False
        elif not is_held_out.any() and len(first) >= 2:
            is_held_out[order[0]] = True
    codes[rows] = np.where(is_held_out[group], _HELD_OUT, _TRAIN)
    return codes


def _count(documents: np.ndarray, codes: np.ndarray) -> dict[str, int]:
    """Sum the counts of the kept ones among N documents, given their statistics (N,) and codes (N,)."""
    num_train, num_held_out = int((codes == _TRAIN).sum()), int((codes == _HELD_OUT).sum())
    kept = documents[np.isin(codes, (_TRAIN, _HELD_OUT))]
    counts = {name: int(kept[name].sum()) for name in COUNTED}
    counts["characters_out"] = counts.pop("characters")
    return {
        "documents": num_train + num_held_out,
        "documents_train": num_train,
        "documents_held_out": num_held_out,
        **counts,
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class WrittenShard:
    """One shard on disk."""

    name: str
    rows: int
    sha256: str
    counts: dict[str, int]
    texts: list[dict[str, Any]]
    """Training documents and their words, by source and language."""
    dropped_list: str
    """Name of the list of its duplicates, in the scratch directory."""


@dataclasses.dataclass
class _Copied:
    """What is known of a shard once its documents have been copied."""

    duplicates: list[str] = dataclasses.field(default_factory=list)
    """A line for each dropped document."""
    lost: Counter[str] = dataclasses.field(default_factory=Counter)
    """Counts of the dropped passages."""
    texts: list[pa.Table] = dataclasses.field(default_factory=list)


def shard_name(index: int) -> str:
    """Return the name of a shard's file."""
    return f"documents-{index:05d}.parquet"


def write_shard(shard: Shard, scratch: Path, output: Path) -> WrittenShard:
    """Copy the kept documents of a shard's batches to `documents-NNNNN.parquet`."""
    name = shard_name(shard.index)
    rows = 0
    copied = _Copied()
    with atomic_write(output / name) as path:
        with pq.ParquetWriter(path, DOCUMENT_SCHEMA, compression="zstd", write_page_checksum=True) as writer:
            for table in _row_groups(_kept_documents(shard, scratch, copied)):
                writer.write_table(table)
                rows += table.num_rows
        sha256 = file_sha256(path)
    # A list of its own, even if empty: `collect_dropped` joins those of all shards.
    dropped_list = f"shard-{shard.index:06d}{DROPPED_SUFFIX}"
    with atomic_write(scratch / dropped_list) as path:
        path.write_text("".join(copied.duplicates), encoding="utf-8")
    counts = {key: number - copied.lost[key] for key, number in shard.counts.items()}
    texts = sum_texts(copied.texts).to_pylist()
    return WrittenShard(name=name, rows=rows, sha256=sha256, counts=counts, texts=texts, dropped_list=dropped_list)


def _kept_documents(shard: Shard, scratch: Path, copied: _Copied) -> Iterator[pa.Table]:
    """Yield the kept documents of a shard with their split, and fill in `copied`."""
    labels = pa.array(_CODES)
    split_column = DOCUMENT_SCHEMA.get_field_index("split")
    resembled = _resembled_ids(shard, scratch)
    passages = np.frombuffer(shard.dropped_passages, dtype=np.int64).reshape(-1, 2)
    first = 0  # row of the shard at which the table begins
    for stem, codes in zip(shard.stems, shard.splits):
        position = 0
        words_of_batch = read_statistics(stem, scratch)["words"]
        for table in read_tables(stem, scratch):
            # `codes` covers the whole batch, which is read in several tables.
            part = np.frombuffer(codes, dtype=np.uint8, count=table.num_rows, offset=position)
            words = words_of_batch[position : position + table.num_rows]
            position += table.num_rows
            column = labels.take(pa.array(part, type=pa.int8()))
            table = table.set_column(split_column, DOCUMENT_SCHEMA.field("split"), column)
            cuts = np.searchsorted(passages[:, 0], [first, first + table.num_rows])
            first += table.num_rows
            if cuts[1] > cuts[0]:
                some = passages[slice(*cuts)] - [first - table.num_rows, 0]
                table = drop_passages(table, some[:, 0], some[:, 1], copied.lost)
                lists = table.column("sentences").combine_chunks()
                words = count_words(lists.flatten(), list_offsets(lists))

            # The code of a duplicate is the reason it is listed with.
            is_kept = np.isin(part, (_TRAIN, _HELD_OUT))
            if not is_kept.all():
                rows = table.filter(pa.array(~is_kept)).select(["document_id", "split", "title"]).to_pylist()
                for row in rows:
                    reason = row["split"]
                    if reason == _CODES[_NEAR]:
                        reason = f"{reason} of {next(resembled)}"
                    copied.duplicates.append(dropped_line(row["document_id"], reason, row["title"]))
                table, words = table.filter(pa.array(is_kept)), words[is_kept]
            copied.texts.append(count_texts(table, words))
            yield table.cast(DOCUMENT_SCHEMA)


def _resembled_ids(shard: Shard, scratch: Path) -> Iterator[str]:
    """Yield the ids of the documents that were kept in place of the shard's near duplicates."""
    places = np.frombuffer(shard.resembled, dtype=np.int64).reshape(-1, 3)
    batches, batch_of = np.unique(places[:, :2], axis=0, return_inverse=True)
    ids = np.empty(len(places), dtype=object)
    for index, (split, number) in enumerate(batches.tolist()):
        rows = np.flatnonzero(batch_of == index)
        ids[rows] = read_document_ids(batch_stem(split, number), places[rows, 2], scratch)
    yield from ids.tolist()


def drop_passages(table: pa.Table, rows: np.ndarray, passages: np.ndarray, lost: Counter[str]) -> pa.Table:
    """Return a table without some passages (M,) of the documents in `rows` (M,); their counts are added to `lost`."""
    lists, starts = table.column("sentences").combine_chunks(), table.column("passage_starts").combine_chunks()
    sentences_of, passages_of = list_offsets(lists), list_offsets(starts)  # (D + 1,)
    document = np.repeat(np.arange(table.num_rows), np.diff(passages_of))  # (P,)
    sentences = lists.flatten()
    first_sentence = starts.flatten().to_numpy() + sentences_of[:-1][document]
    lengths = np.diff(first_sentence, append=len(sentences))
    is_kept = np.ones(len(document), dtype=bool)
    is_kept[passages_of[:-1][rows] + passages] = False
    of_sentence = np.repeat(is_kept, lengths)  # (S,)

    # Count what goes, as the batch counted it.
    gone = sentences.filter(pa.array(~of_sentence))
    lost.update(passages=int((~is_kept).sum()), sentences=len(gone))
    lost["words"] += int(count_words(gone, np.array([0, len(gone)]))[0])
    lost["characters_out"] += pc.sum(pc.utf8_length(gone)).as_py() or 0
    for name, counts in count_flaws(gone).items():
        lost[name] += int(counts.sum())

    # The rest keeps its order: passages start where the sentences before them end.
    ends = np.cumsum(np.where(is_kept, lengths, 0))
    new_sentences = np.concatenate([[0], ends])[passages_of]
    new_passages = np.concatenate([[0], np.cumsum(is_kept)])[passages_of]
    new_starts = (ends - lengths - new_sentences[:-1][document])[is_kept]
    columns = {
        "sentences": pa.ListArray.from_arrays(pa.array(new_sentences, pa.int32()), sentences.filter(of_sentence)),
        "passage_starts": pa.ListArray.from_arrays(
            pa.array(new_passages, pa.int32()), pa.array(new_starts, pa.int32())
        ),
    }
    for name, column in columns.items():
        table = table.set_column(DOCUMENT_SCHEMA.get_field_index(name), DOCUMENT_SCHEMA.field(name), column)
    return table


def _row_groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Regroup rows into tables of the size of a row group, however small the batches are."""
    waiting: list[pa.Table] = []
    num_waiting = 0
    for table in tables:
        waiting.append(table)
        num_waiting += table.num_rows
        # Full groups whatever the batches, so that only the last group of a shard is smaller.
        while num_waiting >= DOCUMENTS_PER_ROW_GROUP:
            whole = pa.concat_tables(waiting)
            yield whole.slice(0, DOCUMENTS_PER_ROW_GROUP)
            waiting = [whole.slice(DOCUMENTS_PER_ROW_GROUP)]
            num_waiting -= DOCUMENTS_PER_ROW_GROUP
    if num_waiting:
        yield pa.concat_tables(waiting)


def collect_dropped(lists: Iterable[Path], path: Path) -> int:
    """Join the lists of articles without output: those of the batches, then the duplicates of the shards.

    A row is the article's id, the reason and its title. Returns the number of rows.
    """
    rows = 0
    with open(path, "w", encoding="utf-8", newline="\n") as stream:
        stream.write("document_id\treason\ttitle\n")
        for part in lists:
            with open(part, encoding="utf-8") as lines:
                for line in lines:
                    stream.write(line)
                    rows += 1
    return rows
