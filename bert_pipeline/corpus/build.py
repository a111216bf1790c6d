"""Sources to corpus shards, as pure steps that a runner may spread: plan, read units, resolve duplicates, write shards.

A *split* is what one worker reads at a time: a byte range of a dump, or a file. It yields *units*, fixed runs of
pages, whose documents go to one file each. Units are a function of the input and the configuration, never of the
runner. Only numbers leave a unit (hashes, lengths, counts); once all are known, each shard copies its units' documents
without the duplicates.
"""

import dataclasses
import functools
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, PositiveInt

from bert_pipeline.configuration import configuration
from bert_pipeline.corpus.batches import (
    COUNTED,
    DROPPED,
    NUMBERS,
    Unit,
    UnitWriter,
    dropped_line,
    read_numbers,
    read_tables,
)
from bert_pipeline.corpus.documents import make_document, read_json_documents, read_pair_documents, read_text_documents
from bert_pipeline.corpus.parquet import DOCUMENT_SCHEMA, DOCUMENTS_PER_ROW_GROUP
from bert_pipeline.corpus.sources import SourceKind, parse_source
from bert_pipeline.errors import ConfigurationError, InputError, UsageError
from bert_pipeline.manifest import file_sha256, written_whole
from bert_pipeline.wikipedia.dump import Dump, ReadReport, ends_with_end_tag, is_truncated_bzip2, open_dump, read_pages
from bert_pipeline.wikipedia.extract import drop_reason, extract_article


@configuration
class CorpusConfig:
    """How a corpus is made."""

    language: str = "en"
    """Language of sources that do not say it themselves; a dump does."""
    name: str = ""
    """What document ids start with where a dump has no <dbname>, and in other sources; "" takes the file's name."""
    strict: bool = False
    """Refuse a dump that breaks off, instead of keeping its whole pages and counting the loss."""
    held_out_per_mille: Annotated[int, Field(ge=0, le=500)] = 5
    """Share of the documents that pre-training never sees, in thousandths; at least one document in any case."""
    shard_bytes: PositiveInt = 64 << 20
    """Least text in a shard, in bytes; a smaller corpus is one shard."""
    unit_bytes: PositiveInt = 4 << 20
    """Bytes of a dump in a unit of work, plain or .bz2: little, so that no worker is left alone with the last one, and
    much beside the block of .bz2 that a unit reads beyond its end to finish its last page."""
    pages_per_unit: PositiveInt = 2000
    """Documents in a unit of work, for files that can only be read from the front (.gz, UTF-16, text)."""

    def __post_init__(self) -> None:
        if not self.language or not self.language.replace("-", "").isalnum():
            raise ConfigurationError(f"language: found {self.language!r}, expected a code such as 'en'")
        if any(char.isspace() or char in "/:" for char in self.name):
            raise ConfigurationError(f"name: found {self.name!r}, expected a name without spaces, '/' and ':'")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Split:
    """What one worker reads: the bytes [start, stop) of a file, or all of it."""

    index: int
    kind: SourceKind
    path: str
    start: int = 0
    stop: int | None = None


_CODES = ("same text", "train", "held_out", "same id")
"""What becomes of a document: dropped as a duplicate of one kind or the other, or in which split it goes."""
_SAME_TEXT, _TRAIN, _HELD_OUT, _SAME_ID = range(len(_CODES))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard:
    """One shard in the making: which rows of which units, and how each is split."""

    index: int
    stems: tuple[str, ...]
    splits: tuple[bytes, ...]
    """For each unit one byte a document: an index into `_CODES`."""
    counts: dict[str, int]
    """What its kept documents hold."""


def plan_splits(sources: Sequence[str], config: CorpusConfig) -> list[Split]:
    """Part the sources for the workers, in order. InputError for the first file that cannot be what it should be."""
    if not sources:
        raise UsageError("no source given; name a dump, or text:, jsonl: or pairs: files")
    splits: list[Split] = []
    for source in sources:
        kind, files = parse_source(source)
        for path in files:
            ranges: list[tuple[int, int | None]] = [(0, None)]
            if kind == "wikipedia":
                dump = _open_dump(path)
                if dump.is_splittable:
                    step = config.unit_bytes
                    ranges = [(start, min(start + step, dump.size)) for start in range(0, dump.size, step)]
            elif not os.access(path, os.R_OK):
                raise InputError(f"{path}: cannot be read; check its permissions")
            for start, stop in ranges:
                splits.append(Split(index=len(splits), kind=kind, path=path, start=start, stop=stop))
    return splits


def _open_dump(path: str) -> Dump:
    try:
        status = os.stat(path)
    except OSError:
        return open_dump(path)  # which says what is wrong
    return _open_once(path, status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=64)
def _open_once(path: str, size: int, changed: int) -> Dump:
    return open_dump(path)


