"""Decode logits to predictions (classes, numbers, endings, tags, answer texts) and evaluate them.

The null threshold of SQuAD 2.0 is tuned here; metrics are the official ones.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from bert_model.finetuning.config import FinetuningConfig
from bert_model.finetuning.dataset import EncodedSet
from bert_model.metrics import score
from bert_model.metrics.squad import raw_scores
from bert_pipeline.tasks.catalogue import Task
from bert_pipeline.tasks.example import SpanExample

Prediction = str | float | int | tuple[str, ...]

NULL_LOGIT_DIFFERENCE = 0.0
"""τ before it is tuned: the best text must score at least as high as "no answer"."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SpanCandidate:
    """A text that may answer a question; the empty text means "no answer"."""

    text: str
    start: int
    """Character offset in the context."""
    start_logit: float
    end_logit: float

    @property
    def score(self) -> float:
        """Sum of the logits, by which candidates are ranked."""
        return self.start_logit + self.end_logit


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanAnswer:
    """The best answers to one question over all its windows."""

    candidates: tuple[SpanCandidate, ...]
    """Distinct texts, best first; never empty (one without text where no span can be formed)."""
    null: SpanCandidate
    """No answer: the start and end logit at [CLS] of the window where their sum is lowest (google's run_squad.py)."""

    @property
    def best(self) -> SpanCandidate:
        """The best text."""
        return self.candidates[0]

    @property
    def null_odds(self) -> float:
        """Lead of "no answer" over the best text: above τ the prediction is no answer."""
        return self.null.score - self.best.score


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Predictions for a split and their scores."""

    predictions: dict[str, Prediction]
    scores: dict[str, float]
    """Metric -> score from 0 to 100; empty if the split has no labels."""
    null_threshold: float | None
    """τ: null odds above it mean "no answer"; None if every question has an answer."""
    span_answers: Mapping[str, SpanAnswer] | None
    """The n best answers, for SQuAD."""
    collapsed: bool
    """True if every example gets the same prediction."""


def evaluate(
    task: Task,
    examples: Sequence[Any],
    encoded: EncodedSet,
    logits: np.ndarray,
    config: FinetuningConfig,
    *,
    null_threshold: float | None = None,
    labeled: bool = True,
) -> Evaluation:
    """Decode and score outputs; for SQuAD 2.0 τ is tuned on these examples unless it is passed."""
    answers: dict[str, SpanAnswer] | None = None
    predictions: dict[str, Any]
    if task.kind == "span":
        answers = span_answers(
            examples, encoded, logits, n_best_size=config.n_best_size, max_answer_length=config.max_answer_length
        )
        if task.has_impossible and null_threshold is None:
            # Tuned on the F1 that each question has if it is answered, so every question is answered here.
            _, f1 = raw_scores(examples, choose_answers(answers, None))
            null_threshold = tune_threshold(answers, examples, f1)
        predictions = dict(choose_answers(answers, null_threshold if task.has_impossible else None))
    else:
        predictions = decode(task, examples, encoded, logits)
    return Evaluation(
        predictions=predictions,
        scores=score(task, examples, predictions) if labeled else {},
        null_threshold=null_threshold if task.has_impossible else None,
        span_answers=answers,
        collapsed=is_collapsed(task, predictions),
    )


def decode(task: Task, examples: Sequence[Any], encoded: EncodedSet, logits: np.ndarray) -> dict[str, Prediction]:
    """Return the predictions of classification, multilabel, regression, choice or tagging by example id.

    `logits` are (N, labels), (N, labels), (N, 1), (N, C) and (T, labels) in this order of kinds. A label of multilabel
    applies if its probability is above one half.
    """
    ids = [example.example_id for example in examples]
    if task.kind == "multilabel":
        return {key: tuple(itertools.compress(task.labels, row > 0)) for key, row in zip(ids, logits)}
    if task.kind == "classification":
        return {example_id: task.labels[index] for example_id, index in zip(ids, logits.argmax(axis=-1))}
    if task.kind == "regression":
        return {example_id: float(value) for example_id, value in zip(ids, logits[:, 0])}
    if task.kind == "choice":
        return {example_id: int(index) for example_id, index in zip(ids, logits.argmax(axis=-1))}

    # Tagging: logits are per token, and each word is scored at one of them.
    chosen = logits.argmax(axis=-1)
    tags = [["O"] * len(example.words) for example in examples]
    for position, example, word in scored_words(encoded):
        tags[example][word] = task.labels[chosen[position]]
    return {example_id: tuple(words) for example_id, words in zip(ids, tags)}


def confidences(
    task: Task, examples: Sequence[Any], encoded: EncodedSet, logits: np.ndarray, evaluation: Evaluation
) -> dict[str, np.ndarray]:
    """Return the probability of each prediction by example id: one, or for tagging one for each word.

    For spans it is the share of the predicted text among the n best answers, "no answer" among them where it is
    possible. A regression has none.
    """
    ids = [example.example_id for example in examples]
    if task.kind == "regression":
        return {}
    if task.kind == "tagging":
        best = softmax(logits).max(axis=-1)
        of_words = [np.zeros(len(example.words)) for example in examples]
        for position, example, word in scored_words(encoded):
            of_words[example][word] = best[position]
        return dict(zip(ids, of_words))
    if task.kind == "multilabel":  # of all its decisions, taken as independent
        sure = (1.0 / (1.0 + np.exp(-np.abs(logits.astype(np.float64))))).prod(axis=-1, keepdims=True)
        return dict(zip(ids, sure))
    if evaluation.span_answers is None:
        return {key: row.max(keepdims=True) for key, row in zip(ids, softmax(logits))}
    found = {}
    for key, answer in evaluation.span_answers.items():
        predicted = str(evaluation.predictions[key])
        found[key] = np.asarray([probability_of(predicted, answer, with_null=evaluation.null_threshold is not None)])
    return found


def scored_words(encoded: EncodedSet) -> Iterator[tuple[int, int, int]]:
    """Yield (token position, example index, word index) of each word where it is scored: every word once."""
    examples, words = encoded.token_columns["example"], encoded.token_columns["word"]
    for position in np.flatnonzero(examples >= 0):
        yield int(position), int(examples[position]), int(words[position])


def is_collapsed(task: Task, predictions: Mapping[str, Prediction]) -> bool:
    """Return whether all predictions are the same, as after a collapsed fine-tuning.

    One class, one ending, numbers without spread, one tag for every word, or no answer to any question. One or two
    predictions are too few to tell.
    """
    values = list(predictions.values())
    if len(values) < 3:
        return False
    if task.kind == "regression":
        return float(np.ptp(np.asarray(values, dtype=np.float64))) < 1e-3
    if task.kind == "tagging":
        return len({tag for tags in values for tag in cast(tuple[str, ...], tags)}) <= 1
    return len(set(values)) == 1


def span_answers(
    examples: Sequence[SpanExample],
    encoded: EncodedSet,
    logits: np.ndarray,
    *,
    n_best_size: int = 20,
    max_answer_length: int = 30,
) -> dict[str, SpanAnswer]:
    """Choose the answers to every question from start and end logits (T, 2) in the order of the encoded tokens.

    As in google's run_squad.py: the n best starts and ends of each window are paired; a start must have its maximum
    context in its window; an answer has at most `max_answer_length` tokens. The text is cut from the original
    characters of the context, so it needs no alignment.
    """
    candidates: list[list[SpanCandidate]] = [[] for _ in examples]
    nulls: dict[int, SpanCandidate] = {}
    for row in range(encoded.num_rows):
        owner, begin = int(encoded.example_index[row]), int(encoded.offsets[row])
        # "No answer" must hold in all windows of a question, so the window that supports it least decides.
        null = SpanCandidate(text="", start=0, start_logit=float(logits[begin, 0]), end_logit=float(logits[begin, 1]))
        nulls[owner] = min(nulls.get(owner, null), null, key=lambda candidate: candidate.score)
        candidates[owner] += _window_candidates(
            examples[owner].context, encoded, row, logits, n_best_size, max_answer_length
        )
    answers = {}
    for index, example in enumerate(examples):
        # Windows overlap: keep the best candidate of each text.
        best: dict[str, SpanCandidate] = {}
        for candidate in sorted(candidates[index], key=lambda candidate: -candidate.score):
            best.setdefault(candidate.text, candidate)
            if len(best) == n_best_size:
                break
        answers[example.example_id] = SpanAnswer(candidates=tuple(best.values()) or (nulls[index],), null=nulls[index])
    return answers


def _window_candidates(
    context: str, encoded: EncodedSet, row: int, logits: np.ndarray, n_best_size: int, max_answer_length: int
) -> list[SpanCandidate]:
    """Return the best spans of one window, best first; none if it has no token of the context."""
    # Tokens of the context only: from the start of segment B to its [SEP].
    window = slice(int(encoded.offsets[row]) + int(encoded.segment_b_start[row]), int(encoded.offsets[row + 1]) - 1)
    start_logits, end_logits = logits[window, 0], logits[window, 1]
    character_start = encoded.token_columns["character_start"][window]
    character_end = encoded.token_columns["character_end"][window]

    # Pair the best starts with the best ends, and rank the pairs.
    may_start = np.flatnonzero(encoded.token_columns["is_max_context"][window])
    starts = may_start[np.argsort(-start_logits[may_start], kind="stable")[:n_best_size]]
    ends = np.argsort(-end_logits, kind="stable")[:n_best_size]
    length = ends[None, :] - starts[:, None] + 1  # (starts, ends)
    valid_start, valid_end = np.nonzero((length >= 1) & (length <= max_answer_length))
    # Stable sorts: equal scores keep the order of starts and ends, so that the choice is reproducible.
    scores = start_logits[starts[valid_start]] + end_logits[ends[valid_end]]
    pairs = [
        (int(starts[valid_start[index]]), int(ends[valid_end[index]]))
        for index in np.argsort(-scores, kind="stable")[:n_best_size]
    ]
    return [
        SpanCandidate(
            text=context[int(character_start[first]) : int(character_end[last])],
            start=int(character_start[first]),
            start_logit=float(start_logits[first]),
            end_logit=float(end_logits[last]),
        )
        for first, last in pairs
    ]


def choose_answers(answers: Mapping[str, SpanAnswer], threshold: float | None) -> dict[str, str]:
    """Return the predicted text of each question; "" if the null odds exceed the threshold.

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

    `f1` is each question's score if it is answered with its best text. Of equally good thresholds the lowest is
    taken, which answers least.
    """
    odds = np.asarray([answers[example.example_id].null_odds for example in examples])
    # Answering a question earns its F1; if it has no answer, it costs the point of "no answer".
    gain = np.asarray([f1[example.example_id] if example.answers else -1.0 for example in examples])
    order = np.argsort(odds, kind="stable")
    ranked = odds[order]
    totals = np.concatenate([[0.0], np.cumsum(gain[order])])  # after answering the k questions of the lowest odds
    cuts = np.flatnonzero(np.concatenate([[True], ranked[1:] > ranked[:-1], [True]]))  # equal odds stay together
    best = cuts[int(np.argmax(totals[cuts]))]

    # At either end any distance separates; between two questions the middle does.
    if best == 0:
        return float(ranked[0]) - 1.0
    if best == len(ranked):
        return float(ranked[-1]) + 1.0
    return float((ranked[best - 1] + ranked[best]) / 2)


def n_best(answer: SpanAnswer) -> list[dict[str, Any]]:
    """Return the candidates with their places and their probabilities among each other, best first."""
    return [
        {"text": c.text, "probability": probability, "score": round(c.score, 6), "start": c.start}
        for c, probability in _with_probabilities(answer.candidates)
    ]


def probability_of(text: str, answer: SpanAnswer, *, with_null: bool) -> float:
    """Return the share of a predicted text among the candidates of `official_n_best`; 0 if it is none of them."""
    ranked = official_n_best(answer, with_null=with_null)
    return next((float(entry["probability"]) for entry in ranked if entry["text"] == text), 0.0)


def official_n_best(answer: SpanAnswer, *, with_null: bool) -> list[dict[str, Any]]:
    """Return the candidates as google's run_squad.py writes them, for SQuAD 2.0 with "no answer" among them."""
    candidates = list(answer.candidates)
    if with_null and all(candidate.text for candidate in candidates):
        candidates = sorted([*candidates, answer.null], key=lambda candidate: -candidate.score)
    return [
        {
            "text": c.text,
            "probability": probability,
            "start_logit": round(c.start_logit, 6),
            "end_logit": round(c.end_logit, 6),
        }
        for c, probability in _with_probabilities(candidates)
    ]


def _with_probabilities(candidates: Sequence[SpanCandidate]) -> list[tuple[SpanCandidate, float]]:
    probabilities = softmax(np.asarray([candidate.score for candidate in candidates]))
    return [(candidate, round(float(value), 6)) for candidate, value in zip(candidates, probabilities)]


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Return the probability of each label by itself."""
    return np.asarray(1 / (1 + np.exp(-logits)))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return the softmax over the last axis."""
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=-1, keepdims=True))
