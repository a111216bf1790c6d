"""Pre-training instances a second, beside the reference algorithm in plain Python.

Length 128, 20 predictions, ten passes, static masks: the defaults of BERT's own script. The parts run in this process
on one core. The whole job (reading, tokenizing, pairs, masks, writing, Beam) is a command of its own, its start left
out and printed apart. The reference tokenizes with the same fast library and writes nothing, which favours it.
"""

import argparse
import contextlib
import cProfile
import io
import itertools
import os
import pstats
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from benchmarks.machine import describe, num_cores
from benchmarks.reference import ReferenceSettings, create_instances, pad_features
from benchmarks.repeated_corpus import repeat_corpus, text_bytes
from benchmarks.repeated_dump import sample_dump, source_name
from benchmarks.table import Row, medians, render
from benchmarks.timed_process import Timing, run_timed
from benchmarks.working_directory import working_directory
from bert_pipeline.errors import BertError
from bert_pipeline.formats.parquet import INSTANCES_PER_ROW_GROUP, InstanceWriter, read_documents, read_sentences
from bert_pipeline.formats.tfrecord import TfrecordWriter
from bert_pipeline.instances import (
    InstancesConfig,
    InstanceStatistics,
    TokenizedDocuments,
    make_instances,
    make_pairs,
)
from bert_pipeline.jobs.corpus import CorpusConfig, build_corpus
from bert_pipeline.jobs.instances import tokenize_shard
from bert_pipeline.jobs.vocabulary import VocabularyConfig, build_vocabulary
from bert_pipeline.manifest import Manifest, load_manifest
from bert_pipeline.sentence_encoder import SentenceEncoder
from bert_pipeline.tokenization import Tokenizer
from bert_pipeline.vocabulary import WordCounter

REFERENCE = "reference in plain Python"
REFERENCE_SETTINGS = ReferenceSettings()


