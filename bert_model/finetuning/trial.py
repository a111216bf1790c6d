"""One fine-tuning trial: a model, a setting and a seed in; outputs on dev and, if requested, the weights out.

A trial reads encoded examples and knows neither texts nor metrics, so it imports little and runs in any process. A
finished trial is stored on disk, so that an interrupted search resumes without repeating it.
"""

import contextlib
import dataclasses
import functools
import itertools
import json
import math
import os
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from bert_model.finetuning.config import FinetuningConfig
from bert_model.finetuning.dataset import EncodedSet, num_training_steps, training_batches
from bert_model.finetuning.frozen_features import Activations
from bert_model.finetuning.predict_logits import autocast, forward, predict_logits, to_tensors
from bert_model.model.bert import BertModel, new_model
from bert_model.model.config import IGNORED_LABEL, BertConfig
from bert_model.model.cpu_kernels import cpu_settings
from bert_model.model.heads import (
    MODEL_CLASSES,
    Tagger,
    chosen_states,
)
from bert_model.model.weights import load_model
from bert_model.training.config import OptimizerConfig, learning_rate_at
from bert_model.training.optimizer import build_optimizer, clip_gradients, set_learning_rate


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    """What one training needs; plain values, so that it travels to a worker."""

    kind: str
    """The task's kind, which decides the head."""
    labels: tuple[str, ...]
    """The head's outputs."""
    data: str
    """Directory with the encoded sets: train, and every dev split."""
    dev_splits: tuple[str, ...]
    """Names of the dev splits, which are predicted when the training ends."""
    model: str
    """Directory of the model that training starts from."""
    start: str
    """pretrained: the model's weights; random: fresh weights of the same shape, drawn by the seed."""
    learning_rate: float
    batch_size: int
    epochs: float
    seed: int
    config: FinetuningConfig
    feature_input: str = ""
    """What a BiLSTM reads of the encoder, which then stays frozen; empty: the encoder itself is trained."""
    activations: str = ""
    """Directory with the frozen encoder's activations of each encoded set."""
    pad_id: int = 0
    weights: str = ""
    """Where to write the trained weights; empty writes none."""
    onednn: tuple[tuple[int, int], ...] = ()
    """Weight shapes that oneDNN computes; the others are torch's."""
    record: str = ""
    """Where to write the output when the training has ended; empty writes none."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialOutput:
    """What a training gave."""

    logits: dict[str, np.ndarray]
    """Dev split -> outputs as `bert_model.finetuning.decode` takes them; empty when the training diverged."""
    steps: int
    """Optimizer steps made."""
    losses: tuple[float, ...]
    """Mean training loss of each of at most 20 equal stretches of the training."""
    diverged: bool
    training_seconds: float
    training_tokens: int
    """Tokens trained on, padding not counted."""


def run_trial(trial: Trial, *, device: str, num_threads: int) -> TrialOutput:
    """Train and predict dev. The result is a function of the trial, the device and the number of threads alone."""
    with cpu_settings(onednn=trial.onednn, num_threads=num_threads), _seeded(trial.seed, device):
        output = _run(trial, torch.device(device))
    if trial.record:
        write_output(Path(trial.record), output)
    return output


@contextlib.contextmanager
def _seeded(seed: int, device: str) -> Iterator[None]:
    """Seed dropout for the time of a trial and leave torch's generators as they were."""
    with torch.random.fork_rng(devices=[device] if device.startswith("cuda") else []):
        torch.manual_seed(seed)
        yield


@functools.lru_cache(maxsize=16)
def _encoded(directory: str) -> EncodedSet:
    return EncodedSet.load(Path(directory))


