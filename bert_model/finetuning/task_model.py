"""Fine-tuned models on disk: Hugging Face directories with a task.json; written, loaded and applied."""

import dataclasses
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

from bert_model.finetuning.config import FinetuningConfig, task_configuration
from bert_model.finetuning.forward_passes import compute_states, predict_logits
from bert_model.finetuning.trial import TrialJob, new_tagger
from bert_model.kinds import kind_of
from bert_model.kinds.encoded import EncodedSet
from bert_model.model.bert import BertModel
from bert_model.model.config import CONFIG_NAME, BertConfig, read_document
from bert_model.model.cpu_kernels import limited_threads
from bert_model.model.heads import HEAD_CLASSES, chosen_states
from bert_model.model.initialization import new_model
from bert_model.model.weights import check_embeddings, divided, load_model, read_weights, save_model, save_tensors
from bert_pipeline.configuration import from_mapping, to_mapping
from bert_pipeline.errors import ConfigurationError, InputError, UsageError
from bert_pipeline.manifest import MANIFEST_NAME, read_manifest
from bert_pipeline.tasks.catalogue import TASKS, Task, get_task
from bert_pipeline.vocabulary.files import model_max_length
from bert_pipeline.vocabulary.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

TASK_NAME = "task.json"
TAGGER_NAME = "tagger.safetensors"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskModel:
    """A fine-tuned model, ready to predict."""

    task: Task
    description: dict[str, Any]
    """Content of task.json; empty for a model of another author."""
    config: FinetuningConfig
    """Decides how inputs are encoded and outputs decoded."""
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

    def logits(
        self, encoded: EncodedSet, *, num_threads: int | None = None, precision: str | None = None
    ) -> np.ndarray:
        """Compute the outputs that `decode` takes, on `num_threads` CPU threads or the current number.

        A model that was trained in bfloat16 computes in it only where the device has instructions for it, unless
        `precision` is given: without them bfloat16 is emulated, six times as slow as float32.
        """
        precision = precision or ("float32" if self.config.precision == "float32" else "auto")
        with limited_threads(num_threads):
            if self.encoder is not None:
                states = chosen_states(self.description["feature_input"], self.encoder.config.num_hidden_layers + 1)
                encoded = dataclasses.replace(encoded, features=compute_states(self.encoder, encoded, states))
            return predict_logits(self.model, encoded, precision=precision)


def write_task_model(
    directory: Path, job: TrialJob, tokenizer: Tokenizer, description: Mapping[str, Any], *, temperature: float
) -> None:
    """Write the model whose weights a trial saved, with its tokenizer and task.json.

    The weights of its last layer, the classifier, are divided by `temperature`.
    """
    assert job.weights is not None, "the trial saved its weights"

    # The trial ran in another process, which left its weights in a file.
    tensors = divided(load_file(job.weights), temperature)
    task, feature_input = job.task, job.trial.setting.feature_input
    if feature_input:
        # The encoder is the pre-trained one, without the dropouts and labels of a task.
        encoder, _ = load_model(BertModel, job.model, log=False)
        save_model(encoder, directory, tokenizer, max_seq_length=job.config.max_seq_length)
        save_tensors(tensors, directory / TAGGER_NAME)
    else:
        model = new_model(HEAD_CLASSES[job.kind.architecture], job.model_config, seed=job.trial.seed)
        model.load_state_dict(tensors)
        length = job.config.max_seq_length
        save_model(model, directory, tokenizer, max_seq_length=length, problem_type=job.kind.problem_type)
        for name, content in job.kind.model_files(job.model_config.hidden_size).items():
            (directory / name).parent.mkdir(exist_ok=True)
            (directory / name).write_text(content, encoding="utf-8")

    # The directory explains itself: a task that is not in TASKS is described in task.json.
    document = {
        "task": task.name,
        **({} if TASKS.get(task.name) == task else {"task_description": to_mapping(task)}),
        "kind": task.kind,
        "labels": list(task.labels),
        **({"feature_input": feature_input} if feature_input else {}),
        **description,
        "configuration": to_mapping(job.config),
    }
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    (directory / TASK_NAME).write_text(text, encoding="utf-8")


