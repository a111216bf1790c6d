"""MLflow follows the metrics file: it catches up after failures and gets nothing twice."""

import errno
import itertools
import json
import os
import re
import shutil
import socket
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from instances_fixture import make_tokenizer
from processes import free_port
from training_processes import wait_until

from bert_model.finetuning.finetune import model_identity
from bert_model.model.bert import BertForPreTraining
from bert_model.model.config import BertConfig
from bert_model.model.initialization import new_model
from bert_model.model.weights import load_model, save_model
from bert_model.training import mlflow_sync
from bert_model.training.home import credentials_apart, tracking_uri
from bert_model.training.metrics_log import MAX_PARAM_LENGTH, first_line, flat_params, without_password
from bert_model.training.mlflow_store import experiment_id, open_client
from bert_model.training.mlflow_sync import Tracker, sync
from bert_pipeline.errors import ArtifactError, BertError, DiskFullError, UsageError
from bert_pipeline.manifest import load_manifest, publishing
from workflows.lib.resources import BertHome

mlflow = pytest.importorskip("mlflow")

MODEL_FILES = {"config.json", "model.safetensors", "vocab.txt", "manifest.json"}
MODEL_FILES |= {"tokenizer_config.json", "tokenizer.json"}


@pytest.fixture(scope="module")
def database(empty_store: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """One SQLite store for the module."""
    home = tmp_path_factory.mktemp("home")
    shutil.copy(empty_store, home / "mlflow.db")
    return f"sqlite:///{home / 'mlflow.db'}"


@pytest.fixture
def store(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client of the store that the trackers use."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", database)
    monkeypatch.setenv("BERT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(mlflow_sync, "COPY_INTERVAL_SECONDS", 0.01)
    monkeypatch.setattr(mlflow_sync, "RETRY_SECONDS", 0.05)
    return open_client(database)


def open_tracker(directory: Path, **settings: Any) -> Tracker:
    return Tracker(directory, **{"experiment": "test", "run_name": "small", **settings})


def lines(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def sync_state(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "tracking.json").read_text())


def history(client: Any, run_id: str | None, key: str) -> list[tuple[int, float]]:
    return [(metric.step, metric.value) for metric in client.get_metric_history(run_id, key)]


def copied(run: Tracker, num_lines: int) -> None:
    """Wait until MLflow has the first lines of a log."""
    wait_until(lambda: sync_state(run.directory)["copied_lines"] >= num_lines)


def make_checkpoint(path: Path, step: int) -> Path:
    directory = path / f"step-{step:08d}"
    config = BertConfig.from_preset("tiny", vocab_size=60, hidden_size=16, max_position_embeddings=16)
    inputs = {"instances_0": {"kind": "instances", "content_sha256": "cafe"}}
    with publishing(directory, kind="checkpoint", configuration={}, inputs=inputs) as draft:
        save_model(new_model(BertForPreTraining, config, seed=step), draft.path, make_tokenizer(60))
        (draft.path / "training_state").mkdir()
        (draft.path / "training_state" / "state.json").write_text("{}")
    return directory


def test_events_are_in_the_file_at_once_and_in_mlflow_soon(store, tmp_path):
    with open_tracker(
        tmp_path / "run", params={"seed": 1, "model": {"preset": "tiny"}, "phases": [{"steps": 2}]}
    ) as run:
        run.record("train", 1, {"train/loss": 3.0}, phase=0)
        run.record("train", 2, {"train/loss": 2.0}, phase=0)
        assert [(line["event"], line["step"], line["phase"]) for line in lines(tmp_path / "run")] == [
            ("train", 1, 0),
            ("train", 2, 0),
        ]
        copied(run, 2)
        found = store.get_run(run.run_id)
        assert history(store, run.run_id, "train/loss") == [(1, 3.0), (2, 2.0)]
        assert found.info.status == "RUNNING"
    found = store.get_run(run.run_id)
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "small"
    assert found.data.params == {"seed": "1", "model.preset": "tiny", "phases.0.steps": "2"}


def test_run_names_its_origin(store, tmp_path, monkeypatch):
    origin = {"dump": "enwiki-1", "preset": "laptop", "mlflow.source.git.repoURL": "https://me:s3cret@example.org/bert"}
    monkeypatch.setenv("MLFLOW_RUN_CONTEXT", json.dumps(origin))
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "login")
    with open_tracker(tmp_path / "run") as run:
        assert run.run_id
    found = store.get_run(run.run_id)
    assert found.info.run_name == "small on enwiki-1, laptop"
    assert found.data.tags["dump"] == "enwiki-1"
    assert found.data.tags["mlflow.user"].endswith(f"@{socket.gethostname()}")
    assert "s3cret" not in found.data.tags["mlflow.source.git.repoURL"]


def test_resume_continues_the_run_without_repeated_steps(store, tmp_path):
    first = open_tracker(tmp_path / "run", params={"seed": 1})
    for step in (1, 2, 3):
        first.record("train", step, {"train/loss": float(step)})
    first.close("KILLED")
    assert store.get_run(first.run_id).info.status == "KILLED"
    second = open_tracker(tmp_path / "run", params={"seed": 1, "more": 2})
    second.record("resume", 1)
    for step in (2, 3, 4):
        second.record("train", step, {"train/loss": float(step)})
    assert second.run_id == first.run_id
    second.close()
    assert history(store, first.run_id, "train/loss") == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]
    found = store.get_run(first.run_id)
    assert found.data.params == {"seed": "1", "more": "2"}
    assert found.info.status == "FINISHED"


