"""Each check passes on what the pipeline makes, and fails on a spoiled copy of it."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import miniature
import pytest

from bert_pipeline.formats.parquet import read_documents, write_documents
from bert_pipeline.manifest import load_manifest, publishing
from workflows import inspection, model_inspection
from workflows.defs.corpus import dump_sources
from workflows.defs.pretraining import current_model
from workflows.inspection import Verdict
from workflows.resources import BertHome

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the miniature run is in the first test's time


@pytest.fixture
def home(finished_home: BertHome, tmp_path: Path) -> BertHome:
    """A copy of the finished run's data, to be spoiled."""
    copy = BertHome(directory=str(tmp_path / "home"))
    shutil.copytree(finished_home.of_dump(miniature.DUMP), copy.of_dump(miniature.DUMP))
    return copy


def republish(directory: Path, change: Callable[[Path], None]) -> None:
    """Make a directory anew with a change in it, manifest and all: only its content is wrong then."""
    old = load_manifest(directory)
    saved = directory.parent / f"{directory.name}-old"
    shutil.copytree(directory, saved)
    with publishing(directory, kind=old.kind, configuration=old.configuration, inputs=old.inputs) as draft:
        for name in old.files:
            (draft.path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(saved / name, draft.path / name)
        change(draft.path)
        draft.counts = old.counts
    shutil.rmtree(saved)


def documents_changed(change: Callable[[list[Any]], list[Any]]) -> Callable[[Path], None]:
    def apply(directory: Path) -> None:
        path = directory / "documents-00000.parquet"
        documents = change(list(read_documents(path)))
        write_documents(path, documents)

    return apply


def flip_byte(path: Path, offset: int = -100) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x40
    path.write_bytes(bytes(data))


def first_file(directory: Path, pattern: str) -> Path:
    return sorted(directory.glob(pattern))[0]


def refused(verdict: Verdict, words: str) -> None:
    assert not verdict.passed
    assert words in verdict.description


def test_dump_with_a_flipped_byte_is_refused(home):
    directory = home.dump(miniature.DUMP)
    sources = dump_sources(directory)
    assert inspection.dump_readable(directory, sources).passed
    flip_byte(Path(sources[0].partition(":")[2]))
    refused(inspection.dump_readable(directory, sources), "changed or damaged")


def test_dump_whose_local_file_changed_or_went_away_is_refused(tmp_path):
    from workflows.defs.corpus import _take_local_files

    file = tmp_path / "wiki.xml"
    file.write_text("<mediawiki></mediawiki>", encoding="utf-8")
    directory = tmp_path / "dump"
    _take_local_files([str(file)], directory)
    assert inspection.dump_readable(directory, dump_sources(directory)).passed
    file.write_text("<mediawiki> </mediawiki>", encoding="utf-8")
    refused(inspection.dump_readable(directory, dump_sources(directory)), "changed since")
    file.unlink()
    refused(inspection.dump_readable(directory, dump_sources(directory)), "is gone")


def test_corpus_with_a_flipped_byte_is_refused(home):
    directory = home.corpus(miniature.DUMP)
    assert inspection.intact(directory, "corpus").passed
    flip_byte(directory / "documents-00000.parquet")
    refused(inspection.intact(directory, "corpus"), "changed or damaged")


def test_empty_corpus_is_refused(home):
    directory = home.corpus(miniature.DUMP)
    assert inspection.corpus_not_empty(directory).passed
    republish(directory, documents_changed(lambda documents: []))
    refused(inspection.corpus_not_empty(directory), "no training documents")


def test_corpus_without_held_out_documents_is_refused(home):
    directory = home.corpus(miniature.DUMP)
    republish(directory, documents_changed(lambda ds: [d for d in ds if d.split == "train"]))
    refused(inspection.corpus_not_empty(directory), "held out")


def test_corpus_that_holds_fewer_documents_than_it_counts_is_refused(home):
    directory = home.corpus(miniature.DUMP)
    republish(directory, documents_changed(lambda ds: [ds[0], *(d for d in ds[1:] if d.split == "held_out")]))
    refused(inspection.corpus_not_empty(directory), "the manifest counts")


def test_corpus_with_markup_is_refused_and_shown(home):
    import dataclasses

    def spoil(documents):
        spoiled = [
            dataclasses.replace(d, sentences=("It stands [[Bern|in Bern]].", *d.sentences[1:])) for d in documents
        ]
        return [*spoiled[:20], *documents[20:]]

    directory = home.corpus(miniature.DUMP)
    assert inspection.corpus_without_markup(directory).passed
    republish(directory, documents_changed(spoil))
    verdict = inspection.corpus_without_markup(directory)
    refused(verdict, "with markup")
    assert "[[Bern" in verdict.metadata["examples"]


@pytest.mark.parametrize(
    "residue",
    ["{{cite web}}", "[[link]]", "<ref name=x>", "'''bold'''", "{| class=x", "a&nbsp;b", "== Heading ==", "__NOTOC__"],
)
def test_markup_of_every_kind_is_noticed(residue):
    assert inspection.MARKUP.search(f"Some prose {residue}" if not residue.startswith("=") else residue)


@pytest.mark.parametrize("prose", ["2 < 3 & 5 > 4.", "He said 'no'.", "f(x) = x == y", "R&D at AT&T", "[sic] {a}"])
def test_prose_is_not_taken_for_markup(prose):
    assert not inspection.MARKUP.search(prose)


def test_held_out_text_that_stands_in_training_too_is_refused(home):
    import dataclasses

    def spoil(documents):
        held_out = next(d for d in documents if d.split == "held_out")
        return [*documents, dataclasses.replace(held_out, document_id="samplewiki:999999", split="train")]

    directory = home.corpus(miniature.DUMP)
    assert inspection.corpus_split_disjoint(directory).passed
    republish(directory, documents_changed(spoil))
    refused(inspection.corpus_split_disjoint(directory), "has the text of")


def test_corpus_much_smaller_than_the_dump_before_is_refused_by_its_own_sentences(home):
    data = home.path / "data"
    for name in ("testwiki-20260101", "testwiki-20260201", "testwiki-20260301"):
        shutil.copytree(home.corpus(miniature.DUMP), data / name / "corpus")
    republish(data / "testwiki-20260301" / "corpus", documents_changed(lambda documents: documents[:10]))  # counts stay
    assert inspection.corpus_not_shrunken(data, "testwiki-20260101").passed
    assert inspection.corpus_not_shrunken(data, "testwiki-20260201").passed
    refused(inspection.corpus_not_shrunken(data, "testwiki-20260301"), "sentences of testwiki-20260201, expected")


def test_vocabulary_without_a_special_token_or_with_a_token_twice_is_refused(home):
    directory = home.vocabulary(miniature.DUMP)
    assert inspection.vocabulary_layout(directory).passed
    text = (directory / "vocab.txt").read_text(encoding="utf-8")
    republish(directory, lambda path: _write(path / "vocab.txt", text.replace("[MASK]\n", "[NOTHING]\n")))
    refused(inspection.vocabulary_layout(directory), "[MASK]")
    republish(directory, lambda path: _write(path / "vocab.txt", text + text.splitlines()[-1] + "\n"))
    assert not inspection.vocabulary_layout(directory).passed


def test_vocabulary_of_another_size_than_asked_for_is_refused(home):
    directory = home.vocabulary(miniature.DUMP)
    text = (directory / "vocab.txt").read_text(encoding="utf-8")
    republish(directory, lambda path: _write(path / "vocab.txt", text + "onemoretoken\n"))
    refused(inspection.vocabulary_layout(directory), "asked for 600")


def test_vocabulary_that_does_not_know_the_text_is_refused(home):
    vocabulary, corpus = home.vocabulary(miniature.DUMP), home.corpus(miniature.DUMP)
    assert inspection.unknown_rate(vocabulary, corpus).passed
    tokens = (vocabulary / "vocab.txt").read_text(encoding="utf-8").splitlines()
    spoiled = [token if token.startswith("[") else f"ж{index}" for index, token in enumerate(tokens)]
    republish(vocabulary, lambda path: _write(path / "vocab.txt", "\n".join(spoiled) + "\n"))
    refused(inspection.unknown_rate(vocabulary, corpus), "are [UNK]")


@pytest.mark.parametrize(("language", "passes"), [("en", False), ("bg", True)])
def test_a_few_unknown_words_are_a_warning_in_english_alone(home, language, passes):
    vocabulary, corpus = home.vocabulary(miniature.DUMP), home.corpus(miniature.DUMP)

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
    verdict = inspection.unknown_rate(vocabulary, corpus)
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
def test_wrong_masks_are_refused_in_either_format(home, tmp_path, spoil, words):
    from bert_pipeline.formats.tfrecord import TfrecordWriter, open_tfrecords
    from bert_pipeline.instances import InstancesConfig
    from bert_pipeline.jobs.instances import build_instances

    directory = tmp_path / "instances"
    config = InstancesConfig(max_seq_length=32, dupe_factor=1, format="tfrecord", max_predictions_per_seq=5)
    build_instances(home.corpus(miniature.DUMP), home.vocabulary(miniature.DUMP), directory, config, ["--workers=1"])

    def change(path: Path) -> None:
        shard_path = first_file(path, "train/*.tfrecord")
        with open_tfrecords(shard_path) as shard:
            columns = shard.read_row_group(0)
        spoil(columns)
        with TfrecordWriter(shard_path, max_seq_length=32, max_predictions_per_seq=5) as writer:
            writer.write(columns)

    republish(directory, change)
    verdict = inspection.instances_well_formed(directory)
    assert words in verdict.description
    assert verdict.passed == (not words)
    assert inspection.next_sentence_balance(directory).passed


def test_instances_with_a_flipped_byte_are_refused(home):
    directory = home.instances(miniature.DUMP, 32)
    assert inspection.instances_well_formed(directory).passed
    flip_byte(first_file(directory, "train/*.parquet"), offset=200)
    refused(inspection.instances_well_formed(directory), "changed or damaged")


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
    directory = home.instances(miniature.DUMP, 32)
    republish(directory, lambda path: rewrite_instances(first_file(path, "train/*.parquet"), spoil))
    refused(inspection.instances_well_formed(directory), words)


def test_one_sided_next_sentence_labels_are_refused(home):
    directory = home.instances(miniature.DUMP, 32)
    assert inspection.next_sentence_balance(directory).passed
    republish(
        directory,
        lambda path: rewrite_instances(
            first_file(path, "train/*.parquet"), lambda c: c.is_random_next.__setitem__(slice(None), False)
        ),
    )
    refused(inspection.next_sentence_balance(directory), "0.0% of")


def rewrite_instances(path: Path, spoil: Callable[[Any], None]) -> None:
    import numpy as np

    from bert_pipeline.formats.parquet import InstanceWriter, open_instances

    with open_instances(path) as shard:
        groups = [shard.read_row_group(index) for index in range(shard.num_row_groups)]
    with InstanceWriter(path, static_masks=False) as writer:
        for columns in groups:
            copy = dataclasses.replace(
                columns,
                input_ids=np.array(columns.input_ids),
                segment_b_start=np.array(columns.segment_b_start),
                is_random_next=np.array(columns.is_random_next),
            )
            spoil(copy)
            writer.write(copy)


def test_model_with_a_flipped_byte_or_an_infinite_weight_is_refused(home):
    from safetensors.torch import load_file, save_file

    directory = current_model(home, miniature.DUMP)
    assert model_inspection.pretrained_model_loads(directory).passed

    def spoil(path: Path) -> None:
        tensors = load_file(path / "model.safetensors")
        tensors["bert.pooler.dense.bias"][0] = float("inf")
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})

    republish(directory, spoil)
    refused(model_inspection.pretrained_model_loads(directory), "not finite: bert.pooler.dense.bias")
    flip_byte(directory / "model.safetensors")
    refused(model_inspection.pretrained_model_loads(directory), "changed or damaged")


