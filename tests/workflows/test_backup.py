"""Backup of a home in use, and restoring it to another path with runs, versions, aliases and artifacts."""

import contextlib
import datetime
import errno
import json
import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any
from unittest import mock

import dagster as dg
import miniature
import pytest
from spoiled import flip_byte
from training_processes import empty_job

from bert_model.registry import operations
from bert_model.training.home import settle
from bert_model.training.mlflow_store import open_client
from bert_pipeline.atomic import locked
from bert_pipeline.errors import ArtifactError, InputError, UsageError
from bert_pipeline.manifest import load_manifest, publishing
from workflows import backup
from workflows.definitions import defs
from workflows.defs import upkeep
from workflows.defs.automation import why_not_requested
from workflows.defs.upkeep import copy_file, create_backup, remove_partitions, restore_backup
from workflows.lib.instance import open_instance
from workflows.lib.resources import BertHome

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # the miniature run is in the first test's time

MODEL = "bert-tiny-sst2"


@pytest.fixture
def first(finished_home: BertHome, clean_environment: Path, tmp_path: Path, monkeypatch) -> BertHome:
    """A copy of the finished run's home that the test may change."""
    copy = BertHome(directory=str(tmp_path / "first"))
    shutil.copytree(finished_home.path, copy.path, ignore=shutil.ignore_patterns("cache", "locks"))
    monkeypatch.setenv("BERT_HOME", str(copy.path))
    return copy


def test_restored_home_has_runs_versions_aliases_and_artifacts(first, tmp_path, monkeypatch):
    with operations.registry_client() as client:
        client.set_registered_model_alias(MODEL, operations.CHAMPION, "1")
    versions = operations.list_models()
    with mock.patch.dict(os.environ), open_instance(first) as instance:
        underway = instance.create_run_for_job(empty_job, status=dg.DagsterRunStatus.STARTED).run_id
    for folder in ("archive", "predictions", "inputs"):
        (first.path / folder / "a").mkdir(parents=True)
        (first.path / folder / "a" / "file").write_text(folder)
    with contextlib.closing(sqlite3.connect(first.path / "mlflow.db")) as writer:
        writer.execute("insert into experiments (name, lifecycle_stage) values ('half-written', 'active')")
        manifest = create_backup(first, tmp_path / "backup")  # while another process is in a transaction
        writer.rollback()
    assert manifest.counts["parts"] == 3
    assert {f"{folder}/a/file" for folder in ("archive", "predictions", "inputs")} <= set(manifest.files)
    shutil.rmtree(first.path)  # what is restored must not live on what is gone

    second = BertHome(directory=str(tmp_path / "a second home"))
    monkeypatch.setenv("BERT_HOME", str(second.path))
    restore_backup(tmp_path / "backup", second)
    assert operations.list_models() == versions
    assert operations.get_version(f"models:/{MODEL}@champion").version == 1
    for version in versions:
        local = operations.download(f"models:/{version.name}/{version.version}")
        assert load_manifest(local, verify="sha256").sha256 == version.content_sha256

    assert (second.path / "predictions" / "a" / "file").read_text() == "predictions"

    client = open_client(second.tracking_uri)
    names = {experiment.name for experiment in client.search_experiments()}
    assert {"reports", "finetuning", "pretraining"} <= names
    assert "half-written" not in names
    (run,) = client.search_runs([client.get_experiment_by_name("reports").experiment_id])
    report = client.download_artifacts(run.info.run_id, "report.md", str(tmp_path))
    assert miniature.DUMP in Path(report).read_text(encoding="utf-8")
    assert str(first.path) not in "\n".join(texts_of(second.path / "mlflow.db"))

    with open_instance(second) as instance:
        assert len(instance.get_runs()) >= 3 + len(miniature.TASKS)
        assert instance.get_latest_materialization_event(dg.AssetKey("corpus")) is not None
        assert instance.get_dynamic_partitions("dump") == [miniature.DUMP]
        assert instance.get_run_by_id(underway).status == dg.DagsterRunStatus.FAILURE


