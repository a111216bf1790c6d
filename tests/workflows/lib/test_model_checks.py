"""Each check of models, task files, report and registry passes on a run's artifacts and fails on a damaged copy."""

import json
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from miniature import DUMP, UNFIT
from spoiled import change_tensors, flip_byte, refused, republish, write

from bert_model.registry.promotion import GateConfig
from bert_pipeline.manifest import load_manifest, publishing
from workflows.lib import model_checks
from workflows.lib.resources import BertHome, dump_task_key

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # the miniature run is in the first test's time

SST2, STSB = (str(dump_task_key(DUMP, task)) for task in ("sst2", "stsb"))


def test_model_with_a_flipped_byte_or_an_infinite_weight_is_refused(home):
    directory = home.current_model(DUMP)
    assert model_checks.pretrained_model_loads(home, DUMP).passed
    change_tensors(directory, lambda tensors: tensors["bert.pooler.dense.bias"].__setitem__(0, float("inf")))
    refused(model_checks.pretrained_model_loads(home, DUMP), "not finite: bert.pooler.dense.bias")
    flip_byte(directory / "model.safetensors")
    refused(model_checks.pretrained_model_loads(home, DUMP), "changed or damaged")


def test_model_that_lacks_a_tensor_is_refused(home):
    change_tensors(home.current_model(DUMP), lambda tensors: tensors.pop("bert.encoder.layer.1.output.dense.weight"))
    refused(model_checks.pretrained_model_loads(home, DUMP), "layer.1.output.dense.weight")


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
    directory = home.current_model(DUMP)
    assert model_checks.pretraining_loss_falls(home, DUMP).passed
    manifest = load_manifest(directory)
    counts = {key: value for key, value in manifest.counts.items() if not key.startswith("held_out/")}
    with publishing(directory, kind=manifest.kind, configuration={}, inputs={}) as draft:
        (draft.path / "config.json").write_text('{"vocab_size": 600}', encoding="utf-8")
        draft.counts = counts
    lines = [
        {"event": "evaluation", "step": 10 * index, "metrics": {"held_out/mlm_loss": loss}}
        for index, loss in enumerate(losses, start=1)
    ]
    write(directory.parent / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    refused(model_checks.pretraining_loss_falls(home, DUMP), words)

    # A model that continues another one may learn nothing more, but must not guess.
    continued = {"initial_model": {"name": "model.safetensors", "sha256": "0" * 64}}
    with publishing(directory, kind=manifest.kind, configuration={}, inputs=continued) as draft:
        (draft.path / "config.json").write_text('{"vocab_size": 600}', encoding="utf-8")
        draft.counts = counts
    assert model_checks.pretraining_loss_falls(home, DUMP).passed is (losses == [5.0, 6.0])


def test_model_whose_manifest_claims_another_loss_is_refused(home):
    directory = home.current_model(DUMP)
    manifest = load_manifest(directory)
    config = (directory / "config.json").read_text(encoding="utf-8")
    with publishing(directory, kind=manifest.kind, configuration={}, inputs={}) as draft:
        write(draft.path / "config.json", config)
        draft.counts = {**manifest.counts, "held_out/mlm_loss": 0.5}
    refused(model_checks.pretraining_loss_falls(home, DUMP), "the model's manifest records 0.5")


def test_model_with_another_held_out_loss_than_recorded_is_refused(home):
    directory = home.current_model(DUMP)
    assert model_checks.held_out_reproduces(home, DUMP).passed
    change_tensors(directory, lambda tensors: tensors["cls.predictions.transform.dense.weight"].neg_())
    refused(model_checks.held_out_reproduces(home, DUMP), "held_out/mlm_loss: recorded")
    (directory.parent / "configuration.json").unlink()
    refused(model_checks.held_out_reproduces(home, DUMP), "configuration cannot be read")


def task_copy(home: BertHome, task: str, tmp_path: Path) -> Path:
    """Let task_data refer to a copy of the official files that the test may change; return its folder."""
    files = tmp_path / "glue"
    shutil.copytree(home.dump(DUMP) / "glue", files)
    directory = home.task_data(DUMP, task)
    republish(
        directory,
        lambda path: write(path / "source.json", json.dumps({"path": str(files), "dev_fraction": 0.0})),
    )
    return files


def test_task_files_that_changed_are_refused(home, tmp_path):
    files = task_copy(home, "sst2", tmp_path)
    assert model_checks.task_data_unchanged(home, SST2).passed
    assert model_checks.task_splits_disjoint(home, SST2).passed
    train = files / "SST-2" / "train.tsv"
    write(train, train.read_text(encoding="utf-8") + "one more\t1\n")
    refused(model_checks.task_data_unchanged(home, SST2), "train.tsv")


def test_dev_examples_in_training_data_are_refused(home, tmp_path):
    from bert_pipeline.tasks.task import load_task_data
    from workflows.defs.finetuning import _publish_task_data

    files = task_copy(home, "sst2", tmp_path)
    shutil.copy(files / "SST-2" / "train.tsv", files / "SST-2" / "dev.tsv")
    directory = home.task_data(DUMP, "sst2")
    _publish_task_data(directory, files, 0.0, load_task_data("sst2", files))
    refused(model_checks.task_splits_disjoint(home, SST2), "are in the training set too")


def test_finetuned_model_with_other_weights_is_refused(home):
    directory = home.finetuning(DUMP, "stsb")
    assert model_checks.finetuned_scores_reproduce(home, STSB).passed

    def spoil(tensors: dict[str, Any]) -> None:
        tensors["classifier.weight"] = -tensors["classifier.weight"]
        tensors["bert.pooler.dense.weight"] = tensors["bert.pooler.dense.weight"].flip(0).contiguous()

    change_tensors(directory, spoil)
    refused(model_checks.finetuned_scores_reproduce(home, STSB), "recorded")
    flip_byte(directory / "model.safetensors")
    refused(model_checks.finetuned_scores_reproduce(home, STSB), "changed or damaged")


def test_scores_are_reproduced_on_the_device_of_the_trials(tmp_path, monkeypatch):
    load = mock.Mock()
    monkeypatch.setattr("bert_model.finetuning.task_model.load_task_model", load)
    monkeypatch.setattr("bert_model.finetuning.task_model.prediction_device", lambda: "cuda")
    monkeypatch.setattr(model_checks, "kind_of", mock.Mock())
    monkeypatch.setattr(model_checks, "load_manifest", mock.Mock())
    monkeypatch.setattr(model_checks, "load_published_task", mock.Mock(return_value=mock.Mock(dev={})))
    refused(model_checks.finetuned_scores_reproduce(BertHome(directory=str(tmp_path)), STSB), "no recorded score")
    load.return_value.to.assert_called_once_with("cuda")


def test_model_with_one_prediction_for_everything_is_refused(home):
    results = home.finetuning(DUMP, "sst2") / "results.json"
    document = json.loads(results.read_text(encoding="utf-8"))
    for degenerate in (False, True):
        document["degenerate"] = degenerate
        republish(results.parent, lambda path: write(path / "results.json", json.dumps(document)))
        assert model_checks.finetuned_not_degenerate(home, SST2).passed is not degenerate
    refused(model_checks.finetuned_not_degenerate(home, SST2), "one prediction for all dev examples")


def test_report_whose_table_disagrees_with_the_models_is_refused(home):
    directory = home.report(DUMP)
    assert model_checks.report_intact(home, DUMP).passed

    results = (directory / "results.json").read_text(encoding="utf-8")
    document = json.loads(results)
    document["rows"][0]["score"] += 10
    republish(directory, lambda path: write(path / "results.json", json.dumps(document)))
    refused(model_checks.report_intact(home, DUMP), "sst2: the report has")
    republish(directory, lambda path: write(path / "results.json", results))
    assert model_checks.report_intact(home, DUMP).passed
    republish(directory, lambda path: write(path / "scores.png", "not a picture"))
    refused(model_checks.report_intact(home, DUMP), "not a PNG")


def test_registry_without_the_model_or_with_other_bytes_is_refused(finished_home, tmp_path, monkeypatch):
    monkeypatch.setenv("BERT_HOME", str(finished_home.path))
    directory = finished_home.current_model(DUMP)
    assert model_checks.registered_consistent(directory, "bert-tiny").passed
    other = tmp_path / "model"
    shutil.copytree(directory, other)
    republish(other, lambda path: write(path / "vocab.txt", "\n".join(["[PAD]", "x"]) + "\n"))
    refused(model_checks.registered_consistent(other, "bert-tiny"), "no version holds")
    monkeypatch.setattr("bert_model.registry.artifacts.reference_logits", lambda _: [0.0] * 256)
    refused(model_checks.registered_consistent(directory, "bert-tiny"), "does not compute what was registered")
    monkeypatch.undo()


def test_registry_whose_stored_files_changed_is_refused(home, empty_store, tmp_path, monkeypatch):
    from bert_model.registry.operations import promote, register

    (tmp_path / "registry").mkdir()
    shutil.copy(empty_store, tmp_path / "registry" / "mlflow.db")
    monkeypatch.setenv("BERT_HOME", str(tmp_path / "registry"))
    directory = home.finetuning(DUMP, "sst2")
    version = register(directory, "bert-tiny-sst2")
    promote("bert-tiny-sst2", config=GateConfig(waived_gates=(*UNFIT, "licensed"))).require()
    assert model_checks.registered_consistent(directory, "bert-tiny-sst2").passed  # with a champion by waiver too
    shutil.rmtree(tmp_path / "registry" / "cache")
    (stored,) = (tmp_path / "registry").glob(f"artifacts/models/{version.model_id}/**/model.safetensors")
    flip_byte(stored)
    refused(model_checks.registered_consistent(directory, "bert-tiny-sst2"), "changed or damaged")