def test_model_that_lacks_a_tensor_is_refused(home):
    from safetensors.torch import load_file, save_file

    def spoil(path: Path) -> None:
        tensors = load_file(path / "model.safetensors")
        del tensors["bert.encoder.layer.1.output.dense.weight"]
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})

    directory = current_model(home, miniature.DUMP)
    republish(directory, spoil)
    refused(model_inspection.pretrained_model_loads(directory), "layer.1.output.dense.weight")


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        ([5.0, 6.0], "held-out loss 6.000"),
        ([9.0, 8.0], "guessing is 6.397"),
        ([5.0, float("nan")], "not finite"),
        ([], "was ever measured"),
    ],
)
def test_loss_that_does_not_fall_is_refused(home, losses, words):
    directory = current_model(home, miniature.DUMP)
    assert model_inspection.pretraining_loss_falls(directory).passed
    manifest = load_manifest(directory)
    counts = {key: value for key, value in manifest.counts.items() if not key.startswith("held_out/")}
    with publishing(directory, kind=manifest.kind, configuration={}, inputs={}) as draft:
        (draft.path / "config.json").write_text('{"vocab_size": 600}', encoding="utf-8")
        draft.counts = counts
    lines = [
        {"event": "evaluation", "step": 10 * index, "metrics": {"held_out/mlm_loss": loss}}
        for index, loss in enumerate(losses, start=1)
    ]
    _write(directory.parent / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    refused(model_inspection.pretraining_loss_falls(directory), words)


def test_model_whose_manifest_claims_another_loss_is_refused(home):
    directory = current_model(home, miniature.DUMP)
    manifest = load_manifest(directory)
    config = (directory / "config.json").read_text(encoding="utf-8")
    with publishing(directory, kind=manifest.kind, configuration={}, inputs={}) as draft:
        _write(draft.path / "config.json", config)
        draft.counts = {**manifest.counts, "held_out/mlm_loss": 0.5}
    refused(model_inspection.pretraining_loss_falls(directory), "the model's manifest says 0.5")


def test_exported_model_that_does_not_have_the_held_out_loss_of_its_training_is_refused(home):
    from safetensors.torch import load_file, save_file

    directory = current_model(home, miniature.DUMP)
    assert model_inspection.held_out_reproduces(directory).passed

    def spoil(path: Path) -> None:
        tensors = load_file(path / "model.safetensors")
        tensors["cls.predictions.transform.dense.weight"] *= -1.0
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})

    republish(directory, spoil)
    refused(model_inspection.held_out_reproduces(directory), "held_out/mlm_loss: recorded")
    (directory.parent / "configuration.json").unlink()
    refused(model_inspection.held_out_reproduces(directory), "configuration cannot be read")


