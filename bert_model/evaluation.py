"""From outputs to scores: decoding, the threshold of SQuAD 2.0, and the official metrics."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bert_model.answers import (
    Prediction,
    SpanAnswer,
    choose_answers,
    decode,
    is_collapsed,
    span_answers,
    tune_threshold,
)
from bert_model.encoding import EncodedSet
from bert_model.finetuning_config import FinetuningConfig
from bert_model.metrics import score
from bert_model.metrics.squad import raw_scores
from bert_pipeline.tasks.description import Task


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
