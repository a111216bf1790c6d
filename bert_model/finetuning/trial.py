"""Training of one fine-tuning trial: encoded examples in; outputs on dev and, if requested, the weights out.

A trial knows neither texts nor metrics, so it imports little and runs in any process. Its output is stored on disk, so
that an interrupted search resumes without repeating it; a long trial also stores checkpoints, from which it resumes bit
for bit.
"""

import dataclasses
import functools
import itertools
import json
import logging
import math
import shutil
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim import Optimizer

from bert_model.finetuning.config import FinetuningConfig
from bert_model.finetuning.epochs import Epochs, load_weights
from bert_model.finetuning.forward_passes import forward, load_states, predict_logits, send, to_tensors
from bert_model.finetuning.search import Training, Trial
from bert_model.kinds import Kind, kind_of
from bert_model.kinds.encoded import EncodedSet, num_training_steps, training_batches
from bert_model.model.config import BertConfig
from bert_model.model.cpu_kernels import limited_threads
from bert_model.model.heads import HEAD_CLASSES, Tagger, chosen_states
from bert_model.model.initialization import new_model
from bert_model.model.weights import BILSTM, TASK_HEADS, divided, fill_model, load_model, read_weights, save_tensors
from bert_model.training.distributed import autocast
from bert_model.training.optimizer import (
    build_optimizer,
    clip_gradients,
    load_optimizer_tensors,
    optimizer_tensors,
    set_learning_rate,
)
from bert_model.training.schedule import OptimizerConfig, learning_rate_at
from bert_model.training.throughput import system_load
from bert_pipeline.atomic import atomic_write
from bert_pipeline.errors import ArtifactError, DiskFullError
from bert_pipeline.manifest import load_manifest, publishing
from bert_pipeline.tasks.catalogue import Task

logger = logging.getLogger(__name__)

MAX_REPORTED_LOSSES = 20
OUTPUT_SUFFIX = ".npz"
OUTPUT_FIELDS = "fields"
CHECKPOINT_SUFFIX = ".checkpoint"
CHECKPOINT_KIND = "trial_checkpoint"
CHECKPOINT_INTERVAL_SECONDS = 600.0
REPORT_INTERVAL_SECONDS = 2.0
EPOCH_EVALUATION_SECONDS = 10.0
"""Least training time before an evaluation at the end of an epoch: on a small training set evaluations would take as
long as the training, and nobody watches a trial of seconds."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialProgress:
    """Report of a running trial."""

    trial: Trial
    step: int
    """Number of optimizer steps so far."""
    total_steps: int
    loss: float
    """Mean training loss of the steps since the last report."""
    num_steps: int
    """Number of these steps."""
    learning_rate: float
    steps_per_second: float
    tokens_per_second: float
    """Real tokens. Both rates are means over the whole trial, without evaluations."""
    load: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Load of machine and GPU since the last report, as `system_load` returns it."""
    logits: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    """Dev split -> outputs, at the end of an epoch."""
    scores: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    """Dev split -> metric -> score of these outputs, which the process with the examples fills in."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialOutput(Training):
    """Predictions and costs of a finished training, before scoring."""

    logits: dict[str, np.ndarray]
    """Split -> outputs as the kind of task decodes them; empty if the training diverged."""
    training_seconds: float
    training_tokens: int
    """Number of tokens trained on, without padding."""


def write_output(path: Path, output: TrialOutput) -> None:
    """Write a trial's output to one file, atomically."""
    fields = {field.name: getattr(output, field.name) for field in dataclasses.fields(output) if field.name != "logits"}
    arrays = {f"logits/{split}": logits for split, logits in output.logits.items()}
    # All in one file, so that one rename makes it complete; JSON keeps its bytes as an array.
    arrays[OUTPUT_FIELDS] = np.frombuffer(json.dumps(fields).encode("utf-8"), dtype=np.uint8)
    with atomic_write(path) as temporary, open(temporary, "wb") as stream:
        np.savez(stream, **arrays)  # type: ignore[arg-type]


