"""Fixtures that every test shares."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data sets; the test is skipped when BERT_REAL_DATA does not name one."""
    folder = os.environ.get("BERT_REAL_DATA")
    if not folder:
        pytest.skip("BERT_REAL_DATA is not set: this test reads real data sets")
    path = Path(folder).resolve()
    assert path.is_dir(), f"BERT_REAL_DATA={folder}: not a directory"
    return path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that reads real data carries the marker, so that `-m 'not real_data'` means what it says."""
    for item in items:
        uses_real_data = "real_data" in getattr(item, "fixturenames", ())
        marked = item.get_closest_marker("real_data") is not None
        if uses_real_data and not marked:
            raise pytest.UsageError(f"{item.nodeid} reads real data but lacks @pytest.mark.real_data")
