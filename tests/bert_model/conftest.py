"""Session fixtures of pre-training: data, and a run of two ranks that nothing interrupts."""

import pytest
from small_training import configuration, write_data
from two_ranks import run_pretraining


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Instances of two lengths."""
    return write_data(tmp_path_factory.mktemp("instances"))


@pytest.fixture(scope="session")
def undisturbed(data, tmp_path_factory):
    """The directory of a finished run of two ranks."""
    output = tmp_path_factory.mktemp("undisturbed") / "training"
    codes, reports, _ = run_pretraining(configuration(data), output)
    assert codes == [0, 0], reports
    return output
