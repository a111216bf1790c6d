"""What is behind a score: classes and calibration; scores from 0 to 100.

In NumPy for the reason that `glue` gives; the tests compare with scikit-learn.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bert_model.metrics import glue, ner

CALIBRATION_BINS = 15
"""Number of bins of Guo et al. 2017, arXiv 1706.04599."""


def class_scores(confusion: NDArray[np.int64], labels: Sequence[str]) -> list[dict[str, Any]]:
    """Return counts, precision, recall and F1 of each class; a score without a denominator is 0."""
    return _scores_of_counts(labels, np.diag(confusion), confusion.sum(axis=1), confusion.sum(axis=0))


def label_scores(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], labels: Sequence[str]
) -> list[dict[str, Any]]:
    """Return counts, precision, recall and F1 of each label of a multi-label task."""
    a, b = glue.label_matrix(gold, labels), glue.label_matrix(predicted, labels)
    return _scores_of_counts(labels, *(applies.sum(axis=0) for applies in (a & b, a, b)))


def entity_scores(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """Return counts, precision, recall and F1 of the entities of each type, as conlleval counts them."""
    a, b = (
        {(index, *chunk) for index, tags in enumerate(side) for chunk in ner.chunks(tags)} for side in (gold, predicted)
    )
    counts = [Counter(entity for *_, entity in chunks) for chunks in (a & b, a, b)]
    entities = sorted(counts[1] | counts[2])
    return _scores_of_counts(entities, *([own[entity] for entity in entities] for own in counts))


def _scores_of_counts(labels: Sequence[str], *counts: Iterable[int]) -> list[dict[str, Any]]:
    """Return each class with its scores, from what is right, what is in gold and what is predicted of it."""
    return [
        {
            "label": label,
            "n": num_gold,
            "predicted": num_predicted,
            "precision": round(100.0 * num_correct / num_predicted, 4) if num_predicted else 0.0,
            "recall": round(100.0 * num_correct / num_gold, 4) if num_gold else 0.0,
            "f1": round(200.0 * num_correct / (num_gold + num_predicted), 4) if num_correct else 0.0,
        }
        for label, num_correct, num_gold, num_predicted in zip(labels, *(map(int, own) for own in counts))
    ]


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
