"""Classes and calibration against scikit-learn."""

import numpy as np
import pytest
import sklearn.metrics

from bert_model.metrics import glue
from bert_model.metrics.analysis import (
    best_temperature,
    best_threshold,
    calibration_error,
    class_scores,
    entity_scores,
    label_scores,
)

SEEDS = range(5)


@pytest.mark.parametrize("seed", SEEDS)
def test_confusion_and_class_scores_equal_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    labels = ["a", "b", "c", "d"]
    gold, predicted = (list(rng.choice(labels[: 4 - seed % 2], size=50)) for _ in range(2))
    confusion = glue.confusion_matrix(gold, predicted, labels)
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
    assert calibration_error([0.9, 0.9, 0.6, 0.6], [True, True, False, True]) == pytest.approx(10.0)
    assert calibration_error([1.0, 1.0], [True, True]) == 0.0
    assert calibration_error([0.0, 1.0], [True, False]) == 100.0


def test_labels_of_a_multilabel_task_are_scored_each():
    found = label_scores([("a", "b"), ("b",), ()], [("a",), ("a", "b"), ("b",)], ["a", "b"])
    assert found[0] == {"label": "a", "n": 1, "predicted": 2, "precision": 50.0, "recall": 100.0, "f1": 66.6667}
    assert found[1] == {"label": "b", "n": 2, "predicted": 2, "precision": 50.0, "recall": 50.0, "f1": 50.0}


def test_temperature_undoes_a_scale_of_the_logits():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(4000, 3)) * 2
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    gold = np.asarray([rng.choice(3, p=row) for row in shares])
    for scale in (0.5, 1.0, 3.0):
        assert best_temperature(logits * scale, gold) == pytest.approx(scale, rel=0.1)
    # A few right answers do not make a model certain.
    assert 0.4 < best_temperature(np.asarray([[3.0, 0.0]] * 10), np.zeros(10, dtype=np.int64)) < 1.0


def test_threshold_is_that_of_the_best_f1():
    rng = np.random.default_rng(1)
    for _ in range(20):
        values = np.round(rng.random(60), 2)
        applies = rng.random(60) < values**2
        scores = {t: sklearn.metrics.f1_score(applies, values > t, zero_division=0) for t in [0.5, *values, -1.0]}
        chosen = best_threshold(applies, values)
        assert sklearn.metrics.f1_score(applies, values > chosen, zero_division=0) == pytest.approx(
            max(scores.values())
        )
    assert best_threshold(np.zeros(3, dtype=bool), np.asarray([0.1, 0.6, 0.7])) == 0.5


def test_area_under_the_curve_and_errors_equal_scikit_learn():
    rng = np.random.default_rng(2)
    applies, values = rng.random((80, 3)) < 0.4, np.round(rng.random((80, 3)), 1)
    expected = 100 * sklearn.metrics.roc_auc_score(applies, values, average="macro")
    assert glue.mean_auc(applies, values) == pytest.approx(expected)
    assert glue.mean_auc(applies[:, :1] & False, values[:, :1]) == 50.0
    gold, predicted = values[:, 0], values[:, 1]
    assert glue.rmse(gold, predicted) == pytest.approx(sklearn.metrics.root_mean_squared_error(gold, predicted))
    assert glue.mae(gold, predicted) == pytest.approx(sklearn.metrics.mean_absolute_error(gold, predicted))
