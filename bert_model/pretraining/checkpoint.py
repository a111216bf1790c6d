"""Checkpoints: Hugging Face directories with training state, published atomically and written in the background.

Order: `take_snapshot` copies the state to host memory, `BackgroundSaver` hands it to a thread, `CheckpointDirectory`
writes, verifies and prunes, `restore` loads it again.
"""

import contextlib
import json
import logging
import math
import re
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim import Optimizer

from bert_model.model.config import BertConfig
from bert_model.model.weights import WEIGHTS_NAME, architecture_of, read_tensors, save_tensors, write_weights
from bert_model.training.gradients import full_tensor, shard_like
from bert_model.training.metrics_log import check_not_removed
from bert_model.training.optimizer import load_optimizer_tensors, optimizer_tensors
from bert_pipeline import storage
from bert_pipeline.errors import ArtifactError, DiskFullError, TrainingError
from bert_pipeline.manifest import MANIFEST_NAME, Manifest, load_manifest, publishing
from bert_pipeline.vocabulary.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

KIND = "checkpoint"
STATE_DIRECTORY = "training_state"
OPTIMIZER_NAME = f"{STATE_DIRECTORY}/optimizer.safetensors"
STATE_NAME = f"{STATE_DIRECTORY}/state.json"


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The training state at one step, copied to host memory: training continues while it is written."""

    step: int
    parameters: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    config: BertConfig
    architecture: str
    state: dict[str, Any]
    """Everything else that the continuation depends on, in JSON values."""
    metrics: dict[str, float]
    """The latest held-out metrics, stored as counts of the manifest."""


def take_snapshot(
    model: nn.Module, optimizer: Optimizer, *, step: int, state: dict[str, Any], metrics: dict[str, float]
) -> Snapshot:
    """Copy weights and optimizer state to host memory; if the model is sharded, the other ranks call `send_shards`."""
    return Snapshot(
        step=step,
        parameters={name: _copy(parameter) for name, parameter in model.named_parameters()},
        optimizer={name: _copy(tensor) for name, tensor in optimizer_tensors(model, optimizer).items()},
        config=cast(BertConfig, model.config),
        architecture=architecture_of(type(model)),
        state=state,
        metrics=metrics,
    )


def send_shards(model: nn.Module, optimizer: Optimizer) -> None:
    """Give this rank's parts of weights and optimizer state to rank 0's `take_snapshot`; keep nothing."""
    for tensor in (*model.parameters(), *optimizer_tensors(model, optimizer).values()):
        full_tensor(tensor.detach())


def _copy(tensor: Tensor) -> Tensor:
    return full_tensor(tensor.detach()).to("cpu", copy=True).contiguous()


@dataclass(kw_only=True)
class CheckpointDirectory:
    """The checkpoints of one run: `step-00000500` and so on. Its caller holds the lock of the run."""

    path: Path
    tokenizer: Tokenizer
    configuration: Mapping[str, Any]
    inputs: Mapping[str, Any]
    keep_last: int
    keep_every_steps: int = 0

    def path_of(self, step: int) -> Path:
        """Return the directory of a step's checkpoint."""
        return self.path / directory_name(step)

    def save(self, snapshot: Snapshot) -> Path:
        """Publish a checkpoint, then remove old ones; raise TrainingError if the disk is full or fails.

        Earlier checkpoints are intact then. Raise TrainingError also if the run directory was removed meanwhile.
        """
        directory = self.path_of(snapshot.step)
        # Publishing would create it again, without the configuration that a resume needs.
        check_not_removed(self.path.parent)
        try:
            # The directory gets its name when every file is complete; until then it is a draft that `clean` removes.
            with publishing(directory, kind=KIND, configuration=self.configuration, inputs=self.inputs) as draft:
                write_weights(snapshot.parameters, snapshot.config, snapshot.architecture, draft.path)
                self.tokenizer.save(draft.path, model_max_length=snapshot.config.max_position_embeddings)
                (draft.path / STATE_DIRECTORY).mkdir()
                save_tensors(snapshot.optimizer, draft.path / OPTIMIZER_NAME)
                state = json.dumps({"step": snapshot.step, **snapshot.state}, indent=1, sort_keys=True)
                (draft.path / STATE_NAME).write_text(state + "\n", encoding="utf-8")
                draft.counts = {"step": snapshot.step, **snapshot.metrics}
        except (OSError, ArtifactError) as error:
            check_not_removed(self.path)
            if not isinstance(error, (OSError, DiskFullError)):
                raise
            # Report what is needed and what is free; the training adds which checkpoint is the last.
            tensors = [*snapshot.parameters.values(), *snapshot.optimizer.values()]
            needed = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            raise TrainingError(
                f"{directory}: the checkpoint of step {snapshot.step} could not be written "
                f"({error.__cause__ or error}); it needs about {needed:,} bytes, "
                f"{shutil.disk_usage(self.path).free:,} are free; make room, and start again with --resume"
            ) from error
        # Remove all but the last `keep_last`, multiples of `keep_every_steps`, and the best.
        every, protected = self.keep_every_steps, protected_step(snapshot.state)
        for step in self.steps()[: -self.keep_last]:
            if step != protected and not (every and step % every == 0):
                # The manifest first: who copies the checkpoint now, or resumes after a kill, sees that it is going.
                storage.remove_tree(self.path_of(step) / MANIFEST_NAME)
                storage.remove_tree(self.path_of(step))
        return directory

    def steps(self) -> list[int]:
        """Return the steps of all checkpoint directories, ascending, without verifying them."""
        return step_numbers(entry.name for entry in self.path.glob("*"))

    def newest(self) -> Manifest | None:
        """Return the newest checkpoint whose files match its manifest; warn about and skip damaged ones."""
        for step in reversed(self.steps()):
            try:
                return load_manifest(self.path_of(step), kind=KIND, verify="sha256")
            except ArtifactError as error:
                logger.warning("checkpoint of step %d is skipped: %s", step, error)
        return None

    def clean(self, newest: Manifest | None = None) -> None:
        """Remove what a killed process left incomplete, and damaged checkpoints that are later than the newest."""
        # `keep_last` would keep them, and prune those that are saved now.
        last = newest.counts["step"] if newest is not None else math.inf
        leftovers = [*self.path.glob(".step-*.partial-*"), *self.path.glob(".upload-*")]
        for step in self.steps():
            # Without a manifest: copied from a store to which a killed run was copying it.
            if step > last or not (self.path_of(step) / MANIFEST_NAME).exists():
                leftovers.append(self.path_of(step))
        for leftover in leftovers:
            shutil.rmtree(leftover, ignore_errors=True)


