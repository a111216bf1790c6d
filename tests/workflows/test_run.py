"""The command line of a run: invalid arguments are refused before anything runs."""

import contextlib
import errno
import json
import shutil
import sqlite3
import subprocess
from pathlib import Path
from unittest import mock

import dagster as dg
import fsspec
import pytest
import sqlalchemy.exc

from bert_model.presets import preset_path
from bert_pipeline.errors import DiskFullError, InputError, UnavailableError, UsageError
from workflows.defs.finetuning import _find_task
from workflows.lib.instance import open_instance
from workflows.lib.lineage import TASK_SOURCE_NAME
from workflows.lib.resources import (
    TASKS_VARIABLE,
    BertHome,
    checked_dump_name,
)
from workflows.run import build_parser, main, plan_of, print_outcome, run_config


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--preset", "demmo"], 2, "did you mean 'demo'"),
        (["--dump-file", "absent.xml"], 2, "a generated sample"),
        (["--dump", "enwiki-1", "--dump-file", "absent.xml"], 1, "absent.xml: no such file"),
        (["--tasks", "sst3"], 2, "did you mean 'sst2'"),
        (["--glue", "absent"], 1, "absent: no such folder"),
        (["--dev-fraction", "1.5"], 2, "expected a number from 0 to below 1"),
        (["--dump", "../up"], 2, "expected letters, digits"),
        (["--stage", "data", "--tasks", "rte"], 2, "--tasks has no effect on stage data"),
        (["--stage", "report", "--license", "mit"], 2, "--license has no effect on stage report"),
        (["--tasks", ","], 2, "--tasks ,: names no task"),
        (["--dump", "sampelwiki-1"], 2, "--dump sampelwiki-1: is no known, generated or published dump"),
        (["--dump", "sampelwiki-1"], 2, "did you mean 'samplewiki-1'"),
        (["--dump", "samplewiki-2", "--stage", "report"], 2, "has no data yet; run the stage data first (did you"),
        (["--dump", "enwiki-1", "--stage", "finetuning"], 2, "has no data yet"),
    ],
)
def test_invalid_arguments_print_one_line_and_leave_no_files(clean_environment, capsys, words, code, message):
    assert main(words) == code
    captured = capsys.readouterr()
    assert message in captured.err
    assert len(captured.err.strip().splitlines()) == 1
    assert not clean_environment.exists()


def test_stage_of_a_dump_that_exists_is_accepted(clean_environment):
    BertHome().dump_directory("enwiki-1").mkdir(parents=True)
    for words in (["--dump", "enwiki-1", "--stage", "report"], ["--dump", "enwiki-20261101"]):
        assert plan_of(build_parser().parse_args(words)).dump == words[1]


def test_dump_that_could_not_be_had_leaves_no_partition(clean_environment, empty_dagster, monkeypatch):
    shutil.copytree(empty_dagster, clean_environment / "dagster")
    monkeypatch.setattr("workflows.run.run_stage", lambda plan, *_: [plan.dump])
    assert main(["--dump", "simplwiki-20261101", "--stage", "data"]) == 1
    with open_instance() as instance:
        assert instance.get_dynamic_partitions("dump") == ["samplewiki-1"]


