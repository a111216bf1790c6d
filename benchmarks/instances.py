"""Pre-training instances per second, compared with the reference algorithm in plain Python; counting words; memory.

Length 128, 20 predictions, ten passes, static masks: the defaults of BERT's own script. The parts run in this process
on one core. The whole job (reading, tokenizing, pairs, masks, writing, Beam) is a separate command; its start is
excluded and has a row of its own. The reference tokenizes with the same fast library and writes nothing, which favors
it.
"""

import argparse
import collections
import functools
import itertools
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from benchmarks.harness import (
    Row,
    Timing,
    describe_machine,
    errors_as_exit_codes,
    fresh_directory,
    medians,
    on_one_core,
    profile,
    program,
    render,
    run_timed,
    working_directory,
)
from benchmarks.inputs import (
    cut_corpus,
    load_or_make,
    repeat_corpus,
    sample_dump,
    source_name,
    text_bytes,
    write_instances,
)
from benchmarks.reference import ReferenceSettings, create_instances, pad_features
from bert_pipeline.corpus.job import build_corpus
from bert_pipeline.corpus.parquet import read_documents, read_sentences
from bert_pipeline.corpus.splits import CorpusConfig
from bert_pipeline.errors import BertError
from bert_pipeline.instances.job import tokenize_shard
from bert_pipeline.instances.pairs import InstancesConfig
from bert_pipeline.instances.parquet import InstanceWriter
from bert_pipeline.instances.tfrecord import TfrecordWriter
from bert_pipeline.manifest import Manifest
from bert_pipeline.vocabulary.encoder import SentenceEncoder
from bert_pipeline.vocabulary.job import build_vocabulary, count_words
from bert_pipeline.vocabulary.tokenizer import WORDS, Tokenizer, normalizer
from bert_pipeline.vocabulary.wordpiece import VocabularyConfig

REFERENCE = "reference in plain Python"
REFERENCE_SETTINGS = ReferenceSettings()
PARQUET_TARGET, TFRECORD_TARGET = 60_000, 20_000
COUNTING_TARGET = 20.0
JOB_TARGET = 20_000
SPEEDUP_TARGET = 1.8
MEMORY_TARGETS = {"worker": 700.0, "parent": 1000.0}
FLATNESS_TARGET = 1.1
"""Maximum growth of memory for a corpus ten times as large."""
GROWTH = 10
MANY = 2
"""Workers compared with one."""
FEW_DOCUMENTS = 4
PART_MEGABYTES = 8.0


class InstanceInputs:
    """A corpus of any size, made of the articles of a few dumps, and a vocabulary; existing ones are reused."""

    def __init__(self, dumps: Sequence[Path], vocabulary: Path | None, megabytes: float) -> None:
        """Extract the dumps (the generated encyclopedia if there are none), and train a vocabulary if none is given."""
        self.directory, self.megabytes = working_directory("instances"), megabytes
        sources = list(dumps) or [sample_dump(self.directory)]
        self.name = "+".join(map(source_name, sources))
        # One copy of the text; the jobs get as many as the megabytes need.
        self.one_copy = load_or_make(
            self.directory / f"{self.name}-corpus",
            lambda path: build_corpus([str(source) for source in sources], path, CorpusConfig(), ["--workers", "1"]),
        )
        self.vocabulary = vocabulary or self.directory / f"{self.name}-vocabulary"
        config, options = VocabularyConfig(vocab_size=8_000, pad_with_unused=True), ["--workers", "1"]
        if vocabulary is None:
            load_or_make(self.vocabulary, lambda path: build_vocabulary(self.one_copy.path, path, config, options))
        self.one_copy_bytes = text_bytes(self.one_copy)

    @functools.cached_property
    def part(self) -> Manifest:
        """One shard, small enough to measure parts in seconds."""
        return self.repeated(min(PART_MEGABYTES, self.megabytes))

    @functools.cached_property
    def corpus(self) -> Manifest:
        """The corpus of the jobs, in shards of realistic size."""
        return self.repeated(self.megabytes)

    @functools.cached_property
    def few(self) -> Manifest:
        """A few documents, to measure the start of a job."""
        return cut_corpus(self.one_copy, self.directory / f"{self.name}-few", FEW_DOCUMENTS)

    def repeated(self, megabytes: float) -> Manifest:
        """Return a corpus of at least so much text."""
        return repeat_corpus(self.one_copy, self.directory / f"{self.name}-{megabytes:g}mb", megabytes)

    def megabytes_of(self, corpus: Manifest) -> float:
        """Return the megabytes of text in a repeated corpus."""
        return float(self.one_copy_bytes * corpus.configuration["copies"] / 1e6)

    def fresh_output(self) -> Path:
        """Return an empty directory."""
        return fresh_directory(self.directory / "output")


