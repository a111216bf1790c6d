"""Classes and calibration against scikit-learn."""

import numpy as np
import pytest
import sklearn.metrics

from bert_model.metrics.analysis import (
    calibration_error,
    class_scores,
    confusion_matrix,
    entity_scores,
    label_scores,
)

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
    assert calibration_error([0.9, 0.9, 0.6, 0.6], [True, True, False, True]) == pytest.approx(10.0)
    assert calibration_error([1.0, 1.0], [True, True]) == 0.0
    assert calibration_error([0.0, 1.0], [True, False]) == 100.0


def test_labels_of_a_multilabel_task_are_scored_each():
    found = label_scores([("a", "b"), ("b",), ()], [("a",), ("a", "b"), ("b",)], ["a", "b"])
    assert found[0] == {"label": "a", "n": 1, "predicted": 2, "precision": 50.0, "recall": 100.0, "f1": 66.6667}
    assert found[1] == {"label": "b", "n": 2, "predicted": 2, "precision": 50.0, "recall": 50.0, "f1": 50.0}
