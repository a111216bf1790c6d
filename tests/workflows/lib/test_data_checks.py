"""Each data check passes on the pipeline's artifacts and fails on a damaged copy."""

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from miniature import DUMP
from small_corpus import write_documents
from spoiled import flip_byte, refused, republish, write

from bert_pipeline.corpus.parquet import read_documents
from bert_pipeline.errors import UsageError
from bert_pipeline.exam.pairs import PAIRS_NAME, read_pairs, write_pairs
from bert_pipeline.instances.job import build_instances
from bert_pipeline.instances.pairs import InstancesConfig
from bert_pipeline.instances.parquet import InstanceWriter, ParquetInstances
from bert_pipeline.instances.tfrecord import TfrecordInstances, TfrecordWriter
from bert_pipeline.manifest import publishing
from workflows.defs.data import _publish_sources
from workflows.lib import data_checks
from workflows.lib.lineage import dump_sources
from workflows.lib.resources import BertHome

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # the miniature run is in the first test's time


def documents_changed(change: Callable[[list[Any]], list[Any]]) -> Callable[[Path], None]:
    def apply(directory: Path) -> None:
        path = directory / "documents-00000.parquet"
        documents = change(list(read_documents(path)))
        write_documents(path, documents)

    return apply


def first_file(directory: Path, pattern: str) -> Path:
    return sorted(directory.glob(pattern))[0]


def test_dump_with_a_flipped_byte_is_refused(home):
    assert data_checks.dump_readable(home, DUMP).passed
    flip_byte(Path(dump_sources(home.dump(DUMP))[0].partition(":")[2]))
    refused(data_checks.dump_readable(home, DUMP), "changed or damaged")


def test_dump_with_changed_or_missing_local_file_is_refused(tmp_path):
    file = tmp_path / "wiki.xml"
    file.write_text("<mediawiki></mediawiki>", encoding="utf-8")
    home = BertHome(directory=str(tmp_path / "home"))
    _publish_sources([str(file)], home.dump("enwiki-1"))
    assert data_checks.dump_readable(home, "enwiki-1").passed
    file.write_text("<mediawiki> </mediawiki>", encoding="utf-8")
    refused(data_checks.dump_readable(home, "enwiki-1"), "changed since")
    file.unlink()
    refused(data_checks.dump_readable(home, "enwiki-1"), "is gone")


def test_sources_of_every_kind_are_published_by_file(tmp_path):
    files = [tmp_path / folder / "train-00000.parquet" for folder in ("books", "wikipedia")]
    for file in files:
        file.parent.mkdir()
        file.write_text(file.parent.name)
    home = BertHome(directory=str(tmp_path / "home"))
    _publish_sources([f"parquet:{files[0]}", f"parquet:{tmp_path / 'wikipedia'}"], home.dump("enwiki-1"))
    assert dump_sources(home.dump("enwiki-1")) == [f"parquet:{file}" for file in files]
    assert data_checks.dump_readable(home, "enwiki-1").passed  # although both files have one name
    _publish_sources([f"books=parquet:{files[0]}"], home.dump("enwiki-3"))
    assert dump_sources(home.dump("enwiki-3")) == [f"books=parquet:{files[0]}"]
    with pytest.raises(UsageError, match="did you mean 'lines'"):
        _publish_sources(["line:a.txt"], home.dump("enwiki-2"))


def test_corpus_with_a_flipped_byte_is_refused(home):
    directory = home.corpus(DUMP)
    assert data_checks.corpus_intact(home, DUMP).passed
    flip_byte(directory / "documents-00000.parquet")
    refused(data_checks.corpus_intact(home, DUMP), "changed or damaged")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda documents: [], "no training documents"),
        (lambda documents: [d for d in documents if d.split == "train"], "held out"),
        (lambda documents: [documents[0], *(d for d in documents[1:] if d.split == "held_out")], "the manifest counts"),
    ],
    ids=["empty", "nothing held out", "fewer than counted"],
)
def test_corpus_without_some_of_its_documents_is_refused(home, change, words):
    directory = home.corpus(DUMP)
    assert data_checks.corpus_not_empty(home, DUMP).passed
    republish(directory, documents_changed(change))
    refused(data_checks.corpus_not_empty(home, DUMP), words)


