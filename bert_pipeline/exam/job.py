"""The exam job: Beam counts words and trigrams of the training documents and makes pairs from the held-out ones.

One process sums the trigrams, the baseline of the exam. `max_words` bounds the words that they are counted in, and so
most of its memory, but not the different words of the whole training text, which take about 150 bytes each.
"""

import collections
import functools
import itertools
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bert_pipeline.atomic import atomic_write, locked
from bert_pipeline.beam.options import is_engine, num_workers, pipeline_options
from bert_pipeline.beam.results import Result, WriteResults, check_total, read_results
from bert_pipeline.beam.workers import ForEachShard, run_pipeline, shard_rows
from bert_pipeline.configuration import to_mapping
from bert_pipeline.corpus.documents import id_hash
from bert_pipeline.corpus.parquet import read_documents, read_sentences
from bert_pipeline.errors import InputError, UsageError
from bert_pipeline.exam import ngrams
from bert_pipeline.exam.made_pairs import PairMaker, without_attested
from bert_pipeline.exam.pairs import PAIRS_NAME, ExamConfig, Pair, read_pairs, sample_pairs, write_pairs
from bert_pipeline.manifest import Manifest, input_of, load_manifest, publishing
from bert_pipeline.parquet_io import arrow_errors
from bert_pipeline.step import make
from bert_pipeline.vocabulary.encoder import StringEncoder
from bert_pipeline.vocabulary.job import count_words

_WORDS_NAME = "words.parquet"
_WORDS_SCHEMA = pa.schema([("word", pa.string()), ("count", pa.int64()), ("lower", pa.int64())])


class NoPairsError(InputError):
    """The held-out documents of a corpus give no pairs; a model can be trained without an exam."""


def build_exam(
    corpus: Path | str, output: Path | str, config: ExamConfig | None = None, beam_options: Sequence[str] = ()
) -> Manifest:
    """Make pairs from a corpus' held-out documents and count the trigrams of its training documents.

    The directory holds pairs.jsonl and trigrams.npz, equal for any number of workers. InputError if the corpus has no
    training text, NoPairsError if its held-out documents give no pairs; UsageError for a runner with workers elsewhere,
    since the counts pass through this machine's disk.
    """
    config = config or ExamConfig()
    if is_engine(beam_options):
        raise UsageError("--runner: an exam is counted by the workers of this machine; leave the engine's options out")
    source = load_manifest(corpus, kind="corpus")
    held_out = source.counts.get("documents_held_out")
    numbers = "" if held_out is None else f", which are {held_out:,} of {source.counts['documents']:,}"
    no_pairs = NoPairsError(
        f"{source.path}: no pairs can be made from its held-out documents{numbers}; make it with a larger "
        "--held-out-per-mille, such as 50"
    )
    if held_out == 0:  # before anything is counted
        raise no_pairs
    inputs = {"corpus": input_of(source)}
    with publishing(output, kind="exam", configuration=to_mapping(config), inputs=inputs) as draft:
        scratch = draft.path / "counts"
        scratch.mkdir()
        options = pipeline_options(beam_options)
        run = functools.partial(_run, source, scratch.resolve(), options=options)

        # The words come first: trigrams are counted as their numbers, and pairs need their frequencies.
        counted = run("words", _count_words)
        words, num_words = _merge_words(scratch, counted)
        if not words:
            raise InputError(f"{source.path}: no training text; the trigrams of an exam need some")
        share = min(1.0, config.max_words / num_words)
        results = run("pairs", functools.partial(_count_and_make, config=config, share=share))

        files = [scratch / result["file"] for result in results if result["pairs"]]
        chosen = _of_both_parts(itertools.chain.from_iterable(map(read_pairs, files)), config)
        if not chosen:
            raise no_pairs
        tables = (_read_table(scratch / result["trigrams_file"]) for result in results)
        trigrams = ngrams.merge_trigrams([ngrams.Trigrams(*map(np.asarray, table.columns)) for table in tables])
        check_total("trigrams", int(trigrams.counts.sum()), sum(result["trigrams"] for result in results))
        if not len(trigrams.counts):
            raise InputError(
                f"{source.path}: none of its training documents is in the share of them ({share:.2g}) that "
                f"max_words={config.max_words} of its {num_words} words allow; give a larger max_words"
            )
        # Of the pairs that are chosen: which ones must not depend on the shards, which do not know all trigrams.
        num_chosen = len(chosen)
        chosen = without_attested(chosen, words, trigrams)
        if not chosen:
            raise no_pairs
        write_pairs(draft.path / PAIRS_NAME, chosen)
        ngrams.write_trigrams(draft.path / ngrams.NGRAM_BASELINE_NAME, trigrams, words)
        shutil.rmtree(scratch)

        kinds = collections.Counter(pair.kind for pair in chosen)
        draft.rows[PAIRS_NAME] = len(chosen)
        draft.counts |= {
            "words": num_words,
            "share_of_training_documents": share,
            "trigrams": len(trigrams.keys),
            "pairs": dict(sorted(kinds.items())),
            "attested_pairs": num_chosen - len(chosen),
        }
        draft.provenance["workers"] = num_workers(options)
    return load_manifest(output, kind="exam")


