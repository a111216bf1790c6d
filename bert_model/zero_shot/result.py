"""The result of an exam: the accuracy on each kind of minimal pair, beside a trigram model and chance."""

import collections
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import TypeAdapter

from bert_model.tables import format_table
from bert_pipeline.exam.pairs import Pair

CHANCE = 50.0
"""Accuracy on minimal pairs without any knowledge."""
_Z = 1.959963984540054
"""Quantile of the normal distribution for intervals of 95 %."""
EXAM_NAME = "exam.json"
"""File of a pre-trained model: its exam on the pairs for reporting, in the form that `bert exam --output` writes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class KindScore:
    """Accuracy on the pairs of one kind, from 0 to 100, with its 95 % interval (Wilson 1927)."""

    count: int
    accuracy: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class KindResult:
    """The pairs of one kind; scores from 0 to 100. Without an n-gram baseline the last three are None."""

    score: KindScore
    chance: float = CHANCE
    ngram_baseline: KindScore | None = None
    """Of the trigram model."""
    ngram_baseline_solved: KindScore | None = None
    """Of the model, on the pairs that the trigram model decides rightly; None also if there are none."""
    ngram_baseline_unsolved: KindScore | None = None
    """Of the model, on the other pairs; None also if there are none."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExamResult:
    """Results by kind and their means, in which kinds, or groups, have equal weight."""

    whole_words: bool
    kinds: dict[str, KindResult]
    mean: float
    ngram_baseline_mean: float | None
    group_mean: float | None
    """Mean over groups of the means of their kinds, as published for BLiMP's twelve; None without groups."""
    correct: dict[str, float] = dataclasses.field(default_factory=dict)
    """By the id of each scored pair: 1 if the model decides it rightly, 0 if not, 0.5 for a tie."""
    ngram_baseline_group_mean: float | None = None
    scores: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    """By the id of each pair of `bert exam`: the log-likelihoods of the acceptable and of the other text, in nats."""

    def over_pairs(self, of: Literal["score", "ngram_baseline"] = "score") -> KindScore:
        """Return the score of all pairs, in which a kind weighs as many as it has."""
        scores: list[KindScore] = [score for kind in self.kinds.values() if (score := getattr(kind, of))]
        count = sum(score.count for score in scores)
        return _interval(count, sum(score.count * score.accuracy for score in scores) / (100 * count))

    def to_json(self) -> dict[str, Any]:
        """Return the result in JSON values."""
        return {**dataclasses.asdict(self), "pair_mean": self.over_pairs().accuracy}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "ExamResult":
        """Return the result that `to_json` wrote, which may be part of a larger document."""
        return _RESULT.validate_python(values)


_RESULT = TypeAdapter(ExamResult)


@dataclasses.dataclass(frozen=True)
class PairScores:
    """Scores of N pairs, in nats."""

    pairs: tuple[Pair, ...]
    """The scored pairs in the order of the input: those whose texts the model can read."""
    good: np.ndarray
    """(N,) float64."""
    bad: np.ndarray
    """(N,) float64."""

    @property
    def correct(self) -> np.ndarray:
        """(N,) float64: 1 where the acceptable text scores higher, 0 where it scores lower, 0.5 for a tie."""
        return correct_pairs(self.good, self.bad)

    def by_kind(self) -> dict[str, KindScore]:
        """Return the score of each kind, in the order of their names."""
        return kind_scores(self.pairs, self.correct)


def correct_pairs(good: np.ndarray, bad: np.ndarray) -> np.ndarray:
    """Return 1 where `good` is higher, 0 where it is lower, and 0.5 where they are equal."""
    return np.asarray((good > bad) + 0.5 * (good == bad))


def kind_scores(pairs: Sequence[Pair], correct: np.ndarray, chosen: np.ndarray | None = None) -> dict[str, KindScore]:
    """Return the score of each kind of the (chosen) pairs from what is correct (N,), in the order of their names."""
    chosen = np.ones(len(pairs), dtype=bool) if chosen is None else chosen
    kinds = np.array([pair.kind for pair in pairs], dtype=np.str_)
    of_kinds = {str(kind): correct[chosen & (kinds == kind)] for kind in np.unique(kinds[chosen])}
    return {kind: _interval(len(own), float(own.mean())) for kind, own in of_kinds.items()}


