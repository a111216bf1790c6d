"""Scores are computed again from their units, resampled with their seeds, and compared with chance."""

import dataclasses
import json
import statistics as standard

import numpy as np
import pytest
import scipy.stats
import tiny_tasks

from bert_model.kinds import kind_of
from bert_model.metrics import uncertainty
from bert_model.metrics.uncertainty import (
    RESAMPLES,
    UnitStatistics,
    bootstrap_interval,
    interval_of,
    is_at_chance,
    resample,
    stacked,
    standard_error,
)
from bert_pipeline.errors import InputError
from bert_pipeline.tasks.catalogue import TASKS, Task, get_task
from bert_pipeline.tasks.example import TextExample


def shares(*trainings):
    """Return the statistics of an accuracy, from right or wrong by unit for each training."""
    values = 100.0 * np.asarray(trainings, dtype=np.float64)[:, :, None]
    ids = tuple(map(str, range(values.shape[1])))
    return UnitStatistics(metric="accuracy", form="mean", ids=ids, seeds=tuple(range(len(values))), values=values)


@pytest.mark.parametrize("name", sorted(TASKS))
def test_statistic_of_resampled_examples_is_the_tasks_metric(name):
    task = get_task(name)
    rng = np.random.default_rng(3)
    examples = tiny_tasks.task_data(name, num_dev=40).dev[next(iter(task.dev_files))]
    predictions = {
        example.example_id: prediction_of(examples[index], task)
        for example, index in zip(examples, rng.permutation(40))
    }
    statistics = kind_of(task).statistics(examples, predictions)
    assert UnitStatistics.from_json(statistics.to_json()).mean() == statistics.mean()
    for indices in (np.arange(40), rng.integers(40, size=40)):
        drawn = [dataclasses.replace(examples[index], example_id=str(place)) for place, index in enumerate(indices)]
        answers = {str(place): predictions[examples[index].example_id] for place, index in enumerate(indices)}
        weights = np.bincount(indices, minlength=40)[None]
        (found,) = statistics.scores(weights, np.arange(40)).ravel()
        assert found == pytest.approx(kind_of(task).score(drawn, answers)[task.main_metric], abs=1e-9)


OWN_TASKS = [
    ("multilabel", "micro_f1"),
    ("multilabel", "macro_f1"),
    ("multilabel", "accuracy"),
    ("classification", "macro_f1"),
    ("classification", "f1"),
    ("classification", "exact_match"),
]


@pytest.mark.parametrize(("kind", "metric"), OWN_TASKS)
def test_statistic_of_own_tasks_is_their_metric(kind, metric):
    labels = ("a", "c") if metric == "f1" else ("a", "b", "c")  # of two labels it is the last one's
    task = Task(name="own", title="Own", kind=kind, labels=labels, metrics=(metric,), main_metric=metric, folder="own")
    rng = np.random.default_rng(1)

    def draw():
        if kind == "multilabel":
            return tuple(label for label in task.labels if rng.random() < 0.5)
        return str(rng.choice(["a", "c"]))  # a class may be absent

    ids = [f"{number // 3}-{number % 3}" for number in range(30)]  # groups of three, as MultiRC's
    examples = [TextExample(key, "text", None, draw()) for key in ids]
    predictions = {example.example_id: example.label if rng.random() < 0.6 else draw() for example in examples}
    statistics = kind_of(task).statistics(examples, predictions)
    assert len(statistics.ids) == (10 if metric == "exact_match" else 30)
    assert statistics.mean() == pytest.approx(kind_of(task).score(examples, predictions)[metric])
    low, high = bootstrap_interval(statistics)
    assert low < statistics.mean() < high


def prediction_of(example, task):
    if task.kind == "span":
        return example.answers[0].text if example.answers else ""
    return example.tags if task.kind == "tagging" else example.label


def test_interval_is_seeded_and_equals_scipys():
    values = np.random.default_rng(0).random(200) < 0.7
    low, high = bootstrap_interval(shares(values))
    assert (low, high) == bootstrap_interval(shares(values))
    theirs = scipy.stats.bootstrap((100.0 * values,), np.mean, method="percentile", n_resamples=5000, rng=1)
    assert low == pytest.approx(theirs.confidence_interval.low, abs=1.0)
    assert high == pytest.approx(theirs.confidence_interval.high, abs=1.0)


