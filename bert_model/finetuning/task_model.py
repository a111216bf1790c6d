"""A fine-tuned model on disk: a Hugging Face directory with task.json beside it; written, loaded and applied."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from bert_model.finetuning.config import FinetuningConfig
from bert_model.finetuning.dataset import EncodedSet
from bert_model.finetuning.decode import Evaluation, SpanAnswer, SpanCandidate, softmax
from bert_model.finetuning.frozen_features import compute_activations, starting_encoder
from bert_model.finetuning.predict_logits import predict_logits
from bert_model.finetuning.trial import Trial, head_labels, model_overrides
from bert_model.model.bert import BertModel, new_model
from bert_model.model.config import BertConfig
from bert_model.model.cpu_kernels import cpu_settings, onednn_choice
from bert_model.model.heads import MODEL_CLASSES, BertForTask, Tagger, chosen_states
from bert_model.model.weights import load_model, save_model
from bert_pipeline.configuration import from_mapping, to_mapping
from bert_pipeline.errors import InputError, UsageError
from bert_pipeline.tasks.catalogue import TASKS, Task
from bert_pipeline.tasks.task import get_task
from bert_pipeline.vocabulary.tokenizer import Tokenizer

TASK_NAME = "task.json"
TAGGER_NAME = "tagger.safetensors"
PREDICTIONS = "predictions"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskModel:
    """A fine-tuned model, ready to predict."""

    task: Task
    facts: dict[str, Any]
    """What task.json holds."""
    config: FinetuningConfig
    """How inputs are encoded and outputs decoded."""
    model: nn.Module
    """The encoder with its head, or the tagger of a feature-based model."""
    encoder: BertModel | None
    """The frozen encoder of a feature-based model."""
    tokenizer: Tokenizer

    def to(self, device: str) -> "TaskModel":
        """Move the weights to a device, in place, and return this model."""
        self.model.to(torch.device(device))
        if self.encoder is not None:
            self.encoder.to(torch.device(device))
        return self

    def logits(self, encoded: EncodedSet, *, num_threads: int | None = None) -> np.ndarray:
        """Compute the outputs as `decode` takes them, on `num_threads` CPU threads where given."""
        encoder = self.model.bert if isinstance(self.model, BertForTask) else self.encoder
        assert encoder is not None, "a tagger reads a frozen encoder"
        onednn = onednn_choice(encoder.config, device=next(self.model.parameters()).device)
        with cpu_settings(onednn=onednn, num_threads=num_threads):
            features = None
            if self.encoder is not None:
                states = chosen_states(self.facts["feature_input"], self.encoder.config.num_hidden_layers + 1)
                features = compute_activations(self.encoder, encoded, pad_id=self.tokenizer.pad_id, states=states)
            return predict_logits(
                self.model,
                encoded,
                pad_id=self.tokenizer.pad_id,
                features=features,
                precision=self.config.precision,
            )


def write_task_model(
    directory: Path, *, trial: Trial, task: Task, tokenizer: Tokenizer, facts: Mapping[str, Any]
) -> TaskModel:
    """Write the model whose weights a trial saved, with its tokenizer and task.json, and return it."""
    tensors = load_file(trial.weights)
    encoder: BertModel | None = None
    model: nn.Module
    if trial.feature_input:
        encoder = starting_encoder(trial.model, trial.start, trial.seed)
        save_model(encoder, directory, tokenizer)
        save_file(tensors, directory / TAGGER_NAME)
        model = _tagger(tensors, trial.feature_input, trial.config, len(task.labels), encoder)
    else:
        config = BertConfig.from_directory(
            trial.model, **{**model_overrides(trial.config), "labels": head_labels(trial)}
        )
        model = new_model(MODEL_CLASSES[task.kind], config, seed=trial.seed)
        model.load_state_dict(tensors)
        save_model(model, directory, tokenizer)
    document = {
        "task": task.name,
        **({} if TASKS.get(task.name) == task else {"description": to_mapping(task)}),
        "kind": task.kind,
        "labels": list(task.labels),
        **({"feature_input": trial.feature_input} if trial.feature_input else {}),
        **facts,
        "configuration": to_mapping(trial.config),
    }
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    (directory / TASK_NAME).write_text(text, encoding="utf-8")
    return TaskModel(
        task=task, facts=document, config=trial.config, model=model.eval(), encoder=encoder, tokenizer=tokenizer
    )


def prediction_device() -> str:
    """The device that predictions are made on: the first GPU where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def load_task_model(directory: Path | str, task_name: str | None = None) -> TaskModel:
    """Load a fine-tuned model of ours, or any Hugging Face directory whose head fits the task.

    UsageError when the model was fine-tuned for another task, InputError when its files don't fit together.
    """
    directory = Path(directory)
    facts = read_task_facts(directory)
    if facts is None:
        if task_name is None:
            raise UsageError(
                f"{directory}: no {TASK_NAME}, so it is not a fine-tuned model; name the task, or give one"
            )
        task, config, facts = get_task(task_name), FinetuningConfig(), {}
    else:
        asked = facts["task"] if task_name is None else get_task(task_name).name
        if asked != facts["task"]:
            raise UsageError(
                f"{directory}: was fine-tuned for {facts['task']}, not for {asked}; give a model of that task"
            )
        described = facts.get("description")
        task = from_mapping(Task, described, where=str(directory / TASK_NAME)) if described else get_task(facts["task"])
        config = from_mapping(FinetuningConfig, facts["configuration"], where=str(directory / TASK_NAME))
    tokenizer = Tokenizer.from_directory(directory)
    if feature_input := facts.get("feature_input"):
        encoder, _ = load_model(BertModel, directory)
        tensors = load_file(directory / TAGGER_NAME)
        model: nn.Module = _tagger(tensors, feature_input, config, len(task.labels), encoder)
        return TaskModel(
            task=task, facts=facts, config=config, model=model.eval(), encoder=encoder.eval(), tokenizer=tokenizer
        )
    if task.kind in ("classification", "tagging") and not facts:
        task = dataclasses.replace(task, labels=labels_of_head(directory, task))
    model, report = load_model(MODEL_CLASSES[task.kind], directory)
    head = [name for name in report.created if not name.startswith("bert.pooler")]
    if head:
        raise UsageError(
            f"{directory}: holds a {report.source_architecture} without a head for {task.name} "
            f"({', '.join(head)} would be random); fine-tune it first"
        )
    return TaskModel(task=task, facts=facts, config=config, model=model.eval(), encoder=None, tokenizer=tokenizer)


