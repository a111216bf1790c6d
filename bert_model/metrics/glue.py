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


def confusion_matrix(gold: Sequence[Any], predicted: Sequence[Any], labels: Sequence[Any]) -> NDArray[np.int64]:
    """Count the pairs of labels, (labels, labels): rows are gold, columns predicted."""
    index = {label: number for number, label in enumerate(labels)}
    cells = [index[a] * len(labels) + index[b] for a, b in zip(gold, predicted, strict=True)]
    return np.bincount(cells, minlength=len(labels) ** 2).reshape(len(labels), len(labels))


def f1(gold: Sequence[object], predicted: Sequence[object], positive: object) -> float:
    """Return the F1 of the class `positive`; 0 if it is never predicted correctly."""
    a, b = ([label == positive for label in side] for side in (gold, predicted))
    return metric_of_confusion("f1", confusion_matrix(a, b, [False, True]))


def macro_f1(gold: Sequence[object], predicted: Sequence[object]) -> float:
    """Return the mean F1 of all classes that occur in either sequence."""
    return metric_of_confusion("macro_f1", confusion_matrix(gold, predicted, sorted({*gold, *predicted}, key=str)))


def matthews(gold: Sequence[object], predicted: Sequence[object]) -> float:
    """Return Matthews' correlation of two or more classes (Gorodkin 2004); 0 if either sequence is constant."""
    return metric_of_confusion("matthews", confusion_matrix(gold, predicted, sorted({*gold, *predicted}, key=str)))


def multilabel_f1(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], labels: Sequence[str]
) -> dict[str, float]:
    """Return "micro_f1", of all decisions, and "macro_f1", the mean over labels (0 for one never predicted right)."""
    a, b = label_matrix(gold, labels), label_matrix(predicted, labels)
    return f1_of_sums((a & b).sum(axis=0), a.sum(axis=0) + b.sum(axis=0))


def label_matrix(rows: Sequence[Sequence[str]], labels: Sequence[str]) -> NDArray[np.bool_]:
    """Return which labels apply to each example, (N, labels)."""
    places = {label: place for place, label in enumerate(labels)}
    matrix = np.zeros((len(rows), len(labels)), dtype=bool)
    for own, row in zip(matrix, rows):
        own[[places[label] for label in row]] = True
    return matrix


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


def metric_of_confusion(metric: str, confusion: NDArray[Any]) -> float:
    """Return "f1" of the last class, "macro_f1" or "matthews" from counts (gold classes, predicted classes)."""
    confusion = confusion.astype(np.float64)  # the product of two variances may be too large for integers
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
    rows = np.stack([gold, predicted], axis=1)
    return float(correlations(rows, np.ones((1, len(rows))))[0])


def spearman(gold: ArrayLike, predicted: ArrayLike) -> float:
    """Return Spearman's rank correlation; 0 if either sequence is constant."""
    return pearson(ranks(gold), ranks(predicted))


def correlations(rows: NDArray[Any], weights: NDArray[Any], *, ranked: bool = False) -> NDArray[np.float64]:
    """Return Pearson's correlation of rows (U, 2), or that of their ranks, for each of the weights (R, U)."""
    total = weights.sum(axis=1, keepdims=True)
    sides: list[NDArray[np.float64]] = []
    spreads: list[NDArray[np.float64]] = []
    for column in rows.T.astype(np.float64):
        values = ranks(column, weights) if ranked else np.broadcast_to(column, weights.shape)
        weighted = weights * values
        size = np.einsum("ru,ru->r", weighted, values)
        centered = values - weighted.sum(axis=1, keepdims=True) / total
        weighted = weights * centered
        spread = np.einsum("ru,ru->r", weighted, centered)
        # Where all drawn values are equal, rounding leaves a spread.
        spreads.append(np.where(spread > 1e-18 * size, spread, 0.0))
        sides.append(centered if sides else weighted)
    norms = np.sqrt(spreads[0] * spreads[1])
    products = np.einsum("ru,ru->r", *sides)
    return np.asarray(100.0 * np.clip(np.divide(products, norms, out=np.zeros_like(norms), where=norms > 0), -1.0, 1.0))


def ranks(values: ArrayLike, weights: NDArray[Any] | None = None) -> NDArray[np.float64]:
    """Return the rank of each value from 1; equal values share the mean of their ranks.

    With `weights` (R, U) each value counts that often, and the ranks are (R, U).
    """
    _, inverse = np.unique(values, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    starts = np.flatnonzero(np.diff(inverse[order], prepend=-1))
    counts = np.add.reduceat((np.ones((1, len(order))) if weights is None else weights)[:, order], starts, axis=1)
    found = (np.cumsum(counts, axis=1) - (counts - 1.0) / 2.0)[:, inverse]  # (R, distinct values) of each value
    return np.asarray(found[0] if weights is None else found)


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
