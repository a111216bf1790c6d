"""Every gate refuses with its name, and the table shows the reason."""

import dataclasses
import json

import pytest
from judged_versions import judged_version, task_score

from bert_model.registry.promotion import GateConfig, Inspection, decide
from bert_model.registry.versions import EXAM_ACCURACY, EXAM_PAIRS, PRETRAINED
from bert_pipeline.errors import ConfigurationError

SOUND = Inspection()


@pytest.mark.parametrize(
    ("candidate", "champion", "inspection", "gate"),
    [
        (judged_version(), None, SOUND, "scored"),
        (judged_version(task_score(mean=float("nan"))), None, SOUND, "scored"),
        (judged_version(task_score(num_seeds=1)), None, SOUND, "scored"),
        (judged_version(task_score(dev_sha256="")), None, SOUND, "scored"),
        (judged_version(task_score(), kind=PRETRAINED), None, SOUND, "scored"),  # two tasks are required
        (
            judged_version(task_score("wnli"), task_score("rte"), kind=PRETRAINED),
            None,
            SOUND,
            "scored",
        ),  # wnli does not count
        (judged_version(task_score()), None, Inspection(damage="a file is gone"), "intact"),
        (judged_version(task_score()), None, Inspection(logits="logit 0 is 1, 2 was recorded"), "reproduces_logits"),
        (judged_version(task_score()), None, Inspection(card="it has no model_card.md"), "documented"),
        (judged_version(task_score(), license=""), None, SOUND, "licensed"),
        (judged_version(task_score(), rolled_back=True), None, SOUND, "not_rolled_back"),
        (judged_version(task_score(degenerate=True)), None, SOUND, "not_degenerate"),
        (judged_version(task_score()), judged_version(task_score()), SOUND, "new"),
        (judged_version(task_score()), judged_version(task_score(dev_sha256="e" * 64), version=1), SOUND, "comparable"),
        (
            judged_version(task_score()),
            judged_version(task_score(metric="sst2/dev/f1"), version=1),
            SOUND,
            "comparable",
        ),
        (judged_version(task_score()), judged_version(task_score(), version=1), SOUND, "better"),
        (judged_version(task_score()), judged_version(task_score(mean=79.9), version=1), SOUND, "better"),
        (judged_version(task_score()), judged_version(task_score(mean=90.0), version=1), SOUND, "no_task_worse"),
    ],
)
def test_gate_refuses(candidate, champion, inspection, gate):
    config = GateConfig(margin=0.5, min_seeds=2, min_tasks=2)
    decision = decide(candidate, champion, inspection=inspection, config=config)
    assert gate in decision.refused_by
    assert not decision.passed
    assert gate in decision.table()


def _pair(new, old):
    """Return a pre-trained candidate and its champion, from task -> mean."""
    return (
        judged_version(*(task_score(task, mean) for task, mean in new.items()), kind=PRETRAINED),
        judged_version(*(task_score(task, mean) for task, mean in old.items()), kind=PRETRAINED, version=1),
    )


def test_model_of_the_generated_sample_does_not_block_the_first_real_one():
    demo = judged_version(task_score(mean=99.0, dev_sha256="e" * 64), version=1, facts={"generated_sample": "true"})
    real = judged_version(task_score())
    decision = decide(real, demo)
    assert decision.passed
    assert "version 1 is champion, of the generated sample" in decision.table()
    # Nor does a demo replace a real champion, or go unjudged where both have a score on the same data.
    assert "comparable" in decide(demo, dataclasses.replace(real, version=3)).refused_by
    rival = judged_version(task_score(mean=99.0), version=1, facts={"generated_sample": "true"})
    assert "better" in decide(real, rival).refused_by


def test_average_of_shared_tasks_decides_within_the_tolerance():
    candidate, champion = _pair({"sst2": 85.0, "rte": 58.0, "cola": 99.0}, {"sst2": 80.0, "rte": 60.0})
    decision = decide(candidate, champion)
    assert decision.passed
    assert decision.averages() == (71.5, 70.0)  # cola, which the champion has not done, is shown and does not count
    assert "the champion has no score" in decision.table()
    assert decide(candidate, champion, config=GateConfig(tolerance=1.0)).refused_by == ("no_task_worse",)
    assert decide(candidate, champion, config=GateConfig(margin=1.6)).refused_by == ("better",)


