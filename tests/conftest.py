"""Fixtures that every test shares."""

import os
from pathlib import Path

import pytest

for _name in [name for name in os.environ if name.startswith(("BERT_", "DAGSTER_", "MLFLOW_"))]:
    if _name not in ("BERT_REAL_DATA", "BERT_CHROMIUM"):
        del os.environ[_name]  # tests read neither the home nor the settings of the person who starts them

ON_REQUEST = ("services", "browser", "kills", "cluster", "engines")
"""Markers of tests that start real servers: they run where `-m` asks for them, as `make test-services` does."""


@pytest.fixture(autouse=True)
def own_environment():
    """Undo what a test, or the code that it calls, sets in the environment."""
    before = dict(os.environ)
    yield
    for name in {*os.environ, *before}:
        if name not in before:
            del os.environ[name]
        elif os.environ.get(name) != before[name]:
            os.environ[name] = before[name]


@pytest.fixture(scope="session")
def real_data():
    """The folder of real data sets; the test is skipped when BERT_REAL_DATA does not name one."""
    folder = os.environ.get("BERT_REAL_DATA")
    if not folder:
        pytest.skip("BERT_REAL_DATA is not set: this test reads real data sets")
    path = Path(folder).resolve()
    assert path.is_dir(), f"BERT_REAL_DATA={folder}: not a directory"
    return path


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory):
    """An MLflow database without runs, to be copied into a home as its mlflow.db: making the tables takes seconds."""
    from bert_model.training.mlflow_store import open_client

    database = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    open_client(f"sqlite:///{database}").search_experiments(max_results=1)
    return database


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave tests of real servers out unless they are asked for; see that those of real data carry their marker."""
    for item in items:
        uses_real_data = "real_data" in getattr(item, "fixturenames", ())
        marked = item.get_closest_marker("real_data") is not None
        if uses_real_data and not marked:
            raise pytest.UsageError(f"{item.nodeid} reads real data but lacks @pytest.mark.real_data")
    asked_for = config.getoption("markexpr")
    left_out = [
        item for item in items if any(item.get_closest_marker(name) and name not in asked_for for name in ON_REQUEST)
    ]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
