"""An exam of a model: the accuracy on each kind of minimal pair, beside an n-gram floor and chance."""

import collections
import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from bert_model.model.bert import BertForPreTraining
from bert_model.model.cpu_kernels import cpu_settings, onednn_choice
from bert_model.model.weights import MASKED_LM, load_model
from bert_model.zero_shot.pseudo_likelihood import (
    KindScore,
    PairScores,
    correct_pairs,
    kind_scores,
    mean_accuracy,
    score_pairs,
)
from bert_pipeline.errors import InputError, UsageError
from bert_pipeline.exam.floor import floor_scores
from bert_pipeline.exam.pairs import Pair
from bert_pipeline.vocabulary.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

CHANCE = 50.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class KindResult:
    """The pairs of one kind; scores from 0 to 100. Without a floor the last three are None."""

    score: KindScore
    chance: float = CHANCE
    floor: KindScore | None = None
    """Of the n-gram model."""
    floor_solved: KindScore | None = None
    """Of the model, on the pairs that the n-gram model decides rightly; None also if there are none."""
    floor_unsolved: KindScore | None = None
    """Of the model, on the other pairs; None also if there are none."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExamResult:
    """Results by kind and their means, in which kinds, or groups, have equal weight."""

    whole_words: bool
    kinds: dict[str, KindResult]
    mean: float
    floor_mean: float | None
    group_mean: float | None
    """Mean over groups of the means of their kinds, as published for BLiMP's twelve; None without groups."""
    correct: dict[str, float]
    """By the id of each scored pair: 1 if the model decides it rightly, 0 if not, 0.5 for a tie."""
    floor_group_mean: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the result in JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return the result that `to_json` wrote, which may be part of a larger document."""
        fields = {field.name: values[field.name] for field in dataclasses.fields(cls) if field.name in values}
        kinds: dict[str, KindResult] = {}
        for kind, found in fields["kinds"].items():
            scores = {name: KindScore(**part) for name, part in found.items() if isinstance(part, Mapping)}
            kinds[kind] = dataclasses.replace(KindResult(score=scores.pop("score")), **scores, chance=found["chance"])
        return cls(**{**fields, "kinds": kinds})


def take_exam(
    directory: Path, pairs: Sequence[Pair], *, floor: Path | None = None, whole_words: bool = False
) -> ExamResult:
    """Score a model directory on pairs, beside the n-gram model of the ARPA file `floor`.

    UsageError if the model has no masked-LM head, InputError if it can read none of the pairs. Without kenlm the floor
    is left out with a warning.
    """
    model, report = load_model(BertForPreTraining, directory)
    if any(name.startswith(MASKED_LM) for name in report.created):
        raise UsageError(f"{directory}: a {report.source_architecture} has no head for mlm; give a pre-trained model")
    next_sentence = model.has_trained_next_sentence
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with cpu_settings(onednn=onednn_choice(model.config, device=device)):
        scores = score_pairs(
            model.to(device),
            Tokenizer.from_directory(directory),
            pairs,
            whole_words=whole_words,
            next_sentence=next_sentence,
            num_workers=torch.get_num_threads(),
        )
    if not scores.pairs:
        raise InputError(f"{directory}: none of the {len(pairs)} pairs can be scored; its head or length does not fit")

    return exam_result(scores, floor_baseline(floor, scores.pairs), whole_words=whole_words)


def floor_baseline(floor: Path | None, pairs: Sequence[Pair]) -> np.ndarray | None:
    """Return what the n-gram model of a file has right (N,); None without a file or, with a warning, without kenlm."""
    if floor is None:
        return None
    try:
        return correct_pairs(*floor_scores(floor, pairs))
    except UsageError as error:
        logger.warning("%s", error)
        return None


def exam_result(scores: PairScores, baseline: np.ndarray | None, *, whole_words: bool = False) -> ExamResult:
    """Return the results of scored pairs; `baseline` (N,) is what the n-gram model has right."""
    by_kind = scores.by_kind()
    parts: list[dict[str, KindScore]] = [{}, {}, {}]
    if baseline is not None:
        solved = baseline == 1
        parts = [kind_scores(scores.pairs, baseline), _part(scores, solved), _part(scores, ~solved)]
    kinds = {
        kind: KindResult(
            score=score,
            floor=parts[0].get(kind),
            floor_solved=parts[1].get(kind),
            floor_unsolved=parts[2].get(kind),
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
        floor_mean=None if baseline is None else mean_accuracy(parts[0]),
        group_mean=group_mean(by_kind),
        floor_group_mean=None if baseline is None else group_mean(parts[0]),
        correct={pair.pair_id: value for pair, value in zip(scores.pairs, scores.correct.tolist())},
    )


def _part(scores: PairScores, chosen: np.ndarray) -> dict[str, KindScore]:
    pairs = [pair for pair, is_chosen in zip(scores.pairs, chosen) if is_chosen]
    return kind_scores(pairs, scores.correct[chosen])


def exam_table(result: ExamResult) -> str:
    """Format a result as plain text."""
    width = max(len(kind) for kind in [*result.kinds, "mean over groups"])
    lines = [f"{'kind':{width}}      N  model        95 %  floor  chance  floor wrong: N  model        95 %"]
    lines.append("-" * len(lines[0]))
    for kind, found in result.kinds.items():
        floor = f"{found.floor.accuracy:6.1f}" if found.floor else f"{'-':>6}"
        unsolved = found.floor_unsolved
        beyond = f"{unsolved.count:15}  {_interval(unsolved)}" if unsolved else f"{'-':>15}"
        score = f"{found.score.count:6}  {_interval(found.score)}"
        lines.append(f"{kind:{width}} {score} {floor}  {found.chance:6.1f}  {beyond}")
    floor = "" if result.floor_mean is None else f", floor {result.floor_mean:.1f}"
    lines.append(f"mean over {len(result.kinds)} kinds: {result.mean:.1f}{floor}, chance {CHANCE:.1f}")
    if result.group_mean is not None:
        floor = "" if result.floor_group_mean is None else f", floor {result.floor_group_mean:.1f}"
        lines.append(f"mean over groups: {result.group_mean:.1f}{floor}")
    return "\n".join(lines)


def _interval(score: KindScore) -> str:
    return f"{score.accuracy:5.1f}  {score.low:4.1f}-{score.high:5.1f}"
