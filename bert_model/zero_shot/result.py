"""The result of an exam: the accuracy on each kind of minimal pair, beside a trigram model and chance."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, Self

from bert_model.tables import format_table

CHANCE = 50.0
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

    def pair_mean(self, of: Literal["score", "ngram_baseline"] = "score") -> float:
        """Return the mean over all pairs, in which a kind weighs as many as it has."""
        scores: list[KindScore] = [score for kind in self.kinds.values() if (score := getattr(kind, of))]
        return sum(score.count * score.accuracy for score in scores) / sum(score.count for score in scores)

    def to_json(self) -> dict[str, Any]:
        """Return the result in JSON values."""
        return {**dataclasses.asdict(self), "pair_mean": self.pair_mean()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return the result that `to_json` wrote, which may be part of a larger document."""
        fields = {field.name: values[field.name] for field in dataclasses.fields(cls) if field.name in values}
        kinds: dict[str, KindResult] = {}
        for kind, parts in fields["kinds"].items():
            scores = {name: KindScore(**part) for name, part in parts.items() if isinstance(part, Mapping)}
            kinds[kind] = dataclasses.replace(KindResult(score=scores.pop("score")), **scores, chance=parts["chance"])
        return cls(**{**fields, "kinds": kinds})


def exam_table(result: ExamResult) -> str:
    """Format a result as plain text."""
    head = ["kind", "N", "model", "95 %", "trigram", "chance", "trigram wrong: N", "model", "95 %"]
    rows = []
    for kind, kind_result in result.kinds.items():
        ngram_baseline = f"{kind_result.ngram_baseline.accuracy:.1f}" if kind_result.ngram_baseline else "-"
        beyond = _cells(kind_result.ngram_baseline_unsolved)
        rows.append([kind, *_cells(kind_result.score), ngram_baseline, f"{kind_result.chance:.1f}", *beyond])
    lines = [format_table(head, rows, "simple", numbers=range(1, len(head)))]
    pairs = sum(kind.score.count for kind in result.kinds.values())
    beside = None if result.ngram_baseline_mean is None else result.pair_mean("ngram_baseline")
    means = [
        (f"{len(result.kinds)} kinds", result.mean, result.ngram_baseline_mean),
        (f"{pairs:,} pairs", result.pair_mean(), beside),
        ("groups", result.group_mean, result.ngram_baseline_group_mean),
    ]
    for name, mean, baseline in means:
        if mean is not None:
            trigram = "" if baseline is None else f", trigram {baseline:.1f}"
            lines.append(f"mean over {name}: {mean:.1f}{trigram}, chance {CHANCE:.1f}")
    return "\n".join(lines)


def _cells(score: KindScore | None) -> list[str]:
    return [str(score.count), f"{score.accuracy:.1f}", f"{score.low:.1f}-{score.high:.1f}"] if score else ["-", "", ""]