def task_copy(home: BertHome, task: str, tmp_path: Path) -> Path:
    """A task_data directory whose official files are a copy that may be spoiled."""
    files = tmp_path / "glue"
    shutil.copytree(home.dump(miniature.DUMP) / "glue", files)
    directory = home.task_data(miniature.DUMP, task)
    republish(
        directory,
        lambda path: _write(path / "source.json", json.dumps({"path": str(files), "dev_fraction": 0.0})),
    )
    return files


def test_task_files_that_changed_are_refused(home, tmp_path):
    files = task_copy(home, "sst2", tmp_path)
    directory = home.task_data(miniature.DUMP, "sst2")
    assert model_inspection.task_data_unchanged(directory).passed
    assert model_inspection.task_splits_disjoint(directory).passed
    train = files / "SST-2" / "train.tsv"
    _write(train, train.read_text(encoding="utf-8") + "one more\t1\n")
    refused(model_inspection.task_data_unchanged(directory), "train.tsv")


def test_dev_examples_that_stand_in_training_too_are_refused(home, tmp_path):
    from bert_pipeline.tasks.task import load_task_data
    from workflows.defs.finetuning import _publish_task_data

    files = task_copy(home, "sst2", tmp_path)
    shutil.copy(files / "SST-2" / "train.tsv", files / "SST-2" / "dev.tsv")
    directory = home.task_data(miniature.DUMP, "sst2")
    _publish_task_data(directory, "sst2", files, 0.0, load_task_data("sst2", files))
    refused(model_inspection.task_splits_disjoint(directory), "stand in the training set too")