@pytest.mark.parametrize("how", [shutil.move, shutil.copytree])
def test_home_that_was_moved_or_copied_is_read_where_it_is(first, tmp_path, monkeypatch, caplog, how):
    versions = operations.list_models()
    (model,) = [version for version in versions if version.name == MODEL]
    with mock.patch.dict(os.environ), open_instance(first) as instance:
        details = [run.run_config["loggers"]["console"]["config"]["details"] for run in instance.get_runs()]
    assert set(details) == {f"logs/{miniature.DUMP}.log"}  # executed again, a run writes into the home that it is in
    second = BertHome(directory=str(tmp_path / "a second é"))
    caplog.clear()
    how(first.path, second.path)
    shutil.rmtree(first.artifacts, ignore_errors=True)  # what is read must not be that of the old place

    monkeypatch.setenv("BERT_HOME", str(second.path))
    for _ in range(2):  # said once
        assert operations.list_models() == versions
    local = operations.download(f"models:/{MODEL}/1")
    assert load_manifest(local, verify="sha256").sha256 == model.content_sha256
    (line,) = [record.getMessage() for record in caplog.records if "was moved or copied" in record.getMessage()]
    assert line.startswith(f"{second.path} was moved or copied from {first.path}: ")
    databases = [second.path / "mlflow.db", *(second.path / "dagster").rglob("*.db")]
    assert len(databases) > 3
    for database in databases:
        assert f"{first.path}/" not in "\n".join(texts_of(database))
    for state in second.dump_directory(miniature.DUMP).glob("pretraining/*/tracking.json"):
        assert json.loads(state.read_text())["tracking_uri"] == second.tracking_uri
    with open_instance(second) as instance:
        assert len(instance.get_runs()) == len(details)


def test_records_of_searches_and_trainings_move_with_their_home(clean_environment, tmp_path):
    first = small_home(tmp_path / "first")
    settle(first.path)
    dump = first.dump_directory("enwiki-1")
    for name in ("finetuning/.tracking/sst2-1/tracking.json", "finetuning/.tracking/sst2-1/trial/tracking.json"):
        (dump / name).parent.mkdir(parents=True)
        (dump / name).write_text(json.dumps({"tracking_uri": first.tracking_uri}))
    (dump / "pretraining" / "1").mkdir(parents=True)
    (dump / "pretraining" / "1" / "configuration.json").write_text(json.dumps({"exam": str(dump / "exam")}))
    second = BertHome(directory=str(tmp_path / "second"))
    first.path.rename(second.path)
    settle(second.path)
    moved = second.dump_directory("enwiki-1")
    assert {json.loads(path.read_text())["tracking_uri"] for path in moved.rglob("tracking.json")} == {
        second.tracking_uri
    }
    stored = json.loads((moved / "pretraining" / "1" / "configuration.json").read_text())
    assert stored == {"exam": str(moved / "exam")}


def test_home_is_not_taken_over_from_under_its_ui(clean_environment, tmp_path, monkeypatch):
    first = small_home(tmp_path / "first")
    settle(first.path)
    second = BertHome(directory=str(tmp_path / "second"))
    first.path.rename(second.path)
    with locked(second.path / "locks" / "ui.lock"), pytest.raises(UsageError, match="while its UI runs; end the UI"):
        settle(second.path)
    assert artifact_uris(second) == [first.artifacts.as_uri()]
    settle(second.path)
    assert artifact_uris(second) == [second.artifacts.as_uri()]


def test_home_behind_a_link_is_the_same_home(clean_environment, tmp_path):
    first = small_home(tmp_path / "first")
    settle(first.path)
    (tmp_path / "link").symlink_to(first.path)
    settle(tmp_path / "link")
    assert artifact_uris(first) == [first.artifacts.as_uri()]


def test_move_that_cannot_be_recorded_is_one_sentence(clean_environment, tmp_path, monkeypatch):
    first = small_home(tmp_path / "first")
    settle(first.path)
    second = BertHome(directory=str(tmp_path / "second"))
    first.path.rename(second.path)
    with contextlib.closing(sqlite3.connect(second.path / "mlflow.db", isolation_level=None)) as other:
        other.execute("begin exclusive")
        with pytest.raises(ArtifactError, match=r"could not be changed \(database is locked\); end what uses them"):
            settle(second.path)
    settle(second.path)
    assert artifact_uris(second) == [second.artifacts.as_uri()]


