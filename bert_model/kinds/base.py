"""The common part of all kinds of tasks, with what most of them do.

Shapes: N examples, T tokens of all rows, B units of a batch, C choices, S positions.
"""

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt

from bert_model.kinds.encoded import EncodedSet
from bert_model.metrics import glue
from bert_model.metrics.analysis import best_temperature, class_scores
from bert_model.metrics.uncertainty import UnitStatistics
from bert_model.model.config import IGNORED_LABEL
from bert_pipeline.configuration import configuration
from bert_pipeline.errors import InputError, UsageError
from bert_pipeline.tasks.catalogue import Task
from bert_pipeline.tasks.example import is_labeled
from bert_pipeline.vocabulary.tokenizer import Tokenizer

if TYPE_CHECKING:  # scoring, too, begins without the seconds that torch takes
    from torch import Tensor, nn

Outputs = Sequence[tuple[EncodedSet, np.ndarray]]
"""The rows and outputs of each model of an ensemble."""
Units = tuple[str, Sequence[str], Any]
"""A form of `UnitStatistics`, the ids of its units, and their rows of numbers."""
Answers = list[dict[str, Any]]
"""Answers of `bert predict` without their ids."""

FITTED = ("null_threshold", "thresholds")
"""What a model's task.json may have of its dev set: SQuAD 2.0's τ (null odds above it mean "no answer"), and the
probability from which each label of a multilabel task applies."""
Fitted = Mapping[str, Any]
"""What was chosen on dev beside the weights: keys of `FITTED`, and the temperature."""
TEMPERATURE = "temperature"
"""What logits are divided by for probabilities that are right as often as they say. A published model's last layer is
divided by it, so that every program that reads the model has these probabilities."""

METRICS: dict[str, Callable[[Sequence[Any], Sequence[Any]], float]] = {
    metric.__name__: metric
    for metric in (glue.accuracy, glue.macro_f1, glue.matthews, glue.pearson, glue.spearman, glue.rmse, glue.mae)
}
"""Metrics of two sequences of labels or numbers, by their names in the descriptions of tasks."""