def test_fine_tuned_model_with_other_weights_does_not_reproduce_its_scores(home):
    from safetensors.torch import load_file, save_file

    directory = home.finetuning(miniature.DUMP, "stsb")
    task_directory = home.task_data(miniature.DUMP, "stsb")
    assert model_inspection.finetuned_scores_reproduce(directory, task_directory).passed

    def spoil(path: Path) -> None:
        tensors = load_file(path / "model.safetensors")
        tensors["classifier.weight"] = -tensors["classifier.weight"]
        tensors["bert.pooler.dense.weight"] = tensors["bert.pooler.dense.weight"].flip(0).contiguous()
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})

    republish(directory, spoil)
    refused(model_inspection.finetuned_scores_reproduce(directory, task_directory), "recorded")
    flip_byte(directory / "model.safetensors")
    refused(model_inspection.finetuned_scores_reproduce(directory, task_directory), "changed or damaged")


def test_model_that_says_the_same_of_everything_is_noticed(home):
    directory = home.finetuning(miniature.DUMP, "sst2")

    def predictions(path: Path, answer: Callable[[int], str]) -> None:
        file = path / "predictions" / "dev.jsonl"
        count = len(file.read_text(encoding="utf-8").splitlines())
        _write(file, "".join(json.dumps({"id": str(i), "prediction": answer(i)}) + "\n" for i in range(count)))

    republish(directory, lambda path: predictions(path, lambda index: str(index % 2)))
    assert model_inspection.finetuned_not_degenerate(directory).passed
    republish(directory, lambda path: predictions(path, lambda index: "1"))
    refused(model_inspection.finetuned_not_degenerate(directory), "one prediction for everything on dev")


