"""Predictors for plain input: every task, masked words and next sentences; one model or an ensemble."""

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from bert_model.finetuning.dataset import EncodedSet, prediction_batches
from bert_model.finetuning.decode import (
    NULL_LOGIT_DIFFERENCE,
    choose_answers,
    n_best,
    scored_words,
    sigmoid,
    softmax,
    span_answers,
)
from bert_model.finetuning.encode import encode_examples, encode_texts
from bert_model.finetuning.task_model import TaskModel, load_task_model, prediction_device
from bert_model.inference.inputs import PredictionInput, check_input, read_inputs, reading, to_examples, writing
from bert_model.model.bert import BertForPreTraining
from bert_model.model.cpu_kernels import cpu_settings, onednn_choice
from bert_model.model.weights import load_model
from bert_pipeline.errors import InputError, UsageError
from bert_pipeline.vocabulary.tokenizer import MASK, Tokenizer

PRETRAINING_TASKS = ("mlm", "nsp")
CHUNK = 512
"""Number of inputs that are read, answered and written together."""
NUM_CANDIDATES = 5
NEXT_SENTENCE_TOKENS = 4096
"""Padded tokens of a batch of sentence pairs."""


class Predictor(Protocol):
    """Answers inputs of one form."""

    form: str
    """A key of `FIELDS`."""

    def answer(self, inputs: Sequence[PredictionInput]) -> list[dict[str, Any]]:
        """Return a JSON-compatible answer to each input."""
        ...


def predict(task: str, directories: Sequence[Path], input_path: str = "-", output_path: str = "-") -> int:
    """Answer every input of a file or of standard input as JSON lines; return the number of answers.

    Several models answer as an ensemble, by the mean of their probabilities. An output file is written atomically.
    """
    return answer_file(load_predictor(task, directories), input_path, output_path)


def load_predictor(task: str, directories: Sequence[Path]) -> Predictor:
    """Load the models of one task onto the GPU, or the CPU without one; UsageError if they do not fit together."""
    device = prediction_device()
    if task in PRETRAINING_TASKS:
        if len(directories) != 1:
            raise UsageError(f"{task}: takes one model, found {len(directories)}")
        return PretrainingPredictor(directories[0], task, device)
    return TaskPredictor([load_task_model(directory, task).to(device) for directory in directories])


def answer_file(predictor: Predictor, input_path: str, output_path: str) -> int:
    """Answer every input of a file with loaded models; return the number of answers."""
    count = 0
    with reading(input_path) as (lines, where), writing(output_path) as output:
        inputs = read_inputs(lines, predictor.form, where)
        # Sentences to tag are answered all at once, since the sentences of a document are each other's context.
        while chunk := list(itertools.islice(inputs, CHUNK if predictor.form != "tagging" else None)):
            for answer in predictor.answer(chunk):
                output.write(json.dumps(answer, ensure_ascii=False) + "\n")
            output.flush()
            count += len(chunk)
    return count