@pytest.mark.parametrize(
    ("check", "fault", "spoiled"),
    [
        (data_checks.corpus_without_markup, "with markup", "It stands [[Bern|in Bern]]."),
        (data_checks.corpus_without_broken_text, "with broken text", "東京（、とうきょう）は首都。"),
    ],
)
def test_corpus_with_faulty_sentences_is_refused_and_they_are_shown(home, check, fault, spoiled):
    directory = home.corpus(DUMP)
    assert check(home, DUMP).passed
    republish(directory, documents_changed(lambda documents: with_sentence(documents, spoiled, 40)))
    verdict = check(home, DUMP)
    refused(verdict, fault)
    assert not verdict.is_warning
    assert spoiled in verdict.metadata["examples"]


def with_sentence(documents, sentence, count):
    changed = [dataclasses.replace(d, sentences=(sentence, *d.sentences[1:])) for d in documents[:count]]
    return [*changed, *documents[count:]]


def test_a_little_markup_in_the_text_of_another_program_is_a_warning(home):
    marked = "It is in [[Bern]]."
    republish(home.corpus(DUMP), documents_changed(lambda documents: with_sentence(documents, marked, 10)))
    verdict = data_checks.corpus_without_markup(home, DUMP)
    refused(verdict, "10 of 2,6")
    assert verdict.is_warning


def test_held_out_text_in_training_data_is_refused(home):
    def spoil(documents):
        held_out = next(d for d in documents if d.split == "held_out")
        return [*documents, dataclasses.replace(held_out, document_id="samplewiki:999999", split="train")]

    directory = home.corpus(DUMP)
    assert data_checks.corpus_split_disjoint(home, DUMP).passed
    republish(directory, documents_changed(spoil))
    refused(data_checks.corpus_split_disjoint(home, DUMP), "has the text of")


@pytest.mark.parametrize(
    ("counted", "listed", "message"),
    [(0, 0, ""), (2, 2, "2 of 9 records failed"), (3, 2, "lists 2 failed records, the manifest counts 3")],
)
def test_failed_records_are_shown_with_their_errors(tmp_path, counted, listed, message):
    home = BertHome(directory=str(tmp_path / "home"))
    with publishing(home.corpus("enwiki-1"), kind="corpus", configuration={}, inputs={}) as draft:
        lines = "document_id\treason\ttitle\nenwiki:7\tno prose\tB\n" + "enwiki:1\tfailed: IndexError: x\tA\n" * listed
        (draft.path / "dropped.tsv").write_text(lines)
        draft.files_without_rows = {"dropped.tsv"}
        draft.counts = {"pages_read": 9, "dropped": {"no prose": 1} | ({"failed": counted} if counted else {})}
    verdict = data_checks.corpus_without_failures(home, "enwiki-1")
    if not message:
        assert verdict.passed
        return
    refused(verdict, message)
    if counted == listed:
        assert verdict.metadata["examples"].startswith("enwiki:1 A: failed: IndexError: x\n")


def test_corpus_much_smaller_than_its_predecessor_is_refused(home):
    for name in ("testwiki-20260101", "testwiki-20260201", "testwiki-20260301"):
        shutil.copytree(home.corpus(DUMP), home.corpus(name))
    republish(home.corpus("testwiki-20260301"), documents_changed(lambda documents: documents[:10]))  # counts stay
    assert data_checks.corpus_not_shrunken(home, "testwiki-20260101").passed
    assert data_checks.corpus_not_shrunken(home, "testwiki-20260201").passed
    refused(data_checks.corpus_not_shrunken(home, "testwiki-20260301"), "sentences of testwiki-20260201, expected")