def stop_after(directory: Path, num_steps: int = 3) -> str:
    """Leave the log of a training that was killed; return its MLflow run."""
    run = open_tracker(directory, params={"seed": 1}, tags={"kind": "test"})
    for step in range(1, num_steps + 1):
        run.record("train", step, {"train/loss": float(step)})
    run.close("KILLED")
    return str(run.run_id)


def check_resumed_in_new_run(client: Any, directory: Path, former: str) -> None:
    """Resume a log whose run is gone: another run gets all of it."""
    with open_tracker(directory, params={"seed": 1}) as run:
        assert run.run_id != former
        run.record("train", 4, {"train/loss": 4.0})
    found = client.get_run(run.run_id)
    assert history(client, run.run_id, "train/loss") == [(step, float(step)) for step in (1, 2, 3, 4)]
    assert (found.data.params, found.data.tags["kind"], found.info.status) == ({"seed": "1"}, "test", "FINISHED")


def test_deleted_run_is_replaced_by_one_with_all_lines(store, tmp_path, caplog):
    former = stop_after(tmp_path / "run")
    store.delete_run(former)
    check_resumed_in_new_run(store, tmp_path / "run", former)
    assert f"has no run {former} any more" in caplog.text


def test_run_deleted_while_it_is_followed_is_replaced(store, tmp_path):
    run = open_tracker(tmp_path / "run")
    run.record("train", 1, {"train/loss": 1.0})
    copied(run, 1)
    former = run.run_id
    store.delete_run(former)
    run.record("train", 2, {"train/loss": 2.0})  # fails, and is repeated
    wait_until(lambda: run.run_id != former)
    run.record("train", 3, {"train/loss": 3.0})
    run.close()
    assert history(store, run.run_id, "train/loss") == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_interrupted_creation_leaves_no_database(tmp_path, monkeypatch):
    migrate = mock.Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr("mlflow.store.db.utils._upgrade_db", migrate)
    with pytest.raises(KeyboardInterrupt):
        open_client(f"sqlite:///{tmp_path / 'a.db'}").search_experiments()
    assert migrate.called
    assert not list(tmp_path.iterdir())


def test_replaced_database_gets_the_whole_log(empty_store, tmp_path, monkeypatch):
    database = tmp_path / "other.db"
    shutil.copy(empty_store, database)
    monkeypatch.setenv("BERT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{database}")
    former = stop_after(tmp_path / "run")
    client = open_client()
    with sqlite3.connect(empty_store) as source, sqlite3.connect(database) as target:
        source.backup(target)  # in place: MLflow keeps the file open
    check_resumed_in_new_run(client, tmp_path / "run", former)


