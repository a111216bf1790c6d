"""Decode logits to predictions (classes, numbers, endings, answer texts, tags) and evaluate them.

The null threshold of SQuAD 2.0 is chosen here; metrics are the official ones.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bert_model.finetuning.config import FinetuningConfig
from bert_model.finetuning.dataset import EncodedSet
from bert_model.metrics import score
from bert_model.metrics.squad import raw_scores
from bert_pipeline.tasks.catalogue import Task
from bert_pipeline.tasks.example import SpanExample

Prediction = str | float | int | tuple[str, ...]

NULL_LOGIT_DIFFERENCE = 0.0
"""τ before it is tuned: the null score must be beaten outright."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SpanCandidate:
    """A text that may answer a question, or with an empty text the statement that none does."""

    text: str
    start: int
    """Character offset in the context."""
    start_logit: float
    end_logit: float

    @property
    def score(self) -> float:
        """What candidates are ranked by."""
        return self.start_logit + self.end_logit


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanAnswer:
    """The best answers to one question over all its windows."""

    candidates: tuple[SpanCandidate, ...]
    """Different texts, best first; never empty (one of no text where no span can be formed)."""
    null: SpanCandidate
    """No answer: the start and end logit at [CLS] of the window where their sum is lowest (google's run_squad.py)."""

    @property
    def best(self) -> SpanCandidate:
        """The best text."""
        return self.candidates[0]

    @property
    def null_odds(self) -> float:
        """How far "no answer" is ahead of the best text: above τ the prediction is no answer."""
        return self.null.score - self.best.score


def softmax(logits: np.ndarray) -> np.ndarray:
    """Softmax over the last axis."""
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


def span_answers(
    examples: Sequence[SpanExample],
    encoded: EncodedSet,
    logits: np.ndarray,
    *,
    n_best_size: int = 20,
    max_answer_length: int = 30,
) -> dict[str, SpanAnswer]:
    """Choose the answers to every question from (T, 2) start and end logits laid out like the encoded tokens.

    As in google's run_squad.py: the n best starts and ends of each window are paired; a start must have its maximum
    context in its window; an answer has at most `max_answer_length` tokens. The text is cut from the original
    characters of the context, so it needs no alignment.
    """
    character_start = encoded.token_columns["character_start"]
    character_end = encoded.token_columns["character_end"]
    is_max_context = encoded.token_columns["is_max_context"]
    candidates: dict[int, list[SpanCandidate]] = {index: [] for index in range(len(examples))}
    nulls: dict[int, SpanCandidate] = {}
    for row in range(encoded.num_rows):
        begin, end = int(encoded.offsets[row]), int(encoded.offsets[row + 1])
        owner = int(encoded.example_index[row])
        null = SpanCandidate(text="", start=0, start_logit=float(logits[begin, 0]), end_logit=float(logits[begin, 1]))
        nulls[owner] = min(nulls.get(owner, null), null, key=lambda candidate: candidate.score)
        first = begin + int(encoded.segment_b_start[row])
        if first >= end - 1:
            continue
        start_logits, end_logits = logits[first : end - 1, 0], logits[first : end - 1, 1]
        may_start = np.flatnonzero(is_max_context[first : end - 1])
        starts = may_start[np.argsort(-start_logits[may_start], kind="stable")[:n_best_size]]
        ends = np.argsort(-end_logits, kind="stable")[:n_best_size]
        span = ends[None, :] - starts[:, None]  # (starts, ends)
        valid_start, valid_end = np.nonzero((span >= 0) & (span < max_answer_length))
        scores = start_logits[starts[valid_start]] + end_logits[ends[valid_end]]
        context = examples[owner].context
        for index in np.argsort(-scores, kind="stable")[:n_best_size]:
            one, last = int(starts[valid_start[index]]), int(ends[valid_end[index]])
            character = int(character_start[first + one])
            candidates[owner].append(
                SpanCandidate(
                    text=context[character : int(character_end[first + last])],
                    start=character,
                    start_logit=float(start_logits[one]),
                    end_logit=float(end_logits[last]),
                )
            )
    answers = {}
    for index, example in enumerate(examples):
        best: dict[str, SpanCandidate] = {}
        for candidate in sorted(candidates[index], key=lambda candidate: -candidate.score):
            best.setdefault(candidate.text, candidate)
            if len(best) == n_best_size:
                break
        answers[example.example_id] = SpanAnswer(candidates=tuple(best.values()) or (nulls[index],), null=nulls[index])
    return answers


def choose_answers(answers: Mapping[str, SpanAnswer], threshold: float | None) -> dict[str, str]:
    """Return the predicted text of each question; "" where the null odds exceed the threshold.

    Without a threshold (SQuAD 1.1) every question has an answer.
    """
    return {
        example_id: answer.best.text if threshold is None or answer.null_odds <= threshold else ""
        for example_id, answer in answers.items()
    }


