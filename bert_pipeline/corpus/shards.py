"""Page batches to corpus shards: group the batches, copy their documents without the duplicates."""

import dataclasses
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bert_pipeline.atomic import atomic_write, replace_text
from bert_pipeline.corpus.batches import (
    COUNTED,
    DROPPED_SUFFIX,
    PageBatch,
    batch_stem,
    read_document_ids,
    read_statistics,
    read_tables,
)
from bert_pipeline.corpus.duplicates import CODES, HELD_OUT, NEAR, SAME_TEXT, TRAIN, Decisions, Found, decide
from bert_pipeline.corpus.mixture import count_texts, sum_texts
from bert_pipeline.corpus.parquet import DOCUMENT_SCHEMA, DOCUMENTS_PER_ROW_GROUP
from bert_pipeline.corpus.splits import CorpusConfig
from bert_pipeline.failed_records import DROPPED_HEADER, dropped_line
from bert_pipeline.hashes import file_sha256
from bert_pipeline.parquet_io import number_array, string_array
from bert_pipeline.storage import open_binary


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard:
    """The plan of one shard: its batches, and which of their documents it keeps."""

    index: int
    stems: tuple[str, ...]
    codes: tuple[bytes, ...]
    """For each batch one byte per document: an index into `CODES`."""
    counts: dict[str, int]
    """Counts of its kept documents."""
    resembled: bytes = b""
    """(M, 3) int64: for each document dropped for its text, in order, the one kept in its place: split, batch, row."""


def plan_shards(
    batches: Sequence[PageBatch], found: Sequence[Found], config: CorpusConfig, directory: Path
) -> tuple[list[Shard], Decisions]:
    """Decide what becomes of the documents of all batches, which are in order, and group the batches into shards.

    `found` is what the tasks of `plan_comparisons` found.
    """
    bounds = np.cumsum([0, *(batch.documents for batch in batches)])
    decisions = decide(batches, found, config, directory)
    codes, resembled = decisions.codes, decisions.resembled
    sums = [
        _count(read_statistics(batch.stem, directory), codes[start:stop])
        for batch, start, stop in zip(batches, bounds, bounds[1:])
    ]

    # Consecutive batches form a shard as soon as they hold enough text; a short rest joins the last shard.
    groups: list[list[int]] = [[]]
    size = 0
    for index in range(len(batches)):
        if size >= config.shard_bytes:
            groups.append([])
            size = 0
        groups[-1].append(index)
        size += sums[index]["bytes"]
    if size < config.shard_bytes and len(groups) > 1:
        groups[-2].extend(groups.pop())

    # A shard's plan is small: the names of its batches, one byte per document, and a few numbers per near duplicate.
    place = np.array([(batch.split, batch.number) for batch in batches], dtype=np.int64).reshape(-1, 2)
    shards: list[Shard] = []
    for group in groups if batches else []:
        start, stop = bounds[group[0]], bounds[group[-1] + 1]
        near = resembled[slice(*np.searchsorted(resembled[:, 0], [start, stop])), 1]
        batch = np.searchsorted(bounds, near, side="right") - 1
        shards.append(
            Shard(
                index=len(shards),
                stems=tuple(batches[index].stem for index in group),
                codes=tuple(codes[bounds[index] : bounds[index + 1]].tobytes() for index in group),
                counts={name: sum(sums[index][name] for index in group) for name in sums[0]},
                resembled=np.column_stack([place[batch], near - bounds[batch]]).tobytes(),
            )
        )
    return shards, decisions


def _count(documents: np.ndarray, codes: np.ndarray) -> dict[str, int]:
    """Sum the counts of the kept ones among N documents, given their statistics (N,) and codes (N,)."""
    num_train, num_held_out = int((codes == TRAIN).sum()), int((codes == HELD_OUT).sum())
    kept = documents[np.isin(codes, (TRAIN, HELD_OUT))]
    counts = {name: int(kept[name].sum()) for name in COUNTED}
    counts["characters_out"] = counts.pop("characters")
    return {
        "documents": num_train + num_held_out,
        "documents_train": num_train,
        "documents_held_out": num_held_out,
        **counts,
    }