class InstanceParts:
    """Parts of the data jobs on one core, in this process: pairs, masks and files; tokenizing; counting words."""

    def __init__(self, inputs: InstanceInputs, rounds: int, *, cpu_time: bool = False) -> None:
        self.inputs = inputs
        self.rounds = rounds
        self.clock = time.process_time if cpu_time else time.perf_counter
        self.tokenizer = Tokenizer.from_directory(inputs.vocabulary)
        self.shard = inputs.part.file_paths("documents-")[0]
        self.documents = tokenize_shard(self.shard, SentenceEncoder(self.tokenizer))[0]["train"]
        self.reference_documents = _documents_of_a_megabyte(inputs.one_copy)

    def writing_rows(self) -> list[Row]:
        """Measure pairs, masks and files from token ids in memory."""
        ours: dict[str, tuple[float, Callable[[], float]]] = {
            "Parquet, static masks": (PARQUET_TARGET, lambda: self._write("parquet", "static")),
            "Parquet, dynamic masks": (PARQUET_TARGET, lambda: self._write("parquet", "dynamic")),
            "TFRecord, static masks": (TFRECORD_TARGET, lambda: self._write("tfrecord", "static")),
        }
        contestants = {name: work for name, (_, work) in ours.items()}
        contestants[REFERENCE] = lambda: self.reference(tokenize=False)
        with on_one_core():
            rates = medians(contestants, self.rounds, "without tokenizing")
        return [
            Row(what=f"pairs, {name}, without tokenizing", unit="instances/s, one core", ours=rates[name],
                peer=REFERENCE, theirs=rates[REFERENCE], note="the reference writes nothing", target=target)
            for name, (target, _) in ours.items()
        ]  # fmt: skip

    def text_rows(self) -> list[Row]:
        """Measure tokenizing and counting, in megabytes of text per second."""
        repeated = list(_sentences(self.inputs.part))
        once = list(_sentences(self.inputs.one_copy))
        corpus = self.inputs.corpus
        warm = SentenceEncoder(self.tokenizer)
        for part in repeated:
            warm.encode(part)
        contestants = {
            "warm": lambda: self._megabytes_per_second(repeated, warm.encode),
            "cold": lambda: self._megabytes_per_second(once, SentenceEncoder(self.tokenizer).encode),
            "library": lambda: self._megabytes_per_second(
                once, lambda sentences: self.tokenizer.encode_batch(sentences.to_pylist())
            ),
            "count": lambda: self._count(corpus),
            "count once": lambda: self._count(self.inputs.one_copy),
            "plain count": lambda: self._megabytes_per_second(once, self._count_plainly),
        }
        with on_one_core():
            rates = medians(contestants, self.rounds, "text")
        self._check_counts()
        library, plain = "tokenizers.encode_batch", "sentence by sentence"
        one, many = (f"{size:.0f} MB" for size in (self.inputs.one_copy_bytes / 1e6, self.inputs.megabytes_of(corpus)))
        unit = "MB of text/s, one core"
        return [
            Row(what="tokenizing, words seen before", unit=unit, ours=rates["warm"], peer=library,
                theirs=rates["library"], note="as in a repeated corpus"),
            Row(what="tokenizing, nothing seen before", unit=unit, ours=rates["cold"], peer=library,
                theirs=rates["library"], note=f"one copy, {one}"),
            Row(what="counting words", unit=unit, ours=rates["count"], peer=plain, theirs=rates["plain count"],
                note=f"{many}, reading included; counts are equal", target=COUNTING_TARGET),
            Row(what="counting words, nothing repeated", unit=unit, ours=rates["count once"], peer=plain,
                theirs=rates["plain count"], note=f"one copy, {one}"),
        ]  # fmt: skip

    def _count(self, corpus: Manifest) -> float:
        started = self.clock()
        for path in corpus.file_paths("documents-"):
            count_words(path, self.tokenizer.do_lower_case)
        copies = corpus.configuration.get("copies", 1)
        return float(self.inputs.one_copy_bytes * copies / 1e6 / max(self.clock() - started, 1e-6))

    def _count_plainly(self, sentences: pa.StringArray) -> collections.Counter[str]:
        clean, split = normalizer(self.tokenizer.do_lower_case), WORDS
        return collections.Counter(
            word for text in sentences.to_pylist() for word, _ in split.pre_tokenize_str(clean.normalize_str(text))
        )

    def _check_counts(self) -> None:
        """Raise BertError unless the repeated corpus has the plain counts of one copy, times the number of copies."""
        ours, plain = collections.Counter[str](), collections.Counter[str]()
        for path in self.inputs.corpus.file_paths("documents-"):
            train, held_out, *_ = count_words(path, self.tokenizer.do_lower_case)
            ours.update(train)
            ours.update(held_out)
        for sentences in _sentences(self.inputs.one_copy):
            plain.update(self._count_plainly(sentences))
        copies = self.inputs.corpus.configuration["copies"]
        if ours != collections.Counter({word: count * copies for word, count in plain.items()}):
            raise BertError("counting words: found other counts than by counting sentence by sentence; this is a bug")

    def _megabytes_per_second(self, parts: Sequence[pa.StringArray], work: Callable[[pa.StringArray], object]) -> float:
        size: float = sum(part.nbytes for part in parts)
        started = self.clock()
        for part in parts:
            work(part)
        return size / 1e6 / max(self.clock() - started, 1e-6)

    def _write(self, file_format: Literal["parquet", "tfrecord"], masking: Literal["static", "dynamic"]) -> float:
        """Return instances per second, from token ids in memory to a written file."""
        config = InstancesConfig(format=file_format, masking=masking)
        path = self.inputs.fresh_output() / "instances"
        started = self.clock()
        writer: InstanceWriter | TfrecordWriter = InstanceWriter(path)
        if file_format == "tfrecord":
            writer = TfrecordWriter(path, max_seq_length=128, max_predictions_per_seq=20)
        made = write_instances(writer, self.documents, self.tokenizer, config)
        return made / max(self.clock() - started, 1e-6)

    def reference(self, *, tokenize: bool) -> float:
        """Return instances per second of the reference algorithm; with `tokenize` from text to padded features."""
        names = self.tokenizer.tokens
        started = self.clock()
        tokenized = [
            [[names[i] for i in self.tokenizer.encode(text)] for text in document]
            for document in self.reference_documents
        ]
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
        """Return a profile of each part, by function."""
        parts: dict[str, Callable[[], object]] = {
            "counting one shard": lambda: count_words(self.shard, self.tokenizer.do_lower_case),
            "tokenizing one shard": lambda: tokenize_shard(self.shard, SentenceEncoder(self.tokenizer)),
            "pairs, static masks, Parquet": lambda: self._write("parquet", "static"),
            "pairs, static masks, TFRecord": lambda: self._write("tfrecord", "static"),
        }
        return profile(parts, limit=12)


