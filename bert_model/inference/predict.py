"""Answers to plain input: every task, masked words and next sentences; one model or several together."""

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from bert_model.finetuning.dataset import EncodedSet, prediction_batches
from bert_model.finetuning.decode import NULL_LOGIT_DIFFERENCE, choose_answers, scored_words, softmax, span_answers
from bert_model.finetuning.encode import encode_examples, encode_texts
from bert_model.finetuning.task_model import TaskModel, load_task_model, n_best, prediction_device
from bert_model.inference.inputs import Record, check_record, read_records, reading, to_examples, writing
from bert_model.model.bert import BertForPreTraining
from bert_model.model.cpu_kernels import cpu_settings, onednn_choice
from bert_model.model.weights import load_model
from bert_pipeline.errors import InputError, UsageError
from bert_pipeline.vocabulary.tokenizer import MASK, Tokenizer

PRETRAINING_TASKS = ("mlm", "nsp")
CHUNK = 512
"""Inputs that are read, answered and written together."""
NUM_CANDIDATES = 5


class Predictor(Protocol):
    """Answers records of one form."""

    form: str

    def answer(self, records: Sequence[Record]) -> list[dict[str, Any]]:
        """Return a JSON-compatible answer for each record."""
        ...


def predict(task: str, directories: Sequence[Path], input_path: str = "-", output_path: str = "-") -> int:
    """Answer every input of a file or of standard input as JSON lines; return how many were answered.

    Several models answer together, by the mean of their probabilities. A file of output appears whole or not at all.
    """
    return answer_file(load_predictor(task, directories), input_path, output_path)


def answer_file(predictor: Predictor, input_path: str, output_path: str) -> int:
    """Answer every input of a file with models that are loaded already; the same file, and count, as of `predict`."""
    count = 0
    with reading(input_path) as (lines, where), writing(output_path) as output:
        records = read_records(lines, predictor.form, where)
        while chunk := list(itertools.islice(records, CHUNK if predictor.form != "tagging" else None)):
            for answer in predictor.answer(chunk):
                output.write(json.dumps(answer, ensure_ascii=False) + "\n")
            output.flush()
            count += len(chunk)
    return count


def load_predictor(task: str, directories: Sequence[Path]) -> Predictor:
    """Load the models of one task onto the GPU where there is one; UsageError when they do not belong together."""
    device = prediction_device()
    if task in PRETRAINING_TASKS:
        if len(directories) != 1:
            raise UsageError(f"{task}: takes one model, found {len(directories)}")
        return PretrainingPredictor(directories[0], task, device)
    return TaskPredictor([load_task_model(directory, task).to(device) for directory in directories])