class InstancesBenchmark:
    """Inputs and output directory of one run."""

    def __init__(
        self, dump: Path | None, vocabulary: Path | None, megabytes: float, rounds: int, *, cpu_time: bool = False
    ) -> None:
        self.directory = working_directory("instances")
        self.output = self.directory / "output"
        self.rounds = rounds
        self.clock = time.process_time if cpu_time else time.perf_counter
        source = dump or sample_dump(self.directory)
        name = source_name(source)
        self.one_copy = _existing_or(
            self.directory / f"{name}-corpus",
            lambda path: build_corpus([str(source)], path, CorpusConfig(), ["--workers", "1"]),
        )
        self.corpus = repeat_corpus(self.one_copy, self.directory / f"{name}-corpus-{megabytes:g}mb", megabytes)
        self.vocabulary = vocabulary or self._make_vocabulary(name)
        self.tokenizer = Tokenizer.from_directory(self.vocabulary)
        self.documents = tokenize_shard(self.corpus.file_paths("documents-")[0], SentenceEncoder(self.tokenizer))[
            "train"
        ]
        self.num_instances = 0

    def _make_vocabulary(self, name: str) -> Path:
        config = VocabularyConfig(vocab_size=8_000, pad_with_unused=True)
        path = self.directory / f"{name}-vocabulary"
        _existing_or(path, lambda target: build_vocabulary(self.one_copy.path, target, config, ["--workers", "1"]))
        return path

    def rows(self) -> list[Row]:
        """Measure everything."""
        reference_documents = self._reference_documents()
        with one_core():
            rates = medians(
                {
                    "Parquet, static masks": lambda: self._write(self.documents, "parquet", "static"),
                    "Parquet, dynamic masks": lambda: self._write(self.documents, "parquet", "dynamic"),
                    "TFRecord": lambda: self._write(self.documents, "tfrecord", "static"),
                    REFERENCE: lambda: self._reference(reference_documents, tokenize=False),
                },
                self.rounds,
                "without tokenizing",
            )
        rows = [
            Row(what=f"pairs, {name}, without tokenizing", unit="instances/s, one core", ours=rates[name],
                peer=REFERENCE, theirs=rates[REFERENCE], note="the reference writes nothing")
            for name in rates if name != REFERENCE
        ]  # fmt: skip
        rows += self._text_rows()
        rows += self._job_rows()
        return rows

    def _text_rows(self) -> list[Row]:
        """Tokenizing and counting, in megabytes of text a second."""
        shard = self.corpus.file_paths("documents-")[0]
        warm, cold = SentenceEncoder(self.tokenizer), SentenceEncoder(self.tokenizer)
        texts = [sentences for _, _, sentences in read_sentences(shard)]
        for part in texts:
            warm.encode(part)
        once = [
            sentences for path in self.one_copy.file_paths("documents-") for _, _, sentences in read_sentences(path)
        ]
        with one_core():
            rates = medians(
                {
                    "warm": lambda: self._megabytes_a_second(texts, warm.encode),
                    "cold": lambda: self._megabytes_a_second(once, _forgetting(cold)),
                    "library": lambda: self._megabytes_a_second(once, self._encode_plainly),
                    "count": lambda: self._megabytes_a_second(texts, self._counting()),
                },
                self.rounds,
                "text",
            )
        library = "tokenizers.encode_batch"
        return [
            Row(what="tokenizing, words seen before", unit="MB of text/s, one core", ours=rates["warm"], peer=library,
                theirs=rates["library"], note="as in a repeated corpus"),
            Row(what="tokenizing, nothing seen before", unit="MB of text/s, one core", ours=rates["cold"], peer=library,
                theirs=rates["library"], note=f"one copy, {sum(part.nbytes for part in once) / 1e6:.1f} MB"),
            Row(what="counting words", unit="MB of text/s, one core", ours=rates["count"]),
        ]  # fmt: skip

    def _encode_plainly(self, sentences: pa.StringArray) -> None:
        self.tokenizer.encode_batch(sentences.to_pylist())

    def _counting(self) -> Callable[[pa.StringArray], None]:
        counter = WordCounter(self.tokenizer.do_lower_case)
        return lambda sentences: counter.add(sentences.to_pylist())

    def _megabytes_a_second(self, parts: Sequence[pa.StringArray], work: Callable[[pa.StringArray], object]) -> float:
        size = sum(part.nbytes for part in parts)
        started = self.clock()
        for part in parts:
            work(part)
        return size / 1e6 / max(self.clock() - started, 1e-6)

    def _job_rows(self) -> list[Row]:
        """The whole job, and the reference with tokenizing."""
        cores = num_cores()
        few = repeat_corpus(self.one_copy, self.directory / f"{self.one_copy.path.name}-start", 0.0)
        start = {n: min(self._job(few, "parquet", n)[0].seconds for _ in range(2)) for n in {1, cores}}
        peak = 0

        def job(file_format: str, workers: int) -> float:
            nonlocal peak
            timing, instances = self._job(self.corpus, file_format, workers)
            peak = max(peak, timing.peak_bytes)
            return instances / max(timing.seconds - start[workers], 1e-3) / workers

        reference_documents = self._reference_documents()
        rates = medians(
            {
                "1": lambda: job("parquet", 1),
                f"{cores}": lambda: job("parquet", cores),
                "tfrecord": lambda: job("tfrecord", cores),
                REFERENCE: lambda: self._reference(reference_documents, tokenize=True),
            },
            min(self.rounds, 3),
            "whole job",
        )
        size = text_bytes(self.corpus) / 1e6

        def row(what: str, rate: float, note: str = "") -> Row:
            return Row(
                what=f"whole job, {what}",
                unit="instances/s and core",
                ours=rate,
                peer=REFERENCE,
                theirs=rates[REFERENCE],
                note=note,
            )

        rows = [row("Parquet, 1 worker", rates["1"], f"{size:.0f} MB of text")]
        if cores > 1:
            speedup = rates[f"{cores}"] * cores / rates["1"]
            rows.append(row(f"Parquet, {cores} workers", rates[f"{cores}"], f"{speedup:.2f} times one worker"))
        rows.append(row(f"TFRecord, {cores} workers", rates["tfrecord"]))
        rows.append(Row(what="start of the job", unit="s", ours=start[1], note="less is better; left out above"))
        rows.append(Row(what="peak memory, largest process", unit="MB", ours=peak / 1e6, note="less is better"))
        return rows

    def _job(self, corpus: Manifest, file_format: str, workers: int) -> tuple[Timing, int]:
        output = str(self._fresh_output() / "result")
        command = [sys.executable, "-m", "benchmarks.instance_job", str(corpus.path), str(self.vocabulary), output]
        timing = run_timed([*command, file_format, str(workers)], one_core=False)
        return timing, int(timing.output.split()[-1])

    def _fresh_output(self) -> Path:
        shutil.rmtree(self.output, ignore_errors=True)
        self.output.mkdir()
        return self.output

    def _write(self, documents: TokenizedDocuments, file_format: str, masking: str) -> float:
        """Instances a second from token ids in memory to a written file."""
        config = InstancesConfig(format=file_format, masking=masking)  # type: ignore[arg-type]
        path = self._fresh_output() / "instances"
        statistics = InstanceStatistics(config.max_seq_length, self.tokenizer.unk_id, self.tokenizer.mask_id)
        started = self.clock()
        pairs = make_pairs(documents, config)
        writer: InstanceWriter | TfrecordWriter
        if file_format == "parquet":
            writer = InstanceWriter(path, static_masks=config.has_static_masks)
        else:
            writer = TfrecordWriter(path, max_seq_length=128, max_predictions_per_seq=20)
        with writer:
            for start in range(0, len(pairs), INSTANCES_PER_ROW_GROUP):
                some = pairs.take(slice(start, start + INSTANCES_PER_ROW_GROUP))
                writer.write(make_instances(documents, some, self.tokenizer, config, statistics))
        return len(pairs) / max(self.clock() - started, 1e-6)

    def _reference_documents(self) -> list[tuple[str, ...]]:
        """Documents of about a megabyte of text, enough for a rate and few enough to wait for."""
        documents, size = [], 0
        for document in itertools.chain.from_iterable(map(read_documents, self.one_copy.file_paths("documents-"))):
            documents.append(document.sentences)
            size += sum(map(len, document.sentences))
            if size > 1e6:
                break
        return documents

    def _reference(self, documents: Sequence[Sequence[str]], *, tokenize: bool) -> float:
        """Instances a second of the reference algorithm; with `tokenize` from text to padded features of ids."""
        names = self.tokenizer.tokens
        started = self.clock()
        tokenized = [[[names[i] for i in self.tokenizer.encode(text)] for text in document] for document in documents]
        tokenized = [kept for document in tokenized if (kept := [sentence for sentence in document if sentence])]
        token_ids = {name: index for index, name in enumerate(names)}
        if not tokenize:
            started = self.clock()
        instances = create_instances(tokenized, names, REFERENCE_SETTINGS, random.Random(12345))
        if tokenize:
            for instance in instances:
                pad_features(instance, token_ids, REFERENCE_SETTINGS)
        return len(instances) / max(self.clock() - started, 1e-6)

    def profile(self) -> str:
        """Return where the parts and tokenizing spend their time, by function."""
        text = io.StringIO()
        shard = self.corpus.file_paths("documents-")[0]
        for title, work in (
            ("tokenizing one shard", lambda: tokenize_shard(shard, SentenceEncoder(self.tokenizer))),
            ("pairs, static masks, Parquet", lambda: self._write(self.documents, "parquet", "static")),
            ("pairs, static masks, TFRecord", lambda: self._write(self.documents, "tfrecord", "static")),
        ):
            with cProfile.Profile() as profiler:
                work()
            text.write(f"{title}\n")
            pstats.Stats(profiler, stream=text).strip_dirs().sort_stats("tottime").print_stats(12)
        return text.getvalue()