def test_deleted_experiment_is_one_sentence_and_restoring_it_continues_the_run(store, tmp_path, caplog):
    name = "deleted"
    with open_tracker(tmp_path / "run", experiment=name) as first:
        first.record("train", 1, {"train/loss": 1.0})
    experiment = store.get_experiment_by_name(name).experiment_id
    store.delete_experiment(experiment)
    second = open_tracker(tmp_path / "run", experiment=name)
    second.record("train", 2, {"train/loss": 2.0})
    wait_until(lambda: f"mlflow experiments restore --experiment-id {experiment}" in caplog.text)
    store.restore_experiment(experiment)
    copied(second, 2)
    second.close()
    assert second.run_id == first.run_id
    assert history(store, first.run_id, "train/loss") == [(1, 1.0), (2, 2.0)]


def test_values_of_the_resumed_course_reach_mlflow_once(store, tmp_path):
    def follow(values: dict[int, float], resumed_from: int = 0) -> Tracker:
        with open_tracker(tmp_path / "run") as run:
            run.record("resume" if resumed_from else "start", resumed_from)
            for step, value in values.items():
                run.record("train", step, {"train/loss": value})
            run.log_checkpoint(tmp_path / "pruned", max(values), {"train/loss": values[max(values)]})
        return run

    follow({10: 3.0, 20: 2.0, 30: 1.0})
    run = follow({20: 2.5, 30: 1.5}, resumed_from=10)  # other hardware: not bit for bit
    run = follow({20: 2.5, 30: 1.5, 40: 0.5}, resumed_from=10)  # the same again
    expected = [(10, 3.0), (20, 2.0), (20, 2.5), (30, 1.0), (30, 1.5), (40, 0.5)]
    assert sorted(history(store, run.run_id, "train/loss")) == expected
    times = {
        metric.value: metric.timestamp
        for metric in store.get_metric_history(run.run_id, "train/loss")
        if metric.value in (1.0, 1.5)
    }
    assert times[1.0] < times[1.5]

    # A copy to another database sends the same.
    state = sync_state(tmp_path / "run") | {"copied_lines": 0}
    (tmp_path / "run" / "tracking.json").write_text(json.dumps(state))
    assert sync(tmp_path / "run")
    assert sorted(history(store, run.run_id, "train/loss")) == expected


def test_last_value_of_a_run_is_that_of_the_resumed_course(store, tmp_path):
    for event, step, value in (("start", 0, 1.0), ("start", 0, 2.0), ("resume", 10, 2.5)):
        with open_tracker(tmp_path / "run") as run:
            run.record(event, step)
            run.record("train", 20, {"train/loss": value})
        assert store.get_run(run.run_id).data.metrics == {"train/loss": value}


def test_checkpoints_of_a_renamed_experiment_stay_with_their_run(store, tmp_path):
    for step in (5, 6):
        with open_tracker(tmp_path / "run", experiment="renamed") as run:
            run.log_checkpoint(make_checkpoint(tmp_path, step), step, {"held_out/mlm_loss": 2.5})
        experiment = store.get_run(run.run_id).info.experiment_id
        store.rename_experiment(experiment, "by a person")
    models = [store.get_logged_model(model_id) for model_id in sync_state(tmp_path / "run")["models"].values()]
    assert [model.experiment_id for model in models] == [experiment, experiment]


def log_checkpoint(store: Any, tmp_path: Path, **settings: Any) -> tuple[Path, Any]:
    """Log a checkpoint of step 5; return it and its logged model."""
    checkpoint = make_checkpoint(tmp_path, 5)
    with open_tracker(tmp_path / "run", **settings) as run:
        run.log_checkpoint(checkpoint, 5, {"held_out/mlm_loss": 2.5})
    return checkpoint, store.get_logged_model(sync_state(tmp_path / "run")["models"]["5"])


def test_checkpoint_becomes_logged_model_with_metrics_and_lineage(store, tmp_path):
    checkpoint = make_checkpoint(tmp_path, 5)
    metrics = {"held_out/mlm_loss": 2.5}
    data = {"name": "instances-16", "kind": "instances", "sha256": "cafe" * 16, "context": "training", "num_rows": 7}
    with open_tracker(tmp_path / "run", inputs=[data], tags={"input.instances_0": "cafe"}) as run:
        run.record("evaluation", 5, metrics)
        run.log_checkpoint(checkpoint, 5, metrics, data=data)
    model = store.get_logged_model(sync_state(tmp_path / "run")["models"]["5"])
    assert model.status == "READY"
    assert model.source_run_id == run.run_id
    assert model.tags["step"] == "5"
    assert model.tags["input.instances_0"] == "cafe"
    (metric,) = model.metrics
    assert (metric.key, metric.value, metric.step) == ("held_out/mlm_loss", 2.5, 5)
    assert (metric.dataset_name, metric.dataset_digest) == ("instances-16", "cafe" * 9)
    assert history(store, run.run_id, "held_out/mlm_loss") == [(5, 2.5)]