def _sentences(corpus: Manifest) -> Iterator[pa.StringArray]:
    for path in corpus.file_paths("documents-"):
        for _, _, sentences in read_sentences(path):
            yield sentences


def _documents_of_a_megabyte(corpus: Manifest) -> list[tuple[str, ...]]:
    """Return documents of about a megabyte of text: enough for a rate, and processed in a few seconds."""
    documents, size = [], 0
    for document in itertools.chain.from_iterable(map(read_documents, corpus.file_paths("documents-"))):
        documents.append(document.sentences)
        size += sum(map(len, document.sentences))
        if size > 1e6:
            break
    return documents


class InstanceJobs:
    """The whole instance and vocabulary jobs as commands: rates, speedup by a second worker, and memory."""

    def __init__(self, inputs: InstanceInputs, rounds: int, reference: Callable[[], float]) -> None:
        self.inputs = inputs
        self.rounds = rounds
        self.reference = reference
        self.timings: dict[int, list[Timing]] = {1: [], MANY: []}
        self.peaks = {"worker": 0.0, "parent": 0.0}

    def speed_rows(self) -> list[Row]:
        """Measure the instance job without its start, which has a row of its own."""
        few, corpus = self.inputs.few, self.inputs.corpus
        start = {n: min(self.job("instances", few, n)[0].seconds for _ in range(2)) for n in self.timings}

        def rate(file_format: str, workers: int) -> float:
            timing, result = self.job("instances", corpus, workers, "--format", file_format)
            if file_format == "parquet":
                self.timings[workers].append(timing)
            if workers == MANY:
                for who, peak in self.peaks.items():
                    self.peaks[who] = max(peak, result[f"{who}_bytes"] / 1e6)
            return float(result["made"]) / max(timing.seconds - start[workers], 1e-3) / workers

        one, many, tfrecord = "Parquet, 1 worker", f"Parquet, {MANY} workers", f"TFRecord, {MANY} workers"
        contestants = {
            one: lambda: rate("parquet", 1),
            tfrecord: lambda: rate("tfrecord", MANY),
            many: lambda: rate("parquet", MANY),
            REFERENCE: self.reference,
        }
        rates = medians(contestants, self.rounds, "whole job")
        note = f"{self.inputs.megabytes_of(corpus):.0f} MB of text"
        seconds = {workers: min(timing.seconds for timing in timings) for workers, timings in self.timings.items()}
        return [
            *(
                Row(what=f"whole job, {name}", unit="instances/s and core", ours=rates[name], peer=REFERENCE,
                    theirs=rates[REFERENCE], note=note, target=JOB_TARGET)
                for name in (one, many, tfrecord)
            ),
            Row(what=f"whole job, {MANY} workers over one", unit="times", ours=rates[many] * MANY / rates[one],
                note=f"{seconds[1] / seconds[MANY]:.2f} times with the start", target=SPEEDUP_TARGET),
            *(
                Row(what=f"processor time of the whole job, {name}", unit="s",
                    ours=min(timing.cpu_seconds for timing in self.timings[workers]),
                    note="less is better; all processes, start included")
                for workers, name in ((1, one), (MANY, many))
            ),
            Row(what="start of the job", unit="s", ours=start[MANY], note="less is better; left out above"),
            *(_memory_row("whole job", who, peak, note) for who, peak in self.peaks.items()),
        ]  # fmt: skip

    def memory_rows(self) -> list[Row]:
        """Measure peak memory on the corpus and on one ten times as large; a single pass takes as much as ten."""
        corpora = (self.inputs.corpus, self.inputs.repeated(self.inputs.megabytes * GROWTH))
        less, more = (f"{self.inputs.megabytes_of(corpus):,.0f} MB" for corpus in corpora)
        rows = []
        for job, title, options in (
            ("instances", "instances in one pass", ("--dupe-factor", "1")),
            ("vocabulary", "vocabulary", ()),
        ):
            results = [self.job(job, corpus, MANY, *options)[1] for corpus in corpora]
            print(f"memory: {title}: {results}", file=sys.stderr, flush=True)
            for who in ("worker", "parent"):
                few, many = (result[f"{who}_bytes"] / 1e6 for result in results)
                rows.append(_memory_row(title, who, many, f"{more} of text; {few:.0f} MB on {less}"))
                what = f"memory, {title}, {who}, {GROWTH} times the text"
                rows.append(Row(what=what, unit="times", ours=many / few, target=FLATNESS_TARGET, less_is_better=True))
        self.inputs.fresh_output()
        return rows

    def job(self, job: str, corpus: Manifest, workers: int, *options: str) -> tuple[Timing, dict[str, Any]]:
        """Run a job as a command; return its time and what it printed."""
        output = str(self.inputs.fresh_output() / "result")
        command = [sys.executable, "-m", "benchmarks.jobs", job, str(corpus.path), output]
        command += ["--workers", str(workers), "--vocab", str(self.inputs.vocabulary), *options]
        timing = run_timed(command, one_core=False)
        return timing, json.loads(timing.output.splitlines()[-1])


