"""The registry of a module's tests."""

import shutil

import pytest


@pytest.fixture(scope="module")
def home(empty_store, tmp_path_factory):
    """One MLflow store for all tests of a module; each uses other names."""
    home = tmp_path_factory.mktemp("home")
    shutil.copy(empty_store, home / "mlflow.db")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("BERT_HOME", str(home))
        patched.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield home
