"""Every gate refuses with its name, and the table shows the reason."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
from judged_versions import judged_version as judged
from judged_versions import task_score as scored

from bert_model.finetuning.caveats import REPEATS, Caveat
from bert_model.metrics.uncertainty import UnitStatistics
from bert_model.registry.promotion import GateConfig, Inspection, decide
from bert_model.registry.versions import PRETRAINED, Exam
from bert_pipeline.errors import ConfigurationError

SOUND = Inspection()


@pytest.mark.parametrize(
    ("candidate", "champion", "inspection", "gate"),
    [
        (judged(), None, SOUND, "scored"),
        (judged(scored(mean=float("nan"))), None, SOUND, "scored"),
        (judged(scored(num_seeds=1)), None, SOUND, "scored"),
        (judged(scored(dev_sha256="")), None, SOUND, "scored"),
        (judged(scored(), kind=PRETRAINED), None, SOUND, "scored"),  # two tasks are required
        (judged(scored("wnli"), scored("rte"), kind=PRETRAINED), None, SOUND, "scored"),  # wnli does not count
        (judged(scored()), None, Inspection(damage="a file is gone"), "intact"),
        (judged(scored()), None, Inspection(logits="logit 0 is 1, 2 was recorded"), "reproduces_logits"),
        (judged(scored()), None, Inspection(card="it has no model_card.md"), "documented"),
        (judged(scored(), license=""), None, SOUND, "licensed"),
        (judged(scored(), rolled_back=True), None, SOUND, "not_rolled_back"),
        (judged(scored(degenerate=True)), None, SOUND, "not_degenerate"),
        (judged(scored(mean=50.0, majority=50.0)), None, SOUND, "beats_baseline"),
        (judged(scored(mean=39.7, majority=39.0, num_examples=300)), None, SOUND, "beats_baseline"),
        (judged(scored(mean=40.0, majority=50.0)), None, SOUND, "beats_baseline"),
        (judged(scored(known=(Caveat(kind=REPEATS, text="", share=0.011),))), None, SOUND, "not_contaminated"),
        (judged(scored()), judged(scored()), SOUND, "new"),
        (judged(scored()), judged(scored(dev_sha256="e" * 64), version=1), SOUND, "comparable"),
        (judged(scored()), judged(scored(metric="sst2/dev/f1"), version=1), SOUND, "comparable"),
        (judged(scored()), judged(scored(), version=1), SOUND, "better"),
        (judged(scored()), judged(scored(mean=79.9), version=1), SOUND, "better"),
        (judged(scored()), judged(scored(mean=90.0), version=1), SOUND, "no_task_worse"),
    ],
)
def test_gate_refuses(candidate, champion, inspection, gate):
    config = GateConfig(margin=0.5, min_seeds=2, min_tasks=2)
    decision = decide(candidate, champion, inspection=inspection, config=config)
    assert gate in decision.refused_by
    assert not decision.passed
    assert gate in decision.table()


def _pair(new, old, exams=(None, None)):
    """Return a pre-trained candidate and its champion, from task -> mean and their exams."""
    return tuple(
        judged(*itertools.starmap(scored, means.items()), kind=PRETRAINED, version=version, exam=exam)
        for means, version, exam in ((new, 2, exams[0]), (old, 1, exams[1]))
    )


def test_model_of_the_generated_sample_does_not_block_the_first_real_one():
    demo = judged(scored(mean=99.0, dev_sha256="e" * 64), version=1, generated_sample=True)
    real = judged(scored())
    decision = decide(real, demo)
    assert decision.passed
    assert "version 1 is champion, of the generated sample" in decision.table()
    # Nor does a demo replace a real champion, or go unjudged where both have a score on the same data.
    assert "comparable" in decide(demo, dataclasses.replace(real, version=3)).refused_by
    rival = judged(scored(mean=99.0), version=1, generated_sample=True)
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
    ("exam", "refused_by", "words"),
    [
        (Exam(accuracy=60.0, pairs_sha256="p"), True, "(-4.00)"),
        (Exam(accuracy=62.0, pairs_sha256="p"), False, "(-2.00)"),
        (Exam(accuracy=60.0, pairs_sha256="q"), False, "other pairs"),
        (Exam(accuracy=60.0), False, "reporting are not known"),
        (None, False, "only the champion was examined"),
    ],
)
def test_exam_is_compared_on_the_same_pairs(exam, refused_by, words):
    exams = exam, Exam(accuracy=64.0, pairs_sha256="p")
    candidate, champion = _pair({"sst2": 85.0}, {"sst2": 80.0}, exams)
    decision = decide(candidate, champion)
    assert decision.refused_by == (("exam_not_worse",) if refused_by else ())
    assert words in decision.table()
    assert decide(candidate, champion, config=GateConfig(exam_tolerance=5.0)).passed
    unexamined = _pair({"sst2": 85.0}, {"sst2": 80.0}, (exam, None))
    assert "exam_not_worse" not in decide(*unexamined).table()


def test_more_training_data_compares_for_task_models_only():
    more = scored(data_sha256="more", mean=90.0)
    assert decide(judged(more), judged(scored(), version=1)).passed
    decision = decide(judged(more, kind=PRETRAINED), judged(scored(), kind=PRETRAINED, version=1))
    assert "comparable" in decision.refused_by


def test_encoder_must_beat_the_mean_baseline_of_its_tasks():
    one, other = (scored("rte", 52.0, majority=53.0), scored("sst2", 80.0, majority=51.0))
    assert decide(judged(one, other, kind=PRETRAINED), None).passed  # though one task alone is below
    decision = decide(judged(one, scored("sst2", 51.0, majority=51.0), kind=PRETRAINED), None)
    assert decision.refused_by == ("beats_baseline",)
    assert "at chance: 51.5, the trivial baseline 52.0" in decision.table()
    waiving = GateConfig(waived_gates=("beats_baseline",))
    assert decide(judged(one, kind=PRETRAINED), None, config=waiving).passed


@pytest.mark.parametrize(("accuracy", "pairs", "refused"), [(50.0, 0, True), (50.9, 2000, True), (52.0, 2000, False)])
def test_exam_at_chance_is_refused_and_no_exam_is_not(accuracy, pairs, refused):
    score = scored(majority=50.0)
    exam = Exam(accuracy=accuracy, num_pairs=pairs)
    decision = decide(judged(score, kind=PRETRAINED, exam=exam), None)
    assert decision.refused_by == (("beats_baseline",) if refused else ())
    assert decide(judged(score, kind=PRETRAINED), None).passed


def test_one_seed_has_a_standard_error():
    score = scored(mean=52.0, majority=50.0, num_examples=300, num_seeds=1, sd=0.0)
    assert decide(judged(score), None).refused_by == ("beats_baseline",)
    assert decide(judged(dataclasses.replace(score, mean=53.0)), None).passed


def test_repeats_of_an_encoder_are_averaged_and_those_of_published_files_do_not_count():
    known = (Caveat(kind=REPEATS, text="1.5% of the examples of dev are in the training set", share=0.015),)
    cola = scored("cola", known=known)
    assert decide(judged(cola), None).refused_by == ("not_contaminated",)
    assert decide(judged(dataclasses.replace(cola, official=True)), None).passed
    assert decide(judged(cola, scored("sst2"), kind=PRETRAINED), None).passed
    assert decide(judged(cola), None, config=GateConfig(waived_gates=("not_contaminated",))).passed
    assert "repeats" in decide(judged(cola), None).table()


def _with_units(right, version, task="sst2"):
    """Return a score and its statistics: the share of right units, one row for each seed."""
    values = 100.0 * np.asarray(right, dtype=float)[:, :, None]
    ids = tuple(map(str, range(values.shape[1])))
    units = UnitStatistics(metric="accuracy", form="mean", ids=ids, seeds=tuple(range(len(values))), values=values)
    description = {
        "num_examples": len(ids),
        "num_seeds": len(values),
        "version": version,
        "statistics_sha256": "s" * 64,
    }
    return scored(task, units.mean(), **description), {(task, version): units}


def test_difference_within_the_noise_of_examples_and_seeds_is_not_distinguishable():
    # Of 300 examples the candidate gets 12 that the champion has wrong, and loses 9.
    numbers = np.arange(300)
    champion = numbers >= 60
    candidate = (numbers < 12) | (numbers >= 69)
    (new, units), (old, others) = _with_units([candidate] * 2, 2), _with_units([champion] * 2, 1)
    assert new.mean - old.mean == pytest.approx(1.0)
    pair = judged(new), judged(old, version=1)
    decision = decide(*pair, statistics=units | others)
    assert decision.refused_by == ("better",)
    low, high = decision.interval
    assert low < 0 < new.mean - old.mean < high
    words = f"({new.mean - old.mean:+.1f}, 95 % {low:.1f} to {high:.1f}), margin 0"
    assert "not distinguishable: " in decision.table()
    assert words in decision.table()
    assert decide(*pair, statistics=units | others) == decision  # the draws are seeded
    assert decide(*pair, statistics=units | others, config=GateConfig(margin=low - 0.1)).passed
    older = dataclasses.replace(pair[0], version=0)
    assert decide(older, pair[1], statistics=units | others, config=GateConfig(margin=low - 0.1)).refused_by


def test_same_difference_passes_with_paired_examples_of_an_encoder():
    # Ten tasks whose candidates are right wherever the champion is, and on 2 % more.
    statistics, new, old = {}, [], []
    for number in range(10):
        base = np.arange(500) % 5 > 0
        better = base | (np.arange(500) % 50 == 0)
        for version, right, scores in ((2, better, new), (1, base, old)):
            score, units = _with_units([right], version, task=f"task{number}")
            statistics |= units
            scores.append(score)
    pair = judged(*new, kind=PRETRAINED), judged(*old, kind=PRETRAINED, version=1)
    decision = decide(*pair, statistics=statistics)
    assert decision.passed
    assert decision.interval[0] > 1.0
    # Without statistics the examples count as different ones, and nothing can be told.
    apart = decide(*pair)
    assert apart.interval[0] < decision.interval[0]


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
        ({"waived_gates": ("intact",)}, "cannot be waived"),
        ({"min_coverage": 2.0}, "min_coverage: found 2.0"),
        ({"tolerance": -1.0}, "tolerance: found -1.0"),
        ({"min_seeds": 0}, "min_seeds: found 0"),
    ],
)
def test_invalid_gate_configuration_is_refused(changes, words):
    with pytest.raises(ConfigurationError, match=words):
        GateConfig(**changes)
