"""Fixtures of the tests of the data jobs."""

import fsspec
import pytest


@pytest.fixture
def store():
    """The URL of an empty store in memory."""
    fsspec.filesystem("memory").store.clear()
    yield "memory://bucket"
    fsspec.filesystem("memory").store.clear()