def prepared_exam(path: Path | str, directory: Path | str, config: ExamConfig | None = None) -> Path:
    """Return a directory of `build_exam` for a corpus: `path` if it is one, or below `directory`, built if missing."""
    source = load_manifest(path)
    if source.kind == "exam":
        return source.path
    output = Path(directory) / source.sha256[:16]
    with locked(output.with_name(f".{output.name}.lock")):  # of several processes one makes it
        return make("exam", build_exam, output, config or ExamConfig(), {"corpus": path}).path


def _of_both_parts(pairs: Iterable[Pair], config: ExamConfig) -> list[Pair]:
    return sample_pairs(pairs, -(-config.pairs_per_kind // 2), "each")


def _run(
    source: Manifest, scratch: Path, step: str, function: Callable[..., Sequence[Result]], *, options: Any
) -> list[Result]:
    """Call a function with each corpus shard in the workers; return their results in the order of the shards."""
    of_shard = functools.partial(function, scratch=scratch)
    with run_pipeline(options, preload=__name__) as pipeline:
        results = pipeline | step >> ForEachShard(of_shard, source)
        _ = results | "results" >> WriteResults(scratch / f"{step}.json")
    return read_results(scratch / f"{step}.json", shard_rows(source))


# Words


def _count_words(index: int, shard: Path, *, scratch: Path) -> Sequence[Result]:
    """Count the words of a shard's training documents, in any case and in lower case."""
    splitter = ngrams.WordSplitter()
    counts, _, num_read, _ = count_words(shard, do_lower_case=False)
    every: collections.Counter[str] = collections.Counter()
    lower: collections.Counter[str] = collections.Counter()
    for word, count in counts.items():
        normal = "".join(splitter.split(word))
        every[normal] += count
        lower[normal] += count if word == normal else 0
    name = f"words-{index:05d}.parquet"
    columns = {"word": [*every], "count": [*every.values()], "lower": [lower[word] for word in every]}
    _write_table(scratch / name, pa.table(columns, schema=_WORDS_SCHEMA))
    return [{"name": shard.name, "rows": num_read, "file": name, "words": every.total()}]


def _merge_words(scratch: Path, shards: Sequence[Result]) -> tuple[list[str], int]:
    """Write the words of all shards, the most frequent first; return them, and the number of words in the text."""
    counts = pa.concat_tables(_read_table(scratch / shard["file"]) for shard in shards).group_by("word")
    table = counts.aggregate([("count", "sum"), ("lower", "sum")]).select(["word", "count_sum", "lower_sum"])
    num_words = pc.sum(table["count_sum"]).as_py() or 0
    check_total("words of all shards", num_words, sum(shard["words"] for shard in shards))
    table = table.sort_by([("count_sum", "descending"), ("word", "ascending")]).rename_columns(_WORDS_SCHEMA.names)
    table = table.slice(0, ngrams.MAX_WORDS - len(ngrams.MARKS))
    _write_table(scratch / _WORDS_NAME, table)
    return table["word"].to_pylist(), num_words


# Trigrams and pairs


def _count_and_make(index: int, shard: Path, *, scratch: Path, config: ExamConfig, share: float) -> Sequence[Result]:
    """Count the trigrams of a shard's training documents and make pairs from its held-out documents."""
    table = _read_table(scratch / _WORDS_NAME)
    words, counts, lower = table["word"].to_pylist(), table["count"].to_numpy(), table["lower"].to_numpy()
    encoder = StringEncoder(ngrams.WordSplitter(words).encode_batch)
    parts, num_read = [], 0
    for table, offsets, sentences in read_sentences(shard):
        num_read += table.num_rows
        hashes = [id_hash(name) / 2**64 < share for name in table.column("document_id").to_pylist()]
        trained = np.array(hashes) & pc.equal(table.column("split"), "train").to_numpy()
        kept = sentences.filter(pa.array(np.repeat(trained, np.diff(offsets))))
        parts.append(ngrams.count_trigrams(*encoder.encode(kept)))
    trigrams = ngrams.merge_trigrams(parts)
    trigrams_file = f"pairs-{index:05d}.parquet"
    _write_table(scratch / trigrams_file, pa.table(trigrams._asdict()))

    # What a shard keeps includes all that the whole corpus will keep of it.
    maker = PairMaker(words, counts, lower, config.seed)
    made = (pair for document in read_documents(shard) if document.split == "held_out" for pair in maker.make(document))
    pairs = _of_both_parts(made, config)
    name = f"pairs-{index:05d}.jsonl"
    write_pairs(scratch / name, pairs)
    of_pairs = {"name": shard.name, "rows": num_read, "file": name, "pairs": len(pairs)}
    return [{**of_pairs, "trigrams_file": trigrams_file, "trigrams": int(trigrams.counts.sum())}]


def _write_table(path: Path, table: pa.Table) -> None:
    with atomic_write(path) as temporary:
        pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)


def _read_table(path: Path) -> pa.Table:
    with arrow_errors(path, InputError, "counts cannot be read ({})"):
        return pq.read_table(path, page_checksum_verification=True)