def test_cleaning_keeps_the_home_unless_its_deletion_is_confirmed(tmp_path):
    root = Path(__file__).resolve().parents[2]
    shutil.copy(root / "Makefile", tmp_path)
    for folder in ("home/data", "build", "bert_model/__pycache__"):
        (tmp_path / folder).mkdir(parents=True)

    def make(target: str, answer: str = "") -> int:
        words = ["make", target, f"BERT_HOME={tmp_path}/home"]
        return subprocess.run(words, cwd=tmp_path, input=answer, capture_output=True, text=True).returncode

    make("clean")
    assert [(tmp_path / name).exists() for name in ("home/data", "build", "bert_model/__pycache__")] == [True, 0, 0]
    assert make("clean-home") != 0
    assert make("clean-home", "no\n") != 0
    assert (tmp_path / "home" / "data").exists()
    assert make("clean-home", "yes\n") == 0
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("name", ["", "web="])
def test_dump_files_and_task_folders_reach_the_assets(tmp_path, name):
    dump = tmp_path / "enwiki.xml.bz2"
    dump.write_bytes(b"")
    glue = tmp_path / "glue"
    glue.mkdir()
    words = ["--preset", "laptop", "--dump", "enwiki-1", "--dump-file", f"{name}text:{dump}", "--glue", str(glue)]
    plan = plan_of(
        build_parser().parse_args([*words, "--dev-fraction", "0.25", "--tasks", "rte,cola", "--license", "mit"])
    )
    assert plan.tasks == ("cola", "rte")
    assert run_config(plan, "data")["ops"]["dump"]["config"]["sources"] == [f"{name}text:{dump}"]
    config = run_config(plan, "finetuning")["ops"]
    assert config["task_data"]["config"]["glue"] == str(glue)
    assert config["task_data"]["config"]["dev_fraction"] == 0.25
    assert config["registered_model"]["config"]["license"] == "mit"
    config = run_config(plan, "pretraining")["ops"]
    assert config["candidate_model"]["config"]["license"] == "mit"


def test_make_real_takes_several_sources():
    root = Path(__file__).resolve().parents[2]
    words = ["make", "--dry-run", "real", "VENV=none", "LICENSE=mit"]
    for dump, command in (
        (
            "wikipedia=parquet:articles books=text:novels",
            "--dump articles-1 --dump-file 'wikipedia=parquet:articles' --dump-file 'books=text:novels'",
        ),
        ("dumps/enwiki-20261101*.bz2", "--dump enwiki-1 --dump-file 'dumps/enwiki-20261101*.bz2'"),
        ("dumps/", "--dump dumps-1 --dump-file 'dumps/'"),
    ):
        commands = subprocess.run([*words, f"DUMP={dump}"], cwd=root, capture_output=True, text=True, check=True).stdout
        assert command in commands
        assert "--license 'mit'" in commands


@pytest.mark.parametrize(
    ("preset", "command"), [("demo", "make ui "), ("laptop", "BERT_PRESET=laptop make ui "), ("own", "BERT_PRESET=")]
)
def test_outcome_says_how_to_open_the_ui_with_the_same_preset(
    clean_environment, tmp_path, monkeypatch, capsys, preset, command
):
    monkeypatch.chdir(tmp_path)
    if preset == "own":
        preset = shutil.copy(preset_path("laptop"), "own.yaml")
        command += f"{tmp_path / preset} make ui "
    report = BertHome().report("enwiki-1")
    report.mkdir(parents=True)
    plan = plan_of(build_parser().parse_args(["--preset", preset, "--dump", "enwiki-1"]))
    (report / "results.txt").write_text("scores")
    monkeypatch.setattr("workflows.run.without_champion", lambda *_: ["no champion: bert-tiny is not registered"])
    print_outcome(plan, {"report": 1.0})
    outcome = capsys.readouterr().out
    assert outcome.splitlines()[-1].startswith(command)
    assert ("as in the preset demo-full" in outcome) == (preset == "demo")


