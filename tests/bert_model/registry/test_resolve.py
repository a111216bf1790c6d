"""References to models."""

from pathlib import Path

import pytest

from bert_model.registry.resolve import resolve_model
from bert_pipeline.errors import UsageError


def test_reference_is_a_directory_or_an_error_lists_the_forms(tmp_path: Path) -> None:
    assert resolve_model(str(tmp_path)) == tmp_path
    with pytest.raises(UsageError, match="no such model directory"):
        resolve_model("./no/such/place")