def answer_records(predictor: Predictor, records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Check and answer records that come from elsewhere than a file."""
    checked = [
        check_record(record, predictor.form, f"input {number}") for number, record in enumerate(records, start=1)
    ]
    return predictor.answer(checked) if checked else []


class TaskPredictor:
    """One fine-tuned model, or an ensemble of models of the same task."""

    def __init__(self, models: Sequence[TaskModel]) -> None:
        first = models[0]
        self.models = models
        self.task = first.task
        kind = self.task.kind
        self.form: str = kind if kind in ("span", "choice", "tagging") else "pair" if self.task.pair else "text"
        self.null_threshold = _mean_threshold(models) if self.task.has_impossible else None
        for model in models[1:]:
            if model.task != first.task:
                raise UsageError(f"an ensemble of {first.task.name} and {model.task.name}: give models of one task")
            if kind == "span" and (model.tokenizer.sha256, model.config.encoding) != (
                first.tokenizer.sha256,
                first.config.encoding,
            ):
                raise UsageError(
                    f"{self.task.name}: an ensemble averages start and end logits, so its models must share "
                    "vocabulary, max_seq_length, doc_stride and max_query_length; these do not"
                )

    def answer(self, records: Sequence[Record]) -> list[dict[str, Any]]:
        """Answer records; probabilities are means over the models."""
        examples = to_examples(records, self.form)
        if self.form == "choice":
            return [self._choice([example]) for example in examples] if _mixed(examples) else self._choices(examples)
        if self.form == "span":
            return self._spans(examples)
        if self.form == "tagging":
            return self._tags(examples)
        outputs = [self._logits(model, examples)[1] for model in self.models]
        if self.task.kind == "regression":
            return [{"score": round(float(value), 6)} for value in np.mean(outputs, axis=0)[:, 0]]
        probabilities = np.mean([softmax(logits) for logits in outputs], axis=0)
        return [
            {
                "label": self.task.labels[int(row.argmax())],
                "probabilities": {label: _rounded(value) for label, value in zip(self.task.labels, row)},
            }
            for row in probabilities
        ]

    def _logits(self, model: TaskModel, examples: Sequence[Any]) -> tuple[EncodedSet, np.ndarray]:
        encoded = encode_examples(self.task, examples, model.tokenizer, model.config.encoding)
        return encoded, model.logits(encoded)

    def _choice(self, examples: Sequence[Any]) -> dict[str, Any]:
        return self._choices(examples)[0]

    def _choices(self, examples: Sequence[Any]) -> list[dict[str, Any]]:
        probabilities = np.mean([softmax(self._logits(model, examples)[1]) for model in self.models], axis=0)
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
        outputs = [self._logits(model, examples) for model in self.models]
        encoded, logits = outputs[0][0], np.mean([output for _, output in outputs], axis=0)
        found = span_answers(
            examples, encoded, logits, n_best_size=config.n_best_size, max_answer_length=config.max_answer_length
        )
        texts = choose_answers(found, self.null_threshold)
        answers = []
        for example in examples:
            answer = found[example.example_id]
            candidates = n_best(answer)
            start = candidates[0]["start"]
            document: dict[str, Any] = {
                "answer": texts[example.example_id],
                "start": start if texts[example.example_id] else None,
                "probability": candidates[0]["probability"],
                "n_best": candidates[:NUM_CANDIDATES],
            }
            if self.null_threshold is not None:
                document |= {"null_odds": round(answer.null_odds, 6), "null_threshold": round(self.null_threshold, 6)}
            answers.append(document)
        return answers

    def _tags(self, examples: Sequence[Any]) -> list[dict[str, Any]]:
        labels = self.task.labels
        sums = [np.zeros((len(example.words), len(labels))) for example in examples]
        if any(len(example.words) for example in examples):
            for model in self.models:
                encoded, logits = self._logits(model, examples)
                probabilities = softmax(logits)
                for position, example, word in scored_words(encoded):
                    sums[example][word] += probabilities[position] / len(self.models)
        answers = []
        for example, rows in zip(examples, sums):
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
    """Fills [MASK], or says whether one text follows another, with a pre-trained model."""

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

    def answer(self, records: Sequence[Record]) -> list[dict[str, Any]]:
        """Answer records of {"text"} with [MASK] in it, or of {"text", "text_b"}."""
        with cpu_settings(onednn=onednn_choice(self.model.config, device=self.device)):
            return self._fill(records) if self.task == "mlm" else self._next(records)

    @torch.inference_mode()
    def _fill(self, records: Sequence[Record]) -> list[dict[str, Any]]:
        answers = []
        for record in records:
            ids, positions = self._masked_ids(record["text"])
            inputs = torch.tensor([ids], device=self.device)
            output = self.model(inputs, masked_lm_positions=torch.tensor([positions], device=self.device))
            rows = softmax(output.prediction_logits[0].float().cpu().numpy())
            words = record["text"]
            masks = []
            for row in rows:
                best = np.argsort(-row, kind="stable")[:NUM_CANDIDATES]
                masks.append([{"token": self.tokenizer.tokens[i], "probability": _rounded(row[i])} for i in best])
                words = words.replace(MASK, masks[-1][0]["token"].removeprefix("##"), 1)
            answers.append({"text": words, "masks": masks})
        return answers

    def _masked_ids(self, text: str) -> tuple[list[int], list[int]]:
        """Encode a text whose [MASK] stand for words to be filled in, the one place where they are not plain text."""
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
    def _next(self, records: Sequence[Record]) -> list[dict[str, Any]]:
        pairs = [(record["text"], record["text_b"]) for record in records]
        encoded = encode_texts(pairs, self.tokenizer, self.max_seq_length)
        probabilities = np.zeros((len(pairs), 2))
        for units in prediction_batches(encoded.unit_lengths(), 4096):
            batch = {
                name: torch.from_numpy(array).to(self.device)
                for name, array in encoded.padded(units, pad_id=self.tokenizer.pad_id).items()
            }
            first = torch.zeros(len(units), 0, dtype=torch.long, device=self.device)
            output = self.model(
                batch["input_ids"], batch["attention_mask"], batch["token_type_ids"], masked_lm_positions=first
            )
            probabilities[units] = softmax(output.seq_relationship_logits.float().cpu().numpy())
        return [
            {
                "is_next": bool(row[0] >= row[1]),
                "probabilities": {"is_next": _rounded(row[0]), "random": _rounded(row[1])},
            }
            for row in probabilities
        ]


def _mean_threshold(models: Sequence[TaskModel]) -> float:
    thresholds = [model.facts.get("null_threshold") for model in models]
    return float(np.mean([NULL_LOGIT_DIFFERENCE if value is None else value for value in thresholds]))


def _mixed(examples: Sequence[Any]) -> bool:
    return len({len(example.endings) for example in examples}) > 1


def _rounded(value: float) -> float:
    return round(float(value), 6)


def _entities(words: Sequence[str], tags: Sequence[str]) -> list[dict[str, Any]]:
    """Collect the entities of IOB2 tags; an I- without a B- of its type before it opens one, as conlleval reads it."""
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
