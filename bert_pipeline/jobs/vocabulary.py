"""The vocabulary job: Beam counts words shard by shard, then partition by partition; one process trains on the counts.

Counts go through files in the directory being made, one for each corpus shard, in which partition p of the words is
row group p. So a worker holds the words of one shard or of one partition, and only file names are grouped.
"""

import collections
import dataclasses
import functools
import logging
import math
import os
import shutil
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq

from bert_pipeline.configuration import to_mapping
from bert_pipeline.errors import InputError, UsageError
from bert_pipeline.formats.parquet import read_sentences
from bert_pipeline.jobs.failure import check_shard, raised_from, recorded_in
from bert_pipeline.jobs.options import num_workers, pipeline_options
from bert_pipeline.jobs.progress import Progress, reporting
from bert_pipeline.manifest import Manifest, file_sha256, input_of, load_manifest, publishing
from bert_pipeline.tokenization import CONFIGURATION_NAME, VOCABULARY_NAME, Tokenizer, read_vocabulary
from bert_pipeline.vocabulary import VocabularyConfig, WordCounter, characters_of, extend, quality, train

log = logging.getLogger(__name__)

_COUNT_SCHEMA = pa.schema([("word", pa.string()), ("count", pa.int64())])
_BYTES_PER_PARTITION = 1 << 30
"""Corpus bytes whose distinct words one worker surely holds."""