def test_candidate_without_a_task_of_the_champion_is_refused():
    candidate, champion = _pair({"sst2": 85.0}, {"sst2": 80.0, "rte": 60.0})
    decision = decide(candidate, champion)
    assert decision.refused_by == ("covers_champion",)
    assert "lacking: rte" in decision.table()
    assert decide(candidate, champion, config=GateConfig(min_coverage=0.5)).passed
    assert decide(candidate, champion, config=GateConfig(ignored_tasks=("rte",))).passed
    assert decide(candidate, champion, config=GateConfig(min_tasks=2)).refused_by[:2] == ("scored", "comparable")
    five = dict.fromkeys(("sst2", "rte", "cola", "mrpc", "stsb"), 80.0)  # 1 - 4 / 5 is below 0.2
    assert decide(*_pair({"sst2": 85.0}, five), config=GateConfig(min_coverage=0.2)).passed


def test_margin_decides_whether_a_slightly_worse_model_passes():
    candidate, champion = _pair({"sst2": 79.6}, {"sst2": 80.0})
    assert decide(candidate, champion).refused_by == ("better",)
    assert decide(candidate, champion, config=GateConfig(margin=-0.5)).passed
    # An older version does not take the alias back by it.
    older = dataclasses.replace(candidate, version=champion.version - 1)
    assert decide(older, champion, config=GateConfig(margin=-0.5)).refused_by == ("better",)
    assert decide(*_pair({"sst2": 80.0}, {"sst2": 80.0})).refused_by == ("better",)


@pytest.mark.parametrize(
    ("new", "old", "refused_by", "words"),
    [
        ({EXAM_ACCURACY: "60.0", EXAM_PAIRS: "p"}, {EXAM_ACCURACY: "64.0", EXAM_PAIRS: "p"}, True, "(-4.00)"),
        ({EXAM_ACCURACY: "62.0", EXAM_PAIRS: "p"}, {EXAM_ACCURACY: "64.0", EXAM_PAIRS: "p"}, False, "(-2.00)"),
        ({EXAM_ACCURACY: "60.0", EXAM_PAIRS: "q"}, {EXAM_ACCURACY: "64.0", EXAM_PAIRS: "p"}, False, "other pairs"),
        ({EXAM_ACCURACY: "60.0"}, {EXAM_ACCURACY: "64.0", EXAM_PAIRS: "p"}, False, "reporting are not known"),
        ({}, {EXAM_ACCURACY: "64.0", EXAM_PAIRS: "p"}, False, "only the champion was examined"),
    ],
)
def test_exam_is_compared_on_the_same_pairs(new, old, refused_by, words):
    candidate, champion = _pair({"sst2": 85.0}, {"sst2": 80.0})
    candidate.facts.update(new)
    champion.facts.update(old)
    decision = decide(candidate, champion)
    assert decision.refused_by == (("exam_not_worse",) if refused_by else ())
    assert words in decision.table()
    assert decide(candidate, champion, config=GateConfig(exam_tolerance=5.0)).passed
    champion.facts.pop(EXAM_ACCURACY)
    assert "exam_not_worse" not in decide(candidate, champion).table()


def test_more_training_data_compares_for_task_models_only():
    more = task_score(data_sha256="more", mean=90.0)
    assert decide(judged_version(more), judged_version(task_score(), version=1)).passed
    decision = decide(judged_version(more, kind=PRETRAINED), judged_version(task_score(), kind=PRETRAINED, version=1))
    assert "comparable" in decision.refused_by


def test_waived_gate_is_shown_and_does_not_refuse():
    candidate, champion = _pair({"sst2": 70.0}, {"sst2": 80.0})
    decision = decide(candidate, champion, config=GateConfig(waived_gates=("better", "no_task_worse")))
    assert decision.passed
    assert [gate.name for gate in decision.gates if gate.waived] == ["better", "no_task_worse"]
    assert json.loads(decision.to_json())["config"]["waived_gates"] == ["better", "no_task_worse"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"waived_gates": ("betterr",)}, "did you mean 'better'"),
        ({"waived_gates": ("intact",)}, "always holds"),
        ({"min_coverage": 2.0}, "min_coverage: found 2.0"),
        ({"tolerance": -1.0}, "tolerance: found -1.0"),
        ({"min_seeds": 0}, "min_seeds: found 0"),
    ],
)
def test_invalid_gate_configuration_is_refused(changes, words):
    with pytest.raises(ConfigurationError, match=words):
        GateConfig(**changes)
