"""Fixtures that tests of pre-training share: what is dear to make is made once."""

from pathlib import Path

import pytest
from small_training import configuration, write_data
from two_ranks import run_pretraining


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Instances of two lengths."""
    return write_data(tmp_path_factory.mktemp("instances"))


@pytest.fixture(scope="session")
def undisturbed(data: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training of two ranks that nothing disturbed."""
    output = tmp_path_factory.mktemp("undisturbed") / "training"
    codes, reports, _ = run_pretraining(configuration(data), output)
    assert codes == [0, 0], reports
    return output
