"""Batch predictions: made once by the champion of a task, with the version recorded."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import miniature
import pytest
from spoiled import refused, republish

from bert_model.registry.client import registry_client
from bert_model.registry.operations import download, promote, register
from bert_model.registry.promotion import GateConfig
from bert_pipeline.hashes import file_sha256
from bert_pipeline.manifest import load_manifest
from workflows.definitions import defs
from workflows.defs.predictions import input_files, recorded_inputs
from workflows.lib.instance import open_instance
from workflows.lib.model_checks import predictions_complete
from workflows.lib.resources import BertHome

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # the miniature run is in the first test's time

SENTENCES = "the film was lovely\n\nthe story was dull\n"
CHAMPION = "models:/bert-tiny-sst2@champion"


@pytest.fixture
def home(finished_home: BertHome, tmp_path, monkeypatch) -> BertHome:
    """A home with the registry of the finished run, without its data."""
    copy = BertHome(directory=str(tmp_path / "home"))
    copy.path.mkdir()
    shutil.copytree(finished_home.artifacts, copy.artifacts)
    shutil.copy(finished_home.path / "mlflow.db", copy.path / "mlflow.db")
    monkeypatch.setenv("BERT_HOME", str(copy.path))
    return copy


@pytest.fixture
def instance(home: BertHome, empty_dagster: Path) -> Iterator[dg.DagsterInstance]:
    shutil.copytree(empty_dagster, home.path / "dagster")
    with open_instance(home) as opened:
        yield opened


def answer(instance: dg.DagsterInstance, *, succeeds: bool = True, **config) -> dg.ExecuteInProcessResult:
    run_config = {"ops": {"predictions": {"config": config}}}
    job = defs().resolve_job_def("predict")
    result = job.execute_in_process(
        instance=instance, partition_key="sst2", run_config=run_config, raise_on_error=False
    )
    assert result.success is succeeds
    return result


def test_predictions_come_from_the_champion_and_name_its_version(home, instance):
    folder = home.prediction_inputs("sst2")
    folder.mkdir(parents=True)
    (folder / "reviews.txt").write_text(SENTENCES, encoding="utf-8")
    (folder / "more.jsonl").write_text('{"text": "a great song"}\n', encoding="utf-8")
    promote("bert-tiny-sst2", 1, config=GateConfig(waived_gates=miniature.UNFIT))
    # A newer version that is no champion: the same weights with another page.
    newer = Path(shutil.copytree(download("models:/bert-tiny-sst2/1"), home.path / "newer" / "model"))
    republish(newer, lambda path: (path / "results.md").write_text("another page", encoding="utf-8"))
    assert register(newer, "bert-tiny-sst2").version == 2
    result = answer(instance)
    (event,) = result.asset_materializations_for_node("predictions")
    manifest = load_manifest(home.predictions("sst2"), kind="predictions", verify="sha256")
    answers = [json.loads(line) for line in (manifest.path / "reviews.txt.jsonl").read_text().splitlines()]
    assert [item["id"] for item in answers] == ["0", "1", "2"]
    assert [item["prediction"] is None for item in answers] == [False, True, False]  # a blank line between two inputs
    assert all(set(item) == {"id", "prediction", "label", "probabilities"} for item in answers[::2])
    assert (manifest.counts["answers"], manifest.counts["blank"]) == (3, 1)
    assert manifest.inputs["model"]["uri"] == "models:/bert-tiny-sst2/1"
    assert manifest.inputs["reviews.txt"]["sha256"] == file_sha256(folder / "reviews.txt")
    shown = event.metadata
    assert (shown["model"].value, shown["model_version"].value) == ("models:/bert-tiny-sst2/1", 1)
    assert shown["mlflow_version"].value.startswith("http://127.0.0.1:5000/#/models/bert-tiny-sst2/versions/1?")
    assert shown["time/answers_per_second"].value > 0
    assert shown["dagster/row_count"].value == 4
    samples = [record.data for record in shown["answers_sample"].value.records]
    assert [sample["text"] for sample in samples] == ["a great song", "the film was lovely", "the story was dull"]
    assert event.tags["dagster/data_version"] == manifest.sha256
    assert result.get_asset_check_evaluations()[0].passed

    again = answer(instance)
    messages = [record.user_message for record in instance.all_logs(again.run_id)]
    assert any("is reused" in message for message in messages)  # unchanged files are not answered twice


def test_task_file_with_a_bad_row_is_answered_and_the_row_set_aside(home, instance, tmp_path):
    (tmp_path / "test.tsv").write_text("index\tsentence\n7\tthe film was lovely\n8\n9\ta great song\n")
    result = answer(instance, inputs=[str(tmp_path / "test.tsv")], model="models:/bert-tiny-sst2/1")
    manifest = load_manifest(home.predictions("sst2"), kind="predictions", verify="sha256")
    assert (manifest.counts["answers"], manifest.counts["rejected"]) == (2, 1)
    answers = [json.loads(line) for line in (manifest.path / "test.tsv.jsonl").read_text().splitlines()]
    assert [item["id"] for item in answers] == ["7", "9"]
    (rejected,) = map(json.loads, (manifest.path / "test.tsv.jsonl.rejected.jsonl").read_text().splitlines())
    assert rejected["error"].endswith("test.tsv:3: 1 columns, expected 2")
    verdict = predictions_complete(home, "sst2")
    assert verdict.passed
    assert verdict.description == "2 answers, 1 rejected"
    (event,) = result.asset_materializations_for_node("predictions")
    assert [row.data["text"] for row in event.metadata["answers_sample"].value.records] == [
        "the film was lovely",
        "a great song",
    ]


def skipped(home, instance, result) -> str:
    """Return why nothing was materialized."""
    assert result.asset_materializations_for_node("predictions") == []
    assert not home.predictions("sst2").exists()
    (observation,) = instance.fetch_observations(dg.AssetKey("predictions"), limit=5).records
    return observation.asset_observation.metadata["skipped"].value


def test_predictions_without_files_are_skipped(home, instance):
    assert skipped(home, instance, answer(instance)) == "no input"


def test_predictions_of_a_task_without_a_champion_are_skipped_with_the_reason(home, instance, tmp_path):
    (tmp_path / "in.txt").write_text(SENTENCES, encoding="utf-8")
    with registry_client() as client:
        client.delete_registered_model_alias("bert-tiny-sst2", "champion")
    promote("bert-tiny-sst2", 1, config=GateConfig(min_seeds=99))
    words = skipped(home, instance, answer(instance, inputs=[str(tmp_path / "in.txt")]))
    assert words.startswith("no champion: bert-tiny-sst2 version 1 is refused (")


def test_missing_file_or_model_of_another_task_is_refused(home, instance, tmp_path):
    failed = answer(instance, succeeds=False, inputs=[str(tmp_path / "none.txt")])
    assert "none.txt: no such file" in failed.failure_data_for_node("predictions").user_failure_data.description
    (tmp_path / "in.txt").write_text(SENTENCES, encoding="utf-8")
    asked = {"inputs": [str(tmp_path / "in.txt")], "model": "models:/bert-tiny-stsb/1"}
    failed = answer(instance, succeeds=False, **asked)
    words = failed.failure_data_for_node("predictions").user_failure_data.description
    assert "was fine-tuned for stsb, not for sst2" in words
    assert not home.predictions("sst2").exists()


def test_inputs_with_the_same_name_are_refused(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "in.txt").write_text("x\n", encoding="utf-8")
    with pytest.raises(Exception, match=r"in\.txt: two inputs have this name"):
        input_files(BertHome(directory=str(tmp_path)), "sst2", [str(tmp_path / f / "in.txt") for f in "ab"])


def test_input_file_named_model_is_recorded_beside_the_model(tmp_path):
    path = tmp_path / "model"
    path.write_text("x\n", encoding="utf-8")
    before = recorded_inputs([path], {"uri": CHAMPION})
    path.write_text("y\n", encoding="utf-8")
    after = recorded_inputs([path], {"uri": CHAMPION})
    assert before["model"] == after["model"] == {"uri": CHAMPION}
    assert before != after  # changed files are answered again


def test_incomplete_or_invalid_predictions_are_refused(home, instance, tmp_path):
    (tmp_path / "in.txt").write_text(SENTENCES, encoding="utf-8")
    answer(instance, inputs=[str(tmp_path / "in.txt")], model="models:/bert-tiny-sst2/1")
    directory = home.predictions("sst2")
    assert predictions_complete(home, "sst2").passed
    answers = directory / "in.txt.jsonl"
    answers.write_text(answers.read_text().replace("label", "lavel"))
    refused(predictions_complete(home, "sst2"), "was changed or damaged")
    republish(directory, lambda path: (path / "in.txt.jsonl").write_text('{"label": "1"}\n'))
    refused(predictions_complete(home, "sst2"), "1 answers, the manifest counts")
    republish(directory, lambda path: (path / "in.txt.jsonl").write_text("label\n"))
    refused(predictions_complete(home, "sst2"), "not JSON lines")