def read_units(split: Split, config: CorpusConfig, directory: Path) -> Iterator[Unit]:
    """Read one split and write its units into `directory`; a repeated call writes the same bytes."""
    if split.kind == "wikipedia":
        yield from _read_dump_units(split, config, directory)
        return
    readers = {"text": read_text_documents, "jsonl": read_json_documents, "pairs": read_pair_documents}
    name = config.name or _name_of(split.path)
    writer = UnitWriter(split.index, directory)
    for document in readers[split.kind](Path(split.path), name, config.language):
        writer.counts["pages_read"] += 1
        writer.counts["characters_in"] += sum(map(len, document.sentences))
        writer.add(document, revision=0)
        if writer.num_pages >= config.pages_per_unit:
            yield writer.finish()
    yield writer.finish()


def _read_dump_units(split: Split, config: CorpusConfig, directory: Path) -> Iterator[Unit]:
    dump = _open_dump(split.path)
    name = dump.site.dbname or config.name or _name_of(split.path)
    language = dump.site.language or config.language
    report = ReadReport()
    writer = UnitWriter(split.index, directory)
    bytes_read = 0
    for page in read_pages(dump, split.start, split.stop, report):
        writer.counts["pages_read"] += 1
        reason = drop_reason(page, dump.site)
        if reason:
            writer.drop(reason, "" if reason in _NO_ARTICLES else f"{name}:{page.page_id}", page.title)
        else:
            writer.counts["characters_in"] += len(page.text)
            extraction = extract_article(page, dump.site)
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
        if not dump.is_splittable and writer.num_pages >= config.pages_per_unit:
            writer.counts["bytes_in"] += report.bytes_read - bytes_read
            bytes_read = report.bytes_read
            yield writer.finish()
    writer.counts["bytes_in"] += report.bytes_read - bytes_read
    writer.problems.extend(_problems(dump, split, report))
    if report.unfinished_page:
        writer.drop("cut off", f"{name}:?", report.unfinished_page)
    yield writer.finish()


_NO_ARTICLES = ("namespace", "redirect")
"""Reasons to drop what is no article in the first place: counted, but not listed by title."""


def _problems(dump: Dump, split: Split, report: ReadReport) -> Iterator[str]:
    """One sentence for what is missing at a dump's end, said by the split that holds the end."""
    if report.unfinished_page:
        yield f"{dump.path}: breaks off inside page {report.unfinished_page!r}, which is lost with all that followed"
    elif split.stop is not None and split.stop < dump.size:
        return
    elif report.is_truncated or is_truncated_bzip2(dump):
        yield f"{dump.path}: the compressed file is cut off; whatever followed is lost"
    elif report.reached_end and not report.is_closed and not (dump.is_splittable and ends_with_end_tag(dump)):
        yield f"{dump.path}: ends without </mediawiki>; whatever followed is lost"


def _name_of(path: str) -> str:
    stem = os.path.basename(path).partition(".")[0]
    return "".join(char if char.isalnum() or char in "-_" else "-" for char in stem) or "corpus"


def collect_dropped(units: Path, path: Path) -> int:
    """Write the list of all articles without output: those of each unit in order, then the duplicates.

    A row is the article's id, the reason and its title. Returns the number of rows.
    """
    rows = 0
    with open(path, "w", encoding="utf-8", newline="\n") as stream:
        stream.write("document_id\treason\ttitle\n")
        for prefix in ("unit-", "shard-"):
            for part in sorted(units.glob(f"{prefix}*{DROPPED}")):
                with open(part, encoding="utf-8") as lines:
                    for line in lines:
                        stream.write(line)
                        rows += 1
    return rows


def plan_shards(units: Iterable[Unit], config: CorpusConfig, directory: Path) -> tuple[list[Shard], dict[str, int]]:
    """Resolve duplicates and splits over all units, and group the units into shards.

    Of documents with one id the latest revision stays, of documents with equal sentences the first. Returns the
    shards and what was dropped by reason.
    """
    ordered = sorted(units, key=lambda unit: (unit.split, unit.number))
    parts = [read_numbers(unit, directory) for unit in ordered]
    numbers = np.concatenate(parts) if parts else np.zeros(0, dtype=NUMBERS)
    kept = np.ones(len(numbers), dtype=bool)
    by_id = np.lexsort((-numbers["revision"], numbers["id"]))  # stable: among equals the first stays
    ids = numbers["id"][by_id]
    kept[by_id[1:][ids[1:] == ids[:-1]]] = False
    is_same_id = ~kept
    num_same_id = int(is_same_id.sum())
    rest = np.flatnonzero(kept)
    high, low = numbers["digest_high"][rest], numbers["digest_low"][rest]
    by_digest = np.lexsort((low, high))
    same = (high[by_digest][1:] == high[by_digest][:-1]) & (low[by_digest][1:] == low[by_digest][:-1])
    kept[rest[by_digest[1:][same]]] = False
    num_same_text = int((~kept).sum()) - num_same_id
    codes = _split_codes(numbers["id"], kept, config.held_out_per_mille)
    codes[is_same_id] = _SAME_ID
    dropped = {"same id": num_same_id, "same text": num_same_text}

    shards: list[Shard] = []
    groups: list[list[int]] = [[]]
    size = 0
    bounds = np.cumsum([0, *map(len, parts)])
    for index, part in enumerate(parts):
        if size >= config.shard_bytes:
            groups.append([])
            size = 0
        groups[-1].append(index)
        size += int(part["characters"][kept[bounds[index] : bounds[index + 1]]].sum())
    if size < config.shard_bytes and len(groups) > 1:
        groups[-2].extend(groups.pop())
    for group in filter(None, groups):
        splits = tuple(codes[bounds[index] : bounds[index + 1]].tobytes() for index in group)
        stems = tuple(ordered[index].stem for index in group)
        rows = slice(bounds[group[0]], bounds[group[-1] + 1])
        counts = _count(numbers[rows], codes[rows])
        shards.append(Shard(index=len(shards), stems=stems, splits=splits, counts=counts))
    return shards, dropped