def _memory_row(what: str, who: str, megabytes: float, note: str) -> Row:
    target = MEMORY_TARGETS[who]
    what = f"peak memory, {what}, {who}"
    return Row(what=what, unit="MB", ours=megabytes, note=note, target=target, less_is_better=True)


@errors_as_exit_codes
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table."""
    args = _parser().parse_args(arguments)
    if args.quick:
        args.megabytes, args.rounds = min(args.megabytes, 2.0), 1
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    inputs = InstanceInputs(args.dump, args.vocab, args.megabytes)
    parts = InstanceParts(inputs, args.rounds, cpu_time=args.cpu_time)
    if args.profile:
        print(parts.profile())
        return 0
    head = describe_machine(("apache-beam", "numpy", "pyarrow", "tokenizers"))
    jobs = InstanceJobs(inputs, min(args.rounds, 2), lambda: parts.reference(tokenize=True))
    rows = parts.writing_rows() + parts.text_rows() + jobs.speed_rows()
    if not args.no_growth:
        rows += jobs.memory_rows()
    source = ", ".join(path.name for path in args.dump) or "the generated encyclopedia"
    clock = "; parts by processor time" if args.cpu_time else ""
    print(
        f"{head}\n{inputs.one_copy_bytes / 1e6:.1f} MB of text from {source}, repeated under other titles; vocabulary "
        f"of {parts.tokenizer.vocab_size:,}; medians of {args.rounds} rounds, of the whole job {jobs.rounds}{clock}"
        f"\n\n{render(rows)}"
    )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = program("instances", __doc__, rounds=3, quick="2 MB and one round: shows that it runs, not how fast")
    what = "dumps to take text from (default: the generated encyclopedia)"
    parser.add_argument("--dump", type=Path, nargs="+", default=[], help=what)
    parser.add_argument("--vocab", type=Path, help="a vocabulary directory (default: 8,000 entries from the text)")
    parser.add_argument("--megabytes", type=float, default=128.0, help="text in the corpus (default: %(default)g)")
    parser.add_argument("--no-growth", action="store_true", help="leave the corpus of ten times the size out")
    parser.add_argument(
        "--cpu-time", action="store_true", help="parts: divide by processor time, on a machine that is not quiet"
    )
    parser.add_argument("--profile", action="store_true", help="print where the parts spend their time, and stop")
    return parser


if __name__ == "__main__":
    sys.exit(main())
