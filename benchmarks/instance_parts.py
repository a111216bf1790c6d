"""Parts of the data jobs on one core, in this process: pairs, masks and files; tokenizing; counting words."""

import collections
import contextlib
import cProfile
import io
import itertools
import os
import pstats
import random
import shutil
import time
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from benchmarks.instance_inputs import InstanceInputs
from benchmarks.reference import ReferenceSettings, create_instances, pad_features
from benchmarks.table import Row, medians
from bert_pipeline.corpus.parquet import read_documents, read_sentences
from bert_pipeline.errors import BertError
from bert_pipeline.instances.job import tokenize_shard
from bert_pipeline.instances.pairs import InstancesConfig, InstanceStatistics, make_instances, make_pairs
from bert_pipeline.instances.parquet import INSTANCES_PER_ROW_GROUP, InstanceWriter
from bert_pipeline.instances.tfrecord import TfrecordWriter
from bert_pipeline.manifest import Manifest
from bert_pipeline.vocabulary.job import count_words
from bert_pipeline.vocabulary.tokenizer import SentenceEncoder, normalizer, pre_tokenizer

REFERENCE = "reference in plain Python"
REFERENCE_SETTINGS = ReferenceSettings()
PARQUET_TARGET, TFRECORD_TARGET = 60_000, 20_000
COUNTING_TARGET = 20.0