def labels_of_head(directory: Path, task: Task) -> tuple[str, ...]:
    """Return the task's labels in the order of a foreign head's outputs: other authors order them otherwise.

    A head whose outputs have no names, or a task whose labels are numbers, is taken in the task's order. InputError
    when the head has another number of outputs, or names that are not the task's.
    """
    config = BertConfig.from_directory(directory)
    document = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    if MODEL_CLASSES[task.kind].__name__ not in (document.get("architectures") or []):
        return task.labels  # it has no such head, which loading will say
    if config.num_labels != len(task.labels):
        raise InputError(
            f"{directory}: its head has {config.num_labels} outputs, {task.name} has {len(task.labels)} labels"
        )
    unnamed = not config.labels or all(name.startswith("LABEL_") for name in config.labels)
    if unnamed or all(label.isdecimal() for label in task.labels):
        return task.labels
    known = {label.casefold(): label for label in task.labels}
    names = [name.casefold() for name in config.labels]
    if set(names) != set(known):
        raise InputError(
            f"{directory / 'config.json'}: its head answers {', '.join(config.labels)}, "
            f"expected the labels of {task.name}: {', '.join(task.labels)}"
        )
    return tuple(known[name] for name in names)


def read_task_facts(directory: Path) -> dict[str, Any] | None:
    """Return what task.json says, None where there is none; InputError when it is damaged."""
    path = directory / TASK_NAME
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not valid JSON ({error})") from error
    missing = {"task", "kind", "labels", "configuration"} - set(document if isinstance(document, dict) else ())
    if missing:
        raise InputError(f"{path}: lacks {', '.join(sorted(missing))}; fine-tune the model again")
    return document


def write_predictions(directory: Path, split: str, examples: Sequence[Any], evaluation: Evaluation) -> dict[str, int]:
    """Write a split's predictions below `predictions/` and return the rows of each file.

    JSON lines of id and prediction; for SQuAD the official tools' three JSON objects: predictions, n best, null odds.
    """
    folder = directory / PREDICTIONS
    folder.mkdir(exist_ok=True)
    if evaluation.span_answers is None:
        lines = (
            json.dumps({"id": key, "prediction": value}, ensure_ascii=False) + "\n"
            for key, value in evaluation.predictions.items()
        )
        with open(folder / f"{split}.jsonl", "w", encoding="utf-8") as stream:
            stream.writelines(lines)
        return {f"{PREDICTIONS}/{split}.jsonl": len(examples)}
    documents: dict[str, Any] = {f"{split}.json": evaluation.predictions}
    documents[f"{split}.nbest.json"] = {
        key: official_n_best(answer, with_null=evaluation.null_threshold is not None)
        for key, answer in evaluation.span_answers.items()
    }
    if evaluation.null_threshold is not None:
        documents[f"{split}.null_odds.json"] = {
            key: round(answer.null_odds, 6) for key, answer in evaluation.span_answers.items()
        }
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return {f"{PREDICTIONS}/{name}": len(examples) for name in documents}


def n_best(answer: SpanAnswer) -> list[dict[str, Any]]:
    """Return the candidates with their probabilities among each other and where they stand, best first."""
    return [
        {"text": c.text, "probability": probability, "score": round(c.score, 6), "start": c.start}
        for c, probability in _with_probabilities(answer.candidates)
    ]


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


def _tagger(
    tensors: Mapping[str, torch.Tensor],
    feature_input: str,
    config: FinetuningConfig,
    num_labels: int,
    encoder: BertModel,
) -> Tagger:
    states = chosen_states(feature_input, encoder.config.num_hidden_layers + 1)
    model = Tagger(
        (len(states), encoder.config.hidden_size),
        num_labels,
        feature_input=feature_input,
        hidden_size=config.lstm_hidden_size,
        dropout=config.classifier_dropout,
    )
    model.load_state_dict(dict(tensors))
    return model
