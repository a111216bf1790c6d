"""The vocabulary job: Beam counts words by shard, then merges them by partition; one process trains on the counts.

Counts are written to the scratch directory, one file per corpus shard, in which row group p is partition p of the
words of training documents; the last one has the words of held-out documents, which one process measures a vocabulary
on. So a worker holds the words of one shard or of one partition, and Beam groups file names only.
"""

import collections
import functools
import logging
import math
import zlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bert_pipeline.atomic import atomic_write
from bert_pipeline.beam import beam
from bert_pipeline.beam.options import num_workers, pipeline_options
from bert_pipeline.beam.results import Result, WriteResults, check_total, guarded, read_results
from bert_pipeline.beam.workers import ForEachShard, ParallelFlatMap, Progress, run_pipeline, shard_rows
from bert_pipeline.corpus.mixture import (
    WeightedText,
    describe_mixture,
    recorded_settings,
    sources_and_languages,
    weigh_texts,
)
from bert_pipeline.corpus.parquet import read_sentences, without_failures
from bert_pipeline.errors import UsageError
from bert_pipeline.failed_records import record_failures
from bert_pipeline.manifest import Draft, Manifest, files_of, foreign_input, input_of, load_manifest, publishing
from bert_pipeline.parquet_io import open_parquet, read_row_group
from bert_pipeline.storage import make_directory, remove_tree, to_path
from bert_pipeline.vocabulary.files import CONFIGURATION_NAME, SPECIAL_TOKENS, read_vocabulary
from bert_pipeline.vocabulary.quality import count_marks, marks_warnings, quality, unknown_warnings
from bert_pipeline.vocabulary.tokenizer import Tokenizer
from bert_pipeline.vocabulary.wordpiece import (
    VocabularyConfig,
    WordCounter,
    characters_of,
    extend,
    min_training_count,
    train,
    train_bpe,
)

log = logging.getLogger(__name__)

_COUNT_SCHEMA = pa.schema([("word", pa.string()), ("count", pa.int64())])
_SAMPLED_SENTENCES = 200
"""Of each row group, to see how much of the text are marks that lower-casing removes: groups differ in language."""
_BYTES_PER_PARTITION = 1 << 30
"""Corpus bytes whose distinct words fit into the memory of one worker."""


