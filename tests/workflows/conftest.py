"""Fixtures of the workflow tests."""

import os
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import miniature

from workflows.resources import BertHome


@pytest.fixture(scope="session")
def finished_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the home of a finished miniature run, its preset and its log; shared by all test processes."""
    base = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        base = base.parent
    base = base / "miniature-run"
    base.mkdir(exist_ok=True)
    miniature.shared_home(base)
    return base


@pytest.fixture(scope="session")
def finished_log(finished_base: Path) -> str:
    """What the finished run said."""
    return (finished_base / "log.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def finished_home(finished_base: Path, finished_log: str) -> BertHome:
    """The home of a finished run; tests that change something copy first."""
    assert finished_log.rstrip().endswith("exit code 0"), finished_log[-6000:]
    return BertHome(directory=str(finished_base / "home"))


@pytest.fixture
def home(finished_home: BertHome, tmp_path: Path) -> BertHome:
    """A copy of the finished run's data, to be spoiled."""
    copy = BertHome(directory=str(tmp_path / "home"))
    shutil.copytree(finished_home.of_dump(miniature.DUMP), copy.of_dump(miniature.DUMP))
    return copy


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An environment without a home of its own: BERT_HOME is a fresh folder."""
    for name in ("DAGSTER_HOME", "MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI", "BERT_PRESET", "BERT_WIKI"):
        monkeypatch.setenv(name, "")  # what a test sets from here on is taken back at its end
        monkeypatch.delenv(name)
    home = tmp_path / "home"
    monkeypatch.setenv("BERT_HOME", str(home))
    return home
