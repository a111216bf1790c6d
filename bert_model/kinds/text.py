"""Texts and pairs of texts: classification, several labels at once, and regression (paper, figure 4, a and b).

Shapes: N examples.
"""

import dataclasses
import html
import itertools
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_model.kinds.base import (
    TEMPERATURE,
    Answers,
    Decision,
    Decisions,
    EncodingConfig,
    Evaluation,
    Fitted,
    Kind,
    Outputs,
    Units,
    confusion_tables,
    mean_softmax,
    rounded,
    softmax,
    text_of,
    texts_of,
)
from bert_model.kinds.encoded import EncodedSet, Row, joined, token_windows
from bert_model.metrics import glue
from bert_model.metrics.analysis import best_temperature, best_threshold, label_scores
from bert_pipeline.errors import InputError
from bert_pipeline.tasks.example import TextExample
from bert_pipeline.tasks.glue import number_of
from bert_pipeline.vocabulary.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor, nn

Texts = Sequence[TextExample]

GROUPED = "exact_match"
"""The metric of groups of examples (MultiRC), which needs their ids."""
AUC = "auc"
"""The metric of probabilities, which files of predictions lack."""


def encode_texts(
    pairs: Sequence[tuple[str, str | None]],
    tokenizer: Tokenizer,
    max_seq_length: int,
    rows_per_example: int = 1,
    stride: int = 0,
) -> EncodedSet:
    """Encode texts or pairs of texts without labels: `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`.

    `rows_per_example` of them belong to each example. With a stride, a row is a window: of the longer text of a pair,
    beside the whole other one or half a row of it.
    """
    # Tokenize in two large batches; pairs without a second text have none in the second.
    ids_a = tokenizer.encode_batch([text_a for text_a, _ in pairs])
    with_b = [text_b for _, text_b in pairs if text_b is not None]
    ids_b = iter(tokenizer.encode_batch(with_b) if with_b else [])
    cls, sep = tokenizer.cls_id, tokenizer.sep_id
    rows: list[Row] = []
    for index, ((_, text_b), a) in enumerate(zip(pairs, ids_a)):
        # [CLS] and [SEP] take two places around one text, and three in a pair.
        b, end_b = ([], []) if text_b is None else (next(ids_b), [sep])
        keep_a, keep_b = truncated_pair(len(a), len(b), max_seq_length - 2 - len(end_b))
        # Windows are of the longer text, and have as many of its tokens as are kept of it without a stride.
        is_a = len(a) > len(b)
        windows = token_windows(*((len(a), keep_a) if is_a else (len(b), keep_b)), stride)
        is_cut = windows[-1][1] + (keep_b if is_a else keep_a) < len(a) + len(b)
        for first, end in windows:
            part_a, part_b = (a[first:end], b[:keep_b]) if is_a else (a[:keep_a], b[first:end])
            # Several rows may belong to one example, whose index they share.
            ids = np.asarray([cls, *part_a, sep, *part_b, *end_b], dtype=np.int32)
            rows.append(Row(ids, len(part_a) + 2, index // rows_per_example, is_cut))
    return joined(rows, len(pairs) // rows_per_example, tokenizer, rows_per_example=rows_per_example)


def truncated_pair(length_a: int, length_b: int, budget: int) -> tuple[int, int]:
    """Return the lengths to keep of a pair: tokens are cut off the end of the longer side, of B on a tie.

    This is the closed form of `_truncate_seq_pair` in google's run_classifier.py.
    """
    excess = max(0, length_a + length_b - budget)
    difference = length_a - length_b
    from_longer = min(excess, abs(difference))
    excess -= from_longer
    if difference > 0:
        length_a -= from_longer
    else:
        length_b -= from_longer

    # If anything is left to cut, both sides are equal: it is taken in turn, from B first.
    return length_a - excess // 2, length_b - (excess + 1) // 2


class Classification(Kind):
    """One of the task's labels for a text or a pair."""

    name = "classification"
    baseline_name = "the class that scores best throughout (for accuracy, the majority)"

    def parse(self, key: str, fields: Mapping[str, Any]) -> TextExample:
        return TextExample(key, fields["text"], fields.get("text_b"))

    def fields(self, example: TextExample) -> dict[str, Any]:
        return dict(zip(("text", "text_b"), example.texts))

    def encode_rows(self, examples: Texts, tokenizer: Tokenizer, config: EncodingConfig) -> EncodedSet:
        pairs = [(e.text_a, e.text_b) for e in examples]
        encoded = encode_texts(pairs, tokenizer, config.max_seq_length, stride=config.stride)
        return dataclasses.replace(encoded, window_pooling=config.window_pooling)

    def targets(self, examples: Texts) -> np.ndarray:
        labels = self.task.labels
        for example in examples:
            if str(example.label) not in labels:
                raise InputError(
                    f"{self.task.name}: example {example.example_id} has the label {str(example.label)!r}, expected "
                    f"{', '.join(labels)}"
                )
        return np.asarray([labels.index(str(example.label)) for example in examples], dtype=np.int64)

    def decode(self, examples: Texts, encoded: EncodedSet, logits: np.ndarray, fitted: Fitted) -> dict[str, Any]:
        return {e.example_id: self.task.labels[index] for e, index in zip(examples, logits.argmax(axis=-1))}

    def evaluate(
        self, examples: Texts, encoded: EncodedSet, logits: np.ndarray, config: EncodingConfig, **options: Any
    ) -> Evaluation:
        evaluation = super().evaluate(examples, encoded, logits, config, **options)
        if AUC not in self.task.metrics or not evaluation.scores:
            return evaluation
        labels = [label if isinstance(label, tuple) else (label,) for label in self.gold(examples)]
        area = glue.mean_auc(glue.label_matrix(labels, self.task.labels), self.probabilities(logits, {}))
        return dataclasses.replace(evaluation, scores={**evaluation.scores, AUC: area})

    def probabilities(self, logits: np.ndarray, fitted: Fitted) -> np.ndarray:
        """Return the probability of each label, (N, labels)."""
        return softmax(logits, fitted)

    def metrics(self, ids: Sequence[str], gold: Sequence[Any], predicted: Sequence[Any]) -> dict[str, float]:
        scores = {name: self.metric(name, gold, predicted) for name in self.task.metrics if name not in (GROUPED, AUC)}
        if GROUPED in self.task.metrics:
            scores[GROUPED] = glue.grouped_exact_match(ids, gold, predicted)
        return scores

    def metric(self, metric: str, gold: Sequence[Any], predicted: Sequence[Any]) -> float:
        if metric == "f1":
            return glue.f1(gold, predicted, positive=self.task.labels[-1])
        return super().metric(metric, gold, predicted)

    def units(self, examples: Texts, ids: Sequence[str], predicted: Sequence[Any]) -> Units:
        if self.task.main_metric == GROUPED:
            groups = glue.right_groups(ids, self.gold(examples), predicted)
            return "mean", list(groups), [[100.0 * right] for right in groups.values()]
        if self.task.main_metric == "accuracy":
            return super().units(examples, ids, predicted)
        index = {label: number for number, label in enumerate(self.task.labels)}
        return "confusion", ids, [(index[a], index[b]) for a, b in zip(self.gold(examples), predicted)]

    def checked(self, where: str, value: Any) -> Any:
        value = str(value) if type(value) is int else value  # a label that is a number
        if text_of(where, value) not in self.task.labels:
            raise InputError(f"{where}: prediction {value!r}, expected one of {', '.join(self.task.labels)}")
        return value

    def tables(self, examples: Texts, evaluation: Evaluation, decided: Sequence[Decision]) -> dict[str, Any]:
        return confusion_tables([d.gold for d in decided], [d.predicted for d in decided], self.task.labels)

    def page_text(self, decision: Decision) -> str:
        texts = (decision.example.text_a, decision.example.text_b)
        return "\n".join(html.escape(text) for text in texts if text is not None)

    def answer(self, examples: Texts, outputs: Outputs, config: EncodingConfig, fitted: Fitted) -> Answers:
        labels = self.task.labels
        return [
            {
                "prediction": labels[int(row.argmax())],
                "label": labels[int(row.argmax())],
                "probabilities": {label: rounded(value) for label, value in zip(labels, row)},
            }
            for row in mean_softmax(outputs)
        ]


class Multilabel(Classification):
    """Those of the task's labels that apply, each of which is decided by itself."""

    name = "multilabel"
    problem_type = "multi_label_classification"
    baseline_name = "the most frequent labels, as many as score best throughout"

    def targets(self, examples: Texts) -> np.ndarray:
        """Return which labels apply, (N, labels)."""
        return np.asarray(glue.label_matrix([e.label for e in examples], self.task.labels), dtype=np.float32)  # type: ignore[misc]

    def num_terms(self, tensors: Mapping[str, "Tensor"], class_weights: "Tensor | None") -> float:
        return tensors["labels"].numel()

    def loss(self, outputs: "Tensor", tensors: Mapping[str, "Tensor"], class_weights: "Tensor | None") -> "Tensor":
        """Sum the cross-entropy of each label's yes or no; class weights multiply that of a label that applies."""
        from torch.nn import functional

        return functional.binary_cross_entropy_with_logits(
            outputs, tensors["labels"], pos_weight=class_weights, reduction="sum"
        )

    def decode(self, examples: Texts, encoded: EncodedSet, logits: np.ndarray, fitted: Fitted) -> dict[str, Any]:
        applying = self.probabilities(logits, fitted) > fitted.get("thresholds", 0.5)
        return {e.example_id: tuple(itertools.compress(self.task.labels, row)) for e, row in zip(examples, applying)}

    def probabilities(self, logits: np.ndarray, fitted: Fitted) -> np.ndarray:
        return np.asarray(1.0 / (1.0 + np.exp(-logits.astype(np.float64) / fitted.get(TEMPERATURE, 1.0))))

    def fit(self, examples: Texts, encoded: EncodedSet, logits: np.ndarray) -> dict[str, Any]:
        """Choose the temperature, and for each label the threshold of the best F1, if the main metric gains by them."""
        # Each decision is one of two classes, whose logits are 0 and that of the label.
        pairs, targets = np.stack([np.zeros(logits.size), logits.ravel()], axis=1), self.targets(examples)
        fitted: dict[str, Any] = {TEMPERATURE: best_temperature(pairs, targets.ravel().astype(np.int64))}
        columns = zip(targets.T > 0, self.probabilities(logits, fitted).T)
        thresholds = [round(best_threshold(applies, values), 6) for applies, values in columns]
        main = []
        for choice in (fitted, chosen := {**fitted, "thresholds": thresholds}):
            predicted = list(self.decode(examples, encoded, logits, choice).values())
            main.append(self.metric(self.task.main_metric, self.gold(examples), predicted))
        return chosen if main[1] > main[0] else fitted

    def metric(self, metric: str, gold: Sequence[Any], predicted: Sequence[Any]) -> float:
        if metric == "accuracy":
            return glue.accuracy(gold, predicted)
        return glue.multilabel_f1(gold, predicted, self.task.labels)[metric]

    def best_constant(self, labels: Sequence[Any]) -> Any:
        # From counts: a large set has too many examples and labels to be scored with each number of labels.
        ranked = Counter(itertools.chain.from_iterable(labels)).most_common()
        frequent, numbers = [label for label, _ in ranked], np.asarray([0, *(number for _, number in ranked)])
        sets, sizes = Counter(map(frozenset, labels)), np.arange(len(numbers))
        scores: Mapping[str, Any] = {
            "micro_f1": numbers.cumsum() / np.maximum(numbers.sum() + len(labels) * sizes, 1),
            "macro_f1": (numbers / (numbers + len(labels))).cumsum(),
            "accuracy": [sets[frozenset(frequent[:size])] for size in sizes],
        }
        best = {*frequent[: int(np.argmax(scores[self.task.main_metric]))]}
        return tuple(label for label in self.task.labels if label in best)

    def units(self, examples: Texts, ids: Sequence[str], predicted: Sequence[Any]) -> Units:
        if self.task.main_metric == "accuracy":
            return super().units(examples, ids, predicted)
        a, b = (glue.label_matrix(rows, self.task.labels) for rows in (self.gold(examples), predicted))
        return "labels", ids, np.concatenate([a & b, a.astype(int) + b], axis=1)

    def checked(self, where: str, value: Any) -> Any:
        labels = self.task.labels
        if unknown := [label for label in texts_of(where, value, "labels") if label not in labels]:
            raise InputError(f"{where}: prediction {unknown[0]!r}, expected labels of {', '.join(labels)}")
        return tuple(label for label in labels if label in value)

    def decisions(self, examples: Texts, encoded: EncodedSet, logits: np.ndarray, evaluation: Evaluation) -> Decisions:
        """Return the decisions: right only if the whole set is, and as likely as all of them, taken as independent."""
        chosen = glue.label_matrix([evaluation.predictions[e.example_id] for e in examples], self.task.labels)
        probabilities = self.probabilities(logits, evaluation.fitted)
        sure = np.where(chosen, probabilities, 1.0 - probabilities).prod(axis=-1)
        sides = [(e.label, evaluation.predictions[e.example_id]) for e in examples]
        return [
            Decision(example, ", ".join(gold), ", ".join(chosen), float(confidence), set(gold) == set(chosen))  # type: ignore[arg-type]
            for example, (gold, chosen), confidence in zip(examples, sides, sure)
        ]

    def tables(self, examples: Texts, evaluation: Evaluation, decided: Sequence[Decision]) -> dict[str, Any]:
        chosen = [evaluation.predictions[example.example_id] for example in examples]
        return {"classes": label_scores(self.gold(examples), chosen, list(self.task.labels))}

    def answer(self, examples: Texts, outputs: Outputs, config: EncodingConfig, fitted: Fitted) -> Answers:
        labels = self.task.labels
        return [
            {
                "prediction": list(itertools.compress(labels, row > fitted.get("thresholds", 0.5))),
                "probabilities": {label: rounded(value) for label, value in zip(labels, row)},
            }
            for row in np.mean([self.probabilities(logits, fitted) for _, logits in outputs], axis=0)
        ]


class Regression(Classification):
    """A number in the task's `label_range`."""

    name = "regression"
    problem_type = "regression"
    measure = "distance"
    baseline_name = "mean of the training set"

    def head_labels(self) -> tuple[str, ...]:
        return ("score",)

    def fit(self, examples: Texts, encoded: EncodedSet, logits: np.ndarray) -> dict[str, Any]:
        return {}

    def targets(self, examples: Texts) -> np.ndarray:
        return np.asarray([float(e.label) for e in examples], dtype=np.float32)  # type: ignore[arg-type]

    def prepare(self, model: "nn.Module", train: EncodedSet) -> None:
        """Let the head predict the mean first: a short training would otherwise spend its steps on finding it."""
        import torch

        with torch.no_grad():
            bias = model.get_submodule("classifier").get_parameter("bias")
            bias.fill_(float(np.mean(train.row_columns["labels"])))

    def unit(self, train: EncodedSet) -> float:
        """Return the deviation of the targets if it is far from 1: steps of a head are of the learning rate's size."""
        deviation = float(np.std(train.row_columns["labels"], dtype=np.float64))
        is_near = 0.2 <= deviation <= 5.0 or not deviation or not self.head_labels()  # as for cosines
        return 1.0 if is_near else deviation

    def loss(self, outputs: "Tensor", tensors: Mapping[str, "Tensor"], class_weights: "Tensor | None") -> "Tensor":
        """Sum the squared error."""
        from torch.nn import functional

        return functional.mse_loss(outputs.squeeze(-1), tensors["labels"], reduction="sum")

    def decode(self, examples: Texts, encoded: EncodedSet, logits: np.ndarray, fitted: Fitted) -> dict[str, Any]:
        return {example.example_id: float(value) for example, value in zip(examples, logits[:, 0])}

    def is_collapsed(self, predictions: Mapping[str, Any]) -> bool:
        values, (low, high) = np.asarray(list(predictions.values()), dtype=np.float64), self.task.label_range
        return len(values) >= 3 and float(np.ptp(values)) < 1e-3 * min(1.0, high - low)

    def best_constant(self, labels: Sequence[Any]) -> Any:
        return statistics.fmean(labels)

    def units(self, examples: Texts, ids: Sequence[str], predicted: Sequence[Any]) -> Units:
        return "correlation", ids, [(float(a), float(b)) for a, b in zip(self.gold(examples), predicted)]

    def checked(self, where: str, value: Any) -> Any:
        return number_of(where, value)

    def decisions(self, examples: Texts, encoded: EncodedSet, logits: np.ndarray, evaluation: Evaluation) -> Decisions:
        """Return the predictions with their distances: none of a number is simply right."""
        sides = [(e, float(e.label), evaluation.predictions[e.example_id]) for e in examples]  # type: ignore[arg-type]
        return [Decision(e, f"{gold:g}", f"{value:.3g}", abs(gold - value), False) for e, gold, value in sides]

    def answer(self, examples: Texts, outputs: Outputs, config: EncodingConfig, fitted: Fitted) -> Answers:
        scores = np.mean([logits for _, logits in outputs], axis=0)[:, 0]
        return [{"prediction": rounded(value), "score": rounded(value)} for value in scores]