def is_intact(directory: Path) -> bool:
    """Return whether there is a checkpoint here whose files match its manifest."""
    with contextlib.suppress(ArtifactError):
        load_manifest(directory, kind=KIND, verify="sha256")
        return True
    return False


def directory_name(step: int) -> str:
    """Return the name of a step's checkpoint."""
    return f"step-{step:08d}"


def step_numbers(names: Iterable[str]) -> list[int]:
    """Return the steps of the checkpoints among names of directories, ascending."""
    matches = (re.fullmatch(r"step-(\d{8,})", name) for name in names)
    return sorted(int(match[1]) for match in matches if match)


def restore(directory: Path, model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Load weights and optimizer state into a model of the same shape; return the stored state."""
    tensors = read_tensors(directory)
    # Compare before copying: a model that does not fit stays unchanged.
    parameters = dict(model.named_parameters())
    stored, expected = ({name: item.shape for name, item in items.items()} for items in (tensors, parameters))
    if wrong := sorted(dict(stored.items() ^ expected.items())):
        raise ArtifactError(f"{directory / WEIGHTS_NAME}: does not fit the model at {', '.join(wrong[:5])}")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(shard_like(tensors[name], parameter))
    load_optimizer_tensors(model, optimizer, load_file(directory / OPTIMIZER_NAME))
    return read_state(directory)


def read_state(directory: Path) -> dict[str, Any]:
    """Return the stored state of a checkpoint: what is neither weights nor optimizer."""
    return cast("dict[str, Any]", json.loads((directory / STATE_NAME).read_text(encoding="utf-8")))


def protected_step(state: Mapping[str, Any]) -> int | None:
    """Return the step of the checkpoint that is never removed, by the state of a later one: the best so far."""
    return cast("int | None", state.get("best", {}).get("step"))


class BackgroundSaver:
    """Writes snapshots in order in one thread; a failure is raised by the next call.

    One snapshot may wait while another is written, so training waits for a slow disk only when it is two checkpoints
    behind.
    """

    def __init__(
        self, directory: CheckpointDirectory, published: Callable[[CheckpointDirectory], None] | None = None
    ) -> None:
        """`published(directory)` is called in the thread after each snapshot, last."""
        self.directory = directory
        self.published = published
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._unfinished: deque[Future[None]] = deque()

    def save(self, snapshot: Snapshot, then: Callable[[Path], None]) -> None:
        """Queue a snapshot; `then(path)` is called in the thread when it is published."""

        def work() -> None:
            then(self.directory.save(snapshot))
            if self.published is not None:
                self.published(self.directory)

        # Collect what is done, and wait while two others are unfinished; this one is written even after a failure.
        self._unfinished.append(self._executor.submit(work))
        while len(self._unfinished) > 2 or (self._unfinished and self._unfinished[0].done()):
            self._unfinished.popleft().result()

    def wait(self) -> None:
        """Wait until all snapshots are written; raise the first failure after the last of them."""
        wait(self._unfinished)
        while self._unfinished:
            self._unfinished.popleft().result()