class InstanceParts:
    """The parts, each with its peer."""

    def __init__(self, inputs: InstanceInputs, rounds: int, *, cpu_time: bool = False) -> None:
        self.inputs = inputs
        self.rounds = rounds
        self.clock = time.process_time if cpu_time else time.perf_counter
        self.tokenizer = inputs.tokenizer
        self.shard = inputs.part.file_paths("documents-")[0]
        self.documents = tokenize_shard(self.shard, SentenceEncoder(self.tokenizer))["train"]
        self.reference_documents = _documents_of_a_megabyte(inputs.one_copy)

    def writing_rows(self) -> list[Row]:
        """Pairs, masks and files from token ids in memory."""
        ours = {
            "Parquet, static masks": (PARQUET_TARGET, lambda: self._write("parquet", "static")),
            "Parquet, dynamic masks": (PARQUET_TARGET, lambda: self._write("parquet", "dynamic")),
            "TFRecord, static masks": (TFRECORD_TARGET, lambda: self._write("tfrecord", "static")),
        }
        with one_core():
            rates = medians(
                {**{name: work for name, (_, work) in ours.items()}, REFERENCE: lambda: self.reference(tokenize=False)},
                self.rounds,
                "without tokenizing",
            )
        return [
            Row(
                what=f"pairs, {name}, without tokenizing",
                unit="instances/s, one core",
                ours=rates[name],
                peer=REFERENCE,
                theirs=rates[REFERENCE],
                note="the reference writes nothing",
                target=target,
            )
            for name, (target, _) in ours.items()
        ]

    def text_rows(self) -> list[Row]:
        """Tokenizing and counting, in megabytes of text a second."""
        texts = list(_sentences(self.inputs.part))
        once = list(_sentences(self.inputs.one_copy))
        corpus = self.inputs.corpus
        warm = SentenceEncoder(self.tokenizer)
        for part in texts:
            warm.encode(part)
        with one_core():
            rates = medians(
                {
                    "warm": lambda: self._megabytes_a_second(texts, warm.encode),
                    "cold": lambda: self._megabytes_a_second(once, SentenceEncoder(self.tokenizer).encode),
                    "library": lambda: self._megabytes_a_second(once, self._encode_plainly),
                    "count": lambda: self._count(corpus),
                    "count once": lambda: self._count(self.inputs.one_copy),
                    "plain count": lambda: self._megabytes_a_second(once, self._count_plainly),
                },
                self.rounds,
                "text",
            )
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

    def _encode_plainly(self, sentences: pa.StringArray) -> None:
        self.tokenizer.encode_batch(sentences.to_pylist())

    def _count(self, corpus: Manifest) -> float:
        started = self.clock()
        for path in corpus.file_paths("documents-"):
            count_words(path, self.tokenizer.do_lower_case)
        copies = corpus.configuration.get("copies", 1)
        return self.inputs.one_copy_bytes * copies / 1e6 / max(self.clock() - started, 1e-6)

    def _count_plainly(self, sentences: pa.StringArray) -> collections.Counter[str]:
        clean, split = normalizer(self.tokenizer.do_lower_case), pre_tokenizer()
        return collections.Counter(
            word for text in sentences.to_pylist() for word, _ in split.pre_tokenize_str(clean.normalize_str(text))
        )

    def _check_counts(self) -> None:
        """BertError when the repeated corpus has other counts than one copy, counted plainly, has so many times."""
        ours, plain = collections.Counter[str](), collections.Counter[str]()
        for path in self.inputs.corpus.file_paths("documents-"):
            for counts in count_words(path, self.tokenizer.do_lower_case):
                ours.update(counts)
        for sentences in _sentences(self.inputs.one_copy):
            plain.update(self._count_plainly(sentences))
        copies = self.inputs.corpus.configuration["copies"]
        if ours != collections.Counter({word: count * copies for word, count in plain.items()}):
            raise BertError("counting words: found other counts than by counting sentence by sentence; this is a bug")

    def _megabytes_a_second(self, parts: Sequence[pa.StringArray], work: Callable[[pa.StringArray], object]) -> float:
        size = sum(part.nbytes for part in parts)
        started = self.clock()
        for part in parts:
            work(part)
        return size / 1e6 / max(self.clock() - started, 1e-6)

    def _write(self, file_format: str, masking: str) -> float:
        """Instances a second from token ids in memory to a written file."""
        documents = self.documents
        config = InstancesConfig(format=file_format, masking=masking)  # type: ignore[arg-type]
        directory = self.inputs.directory / "output"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        statistics = InstanceStatistics(config.max_seq_length, self.tokenizer.unk_id, self.tokenizer.mask_id)
        started = self.clock()
        pairs = make_pairs(documents, config)
        writer: InstanceWriter | TfrecordWriter
        if file_format == "parquet":
            writer = InstanceWriter(directory / "instances", static_masks=config.has_static_masks)
        else:
            writer = TfrecordWriter(directory / "instances", max_seq_length=128, max_predictions_per_seq=20)
        with writer:
            for start in range(0, len(pairs), INSTANCES_PER_ROW_GROUP):
                some = pairs.take(slice(start, start + INSTANCES_PER_ROW_GROUP))
                writer.write(make_instances(documents, some, self.tokenizer, config, statistics))
        return len(pairs) / max(self.clock() - started, 1e-6)

    def reference(self, *, tokenize: bool) -> float:
        """Instances a second of the reference algorithm; with `tokenize` from text to padded features of ids."""
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
        """Return where the parts spend their time, by function."""
        text = io.StringIO()
        lower = self.tokenizer.do_lower_case
        work: dict[str, Callable[[], object]] = {
            "counting one shard": lambda: count_words(self.shard, lower),
            "tokenizing one shard": lambda: tokenize_shard(self.shard, SentenceEncoder(self.tokenizer)),
            "pairs, static masks, Parquet": lambda: self._write("parquet", "static"),
            "pairs, static masks, TFRecord": lambda: self._write("tfrecord", "static"),
        }
        for title, part in work.items():
            with cProfile.Profile() as profiler:
                part()
            text.write(f"{title}\n")
            pstats.Stats(profiler, stream=text).strip_dirs().sort_stats("tottime").print_stats(12)
        return text.getvalue()


def _sentences(corpus: Manifest) -> Iterator[pa.StringArray]:
    for path in corpus.file_paths("documents-"):
        for _, _, sentences in read_sentences(path):
            yield sentences


def _documents_of_a_megabyte(corpus: Manifest) -> list[tuple[str, ...]]:
    """Documents of about a megabyte of text, enough for a rate and few enough to wait for."""
    documents, size = [], 0
    for document in itertools.chain.from_iterable(map(read_documents, corpus.file_paths("documents-"))):
        documents.append(document.sentences)
        size += sum(map(len, document.sentences))
        if size > 1e6:
            break
    return documents


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
