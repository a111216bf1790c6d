"""Records that the code cannot digest: listed and counted, and the job goes on."""

import dataclasses
import json
import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sentencex
from small_corpus import make_corpus, make_documents, make_vocabulary
from small_exports import make_export, make_page

from bert_pipeline.corpus import splits
from bert_pipeline.corpus.job import build_corpus
from bert_pipeline.corpus.splits import CorpusConfig, plan_splits, read_batches
from bert_pipeline.errors import ArtifactError, InputError, UnavailableError, WorkerDiedError
from bert_pipeline.failed_records import check_failures, failure
from bert_pipeline.instances.job import build_instances
from bert_pipeline.instances.pairs import InstancesConfig
from bert_pipeline.manifest import Manifest
from bert_pipeline.vocabulary import job as vocabulary_job
from bert_pipeline.vocabulary import wordpiece
from bert_pipeline.vocabulary.job import build_vocabulary
from bert_pipeline.vocabulary.tokenizer import Tokenizer
from bert_pipeline.vocabulary.wordpiece import VocabularyConfig

ONE = ("--workers", "1")
BAD = "Indigestible"


SEGMENT = sentencex.segment


def panicking(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, which panics for a word among its arguments."""

    def wrapped(*args: Any) -> Any:
        if BAD in str(args):
            # A panic of sentencex' Rust code: a non-breaking space behind an initial, which we never show it.
            SEGMENT("en", "He lives in block B\xa0. It is far away.")
        return function(*args)

    return wrapped


@pytest.fixture(autouse=True)
def panics(monkeypatch):
    monkeypatch.setattr(sentencex, "segment", panicking(SEGMENT))


def text_of(number: int) -> str:
    return f"This is the text of number {number}, which says nothing else. It has two sentences, {number} and a half."


def texts_with(bad: tuple[int, ...], count: int) -> list[str]:
    return [text_of(number) + f" {BAD}." * (number in bad) for number in range(1, count + 1)]


def source_of(kind: str, directory: Path, texts: list[str]) -> str:
    path = directory / f"own.{kind}"
    if kind == "wikipedia":
        path.write_text(make_export(*(make_page(number, text) for number, text in enumerate(texts, 1))))
        return str(path)
    if kind == "parquet":
        pq.write_table(pa.table({"text": texts, "id": list(map(str, range(1, len(texts) + 1)))}), path)
    else:
        path.write_text("".join(json.dumps({"text": text, "id": n}) + "\n" for n, text in enumerate(texts, 1)))
    return f"{kind}:{path}"


def build(directory: Path, kind: str, texts: list[str], **settings: Any) -> Manifest:
    source = source_of(kind, directory, texts)
    return build_corpus([source], directory / "corpus", CorpusConfig(language="en", **settings), ONE)


@pytest.mark.parametrize("kind", ["wikipedia", "jsonl", "parquet"])
def test_panicking_record_is_listed_and_counted(kind, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        manifest = build(tmp_path, kind, texts_with((3, 7), 12), split_bytes=2000)
    assert manifest.counts["documents"] == 10
    assert manifest.counts["dropped"] == {"failed": 2}
    name = "testwiki" if kind == "wikipedia" else "own"
    listed = [line.split("\t") for line in (tmp_path / "corpus" / "dropped.tsv").read_text().splitlines()[1:]]
    assert [line[0] for line in listed] == [f"{name}:3", f"{name}:7"]
    assert all(line[1].startswith("failed: PanicException: end byte index") for line in listed)
    (warning,) = [record.getMessage() for record in caplog.records if "failed" in record.getMessage()]
    assert warning.startswith(f"2 of 12 pages failed and are left out; the first: {name}:3 (PanicException: ")
    assert f"; {name}:7 (" in warning
    assert warning.endswith("(dropped.tsv lists them)")


def test_too_many_failed_records_stop_the_job_with_the_first_three(tmp_path):
    with pytest.raises(InputError, match=r"^21 of 50 pages failed, expected at most 20: .*own:1 \(Panic") as raised:
        build(tmp_path, "jsonl", texts_with(tuple(range(1, 22)), 50), split_bytes=3000)
    assert "own:3 (" in str(raised.value)
    assert "own:4 (" not in str(raised.value)
    assert not (tmp_path / "corpus").exists()
    with pytest.raises(InputError, match="^2 of 4 pages failed, expected at most 1:"):
        build(tmp_path, "jsonl", texts_with((2, 3), 4))


def test_records_are_counted_once_when_their_batch_is_repeated(tmp_path):
    config = CorpusConfig(language="en")
    (split,) = plan_splits([source_of("jsonl", tmp_path, texts_with((3,), 12))], config)
    first, second = (list(read_batches(split, config, tmp_path)) for _ in range(2))
    assert first == second == pickle.loads(pickle.dumps(first))
    assert first[0].dropped == {"failed": 1}
    assert len(first[0].failures) == 1
    (listed,) = tmp_path.glob("*.dropped")
    assert len(listed.read_text().splitlines()) == 1


def test_panicking_document_is_listed_and_left_out(tmp_path, monkeypatch, caplog):
    documents = make_documents(40, held_out=(5, 6))
    bad = {2: f"Ka {BAD}.", 5: f"{BAD} é."}
    marked = [
        dataclasses.replace(document, sentences=(*document.sentences, bad[index])) if index in bad else document
        for index, document in enumerate(documents)
    ]
    good = [document for index, document in enumerate(documents) if index not in bad]
    corpora = [make_corpus(tmp_path / name, [texts]) for name, texts in (("marked", marked), ("good", good))]
    vocabulary = make_vocabulary(tmp_path / "vocabulary")
    monkeypatch.setattr(wordpiece, "_blocks", panicking(lambda texts: iter([" ".join(texts)])))
    monkeypatch.setattr(Tokenizer, "encode_batch", panicking(Tokenizer.encode_batch))

    settings = VocabularyConfig(vocab_size=120, num_unused=0)
    vocabularies = [build_vocabulary(corpus, corpus / "v", settings, ONE) for corpus in corpora]
    instances = [
        build_instances(corpus, vocabulary, corpus / "i", InstancesConfig(max_seq_length=64), ONE) for corpus in corpora
    ]
    for with_failures, without in (vocabularies, instances):
        assert with_failures.counts.pop("failed") == 2
        assert with_failures.counts == without.counts
        assert {**with_failures.files, "dropped.tsv": None} == {**without.files, "dropped.tsv": None}
        assert "dropped.tsv" not in without.files
        rows = [line.split("\t") for line in (with_failures.path / "dropped.tsv").read_text().splitlines()[1:]]
        assert [row[0] for row in rows] == ["made:2", "made:5"]
        assert all(row[1].startswith("failed: PanicException: ") for row in rows)
    warnings = [record.getMessage() for record in caplog.records if "failed" in record.getMessage()]
    assert len(warnings) == 2
    assert all(
        warning.startswith("2 of 40 documents failed and are left out; the first: made:2 (") for warning in warnings
    )


def test_error_that_no_document_causes_is_raised(tmp_path, monkeypatch):
    monkeypatch.setattr(vocabulary_job, "count_words", mock.Mock(side_effect=RuntimeError("our mistake")))
    with pytest.raises(BaseException, match="our mistake"):
        build_vocabulary(make_corpus(tmp_path / "c", [make_documents(40)]), tmp_path / "v", VocabularyConfig(), ONE)


@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt(), SystemExit(1), GeneratorExit(), MemoryError(), OSError(28, "full"), pa.ArrowMemoryError(),
        RuntimeError("CUDA out of memory"), RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        UnavailableError("the store does not answer"), InputError("own.toml: malformed"), ArtifactError("damaged"),
    ],
)  # fmt: skip
def test_errors_without_a_record_are_raised(error, monkeypatch):
    with pytest.raises(type(error)) as raised:
        failure(error)
    assert raised.value is error


def test_end_of_the_process_ends_the_job(tmp_path, monkeypatch):
    monkeypatch.setattr(splits, "extract_article", mock.Mock(side_effect=MemoryError("no memory")))
    with pytest.raises(WorkerDiedError, match="most likely out of memory"):
        build(tmp_path, "wikipedia", texts_with((), 30))
    assert not (tmp_path / "corpus").exists()


def test_reason_is_one_line_of_text():
    assert failure(ValueError("found\n\ta \ud83d")) == "ValueError: found a \\ud83d"
    assert failure(IndexError()) == "IndexError"
    assert len(failure(ValueError("x" * 10_000))) == 300


def test_limit_is_one_in_a_thousand_and_at_least_twenty():
    assert check_failures("rows", 0, 0, []) == ""
    assert check_failures("rows", 20, 41, ["a (E)"]) == "20 of 41 rows failed and are left out; the first: a (E)"
    assert check_failures("rows", 1000, 1_000_000, list("abcd")).endswith("the first: a; b; c")
    for number, total in ((1, 1), (1, 2), (21, 20_999), (1001, 1_000_000)):
        with pytest.raises(InputError, match=f"^{number:,} of {total:,} rows failed"):
            check_failures("rows", number, total, ["a"])
