"""The order of metadata on asset pages."""

import dagster as dg
import pytest

from workflows.lib.checks import Verdict, fails_if_unreadable
from workflows.lib.metadata import (
    as_dagster_failures,
    order_metadata,
    picture,
    table,
)


def test_metadata_is_ordered_by_kind():
    shown = order_metadata(
        {
            "path": dg.MetadataValue.path("/data"),
            "32/sha256": "abc",
            "documents": 3,
            "sample": table([{"a": 1}]),
            "mlflow_run": dg.MetadataValue.url("http://127.0.0.1:5000"),
            "loss": 0.78962396469,
            "curves": picture(b"", "curves"),
        }
    )
    assert list(shown) == ["curves", "mlflow_run", "sample", "documents", "loss", "path", "32/sha256"]
    assert shown["loss"] == 0.789624


def test_metadata_leads_with_the_result():
    metadata = {
        "n": 3,
        "curves": picture(b"", "curves"),
        "main_metric": "sst2/dev/accuracy",
        "score": 91.5,
        "sha256": "a",
    }
    assert list(order_metadata(metadata)) == ["score", "main_metric", "curves", "n", "sha256"]


class ClientError(Exception):
    """What the client of a store raises."""

    __module__ = "botocore.exceptions"


def test_store_that_does_not_answer_is_one_sentence_and_tried_again():
    with pytest.raises(dg.Failure, match="the store does not answer") as raised, as_dagster_failures():
        raise ClientError("no route to host")
    assert raised.value.allow_retries

    def check() -> Verdict:
        raise ClientError("no route to host")

    assert "the store does not answer" in fails_if_unreadable(check)().description
