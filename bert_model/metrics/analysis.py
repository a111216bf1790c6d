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


def best_temperature(logits: NDArray[Any], gold: NDArray[np.int64]) -> float:
    """Return what logits (N, C) are to be divided by for the likeliest classes `gold`, (N,) (Guo et al. 2017).

    Few examples say little: their likelihood is weighed against one by which temperatures far from 1 are unlikely.
    """
    rows, right = logits.astype(np.float64), np.arange(len(gold))

    def loss(log_temperature: float) -> float:
        scaled = rows / np.exp(log_temperature)
        top = scaled.max(axis=-1, keepdims=True)
        sums = top[:, 0] + np.log(np.exp(scaled - top).sum(axis=-1))
        return float((sums - scaled[right, gold]).sum() + 2.0 * log_temperature**2)

    # Golden-section search.
    low, high, share = -2.0, 2.0, (5.0**0.5 - 1) / 2
    while high - low > 1e-4:
        a, b = high - share * (high - low), low + share * (high - low)
        low, high = (low, b) if loss(a) < loss(b) else (a, high)
    return round(float(np.exp((low + high) / 2)), 3)


def best_threshold(applies: NDArray[np.bool_], probabilities: NDArray[Any]) -> float:
    """Return the probability above which a label applies for the best F1, (N,) each; the nearest to 1/2 of equals."""
    order = np.argsort(-probabilities, kind="stable")
    values = probabilities[order]
    f1 = 2.0 * np.cumsum(applies[order]) / (np.arange(1, len(order) + 1) + max(1, applies.sum()))
    between = np.append((values[:-1] + values[1:]) / 2.0, values[-1] / 2.0)
    # Equal probabilities fall on one side.
    f1 = np.where(np.append(values[:-1] > values[1:], True), f1, -1.0)
    at_half = int((values > 0.5).sum())
    if not applies.any() or (at_half and f1[at_half - 1] == f1.max()):
        return 0.5
    best = np.flatnonzero(f1 == f1.max())
    return float(between[best[np.abs(between[best] - 0.5).argmin()]])


def calibration_error(confidences: ArrayLike, correct: ArrayLike) -> float:
    """Return the expected calibration error: the mean gap between confidence and accuracy over bins of confidence."""
    confidence, right = np.asarray(confidences, dtype=np.float64), np.asarray(correct, dtype=np.float64)
    bins = np.clip(np.ceil(confidence * CALIBRATION_BINS).astype(np.int64) - 1, 0, CALIBRATION_BINS - 1)
    gaps = np.bincount(bins, weights=confidence - right)
    return float(100.0 * np.abs(gaps).sum() / len(confidence))
