"""The order of metadata on asset pages."""

import dagster as dg
import pytest

from bert_pipeline.manifest import load_manifest, publishing
from workflows.lib.checks import Verdict, fails_if_unreadable
from workflows.lib.metadata import (
    as_dagster_failures,
    manifest_metadata,
    order_metadata,
    picture,
    table,
)


def test_metadata_is_ordered_by_kind():
    shown = order_metadata(
        {
            "artifact/path": dg.MetadataValue.path("/data"),
            "32/artifact/sha256": "abc",
            "text/documents": 3,
            "sample": table([{"a": 1}]),
            "mlflow_run": dg.MetadataValue.url("http://127.0.0.1:5000"),
            "loss": 0.78962396469,
            "curves": picture(b"", "curves"),
        }
    )
    assert list(shown) == [
        "curves",
        "mlflow_run",
        "sample",
        "text/documents",
        "loss",
        "artifact/path",
        "32/artifact/sha256",
    ]
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


def test_numbers_of_an_artifact_are_in_groups_with_their_units(tmp_path):
    with publishing(tmp_path / "corpus", kind="corpus", configuration={}, inputs={}) as draft:
        (draft.path / "text").write_bytes(b"abc")
        draft.rows["text"] = 2
        draft.counts = {"words": 7, "dropped": {"same text": 1}, "generated": True}
        draft.provenance["seconds"] = 0.5
    manifest = load_manifest(tmp_path / "corpus")
    assert manifest_metadata(manifest) == {
        "artifact/path": dg.MetadataValue.path(str(tmp_path / "corpus")),
        "artifact/sha256": manifest.sha256,
        "size/bytes": 3,
        "size/files": 1,
        "dagster/row_count": 2,
        "time/seconds": 0.5,
        "time/bytes_per_second": 6.0,
        "time/rows_per_second": 4.0,
        "text/words": 7,
        "dropped/same text": 1,
    }
    assert not [key for key in manifest_metadata(manifest, rates=False) if key.startswith("time/")]


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