def prediction_device() -> str:
    """Return the device for predictions: the first GPU, or the CPU without one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def load_task_model(directory: Path | str, task_name: str | None = None, *, log: bool = True) -> TaskModel:
    """Load a directory that `write_task_model` wrote, or any Hugging Face directory whose head fits the task.

    UsageError if the model was fine-tuned for another task, InputError if its files do not fit together.
    """
    directory = Path(directory)
    description = read_task_description(directory)
    if description is None and task_name is None:
        raise UsageError(f"{directory}: no {TASK_NAME}, so it is not a fine-tuned model; name the task, or give one")

    # A model of another author has no task.json: the caller names the task, and the model's size limits the settings.
    model_config = BertConfig.from_directory(directory)
    if description is None:
        task, description = get_task(str(task_name)), {}
        kind_of(task).check_directory(directory)
        config = _configuration_without_description(task, directory, model_config)
    else:
        # A task of a YAML file is known by its name once a model holds its description.
        expected = description["task"] if task_name in (None, description["task"]) else get_task(str(task_name)).name
        if expected != description["task"]:
            raise UsageError(
                f"{directory}: was fine-tuned for {description['task']}, not for {expected}; give a model of that task"
            )
        # As `write_task_model` left it: only a task outside of TASKS has a description.
        described, where = description.get("task_description"), str(directory / TASK_NAME)
        task = from_mapping(Task, described, where=where) if described else get_task(description["task"])
        config = from_mapping(FinetuningConfig, description["configuration"], where=where)

    # A feature-based model is a frozen encoder with a tagger in a file of its own.
    tokenizer = Tokenizer.from_directory(directory)
    check_model_fit(task, tokenizer, model_config, config, directory)
    encoder: BertModel | None = None
    model: nn.Module
    if feature_input := description.get("feature_input"):
        encoder = load_model(BertModel, directory, config=model_config, log=log)[0].eval()
        model = new_tagger(task, config, feature_input, model_config)
        model.load_state_dict(load_file(directory / TAGGER_NAME))
    else:
        # A head of random weights would answer at chance, without any error.
        architecture = kind_of(task).architecture
        if not description and read_weights(directory).architecture == architecture:
            task = dataclasses.replace(task, labels=_labels_of_head(directory, task, model_config))
        model, report = load_model(HEAD_CLASSES[architecture], directory, config=model_config, log=log)
        if head := [name for name in report.created if not name.startswith("bert.pooler")]:
            raise UsageError(
                f"{directory}: holds a {report.source_architecture} without a head for {task.name} "
                f"({', '.join(head)} would be random); fine-tune it first"
            )
    return TaskModel(
        task=task, description=description, config=config, model=model.eval(), encoder=encoder, tokenizer=tokenizer
    )


def check_model_fit(
    task: Task, tokenizer: Tokenizer, model_config: BertConfig, config: FinetuningConfig, directory: Path
) -> None:
    """Raise an error if the model's embeddings are too small for its vocabulary, the rows or the task's segments."""
    pair_task = task.name if kind_of(task).reads_pairs else ""
    check_embeddings(directory, model_config, tokenizer, pair_task=pair_task)
    if config.max_seq_length > model_config.max_position_embeddings:
        raise ConfigurationError(
            f"max_seq_length: found {config.max_seq_length}, expected at most the model's "
            f"{model_config.max_position_embeddings} positions"
        )


def _configuration_without_description(task: Task, directory: Path, model_config: BertConfig) -> FinetuningConfig:
    """Return the configuration of a model whose training is unknown: the task's, as far as the model reads.

    SQuAD's windows have the paper's length, which its models are trained at; other models read as much as they can.
    """
    paper = task_configuration(task)
    limits = [model_config.max_position_embeddings, model_max_length(directory)]
    if kind_of(task).has_paper_length:
        limits.append(paper.max_seq_length)
    length = min(limit for limit in limits if limit)

    # A short window keeps half of its tokens for the context, and overlaps the next by half or more.
    max_query_length = min(paper.max_query_length, length // 2)
    room = length - max_query_length - 3
    return task_configuration(
        task,
        {
            "max_seq_length": length,
            "max_query_length": max_query_length,
            "doc_stride": max(1, min(paper.doc_stride, room // 2)),
        },
    )


def _labels_of_head(directory: Path, task: Task, config: BertConfig) -> tuple[str, ...]:
    """Return the task's labels in the order of a foreign head's outputs, which other authors order differently.

    Without names of outputs or labels, the order of the integers of files without class names is assumed, with a
    warning. InputError if the head has another number of outputs, or names that are not the task's.
    """
    outputs = kind_of(task).head_labels()
    if outputs and config.num_labels != len(outputs):
        raise InputError(f"{directory}: its head has {config.num_labels} outputs, {task.name} needs {len(outputs)}")
    if not task.labels:
        return ()

    # LABEL_0 and so on are the names that transformers gives to outputs without one.
    unnamed = not config.labels or all(name.startswith("LABEL_") for name in config.labels)
    if unnamed or (not task.hub_names and all(label.isdecimal() for label in task.labels)):
        assumed = task.hub_labels or task.labels
        logger.warning(
            f"{directory / CONFIG_NAME}: does not name the outputs of its head, whose order is assumed to be "
            f"{', '.join(assumed)}; if it is another, write the names into id2label"
        )
        return assumed

    # Names may be the hub's ("equivalent" for 1), and differ in case.
    label_of = {name.casefold(): label for name, label in zip(task.hub_names, task.labels)}
    label_of |= {label.casefold(): label for label in task.labels}
    labels = tuple(label_of.get(name.casefold(), "") for name in config.labels)
    if set(labels) != set(task.labels):
        raise InputError(
            f"{directory / 'config.json'}: its head answers {', '.join(config.labels)}, "
            f"expected the labels of {task.name}: {', '.join(task.hub_names or task.labels)}"
        )
    return labels


def read_task_description(directory: Path) -> dict[str, Any] | None:
    """Return the content of task.json, None without one; an error if it is damaged or of another format."""
    path = directory / TASK_NAME
    if not path.exists():
        return None
    document = read_document(path)
    if missing := {"task", "kind", "labels", "configuration"} - document.keys():
        raise InputError(f"{path}: lacks {', '.join(sorted(missing))}; fine-tune the model again")
    if (directory / MANIFEST_NAME).is_file():  # which it is part of, with its format
        read_manifest(directory)
    return document