def test_resamples_of_many_units_are_few_at_once(monkeypatch):
    examples = [TextExample(str(n), "x", "y", float(n % 6)) for n in range(30)]
    own = kind_of("stsb").statistics(examples, {str(n): n % 6 + 0.01 * n for n in range(30)})
    expected = bootstrap_interval(own)
    cells, scores = [], UnitStatistics.scores
    monkeypatch.setattr(UnitStatistics, "scores", lambda own, w, u: (cells.append(w.size), scores(own, w, u))[1])
    monkeypatch.setattr(uncertainty, "MAX_WEIGHTS", 220)
    assert bootstrap_interval(own) == pytest.approx(expected, abs=0.5)
    assert (max(cells), sum(cells)) == (7 * 30, RESAMPLES * 30)


def test_difference_is_paired_by_unit_and_has_its_standard_error():
    rng = np.random.default_rng(1)
    hard = rng.random(2000) < 0.3
    old, new = (np.where(hard, rng.random(2000) < 0.5, True) for _ in range(2))
    drawn = resample([shares(new), shares(old)])
    difference = drawn[:, 0] - drawn[:, 1]
    assert drawn.shape == (RESAMPLES, 2)
    expected = 100.0 * standard.stdev((new.astype(int) - old).tolist()) / 2000**0.5
    assert difference.std() == pytest.approx(expected, rel=0.1)
    assert difference.mean() == pytest.approx(100.0 * (new.mean() - old.mean()), abs=0.15)
    # Where both are right and wrong together there is no doubt about a difference of 0.
    same = resample([shares(new), shares(new)])
    assert not (same[:, 0] - same[:, 1]).any()


def test_seeds_widen_the_interval():
    units = np.ones(400, dtype=bool)
    half = np.arange(400) % 2 == 0
    low, high = interval_of(resample([shares(units, half), shares(units)])[:, 0])
    assert (low, high) == (pytest.approx(50.0, abs=4.0), 100.0)  # two good seeds, two bad ones, or both


def test_units_are_paired_by_id_whatever_their_order():
    one = shares(np.arange(50) % 3 == 0)
    shuffled = np.random.default_rng(0).permutation(50)
    other = dataclasses.replace(one, ids=tuple(one.ids[index] for index in shuffled), values=one.values[:, shuffled])
    drawn = resample([one, other])
    assert not (drawn[:, 0] - drawn[:, 1]).any()
    with pytest.raises(InputError, match="50 scored units, expected the 49"):
        resample([shares(np.ones(49)), one])


def test_trainings_are_stacked():
    both = stacked([shares([1, 0]), dataclasses.replace(shares([1, 1]), seeds=(7,))])
    assert (both.seeds, both.scores().tolist()) == ((0, 7), [[50.0, 100.0]])


@pytest.mark.parametrize("change", ["ids", "form", "values"])
def test_damaged_statistics_are_refused(change):
    document = json.loads(shares([1, 0]).to_json()) | {change: ["x"] if change != "form" else "other"}
    with pytest.raises(InputError, match="not the statistics of a score"):
        UnitStatistics.from_json(json.dumps(document))


@pytest.mark.parametrize(
    ("score", "majority", "count", "expected"),
    [(50.0, 50.0, 300, True), (52.8, 50.0, 300, True), (53.0, 50.0, 300, False), (40.0, 50.0, 300, True)],
)
def test_chance_is_within_one_standard_error_of_the_majority_baseline(score, majority, count, expected):
    assert is_at_chance(score, majority, standard_error(count)) is expected


def test_standard_error_is_of_examples_and_seeds():
    assert standard_error(2500) == 1.0  # one seed is not certain
    assert standard_error(2500, sd=2.0, num_seeds=4) == pytest.approx(2**0.5)
    assert is_at_chance(50.9, 50.0, standard_error(2500))
    assert not is_at_chance(51.1, 50.0, standard_error(2500))
    assert not is_at_chance(0.0, None, 1.0)  # without a baseline