def test_report_whose_table_disagrees_with_the_models_is_refused(home):
    directory = home.report(miniature.DUMP)
    finetuning = home.finetuning(miniature.DUMP, "sst2").parent
    assert model_inspection.report_agrees(directory, finetuning).passed

    def spoil(path: Path) -> None:
        document = json.loads((path / "results.json").read_text(encoding="utf-8"))
        document["rows"][0]["score"] += 10
        _write(path / "results.json", json.dumps(document))

    republish(directory, spoil)
    refused(model_inspection.report_agrees(directory, finetuning), "sst2: says")
    republish(directory, lambda path: _write(path / "scores.png", "not a picture"))
    assert not model_inspection.report_agrees(directory, finetuning).passed


def test_registry_that_lacks_the_model_or_holds_other_bytes_is_refused(finished_home, tmp_path, monkeypatch):
    monkeypatch.setenv("BERT_HOME", str(finished_home.path))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    directory = current_model(finished_home, miniature.DUMP)
    assert model_inspection.registered_consistent(directory, "bert-tiny").passed
    other = tmp_path / "model"
    shutil.copytree(directory, other)
    republish(other, lambda path: _write(path / "vocab.txt", "\n".join(["[PAD]", "x"]) + "\n"))
    refused(model_inspection.registered_consistent(other, "bert-tiny"), "no version holds")
    monkeypatch.setattr("bert_model.reference_logits.reference_logits", lambda _: [0.0] * 256)
    refused(model_inspection.registered_consistent(directory, "bert-tiny"), "does not compute what was registered")
    monkeypatch.undo()


def test_registry_whose_stored_files_changed_is_refused(home, tmp_path, monkeypatch):
    from bert_model.registry import register

    monkeypatch.setenv("BERT_HOME", str(tmp_path / "registry"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    directory = home.finetuning(miniature.DUMP, "sst2")
    version = register(directory, "bert-tiny-sst2")
    assert model_inspection.registered_consistent(directory, "bert-tiny-sst2").passed
    shutil.rmtree(tmp_path / "registry" / "cache")
    (stored,) = (tmp_path / "registry").glob(f"artifacts/models/{version.model_id}/**/model.safetensors")
    flip_byte(stored)
    refused(model_inspection.registered_consistent(directory, "bert-tiny-sst2"), "changed or damaged")


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
