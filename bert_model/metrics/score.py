"""Scoring a task's predictions by its official metric, and the trivial baseline beside it."""

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bert_model.metrics import glue, ner, squad
from bert_pipeline.errors import InputError, UsageError
from bert_pipeline.tasks.description import Task
from bert_pipeline.tasks.task import get_task

BASELINES = {
    "classification": "the class that scores best throughout (for accuracy, the majority)",
    "regression": "mean of the training set",
    "choice": "most frequent position",
    "tagging": "no entities",
    "span": "sentence that shares most words with the question",
    "span with unanswerable": "no answer",
}
"""What the trivial baseline of each kind of task predicts."""


def score(
    task: str | Task,
    examples: Sequence[Any],
    predictions: Mapping[str, Any],
    na_probs: Mapping[str, float] | None = None,
    na_threshold: float = 1.0,
) -> dict[str, float]:
    """Return the task's metrics over exactly `examples`, on the scale of 0 to 100.

    `predictions` maps example ids to a label, a number, an answer text ("" = no answer), the index of an ending, or
    a sequence of tags; predictions for other ids are not looked at. With `na_probs`, SQuAD 2.0 counts questions whose
    null odds are above `na_threshold` as unanswered, and reports its best thresholds.
    InputError when there are no examples, an example has no label, or a prediction is missing (but SQuAD 1.1's
    official script scores a missing answer as 0, and so does this) or of the wrong form.
    """
    task = task if isinstance(task, Task) else get_task(task)
    if not examples:
        raise InputError(f"{task.name}: no examples, so there is nothing to score")
    if na_probs is not None and not task.has_impossible:
        raise UsageError(f"{task.name}: null odds were given, but its questions all have answers; leave them out")
    if task.kind == "span":
        if task.has_impossible:
            return squad.score_squad2(examples, predictions, na_probs, na_threshold)
        return squad.score_squad1(examples, predictions)
    gold = [_gold(task, example) for example in examples]
    predicted = [_prediction(task, example, predictions, len(examples)) for example in examples]
    if task.kind == "tagging":
        scores = ner.score_tags(gold, predicted)
        return {metric: scores[metric] for metric in task.metrics}
    return {metric: _metric(task, metric, gold, predicted) for metric in task.metrics}


def trivial_predictions(task: str | Task, train: Sequence[Any], dev: Sequence[Any]) -> dict[str, Any]:
    """Return for every example of `dev` what one would say without reading it (`BASELINES` says what that is)."""
    task = task if isinstance(task, Task) else get_task(task)
    if task.kind == "span":
        return {
            example.example_id: ""
            if task.has_impossible
            else squad.overlapping_sentence(example.context, example.question)
            for example in dev
        }
    if task.kind == "tagging":
        return {example.example_id: ("O",) * len(example.words) for example in dev}
    if not train:
        raise InputError(f"{task.name}: no training examples, so no baseline can be learned")
    labels = [_gold(task, example) for example in train]
    if task.kind == "regression":
        constant: Any = statistics.fmean(labels)
    else:
        counts = Counter(labels)
        # by accuracy the best constant is the majority class; by F1 it is the positive class, however rare
        constant = max(
            sorted(counts),
            key=lambda label: (_metric(task, task.main_metric, labels, [label] * len(labels)), counts[label]),
        )
    return {example.example_id: constant for example in dev}


def trivial_baseline(task: str | Task, train: Sequence[Any], dev: Sequence[Any]) -> dict[str, float]:
    """Return the metrics of `trivial_predictions` on `dev`."""
    return score(task, dev, trivial_predictions(task, train, dev))


def _gold(task: Task, example: Any) -> Any:
    gold = example.tags if task.kind == "tagging" else example.label
    if gold is None:
        raise InputError(f"{task.name}: example {example.example_id!r} has no label, so it cannot be scored")
    return gold


def _prediction(task: Task, example: Any, predictions: Mapping[str, Any], total: int) -> Any:
    key = example.example_id
    if key not in predictions:
        raise InputError(f"{task.name}: no prediction for example {key!r} (one of {total}); expected one for each")
    value = predictions[key]
    if task.kind == "tagging" and (isinstance(value, str) or len(value) != len(example.words)):
        raise InputError(
            f"{task.name}: example {key!r} has {len(value)} predicted tags, expected {len(example.words)}, one a word"
        )
    return value


def _metric(task: Task, metric: str, gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    if metric == "f1":
        return glue.f1(gold, predicted, positive=task.labels[-1])
    return METRICS[metric](gold, predicted)


METRICS: dict[str, Callable[[Sequence[Any], Sequence[Any]], float]] = {
    "accuracy": glue.accuracy,
    "macro_f1": glue.macro_f1,
    "matthews": glue.matthews,
    "pearson": glue.pearson,
    "spearman": glue.spearman,
}