def _run(trial: Trial, device: torch.device) -> TrialOutput:
    train = _encoded(f"{trial.data}/train")
    dev = {split: _encoded(f"{trial.data}/{split}") for split in trial.dev_splits}
    model: nn.Module
    if trial.feature_input:
        num_states = BertConfig.from_directory(trial.model).num_hidden_layers + 1
        chosen = chosen_states(trial.feature_input, num_states)
        features = {name: Activations.load(Path(trial.activations) / name, chosen) for name in ("train", *dev)}
        model = Tagger.fresh(
            features["train"].shape,
            len(trial.labels),
            feature_input=trial.feature_input,
            hidden_size=trial.config.lstm_hidden_size,
            dropout=trial.config.classifier_dropout,
            seed=trial.seed,
        ).to(device)
    else:
        features = {}
        mean = float(np.mean(train.row_columns["labels"])) if trial.kind == "regression" else 0.0
        model = starting_model(trial, label_mean=mean).to(device)
    losses, tokens, seconds = train_model(model, trial, train, features.get("train"))
    diverged = not math.isfinite(losses[-1])
    logits = {}
    if not diverged:
        for split, encoded in dev.items():
            logits[split] = predict_logits(
                model, encoded, pad_id=trial.pad_id, features=features.get(split), precision=trial.config.precision
            )
        if trial.weights:
            tensors = {name: value.detach().to("cpu", copy=True) for name, value in model.named_parameters()}
            save_file(tensors, trial.weights)
    return TrialOutput(
        logits=logits,
        steps=len(losses),
        losses=_condensed(losses),
        diverged=diverged,
        training_seconds=seconds,
        training_tokens=tokens,
    )