def texts_of(database: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        return list(connection.iterdump())


def test_version_registered_during_backup_is_whole_or_absent(first, tmp_path, monkeypatch):
    copy_tree = upkeep.copy_tree

    def register_between(source: Path, target: Path) -> None:
        if source == first.artifacts:
            operations.register(first.finetuning(miniature.DUMP, "sst2"), "bert-small-sst2")
        copy_tree(source, target)

    monkeypatch.setattr(upkeep, "copy_tree", register_between)
    create_backup(first, tmp_path / "backup")
    second = BertHome(directory=str(tmp_path / "second"))
    restore_backup(tmp_path / "backup", second)
    monkeypatch.setenv("BERT_HOME", str(second.path))
    shutil.rmtree(first.path)
    for version in operations.list_models():
        assert operations.download(f"models:/{version.name}/{version.version}").is_dir()


def test_card_that_is_rewritten_during_a_backup_is_that_of_its_database(clean_environment, tmp_path, monkeypatch):
    home = small_home(tmp_path / "home")
    card = home.artifacts / "models" / "m-1" / "artifacts" / "model_card.md"
    card.parent.mkdir(parents=True)
    card.write_text("its hash is in the database")
    copy_tree = upkeep.copy_tree

    def rewrite_between(source: Path, target: Path) -> None:
        if source == home.artifacts:
            card.write_text("another")
        copy_tree(source, target)

    monkeypatch.setattr(upkeep, "copy_tree", rewrite_between)
    create_backup(home, tmp_path / "backup")
    copied = tmp_path / "backup" / card.relative_to(home.path)
    assert copied.read_text() == "its hash is in the database"
    assert (tmp_path / "backup" / "artifacts" / "a.txt").is_file()


def test_database_copy_is_a_snapshot_between_transactions(tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / "live.db")) as live:
        live.execute("pragma journal_mode=wal")
        live.execute("create table t (x)")
        live.execute("insert into t values (1)")
        live.commit()
        live.execute("insert into t values (2)")
        copy_file(tmp_path / "live.db", tmp_path / "copy.db")
    with contextlib.closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
        assert copy.execute("select x from t").fetchall() == [(1,)]
        assert copy.execute("pragma integrity_check").fetchone() == ("ok",)


def small_home(directory: Path) -> BertHome:
    """Return a home with a database and an artifact."""
    home = BertHome(directory=str(directory))
    home.artifacts.mkdir(parents=True)
    (home.artifacts / "a.txt").write_text("artifact " * 50, encoding="utf-8")
    with contextlib.closing(sqlite3.connect(home.path / "mlflow.db")) as connection, connection:
        connection.execute("create table runs (artifact_uri varchar)")
        connection.execute("insert into runs values (?)", (home.artifacts.as_uri(),))
    return home


def artifact_uris(home: BertHome) -> list[str]:
    with contextlib.closing(sqlite3.connect(home.path / "mlflow.db")) as connection:
        return [uri for (uri,) in connection.execute("select artifact_uri from runs")]


@pytest.mark.parametrize(("old", "new"), [("data", "data/bert"), ("data/bert", "data"), ("a b", "a b/c d")])
def test_home_restored_below_or_above_the_old_path_has_its_artifacts(clean_environment, tmp_path, old, new):
    first = small_home(tmp_path / old)
    elsewhere = f"/mnt{first.artifacts}/1"
    with contextlib.closing(sqlite3.connect(first.path / "mlflow.db")) as connection, connection:
        connection.executemany("insert into runs values (?)", [(str(first.artifacts / "1"),), (elsewhere,), (None,)])
    create_backup(first, tmp_path / "backup")
    shutil.rmtree(first.path)
    second = BertHome(directory=str(tmp_path / new))
    restore_backup(tmp_path / "backup", second)
    assert artifact_uris(second) == [second.artifacts.as_uri(), str(second.artifacts / "1"), elsewhere, None]


