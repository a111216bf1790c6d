"""The pre-training loop: learning rate, micro-batches, sum over ranks, clip, step, log, evaluate, checkpoint."""

import logging
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional
from torch.optim import Optimizer

from bert_model.model.bert import BertForPreTraining
from bert_model.model.cpu_kernels import onednn_shapes, processor
from bert_model.pretraining.checkpoint import BackgroundSaver, take_snapshot
from bert_model.pretraining.config import PhaseConfig, PretrainingConfig
from bert_model.pretraining.data import (
    EVALUATION_SEED,
    Batch,
    InstanceReader,
    InstanceSplit,
    collate,
    held_out_samples,
    rank_slice,
    split_micro_batches,
)
from bert_model.training.distributed import GradientBuffer, Group, Watchdog, resolve_precision
from bert_model.training.mlflow_sync import Tracker
from bert_model.training.optimizer import clip_gradients, set_learning_rate
from bert_model.training.throughput import Progress, StepCounts, peak_memory, training_flops
from bert_pipeline.errors import TrainingError
from bert_pipeline.instances.masking import MaskingConfig, MaskingVocabulary
from bert_pipeline.randomness import combine

logger = logging.getLogger(__name__)

ALIGNED_LENGTH = 8
"""On a GPU sequences are padded to a multiple of this, which its fast kernels need."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A phase with its data and its place in the run."""

    index: int
    config: PhaseConfig
    masking: MaskingConfig
    train: InstanceSplit
    held_out: InstanceSplit
    first_step: int
    first_position: int
    """Samples of the same data that earlier phases have seen: this phase goes on behind them."""

    @property
    def end_step(self) -> int:
        return self.first_step + self.config.steps

    def position_at(self, step: int) -> int:
        """Return the position in the data before the update of `step`."""
        return self.first_position + (step - self.first_step) * self.config.global_batch_size


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a training ended."""

    status: Literal["finished", "preempted"]
    step: int
    metrics: dict[str, float]
    """The latest held-out metrics."""


class Trainer:
    """Trains a model through its phases. Every random choice is keyed, so a step is a function of its number."""

    def __init__(
        self,
        config: PretrainingConfig,
        *,
        phases: list[Phase],
        model: BertForPreTraining,
        optimizer: Optimizer,
        vocabulary: MaskingVocabulary,
        group: Group,
        tracker: Tracker | None,
        saver: BackgroundSaver | None,
        should_stop: Callable[[], bool],
        after_step: Callable[[int], None] | None = None,
        matrix_product_rate: float = 0.0,
    ) -> None:
        """`tracker` and `saver` are given on rank 0 only; `after_step(step)` is called after every update.

        `matrix_product_rate` is one device's, in operations a second; 0 leaves utilization out of the metrics.
        """
        self.config = config
        self.phases = phases
        self.model = model
        self.loss_sums: Any = torch.compile(model.loss_sums) if config.compile else model.loss_sums
        self.optimizer = optimizer
        self.vocabulary = vocabulary
        self.group = group
        self.tracker = tracker
        self.saver = saver
        self.precision = resolve_precision(config.precision, group.device)
        self.should_stop = should_stop
        self.after_step = after_step
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.gradients = GradientBuffer(trained, group, num_numbers=2)
        self.watchdog = Watchdog(group, config.timeout_seconds)
        self.metrics: dict[str, float] = {}
        self.tokens_seen = 0
        self._progress = Progress(config.total_steps, matrix_product_rate * group.world_size)

    def run(self, step: int) -> Outcome:
        """Train from `step` finished updates to the end, or until some rank is asked to stop."""
        with self.watchdog:
            for phase in self.phases:
                if step >= phase.end_step:
                    continue
                for batches, waited in self._batches(phase, step):
                    self.watchdog.arrive(step)
                    counts, stop_requests = self._meet(phase, batches)
                    if stop_requests:
                        self._save(step, phase)
                        return Outcome(status="preempted", step=step, metrics=self.metrics)
                    train_metrics = self._train_step(step, phase, batches, counts)
                    step += 1
                    if self.after_step is not None:
                        self.after_step(step)
                    self._progress.count(training_flops(self.model.config, counts), counts.tokens, waited)
                    self._after_update(step, phase, train_metrics)
        return Outcome(status="finished", step=step, metrics=self.metrics)

    def _meet(self, phase: Phase, batches: list[Batch]) -> tuple[StepCounts, float]:
        """Return what all ranks together are about to compute on, and how many of them were asked to stop."""
        tokens, squares, predictions, stop_requests = self.group.sum_numbers(
            float(sum(batch.num_tokens for batch in batches)),
            float(sum(batch.squared_lengths for batch in batches)),
            float(sum(batch.num_predictions for batch in batches)),
            float(self.should_stop()),
        )
        instances = float(phase.config.global_batch_size)
        counts = StepCounts(instances=instances, tokens=tokens, squared_lengths=squares, predictions=predictions)
        return counts, stop_requests

    def _batches(self, phase: Phase, step: int) -> Iterator[tuple[list[Batch], float]]:
        """Yield this rank's micro-batches of every step from `step` on, and the seconds that were spent waiting."""
        reader = self._reader(phase)
        ahead = self.group.device.type != "cpu"  # on a CPU a second thread would only take time from the first

        def prepare(at: int) -> list[Batch]:
            samples = reader.take(phase.position_at(at), phase.config.global_batch_size)
            mine = rank_slice(samples, rank=self.group.rank, world_size=self.group.world_size)
            return [
                self._collate(part, phase, self.config.seed)
                for part in split_micro_batches(mine, self.config.micro_batch_size)
            ]

        with ThreadPoolExecutor(1) as executor:
            future: Future[list[Batch]] | None = None
            for at in range(step, phase.end_step):
                started = time.perf_counter()
                batches = future.result() if future is not None else prepare(at)
                if ahead and at + 1 < phase.end_step:
                    future = executor.submit(prepare, at + 1)
                yield batches, time.perf_counter() - started

    def _collate(self, samples: Any, phase: Phase, seed: int) -> Batch:
        on_cpu = self.group.device.type == "cpu"
        batch = collate(
            samples,
            vocabulary=self.vocabulary,
            masking=phase.masking,
            seed=seed,
            pad_to_multiple=1 if on_cpu else ALIGNED_LENGTH,
        )
        return batch if on_cpu else batch.pinned(self.group.device)

    def _train_step(self, step: int, phase: Phase, batches: list[Batch], counts: StepCounts) -> dict[str, float]:
        """Make one update; TrainingError on every rank, before the update, when a loss or gradient is not finite."""
        learning_rate = self.config.learning_rate_at(step)
        set_learning_rate(self.optimizer, learning_rate)
        self.model.train()
        self.gradients.zero()
        for index, batch in enumerate(batches):
            if index == len(batches) - 1:
                self.gradients.send_during_backward()
            self._seed_dropout(step, index)
            batch = batch.to(self.group.device)
            masked_lm, next_sentence = self._loss_sums(batch)
            # Means over the global batch, whichever rank and micro-batch a prediction falls into.
            masked_lm, next_sentence = masked_lm / counts.predictions, next_sentence / counts.instances
            loss = masked_lm if self.config.objective == "mlm" else masked_lm + next_sentence
            self.gradients.numbers += torch.stack([masked_lm.detach(), next_sentence.detach()])
            loss.backward()
        self.gradients.sum_over_ranks()
        norm = clip_gradients(self.model.parameters(), self.config.optimizer.max_gradient_norm)
        masked_lm_loss, next_sentence_loss, gradient_norm = torch.cat(
            [self.gradients.numbers, norm.reshape(1)]
        ).tolist()
        if not math.isfinite(masked_lm_loss + next_sentence_loss + gradient_norm):
            raise TrainingError(
                f"step {step}: loss {masked_lm_loss} (MLM), {next_sentence_loss} (NSP), gradient norm {gradient_norm}: "
                f"not finite, so the update was not made; the batch is samples {phase.position_at(step)} to "
                f"{phase.position_at(step + 1) - 1} of {phase.train.manifest.path}: {self._rows_of(step, phase)}"
            )
        self.optimizer.step()
        self.tokens_seen += int(counts.tokens)
        metrics = {
            "train/mlm_loss": masked_lm_loss,
            "train/nsp_loss": next_sentence_loss,
            "train/loss": masked_lm_loss + (next_sentence_loss if self.config.objective == "mlm_nsp" else 0.0),
            "train/learning_rate": learning_rate,
            "train/gradient_norm": gradient_norm,
        }
        if self.config.objective == "mlm":
            del metrics["train/nsp_loss"]
        return metrics

    def _rows_of(self, step: int, phase: Phase) -> str:
        """Name the rows of train/, counted over all its shards, that a step is made of: the first thousand."""
        samples = self._reader(phase).take(phase.position_at(step), min(phase.config.global_batch_size, 1000))
        return f"rows {', '.join(map(str, sorted(samples.sample_indices.tolist())))}"

    def _reader(self, phase: Phase) -> InstanceReader:
        return InstanceReader(phase.train, seed=self.config.seed, groups_per_window=self.config.shuffle_row_groups)

    def _loss_sums(self, batch: Batch) -> tuple[Tensor, Tensor]:
        if self.config.compile:
            batch.mark_lengths()
        with self._autocast():
            return self.loss_sums(
                batch.input_ids,
                batch.attention_mask,
                batch.token_type_ids,
                token_rows=batch.token_rows,
                masked_lm_positions=batch.masked_lm_positions,
                prediction_rows=batch.prediction_rows,
                labels=batch.labels,
                next_sentence_label=batch.next_sentence_label,
            )

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.group.device.type, dtype=torch.bfloat16, enabled=self.precision == "bfloat16")

    def _seed_dropout(self, step: int, micro_batch: int) -> None:
        """Key dropout by (seed, step, micro-batch, rank); it can draw from torch's own generators only."""
        key = int(combine(self.config.seed, step, micro_batch, self.group.rank)[0]) >> 1
        torch.default_generator.manual_seed(key)
        if self.group.device.type == "cuda":
            torch.cuda.manual_seed(key)

    def _after_update(self, step: int, phase: Phase, metrics: dict[str, float]) -> None:
        """Log, evaluate and save what is due after `step` updates."""
        config = self.config
        ends = step == phase.end_step
        saves = ends or _is_due(step, config.checkpoint_interval_steps)
        if self.tracker is not None and (step % config.log_interval_steps == 0 or ends):
            metrics = metrics | self._progress.rates() | {"train/tokens_seen": float(self.tokens_seen)}
            metrics["train/memory_bytes"] = float(peak_memory(self.group.device))
            self.tracker.record("train", step, metrics, phase=phase.index)
            self._progress.show(step, phase.index + 1, metrics, last=ends)
        if saves or _is_due(step, config.evaluation_interval_steps):
            started = time.perf_counter()
            self.metrics = self.evaluate(phase)
            self._progress.exclude(time.perf_counter() - started)
            if self.tracker is not None:
                self.tracker.record("evaluation", step, self.metrics, phase=phase.index)
                logger.info("step %d: %s", step, ", ".join(f"{key} {value:.4g}" for key, value in self.metrics.items()))
        if saves:
            started = time.perf_counter()
            self._save(step, phase)
            self._progress.exclude(time.perf_counter() - started)

    @torch.no_grad()
    def evaluate(self, phase: Phase) -> dict[str, float]:
        """Return loss and accuracies (0-100) over the held-out instances, each counted exactly once."""
        self.model.eval()
        totals = torch.zeros(7, dtype=torch.float64)
        shares = held_out_samples(
            phase.held_out,
            most=self.config.evaluation_max_instances,
            rank=self.group.rank,
            world_size=self.group.world_size,
        )
        for samples in shares:
            ordered = rank_slice(samples, rank=0, world_size=1)
            for part in split_micro_batches(ordered, self.config.micro_batch_size):
                self.watchdog.touch()
                totals += self._evaluate_batch(self._collate(part, phase, EVALUATION_SEED).to(self.group.device))
        sums = self.group.sum_numbers(*totals.tolist())
        masked_lm, correct, predictions, next_sentence, next_correct, random_next, instances = sums
        if not instances:
            return {}
        loss = masked_lm / max(predictions, 1.0)
        metrics = {
            "held_out/mlm_loss": loss,
            "held_out/mlm_accuracy": 100.0 * correct / max(predictions, 1.0),
            "held_out/perplexity": math.exp(min(loss, 700.0)),
        }
        if self.config.objective == "mlm_nsp":
            metrics |= {
                "held_out/nsp_loss": next_sentence / instances,
                "held_out/nsp_accuracy": 100.0 * next_correct / instances,
                "held_out/nsp_majority": 100.0 * max(random_next, instances - random_next) / instances,
            }
        return metrics | {"held_out/instances": instances}

    def _evaluate_batch(self, batch: Batch) -> Tensor:
        with self._autocast():
            output = self.model(
                batch.input_ids,
                batch.attention_mask,
                batch.token_type_ids,
                token_rows=batch.token_rows,
                masked_lm_positions=batch.masked_lm_positions,
            )
        logits = output.prediction_logits.flatten(0, 1).float()  # (B * M, V)
        masked_lm = functional.cross_entropy(logits, batch.labels.flatten(), reduction="sum")
        correct = (output.prediction_logits.argmax(-1) == batch.labels).sum()
        next_sentence = functional.cross_entropy(
            output.seq_relationship_logits.float(), batch.next_sentence_label, reduction="sum"
        )
        next_correct = (output.seq_relationship_logits.argmax(-1) == batch.next_sentence_label).sum()
        found = torch.stack([masked_lm, correct, next_sentence, next_correct, batch.next_sentence_label.sum()])
        masked, right, following, right_next, random_next = found.double().cpu().unbind()
        predictions, instances = float(batch.num_predictions), float(len(batch.labels))
        return torch.tensor([masked, right, predictions, following, right_next, random_next, instances])

    def _save(self, step: int, phase: Phase) -> None:
        """Copy the training to host memory on rank 0; it is written while training goes on."""
        if self.saver is None:
            return
        snapshot = take_snapshot(
            self.model,
            self.optimizer,
            step=step,
            state={
                "phase": phase.index,
                "position": phase.position_at(step),
                "tokens_seen": self.tokens_seen,
                "world_size": self.group.world_size,
                "precision": self.precision,
                "processor": processor(),
                "onednn": onednn_shapes(),
                "metrics": self.metrics,
            },
            metrics=self.metrics,
        )

        def published(directory: Path) -> None:
            if self.tracker is not None:
                self.tracker.log_checkpoint(directory, step, snapshot.metrics, phase=phase.index)

        self.saver.save(snapshot, published)


def _is_due(step: int, interval: int) -> bool:
    return interval > 0 and step % interval == 0