def test_copied_checkpoint_artifact_is_a_model_but_no_checkpoint(store, tmp_path):
    checkpoint, model = log_checkpoint(store, tmp_path)
    files = {item.path for item in store.list_logged_model_artifacts(model.model_id)}
    assert files == MODEL_FILES
    copy = Path(mlflow.artifacts.download_artifacts(model.artifact_location, dst_path=str(tmp_path / "copy")))
    manifest = load_manifest(copy, verify="sha256")
    assert manifest.provenance["part_of"] == load_manifest(checkpoint).sha256
    assert model_identity(copy)["content_sha256"] == manifest.sha256  # what fine-tuning checks first
    load_model(BertForPreTraining, copy)
    with pytest.raises(ArtifactError, match="expected a checkpoint"):
        load_manifest(copy, kind="checkpoint")


@pytest.mark.parametrize("links", [True, False])
def test_checkpoint_that_is_removed_during_its_upload_is_uploaded_whole(links, store, tmp_path, monkeypatch):
    def remove_first(client, model_id, folder):
        shutil.rmtree(tmp_path / "step-00000005", ignore_errors=True)
        return upload(client, model_id, folder)

    upload = mlflow.MlflowClient.log_model_artifacts
    monkeypatch.setattr(mlflow.MlflowClient, "log_model_artifacts", remove_first)
    if not links:
        monkeypatch.setattr("os.link", mock.Mock(side_effect=OSError(errno.EXDEV, "Invalid cross-device link")))
    checkpoint, model = log_checkpoint(store, tmp_path)
    assert not checkpoint.exists()
    assert model.status == "READY"
    files = {item.path for item in store.list_logged_model_artifacts(model.model_id)}
    assert files == MODEL_FILES


def test_files_may_take_longer_than_other_requests(store, tmp_path, monkeypatch):
    def record(name):
        def send(*arguments, **settings):
            timeouts[name] = mlflow.environment_variables.MLFLOW_HTTP_REQUEST_TIMEOUT.get()
            return real(*arguments, **settings)

        real = getattr(mlflow.MlflowClient, name)
        monkeypatch.setattr(mlflow.MlflowClient, name, send)

    timeouts = {}
    for name in ("log_artifact", "log_model_artifacts", "finalize_logged_model"):
        record(name)
    with open_tracker(tmp_path / "run") as run:
        run.log_checkpoint(make_checkpoint(tmp_path, 5), 5, {"held_out/mlm_loss": 2.5})
        run.log_artifact(Path(__file__))
    assert timeouts.pop("finalize_logged_model") == 10
    assert min(timeouts.values()) >= 600
    assert len(timeouts) == 2