def test_damaged_backup_is_refused_and_leaves_no_home(clean_environment, tmp_path):
    create_backup(small_home(tmp_path / "first"), tmp_path / "backup")
    flip_byte(tmp_path / "backup" / "artifacts" / "a.txt")
    with pytest.raises(ArtifactError, match="changed or damaged"):
        restore_backup(tmp_path / "backup", BertHome(directory=str(tmp_path / "second")))
    assert not (tmp_path / "second").exists()


def test_existing_home_or_backup_is_not_overwritten(clean_environment, tmp_path, monkeypatch, capsys):
    home = small_home(tmp_path / "first")
    monkeypatch.setenv("BERT_HOME", str(home.path))
    assert backup.main(["create", str(tmp_path / "backup")]) == 0
    assert f"of {home.path}" in capsys.readouterr().out
    assert backup.main(["create", str(tmp_path / "backup")]) == 1
    assert "give a new directory for each backup" in capsys.readouterr().err
    assert backup.main(["restore", str(tmp_path / "backup")]) == 1
    assert "not empty" in capsys.readouterr().err
    monkeypatch.setenv("BERT_HOME", str(tmp_path / "nothing"))
    assert backup.main(["create", str(tmp_path / "other")]) == 1
    assert "holds neither runs nor models" in capsys.readouterr().err


def test_parts_stored_by_a_server_are_named(clean_environment, tmp_path, monkeypatch, capsys):
    home = small_home(tmp_path / "first")
    monkeypatch.setenv("BERT_HOME", str(home.path))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql+psycopg2://mlflow:s3cret@db/mlflow")
    (home.path / "dagster").mkdir()
    (home.path / "dagster" / "dagster.yaml").write_text("storage:\n  postgres: {}\n", encoding="utf-8")
    assert backup.main(["create", str(tmp_path / "backup")]) == 0
    said = capsys.readouterr().err
    assert "MLflow's database is kept elsewhere, by what MLFLOW_TRACKING_URI names" in said
    assert "Dagster's database is kept elsewhere" in said
    assert "s3cret" not in said

    # The runs of a server may be going on in the first home: restoring its settings ends none.
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    monkeypatch.setattr(upkeep, "open_instance", mock.Mock(side_effect=AssertionError("opened")))
    restore_backup(tmp_path / "backup", BertHome(directory=str(tmp_path / "second")))
    assert (tmp_path / "second" / "dagster" / "dagster.yaml").is_file()


@pytest.mark.parametrize("uri", ["sqlite:///{}/first/mlflow.db", "http://127.0.0.1:5055"])
def test_registry_of_another_home_is_not_restored_over(clean_environment, tmp_path, monkeypatch, uri):
    create_backup(small_home(tmp_path / "first"), tmp_path / "backup")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri.format(tmp_path))
    with pytest.raises(UsageError, match="MLFLOW_TRACKING_URI leads out of BERT_HOME"):
        restore_backup(tmp_path / "backup", BertHome(directory=str(tmp_path / "second")))
    assert not (tmp_path / "second").exists()


def test_restore_with_a_wrong_folder_of_tasks_writes_nothing(clean_environment, tmp_path, monkeypatch):
    create_backup(small_home(tmp_path / "first"), tmp_path / "backup")
    monkeypatch.setenv("BERT_TASKS", str(tmp_path / "unmounted"))
    with pytest.raises(InputError, match="unmounted: no such folder"):
        restore_backup(tmp_path / "backup", BertHome(directory=str(tmp_path / "second")))
    assert not (tmp_path / "second").exists()


def back_up(home: BertHome, instance: dg.DagsterInstance, **config: Any) -> dg.ExecuteInProcessResult:
    return upkeep.back_up.execute_in_process(
        instance=instance,
        resources={"home": home},
        run_config={"ops": {"back_up": {"config": config}}},
        raise_on_error=False,
    )


