"""The whole pipeline by its command: artifacts, report, registry, and the metadata in the UI."""

import contextlib
import csv
import dataclasses
import json
import logging
import re
import shutil
import sqlite3
from types import SimpleNamespace

import dagster as dg
import miniature
import pytest

from bert_model.training.metrics_log import read_history
from bert_pipeline.configuration import changed_settings
from bert_pipeline.hashes import content_sha256
from bert_pipeline.manifest import load_manifest
from bert_pipeline.step import key_path
from bert_pipeline.tasks.catalogue import TASKS
from workflows.defs import promotion
from workflows.lib.instance import open_instance
from workflows.lib.processes import code_commit, process_of
from workflows.lib.resources import (
    ASSETS,
    JOBS,
    ON_REQUEST,
    STAGE_ASSETS,
    STAGES,
    TASK_ASSETS,
    TASK_NAMES,
    BertHome,
    dump_task_key,
)
from workflows.run import main

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # the miniature run is in the first test's time


MLFLOW = "http://127.0.0.1:5000"


@pytest.fixture
def instance(finished_home: BertHome, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BERT_HOME", str(finished_home.path))
    with open_instance(finished_home) as opened:
        yield opened


def latest(instance: dg.DagsterInstance, asset: str) -> dg.AssetMaterialization:
    """Return an asset's latest materialization."""
    return instance.get_latest_materialization_event(dg.AssetKey(asset)).asset_materialization


def test_command_prints_table_plots_and_how_to_open_the_uis(finished_home, finished_log):
    assert "samplewiki-1 (generated sample)" in finished_log
    assert "pre-trained" in finished_log
    assert "majority" in finished_log
    assert "scores.png" in finished_log
    assert "make ui" in finished_log


def test_tasks_that_were_not_run_are_named_in_the_table(finished_home, finished_log):
    (line,) = [line for line in finished_log.splitlines() if line.startswith("skipped: ")]
    named = line.removeprefix("skipped: ").partition(":")[0].split(", ")
    assert set(named) == set(TASK_NAMES) - set(miniature.TASKS)


def test_every_asset_has_its_manifest_hash_as_data_version(finished_home, instance):
    for name in set(ASSETS) - set(ON_REQUEST):
        assert instance.get_latest_materialization_event(dg.AssetKey(name)) is not None, name
    event = latest(instance, "corpus")
    corpus = load_manifest(finished_home.corpus(miniature.DUMP))
    assert event.tags["dagster/data_version"] == corpus.sha256
    assert event.metadata["text/documents"].value == corpus.counts["documents"]


def test_every_task_partition_was_materialized(instance):
    expected = {str(dump_task_key(miniature.DUMP, task)) for task in miniature.TASKS}
    for name in TASK_ASSETS:
        assert instance.get_materialized_partitions(dg.AssetKey(name)) == expected


def test_runs_appear_in_the_instance_as_successes(instance):
    runs = instance.get_runs()
    assert len(runs) == 3 + len(miniature.TASKS)  # data, pre-training, report, and each task
    assert {run.status for run in runs} == {dg.DagsterRunStatus.SUCCESS}
    assert all(process_of(run) for run in runs)  # by which a killed one would be recognized
    jobs = {(run.tags["bert/stage"], run.remote_job_origin.job_name) for run in runs}
    assert jobs == {
        (stage, job) for job, assets in JOBS.items() for stage in STAGES if STAGE_ASSETS[stage][0] in assets
    }


def test_keys_have_the_code_version_of_the_asset(finished_home):

    from workflows.definitions import defs

    versions = {spec.key.to_user_string(): spec.code_version for spec in defs().resolve_all_asset_specs()}
    made = {
        "corpus": finished_home.corpus(miniature.DUMP),
        "vocabulary": finished_home.vocabulary(miniature.DUMP),
        "instances": finished_home.instances(miniature.DUMP, 32),
        "exam": finished_home.exam(miniature.DUMP),
        "finetuned_model": finished_home.finetuning(miniature.DUMP, miniature.TASKS[0]),
    }
    for name, directory in made.items():
        key = json.loads(key_path(directory).read_text(encoding="utf-8"))["key"]
        assert key["code_version"] == versions[name], name
    rows = [TASKS[miniature.TASKS[0]], dataclasses.replace(TASKS[miniature.TASKS[0]], title="Another")]
    hashes = [content_sha256(changed_settings(row)) for row in rows]
    assert [key["inputs"]["task"] == digest for digest in hashes] == [True, False]  # the last of them is fine-tuned
    (training,) = (finished_home.dump_directory(miniature.DUMP) / "pretraining").iterdir()
    starts = [event for event in read_history(training) if event["event"] == "start"]
    assert [event["code_version"] for event in starts] == [versions["pretrained_model"]]


def test_training_is_examined_on_the_pairs_of_the_asset(finished_home, instance):
    exam = load_manifest(finished_home.exam(miniature.DUMP), kind="exam")
    assert latest(instance, "exam").tags["dagster/data_version"] == exam.sha256
    assert len(latest(instance, "exam").metadata["pairs_sample"].value.records) == 2 * len(exam.counts["pairs"])
    model = finished_home.current_model(miniature.DUMP)
    result = json.loads((model / "exam.json").read_text(encoding="utf-8"))
    assert set(result["kinds"]) <= set(exam.counts["pairs"])
    counts = load_manifest(model).counts
    assert counts["exam_report/accuracy"] == result["mean"]
    assert 0 < counts["exam/accuracy"] <= 100


def test_report_has_a_row_for_each_task(finished_home):
    directory = finished_home.report(miniature.DUMP)
    manifest = load_manifest(directory, kind="report", verify="sha256")
    rows = list(csv.DictReader((directory / "results.csv").read_text(encoding="utf-8").splitlines()))
    assert [row["task"] for row in rows] == list(miniature.TASKS)
    assert all(float(row["random"]) is not None for row in rows)
    assert {"pretraining.png", "scores.png", "report.md"} <= set(manifest.files)
    assert "generated sample" in (directory / "report.md").read_text(encoding="utf-8")


def test_report_is_in_mlflow_with_its_scores(finished_home, monkeypatch):
    from bert_model.training.mlflow_store import open_client

    monkeypatch.setenv("BERT_HOME", str(finished_home.path))
    client = open_client(finished_home.tracking_uri)
    experiment = client.get_experiment_by_name("reports")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.tags["dump"] == miniature.DUMP
    assert "sst2/dev/accuracy" in run.data.metrics
    assert "report.md" in {item.path for item in client.list_artifacts(run.info.run_id)}
    assert "pre-trained on" in run.data.tags["mlflow.note.content"]


def test_runs_in_mlflow_list_their_data_sets_and_no_experiment_is_empty(finished_home, monkeypatch):
    from bert_model.training.mlflow_store import open_client

    monkeypatch.setenv("BERT_HOME", str(finished_home.path))
    client = open_client(finished_home.tracking_uri)
    experiments = {experiment.name: experiment for experiment in client.search_experiments()}
    assert set(experiments) == {"pretraining", "finetuning", "reports"}
    hashes = {
        "corpus": load_manifest(finished_home.corpus(miniature.DUMP)).sha256[:36],
        "instances-32": load_manifest(finished_home.instances(miniature.DUMP, 32)).sha256[:36],
    }
    contexts = {
        "pretraining": {"training", "source"},
        "finetuning": {"training", "evaluation", "source", "pre-training"},
    }
    for name, expected in contexts.items():
        assert experiments[name].tags["mlflow.note.content"]
        runs = client.search_runs([experiments[name].experiment_id])
        assert runs
        for run in runs:
            inputs = run.inputs.dataset_inputs
            found = {item.dataset.name: item.dataset.digest for item in inputs}
            assert "vocabulary" in found
            assert found.items() >= hashes.items()
            assert {item.tags[0].value for item in inputs} == expected


def test_runs_in_mlflow_name_their_dump_and_the_run_of_dagster(finished_home, instance, monkeypatch):
    from bert_model.training.mlflow_store import current_user, open_client

    client = open_client(finished_home.tracking_uri)
    for name, names in (("pretraining", {"tiny"}), ("finetuning", set(miniature.TASKS)), ("reports", {"report"})):
        experiment = client.get_experiment_by_name(name)
        runs = client.search_runs([experiment.experiment_id])
        for run in runs:
            assert run.data.tags["dump"] == miniature.DUMP
            assert run.data.tags["preset"] == "miniature"
            assert run.data.tags["mlflow.user"] == current_user()
            assert run.data.tags.get("mlflow.source.git.commit", "") == code_commit()
            assert (
                instance.get_run_by_id(run.data.tags["dagster_run_id"]).job_name == run.data.tags["mlflow.source.name"]
            )
        parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
        assert {run.info.run_name for run in parents} == {f"{name} on {miniature.DUMP}, miniature" for name in names}
        if name == "finetuning":  # a column of the table compares tasks, and there are few others
            for run in runs:
                means = {key for key in run.data.metrics if re.fullmatch(r"\w+/dev/\w+", key)}
                starts = {"pretrained", "random", "random_x2"}
                steps = {f"{start}/{key}" for start in starts for key in ("score", "learning_rate", "train_loss")}
                assert {"score"} < set(run.data.metrics) <= means | steps | {"score", "train/loss"}
            assert run.data.tags["mlflow.note.content"]


def test_ui_metadata_has_curves_and_report_pictures(instance):
    model = latest(instance, "pretrained_model").metadata
    assert "trained_by_other_code" not in model
    assert "data:image/png;base64," in model["curves"].value
    assert model["held_out/mlm_loss"].value > 0
    assert latest(instance, "report").metadata["report"].value.count("data:image/png;base64,") == 2


def test_ui_metadata_has_vocabulary_quality_and_instance_statistics(instance):
    vocabulary = latest(instance, "vocabulary").metadata
    assert vocabulary["quality/tokens_per_word"].value >= 1
    assert 0 <= vocabulary["quality/unk_share"].value <= 0.001
    (report,) = vocabulary["quality_report"].value.records
    assert report.data["on"] == "held_out"
    assert {"characters_lost_share", "whole_words_share", "longest_pieces"} <= set(report.data)
    instances = latest(instance, "instances").metadata
    counts = ("documents", "instances", "tokens", "random_next_share", "padding_share", "unk_share", "lengths/29-32")
    for name in counts:
        assert f"32/train/{name}" in instances
    assert len(instances["32/instances_sample"].value.records) == 5


def test_ui_metadata_links_to_runs_and_versions_in_mlflow(finished_home, instance):
    from bert_model.training.mlflow_store import open_client

    client = open_client(finished_home.tracking_uri)
    for name in ("pretrained_model", "finetuned_model", "report"):
        assert client.get_run(linked_run(latest(instance, name))).info.status == "FINISHED"
    for name, model in (("candidate_model", "bert-tiny"), ("promotion_decision", "bert-tiny")):
        link = latest(instance, name).metadata["mlflow_version"]
        assert link == dg.MetadataValue.url(f"{MLFLOW}/#/models/{model}/versions/1?workflowType=machine_learning")
    version = client.get_model_version("bert-tiny", "1")
    assert version.run_id == linked_run(latest(instance, "pretrained_model"))


def linked_run(materialization) -> str:
    """Return the id of the MLflow run that a materialization links to."""
    (run_id,) = re.findall(
        rf"^{MLFLOW}/#/experiments/\d+/runs/([0-9a-f]+)\?", materialization.metadata["mlflow_run"].url
    )
    return str(run_id)


def test_ui_metadata_has_throughput_and_samples(instance):
    for name in ("corpus", "vocabulary"):
        assert latest(instance, name).metadata["time/bytes_per_second"].value > 0
    assert latest(instance, "corpus").metadata["time/rows_per_second"].value > 0
    assert latest(instance, "instances").metadata["32/time/rows_per_second"].value > 0
    assert latest(instance, "pretrained_model").metadata["train/tokens_per_second"].value > 0
    assert not [key for key in latest(instance, "pretrained_model").metadata if key.startswith("system/")]
    assert latest(instance, "finetuned_model").metadata["time/tokens_per_second"].value > 0
    passages = latest(instance, "corpus").metadata["passages_sample"].value.records
    assert len(passages) == 10
    assert len({record.data["document_id"] for record in passages}) == 10  # of different documents, drawn at random
    assert all(record.data["passage"] for record in passages)


def test_ui_shows_the_columns_of_parquet_files_and_what_they_are_made_of(instance):
    columns = {
        name: [column.name for column in latest(instance, name).metadata["dagster/column_schema"].schema.columns]
        for name in ("corpus", "instances")
    }
    assert columns["instances"] == ["input_ids", "segment_b_start", "is_random_next"]
    lineage = latest(instance, "instances").metadata["dagster/column_lineage"].lineage.deps_by_column
    assert set(lineage) == set(columns["instances"])
    for deps in lineage.values():
        assert {dep.asset_key.to_user_string() for dep in deps} == {"corpus"}
        assert {dep.column_name for dep in deps} == {"sentences", "document_id"} < set(columns["corpus"])


def test_ui_shows_what_a_fine_tuned_model_gets_wrong(instance):
    records = instance.fetch_materializations(dg.AssetKey("finetuned_model"), limit=20).records
    metadata = [record.asset_materialization.metadata for record in records]
    (found,) = [own for own in metadata if own["main_metric"].value == "sst2/dev/accuracy"]
    assert "(95%)" in found["interval"].value
    assert found["calibration_error"].value >= 0
    assert [record.data["label"] for record in found["classes"].value.records] == ["0", "1"]
    assert [record.data["gold"] for record in found["confusion"].value.records] == ["0", "1"]
    assert found["errors"].value.endswith("/sst2.errors.html")


def test_every_blocking_check_ran_and_passed(instance):
    from workflows.definitions import defs

    for checks in defs().asset_checks:
        for spec in checks.check_specs:
            if spec.asset_key.to_user_string() in (*ON_REQUEST, "champion"):  # of jobs of their own
                continue
            (record,) = instance.event_log_storage.get_asset_check_execution_history(spec.key, limit=1)
            evaluation = record.event.dagster_event.event_specific_data
            if spec.blocking:
                assert evaluation.passed, f"{spec.key}: {evaluation.description}"


def test_losses_are_in_the_event_log_of_the_training_run(instance):
    (run,) = [run for run in instance.get_runs() if run.tags.get("bert/stage") == "pretraining"]
    messages = [record.user_message for record in instance.all_logs(run.run_id)]
    assert any("MLM loss" in message for message in messages)
    observations = instance.fetch_observations(dg.AssetKey("pretrained_model"), limit=10).records
    shown = [item.asset_observation.metadata for item in observations]
    for key in ("held_out/mlm_loss", "exam/accuracy", "exam_report/accuracy"):
        assert any(key in metadata for metadata in shown), key


def test_registered_versions_carry_lineage(finished_home, monkeypatch):
    from bert_model.registry.operations import list_models

    monkeypatch.setenv("BERT_HOME", str(finished_home.path))
    versions = {version.name: version for version in list_models()}
    assert set(versions) == {"bert-tiny", *(f"bert-tiny-{task}" for task in miniature.TASKS)}
    version = versions["bert-tiny-sst2"]
    lineage = version.document.lineage
    assert lineage["dump"] == version.tags["dump"] == miniature.DUMP
    assert lineage["corpus_sha256"] == load_manifest(finished_home.corpus(miniature.DUMP)).sha256
    assert version.document.generated_sample
    assert version.license == "apache-2.0"
    for key in ("vocabulary_sha256", "instances_sha256", "dagster_run_id", "code_version", "pretrained_model_sha256"):
        assert lineage[key], key


def test_promotion_decision_is_shown_and_stored_with_the_version(finished_home, instance, finished_log):
    from bert_model.registry.operations import list_models

    event = latest(instance, "promotion_decision")
    (version,) = list_models("bert-tiny")
    (file,) = finished_home.artifacts.glob(f"models/{version.model_id}/artifacts/promotion.json")
    stored = json.loads(file.read_text(encoding="utf-8"))
    assert {task["task"] for task in stored["tasks"]} == set(miniature.TASKS)
    gates = {gate["name"]: gate["passed"] for gate in stored["gates"]}
    assert gates["scored"]
    assert gates["reproduces_logits"]
    assert event.metadata["promoted"].value is stored["promoted"] is ("champion" in version.aliases)
    assert event.metadata["outcome"].value in finished_log
    # The run ends with the models that have no champion, and why.
    for model in list_models():
        refused = f"no champion: {model.name} version 1 is refused (" in finished_log
        assert refused is ("champion" not in model.aliases), model.name
    assert re.search(r"\| sst2 +\| dev/accuracy +\| 100 +\| 2 +\|", version.card_text)  # the scores reached the card


def test_report_is_tried_again_if_the_database_of_mlflow_is_locked(home, empty_store, monkeypatch):
    monkeypatch.setenv("BERT_HOME", str(home.path))
    database = home.path / "mlflow.db"
    shutil.copy(empty_store, database)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{database}?timeout=0.1")
    # Dagster's own context for a direct call has no run.
    run = SimpleNamespace(partition_key=miniature.DUMP, run=SimpleNamespace(run_id="run"), log=logging.getLogger())
    materialize = promotion.report.op.compute_fn.decorated_fn
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(dg.Failure, match="database is locked") as failure:
            materialize(run, home)
        assert failure.value.allow_retries
        other.execute("ROLLBACK")
        assert materialize(run, home).metadata["mlflow_run"]
    assert promotion.report.op.retry_policy.max_retries > 0


def test_finished_training_is_not_repeated_when_materialized_again(
    finished_base, finished_home, clean_environment, monkeypatch, capfd
):
    directory = finished_home.current_training(miniature.DUMP)
    before = json.loads(directory.read_text(encoding="utf-8"))
    # The training has ended while MLflow was down.
    tracking = finished_home.pretraining(miniature.DUMP, before["training"]) / "tracking.json"
    complete = json.loads(tracking.read_text(encoding="utf-8"))
    tracking.write_text(json.dumps(complete | {"copied_lines": 0, "status_sent": None}), encoding="utf-8")
    monkeypatch.setenv("BERT_HOME", str(finished_home.path))
    words = ["--stage", "pretraining"]
    code = main(["--preset", str(finished_base / "miniature.yaml"), "--dump", miniature.DUMP, *words])
    said = capfd.readouterr()
    assert code == 0, said.err
    assert "is finished already" in said.out + said.err
    replayed = json.loads(tracking.read_text(encoding="utf-8"))
    for key in ("run_id", "copied_lines", "status_sent"):
        assert replayed[key] == complete[key] is not None
    assert json.loads(directory.read_text(encoding="utf-8")) == before