def _count(numbers: np.ndarray, codes: np.ndarray) -> dict[str, int]:
    """What the kept documents among N hold, by their numbers (N,) and codes (N,)."""
    num_train, num_held_out = int((codes == _TRAIN).sum()), int((codes == _HELD_OUT).sum())
    kept = numbers[np.isin(codes, (_TRAIN, _HELD_OUT))]
    counts = {name: int(kept[name].sum()) for name in COUNTED}
    counts["characters_out"] = counts.pop("characters")
    return {
        "documents": num_train + num_held_out,
        "documents_train": num_train,
        "documents_held_out": num_held_out,
        **counts,
    }


def _split_codes(ids: np.ndarray, kept: np.ndarray, held_out_per_mille: int) -> np.ndarray:
    """(N,) uint8, indices into `_CODES`. Of two documents or more each split gets at least one."""
    buckets = ids % 1000
    codes = np.where(kept, np.where(buckets < held_out_per_mille, _HELD_OUT, _TRAIN), _SAME_TEXT).astype(np.uint8)
    rows = np.flatnonzero(kept)
    if held_out_per_mille and len(rows) >= 2:
        order = rows[np.lexsort((ids[rows], buckets[rows]))]
        if not (codes == _HELD_OUT).any():
            codes[order[0]] = _HELD_OUT
        elif not (codes == _TRAIN).any():
            codes[order[-1]] = _TRAIN
    return codes


@dataclasses.dataclass(frozen=True, kw_only=True)
class WrittenShard:
    """One shard as written."""

    name: str
    rows: int
    sha256: str
    counts: dict[str, int]


def write_shard(shard: Shard, units: Path, output: Path) -> WrittenShard:
    """Copy the kept documents of a shard's units into `documents-NNNNN.parquet`."""
    name = f"documents-{shard.index:05d}.parquet"
    rows = 0
    duplicates: list[str] = []
    with written_whole(output / name) as path:
        with pq.ParquetWriter(path, DOCUMENT_SCHEMA, compression="zstd") as writer:
            for table in _row_groups(_kept_documents(shard, units, duplicates)):
                writer.write_table(table)
                rows += table.num_rows
        sha256 = file_sha256(path)
    with written_whole(units / f"shard-{shard.index:06d}{DROPPED}") as path:
        path.write_text("".join(duplicates), encoding="utf-8")
    return WrittenShard(name=name, rows=rows, sha256=sha256, counts=shard.counts)


def _kept_documents(shard: Shard, units: Path, duplicates: list[str]) -> Iterator[pa.Table]:
    """The documents of a shard with their split; lines for its duplicates are added to `duplicates`."""
    labels = pa.array(_CODES)
    split_column = DOCUMENT_SCHEMA.get_field_index("split")
    for stem, codes in zip(shard.stems, shard.splits):
        position = 0
        for table in read_tables(stem, units):
            part = np.frombuffer(codes, dtype=np.uint8, count=table.num_rows, offset=position)
            position += table.num_rows
            column = labels.take(pa.array(part, type=pa.int8()))
            table = table.set_column(split_column, DOCUMENT_SCHEMA.field("split"), column)
            is_kept = np.isin(part, (_TRAIN, _HELD_OUT))
            if not is_kept.all():
                lost = table.filter(pa.array(~is_kept)).select(["document_id", "split", "title"])
                duplicates += [dropped_line(*row.values()) for row in lost.to_pylist()]
                table = table.filter(pa.array(is_kept))
            yield table.cast(DOCUMENT_SCHEMA)


def _row_groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in tables of one size, as row groups should have it however small the units are."""
    waiting: list[pa.Table] = []
    num_waiting = 0
    for table in tables:
        waiting.append(table)
        num_waiting += table.num_rows
        while num_waiting >= DOCUMENTS_PER_ROW_GROUP:
            whole = pa.concat_tables(waiting)
            yield whole.slice(0, DOCUMENTS_PER_ROW_GROUP)
            waiting = [whole.slice(DOCUMENTS_PER_ROW_GROUP)]
            num_waiting -= DOCUMENTS_PER_ROW_GROUP
    if num_waiting:
        yield pa.concat_tables(waiting)
