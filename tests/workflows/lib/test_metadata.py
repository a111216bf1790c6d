"""Previews on asset pages, and the order of metadata."""

import random
import urllib.parse
import xml.etree.ElementTree as ElementTree

import dagster as dg
import pytest

from workflows.lib.data_checks import Verdict, fails_if_unreadable
from workflows.lib.metadata import (
    INLINE_CHARACTERS,
    as_dagster_failures,
    loss_preview,
    order_metadata,
    picture,
    score_preview,
    table,
)
from workflows.lib.resources import TASK_NAMES

SVG = "{http://www.w3.org/2000/svg}"
DIV = "{http://www.w3.org/1999/xhtml}div"


def drawing(preview: dg.MetadataValue) -> ElementTree.Element:
    """Return the SVG of a preview that is short enough to be shown inline."""
    text = str(preview.value)
    assert len(text) < INLINE_CHARACTERS
    assert " " not in text.partition("](")[2], "a blank ends a link's address in Markdown"
    return ElementTree.fromstring(urllib.parse.unquote(text.partition("data:image/svg+xml,")[2].removesuffix(")")))


def events(num_steps: int, seed: int = 0) -> list[dict]:
    noise = random.Random(seed)
    train = [
        {"event": "train", "step": s, "metrics": {"train/mlm_loss": 10 * noise.random()}} for s in range(num_steps)
    ]
    held_out = [
        {"event": "evaluation", "step": s, "metrics": {"held_out/mlm_loss": 10 * noise.random()}}
        for s in range(0, num_steps, 2)
    ]
    return train + held_out


@pytest.mark.parametrize("num_steps", [1, 2, 50, 5000])
def test_loss_preview_of_any_length_fits_inline(num_steps):
    svg = drawing(loss_preview(events(num_steps)))
    assert len(svg.findall(f"{SVG}path")) == 2


def test_loss_preview_names_first_and_last_loss():
    log = [
        {"event": "train", "step": 1, "metrics": {"train/mlm_loss": 7.0}},
        {"event": "train", "step": 9, "metrics": {"train/mlm_loss": 1.25}},
        {"event": "checkpoint", "step": 9},
    ]
    (text,) = drawing(loss_preview(log)).findall(f"{SVG}text")
    assert text.text == "train 7.00 → 1.25"


def test_loss_preview_without_finite_loss_is_a_note():
    assert (
        loss_preview([{"event": "train", "step": 1, "metrics": {"train/mlm_loss": float("nan")}}]).value
        == "(no losses)"
    )


def test_score_preview_of_all_tasks_fits_inline_and_names_each():
    svg = drawing(score_preview([(task, 100.0, 99.0) for task in TASK_NAMES]))
    (labels,) = svg.iter(DIV)
    assert labels.text is not None
    assert labels.text.splitlines() == [f"{task} 100" for task in TASK_NAMES]


def test_score_preview_omits_negative_bars_and_missing_baselines():
    svg = drawing(score_preview([("cola", -3.0, 0.0), ("a<b", 50.0, None)]))
    bars, ticks = svg.iter(f"{SVG}path")
    assert bars.get("d") == "M0,0h0M0,1h50"
    assert ticks.get("d") == ""


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
    facts = {"n": 3, "curves": picture(b"", "curves"), "main_metric": "sst2/dev/accuracy", "score": 91.5, "sha256": "a"}
    assert list(order_metadata(facts)) == ["score", "main_metric", "curves", "n", "sha256"]


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
