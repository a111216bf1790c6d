"""The dev scores of a training's epochs: its best weights are kept, and it ends when they get no better."""

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bert_model.finetuning.config import FinetuningConfig
from bert_model.kinds import Kind
from bert_model.kinds.encoded import EncodedSet

EXAMPLES = "examples.pickle"
PREFIX = "best."
"""Of the names of the best weights in a checkpoint."""


def save_examples(directory: Path, examples: Sequence[Any]) -> None:
    """Write the dev examples by which epochs are scored; other processes of this search read them."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / EXAMPLES).write_bytes(pickle.dumps(examples))


class Epochs:
    """The scores of one training, and its best weights so far."""

    def __init__(self, kind: Kind, config: FinetuningConfig, directory: Path, encoded: EncodedSet) -> None:
        self.kind, self.config, self.encoded = kind, config, encoded
        self.examples = pickle.loads((directory / EXAMPLES).read_bytes())
        self.scores: list[tuple[float, float]] = []
        """Epoch and main score."""
        self.best: tuple[bool, float, float] = (False, -1e9, 0.0)
        """Whether the best epoch's predictions differ, its score and its number."""
        self.weights: dict[str, Tensor] = {}
        self.stale = 0
        """Epochs since the score was last better."""

    def add(self, epoch: float, logits: np.ndarray, model: nn.Module) -> None:
        """Score the outputs for dev at the end of an epoch, and keep the weights if none were better."""
        evaluation = self.kind.evaluate(self.examples, self.encoded, logits, self.config)
        score = round(evaluation.scores[self.kind.task.main_metric], 6)
        self.scores.append((round(epoch, 3), score))
        merit = (not evaluation.collapsed, score)
        self.stale = 0 if merit > self.best[:2] else self.stale + 1
        if merit >= self.best[:2]:
            self.best = (*merit, round(epoch, 3))
            if self.config.select == "best":
                self.weights = {name: value.detach().to("cpu", copy=True) for name, value in model.named_parameters()}

    @property
    def are_over(self) -> bool:
        """Whether the score has not been better for as many epochs as the configuration waits for."""
        return 0 < self.config.patience <= self.stale

    def restore(self, model: nn.Module) -> bool:
        """Give the model the best weights; False if it has them, or is to keep its last ones."""
        if self.config.select == "last" or not self.scores or self.best[2] == self.scores[-1][0]:
            return False
        load_weights(model, self.weights)
        return True

    @property
    def kept(self) -> float:
        """The epoch whose weights are kept."""
        return self.best[2] if self.config.select == "best" else self.scores[-1][0]

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return tensors and JSON fields for a checkpoint."""
        tensors = {PREFIX + name: value for name, value in self.weights.items()}
        return tensors, {"scores": self.scores, "best": self.best, "stale": self.stale}

    def load(self, tensors: Mapping[str, Tensor], fields: Mapping[str, Any]) -> None:
        """Restore what `state` returned; `tensors` may hold others."""
        self.weights = {n.removeprefix(PREFIX): value for n, value in tensors.items() if n.startswith(PREFIX)}
        self.scores = [(epoch, score) for epoch, score in fields["scores"]]
        usable, score, epoch = fields["best"]
        self.best, self.stale = (usable, score, epoch), fields["stale"]


def load_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy weights into a model's parameters, by name."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
