"""Classes, calibration and bootstrap intervals against scikit-learn, SciPy and scoring by task."""

import dataclasses

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
import tiny_tasks

from bert_model.metrics import score
from bert_model.metrics.analysis import (
    bootstrap_interval,
    calibration_error,
    class_scores,
    confusion_matrix,
    entity_scores,
    label_scores,
    main_statistic,
)
from bert_pipeline.tasks.catalogue import TASKS, Task
from bert_pipeline.tasks.example import TextExample
from bert_pipeline.tasks.task import get_task

SEEDS = range(5)


@pytest.mark.parametrize("seed", SEEDS)
def test_confusion_and_class_scores_equal_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    labels = ["a", "b", "c", "d"]
    gold, predicted = (list(rng.choice(labels[: 4 - seed % 2], size=50)) for _ in range(2))
    confusion = confusion_matrix(gold, predicted, labels)
    assert (confusion == sklearn.metrics.confusion_matrix(gold, predicted, labels=labels)).all()
    expected = sklearn.metrics.precision_recall_fscore_support(gold, predicted, labels=labels, zero_division=0)
    for found, *values in zip(class_scores(confusion, labels), *expected):
        assert [found["precision"], found["recall"], found["f1"]] == pytest.approx(
            [100 * v for v in values[:3]], abs=1e-3
        )
        assert found["n"] == values[3]


def test_entities_are_counted_by_type():
    gold = [["B-PER", "I-PER", "O", "B-LOC"], ["B-LOC", "O"]]
    predicted = [["B-PER", "I-PER", "O", "B-PER"], ["B-LOC", "B-LOC"]]
    location, person = entity_scores(gold, predicted)
    assert location == {"label": "LOC", "n": 2, "predicted": 2, "precision": 50.0, "recall": 50.0, "f1": 50.0}
    assert person == {"label": "PER", "n": 1, "predicted": 2, "precision": 50.0, "recall": 100.0, "f1": 66.6667}


def test_calibration_error_is_the_mean_gap_over_bins():
    assert calibration_error([0.9, 0.9, 0.6, 0.6], [True, True, False, True], num_bins=10) == pytest.approx(10.0)
    assert calibration_error([1.0, 1.0], [True, True]) == 0.0
    assert calibration_error([0.0, 1.0], [True, False]) == 100.0


@pytest.mark.parametrize("name", sorted(TASKS))
def test_statistic_of_resampled_examples_is_the_tasks_metric(name):
    task = get_task(name)
    rng = np.random.default_rng(3)
    examples = tiny_tasks.task_data(name, num_dev=40).dev[next(iter(task.dev_files))]
    predictions = {
        example.example_id: prediction_of(examples[index], task)
        for example, index in zip(examples, rng.permutation(40))
    }
    statistic, count = main_statistic(task, examples, predictions)
    assert count == 40
    for indices in (np.arange(40), rng.integers(40, size=40)):
        drawn = [dataclasses.replace(examples[index], example_id=str(place)) for place, index in enumerate(indices)]
        answers = {str(place): predictions[examples[index].example_id] for place, index in enumerate(indices)}
        assert statistic(indices) == pytest.approx(score(task, drawn, answers)[task.main_metric], abs=1e-9)


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
    task = Task(
        name="own", title="Own", kind=kind, labels=("a", "b", "c"), metrics=(metric,), main_metric=metric, folder="own"
    )
    rng = np.random.default_rng(1)

    def draw():
        if kind == "multilabel":
            return tuple(label for label in task.labels if rng.random() < 0.5)
        return str(rng.choice(["a", "c"]))  # a class may be absent

    ids = [f"{number // 3}-{number % 3}" for number in range(30)]  # groups of three, as MultiRC's
    examples = [TextExample(key, "text", None, draw()) for key in ids]
    predictions = {example.example_id: example.label if rng.random() < 0.6 else draw() for example in examples}
    statistic, count = main_statistic(task, examples, predictions)
    assert count == (10 if metric == "exact_match" else 30)
    assert statistic(np.arange(count)) == pytest.approx(score(task, examples, predictions)[metric])
    low, high = bootstrap_interval(statistic, count)
    assert low < statistic(np.arange(count)) < high


def test_labels_of_a_multilabel_task_are_scored_each():
    found = label_scores([("a", "b"), ("b",), ()], [("a",), ("a", "b"), ("b",)], ["a", "b"])
    assert found[0] == {"label": "a", "n": 1, "predicted": 2, "precision": 50.0, "recall": 100.0, "f1": 66.6667}
    assert found[1] == {"label": "b", "n": 2, "predicted": 2, "precision": 50.0, "recall": 50.0, "f1": 50.0}


def prediction_of(example, task):
    if task.kind == "span":
        return example.answers[0].text if example.answers else ""
    return example.tags if task.kind == "tagging" else example.label


def test_interval_is_seeded_and_equals_scipys():
    values = np.random.default_rng(0).random(200) < 0.7
    low, high = bootstrap_interval(lambda indices: 100.0 * float(values[indices].mean()), 200, seed=5)
    assert (low, high) == bootstrap_interval(lambda indices: 100.0 * float(values[indices].mean()), 200, seed=5)
    theirs = scipy.stats.bootstrap((100.0 * values,), np.mean, method="percentile", n_resamples=5000, rng=1)
    assert low == pytest.approx(theirs.confidence_interval.low, abs=1.0)
    assert high == pytest.approx(theirs.confidence_interval.high, abs=1.0)
