"""Our side: the trainer that `bert pretrain` runs, with its reader, masks, batches and optimizer."""

import contextlib
import io
import statistics
from typing import Any, cast

from benchmarks.training_case import Meter, TrainingCase
from bert_model.model.bert import BertForPreTraining, new_model
from bert_model.model.cpu_kernels import cpu_settings, onednn_choice
from bert_model.pretraining.data import InstanceSplit, Phase
from bert_model.pretraining.trainer import Trainer
from bert_model.training.distributed import Group
from bert_model.training.mlflow_sync import Tracker
from bert_model.training.optimizer import build_optimizer
from bert_pipeline.vocabulary.tokenizer import Tokenizer


class OurTraining:
    """A training that goes on from round to round."""

    def __init__(self, case: TrainingCase, *, compiled: bool = False, group: Group | None = None) -> None:
        """`group` is this rank's place among several; without it the training is alone."""
        group = group or Group(rank=0, world_size=1, device=case.device)
        config = case.pretraining_config(compiled=compiled)
        self.meter = Meter(device=case.device)
        self.waiting: list[float] = []
        """Share of time that each measured step waited for data."""
        model = new_model(BertForPreTraining, case.model_config(), seed=1).to(case.device)
        phase = Phase(
            index=0,
            config=config.phases[0],
            masking=config.masking_of(config.phases[0]),
            train=InstanceSplit(case.instances.path, "train"),
            held_out=InstanceSplit(case.instances.path, "held_out"),
            first_step=0,
            first_position=0,
        )
        self.trainer = Trainer(
            config,
            phases=[phase],
            model=model,
            optimizer=build_optimizer(model, config.optimizer, config.phases[0].learning_rate),
            vocabulary=Tokenizer.from_directory(case.instances.path),
            group=group,
            tracker=cast(Tracker, self) if group.is_main else None,
            saver=None,
            should_stop=lambda: self.meter.is_over,
            after_step=self._count,
            peak_flops=1.0,  # so that utilization counts operations a second
        )
        self.onednn = (
            () if compiled or case.precision != "float32" else onednn_choice(case.model_config(), device=case.device)
        )
        """The weight shapes that oneDNN computes, chosen as `bert pretrain` does."""
        self._flops_per_token: list[float] = []
        self._tokens_seen = 0
        self._step = 0

    def run(self, seconds: float) -> float:
        """Train for at least so long; returns real tokens a second."""
        self.meter.restart(seconds)
        with cpu_settings(onednn=self.onednn), contextlib.redirect_stderr(io.StringIO()):  # the trainer's own progress
            self._step = self.trainer.run(self._step).step
        return self.meter.tokens_per_second

    def _count(self, step: int) -> None:
        self.meter.step(self.trainer.tokens_seen - self._tokens_seen)
        self._tokens_seen = self.trainer.tokens_seen

    def record(self, event: str, step: int, metrics: dict[str, float], **_: Any) -> None:
        """Stand in for the tracker: keep the share of time that was spent waiting for data."""
        if event == "train" and self.meter.num_steps > 0:
            self.waiting.append(metrics["train/data_wait_share"])
            self._flops_per_token.append(metrics["train/model_flops_utilization"] / metrics["train/tokens_per_second"])

    @property
    def waiting_share(self) -> float:
        """Mean share of time that the measured steps waited for data."""
        return statistics.fmean(self.waiting) if self.waiting else 0.0

    def flops_per_token(self) -> float:
        """Mean operations of the measured steps for one real token."""
        return statistics.fmean(self._flops_per_token)