def test_checkpoint_of_a_training_that_was_moved_is_uploaded(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checkpoint = make_checkpoint(Path("run/checkpoints"), 5)
    with monkeypatch.context() as down:
        down.setattr("bert_model.training.mlflow_sync.open_client", mock.Mock(side_effect=ConnectionError))
        with open_tracker(Path("run")) as run:
            run.log_checkpoint(checkpoint, 5, {"held_out/mlm_loss": 2.5})
    Path("run").rename("moved")
    monkeypatch.chdir("moved")
    assert sync(tmp_path / "moved")
    model = store.get_logged_model(sync_state(tmp_path / "moved")["models"]["5"])
    assert {item.path for item in store.list_logged_model_artifacts(model.model_id)} == MODEL_FILES


def test_checkpoint_without_upload_has_path_and_hash(store, tmp_path):
    checkpoint, model = log_checkpoint(store, tmp_path, upload_checkpoints=False)
    assert model.tags["path"] == str(checkpoint)
    assert len(model.tags["sha256"]) == 64
    assert store.list_logged_model_artifacts(model.model_id) == []


def test_run_lists_data_sets_and_keeps_an_edited_description(store, tmp_path):
    corpus = {"name": "corpus", "kind": "corpus", "sha256": "ab" * 32, "context": "source"}
    instances = {"name": "instances-16", "kind": "instances", "sha256": "cd" * 32, "context": "training", "num_rows": 7}
    first = open_tracker(tmp_path / "run", inputs=[instances, corpus], note="A *small* run.")
    first.close("KILLED")
    assert store.get_run(first.run_id).data.tags["mlflow.note.content"] == "A *small* run."
    store.set_tag(first.run_id, "mlflow.note.content", "edited")
    open_tracker(tmp_path / "run", inputs=[instances, corpus], note="A *small* run.").close()
    run = store.get_run(first.run_id)
    assert run.data.tags["mlflow.note.content"] == "edited"
    found = {
        item.dataset.name: (item.dataset.digest, json.loads(item.dataset.source)["sha256"], item.tags[0].value)
        for item in run.inputs.dataset_inputs
    }
    assert found == {
        "corpus": (("ab" * 32)[:36], "ab" * 32, "source"),
        "instances-16": (("cd" * 32)[:36], "cd" * 32, "training"),
    }
    profiles = {item.dataset.profile for item in run.inputs.dataset_inputs}
    assert profiles == {None, '{"num_rows": 7}'}


@pytest.fixture
def own_store(empty_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client of the home's own database, with the experiment "Default" that MLflow makes."""
    monkeypatch.setenv("BERT_HOME", str(tmp_path))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return open_client()


def test_experiments_are_described_and_an_empty_default_is_deleted_once(own_store, tmp_path):
    assert [experiment.name for experiment in own_store.search_experiments()] == ["Default"]
    open_tracker(tmp_path / "run", experiment="pretraining").close()
    open_tracker(tmp_path / "own", experiment="mine").close()
    found = {experiment.name: experiment.tags for experiment in own_store.search_experiments()}
    assert set(found) == {"pretraining", "mine"}
    assert "one run each" in found["pretraining"]["mlflow.note.content"]
    assert "mlflow.note.content" not in found["mine"]
    own_store.restore_experiment("0")  # by a person: it stays
    open_tracker(tmp_path / "third", experiment="finetuning").close()
    assert "Default" in {experiment.name for experiment in own_store.search_experiments()}


@pytest.mark.parametrize(
    ("uri", "place"),
    [
        ("postgresql+psycopg2://mlflow@database/mlflow", "artifacts"),
        ("sqlite:////srv/mlflow.db", "artifacts"),
        ("http://127.0.0.1:9", None),
    ],
)
def test_artifacts_are_in_the_home_unless_a_server_has_them(tmp_path, monkeypatch, uri, place):
    monkeypatch.setenv("BERT_HOME", str(tmp_path))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    client = mock.Mock()
    client.get_experiment_by_name.return_value = None
    experiment_id(client, "mine")
    client.create_experiment.assert_called_once_with("mine", place and (tmp_path / place).as_uri(), {})


def test_default_experiment_with_runs_is_kept(own_store, tmp_path):
    own_store.create_run("0")
    open_tracker(tmp_path / "run", experiment="pretraining").close()
    assert {experiment.name for experiment in own_store.search_experiments()} == {"pretraining", "Default"}


@pytest.mark.parametrize("name", ["a?b", "a%20b"])
def test_home_whose_database_would_be_another_file_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.setenv("BERT_HOME", str(tmp_path / name))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for address in (tracking_uri, lambda: BertHome().tracking_uri):
        with pytest.raises(UsageError, match=r"expected a path without '\?' and '%'"):
            address()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert tracking_uri() == BertHome().tracking_uri == "http://127.0.0.1:9"


def test_checkpoint_that_was_pruned_before_its_upload_is_no_ready_model(store, tmp_path):
    checkpoint = make_checkpoint(tmp_path, 5)
    with open_tracker(tmp_path / "run") as run:
        run.log_checkpoint(tmp_path / "pruned", 4, {"held_out/mlm_loss": 2.5})
        run.log_checkpoint(checkpoint, 5, {"held_out/mlm_loss": 2.0})
    models = {step: store.get_logged_model(id) for step, id in sync_state(tmp_path / "run")["models"].items()}
    assert {step: str(model.status) for step, model in models.items()} == {"4": "FAILED", "5": "READY"}
    assert models["4"].tags["files"] == "removed before the upload"
    assert [metric.value for metric in models["4"].metrics] == [2.5]
    # A model that was uploaded stays ready when the log is copied again after its checkpoint was pruned.
    shutil.rmtree(checkpoint)
    state = sync_state(tmp_path / "run") | {"copied_lines": 0, "models": {}}
    (tmp_path / "run" / "tracking.json").write_text(json.dumps(state))
    assert sync(tmp_path / "run")
    assert str(store.get_logged_model(models["5"].model_id).status) == "READY"


def intercept(patched: pytest.MonkeyPatch, names: Sequence[str], refuse: Callable[..., bool], *, sent: bool) -> None:
    """Let requests of MLflow's client fail where `refuse(arguments)` says so: before or after they are sent."""

    def wrap(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **settings: Any) -> Any:
            fails = refuse(settings)
            result = real(*arguments, **settings) if sent or not fails else None
            if fails:
                raise ConnectionError("connection refused")
            return result

        return call

    for name in names:
        patched.setattr(mlflow.MlflowClient, name, wrap(getattr(mlflow.MlflowClient, name)))


def test_copy_interrupted_anywhere_continues_without_duplicates(store, tmp_path, monkeypatch):
    checkpoint = make_checkpoint(tmp_path, 2)
    calls = itertools.cycle([False, True])  # every second request loses its answer
    names = ["get_experiment_by_name", "search_runs", "create_run", "get_run", "log_batch", "set_terminated"]
    names += ["search_logged_models", "create_logged_model", "log_model_artifacts", "finalize_logged_model"]
    with monkeypatch.context() as patched:
        intercept(patched, names, lambda _: next(calls), sent=True)
        run = open_tracker(tmp_path / "run", tags={"kind": "test"}, params={"seed": 1})
        for step in (1, 2):
            run.record("train", step, {"train/loss": float(step)})
        run.log_checkpoint(checkpoint, 2, {"held_out/mlm_loss": 2.5})
        run.close()
        for _ in range(20):  # each meets another request
            sync(tmp_path / "run")
    for _ in range(2):
        assert sync(tmp_path / "run")
    run_id = sync_state(tmp_path / "run")["run_id"]
    experiment = store.get_run(run_id).info.experiment_id
    key = sync_state(tmp_path / "run")["key"]
    assert len(store.search_runs([experiment], filter_string=f"tags.`bert.key` = '{key}'")) == 1
    assert history(store, run_id, "train/loss") == [(1, 1.0), (2, 2.0)]
    assert history(store, run_id, "held_out/mlm_loss") == [(2, 2.5)]
    models = store.search_logged_models([experiment], filter_string=f"source_run_id = '{run_id}'")
    assert [(model.name, str(model.status)) for model in models] == [("step-00000002", "READY")]
    assert store.get_run(run_id).info.status == "FINISHED"


def test_params_of_a_failed_request_are_sent_again(store, tmp_path, monkeypatch):
    failures = [True]
    intercept(
        monkeypatch, ["log_batch"], lambda sent: bool(sent.get("params") and failures and failures.pop()), sent=False
    )
    run = open_tracker(tmp_path / "run", params={"seed": "7"})
    run.record("train", 1, {"train/loss": 3.0})
    copied(run, 1)
    run.close()
    assert not failures
    assert store.get_run(run.run_id).data.params["seed"] == "7"


def test_failed_request_is_repeated_by_the_same_training(store, tmp_path, monkeypatch, caplog):
    broken: list[bool] = []  # the server goes away once the run exists: requests with metrics do not arrive
    intercept(monkeypatch, ["log_batch"], lambda sent: bool(broken and sent.get("metrics")), sent=False)
    run = open_tracker(tmp_path / "run")
    run.record("train", 1, {"train/loss": 3.0})
    copied(run, 1)
    broken.append(True)
    run.record("train", 2, {"train/loss": 2.0})
    wait_until(lambda: "connection refused; training continues" in caplog.text)
    broken.clear()
    run.record("train", 3, {"train/loss": 1.0})
    run.close()
    assert history(store, run.run_id, "train/loss") == [(1, 3.0), (2, 2.0), (3, 1.0)]


def test_server_that_does_not_answer_delays_the_end_by_its_timeout_only(store, tmp_path, monkeypatch, caplog):
    released = threading.Event()
    with monkeypatch.context() as patched:
        intercept(patched, ["log_batch"], lambda _: not released.wait(20), sent=False)
        run = open_tracker(tmp_path / "run")
        run.record("train", 1, {"train/loss": 3.0})
        started = time.monotonic()
        run.close(timeout_seconds=0.1)
        assert time.monotonic() - started < 5
        assert "it did not answer within 0 s" in caplog.text
        released.set()
        wait_until(lambda: sync_state(tmp_path / "run")["status_sent"] == "FINISHED")
    assert history(store, run.run_id, "train/loss") == [(1, 3.0)]


def test_copy_of_a_finished_log_has_time_for_large_files(store, tmp_path, monkeypatch):
    def upload_slowly(client, model_id, folder):
        time.sleep(0.5)
        return upload(client, model_id, folder)

    with monkeypatch.context() as patched:  # the training ends while MLflow is down
        intercept(patched, ["get_experiment_by_name"], lambda _: True, sent=False)
        with open_tracker(tmp_path / "run") as run:
            run.log_checkpoint(make_checkpoint(tmp_path, 5), 5)
    upload = mlflow.MlflowClient.log_model_artifacts
    monkeypatch.setattr(mlflow.MlflowClient, "log_model_artifacts", upload_slowly)
    monkeypatch.setattr(mlflow_sync, "CLOSE_TIMEOUT_SECONDS", 0.4)
    assert sync(tmp_path / "run")
    assert sync_state(tmp_path / "run")["status_sent"] == "FINISHED"


def test_server_down_loses_no_metrics_and_sync_sends_them(database, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://user:hunter2@127.0.0.1:{free_port()}")
    monkeypatch.setenv("BERT_HOME", str(tmp_path / "home"))
    run = open_tracker(tmp_path / "run")
    run.record("train", 1, {"train/loss": 3.0})
    assert run.run_id is None
    run.close(timeout_seconds=20)
    assert [line["step"] for line in lines(tmp_path / "run")] == [1]
    assert "does not have everything" in caplog.text
    assert "hunter2" not in caplog.text + (tmp_path / "run" / "tracking.json").read_text()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", database)
    assert sync(tmp_path / "run")
    run_id = sync_state(tmp_path / "run")["run_id"]
    assert history(open_client(database), run_id, "train/loss") == [(1, 3.0)]


def test_without_mlflow_installed_only_the_file_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("BERT_HOME", str(tmp_path / "home"))
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with open_tracker(tmp_path / "run") as run:
        run.record("train", 1, {"train/loss": 3.0})
        assert run.run_id is None
    assert lines(tmp_path / "run")[0]["metrics"] == {"train/loss": 3.0}


def test_without_experiment_no_client_is_opened(tmp_path, monkeypatch):
    monkeypatch.setattr(mlflow_sync, "open_client", lambda uri: pytest.fail("asked for a client"))
    with open_tracker(tmp_path / "run", experiment="") as run:
        run.record("train", 1, {"train/loss": 3.0})
        assert run.run_id is None
    assert sync(tmp_path / "run")


def test_child_run_has_parent_tags_and_artifacts(store, tmp_path, monkeypatch):
    (tmp_path / "plot.txt").write_text("a plot")
    with monkeypatch.context() as patched:  # its parent has no run yet, so the server is not asked
        asked: list[Any] = []
        intercept(patched, ["get_experiment_by_name"], asked.append, sent=True)
        child = open_tracker(tmp_path / "run" / "a", run_name="a", is_child=True)
        assert child.run_id is None
        assert not asked
    with open_tracker(tmp_path / "run") as parent:
        child.record("evaluation", 0, {"dev/accuracy": 80.0})
        child.log_artifact(tmp_path / "plot.txt", "plots")
        child.set_tags({"kind": "trial"})
        copied(child, 2)
    child.close()
    found = store.get_run(child.run_id)
    assert found.data.tags["mlflow.parentRunId"] == parent.run_id
    assert found.data.tags["kind"] == "trial"
    assert found.data.metrics == {"dev/accuracy": 80.0}
    assert [item.path for item in store.list_artifacts(child.run_id, "plots")] == ["plots/plot.txt"]


def test_full_disk_ends_a_training_with_the_path_of_its_log(tmp_path):
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    log = Tracker(tmp_path, experiment="", run_name="small")
    with pytest.raises(DiskFullError, match=r"metrics.jsonl: cannot be written: No space left on device; [\d,]+ bytes"):
        log.record("train", 1)
    with pytest.raises(OSError, match="No space left"):  # the line is still in the buffer
        log.close()


def test_torn_line_is_ended_and_skipped(store, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text('{"event": "train", "step": 1, "metr')
    with open_tracker(tmp_path / "run") as run:
        run.record("train", 2, {"train/loss": 1.0})
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count("\n") == 2
    assert history(store, run.run_id, "train/loss") == [(2, 1.0)]


def test_any_name_of_a_metric_reaches_mlflow(store, tmp_path):
    sent = {
        "exam/": "exam_",
        "exam/a//b": "exam_a__b",
        "exam/..": "exam_..",
        "exam/number (verbs)": "exam/number _verbs_",
        "exam/" + 300 * "x": "exam/" + 245 * "x",
    }
    with open_tracker(tmp_path / "run") as run:
        run.record("exam", 1, dict.fromkeys(sent, 50.0))
    for key in sent.values():
        assert history(store, run.run_id, key) == [(1, 50.0)], key


def test_secrets_are_redacted(store, tmp_path):
    params = {"hub": {"api_key": "k1"}, "source": "https://me:hunter2@example.org/x"}
    with open_tracker(tmp_path / "run", params=params) as run:
        run.record("start", 0)
    found = store.get_run(run.run_id).data.params
    assert found == {"hub.api_key": "(redacted)", "source": "https://(redacted)@example.org/x"}
    assert "hunter2" not in (tmp_path / "run" / "tracking.json").read_text()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:hunter2@host/x", "https://(redacted)@host/x"),
        ("https://me:hunter/2@host:5000/x", "https://(redacted)@host:5000/x"),
        ("https://me:hunt@er2@host", "https://(redacted)@host"),
        ("https://me:hunt@er/2@host", "https://(redacted)@host"),
        ("at https://token@host/x and https://me:p@b", "at https://(redacted)@host/x and https://(redacted)@b"),
        ("http://host:5000/x", "http://host:5000/x"),
        ("s3://bucket/a@b, models:/bert@champion", "s3://bucket/a@b, models:/bert@champion"),
    ],
)
def test_passwords_of_urls_are_redacted_whole(text, shown):
    assert without_password(text) == without_password(shown) == shown


@pytest.mark.parametrize("length", range(250, 300, 7))
def test_error_is_redacted_before_it_is_cut(length):
    text = first_line(OSError(f"{'x' * length} https://me:hunter2@example.org/path"))
    assert len(text) <= 300
    assert not re.search("hunter2|me:h", text)
    value = "x" * (MAX_PARAM_LENGTH - 300 + length) + " https://me:hunter2@example.org/path"
    assert not re.search("hunter2|me:h", flat_params({"key": value})["key"])


@pytest.mark.parametrize("password", ["hunter2", "hunt@er2", "hunt/er2"])
def test_empty_variables_do_not_hide_the_credentials_of_an_address(password, monkeypatch):
    names = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")
    for name in names:
        monkeypatch.setenv(name, "")
    assert credentials_apart(f"https://alice:{password}@host:5000/base") == "https://host:5000/base"
    assert [os.environ[name] for name in names] == ["alice", password]
    assert credentials_apart("https://bob:other@host") == "https://host"
    assert [os.environ[name] for name in names] == ["alice", password]  # values that the user has set are kept
    assert credentials_apart("http://host:5000/a@b") == "http://host:5000/a@b"


def test_damaged_state_is_one_sentence(tmp_path):
    (tmp_path / "tracking.json").write_text("{")
    with pytest.raises(BertError, match=r"tracking\.json: not a tracking record"):
        open_tracker(tmp_path)
