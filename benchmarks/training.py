"""One pre-training to be measured: its case, our side of it, and one rank of several.

`python -m benchmarks.training CASE` runs one rank of the case given as JSON, in torchrun's environment, and prints the
rate of all ranks.
"""

import contextlib
import dataclasses
import io
import json
import socket
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Literal, cast

import torch

from bert_model.model.bert import BertForPreTraining
from bert_model.model.config import BertConfig
from bert_model.model.initialization import new_model
from bert_model.pretraining.config import PhaseConfig, PretrainingConfig
from bert_model.pretraining.data import InstanceReader, InstanceSplit
from bert_model.pretraining.phases import Timetable, load_phases
from bert_model.pretraining.trainer import Trainer
from bert_model.training.distributed import Group, keep_freed_memory, process_group
from bert_model.training.mlflow_sync import Tracker
from bert_model.training.optimizer import build_optimizer
from bert_model.training.throughput import PeakRate
from bert_pipeline.manifest import Manifest, load_manifest

RANK_TIMEOUT_SECONDS = 600
MICRO_BATCH_TOKENS = 32_768
"""On a GPU, where our side packs instances instead of taking `micro_batch_size` of them."""


def rank_environments(world_size: int) -> list[dict[str, str]]:
    """Return the environment variables that torchrun sets for each rank on this machine, with a port that is free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world_size)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingCase:
    """Size, data, batch and precision of a training, the same for both sides."""

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
        """Return the model's shape."""
        return BertConfig.from_preset(
            self.size,
            vocab_size=self.vocab_size,
            hidden_dropout_prob=self.dropout,
            attention_probs_dropout_prob=self.dropout,
        )

    def pretraining_config(self, *, compiled: bool) -> PretrainingConfig:
        """Return the configuration of an endless training that neither evaluates nor saves."""
        phase = PhaseConfig(
            max_seq_length=self.max_seq_length,
            steps=1_000_000,
            global_batch_size=self.global_batch_size,
            instances=str(self.instances.path),
        )
        return PretrainingConfig(
            phases=(phase,),
            micro_batch_size=self.micro_batch_size,
            micro_batch_tokens=MICRO_BATCH_TOKENS,
            precision=self.precision,
            compile=compiled,
            log_interval_steps=1,
            evaluation_interval_steps=0,
            checkpoint_interval_steps=0,
        )

    def reader(self) -> InstanceReader:
        """Return a reader of the training instances, in the order of a training."""
        config = self.pretraining_config(compiled=False)
        split = InstanceSplit(self.instances.path, "train")
        return InstanceReader(split, seed=config.seed, groups_per_window=config.shuffle_row_groups)

    def to_json(self, **more: Any) -> str:
        """Return the case for another process on the CPU, with more keys."""
        document = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return json.dumps(document | {"device": "cpu", "instances": str(self.instances.path)} | more)


class Meter:
    """Tokens and time between the end of the first step of a round and the end of its last."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.restart(0.0)

    def restart(self, seconds: float) -> None:
        """Start a round of so many seconds at least; its first step is not measured."""
        self.seconds, self.num_steps, self.num_tokens, self.elapsed = seconds, -1, 0, 0.0

    def step(self, num_tokens: int) -> None:
        """Count a finished step."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = time.perf_counter()
        self.num_steps += 1
        # The first step of a round is a warm-up: the clock starts at its end.
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


class OurTraining:
    """The trainer of `bert pretrain` with its reader, masks, batches and optimizer; continues from round to round."""

    def __init__(self, case: TrainingCase, *, compiled: bool = False, group: Group | None = None) -> None:
        """Build model and trainer; `group` is this rank's place among several, by default it is the only one."""
        group = group or Group(rank=0, world_size=1, device=case.device)
        config = case.pretraining_config(compiled=compiled)
        self.meter = Meter(case.device)
        model = new_model(BertForPreTraining, case.model_config(), seed=1).to(case.device)
        phases, vocabulary = load_phases(config)

        # This object takes the tracker's place, so that it gets the metrics of every step.
        self.trainer = Trainer(
            config,
            timetable=Timetable(config, phases),
            model=model,
            optimizer=build_optimizer(model, config.optimizer, config.phases[0].learning_rate),
            vocabulary=vocabulary,
            group=group,
            tracker=cast(Tracker, self) if group.is_main else None,
            should_stop=lambda: self.meter.is_over,
            after_step=self._count,
            peak=PeakRate(1.0),  # so that utilization is the number of operations per second
        )
        self._waiting: list[float] = []
        self._flops_per_token: list[float] = []
        self._tokens_seen = 0
        self._step = 0

    def run(self, seconds: float) -> float:
        """Train for at least `seconds`; return real tokens per second."""
        self.meter.restart(seconds)
        with contextlib.redirect_stderr(io.StringIO()):  # hide the progress line
            self._step = self.trainer.run(self._step).step
        return self.meter.tokens_per_second

    def _count(self, step: int) -> None:
        self.meter.step(self.trainer.tokens_seen - self._tokens_seen)
        self._tokens_seen = self.trainer.tokens_seen

    def record(self, event: str, step: int, metrics: dict[str, float], **_: Any) -> None:
        """Stand in for the trainer's tracker: keep the data-wait share and the operations of each measured step."""
        if event == "train" and self.meter.num_steps > 0:
            self._waiting.append(metrics["train/data_wait_share"])
            self._flops_per_token.append(metrics["train/model_flops_utilization"] / metrics["train/tokens_per_second"])

    @property
    def waiting_share(self) -> float:
        """Mean share of time that the measured steps waited for data."""
        return statistics.fmean(self._waiting) if self._waiting else 0.0

    def flops_per_token(self) -> float:
        """Return the mean number of operations per real token in the measured steps."""
        return statistics.fmean(self._flops_per_token)


def main(document: str) -> None:
    """Run one rank of a case and print the rate of all ranks."""
    values = json.loads(document)
    seconds = values.pop("seconds")
    instances = load_manifest(Path(values.pop("instances")), kind="instances")
    case = TrainingCase(**values | {"device": torch.device("cpu")}, instances=instances)

    # As a rank of `bert pretrain` runs under the workflow: one thread each.
    keep_freed_memory()
    torch.set_num_threads(1)
    with process_group(RANK_TIMEOUT_SECONDS, "cpu") as group:
        training = OurTraining(case, group=group)
        training.run(0.0)  # warm-up
        print(training.run(seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
