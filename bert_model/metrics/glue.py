"""Metrics of classification and regression, in NumPy, on the scale of 0 to 100.

Implemented here although scikit-learn and SciPy have them: importing those takes 1.3 s and 150 MB in every process that
scores, for as many lines of adapters, and a constant input would need the same special cases. The tests compare.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def accuracy(gold: Sequence[object], predicted: Sequence[object]) -> float:
    """Return the share of equal pairs."""
    return 100.0 * sum(a == b for a, b in zip(gold, predicted, strict=True)) / len(gold)


def f1(gold: Sequence[object], predicted: Sequence[object], positive: object) -> float:
    """Return the F1 of the class `positive`; 0 if it is never predicted correctly."""
    pairs = list(zip(gold, predicted, strict=True))
    correct = sum(a == positive and b == positive for a, b in pairs)
    num_predicted = sum(b == positive for _, b in pairs)
    num_gold = sum(a == positive for a, _ in pairs)
    return 100.0 * 2 * correct / (num_predicted + num_gold) if correct else 0.0


def macro_f1(gold: Sequence[object], predicted: Sequence[object]) -> float:
    """Return the mean F1 of all classes that occur in either sequence."""
    classes = sorted({*gold, *predicted}, key=str)
    return float(np.mean([f1(gold, predicted, label) for label in classes]))


def multilabel_f1(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], labels: Sequence[str]
) -> dict[str, float]:
    """Return "micro_f1", of all decisions, and "macro_f1", the mean over labels (0 for one never predicted right)."""
    a, b = label_matrix(gold, labels), label_matrix(predicted, labels)
    return f1_of_sums((a & b).sum(axis=0), a.sum(axis=0) + b.sum(axis=0))


def label_matrix(rows: Sequence[Sequence[str]], labels: Sequence[str]) -> NDArray[np.bool_]:
    """Return which labels apply to each example, (N, labels)."""
    return np.asarray([[label in row for label in labels] for row in rows])


def f1_of_sums(right: NDArray[Any], total: NDArray[Any]) -> dict[str, float]:
    """Return `multilabel_f1` from counts by label: of pairs that both have it, and of all that have it, (labels,)."""
    return {
        "micro_f1": float(200.0 * right.sum() / max(total.sum(), 1)),
        "macro_f1": float(np.mean(200.0 * right / np.maximum(total, 1))),
    }


def grouped_exact_match(ids: Sequence[str], gold: Sequence[object], predicted: Sequence[object]) -> float:
    """Return the share of groups without an error (MultiRC's EM)."""
    right = right_groups(ids, gold, predicted)
    return 100.0 * sum(right.values()) / len(right)


def right_groups(ids: Sequence[str], gold: Sequence[object], predicted: Sequence[object]) -> dict[str, bool]:
    """Return group -> whether it is without an error.

    Ids of one group differ after their last "-" only; an id without "-" is a group of its own.
    """
    right: dict[str, bool] = {}
    for example_id, a, b in zip(ids, gold, predicted, strict=True):
        group = example_id.rpartition("-")[0] or example_id
        right[group] = right.get(group, True) and a == b
    return right


def matthews(gold: Sequence[object], predicted: Sequence[object]) -> float:
    """Return Matthews' correlation of two or more classes (Gorodkin 2004); 0 if either sequence is constant."""
    classes = {label: number for number, label in enumerate(sorted({*gold, *predicted}, key=str))}
    confusion = np.zeros((len(classes), len(classes)))
    for a, b in zip(gold, predicted, strict=True):
        confusion[classes[a], classes[b]] += 1
    return metric_of_confusion("matthews", confusion)


def metric_of_confusion(metric: str, confusion: NDArray[Any]) -> float:
    """Return "f1" of the last class, "macro_f1" or "matthews" from counts (gold classes, predicted classes)."""
    if metric != "matthews":
        right, sizes = np.diag(confusion), confusion.sum(axis=0) + confusion.sum(axis=1)
        scores = 200.0 * right / np.maximum(sizes, 1)
        return float(scores[-1] if metric == "f1" else scores[sizes > 0].mean())

    # Covariances over the confusion matrix, gold classes in rows; a constant sequence has a variance of 0.
    total, correct = confusion.sum(), np.trace(confusion)
    num_gold, num_predicted = confusion.sum(axis=1), confusion.sum(axis=0)
    covariance = correct * total - num_gold @ num_predicted
    variances = (total**2 - num_predicted @ num_predicted) * (total**2 - num_gold @ num_gold)
    return float(100.0 * covariance / np.sqrt(variances)) if variances else 0.0


def pearson(gold: ArrayLike, predicted: ArrayLike) -> float:
    """Return Pearson's correlation; 0 if either sequence is constant."""
    a, b = np.asarray(gold, dtype=np.float64), np.asarray(predicted, dtype=np.float64)
    assert a.shape == b.shape, (a.shape, b.shape)
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    a, b = a - a.mean(), b - b.mean()
    norms = np.linalg.norm(a) * np.linalg.norm(b)  # 0 if a spread is too small for float64
    return float(100.0 * np.clip(a @ b / norms, -1.0, 1.0)) if norms else 0.0


def spearman(gold: Sequence[float], predicted: Sequence[float]) -> float:
    """Return Spearman's rank correlation; 0 if either sequence is constant."""
    return pearson(ranks(gold), ranks(predicted))


def rmse(gold: ArrayLike, predicted: ArrayLike) -> float:
    """Return the root of the mean squared error, on the scale of the numbers."""
    return float(np.sqrt(np.mean(np.square(np.subtract(gold, predicted, dtype=np.float64)))))


def mae(gold: ArrayLike, predicted: ArrayLike) -> float:
    """Return the mean absolute error, on the scale of the numbers."""
    return float(np.mean(np.abs(np.subtract(gold, predicted, dtype=np.float64))))


ERRORS = ("rmse", "mae")
"""Metrics of which the lowest is the best."""


def mean_auc(applies: NDArray[np.bool_], values: NDArray[Any]) -> float:
    """Return the mean area under the ROC curves of labels, (N, labels) each; 50 if none has both kinds of examples."""
    areas = []
    for own, scores in zip(applies.T, values.T):
        if 0 < (count := int(own.sum())) < len(own):
            pairs = ranks(scores)[own].sum() - count * (count + 1) / 2
            areas.append(100.0 * pairs / (count * (len(own) - count)))
    return float(np.mean(areas)) if areas else 50.0


def ranks(values: ArrayLike) -> NDArray[np.float64]:
    """Return the rank of each value from 1; equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(np.asarray(values, dtype=np.float64), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[inverse])