def test_task_keeps_its_files_where_no_folder_is_given(clean_environment, tmp_path, monkeypatch):
    name, header = "enwiki-1", "index\tsentence1\tsentence2\tlabel\n"
    for folder in ("before", "now", "tasks"):
        (tmp_path / folder / "RTE").mkdir(parents=True)
    for file in ("before/RTE/train.tsv", "now/RTE/train.tsv", "now/RTE/dev.tsv"):
        (tmp_path / file).write_text(header)

    def find(folder="", dump=name):
        task, path, dev_fraction, reason = _find_task(BertHome(), dump, "rte", {}, str(folder), 0.0)
        assert task.name == "rte"
        return path, dev_fraction, reason

    assert find()[2] == "no folder is given for RTE, and BERT_TASKS is not set"
    source = BertHome().task_data(name, "rte") / TASK_SOURCE_NAME
    source.parent.mkdir(parents=True)
    source.write_text(json.dumps({"path": str(tmp_path / "before"), "dev_fraction": 0.25}))
    assert find() == (tmp_path / "before", 0.25, "")
    assert find(tmp_path / "now") == (tmp_path / "now", 0.0, "")
    # A folder of tasks that lacks this one changes nothing; one that has it comes first.
    monkeypatch.setenv(TASKS_VARIABLE, str(tmp_path / "tasks"))
    assert find() == (tmp_path / "before", 0.25, "")
    monkeypatch.setenv(TASKS_VARIABLE, str(tmp_path / "now"))
    assert find() == (tmp_path / "now", 0.0, "")
    # A folder that is not mounted is no reason to skip every task.
    monkeypatch.setenv(TASKS_VARIABLE, str(tmp_path / "unmounted"))
    for task in ("rte", "tickets"):
        with pytest.raises(InputError, match="BERT_TASKS: .*unmounted: no such folder"):
            _find_task(BertHome(), "enwiki-2", task, {}, "", 0.0)
    monkeypatch.delenv(TASKS_VARIABLE)
    shutil.rmtree(tmp_path / "before")
    with pytest.raises(InputError, match="restore the files of the last time, or give their folder"):
        find()


def test_dump_file_in_a_store_keeps_its_url():
    fsspec.filesystem("memory").pipe_file("/bucket/enwiki.xml", b"<mediawiki>")
    words = ["--preset", "laptop", "--dump", "enwiki-1", "--dump-file", "memory://bucket/enwiki.xml"]
    configs = plan_of(build_parser().parse_args(words)).configs
    assert configs["dump"]["sources"] == ["wikipedia:memory://bucket/enwiki.xml"]


@pytest.mark.parametrize("name", ["", "a/b", "..", "-x", "a b", "a" * 101, "a..b"])
def test_dump_names_with_path_parts_are_refused(name):
    with pytest.raises(UsageError):
        checked_dump_name(name)


@pytest.mark.parametrize("task", ["../up", "sst2/../..", "", "sst2\n"])
def test_task_names_with_path_parts_are_refused(task):
    home = BertHome(directory="nowhere")
    for place in (home.task_data, home.finetuning):
        with pytest.raises(UsageError, match="is not known"):
            place("enwiki-1", task)


def test_home_is_below_the_working_directory_unless_named(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert BertHome().path == tmp_path / ".bert"
    assert BertHome().tracking_uri == f"sqlite:///{tmp_path / '.bert' / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    assert BertHome().tracking_uri == "http://127.0.0.1:5000"
    assert isinstance(BertHome().corpus("enwiki-1"), Path)


def test_locked_database_of_dagster_ends_the_command_with_one_sentence(clean_environment, empty_dagster, capsys):
    shutil.copytree(empty_dagster, clean_environment / "dagster")
    database = clean_environment / "dagster" / "history" / "runs.db"
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("begin exclusive")
        assert main(["--stage", "data"]) == UnavailableError.exit_code
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "database is locked" in line
    assert "run the same command to continue" in line


def test_full_disk_of_dagster_is_named(clean_environment, monkeypatch, capsys):
    def write_journal(*_, **__):
        raise sqlalchemy.exc.OperationalError("insert", {}, sqlite3.OperationalError("disk I/O error"))  # so SQLite

    monkeypatch.setattr(dg.DagsterInstance, "get", write_journal)
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr("tempfile.TemporaryFile", mock.Mock(side_effect=full))
    assert main(["--stage", "data"]) == DiskFullError.exit_code
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert f"{clean_environment}/dagster: cannot be written: No space left on device; " in line
    assert "fuser" not in line
