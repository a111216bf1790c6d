"""Fixtures of the workflow tests."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import dagster as dg
import miniature
import pytest

from workflows.lib.instance import open_instance
from workflows.lib.resources import BertHome


@pytest.fixture(scope="session")
def finished_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the home, preset and log of a finished miniature run, shared by all test processes."""
    base = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        base = base.parent
    base = base / "miniature-run"
    base.mkdir(exist_ok=True)
    miniature.shared_home(base)
    return base


@pytest.fixture(scope="session")
def finished_log(finished_base: Path) -> str:
    """Output of the finished run."""
    return (finished_base / "log.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def finished_home(finished_base: Path, finished_log: str) -> BertHome:
    """Home of the finished run; tests that change it make a copy."""
    assert finished_log.rstrip().endswith("exit code 0"), finished_log[-6000:]
    return BertHome(directory=str(finished_base / "home"))


@pytest.fixture
def home(finished_home: BertHome, tmp_path: Path) -> BertHome:
    """A copy of the finished run's data that the test may change."""
    copy = BertHome(directory=str(tmp_path / "home"))
    shutil.copytree(finished_home.dump_directory(miniature.DUMP), copy.dump_directory(miniature.DUMP))
    return copy


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Environment in which BERT_HOME is a fresh folder and nothing else is configured."""
    home = tmp_path / "home"
    monkeypatch.setenv("BERT_HOME", str(home))
    # Opening an instance sets it: to set and delete it here makes pytest take that back.
    monkeypatch.setenv("DAGSTER_HOME", str(home / "dagster"))
    monkeypatch.delenv("DAGSTER_HOME")
    return home


@pytest.fixture(scope="session")
def empty_dagster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `dagster` folder of a fresh home, copied into others because creating its tables is slow."""
    home = BertHome(directory=str(tmp_path_factory.mktemp("dagster")))
    with mock.patch.dict(os.environ):  # what opening sets is taken back
        os.environ.pop("DAGSTER_HOME", None)
        open_instance(home).dispose()
    return home.path / "dagster"


@pytest.fixture
def instance(clean_environment: Path, empty_dagster: Path) -> Iterator[dg.DagsterInstance]:
    """Persistent instance of a home without runs."""
    shutil.copytree(empty_dagster, clean_environment / "dagster")
    with open_instance() as opened:
        yield opened