@configuration
class EncodingConfig:
    """What the kinds of tasks read of a fine-tuning's configuration."""

    max_seq_length: Annotated[int, Field(ge=8)] = 128
    """Tokens to a row, special tokens included."""
    stride: NonNegativeInt = 0
    """Tokens from the start of one window of a longer text to the start of the next, for classification, multilabel and
    regression; 0 cuts longer texts."""
    window_pooling: Literal["mean", "max"] = "mean"
    """How the outputs for the windows of a text become one prediction."""
    doc_stride: PositiveInt = 128
    """Tokens from the start of one window of a SQuAD context to the start of the next."""
    max_query_length: PositiveInt = 64
    """Tokens of a SQuAD question that are kept."""
    max_answer_length: PositiveInt = 30
    """Longest SQuAD answer in tokens."""
    n_best_size: PositiveInt = 20
    """Starts and ends of a window that are paired, and answers that are kept."""

    @property
    def document_context(self) -> bool:
        """Whether a tagger's rows are filled with the neighboring sentences of their documents."""
        return False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Predictions for a split and their scores."""

    predictions: dict[str, Any]
    """By example id: a label, labels, a number, the index of an ending, an answer's text ("" for none), or tags."""
    scores: dict[str, float]
    """Metric -> score from 0 to 100; empty if the split has no labels."""
    collapsed: bool
    """True if every example gets the same prediction, not right for all, as after a collapsed fine-tuning."""
    fitted: Fitted = dataclasses.field(default_factory=dict)
    answers: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The n best answers by example id, for spans."""


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """One prediction: of an example, or of a word of a tagged example."""

    example: Any
    gold: str
    predicted: str
    confidence: float
    """Probability of the prediction; for a regression the distance from gold."""
    is_correct: bool
    word: int | None = None


Decisions = list[Decision]


class Kind:
    """What a kind of task does with the examples of one task.

    The methods are those of classification unless a kind has its own.
    """

    name: str
    """As descriptions of tasks have it."""
    architecture = "BertForSequenceClassification"
    """The head's class, which transformers has as well."""
    problem_type = ""
    """What transformers must know to read the outputs: by default it applies a softmax."""
    pipeline = "text-classification"
    """The hub's name for the kind."""
    onnx_outputs: tuple[str, ...] = ("logits",)
    """Names of the outputs in an ONNX file."""
    rows_shape: tuple[int, ...] = ()
    """The dimensions between B and S of an input in an ONNX file; a number where any may be given."""
    library = "transformers"
    """What opens a model directory, by the hub's name."""
    reads_first_token = True
    """Whether a prediction is made from [CLS] alone."""
    has_paper_length = False
    """Whether models of other authors are taken to read rows as long as the paper's."""
    shares_rows = False
    """Whether an ensemble averages token by token, so that its models must encode alike."""
    predicts_object = False
    """Whether the official tools have all predictions of a file in one JSON object."""
    scores_columns = False
    """Whether predictions may be columns of words and tags (conlleval)."""
    measure = "confidence"
    """What tells how wrong a wrong prediction is; only a confidence is calibrated."""
    baseline_name = ""
    """The trivial baseline in words."""

    scores_missing = False
    """Whether an example without a prediction is scored 0, as by SQuAD 1.1's script."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.paper_task = task.name
        """The task of the paper that this one resembles most, whose settings are its defaults."""

    # --- from examples to rows ---

    @property
    def reads_pairs(self) -> bool:
        """Whether rows have two segments."""
        return self.task.pair

    @property
    def form(self) -> str:
        """The form of an input: a key of `bert_model.inference.inputs.FIELDS`."""
        return "pair" if self.task.pair else "text"

    def parse(self, key: str, fields: Mapping[str, Any]) -> Any:
        """Make an example without a label of the fields of an input."""
        raise NotImplementedError

    def fields(self, example: Any) -> dict[str, Any]:
        """Return the fields of an input with the texts of an example: the inverse of `parse`."""
        raise NotImplementedError

    def encode(self, examples: Sequence[Any], tokenizer: Tokenizer, config: EncodingConfig) -> EncodedSet:
        """Encode a split; labels, answers or tags are encoded if every example has them.

        InputError if the split is empty or a label is not one of the task's.
        """
        if not examples:
            raise InputError(f"{self.task.name}: a split without examples; check the file")
        encoded = self.encode_rows(examples, tokenizer, config)
        if not encoded.per_token and all(map(is_labeled, examples)):
            # Every window of an example has its label; the rows of a choice share it.
            labels = self.targets(examples)[encoded.example_index[:: encoded.rows_per_example]]
            encoded = dataclasses.replace(encoded, row_columns={"labels": labels})
        return encoded

    def encode_rows(self, examples: Sequence[Any], tokenizer: Tokenizer, config: EncodingConfig) -> EncodedSet:
        """Encode examples, of which there are some; labels of tokens and positions of answers, but none of rows."""
        raise NotImplementedError

    def targets(self, examples: Sequence[Any]) -> np.ndarray:
        """Return the labels of examples as the loss takes them, one for each example."""
        raise NotImplementedError

    # --- training ---

    def head_labels(self) -> tuple[str, ...]:
        """Return the names of the head's outputs in config.json; spans and choices have none."""
        return self.task.labels

    def prepare(self, model: "nn.Module", train: EncodedSet) -> None:
        """Change a head of random weights before its training, in place."""

    def unit(self, train: EncodedSet) -> float:
        """Return what targets and outputs are divided by during the training."""
        return 1.0

    def problem(self, config: Any) -> str:
        """Return why a `FinetuningConfig` does not suit the task; "" if it does."""
        return ""

    def model_files(self, hidden_size: int) -> dict[str, str]:
        """Return path -> content of the files of a model directory that `library` needs, beside transformers'."""
        return {}

    def check_directory(self, directory: Path) -> None:
        """Raise UsageError if a model of another author answers otherwise than the kind does."""

    def num_terms(self, tensors: Mapping[str, "Tensor"], class_weights: "Tensor | None") -> float:
        """Return the number of terms in a batch's loss, or the sum of their class weights."""
        if class_weights is None:
            return len(tensors["input_ids"])
        return float(class_weights[tensors["labels"][tensors["labels"] != IGNORED_LABEL]].sum())

    def loss(self, outputs: "Tensor", tensors: Mapping[str, "Tensor"], class_weights: "Tensor | None") -> "Tensor":
        """Sum the loss over a batch: cross-entropy. Class weights multiply the terms of their class."""
        from torch.nn import functional

        return functional.cross_entropy(
            outputs.flatten(0, -2),
            tensors["labels"].flatten(),
            weight=class_weights,
            reduction="sum",
            ignore_index=IGNORED_LABEL,
        )

    # --- from outputs to scores ---

    def evaluate(
        self,
        examples: Sequence[Any],
        encoded: EncodedSet,
        logits: np.ndarray,
        config: EncodingConfig,
        *,
        fitted: Fitted | None = None,
    ) -> Evaluation:
        """Decode outputs, and score them if all examples are labeled.

        What is chosen on dev is chosen on these examples unless it is given.
        """
        labeled = all(map(is_labeled, examples))
        if fitted is None:
            fitted = self.fit(examples, encoded, logits) if labeled else {}
        predictions = self.decode(examples, encoded, logits, fitted)
        return Evaluation(
            predictions=predictions,
            scores=self.score(examples, predictions) if labeled else {},
            # If all examples have one label, a constant prediction may be right.
            collapsed=self.is_collapsed(predictions) and any(e.gold != predictions[e.example_id] for e in examples),
            fitted=fitted,
        )

    def fit(self, examples: Sequence[Any], encoded: EncodedSet, logits: np.ndarray) -> dict[str, Any]:
        """Choose on dev what predictions and probabilities depend on beside the weights: the temperature."""
        return {TEMPERATURE: best_temperature(logits, self.targets(examples))}

    def decode(
        self, examples: Sequence[Any], encoded: EncodedSet, logits: np.ndarray, fitted: Fitted
    ) -> dict[str, Any]:
        """Return the predictions by example id, of all kinds but spans."""
        raise NotImplementedError

    def is_collapsed(self, predictions: Mapping[str, Any]) -> bool:
        """Return whether all predictions are the same; one or two are too few to tell."""
        return len(predictions) >= 3 and len(set(predictions.values())) == 1

    def score(self, examples: Sequence[Any], predictions: Mapping[str, Any], **null_odds: Any) -> dict[str, float]:
        """Return the task's metrics over exactly `examples`, on the scale of 0 to 100.

        Predictions for other ids are ignored; `null_odds` are what `squad.score_squad2` takes. InputError if there are
        no examples, an example has no label, or a prediction is missing or of the wrong form; a missing answer to SQuAD
        1.1 scores 0, as in the official script.
        """
        if not examples:
            raise InputError(f"{self.task.name}: no examples, so there is nothing to score")
        if null_odds and not self.task.has_impossible:
            raise UsageError(
                f"{self.task.name}: null odds were given, but its questions all have answers; leave them out"
            )
        return self.scores_of(examples, predictions, **null_odds)

    def scores_of(self, examples: Sequence[Any], predictions: Mapping[str, Any], **null_odds: Any) -> dict[str, float]:
        """Return the metrics over some examples."""
        gold, ids = self.gold(examples), [example.example_id for example in examples]
        for example, key in zip(examples, ids):
            if key not in predictions:
                raise InputError(
                    f"{self.task.name}: no prediction for example {key!r} (one of {len(examples)}); expected one for "
                    "each"
                )
            self.check_prediction(example, predictions[key])
        return self.metrics(ids, gold, [predictions[key] for key in ids])

    def gold(self, examples: Sequence[Any]) -> list[Any]:
        """Return the labels or tags of examples; InputError for one without."""
        for example in examples:
            if example.gold is None:
                raise InputError(
                    f"{self.task.name}: example {example.example_id!r} has no label, so it cannot be scored"
                )
        return [example.gold for example in examples]

    def check_prediction(self, example: Any, value: Any) -> None:
        """Raise InputError for a prediction that cannot be one for this example."""

    def metrics(self, ids: Sequence[str], gold: Sequence[Any], predicted: Sequence[Any]) -> dict[str, float]:
        """Return the task's metrics of pairs in the order of the examples."""
        return {metric: self.metric(metric, gold, predicted) for metric in self.task.metrics}

    def metric(self, metric: str, gold: Sequence[Any], predicted: Sequence[Any]) -> float:
        """Return one metric of pairs."""
        return METRICS[metric](gold, predicted)

    def trivial_predictions(self, train: Sequence[Any], dev: Sequence[Any]) -> dict[str, Any]:
        """Return the prediction of the trivial baseline (`baseline_name`) for every example of `dev`."""
        if not train:
            raise InputError(f"{self.task.name}: no training examples, so no baseline can be learned")
        return dict.fromkeys((example.example_id for example in dev), self.best_constant(self.gold(train)))

    def best_constant(self, labels: Sequence[Any]) -> Any:
        """Return the prediction that scores best throughout: by accuracy the majority, by F1 the positive class."""
        counts, f1 = Counter(labels), self.task.main_metric == "f1"
        return max(sorted(counts), key=lambda label: (f1 and label == self.task.labels[-1], counts[label]))

    def baseline(self, train: Sequence[Any], dev: Sequence[Any]) -> dict[str, float]:
        """Return the metrics of `trivial_predictions` on `dev`."""
        return self.score(dev, self.trivial_predictions(train, dev))

    def statistics(self, examples: Sequence[Any], predictions: Mapping[str, Any], *, seed: int = 0) -> UnitStatistics:
        """Return the statistics of the task's main metric for the predictions of one training."""
        ids = [example.example_id for example in examples]
        form, units, rows = self.units(examples, ids, [predictions[key] for key in ids])
        return UnitStatistics(
            metric=self.task.main_metric,
            form=form,
            ids=tuple(units),
            seeds=(seed,),
            values=np.asarray([rows]),
            num_classes=len(self.task.labels) if form == "confusion" else 0,
        )

    def units(self, examples: Sequence[Any], ids: Sequence[str], predicted: Sequence[Any]) -> Units:
        """Return what the main metric is computed from: a mean over examples, none of which is scored twice."""
        scores = [self.score([example], {key: value}) for example, key, value in zip(examples, ids, predicted)]
        return "mean", ids, [[own[self.task.main_metric]] for own in scores]

    # --- files of predictions ---

    def checked(self, where: str, value: Any) -> Any:
        """Return a prediction of a file in the form that `score` takes; InputError if it cannot be one."""
        raise NotImplementedError

    def prediction_files(self, split: str, evaluation: Evaluation) -> dict[str, str]:
        """Return file name -> content of a split's predictions: JSON lines of id and prediction."""
        lines = (
            json.dumps({"id": key, "prediction": value}, ensure_ascii=False) + "\n"
            for key, value in evaluation.predictions.items()
        )
        return {f"{split}.jsonl": "".join(lines)}

    # --- what a model gets wrong ---

    def decisions(
        self, examples: Sequence[Any], encoded: EncodedSet, logits: np.ndarray, evaluation: Evaluation
    ) -> Decisions:
        """Return every prediction for labeled examples with its confidence.

        A decision is right by the task's own metric: equal labels, or for spans the official exact match.
        """
        predicted = [evaluation.predictions[example.example_id] for example in examples]
        return [
            Decision(example, str(example.gold), str(value), float(confidence), example.gold == value)
            for example, value, confidence in zip(examples, predicted, softmax(logits, evaluation.fitted).max(axis=-1))
        ]

    def tables(self, examples: Sequence[Any], evaluation: Evaluation, decided: Sequence[Decision]) -> dict[str, Any]:
        """Return the "classes" and the "confusion" of an analysis, where the kind has them."""
        return {}

    def page_text(self, decision: Decision) -> str:
        """Return the example of a decision as escaped HTML, with the wrong word or ending marked."""
        raise NotImplementedError

    # --- answers ---

    def answer(self, examples: Sequence[Any], outputs: Outputs, config: EncodingConfig, fitted: Fitted) -> Answers:
        """Return the answers of one model or an ensemble; the `prediction` of each is what `bert score` takes."""
        raise NotImplementedError


