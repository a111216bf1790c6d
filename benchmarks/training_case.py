"""One training to be measured: size, data, batch, precision; and what a measured round gives."""

import dataclasses
import time
from typing import Literal

import torch

from bert_model.model.config import BertConfig
from bert_model.pretraining.config import PhaseConfig, PretrainingConfig
from bert_pipeline.manifest import Manifest


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingCase:
    """What both sides train."""

    size: str
    vocab_size: int
    max_seq_length: int
    global_batch_size: int
    micro_batch_size: int
    precision: Literal["float32", "bfloat16"]
    dropout: float
    device: torch.device
    instances: Manifest

    @property
    def title(self) -> str:
        dropout = "" if self.dropout == 0.1 else f", dropout {self.dropout:g}"
        return f"{self.size}, vocabulary {self.vocab_size:,}, length {self.max_seq_length}, {self.precision}{dropout}"

    def model_config(self) -> BertConfig:
        """The model's shape."""
        return BertConfig.from_preset(
            self.size,
            vocab_size=self.vocab_size,
            hidden_dropout_prob=self.dropout,
            attention_probs_dropout_prob=self.dropout,
        )

    def pretraining_config(self, *, compiled: bool) -> PretrainingConfig:
        """A training without end that neither evaluates nor saves."""
        phase = PhaseConfig(
            max_seq_length=self.max_seq_length,
            steps=1_000_000,
            global_batch_size=self.global_batch_size,
            instances=str(self.instances.path),
        )
        return PretrainingConfig(
            phases=(phase,),
            micro_batch_size=self.micro_batch_size,
            precision=self.precision,
            compile=compiled,
            log_interval_steps=1,
            evaluation_interval_steps=0,
            checkpoint_interval_steps=0,
        )


@dataclasses.dataclass(kw_only=True)
class Meter:
    """Counts tokens and time between the end of the first step of a round and the end of its last."""

    device: torch.device
    seconds: float = 0.0
    """Least length of a round."""
    num_steps: int = -1
    num_tokens: int = 0
    elapsed: float = 0.0
    _started: float = 0.0

    def restart(self, seconds: float) -> None:
        """Begin a round; its first step is not measured."""
        self.seconds, self.num_steps, self.num_tokens, self.elapsed = seconds, -1, 0, 0.0

    def step(self, num_tokens: int) -> None:
        """Count a finished step."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = time.perf_counter()
        self.num_steps += 1
        if self.num_steps == 0:
            self._started = now
        else:
            self.num_tokens += num_tokens
            self.elapsed = now - self._started

    @property
    def is_over(self) -> bool:
        return self.num_steps >= 1 and self.elapsed >= self.seconds

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / max(self.elapsed, 1e-9)
