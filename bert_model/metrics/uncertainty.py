"""How far a score can be trusted: what it is computed from, resampled units and seeds, and whether it is at chance.

A score is kept with the statistics of its units, from which its metric is computed again: the examples, or the groups
of a metric on groups. All scores are on the scale of 0 to 100.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert_model.metrics import glue, ner
from bert_pipeline.errors import InputError

STATISTICS_NAME = "statistics.json"
"""File of a fine-tuned model, and of its registered version, with the statistics of every seed of its score."""
CONFIDENCE = 0.95
RESAMPLES = 1000
CHUNK, MAX_WEIGHTS = 100, 10_000_000
"""Resamples that are in memory at once, and how many weights they may have: a correlation has one for each example."""


def standard_error(num_examples: int, sd: float = 0.0, num_seeds: int = 1) -> float:
    """Return the standard error of a mean score over seeds: of a share of 1/2 at N examples, and of the seeds."""
    return math.hypot(100.0 * math.sqrt(0.25 / max(1, num_examples)), sd / math.sqrt(max(1, num_seeds)))


def is_at_chance(score: float, baseline: float | None, error: float) -> bool:
    """Return whether a score is at most one standard error above its trivial baseline; False without a baseline."""
    return baseline is not None and score - baseline <= error


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class UnitStatistics:
    """The units of a split with what each training got of them: N units, S trainings, K numbers."""

    metric: str
    form: str
    """How the metric is computed from the rows: a key of `_FORMS`."""
    ids: tuple[str, ...]
    """(N,) ids of the examples, or names of the groups."""
    seeds: tuple[int, ...]
    """(S,) seeds of the trainings."""
    values: NDArray[Any]
    """(S, N, K)."""
    num_classes: int = 0
    """Of a confusion matrix."""

    def scores(
        self, weights: NDArray[Any] | None = None, units: NDArray[np.int64] | None = None
    ) -> NDArray[np.float64]:
        """Return the metric of each training, (R, S): over all units once, or `units` (U,) with `weights` (R, U)."""
        rows = self.values if units is None else self.values[:, units]
        weights = np.ones((1, rows.shape[1])) if weights is None else weights
        return np.stack([_FORMS[self.form](self, own, weights) for own in rows], axis=1)

    def mean(self) -> float:
        """Return the mean score over the trainings."""
        return float(self.scores().mean())

    def aligned_with(self, other: "UnitStatistics") -> "UnitStatistics":
        """Return the same with its units in the order of another one's; InputError if they are not the same units."""
        if self.ids == other.ids:
            return self
        places = {key: index for index, key in enumerate(self.ids)}
        if len(self.ids) != len(other.ids) or places.keys() != set(other.ids):
            raise InputError(f"{len(self.ids)} scored units, expected the {len(other.ids)} of the other score")
        return dataclasses.replace(self, ids=other.ids, values=self.values[:, [places[key] for key in other.ids]])

    def to_json(self) -> str:
        """Serialize, for a file in the model directory."""
        document = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return json.dumps(document | {"values": self.values.tolist()}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "UnitStatistics":
        """Read what `to_json` wrote; InputError if it is something else."""
        try:
            document = json.loads(text)
            statistics = cls(**document | {key: tuple(document[key]) for key in ("ids", "seeds")})
            values = np.asarray(statistics.values)
            sizes = (len(statistics.seeds), len(statistics.ids))
            if statistics.form not in _FORMS or values.shape[:2] != sizes or values.ndim != 3 or not all(values.shape):
                raise ValueError(f"values of the shape {values.shape}, expected {sizes}")
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"not the statistics of a score ({error})") from error
        return dataclasses.replace(statistics, values=values)


def stacked(trainings: Sequence[UnitStatistics]) -> UnitStatistics:
    """Return the statistics of several trainings as one."""
    return dataclasses.replace(
        trainings[0],
        seeds=tuple(seed for training in trainings for seed in training.seeds),
        values=np.concatenate([training.values for training in trainings]),
    )


def resample(sides: Sequence[UnitStatistics], *, seed: int = 0) -> NDArray[np.float64]:
    """Return the mean score over trainings of each side, (RESAMPLES, sides), for draws of units and of trainings.

    All sides get the same units, which must be theirs, and each draws trainings of its own (Efron 1979).
    """
    sides = [side.aligned_with(sides[0]) for side in sides]
    rng = np.random.default_rng(seed)
    # A draw of units is a multinomial one over the distinct rows, of which there are few for most metrics.
    joint = np.concatenate([values for side in sides for values in side.values], axis=1)  # (N, all K)
    _, units, counts = np.unique(joint, axis=0, return_index=True, return_counts=True)
    chunks = []
    size = max(1, min(CHUNK, MAX_WEIGHTS // len(units)))
    for start in range(0, RESAMPLES, size):
        size = min(size, RESAMPLES - start)
        weights = rng.multinomial(len(joint), counts / len(joint), size=size).astype(np.float64)  # (R, U)
        means = []
        for side in sides:
            num_seeds = len(side.seeds)
            drawn = rng.multinomial(num_seeds, np.full(num_seeds, 1.0 / num_seeds), size=size)  # (R, S)
            means.append((side.scores(weights, units) * drawn).sum(axis=1) / num_seeds)
        chunks.append(np.stack(means, axis=1))
    return np.concatenate(chunks)


def interval_of(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the percentile interval of resampled values."""
    tail = 50.0 * (1.0 - CONFIDENCE)
    low, high = np.percentile(values, [tail, 100.0 - tail])
    return float(low), float(high)


def bootstrap_interval(statistics: UnitStatistics) -> tuple[float, float]:
    """Return the interval of a score over resampled units and trainings; equal ones for equal statistics."""
    return interval_of(resample([statistics], seed=0)[:, 0])


# --- metrics of weighted rows: (U, K) rows and (R, U) weights -> (R,) scores ---


def _of_sums(metric: Callable[["UnitStatistics", NDArray[Any], float], float]) -> Callable[..., NDArray[np.float64]]:
    """Return a form whose metric is computed from the sums of the rows and the number of units."""

    def compute(own: "UnitStatistics", rows: NDArray[Any], weights: NDArray[Any]) -> NDArray[np.float64]:
        sums = weights @ rows.astype(np.float64)
        return np.asarray([metric(own, row, count) for row, count in zip(sums, weights.sum(axis=1))])

    return compute


def _confusion(own: UnitStatistics, rows: NDArray[Any], weights: NDArray[Any]) -> NDArray[np.float64]:
    size = own.num_classes
    cells = rows[:, 0] * size + rows[:, 1]
    matrices = (np.bincount(cells, weights=row, minlength=size**2).reshape(size, size) for row in weights)
    return np.asarray([glue.metric_of_confusion(own.metric, matrix) for matrix in matrices])


_FORMS: dict[str, Callable[[UnitStatistics, NDArray[Any], NDArray[Any]], NDArray[np.float64]]] = {
    "mean": _of_sums(lambda own, sums, count: float(sums[0] / count)),
    "entities": _of_sums(lambda own, sums, count: ner.scores_of_counts(*sums.tolist())[own.metric]),
    "labels": _of_sums(lambda own, sums, count: glue.f1_of_sums(*np.split(sums, 2))[own.metric]),
    "confusion": _confusion,
    "correlation": lambda own, rows, weights: glue.correlations(rows, weights, ranked=own.metric == "spearman"),
}
"""Name of a form -> its metric."""