def fitted_of(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return what task.json has of a model's dev set."""
    return {key: description[key] for key in FITTED if description.get(key) is not None}


def text_of(where: str, value: Any) -> str:
    """Return a prediction that is a text; InputError for any other."""
    if not isinstance(value, str):
        raise InputError(f"{where}: prediction {value!r}, expected a text")
    return value


def texts_of(where: str, value: Any, what: str) -> tuple[str, ...]:
    """Return a prediction that is a list of texts; InputError, which calls them `what`, for any other."""
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise InputError(f"{where}: prediction {value!r}, expected a list of {what}")
    return tuple(value)


def confusion_tables(gold: Sequence[str], predicted: Sequence[str], labels: Sequence[str]) -> dict[str, Any]:
    """Return the tables of an analysis by class; none for numbers."""
    if not labels:
        return {}
    confusion = glue.confusion_matrix(gold, predicted, labels)
    return {
        "classes": class_scores(confusion, labels),
        "confusion": {"labels": list(labels), "rows": confusion.tolist()},
    }


def rounded(value: float) -> float:
    """Return a probability or a score as answers have it."""
    return round(float(value), 6)


def mean_softmax(outputs: Outputs) -> np.ndarray:
    """Return the mean probabilities of an ensemble."""
    return np.asarray(np.mean([softmax(logits) for _, logits in outputs], axis=0))


def softmax(logits: np.ndarray, fitted: Fitted = MappingProxyType({})) -> np.ndarray:
    """Return the softmax over the last axis, of logits divided by the temperature."""
    logits = logits / fitted.get(TEMPERATURE, 1.0)
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=-1, keepdims=True))