def test_vocabulary_with_missing_or_duplicate_token_is_refused(home):
    directory = home.vocabulary(DUMP)
    assert data_checks.vocabulary_layout(home, DUMP).passed
    text = (directory / "vocab.txt").read_text(encoding="utf-8")
    republish(directory, lambda path: write(path / "vocab.txt", text.replace("[MASK]\n", "[NOTHING]\n")))
    refused(data_checks.vocabulary_layout(home, DUMP), "[MASK]")
    *others, last = text.splitlines()
    republish(directory, lambda path: write(path / "vocab.txt", "\n".join([*others, others[-1]]) + "\n"))
    refused(data_checks.vocabulary_layout(home, DUMP), others[-1])


def test_vocabulary_of_another_size_than_asked_for_is_refused(home):
    directory = home.vocabulary(DUMP)
    text = (directory / "vocab.txt").read_text(encoding="utf-8")
    republish(directory, lambda path: write(path / "vocab.txt", text + "onemoretoken\n"))
    refused(data_checks.vocabulary_layout(home, DUMP), "asked for 600")


def test_vocabulary_with_many_unknown_tokens_is_refused(home):
    vocabulary = home.vocabulary(DUMP)
    assert data_checks.vocabulary_unknown_rate(home, DUMP).passed
    tokens = (vocabulary / "vocab.txt").read_text(encoding="utf-8").splitlines()
    spoiled = [token if token.startswith("[") else f"ж{index}" for index, token in enumerate(tokens)]
    republish(vocabulary, lambda path: write(path / "vocab.txt", "\n".join(spoiled) + "\n"))
    refused(data_checks.vocabulary_unknown_rate(home, DUMP), "are [UNK]")


@pytest.mark.parametrize(("language", "passes"), [("en", False), ("bg", True)])
def test_few_unknown_words_are_a_warning_only_in_english(home, language, passes):
    corpus = home.corpus(DUMP)

    def changed(documents: list[Any]) -> list[Any]:
        held_out = [d for d in documents if d.split == "held_out"]
        num_words = sum(len(sentence.split()) for d in held_out for sentence in d.sentences)
        unknown = ("ж " * (num_words // 100 + 1)).strip()
        return [
            dataclasses.replace(
                d, language=language, sentences=(*d.sentences, unknown) if d is held_out[0] else d.sentences
            )
            for d in documents
        ]

    republish(corpus, documents_changed(changed))
    verdict = data_checks.vocabulary_unknown_rate(home, DUMP)
    assert verdict.passed == passes
    assert verdict.is_warning
    assert 0.001 < verdict.metadata["unknown_share"] < 0.02


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda c: None, ""),
        (lambda c: c.masked_lm_positions.__setitem__(0, 0), "has a mask beyond its end"),
        (lambda c: c.masked_lm_positions.__setitem__(-1, 900), "has a mask beyond its end"),
        (lambda c: c.masked_lm_positions.__setitem__(slice(0, 2), 3), "instance 0 has masks out of order"),
        (lambda c: c.masked_lm_ids.__setitem__(0, 7), "instance 0 has a special token masked"),
        (lambda c: c.masked_lm_ids.__setitem__(0, 9999), "instance 0 has a masked token outside the vocabulary"),
    ],
)
def test_wrong_static_masks_are_refused(home, spoil, words):

    directory = home.instances(DUMP, 32)
    config = InstancesConfig(max_seq_length=32, dupe_factor=1, format="tfrecord", max_predictions_per_seq=5)
    build_instances(home.corpus(DUMP), home.vocabulary(DUMP), directory, config, ["--workers=1"])

    def change(path: Path) -> None:
        shard_path = first_file(path, "train/*.tfrecord")
        with TfrecordInstances(shard_path) as shard:
            columns = shard.read_row_group(0)
        spoil(columns)
        with TfrecordWriter(shard_path, max_seq_length=32, max_predictions_per_seq=5) as writer:
            writer.write(columns)

    republish(directory, change)
    verdict = data_checks.instances_well_formed(home, DUMP)
    assert words in verdict.description
    assert verdict.passed == (not words)
    assert data_checks.next_sentence_balance(home, DUMP).passed


