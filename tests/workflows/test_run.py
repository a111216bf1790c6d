"""The command line of a run: invalid arguments are refused before anything runs."""

import contextlib
import shutil
import sqlite3
import subprocess
from pathlib import Path

import fsspec
import pytest

from bert_pipeline.errors import UnavailableError, UsageError
from workflows.lib.resources import BertHome, checked_dump_name, dump_and_task, dump_task_key, sample_seed
from workflows.run import build_parser, main, plan_of, run_config


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
    ],
)
def test_invalid_arguments_print_one_line_and_leave_no_files(clean_environment, capsys, words, code, message):
    assert main(words) == code
    captured = capsys.readouterr()
    assert message in captured.err
    assert len(captured.err.strip().splitlines()) == 1
    assert not clean_environment.exists()


@pytest.mark.parametrize("name", ["", "web="])
def test_dump_files_and_task_folders_reach_the_assets(tmp_path, name):
    dump = tmp_path / "enwiki.xml.bz2"
    dump.write_bytes(b"")
    glue = tmp_path / "glue"
    glue.mkdir()
    words = ["--preset", "laptop", "--dump", "enwiki-1", "--dump-file", f"{name}text:{dump}", "--glue", str(glue)]
    plan = plan_of(build_parser().parse_args([*words, "--dev-fraction", "0.25", "--tasks", "rte,cola"]))
    assert plan.tasks == ("cola", "rte")
    assert run_config(plan, "data", tmp_path / "log")["ops"]["dump"]["config"]["sources"] == [f"{name}text:{dump}"]
    config = run_config(plan, "finetuning", tmp_path / "log")["ops"]
    assert config["task_data"]["config"]["glue"] == str(glue)
    assert config["task_data"]["config"]["dev_fraction"] == 0.25


def test_make_real_takes_several_sources():
    root = Path(__file__).resolve().parents[2]
    words = ["make", "--dry-run", "real", "DUMP=wikipedia=parquet:articles books=text:novels", "VENV=none"]
    commands = subprocess.run(words, cwd=root, capture_output=True, text=True, check=True).stdout
    assert "--dump-file wikipedia=parquet:articles --dump-file books=text:novels" in commands


def test_dump_file_in_a_store_keeps_its_url():
    fsspec.filesystem("memory").pipe_file("/bucket/enwiki.xml", b"<mediawiki>")
    words = ["--preset", "laptop", "--dump", "enwiki-1", "--dump-file", "memory://bucket/enwiki.xml"]
    assert plan_of(build_parser().parse_args(words)).sources == ("wikipedia:memory://bucket/enwiki.xml",)


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


def test_sample_dumps_carry_their_seed():
    assert sample_seed("samplewiki-7") == 7
    assert sample_seed("enwiki-20261101") is None


def test_dump_task_key_round_trips():
    assert dump_and_task(str(dump_task_key("enwiki-20261101", "ner_features"))) == ("enwiki-20261101", "ner_features")


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
        assert main(["--phase", "data"]) == UnavailableError.exit_code
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "database is locked" in line
    assert "run the same command to continue" in line