def answer_inputs(predictor: Predictor, inputs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Check and answer inputs that do not come from a file."""
    checked = [check_input(item, predictor.form, f"input {number}") for number, item in enumerate(inputs, start=1)]
    return predictor.answer(checked) if checked else []


class TaskPredictor:
    """A fine-tuned model, or an ensemble of models of the same task."""

    def __init__(self, models: Sequence[TaskModel]) -> None:
        first = models[0]
        self.models = models
        self.task = first.task
        kind = self.task.kind
        self.form: str = kind if kind in ("span", "choice", "tagging") else "pair" if self.task.pair else "text"
        self.null_threshold: float | None = None
        if self.task.has_impossible:
            thresholds = [model.facts.get("null_threshold") for model in models]
            known = [NULL_LOGIT_DIFFERENCE if threshold is None else threshold for threshold in thresholds]
            self.null_threshold = float(np.mean(known))
        for model in models[1:]:
            if model.task != first.task:
                raise UsageError(f"an ensemble of {first.task.name} and {model.task.name}: give models of one task")
            if kind == "span" and _rows_key(model) != _rows_key(first):
                raise UsageError(
                    f"{self.task.name}: an ensemble averages start and end logits, so its models must share "
                    "vocabulary, max_seq_length, doc_stride and max_query_length; these do not"
                )

    def answer(self, inputs: Sequence[PredictionInput]) -> list[dict[str, Any]]:
        """Answer inputs; probabilities are means over the models."""
        examples = to_examples(inputs, self.form)
        if self.form == "choice":
            return self._choices(examples)
        if self.form == "span":
            return self._spans(examples)
        if self.form == "tagging":
            return self._tags(examples)
        outputs = [self._encode_and_run(model, examples)[1] for model in self.models]
        if self.task.kind == "regression":
            return [{"score": round(float(value), 6)} for value in np.mean(outputs, axis=0)[:, 0]]
        if self.task.kind == "multilabel":
            return [
                {
                    "labels": [label for label, value in zip(self.task.labels, row) if value > 0.5],
                    "probabilities": {label: _rounded(value) for label, value in zip(self.task.labels, row)},
                }
                for row in np.mean([sigmoid(logits) for logits in outputs], axis=0)
            ]
        probabilities = np.mean([softmax(logits) for logits in outputs], axis=0)
        return [
            {
                "label": self.task.labels[int(row.argmax())],
                "probabilities": {label: _rounded(value) for label, value in zip(self.task.labels, row)},
            }
            for row in probabilities
        ]

    def _encode_and_run(self, model: TaskModel, examples: Sequence[Any]) -> tuple[EncodedSet, np.ndarray]:
        encoded = encode_examples(self.task, examples, model.tokenizer, model.config)
        return encoded, model.logits(encoded)

    def _choices(self, examples: Sequence[Any]) -> list[dict[str, Any]]:
        if len({len(example.endings) for example in examples}) > 1:
            return [self._choices([example])[0] for example in examples]  # a batch has one number of endings
        outputs = [self._encode_and_run(model, examples)[1] for model in self.models]
        probabilities = np.mean([softmax(logits) for logits in outputs], axis=0)
        return [
            {
                "ending": int(row.argmax()),
                "text": example.endings[int(row.argmax())],
                "probabilities": [_rounded(value) for value in row],
            }
            for example, row in zip(examples, probabilities)
        ]

    def _spans(self, examples: Sequence[Any]) -> list[dict[str, Any]]:
        config = self.models[0].config
        # The models share vocabulary and windows, so their start and end logits are averaged token by token.
        outputs = [self._encode_and_run(model, examples) for model in self.models]
        encoded, logits = outputs[0][0], np.mean([output for _, output in outputs], axis=0)
        found = span_answers(
            examples, encoded, logits, n_best_size=config.n_best_size, max_answer_length=config.max_answer_length
        )
        texts = choose_answers(found, self.null_threshold)
        answers = []
        for example in examples:
            answer = found[example.example_id]
            candidates = n_best(answer)
            text = texts[example.example_id]
            document: dict[str, Any] = {
                "answer": text,
                "start": candidates[0]["start"] if text else None,
                "probability": candidates[0]["probability"],
                "n_best": candidates[:NUM_CANDIDATES],
            }
            if self.null_threshold is not None:
                document |= {"null_odds": round(answer.null_odds, 6), "null_threshold": round(self.null_threshold, 6)}
            answers.append(document)
        return answers

    def _tags(self, examples: Sequence[Any]) -> list[dict[str, Any]]:
        # Models may cut documents into different windows, so their probabilities are averaged word by word.
        labels = self.task.labels
        means = [np.zeros((len(example.words), len(labels))) for example in examples]
        if any(len(example.words) for example in examples):
            for model in self.models:
                encoded, logits = self._encode_and_run(model, examples)
                probabilities = softmax(logits)
                for position, index, word in scored_words(encoded):
                    means[index][word] += probabilities[position] / len(self.models)
        answers = []
        for example, rows in zip(examples, means):
            tags = [labels[index] for index in rows.argmax(axis=1)]
            answers.append(
                {
                    "words": list(example.words),
                    "tags": tags,
                    "probabilities": [_rounded(value) for value in rows.max(axis=1)],
                    "entities": _entities(example.words, tags),
                }
            )
        return answers


class PretrainingPredictor:
    """A pre-trained model that fills [MASK], or tells whether one text follows another."""

    def __init__(self, directory: Path, task: str, device: str = "cpu") -> None:
        self.task = task
        self.device = torch.device(device)
        self.form = "text" if task == "mlm" else "pair"
        self.tokenizer = Tokenizer.from_directory(directory)
        self.model, report = load_model(BertForPreTraining, directory)
        head = "cls.predictions." if task == "mlm" else "cls.seq_relationship."
        if any(name.startswith(head) for name in report.created):
            raise UsageError(
                f"{directory}: a {report.source_architecture} has no head for {task}; give a pre-trained model"
            )
        self.model.to(self.device).eval()
        self.max_seq_length = self.model.config.max_position_embeddings

    def answer(self, inputs: Sequence[PredictionInput]) -> list[dict[str, Any]]:
        """Answer inputs of {"text"} with [MASK] in it, or of {"text", "text_b"}."""
        with cpu_settings(onednn=onednn_choice(self.model.config, device=self.device)):
            return self._fill(inputs) if self.task == "mlm" else self._classify_pairs(inputs)

    @torch.inference_mode()
    def _fill(self, inputs: Sequence[PredictionInput]) -> list[dict[str, Any]]:
        answers = []
        for item in inputs:
            ids, positions = self._masked_ids(item["text"])
            output = self.model(
                torch.tensor([ids], device=self.device),
                masked_lm_positions=torch.tensor([positions], device=self.device),
            )
            text = item["text"]
            masks = []
            for row in softmax(output.prediction_logits[0].float().cpu().numpy()):
                best = np.argsort(-row, kind="stable")[:NUM_CANDIDATES]
                masks.append([{"token": self.tokenizer.tokens[i], "probability": _rounded(row[i])} for i in best])
                text = text.replace(MASK, self.tokenizer.tokens[best[0]].removeprefix("##"), 1)
            answers.append({"text": text, "masks": masks})
        return answers

    def _masked_ids(self, text: str) -> tuple[list[int], list[int]]:
        """Encode a text with [MASK] as the special token, which the tokenizer itself reads as plain text."""
        ids = [self.tokenizer.cls_id]
        positions = []
        for number, part in enumerate(text.split(MASK)):
            if number:
                positions.append(len(ids))
                ids.append(self.tokenizer.mask_id)
            ids += self.tokenizer.encode(part)
        ids.append(self.tokenizer.sep_id)
        if not positions:
            raise InputError(f"mlm: no {MASK} in {text[:60]!r}; write {MASK} for each word to fill in")
        if len(ids) > self.max_seq_length:
            raise InputError(
                f"mlm: {text[:60]!r} has {len(ids)} tokens, expected at most {self.max_seq_length}; shorten it"
            )
        return ids, positions

    @torch.inference_mode()
    def _classify_pairs(self, inputs: Sequence[PredictionInput]) -> list[dict[str, Any]]:
        pairs = [(item["text"], item["text_b"]) for item in inputs]
        encoded = encode_texts(pairs, self.tokenizer, self.max_seq_length)
        probabilities = np.zeros((len(pairs), 2))
        for units in prediction_batches(encoded.unit_lengths(), NEXT_SENTENCE_TOKENS):
            batch = {
                name: torch.from_numpy(array).to(self.device)
                for name, array in encoded.padded(units, pad_id=self.tokenizer.pad_id).items()
            }
            no_position = torch.zeros(len(units), 0, dtype=torch.long, device=self.device)  # skips the vocabulary
            output = self.model(
                batch["input_ids"], batch["attention_mask"], batch["token_type_ids"], masked_lm_positions=no_position
            )
            probabilities[units] = softmax(output.seq_relationship_logits.float().cpu().numpy())
        return [
            {
                "is_next": bool(row[0] >= row[1]),
                "probabilities": {"is_next": _rounded(row[0]), "random": _rounded(row[1])},
            }
            for row in probabilities
        ]


def _rows_key(model: TaskModel) -> tuple[Any, ...]:
    """Return what decides the rows that a model encodes questions as."""
    config = model.config
    return model.tokenizer.sha256, config.max_seq_length, config.doc_stride, config.max_query_length


def _rounded(value: float) -> float:
    return round(float(value), 6)


def _entities(words: Sequence[str], tags: Sequence[str]) -> list[dict[str, Any]]:
    """Return the entities of IOB2 tags; as in conlleval, an I- that continues no entity of its type begins one."""
    entities: list[dict[str, Any]] = []
    inside = ""
    for index, tag in enumerate(tags):
        prefix, _, name = tag.partition("-")
        if prefix == "B" or (prefix == "I" and name != inside):
            entities.append({"type": name, "start_word": index, "end_word": index + 1})
        elif prefix == "I":
            entities[-1]["end_word"] = index + 1
        inside = name if prefix in ("B", "I") else ""
    for entity in entities:
        entity["text"] = " ".join(words[entity["start_word"] : entity["end_word"]])
    return entities