def test_job_backs_up_and_keeps_the_newest(instance, tmp_path, monkeypatch):
    home, folder = small_home(tmp_path / "home"), tmp_path / "backups"
    create_backup(home, folder / "bert-20260101T020000")
    create_backup(small_home(tmp_path / "another"), folder / "bert-20250101T020000")
    (folder / "notes").mkdir()
    (folder / "notes.txt").write_text("mine", encoding="utf-8")
    killed, running = (folder / f".bert-20260102T020000.partial-{digit * 32}" for digit in "01")
    for draft in (killed, running):
        (draft / "artifacts").mkdir(parents=True)
    monkeypatch.setenv("BERT_BACKUPS", str(folder))
    with locked(running, directory=True):
        assert back_up(home, instance, keep=1).success
    assert not killed.exists()
    shutil.rmtree(running)  # which was kept
    (newest,) = {path.name for path in folder.iterdir()} - {"notes", "notes.txt", "bert-20250101T020000"}
    assert newest > "bert-20260101T020000"
    assert json.loads((home.path / "last_backup.json").read_text())["directory"] == str(folder / newest)
    with mock.patch.dict(os.environ):
        del os.environ["DAGSTER_HOME"], os.environ["MLFLOW_TRACKING_URI"]  # of the job's process
        restore_backup(folder / newest, BertHome(directory=str(tmp_path / "second")))
    assert (tmp_path / "second" / "artifacts" / "a.txt").is_file()


def test_schedule_starts_the_job_at_night(instance):
    repository = defs().get_repository_def()
    night = datetime.datetime(2026, 11, 5, 2, 0, tzinfo=datetime.UTC)
    schedule = repository.get_schedule_def("nightly_backup")
    with dg.build_schedule_context(instance=instance, scheduled_execution_time=night) as context:
        (request,) = schedule.evaluate_tick(context).run_requests
    assert schedule.job_name == upkeep.back_up.name == "backup"
    assert dg.validate_run_config(repository.get_job("backup"), request.run_config)  # all is in BERT_BACKUPS


def test_job_without_a_folder_says_which_variable_names_one(instance, tmp_path, monkeypatch):
    monkeypatch.delenv("BERT_BACKUPS", raising=False)
    result = back_up(small_home(tmp_path / "home"), instance)
    (event,) = [event for event in result.all_events if event.is_step_failure]
    assert "BERT_BACKUPS is not set" in event.step_failure_data.user_failure_data.description


def test_restored_home_answers_its_inputs_and_knows_its_archive(first, tmp_path, monkeypatch):
    texts = first.prediction_inputs("sst2") / "texts.txt"
    texts.parent.mkdir(parents=True)
    texts.write_text("A delight from beginning to end.\n", encoding="utf-8")
    with operations.registry_client() as client:
        client.set_registered_model_alias(MODEL, operations.CHAMPION, "1")
    with publishing(first.corpus("enwiki-20251101"), kind="corpus", configuration={}, inputs={}) as draft:
        (draft.path / "text").write_text("A text.\n", encoding="utf-8")
    with mock.patch.dict(os.environ), open_instance(first, dumps=("enwiki-20251101",)) as instance:
        config = {"ops": {"remove_partitions": {"config": {"dumps": ["enwiki-20251101"], "dry_run": False}}}}
        done = remove_partitions.execute_in_process(instance=instance, resources={"home": first}, run_config=config)
        assert done.success
    create_backup(first, tmp_path / "backup")
    shutil.rmtree(first.path)

    second = BertHome(directory=str(tmp_path / "second"))
    monkeypatch.setenv("BERT_HOME", str(second.path))
    restore_backup(tmp_path / "backup", second)
    record = json.loads(second.archive_record("enwiki-20251101").read_text(encoding="utf-8"))
    assert record["directory"] == str(second.dump_directory("enwiki-20251101"))  # where its files would be put back
    with open_instance(second) as instance:
        assert instance.get_dynamic_partitions("dump") == [miniature.DUMP]
        assert "was archived" in why_not_requested(instance, second, "enwiki-20251101")
        job = defs().resolve_job_def("predict")
        assert job.execute_in_process(instance=instance, partition_key="sst2").success
    (answers,) = second.predictions("sst2").rglob("texts.txt.jsonl")
    assert "prediction" in json.loads(answers.read_text(encoding="utf-8"))


def test_full_disk_is_one_sentence(clean_environment, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("BERT_HOME", str(small_home(tmp_path / "first").path))
    monkeypatch.setattr(shutil, "copy2", mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    assert backup.main(["create", str(tmp_path / "backup")]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"workflows.backup: {tmp_path}/backup: cannot be written: No space left on device; ")
    assert not (tmp_path / "backup").exists()