def test_instances_with_a_flipped_byte_are_refused(home):
    directory = home.instances(DUMP, 32)
    assert data_checks.instances_well_formed(home, DUMP).passed
    flip_byte(first_file(directory, "train/*.parquet"), offset=200)
    refused(data_checks.instances_well_formed(home, DUMP), "changed or damaged")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda c: c.input_ids.__setitem__(c.offsets[:-1], 20), "does not begin with [CLS]"),
        (lambda c: c.input_ids.__setitem__(c.offsets[1:] - 1, 20), "does not end with [SEP]"),
        (lambda c: c.segment_b_start.__setitem__(slice(None), 1), "segment B outside"),
        (lambda c: c.input_ids.__setitem__(c.offsets[:-1] + 1, 5000), "token id is 5000"),
    ],
)
def test_malformed_instances_are_refused(home, spoil, words):
    directory = home.instances(DUMP, 32)
    republish(directory, lambda path: rewrite_instances(first_file(path, "train/*.parquet"), spoil))
    refused(data_checks.instances_well_formed(home, DUMP), words)


def test_exam_of_training_documents_or_of_one_part_is_refused(home):
    directory = home.exam(DUMP)
    assert data_checks.exam_of_held_out_documents(home, DUMP).passed
    pairs = read_pairs(directory)
    republish(directory, lambda path: write_pairs(path / PAIRS_NAME, [p for p in pairs if p.part == "choosing"]))
    refused(data_checks.exam_of_held_out_documents(home, DUMP), "0 for reporting")
    seen = [dataclasses.replace(pair, source="samplewiki:none") for pair in pairs[:1]]
    republish(directory, lambda path: write_pairs(path / PAIRS_NAME, [*pairs[1:], *seen]))
    refused(data_checks.exam_of_held_out_documents(home, DUMP), "1 of documents that are not held out")
    flip_byte(directory / PAIRS_NAME)
    refused(data_checks.exam_of_held_out_documents(home, DUMP), "changed or damaged")
    shutil.rmtree(directory)
    assert data_checks.exam_of_held_out_documents(home, DUMP).passed


def test_one_sided_next_sentence_labels_are_refused(home):
    directory = home.instances(DUMP, 32)
    assert data_checks.next_sentence_balance(home, DUMP).passed
    republish(
        directory,
        lambda path: rewrite_instances(
            first_file(path, "train/*.parquet"), lambda c: c.is_random_next.__setitem__(slice(None), False)
        ),
    )
    refused(data_checks.next_sentence_balance(home, DUMP), "0.0% of")


def test_rows_without_pairs_are_well_formed_and_need_no_balance(home):

    directory = home.instances(DUMP, 32)
    config = InstancesConfig(max_seq_length=32, dupe_factor=1, pairs="none")
    build_instances(home.corpus(DUMP), home.vocabulary(DUMP), directory, config, ["--workers=1"])
    assert data_checks.instances_well_formed(home, DUMP).passed
    assert "without pairs" in data_checks.next_sentence_balance(home, DUMP).description
    republish(
        directory,
        lambda path: rewrite_instances(
            first_file(path, "train/*.parquet"), lambda c: c.segment_b_start.__setitem__(0, 2)
        ),
    )
    refused(data_checks.instances_well_formed(home, DUMP), "instance 0 has its segment B outside")


def rewrite_instances(path: Path, spoil: Callable[[Any], None]) -> None:

    with ParquetInstances(path) as shard:
        groups = [shard.read_row_group(index) for index in range(shard.num_row_groups)]
    with InstanceWriter(path) as writer:
        for columns in groups:
            copy = dataclasses.replace(
                columns,
                input_ids=np.array(columns.input_ids),
                segment_b_start=np.array(columns.segment_b_start),
                is_random_next=np.array(columns.is_random_next),
            )
            spoil(copy)
            writer.write(copy)
