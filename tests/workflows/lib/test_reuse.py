"""Artifacts are reused while code, settings and inputs are unchanged; a finished training is always kept."""

import json
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from bert_pipeline.errors import UnavailableError
from bert_pipeline.manifest import Manifest, load_manifest, publishing
from workflows.defs import pretraining
from workflows.defs.pretraining import PRETRAINING_CODE, describe_other_code
from workflows.lib import reuse
from workflows.lib.resources import BertHome
from workflows.lib.reuse import build_or_reuse, key_path

SETTINGS = {"size": 1}
INPUTS = {"dump": "abc"}


class Maker:
    """Callable that builds an artifact and counts its calls."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.times = 0

    def __call__(self) -> Manifest:
        self.times += 1
        with publishing(self.directory, kind="thing", configuration={}, inputs={}) as draft:
            (draft.path / "file.txt").write_text(f"made {self.times} times", encoding="utf-8")
        return load_manifest(self.directory)


def get(maker: Maker, **changes: Any) -> Manifest:
    key = {"code_version": "1", "settings": SETTINGS, "inputs": INPUTS, **changes}
    return build_or_reuse(maker.directory, "thing", maker, **key, log=lambda _: None)


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    return Maker(tmp_path / "thing")


def test_same_build_key_is_built_once(maker):
    first, second = get(maker), get(maker)
    assert maker.times == 1
    assert first.sha256 == second.sha256


@pytest.mark.parametrize(
    "changes", [{"code_version": "2"}, {"settings": {"size": 2}}, {"inputs": {"dump": "abd"}}, {"inputs": {}}]
)
def test_other_code_settings_or_inputs_are_built_again(maker, changes):
    get(maker)
    get(maker, **changes)
    assert maker.times == 2


def test_damaged_or_replaced_artifact_is_built_again(maker):
    get(maker)
    (maker.directory / "file.txt").write_text("shorter", encoding="utf-8")
    get(maker)
    assert maker.times == 2
    (maker.directory / "file.txt").write_text("made 9 times", encoding="utf-8")  # of unchanged size
    get(maker)
    assert maker.times == 3
    maker()  # built by another program: the key is not its own
    get(maker)
    assert maker.times == 5


def test_artifact_with_unreadable_build_key_is_built_again(maker):
    get(maker)
    key_path(maker.directory).write_text("{", encoding="utf-8")
    get(maker)
    assert maker.times == 2


def test_silent_store_is_an_error_and_builds_nothing(maker, monkeypatch):
    get(maker)

    def refuse(*_: object, **__: object) -> None:
        raise UnavailableError("the store does not answer")

    monkeypatch.setattr(reuse, "load_manifest", refuse)
    with pytest.raises(UnavailableError):
        get(maker)
    assert maker.times == 1


def test_build_key_is_readable_and_outside_the_artifact(maker):
    manifest = get(maker)
    document = json.loads(key_path(maker.directory).read_text(encoding="utf-8"))
    assert document["key"]["inputs"] == INPUTS
    assert list(manifest.files) == ["file.txt"]


@pytest.mark.parametrize(
    ("starts", "named"),
    [
        ([("start", PRETRAINING_CODE)], None),
        ([("start", PRETRAINING_CODE), ("resume", PRETRAINING_CODE)], None),
        ([("start", "old"), ("start", PRETRAINING_CODE)], None),
        ([("start", "old")], "trained by code old, and"),
        (
            [("start", "old"), ("resume", PRETRAINING_CODE)],
            f"trained by code old, then by code {PRETRAINING_CODE}, and",
        ),
        ([("start", "")], "trained by code of unknown version, and"),
        ([], "trained by code of unknown version, and"),
    ],
)
def test_training_by_other_code_is_reported_with_a_remedy(tmp_path, starts, named):
    events = [{"event": kind, "step": 0, "code_version": version} for kind, version in starts]
    text = describe_other_code(events, tmp_path)
    assert (named or "") in text
    assert (f"today's is {PRETRAINING_CODE}" in text and f"delete {tmp_path} and materialize" in text) is bool(named)


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
    context = dg.build_asset_context(partition_key="samplewiki-1")
    result = pretraining.pretrained_model(context, pretraining.PretrainingLaunchpad(launch={}), home)
    assert result.data_version.value == load_manifest(output / "model").sha256
    assert f"trained by code old, and today's is {PRETRAINING_CODE}" in result.metadata["trained_by_other_code"].value