def shard_name(index: int) -> str:
    """Return the name of a shard's file."""
    return f"documents-{index:05d}.parquet"


def write_shard(shard: Shard, scratch: Path, output: Path) -> dict[str, Any]:
    """Copy the kept documents of a shard's batches to `documents-NNNNN.parquet`; return what the corpus states of it.

    With its counts these are the training documents and their words, by source and language ("texts"), and the name of
    the list of its duplicates in the scratch directory ("dropped_list").
    """
    name = shard_name(shard.index)
    rows = 0
    duplicates: list[str] = []
    texts: list[dict[str, Any]] = []
    with atomic_write(output / name) as path:
        with pq.ParquetWriter(path, DOCUMENT_SCHEMA, compression="zstd", write_page_checksum=True) as writer:
            for table in _row_groups(_kept_documents(shard, scratch, duplicates, texts)):
                writer.write_table(table)
                rows += table.num_rows
        sha256 = file_sha256(path)
    # A list of its own, even if empty: `collect_dropped` joins those of all shards.
    dropped_list = f"shard-{shard.index:06d}{DROPPED_SUFFIX}"
    replace_text(scratch / dropped_list, "".join(duplicates))
    written = {"name": name, "rows": rows, "sha256": sha256, "dropped_list": dropped_list}
    return {**written, "counts": shard.counts, "texts": sum_texts(texts)}


def _kept_documents(
    shard: Shard, scratch: Path, duplicates: list[str], texts: list[dict[str, Any]]
) -> Iterator[pa.Table]:
    """Yield the kept documents of a shard with their split; add a line for each other one, and counts of those kept."""
    split_column = DOCUMENT_SCHEMA.get_field_index("split")
    resembled = _resembled_ids(shard, scratch)
    for stem, codes in zip(shard.stems, shard.codes):
        position = 0
        words_of_batch = read_statistics(stem, scratch)["words"]
        for table in read_tables(stem, scratch):
            # `codes` covers the whole batch, which is read in several tables.
            part = np.frombuffer(codes, dtype=np.uint8, count=table.num_rows, offset=position)
            words = words_of_batch[position : position + table.num_rows]
            position += table.num_rows
            column = string_array([CODES[code] for code in part])
            table = table.set_column(split_column, DOCUMENT_SCHEMA.field("split"), column)

            # The code of a duplicate is the reason it is listed with.
            is_kept = np.isin(part, (TRAIN, HELD_OUT))
            if not is_kept.all():
                rows = (
                    table.select(["document_id", "split", "title"])
                    .take(number_array(np.flatnonzero(~is_kept)))
                    .to_pylist()
                )
                for row in rows:
                    reason = row["split"]
                    if reason in (CODES[SAME_TEXT], CODES[NEAR]):
                        reason = f"{reason} {'of' if reason == CODES[NEAR] else 'as'} {next(resembled)}"
                    duplicates.append(dropped_line(row["document_id"], reason, row["title"]))
                table, words = table.take(number_array(np.flatnonzero(is_kept))), words[is_kept]
            texts += count_texts(table, words)
            yield table.cast(DOCUMENT_SCHEMA)


def _resembled_ids(shard: Shard, scratch: Path) -> Iterator[str]:
    """Yield the ids of the documents that were kept in place of those that the shard dropped for their texts."""
    places = np.frombuffer(shard.resembled, dtype=np.int64).reshape(-1, 3)
    batches, batch_of = np.unique(places[:, :2], axis=0, return_inverse=True)
    ids = np.empty(len(places), dtype=object)
    for index, (split, number) in enumerate(batches.tolist()):
        rows = np.flatnonzero(batch_of == index)
        ids[rows] = read_document_ids(batch_stem(split, number), places[rows, 2], scratch)
    yield from ids.tolist()


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
    with atomic_write(path) as local, open(local, "w", encoding="utf-8", newline="\n") as stream:
        stream.write(DROPPED_HEADER)
        for part in lists:
            with io.TextIOWrapper(open_binary(part), encoding="utf-8") as lines:
                for line in lines:
                    stream.write(line)
                    rows += 1
    return rows