def read_output(path: Path) -> TrialOutput | None:
    """Read what `write_output` wrote; None if the file is missing or was torn by a power cut: the trial is repeated."""
    try:
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as stored:
            fields = json.loads(stored[OUTPUT_FIELDS].tobytes())
            logits = {name.partition("/")[2]: stored[name] for name in stored.files if name != OUTPUT_FIELDS}
    except (FileNotFoundError, zipfile.BadZipFile, EOFError, ValueError, KeyError):
        return None
    fields |= {"losses": tuple(fields["losses"]), "epoch_scores": tuple(map(tuple, fields["epoch_scores"]))}
    return TrialOutput(**fields, logits=logits)


Report = Callable[[TrialProgress], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialJob:
    """A trial with all that a worker needs to run it."""

    trial: Trial
    task: Task
    config: FinetuningConfig
    model: Path
    """Directory with the pre-trained weights."""
    model_config: BertConfig
    """Configuration of the model that is trained, with the task's dropouts and labels."""
    keeps_head: bool = False
    """True if `model` was fine-tuned for a task with the same head and labels: training then continues with its head,
    as for SQuAD after another set of questions."""
    data: Path = Path()
    """Directory with the encoded sets: "train", and every dev split."""
    dev_splits: tuple[str, ...] = ()
    """Splits to predict after training, and at the end of every epoch if `evaluates_epochs`."""
    other_sets: tuple[str, ...] = ()
    """Further sets to predict after training: labeled test splits, and splits with the context of documents."""
    evaluates_epochs: bool = False
    states: Path | None = None
    """Directory with the frozen encoder's hidden states of each encoded set, for a feature-based tagger."""
    weights: Path | None = None
    """File to write the trained weights to."""
    output: Path | None = None
    """File to write the output to."""
    checkpoint: Path | None = None
    """Directory for the checkpoint of an unfinished training, from which `run` resumes."""

    @property
    def kind(self) -> Kind:
        """The kind of task, which decides the head and the loss."""
        return kind_of(self.task)

    def run(self, *, device: str, num_threads: int, report: Report | None = None) -> TrialOutput:
        """Train and predict. The output is a function of the job, the device and the number of threads alone."""
        # The generators, which dropout draws from, are restored after it.
        with limited_threads(num_threads), torch.random.fork_rng([device] if device.startswith("cuda") else []):
            torch.manual_seed(self.trial.seed)
            output = _run(self, torch.device(device), report)
        if self.output is not None:
            write_output(self.output, output)
        if self.checkpoint is not None:
            shutil.rmtree(self.checkpoint, ignore_errors=True)
        return output


@functools.lru_cache(maxsize=16)
def _encoded(directory: Path) -> EncodedSet:
    """Map an encoded set, which the trials of one worker share."""
    return EncodedSet.load(directory)


def _run(job: TrialJob, device: torch.device, report: Report | None) -> TrialOutput:
    scored = (*job.dev_splits, *job.other_sets)
    sets = {name: _encoded(job.data / name) for name in ("train", *scored)}

    # Numbers that are far from 1 are trained on in a unit of their own; outputs and weights that leave have theirs.
    unit = job.kind.unit(sets["train"])
    if unit != 1.0:
        labels = sets["train"].row_columns["labels"] / np.float32(unit)
        sets["train"] = dataclasses.replace(sets["train"], row_columns={"labels": labels})

    # Either a tagger on the stored states of a frozen encoder, or the encoder with a head.
    model: nn.Module
    if job.states is not None:
        feature_input = job.trial.setting.feature_input
        chosen = chosen_states(feature_input, job.model_config.num_hidden_layers + 1)
        for name, encoded in sets.items():
            sets[name] = dataclasses.replace(encoded, features=load_states(job.states / name, chosen))
        model = new_tagger(job.task, job.config, feature_input, job.model_config).draw_weights(job.trial.seed)
    else:
        model = initial_model(job, sets["train"], unit)
    model = model.to(device)

    # Reads the model's current weights: used at the ends of epochs and once or twice more at the end.
    def predict(splits: tuple[str, ...]) -> dict[str, np.ndarray]:
        return {split: unit * predict_logits(model, sets[split], precision=job.config.precision) for split in splits}

    epochs: Epochs | None = None
    if (job.config.select == "best" or job.config.patience) and job.trial.setting.epochs > 1:
        epochs = Epochs(job.kind, job.config, job.data, sets[job.dev_splits[0]])
    losses, tokens, seconds = train_model(
        model,
        job,
        sets["train"],
        report=report,
        dev_logits=lambda: predict(job.dev_splits if job.evaluates_epochs else job.dev_splits[:1]),
        epochs=epochs,
    )

    # A diverged training has no predictions and no weights, but its losses are reported. No loss shows its last update.
    logits = predict(scored) if math.isfinite(losses[-1]) else {}
    diverged = not (logits and all(np.isfinite(outputs).all() for outputs in logits.values()))
    if not diverged:
        if epochs is not None:
            if not epochs.are_over:  # else the last epoch is scored already
                epochs.add(len(losses) / steps_per_epoch(job, sets["train"]), logits[job.dev_splits[0]], model)
            if epochs.restore(model):
                logits = predict(scored)
        if job.weights is not None:
            tensors = {name: value.detach().to("cpu", copy=True) for name, value in model.named_parameters()}
            save_tensors(divided(tensors, 1.0 / unit), job.weights)
    stretches = np.array_split(np.asarray(losses), min(MAX_REPORTED_LOSSES, len(losses)))
    return TrialOutput(
        logits={} if diverged else logits,
        steps=len(losses),
        losses=tuple(round(float(stretch.mean()), 6) for stretch in stretches),
        diverged=diverged,
        training_seconds=seconds,
        training_tokens=tokens,
        epoch=epochs.kept if epochs is not None and epochs.scores else 0.0,
        epoch_scores=tuple(epochs.scores) if epochs is not None else (),
    )


def steps_per_epoch(job: TrialJob, train: EncodedSet) -> int:
    """Return the number of optimizer steps of one epoch."""
    return num_training_steps(train.num_units, train.units_of_batch(job.trial.setting.batch_size), 1)


def new_tagger(task: Task, config: FinetuningConfig, feature_input: str, encoder: BertConfig) -> Tagger:
    """Build the tagger of a feature-based model on chosen states of an encoder."""
    shape = len(chosen_states(feature_input, encoder.num_hidden_layers + 1)), encoder.hidden_size
    size, dropout = config.lstm_hidden_size, config.classifier_dropout
    return Tagger(shape, len(task.labels), feature_input=feature_input, hidden_size=size, dropout=dropout)


def initial_model(job: TrialJob, train: EncodedSet, unit: float = 1.0) -> nn.Module:
    """Build the model that a trial starts from, with outputs in `unit`; a regression predicts the mean of `train`."""
    model_class, seed = HEAD_CLASSES[job.kind.architecture], job.trial.seed
    pretrained = job.trial.initialization.weights == "pretrained"
    if pretrained and job.keeps_head:
        model = load_model(model_class, job.model, seed=seed, config=job.model_config, log=False)[0]
        model.load_state_dict(divided(model.state_dict(), unit))
        return model
    model = new_model(model_class, job.model_config, seed=seed)
    job.kind.prepare(model, train)

    # The task's head keeps its random weights; all others are replaced.
    if pretrained:
        loaded, _ = fill_model(model_class, job.model_config, read_weights(job.model), seed=seed, new_task_head=True)
        heads = (*TASK_HEADS, BILSTM)
        shared = {name: tensor for name, tensor in loaded.state_dict().items() if not name.startswith(heads)}
        model.load_state_dict(shared, strict=False)
    return model


def train_model(
    model: nn.Module,
    job: TrialJob,
    train: EncodedSet,
    *,
    report: Report | None = None,
    dev_logits: Callable[[], dict[str, np.ndarray]] | None = None,
    epochs: Epochs | None = None,
) -> tuple[list[float], int, float]:
    """Train in place; return the loss of every step, the number of tokens and the seconds, without evaluations.

    Stops at a loss that is not finite, which is then the last of the list, and the weights are to be discarded. Losses
    are read every two seconds only: a GPU computes each step without waiting for the host. `report` is called then,
    after the first step, and with `dev_logits()` at the end of an epoch, at most every ten seconds. `epochs` gets them
    at the end of each but the last, and may end the training. Nothing of this draws random numbers: the training is the
    same without.
    """
    config, setting = job.config, job.trial.setting
    device = next(model.parameters()).device

    # Batches sort units by their longest row; tokens are counted over all rows of a unit.
    lengths = train.unit_lengths()
    num_tokens = train.lengths().reshape(train.num_units, -1).sum(axis=1)
    batch_size = train.units_of_batch(setting.batch_size)
    total_steps = num_training_steps(train.num_units, batch_size, setting.epochs)
    epoch_steps = steps_per_epoch(job, train)
    warmup_steps = int(total_steps * config.warmup_share)

    # The optimizer is built before resuming, which fills its state in place.
    optimizer_config = OptimizerConfig(
        name=config.optimizer, weight_decay=config.weight_decay, max_gradient_norm=config.max_gradient_norm
    )
    optimizer = build_optimizer(model, optimizer_config, setting.learning_rate)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    # Endless epochs: `epochs` need not be whole, so the steps decide when to stop.
    batches = (
        batch
        for epoch in itertools.count()
        for batch in training_batches(lengths, batch_size, seed=job.trial.seed, epoch=epoch)
    )

    # A resumed training skips the batches of its finished steps; `started` is moved back by the seconds they took.
    losses, tokens, seconds = _resume(job, model, optimizer, epochs)
    unread: list[tuple[Tensor, int]] = []  # loss and number of tokens of each step since the last report
    start = reported_step = len(losses)
    reported_at = saved_at = evaluated_at = time.perf_counter()
    started = reported_at - seconds
    model.train()
    end = start if epochs is not None and epochs.are_over else total_steps
    for step, batch in zip(range(start, end), itertools.islice(batches, start, None)):
        # One optimizer step.
        rate = learning_rate_at(step, peak=setting.learning_rate, total_steps=total_steps, warmup_steps=warmup_steps)
        set_learning_rate(optimizer, rate)
        loss = _backward(model, job, train, batch, device)
        unread.append((loss, int(num_tokens[batch].sum())))
        clip_gradients(parameters, config.max_gradient_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

        # What is due by the clock decides nothing about the training.
        done, now = step + 1, time.perf_counter()
        ends_epoch = dev_logits is not None and done % epoch_steps == 0 and done < total_steps
        evaluates = job.evaluates_epochs and ends_epoch and now - evaluated_at >= EPOCH_EVALUATION_SECONDS
        saves = job.checkpoint is not None and now - saved_at >= CHECKPOINT_INTERVAL_SECONDS and done < total_steps
        sized = report is not None and step == start  # the memory of a step is known
        reports = evaluates or sized or now - reported_at >= REPORT_INTERVAL_SECONDS
        if reports or saves or (ends_epoch and epochs) or done == total_steps:
            # Read the losses; the training ends with the first that is not finite.
            for value, (_, count) in zip(torch.stack([loss for loss, _ in unread]).tolist(), unread):
                losses.append(value)
                tokens += count
                if not math.isfinite(value):
                    return losses, tokens, time.perf_counter() - started
            unread.clear()
            now = time.perf_counter()  # reading has waited for a GPU
        logits: dict[str, np.ndarray] = {}
        if dev_logits is not None and ((evaluates and report) or (ends_epoch and epochs)):
            logits = dev_logits()
            if epochs is not None:
                epochs.add(done / epoch_steps, logits[job.dev_splits[0]], model)
            model.train()
            # The time of the evaluation is taken out of the rates.
            started, now = started + time.perf_counter() - now, time.perf_counter()
            evaluated_at = now if evaluates else evaluated_at
        if report is not None and reports:
            # The loss since the last report, the rates over the whole trial.
            latest, seconds = losses[reported_step:], max(now - started, 1e-9)
            report(
                TrialProgress(
                    trial=job.trial,
                    step=done,
                    total_steps=total_steps,
                    loss=sum(latest) / len(latest),
                    num_steps=len(latest),
                    learning_rate=rate,
                    steps_per_second=done / seconds,
                    tokens_per_second=tokens / seconds,
                    load=system_load(device),
                    logits=logits if evaluates else {},
                )
            )
        if reports:
            reported_step, reported_at = done, time.perf_counter()
        if saves and job.checkpoint is not None:
            _save_checkpoint(job.checkpoint, job, model, optimizer, losses, tokens, now - started, epochs)
            saved_at = time.perf_counter()
            started += saved_at - now  # the rates leave out the time of a checkpoint
        if ends_epoch and epochs is not None and epochs.are_over:
            break
    return losses, tokens, time.perf_counter() - started


def _save_checkpoint(
    directory: Path,
    job: TrialJob,
    model: nn.Module,
    optimizer: Optimizer,
    losses: list[float],
    tokens: int,
    seconds: float,
    epochs: Epochs | None,
) -> None:
    """Replace the checkpoint of a training: weights, also the best, optimizer and random state, losses and counts."""
    tensors: dict[str, Tensor] = {f"model.{name}": parameter for name, parameter in model.named_parameters()}
    tensors |= {f"optimizer.{name}": tensor for name, tensor in optimizer_tensors(model, optimizer).items()}
    tensors |= {"random.cpu": torch.get_rng_state(), "losses": torch.tensor(losses, dtype=torch.float64)}
    if (device := next(model.parameters()).device).type == "cuda":
        tensors["random.cuda"] = torch.cuda.get_rng_state(device)
    best, scored = epochs.state() if epochs is not None else ({}, None)
    tensors |= best

    held = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}

    # A checkpoint only saves time, so the training continues without it.
    try:
        with publishing(directory, kind=CHECKPOINT_KIND, configuration={"trial": job.trial.name}, inputs={}) as draft:
            save_tensors(held, draft.path / "state.safetensors")
            fields = json.dumps({"step": len(losses), "tokens": tokens, "seconds": seconds, "epochs": scored})
            (draft.path / "state.json").write_text(fields + "\n", encoding="utf-8")
    except (OSError, DiskFullError) as error:  # most likely the disk is full
        logger.warning(
            "%s: step %d could not be saved (%s); the training continues without", directory, len(losses), error
        )


def _resume(
    job: TrialJob, model: nn.Module, optimizer: Optimizer, epochs: Epochs | None
) -> tuple[list[float], int, float]:
    """Restore a training from its checkpoint; return losses, tokens and seconds so far, nothing without one.

    A damaged checkpoint is as good as none.
    """
    if job.checkpoint is None or not job.checkpoint.is_dir():
        return [], 0, 0.0
    try:
        load_manifest(job.checkpoint, kind=CHECKPOINT_KIND, verify="sha256")
    except ArtifactError as error:
        logger.warning("%s; the trial starts over", error)
        return [], 0, 0.0

    # Everything that the next step depends on: weights, optimizer state, and dropout's random state.
    tensors = load_file(job.checkpoint / "state.safetensors")
    fields = json.loads((job.checkpoint / "state.json").read_text(encoding="utf-8"))
    load_weights(model, {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")})
    if epochs is not None and fields["epochs"]:
        epochs.load(tensors, fields["epochs"])
    prefix = "optimizer."
    load_optimizer_tensors(
        model, optimizer, {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
    )
    torch.set_rng_state(tensors["random.cpu"])
    if "random.cuda" in tensors:
        torch.cuda.set_rng_state(tensors["random.cuda"], next(model.parameters()).device)
    return tensors["losses"].tolist(), int(fields["tokens"]), float(fields["seconds"])


def _backward(model: nn.Module, job: TrialJob, train: EncodedSet, batch: np.ndarray, device: torch.device) -> Tensor:
    """Accumulate the gradients of a batch over its micro-batches; return its mean loss, a float64 scalar."""
    kind = job.kind
    micro_batches = np.array_split(batch, min(job.config.gradient_accumulation, len(batch)))
    padded = [to_tensors(train, units) for units in micro_batches]
    class_weights = torch.tensor(job.task.weights_of_labels) if job.task.class_weights else None

    # The whole batch's weight, so that micro-batches of unequal size add up to the gradient of one large batch. It is
    # computed in host memory: a sum on a GPU would have to be waited for.
    weight = sum(kind.num_terms(tensors, class_weights) for tensors in padded) or 1
    class_weights = send(class_weights, device) if class_weights is not None else None
    total = torch.zeros((), dtype=torch.float64, device=device)
    for host_tensors in padded:
        tensors = {name: send(tensor, device) for name, tensor in host_tensors.items()}
        with autocast(device, job.config.precision):
            outputs = forward(model, tensors)
        loss = kind.loss(outputs.float(), tensors, class_weights) / weight
        torch.autograd.backward(loss)
        total += loss.detach()
    return total


def task_model_config(model_config: BertConfig, config: FinetuningConfig, task: Task) -> BertConfig:
    """Return the configuration of a pre-trained model with the keys that fine-tuning sets."""
    dropouts: dict[str, Any] = {}
    if config.hidden_dropout is not None:
        dropouts = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), config.hidden_dropout)
    labels, dropout = kind_of(task).head_labels(), config.classifier_dropout
    return dataclasses.replace(model_config, classifier_dropout=dropout, head=config.head, labels=labels, **dropouts)
