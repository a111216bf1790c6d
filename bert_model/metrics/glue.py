"""Metrics of classification and regression by scikit-learn and SciPy, on the scale of 0 to 100.

The libraries are imported on first use: they take a second and 150 MB, which a training worker can do without.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def accuracy(gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """Return the share of equal pairs."""
    from sklearn.metrics import accuracy_score

    return float(100.0 * accuracy_score(gold, predicted))


def f1(gold: Sequence[Any], predicted: Sequence[Any], positive: Any) -> float:
    """Return the F1 of the class `positive`; 0 if it is never predicted correctly."""
    from sklearn.metrics import f1_score

    return float(100.0 * f1_score(gold, predicted, labels=[positive], average="macro", zero_division=0))


def macro_f1(gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """Return the mean F1 of all classes that occur in either sequence."""
    from sklearn.metrics import f1_score

    return float(100.0 * f1_score(gold, predicted, average="macro", zero_division=0))


def matthews(gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """Return Matthews' correlation of two or more classes; 0 if either sequence is constant."""
    from sklearn.metrics import matthews_corrcoef

    return float(100.0 * matthews_corrcoef(gold, predicted))


def pearson(gold: Sequence[float], predicted: Sequence[float]) -> float:
    """Return Pearson's correlation; 0 if either sequence is constant."""
    from scipy.stats import pearsonr

    return _correlation(pearsonr, gold, predicted)


def spearman(gold: Sequence[float], predicted: Sequence[float]) -> float:
    """Return Spearman's rank correlation; 0 if either sequence is constant."""
    from scipy.stats import spearmanr

    return _correlation(spearmanr, gold, predicted)


def _correlation(correlate: Callable[..., Any], gold: Sequence[float], predicted: Sequence[float]) -> float:
    # SciPy returns NaN for a constant: a model that predicts nothing scores 0.
    if len(gold) < 2 or np.ptp(gold) == 0 or np.ptp(predicted) == 0:
        return 0.0
    return float(100.0 * correlate(gold, predicted).statistic)
