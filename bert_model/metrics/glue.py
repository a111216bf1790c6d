"""Metrics of classification and regression, in NumPy, on the scale of 0 to 100."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray


def accuracy(gold: Sequence[object], predicted: Sequence[object]) -> float:
    """Return the share of equal pairs."""
    return 100.0 * sum(a == b for a, b in zip(gold, predicted, strict=True)) / len(gold)


def f1(gold: Sequence[object], predicted: Sequence[object], positive: object) -> float:
    """Return the harmonic mean of precision and recall of the class `positive`; 0 when it is never right."""
    pairs = list(zip(gold, predicted, strict=True))
    correct = sum(a == positive and b == positive for a, b in pairs)
    claimed = sum(b == positive for _, b in pairs)
    present = sum(a == positive for a, _ in pairs)
    return 100.0 * 2 * correct / (claimed + present) if correct else 0.0


def macro_f1(gold: Sequence[object], predicted: Sequence[object]) -> float:
    """Return the mean of the F1 of every class that occurs in either."""
    classes = sorted({*gold, *predicted}, key=str)
    return float(np.mean([f1(gold, predicted, label) for label in classes]))


def matthews(gold: Sequence[object], predicted: Sequence[object]) -> float:
    """Return Matthews' correlation of two or more classes (Gorodkin 2004); 0 when either side is constant."""
    classes = {label: number for number, label in enumerate(sorted({*gold, *predicted}, key=str))}
    confusion = np.zeros((len(classes), len(classes)))
    for a, b in zip(gold, predicted, strict=True):
        confusion[classes[a], classes[b]] += 1
    total, correct = confusion.sum(), np.trace(confusion)
    present, claimed = confusion.sum(axis=1), confusion.sum(axis=0)
    covariance = correct * total - present @ claimed
    spread = (total**2 - claimed @ claimed) * (total**2 - present @ present)
    return float(100.0 * covariance / np.sqrt(spread)) if spread else 0.0


def pearson(gold: ArrayLike, predicted: ArrayLike) -> float:
    """Return Pearson's correlation; 0 when either side is constant (a constant predicts nothing)."""
    a, b = np.asarray(gold, dtype=np.float64), np.asarray(predicted, dtype=np.float64)
    assert a.shape == b.shape, (a.shape, b.shape)
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    a, b = a - a.mean(), b - b.mean()
    spread = np.linalg.norm(a) * np.linalg.norm(b)
    return float(100.0 * np.clip(a @ b / spread, -1.0, 1.0)) if spread else 0.0


def spearman(gold: Sequence[float], predicted: Sequence[float]) -> float:
    """Return Spearman's correlation: Pearson's of the ranks, equal values sharing their mean rank."""
    return pearson(ranks(gold), ranks(predicted))


def ranks(values: ArrayLike) -> NDArray[np.float64]:
    """Return the rank of each value from 1, equal values at the mean of their ranks."""
    _, inverse, counts = np.unique(np.asarray(values, dtype=np.float64), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]
