"""The check of a pre-trained model against the n-gram model of its exam."""

import json
import logging
from pathlib import Path
from types import SimpleNamespace

import dagster as dg
import numpy as np
import pytest
import tiny_tasks

from bert_model.zero_shot import exam
from bert_pipeline.exam.ngrams import NGRAM_BASELINE_NAME
from bert_pipeline.manifest import publishing
from workflows.lib.checks import CHECKS
from workflows.lib.model_checks import pretrained_model_beats_ngram_baseline
from workflows.lib.resources import BertHome

DUMP = "samplewiki-1"


@pytest.fixture
def home(tmp_path: Path) -> BertHome:
    """A home with an untrained model, whose training names an exam."""
    home = BertHome(directory=str(tmp_path / "home"))
    training = home.pretraining(DUMP, "training")
    with publishing(training / "model", kind="pretrained_model", configuration={}, inputs={}) as draft:
        tiny_tasks.make_model(tmp_path / "weights")
        for path in (tmp_path / "weights").iterdir():
            path.rename(draft.path / path.name)
    home.current_training(DUMP).write_text(json.dumps({"training": "training"}))
    pairs = tmp_path / "exam"
    pairs.mkdir()
    texts = [
        (f"the {noun} was {word} .", f"{word} the was {noun} .")
        for noun in tiny_tasks.NOUNS
        for word in ("fine", "dull")
    ]
    # In both orders: whatever an untrained model prefers, it is right half of the time.
    rows = [{"good": one, "bad": other, "kind": "swap"} for pair in texts for one, other in (pair, pair[::-1])]
    (pairs / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (pairs / NGRAM_BASELINE_NAME).touch()
    (training / "configuration.json").write_text(json.dumps({"configuration": {"exam": str(pairs)}}))
    return home


@pytest.mark.parametrize(("right", "passed"), [(False, True), (True, False)])
def test_model_is_compared_with_the_n_gram_model(
    home: BertHome, monkeypatch: pytest.MonkeyPatch, right: bool, passed: bool
) -> None:
    good = np.array([0.0 if right else -1.0])
    monkeypatch.setattr(
        exam, "ngram_baseline_scores", lambda _, pairs: (good.repeat(len(pairs)), np.full(len(pairs), -0.5))
    )
    verdict = pretrained_model_beats_ngram_baseline(home, DUMP)
    assert verdict.metadata["ngram_baseline_mean"] == (100.0 if right else 0.0)
    assert 0 < verdict.metadata["exam_mean"] < 100  # an untrained model
    assert verdict.passed == passed
    (check,) = [it for it in CHECKS for spec in it.check_specs if spec.name == "pretrained_model_beats_ngram_baseline"]
    context = SimpleNamespace(partition_key=DUMP, log=logging.getLogger())
    result = check.node_def.compute_fn.decorated_fn(context, home)
    assert (result.passed, result.severity) == (passed, dg.AssetCheckSeverity.WARN)


def test_check_without_exam_says_so(home: BertHome) -> None:
    (home.current_model(DUMP).parent / "configuration.json").write_text(json.dumps({"configuration": {}}))
    assert "not measured" in pretrained_model_beats_ngram_baseline(home, DUMP).description