def vocabulary_file(path: Path | str) -> Path:
    """Return where a vocab.txt is; of an artifact in a store it is below its attempt."""
    return files_of(to_path(path).parent) / to_path(path).name


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
    """Build a vocabulary from the corpus' training documents and measure it on its held-out documents.

    With `extend_vocabulary` (a vocab.txt) the corpus' most useful words replace its [unused] slots, and `vocab_size`,
    `num_unused` and `pad_with_unused` have no effect. `compare_vocabulary` (a vocab.txt) is measured as well.
    InputError if the corpus is too small for the size; UsageError for options that exclude each other.
    """
    source = load_manifest(corpus, kind="corpus")
    Tokenizer.from_tokens(SPECIAL_TOKENS, True).with_special_tokens(config.special_tokens)  # raises before the count
    # Read and check the other vocabularies before the count, which takes most of the time.
    vocabularies = {"extend": extend_vocabulary, "compare": compare_vocabulary}
    paths = {name: vocabulary_file(path) for name, path in vocabularies.items() if path}
    others = {name: _read_other(path, config.do_lower_case) for name, path in paths.items()}
    base, reference = others.get("extend"), others.get("compare")

    # The manifest states the size that results, which an extension takes from its base.
    configuration = recorded_settings(config, "kind", "special_tokens")
    texts = () if config.is_plain else tuple(weigh_texts(source, config))
    if base is not None:
        _refuse_ignored(config)
        configuration |= {"vocab_size": base.vocab_size}

    # The other vocabularies decide the result too: they are inputs by name and hash.
    inputs: dict[str, Any] = {"corpus": input_of(source)}
    inputs |= {name: foreign_input(path) for name, path in paths.items()}
    with publishing(output, kind="vocabulary", configuration=configuration, inputs=inputs, by_workers=True) as draft:
        # Count in the workers; the words that return are few enough for one process.
        options = pipeline_options(beam_options)
        scratch = (draft.path / "counts").resolve()
        make_directory(scratch)
        unit = _WEIGHT_UNIT if texts else 1
        shards, partitions = _count(source, draft, scratch, config, texts, unit, options, progress)
        counts, characters, totals = _training_counts(scratch, shards, partitions, unit)
        held_out = _held_out_counts(scratch, shards, len(partitions))
        remove_tree(scratch)
        record_failures(draft, shards)
        if config.do_lower_case:
            marks, characters_read = (sum(shard[name] for shard in shards) for name in ("marks", "sampled_characters"))
            for warning in marks_warnings(marks, characters_read):
                log.warning("%s", warning)
        log.info("counted %d words, %d of them distinct", totals["words"], totals["distinct_words"])

        # Extending changes [unused] slots only, so that models of the base keep the ids of their tokens.
        sizes: list[tuple[str, ...]] = []
        num_added = 0
        if config.kind == "bpe":
            tokenizer = train_bpe(counts, config)
        elif base is None:
            longest = train(counts, config, characters, max_size=2 * config.vocab_size)
            tokens, half = longest[: config.vocab_size], longest[: config.vocab_size // 2]
            sizes = [half] * (_num_characters(half) == _num_characters(tokens)) + [longest] * (longest != tokens)
            tokenizer = Tokenizer.from_tokens(tokens, config.do_lower_case)
        else:
            tokenizer, num_added = extend(base, counts, config.min_count)
        tokenizer = tokenizer.with_special_tokens(config.special_tokens)
        tokenizer.save(draft.path)
        draft.rows[tokenizer.vocabulary_name] = tokenizer.vocab_size
        draft.files_without_rows.add(CONFIGURATION_NAME)
        draft.counts |= {"vocab_size": tokenizer.vocab_size, **totals, "added_words": num_added}
        draft.counts["alphabet"] = _num_characters(tokenizer.tokens)
        # A corpus of one document has no held-out split: then quality is measured on the training words.
        draft.counts["quality_on"] = "held_out" if held_out else "train"
        measured = held_out or collections.Counter(dict(counts))
        draft.counts["quality"] = quality(tokenizer, measured)
        by_size = {}
        for tokens in sizes:
            of_size = quality(Tokenizer.from_tokens(tokens, config.do_lower_case), measured)
            by_size[str(len(tokens))] = {name: of_size[name] for name in ("tokens_per_word", "unk_share")}
        draft.counts["quality_by_size"] = by_size
        for warning in unknown_warnings(draft.counts["quality"]):
            log.warning("%s", warning)
        if reference is not None:
            draft.counts["reference_quality"] = quality(reference, measured)
        if texts:
            draft.counts["mixture"] = describe_mixture(texts, {})
        draft.provenance["workers"] = num_workers(options)
    return load_manifest(output, kind="vocabulary")


def _num_characters(tokens: Sequence[str]) -> int:
    return sum(len(token) == 1 for token in tokens)


def _refuse_ignored(config: VocabularyConfig) -> None:
    for name in ("kind", "vocab_size", "num_unused", "max_alphabet", "pad_with_unused"):
        value = getattr(config, name)
        if value != getattr(VocabularyConfig(), name):
            raise UsageError(f"{name}={value!r}: extending keeps the given vocabulary's size and layout; leave it")


def _read_other(path: Path, do_lower_case: bool) -> Tokenizer:
    """Read a vocab.txt. UsageError if its directory states the other case."""
    if (path.parent / CONFIGURATION_NAME).is_file():
        stated = Tokenizer.from_directory(path.parent, cased=not do_lower_case).do_lower_case
        if stated != do_lower_case:
            raise UsageError(
                f"do_lower_case={do_lower_case}: {path.parent / CONFIGURATION_NAME} states {stated}; "
                "a vocabulary can only be extended or compared in its own case"
            )
    return Tokenizer.from_tokens(read_vocabulary(path), do_lower_case, str(path))


def _count(
    source: Manifest,
    draft: Draft,
    scratch: Path,
    config: VocabularyConfig,
    texts: Sequence[WeightedText],
    unit: int,
    options: Any,
    progress: Progress | None,
) -> tuple[list[Result], list[Result]]:
    """Count the words of the corpus into files in `scratch`; returns the results of shards and of partitions."""
    plan = shard_rows(source)
    num_partitions = max(1, math.ceil(sum(file["bytes"] for file in source.files.values()) / _BYTES_PER_PARTITION))
    count = functools.partial(_count_shard, scratch=scratch, config=config, num_partitions=num_partitions, texts=texts)
    merge = functools.partial(_merge_partition, scratch=scratch, min_count=config.min_count, unit=unit)

    # "all counted" gathers the file names: each partition is merged from the files of all shards.
    partitions = functools.partial(_plan_partitions, num_partitions=num_partitions)
    with run_pipeline(options, preload=__name__, draft=draft, progress=progress, total=len(plan)) as pipeline:
        counted = pipeline | "count" >> ForEachShard(count, source)
        _ = counted | "counted" >> WriteResults(scratch / "counted.json")
        _ = (
            counted
            | "all counted" >> beam.combiners.ToList()
            | "partitions" >> beam.FlatMap(lambda counted: guarded(partitions, counted))
            | "spread partitions" >> beam.Reshuffle()
            | "merge" >> beam.ParDo(ParallelFlatMap(merge))
            | "merged" >> WriteResults(scratch / "merged.json")
        )
    return (
        read_results(scratch / "counted.json", plan),
        read_results(scratch / "merged.json", {_merged_name(partition): None for partition in range(num_partitions)}),
    )


def _plan_partitions(counted: list[Result], *, num_partitions: int) -> list[tuple[int, list[str]]]:
    files = sorted(result["file"] for result in counted)
    return [(partition, files) for partition in range(num_partitions)]


def _merged_name(partition: int) -> str:
    return f"merged-{partition:05d}.parquet"


def _count_shard(
    index: int,
    shard: Path,
    *,
    scratch: Path,
    config: VocabularyConfig,
    num_partitions: int,
    texts: Sequence[WeightedText],
) -> Sequence[Result]:
    """Count the words of one corpus shard into a file."""
    (train, held_out, num_read, (marks, characters)), failed = without_failures(
        shard,
        lambda leave_out: count_words(shard, config.do_lower_case, texts, leave_out, config.kind),
        lambda sentences: WordCounter(config.do_lower_case, config.kind).count(sentences),
    )
    result: Result = {
        "name": shard.name,
        "rows": num_read + len(failed),
        "failed": failed,
        "file": f"shard-{index:05d}.parquet",
        "words": train.total(),
        "held_out_words": held_out.total(),
        "marks": marks,
        "sampled_characters": characters,
    }
    # crc32 is the same in every process, unlike `hash`: a word has one partition in all shards.
    partitions: list[list[tuple[str, int]]] = [[] for _ in range(num_partitions)]
    for item in train.items():
        partitions[zlib.crc32(item[0].encode()) % num_partitions].append(item)
    train.clear()
    partitions.append(list(held_out.items()))
    for partition in partitions:
        partition.sort()
    _write_counts(scratch / result["file"], partitions)
    return [result]


def count_words(
    shard: Path | str,
    do_lower_case: bool,
    texts: Sequence[WeightedText] = (),
    leave_out: Collection[str] = (),
    kind: str = "wordpiece",
) -> tuple[collections.Counter[str], collections.Counter[str], int, tuple[int, int]]:
    """Count the words of one corpus shard, of its training and of its held-out documents, and all its documents.

    Of some sentences the marks and characters are counted too. Documents whose ids are in `leave_out` are none of them.

    With `texts` the words of training documents count as often as their source and language weigh, in units of
    1 / `_WEIGHT_UNIT`: as integers, so that the sum does not depend on the order of the shards.
    """
    # Documents of one weight are counted together. A small weight is a unit, so that no character of its words is lost.
    weights = {(text.source, text.language): text.weight * _WEIGHT_UNIT for text in texts if text.weight}
    units = collections.defaultdict(int, {text: max(1, round(weight)) for text, weight in weights.items()})
    train: dict[int, WordCounter] = {}
    held_out = WordCounter(do_lower_case, kind)
    num_read = marks = characters = 0
    for table, offsets, sentences in read_sentences(shard, leave_out):
        num_read += table.num_rows
        of_sample = count_marks(sentences[:_SAMPLED_SENTENCES])
        marks, characters = marks + of_sample[0], characters + of_sample[1]
        times = np.ones(table.num_rows, dtype=np.int64)
        if texts:
            times = np.array([units[text] for text in sources_and_languages(table)], dtype=np.int64)
        times[pc.equal(table.column("split").combine_chunks(), "held_out").to_numpy(zero_copy_only=False)] = _HELD_OUT
        # What holds for a document holds for each of its sentences.
        of_sentence = np.repeat(times, np.diff(offsets))  # (S,)
        different = np.unique(of_sentence).tolist()
        for time in different:
            chosen = sentences if len(different) == 1 else sentences.filter(pa.array(of_sentence == time))
            if time == _HELD_OUT:
                held_out.add(chosen)
            elif time:
                train.setdefault(time, WordCounter(do_lower_case, kind)).add(chosen)
    # Without weights there is one counter, whose words need no copy.
    counts = train.pop(1).counts() if 1 in train else collections.Counter()
    for time, counter in train.items():
        for word, count in counter.counts().items():
            counts[word] += count * time
    return counts, held_out.counts(), num_read, (marks, characters)


_WEIGHT_UNIT = 10_000
_HELD_OUT = -1


def _merge_partition(element: tuple[int, list[str]], *, scratch: Path, min_count: int, unit: int) -> Sequence[Result]:
    """Sum one partition of the words over all shards, and write the words that are frequent enough."""
    partition, names = element
    merged: collections.Counter[str] = collections.Counter()
    for name in names:
        for word, count in _read_counts(scratch / name, partition):
            merged[word] += count
    counted = merged.total()
    # Characters stay in units, since other partitions have them too; a word is complete, and its count is rounded.
    characters = sorted(characters_of(merged.items()).items())
    merged = collections.Counter({word: count for word in merged if (count := _rounded(merged[word], unit))})
    # Rare words end here, but not their characters: one that is in many rare words is frequent.
    frequent = sorted(item for item in merged.items() if item[1] >= min_count)
    name = _merged_name(partition)
    _write_counts(scratch / name, [frequent, characters])
    return [{"name": name, "counted": counted, "words": merged.total(), "distinct_words": len(merged)}]


def _rounded(count: int, unit: int) -> int:
    return (count + unit // 2) // unit


def _training_counts(
    scratch: Path, shards: Sequence[Result], partitions: Sequence[Result], unit: int
) -> tuple[list[tuple[str, int]], collections.Counter[str], dict[str, int]]:
    """Return the words to train on, the characters of all words, and the numbers of words."""
    totals = {name: sum(partition[name] for partition in partitions) for name in ("words", "distinct_words")}
    num_counted = sum(partition["counted"] for partition in partitions)
    check_total("words of all partitions", num_counted, sum(shard["words"] for shard in shards))
    paths = [scratch / partition["name"] for partition in partitions]
    frequencies = [_read_group(path, 0, ["count"]).column("count").to_numpy() for path in paths]
    num_frequent = sum(len(array) for array in frequencies)
    # One threshold for all partitions, from the counts alone, before any word is loaded.
    min_count = min_training_count(np.concatenate(frequencies))
    characters: collections.Counter[str] = collections.Counter()
    counts: list[tuple[str, int]] = []
    for path in paths:
        # Row group 0 has the frequent words, 1 the characters of all words.
        table = _read_group(path, 0)
        counts += _pairs(table.filter(pc.greater_equal(table.column("count"), min_count)))
        for piece, count in _read_counts(path, 1):
            characters[piece] += count
    characters = collections.Counter({piece: _rounded(count, unit) for piece, count in characters.items()})
    # By word: the same list for any number of partitions.
    counts.sort()
    totals |= {"frequent_distinct_words": num_frequent, "training_distinct_words": len(counts)}
    return counts, characters, totals


def _held_out_counts(scratch: Path, shards: Sequence[Result], group: int) -> collections.Counter[str]:
    counts: collections.Counter[str] = collections.Counter()
    for shard in shards:
        for word, count in _read_counts(scratch / shard["file"], group):
            counts[word] += count
    check_total("words of held-out documents", counts.total(), sum(shard["held_out_words"] for shard in shards))
    return counts


def _write_counts(path: Path, groups: Sequence[list[tuple[str, int]]]) -> None:
    """Write each group of counts as a row group."""
    with (
        atomic_write(path) as temporary,
        # Words are distinct: a dictionary of them would be a copy.
        pq.ParquetWriter(
            temporary, _COUNT_SCHEMA, compression="zstd", write_page_checksum=True, use_dictionary=["count"]
        ) as writer,
    ):
        for group in groups:
            words = pa.array([word for word, _ in group], type=pa.string())
            counts = pa.array([count for _, count in group], type=pa.int64())
            table = pa.Table.from_arrays([words, counts], schema=_COUNT_SCHEMA)
            writer.write_table(table, row_group_size=max(len(group), 1))


def _read_counts(path: Path, group: int) -> Iterator[tuple[str, int]]:
    return _pairs(_read_group(path, group))


def _read_group(path: Path, group: int, columns: list[str] | None = None) -> pa.Table:
    with open_parquet(path, _COUNT_SCHEMA, "a file of word counts") as file:
        return read_row_group(file, group, path, columns)


def _pairs(table: pa.Table) -> Iterator[tuple[str, int]]:
    return zip(table.column("word").to_numpy().tolist(), table.column("count").to_numpy().tolist())
