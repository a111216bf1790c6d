"""A finished training is kept when code changes; log and metadata then say so."""

import json

import pytest
from materialized import call

from bert_pipeline.manifest import load_manifest, publishing
from bert_pipeline.step import STEPS
from workflows.defs import pretraining
from workflows.defs.pretraining import describe_other_code
from workflows.lib.resources import BertHome

NOW = STEPS["pretrained_model"].code_version


@pytest.mark.parametrize(
    ("starts", "named"),
    [
        ([("start", NOW)], None),
        ([("start", NOW), ("resume", NOW)], None),
        ([("start", "old"), ("start", NOW)], None),
        ([("start", "old")], "trained by code old, and"),
        ([("start", "old"), ("resume", NOW)], f"trained by code old, then by code {NOW}, and"),
        ([("start", "")], "trained by code of unknown version, and"),
        ([], "trained by code of unknown version, and"),
    ],
)
def test_training_by_other_code_is_reported_with_a_remedy(tmp_path, starts, named):
    events = [{"event": kind, "step": 0, "code_version": version} for kind, version in starts]
    text = describe_other_code(events, tmp_path)
    assert (named or "") in text
    assert (f"today's is {NOW}" in text and f"delete {tmp_path} and materialize" in text) is bool(named)


def test_finished_training_by_other_code_is_kept_and_reported(tmp_path, monkeypatch):
    output = tmp_path / "training"
    with publishing(output / "model", kind="pretrained_model", configuration={}, inputs={}) as draft:
        (draft.path / "file.txt").write_text("weights", encoding="utf-8")
    event = {"event": "start", "step": 0, "code_version": "old"}
    (output / "metrics.jsonl").write_text(json.dumps(event) + "\n", encoding="utf-8")
    monkeypatch.setattr(pretraining, "_training_directory", lambda *_: output)
    monkeypatch.setattr(pretraining, "training_curves", lambda *_: b"")
    home = BertHome(directory=str(tmp_path / "home"))
    home.dump_directory("samplewiki-1").mkdir(parents=True)
    result = call(pretraining.pretrained_model, "samplewiki-1", home)
    assert result.data_version.value == load_manifest(output / "model").sha256
    assert f"trained by code old, and today's is {NOW}" in result.metadata["trained_by_other_code"].value