def mean_accuracy(scores: dict[str, KindScore]) -> float:
    """Return the mean accuracy over kinds, each of equal weight whatever its number of pairs; NaN without any."""
    return float(np.mean([score.accuracy for score in scores.values()])) if scores else math.nan


def _interval(count: int, share: float) -> KindScore:
    middle = (share + _Z**2 / (2 * count)) / (1 + _Z**2 / count)
    half = _Z / (1 + _Z**2 / count) * math.sqrt(share * (1 - share) / count + _Z**2 / (4 * count**2))
    return KindScore(count=count, accuracy=100 * share, low=100 * (middle - half), high=100 * (middle + half))


def exam_result(scores: PairScores, baseline: np.ndarray | None, *, whole_words: bool = False) -> ExamResult:
    """Return the results of scored pairs; `baseline` (N,) is what the trigram model has right."""
    by_kind = scores.by_kind()
    parts: list[dict[str, KindScore]] = [{}, {}, {}]
    if baseline is not None:
        beside = [kind_scores(scores.pairs, scores.correct, chosen) for chosen in (baseline == 1, baseline != 1)]
        parts = [kind_scores(scores.pairs, baseline), *beside]
    kinds = {
        kind: KindResult(
            score=score,
            ngram_baseline=parts[0].get(kind),
            ngram_baseline_solved=parts[1].get(kind),
            ngram_baseline_unsolved=parts[2].get(kind),
        )
        for kind, score in by_kind.items()
    }
    groups: dict[str, set[str]] = collections.defaultdict(set)
    for pair in scores.pairs:
        groups[pair.group].add(pair.kind)

    def group_mean(by_kind: Mapping[str, KindScore]) -> float | None:
        means = [mean_accuracy({kind: by_kind[kind] for kind in group}) for group in groups.values()]
        return float(np.mean(means)) if len(means) > 1 else None

    return ExamResult(
        whole_words=whole_words,
        kinds=kinds,
        mean=mean_accuracy(by_kind),
        ngram_baseline_mean=None if baseline is None else mean_accuracy(parts[0]),
        group_mean=group_mean(by_kind),
        ngram_baseline_group_mean=None if baseline is None else group_mean(parts[0]),
        correct={pair.pair_id: value for pair, value in zip(scores.pairs, scores.correct.tolist())},
    )


def exam_table(result: ExamResult) -> str:
    """Format a result as plain text."""
    head = ["kind", "N", "model", "95 %", "trigram", "chance", "trigram wrong: N", "model", "95 %"]
    rows = []
    for kind, kind_result in result.kinds.items():
        ngram_baseline = f"{kind_result.ngram_baseline.accuracy:.1f}" if kind_result.ngram_baseline else "-"
        beyond = _cells(kind_result.ngram_baseline_unsolved)
        rows.append([kind, *_cells(kind_result.score), ngram_baseline, f"{kind_result.chance:.1f}", *beyond])
    lines = [format_table(head, rows, "simple", numbers=range(1, len(head)))]
    pairs = result.over_pairs()
    beside = None if result.ngram_baseline_mean is None else result.over_pairs("ngram_baseline").accuracy
    between = f" ({pairs.low:.1f}-{pairs.high:.1f})"
    means = [
        (f"{len(result.kinds)} kinds", result.mean, "", result.ngram_baseline_mean),
        (f"{pairs.count:,} pairs", pairs.accuracy, between, beside),
        ("groups", result.group_mean, "", result.ngram_baseline_group_mean),
    ]
    for name, mean, interval, baseline in means:
        if mean is not None:
            trigram = "" if baseline is None else f", trigram {baseline:.1f}"
            lines.append(f"mean over {name}: {mean:.1f}{interval}{trigram}, chance {CHANCE:.1f}")
    return "\n".join(lines)


def _cells(score: KindScore | None) -> list[str]:
    return [str(score.count), f"{score.accuracy:.1f}", f"{score.low:.1f}-{score.high:.1f}"] if score else ["-", "", ""]