def _forgetting(encoder: SentenceEncoder) -> Callable[[pa.StringArray], object]:
    def encode(sentences: pa.StringArray) -> object:
        return SentenceEncoder(encoder.tokenizer).encode(sentences)

    return encode


def _existing_or(path: Path, make: Callable[[Path], Manifest]) -> Manifest:
    return load_manifest(path) if (path / "manifest.json").is_file() else make(path)


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Keep this process and its threads on one core."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.instances", description=__doc__)
    parser.add_argument("--dump", type=Path, help="a dump to take text from (default: the generated encyclopaedia)")
    parser.add_argument("--vocab", type=Path, help="a vocabulary directory (default: 8,000 entries from the text)")
    parser.add_argument("--megabytes", type=float, default=100.0, help="size of the corpus, in MB of text")
    parser.add_argument("--rounds", type=int, default=5, help="rounds; medians are printed")
    parser.add_argument("--quick", action="store_true", help="2 MB and one round: shows that it runs, not how fast")
    parser.add_argument(
        "--cpu-time", action="store_true", help="parts: divide by processor time, on a machine that is not quiet"
    )
    parser.add_argument("--profile", action="store_true", help="print where the parts spend their time, and stop")
    args = parser.parse_args(arguments)
    if args.quick:
        args.megabytes, args.rounds = min(args.megabytes, 2.0), 1
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        benchmark = InstancesBenchmark(args.dump, args.vocab, args.megabytes, args.rounds, cpu_time=args.cpu_time)
        if args.profile:
            print(benchmark.profile())
            return 0
        head = describe(("apache-beam", "numpy", "pyarrow", "tokenizers"))
        rows = benchmark.rows()
    except BertError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    source = args.dump.name if args.dump else "the generated encyclopaedia"
    clock = "; parts by processor time" if args.cpu_time else ""
    size = f"{text_bytes(benchmark.corpus) / 1e6:.0f} MB of text"
    print(f"{head}\n{size}: {source}, repeated; vocabulary of {benchmark.tokenizer.vocab_size:,}; "
          f"medians of {args.rounds} rounds{clock}\n")  # fmt: skip
    print(render(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