def tune_threshold(
    answers: Mapping[str, SpanAnswer], examples: Sequence[SpanExample], f1: Mapping[str, float]
) -> float:
    """Return the τ with the best mean F1 on these questions (paper, 4.3), halfway between two questions' null odds.

    `f1` is each question's score when it is answered with its best text. Of equally good thresholds the lowest is
    taken, which answers least.
    """
    odds = np.asarray([answers[example.example_id].null_odds for example in examples])
    gain = np.asarray([f1[example.example_id] if example.answers else -1.0 for example in examples])
    order = np.argsort(odds, kind="stable")
    ranked = odds[order]
    totals = np.concatenate([[0.0], np.cumsum(gain[order])])  # after answering the k questions of the lowest odds
    cuts = np.flatnonzero(np.concatenate([[True], ranked[1:] > ranked[:-1], [True]]))  # equal odds stay together
    best = cuts[int(np.argmax(totals[cuts]))]
    if best == 0:
        return float(ranked[0]) - 1.0
    if best == len(ranked):
        return float(ranked[-1]) + 1.0
    return float((ranked[best - 1] + ranked[best]) / 2)


def decode(task: Task, examples: Sequence[Any], encoded: EncodedSet, logits: np.ndarray) -> dict[str, Prediction]:
    """Turn the outputs of classification, regression, choice or tagging into predictions by example id.

    `logits` are (N, labels), (N, 1), (N, C) and (T, labels) in this order of kinds.
    """
    ids = [example.example_id for example in examples]
    if task.kind == "classification":
        return {example_id: task.labels[index] for example_id, index in zip(ids, logits.argmax(axis=-1))}
    if task.kind == "regression":
        return {example_id: float(value) for example_id, value in zip(ids, logits[:, 0])}
    if task.kind == "choice":
        return {example_id: int(index) for example_id, index in zip(ids, logits.argmax(axis=-1))}
    chosen = logits.argmax(axis=-1)
    tags = [["O"] * len(example.words) for example in examples]
    for position, example, word in scored_words(encoded):
        tags[example][word] = task.labels[chosen[position]]
    return {example_id: tuple(words) for example_id, words in zip(ids, tags)}


def scored_words(encoded: EncodedSet) -> Iterator[tuple[int, int, int]]:
    """Yield (token position, example index, word index) of each word where it is scored: every word once."""
    examples, words = encoded.token_columns["example"], encoded.token_columns["word"]
    for position in np.flatnonzero(examples >= 0):
        yield int(position), int(examples[position]), int(words[position])


def is_collapsed(task: Task, predictions: Mapping[str, Prediction]) -> bool:
    """Whether the model says the same of everything, as a collapsed fine-tuning does.

    One class, one ending, numbers without spread, no entity at all, or no answer to any question. A prediction or two
    can't show it, so fewer than three are never called collapsed.
    """
    values = list(predictions.values())
    if len(values) < 3:
        return False
    if task.kind == "regression":
        return float(np.ptp(np.asarray(values, dtype=np.float64))) < 1e-3
    if task.kind == "tagging":
        return all(tag == "O" for tags in values for tag in tags)  # type: ignore[union-attr]
    return len(set(values)) == 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Predictions for a split, and what they score."""

    predictions: dict[str, Prediction]
    scores: dict[str, float]
    """Metric -> score on the scale of 0 to 100; empty where the split has no labels."""
    null_threshold: float | None
    """τ: null odds above it mean "no answer"; None where every question has one."""
    span_answers: Mapping[str, SpanAnswer] | None
    """The n best answers, for SQuAD."""
    collapsed: bool
    """Whether the model says the same of every example although the examples differ."""


def evaluate(
    task: Task,
    examples: Sequence[Any],
    encoded: EncodedSet,
    logits: np.ndarray,
    config: FinetuningConfig,
    *,
    null_threshold: float | None = None,
    labelled: bool = True,
) -> Evaluation:
    """Decode and score outputs; for SQuAD 2.0 τ is tuned on these examples where none is given."""
    answers: dict[str, SpanAnswer] | None = None
    predictions: dict[str, Any]
    if task.kind == "span":
        answers = span_answers(
            examples, encoded, logits, n_best_size=config.n_best_size, max_answer_length=config.max_answer_length
        )
        if task.has_impossible and null_threshold is None:
            _, f1 = raw_scores(examples, choose_answers(answers, None))
            null_threshold = tune_threshold(answers, examples, f1)
        predictions = dict(choose_answers(answers, null_threshold if task.has_impossible else None))
    else:
        predictions = decode(task, examples, encoded, logits)
    return Evaluation(
        predictions=predictions,
        scores=score(task, examples, predictions) if labelled else {},
        null_threshold=null_threshold if task.has_impossible else None,
        span_answers=answers,
        collapsed=is_collapsed(task, predictions),
    )
