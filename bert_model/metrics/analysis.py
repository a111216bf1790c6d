"""What is behind a score: classes, confusion and calibration; scores from 0 to 100.

In NumPy for the reason that `glue` gives; the tests compare with scikit-learn.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bert_model.metrics import glue, ner

CALIBRATION_BINS = 15
"""Number of bins of Guo et al. 2017, arXiv 1706.04599."""


def confusion_matrix(gold: Sequence[str], predicted: Sequence[str], labels: Sequence[str]) -> NDArray[np.int64]:
    """Count the pairs of labels, (labels, labels): rows are gold, columns predicted."""
    index = {label: number for number, label in enumerate(labels)}
    cells = [index[a] * len(labels) + index[b] for a, b in zip(gold, predicted, strict=True)]
    return np.bincount(cells, minlength=len(labels) ** 2).reshape(len(labels), len(labels))


def class_scores(confusion: NDArray[np.int64], labels: Sequence[str]) -> list[dict[str, Any]]:
    """Return counts, precision, recall and F1 of each class; a score without a denominator is 0."""
    num_gold, num_predicted = confusion.sum(axis=1), confusion.sum(axis=0)
    return [
        counted_scores(label, int(confusion[index, index]), int(num_gold[index]), int(num_predicted[index]))
        for index, label in enumerate(labels)
    ]


def entity_scores(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """Return counts, precision, recall and F1 of the entities of each type, as conlleval counts them."""
    counts: dict[str, list[int]] = {}
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        sides = ner.chunks(gold_tags), ner.chunks(predicted_tags)
        for column, chunks in enumerate((sides[0] & sides[1], *sides)):
            for *_, entity in chunks:
                counts.setdefault(entity, [0, 0, 0])[column] += 1
    return [counted_scores(entity, *counts[entity]) for entity in sorted(counts)]


def label_scores(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], labels: Sequence[str]
) -> list[dict[str, Any]]:
    """Return counts, precision, recall and F1 of each label of a multi-label task."""
    a, b = glue.label_matrix(gold, labels), glue.label_matrix(predicted, labels)
    counts = zip((a & b).sum(axis=0), a.sum(axis=0), b.sum(axis=0))
    return [counted_scores(label, *map(int, own)) for label, own in zip(labels, counts)]


def counted_scores(label: str, num_correct: int, num_gold: int, num_predicted: int) -> dict[str, Any]:
    """Return a class with its counts, precision, recall and F1."""
    return {
        "label": label,
        "n": num_gold,
        "predicted": num_predicted,
        "precision": round(100.0 * num_correct / num_predicted, 4) if num_predicted else 0.0,
        "recall": round(100.0 * num_correct / num_gold, 4) if num_gold else 0.0,
        "f1": round(200.0 * num_correct / (num_gold + num_predicted), 4) if num_correct else 0.0,
    }


def calibration_error(confidences: ArrayLike, correct: ArrayLike) -> float:
    """Return the expected calibration error: the mean gap between confidence and accuracy over bins of confidence."""
    confidence, right = np.asarray(confidences, dtype=np.float64), np.asarray(correct, dtype=np.float64)
    bins = np.clip(np.ceil(confidence * CALIBRATION_BINS).astype(np.int64) - 1, 0, CALIBRATION_BINS - 1)
    gaps = np.bincount(bins, weights=confidence - right)
    return float(100.0 * np.abs(gaps).sum() / len(confidence))