def build_vocabulary(
    corpus: Path | str,
    output: Path | str,
    config: VocabularyConfig,
    beam_options: Sequence[str] = (),
    *,
    extend_vocabulary: Path | str | None = None,
    compare_vocabulary: Path | str | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Make a vocabulary of the corpus' training documents and measure it on its held-out documents.

    With `extend_vocabulary` (a vocab.txt) its [unused] slots take the corpus' most useful words, and `vocab_size`,
    `num_unused` and `pad_with_unused` play no part. `compare_vocabulary` (a vocab.txt) is measured beside. InputError
    when the corpus is too small for the size; UsageError for options that exclude each other.
    """
    source = load_manifest(corpus, kind="corpus")
    given = {name: path for name, path in (("extend", extend_vocabulary), ("compare", compare_vocabulary)) if path}
    base = read_vocabulary(given["extend"]) if "extend" in given else None
    reference = (
        Tokenizer(read_vocabulary(given["compare"]), config.do_lower_case, str(given["compare"]))
        if ("compare" in given)
        else None
    )
    configuration = to_mapping(config)
    if base is not None:
        _refuse_ignored(config)
        _check_case(Path(given["extend"]), config.do_lower_case)
        configuration |= {"vocab_size": len(base)}
    inputs: dict[str, Any] = {"corpus": input_of(source)}
    inputs |= {name: {"name": Path(path).name, "sha256": file_sha256(Path(path))} for name, path in given.items()}
    with publishing(output, kind="vocabulary", configuration=configuration, inputs=inputs) as draft:
        scratch = draft.path / "counts"
        scratch.mkdir()
        options = pipeline_options(beam_options)
        num_partitions = max(1, math.ceil(sum(file["bytes"] for file in source.files.values()) / _BYTES_PER_PARTITION))
        _count(source, scratch.resolve(), config, num_partitions, options, progress)
        counts, characters, totals = _training_counts(scratch)
        held_out = _held_out_counts(scratch)
        shutil.rmtree(scratch)
        log.info("counted %d words, %d of them distinct", totals["words"], totals["distinct_words"])
        if base is None:
            tokens, num_added = train(counts, config, characters), 0
        else:
            tokens, num_added = extend(base, counts, do_lower_case=config.do_lower_case, min_count=config.min_count)
        tokenizer = Tokenizer.from_tokens(tokens, config.do_lower_case)
        tokenizer.save(draft.path)
        draft.rows[VOCABULARY_NAME] = len(tokens)
        draft.counts |= {"vocab_size": len(tokens), **totals, "added_words": num_added}
        # A corpus of one document holds nothing out: then the vocabulary is measured on what it was made of.
        draft.counts["quality_on"] = "held_out" if held_out else "train"
        measured = held_out or collections.Counter(dict(counts))
        draft.counts["quality"] = quality(tokenizer, measured)
        if reference is not None:
            draft.counts["reference_quality"] = quality(reference, measured)
        draft.provenance["workers"] = num_workers(options)
    return load_manifest(output, kind="vocabulary")


def _refuse_ignored(config: VocabularyConfig) -> None:
    for field in dataclasses.fields(VocabularyConfig):
        value = getattr(config, field.name)
        if field.name in ("vocab_size", "num_unused", "max_alphabet", "pad_with_unused") and value != field.default:
            raise UsageError(
                f"{field.name}={value!r}: extending keeps the given vocabulary's size and layout; leave it"
            )


def _check_case(path: Path, do_lower_case: bool) -> None:
    """A vocabulary whose directory states its case is not extended in the other one."""
    if (path.parent / CONFIGURATION_NAME).is_file():
        stated = Tokenizer.from_directory(path.parent).do_lower_case
        if stated != do_lower_case:
            raise UsageError(f"do_lower_case={do_lower_case}: {path.parent / CONFIGURATION_NAME} says {stated}")


def _count(
    source: Manifest,
    scratch: Path,
    config: VocabularyConfig,
    num_partitions: int,
    options: Any,
    progress: Progress | None,
) -> None:
    names = [name for name in source.files if name.startswith("documents-")]
    shards = [(str((source.path / name).resolve()), source.files[name]["sha256"]) for name in names]
    count = functools.partial(
        _count_shard, scratch=str(scratch), do_lower_case=config.do_lower_case, num_partitions=num_partitions
    )
    merge = functools.partial(_merge_partition, scratch=str(scratch), min_count=config.min_count)
    with (
        raised_from(scratch),
        reporting(scratch, "shard-*.parquet", len(shards), progress),
        beam.Pipeline(options=options) as pipeline,
    ):
        (
            pipeline
            | "shards" >> beam.Create(list(enumerate(shards)))
            | "spread shards" >> beam.Reshuffle()
            | "count" >> beam.Map(count)
            | "all counted" >> beam.GroupBy(lambda _: 0)
            | "partitions" >> beam.FlatMap(lambda group: [(p, sorted(group[1])) for p in range(num_partitions)])
            | "spread partitions" >> beam.Reshuffle()
            | "merge" >> beam.Map(merge)
        )


def _count_shard(
    element: tuple[int, tuple[str, str]], *, scratch: str, do_lower_case: bool, num_partitions: int
) -> str:
    """Count the words of one corpus shard; returns the name of the file of counts."""
    index, (shard, sha256) = element
    counters = {"train": WordCounter(do_lower_case), "held_out": WordCounter(do_lower_case)}
    with recorded_in(Path(scratch)):
        check_shard(shard, sha256)
        for table, offsets, sentences in read_sentences(shard):
            texts = sentences.to_pylist()
            for row, split in enumerate(table.column("split").to_pylist()):
                counters[split].add(texts[offsets[row] : offsets[row + 1]])
    name = f"shard-{index:05d}.parquet"
    held_out = counters["held_out"].counts()
    _write_counts(Path(scratch) / f"held-out-{index:05d}.parquet", [sorted(held_out.items())])
    partitions: list[list[tuple[str, int]]] = [[] for _ in range(num_partitions)]
    for item in counters["train"].counts().items():
        partitions[zlib.crc32(item[0].encode()) % num_partitions].append(item)
    _write_counts(Path(scratch) / name, [sorted(partition) for partition in partitions])
    return name


def _merge_partition(element: tuple[int, list[str]], *, scratch: str, min_count: int) -> int:
    """Add up one partition of the words over all shards and write those that are frequent enough."""
    partition, names = element
    merged: collections.Counter[str] = collections.Counter()
    for name in names:
        for word, count in _read_counts(Path(scratch) / name, partition):
            merged[word] += count
    frequent = sorted(item for item in merged.items() if item[1] >= min_count)
    totals = {"words": merged.total(), "distinct_words": len(merged)}
    characters = sorted(characters_of(merged.items()).items())
    _write_counts(Path(scratch) / f"merged-{partition:05d}.parquet", [frequent, characters], totals)
    return partition


def _training_counts(
    scratch: Path,
) -> tuple[list[tuple[str, int]], collections.Counter[str], dict[str, int]]:
    """Words that are frequent enough, characters of all words, and how many words there were."""
    characters: collections.Counter[str] = collections.Counter()
    counts: list[tuple[str, int]] = []
    totals: collections.Counter[str] = collections.Counter()
    for path in sorted(scratch.glob("merged-*.parquet")):
        counts.extend(_read_counts(path, 0))
        for piece, count in _read_counts(path, 1):
            characters[piece] += count
        metadata = pq.read_schema(path).metadata or {}
        totals.update({name: int(metadata[name.encode()]) for name in ("words", "distinct_words")})
    counts.sort()
    return counts, characters, {**totals, "frequent_distinct_words": len(counts)}


def _held_out_counts(scratch: Path) -> collections.Counter[str]:
    counts: collections.Counter[str] = collections.Counter()
    for path in sorted(scratch.glob("held-out-*.parquet")):
        for word, count in _read_counts(path, 0):
            counts[word] += count
    return counts


def _write_counts(path: Path, groups: Sequence[list[tuple[str, int]]], totals: dict[str, int] | None = None) -> None:
    """Write groups of counts as row groups; renamed into place, since Beam may run a bundle twice."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    schema = _COUNT_SCHEMA.with_metadata({name: str(value) for name, value in (totals or {}).items()})
    with pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
        for group in groups:
            words = pa.array([word for word, _ in group], type=pa.string())
            counts = pa.array([count for _, count in group], type=pa.int64())
            writer.write_table(pa.Table.from_arrays([words, counts], schema=schema), row_group_size=max(len(group), 1))
    os.replace(temporary, path)


def _read_counts(path: Path, group: int) -> Iterator[tuple[str, int]]:
    try:
        with pq.ParquetFile(path) as file:
            table = file.read_row_group(group)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: word counts cannot be read ({error})") from error
    return zip(table.column("word").to_pylist(), table.column("count").to_pylist())