def train_model(
    model: nn.Module, trial: Trial, train: EncodedSet, features: Activations | None
) -> tuple[list[float], int, float]:
    """Train in place; return the loss of every step, the tokens seen and the seconds it took.

    Stops before the optimizer step at a loss that is not finite, which is then the last of the list.
    """
    config = trial.config
    device = next(model.parameters()).device
    lengths = train.unit_lengths()
    row_lengths = train.lengths().reshape(train.num_units, -1).sum(axis=1)
    total_steps = num_training_steps(train.num_units, trial.batch_size, trial.epochs)
    warmup_steps = int(total_steps * config.warmup_share)
    optimizer_config = OptimizerConfig(
        name=config.optimizer, weight_decay=config.weight_decay, max_gradient_norm=config.max_gradient_norm
    )
    optimizer = build_optimizer(model, optimizer_config, trial.learning_rate)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    losses: list[float] = []
    tokens = 0
    started = time.perf_counter()
    model.train()
    batches = (
        batch
        for epoch in itertools.count()
        for batch in training_batches(lengths, trial.batch_size, seed=trial.seed, epoch=epoch)
    )
    for step, batch in zip(range(total_steps), batches):
        rate = learning_rate_at(step, peak=trial.learning_rate, total_steps=total_steps, warmup_steps=warmup_steps)
        set_learning_rate(optimizer, rate)
        loss = _accumulate(model, trial, train, features, batch, device)
        losses.append(loss)
        tokens += int(row_lengths[batch].sum())
        if not math.isfinite(loss):
            break
        clip_gradients(parameters, config.max_gradient_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return losses, tokens, time.perf_counter() - started


def _accumulate(
    model: nn.Module,
    trial: Trial,
    train: EncodedSet,
    features: Activations | None,
    batch: np.ndarray,
    device: torch.device,
) -> float:
    """Add the gradients of a batch, in micro-batches; return its mean loss."""
    micro_batches = np.array_split(batch, min(trial.config.gradient_accumulation, len(batch)))
    padded = [to_tensors(train, units, trial.pad_id, device, features) for units in micro_batches]
    weight = max(1, sum(_loss_weight(trial.kind, tensors) for tensors in padded))
    total = 0.0
    for tensors in padded:
        with autocast(device, trial.config.precision):
            outputs = forward(model, tensors)
        loss = summed_loss(trial.kind, outputs.float(), tensors) / weight
        loss.backward()
        total += float(loss.detach())
    return total


def summed_loss(kind: str, outputs: Tensor, tensors: dict[str, Tensor]) -> Tensor:
    """Sum the loss over a batch: cross-entropy, squared error, or for spans the mean of both positions' entropies."""
    if kind == "regression":
        return functional.mse_loss(outputs.squeeze(-1), tensors["labels"], reduction="sum")
    if kind == "span":
        start = functional.cross_entropy(outputs[..., 0], tensors["start_positions"], reduction="sum")
        end = functional.cross_entropy(outputs[..., 1], tensors["end_positions"], reduction="sum")
        return (start + end) / 2
    return functional.cross_entropy(
        outputs.flatten(0, -2), tensors["labels"].flatten(), reduction="sum", ignore_index=IGNORED_LABEL
    )


def _loss_weight(kind: str, tensors: dict[str, Tensor]) -> int:
    if kind == "tagging":
        return int((tensors["labels"] != IGNORED_LABEL).sum())
    return len(tensors["input_ids"])


def model_overrides(config: FinetuningConfig) -> dict[str, Any]:
    """The keys of the model's configuration that fine-tuning sets."""
    overrides: dict[str, Any] = {"classifier_dropout": config.classifier_dropout, "head": config.head}
    if config.hidden_dropout is not None:
        overrides |= {
            "hidden_dropout_prob": config.hidden_dropout,
            "attention_probs_dropout_prob": config.hidden_dropout,
        }
    return overrides


def starting_model(trial: Trial, *, label_mean: float = 0.0) -> nn.Module:
    """Make the model that a trial starts from, with a head for its labels; a regression starts from `label_mean`.

    The head is fresh, but for a model that was already fine-tuned for a task with the same head and labels: then
    training goes on with it, as for SQuAD after another set of questions.
    """
    model_class = MODEL_CLASSES[trial.kind]
    overrides: dict[str, Any] = {**model_overrides(trial.config), "labels": head_labels(trial)}
    if trial.start == "pretrained" and _has_same_head(trial):
        return load_model(model_class, trial.model, seed=trial.seed, **overrides)[0]
    config = BertConfig.from_directory(trial.model, **overrides)
    model = new_model(model_class, config, seed=trial.seed)
    if trial.kind == "regression":
        with torch.no_grad():  # else a short training spends its steps on finding the mean
            model.get_submodule("classifier").get_parameter("bias").fill_(label_mean)
    if trial.start == "pretrained":
        encoder, _ = load_model(BertModel, trial.model, seed=trial.seed, **overrides)
        weights = encoder.state_dict()
        own = model.get_submodule("bert")
        own.load_state_dict({name: weights[name] for name in own.state_dict()})
    return model


def head_labels(trial: Trial) -> tuple[str, ...]:
    """Names of the head's outputs as they stand in config.json."""
    if trial.kind == "regression":
        return ("score",)
    return trial.labels if trial.kind in ("classification", "tagging") else ()


def _has_same_head(trial: Trial) -> bool:
    document = json.loads((Path(trial.model) / "config.json").read_text(encoding="utf-8"))
    same_class = MODEL_CLASSES[trial.kind].__name__ in (document.get("architectures") or [])
    config = BertConfig.from_directory(trial.model)
    return same_class and (config.labels, config.head) == (head_labels(trial), trial.config.head)


def _condensed(losses: list[float], stretches: int = 20) -> tuple[float, ...]:
    parts = np.array_split(np.asarray(losses), min(stretches, len(losses)))
    return tuple(round(float(part.mean()), 6) for part in parts)


FACTS = "facts"


def write_output(path: Path, output: "TrialOutput") -> None:
    """Write a trial's outputs to one file, which appears whole or not at all."""
    facts = {field.name: getattr(output, field.name) for field in dataclasses.fields(output) if field.name != "logits"}
    arrays = {f"logits/{split}": logits for split, logits in output.logits.items()}
    arrays[FACTS] = np.frombuffer(json.dumps(facts).encode("utf-8"), dtype=np.uint8)
    temporary = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        with open(temporary, "wb") as stream:
            np.savez(stream, **arrays)  # type: ignore[arg-type]
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_output(path: Path) -> "TrialOutput | None":
    """Read what `write_output` wrote; None where it is not there, or is torn after a power cut: it is made again."""

    try:
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as stored:
            facts = json.loads(stored[FACTS].tobytes())
            logits = {name.partition("/")[2]: stored[name] for name in stored.files if name != FACTS}
    except (FileNotFoundError, zipfile.BadZipFile, EOFError, ValueError, KeyError):
        return None
    return TrialOutput(**{**facts, "losses": tuple(facts["losses"])}, logits=logits)
