"""The pre-training loop: data, forward and backward, all-reduce, clip, update, log, evaluate, checkpoint.

Every random choice is keyed on the seed and the step, so an update is a function of its number: a resumed run computes
the same bits as an uninterrupted one.
"""

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch.optim import Optimizer

from bert_model.model.bert import BertForPreTraining
from bert_model.model.cpu_kernels import onednn_width, processor
from bert_model.pretraining.batch import MicroBatch, make_batch, split_micro_batches
from bert_model.pretraining.checkpoint import BackgroundSaver, send_shards, take_snapshot
from bert_model.pretraining.config import PretrainingConfig
from bert_model.pretraining.data import InstanceReader
from bert_model.pretraining.evaluation import evaluate
from bert_model.pretraining.fast_exam import FastExam, input_of_pairs
from bert_model.pretraining.packing import Packing, can_pack, packed_batches
from bert_model.pretraining.phases import Phase, Timetable, warn_of_moved_samples
from bert_model.training.distributed import Group, LateNumbers, Watchdog, autocast, resolve_precision
from bert_model.training.gradients import (
    build_gradient_sum,
    compile_layers,
    is_sharded,
    resolve_data_parallel,
    unsharded,
)
from bert_model.training.mlflow_sync import Tracker
from bert_model.training.optimizer import clip_gradients, set_learning_rate
from bert_model.training.throughput import PeakRate, StepCounts, Throughput, peak_memory, system_load, training_flops
from bert_pipeline.configuration import to_mapping
from bert_pipeline.errors import TrainingError
from bert_pipeline.hashes import content_sha256
from bert_pipeline.progress import Progress
from bert_pipeline.randomness import combine
from bert_pipeline.vocabulary.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

CHANGES = {
    "precision": "computed in {}, now it computes in {}",
    "data_parallel": "summed gradients with {}, now it does with {}",
    "world_size": "had {} ranks, now it has {}",
    "processor": "ran on {}, now it runs on {}",
    "onednn": "computed layers on oneDNN from width {} on, now from width {} on (None: no layer)",
}
"""Key of `Trainer.arithmetic` -> the warning about another value."""


@dataclass(frozen=True, kw_only=True)
class PretrainingResult:
    """How a run ended."""

    status: Literal["finished", "preempted", "already_finished"]
    step: int
    metrics: dict[str, float]
    """The latest held-out metrics."""
    model: Path | None = None
    """The published model, None if the run was preempted."""


@dataclass(eq=False)
class Trainer:
    """Trains a model through the phases of a run."""

    config: PretrainingConfig
    _: KW_ONLY
    timetable: Timetable
    model: BertForPreTraining
    """Sharded already if `config.data_parallel` resolves to "fsdp"."""
    optimizer: Optimizer
    vocabulary: Tokenizer
    group: Group
    tracker: Tracker | None = None
    """On rank 0 only."""
    saver: BackgroundSaver | None = None
    """On rank 0 only."""
    should_stop: Callable[[], bool]
    after_step: Callable[[int], None] | None = None
    """Called with the number of finished updates after each."""
    peak: PeakRate = PeakRate()
    """One device's; 0 leaves utilization out of the metrics."""
    exam: FastExam | None = None
    """Examines checkpoints, on rank 0."""

    def __post_init__(self) -> None:
        config, group = self.config, self.group
        self.best: dict[str, Any] = {}  # step, score and criterion of the checkpoint to be published
        # The devices of the ranks may differ: rank 0 chooses for all, and all pack or none.
        self.precision = group.call_on_main(lambda: resolve_precision(config.precision, group.device))
        self.config = dataclasses.replace(config, precision=self.precision)
        can = can_pack(self.model.config, group.device, self.precision)
        packs = group.all_reduce_numbers(can) == [group.world_size]
        self.packing = Packing(config, group) if packs else None
        self.compiles = packs if config.compile == "auto" else config.compile
        # torch.compile and oneDNN, which computes bfloat16 on a CPU, prepare and keep a kernel for each size.
        self.few_sizes = self.compiles or self.precision == "bfloat16"
        self.data_parallel = resolve_data_parallel(config.data_parallel, group)
        # The numbers are the two losses.
        self.gradients = build_gradient_sum(self.data_parallel, self.model, group, num_numbers=2)
        self.watchdog = Watchdog(group, config.timeout_seconds)
        self.metrics: dict[str, float] = {}  # the latest held-out metrics
        self.metrics_step = -1  # the step after which they were measured; -1 if it is not known
        self._saved_step = -1  # the newest step with a checkpoint; -1 if there is none
        # Updates whose losses are not read yet, at most two: step, phase, learning rate; MLM and NSP loss, norm.
        self._updates: list[tuple[int, Phase, float, LateNumbers]] = []
        self.tokens_seen = 0
        self._compiling_since: float | None = None
        self._throughput = Throughput(self.peak.flops * group.world_size)
        self._display = Progress("steps")

    @property
    def arithmetic(self) -> dict[str, Any]:
        """What sums depend on in their last bits, and dropout, besides the configuration."""
        run = {"precision": self.precision, "data_parallel": self.data_parallel, "world_size": self.group.world_size}
        machine = {"processor": processor(), "onednn": onednn_width()}
        return run | (machine if self.group.device.type == "cpu" else {})

    def restore(self, state: Mapping[str, Any], *, has_best: bool) -> None:
        """Restore the counters of a checkpoint's state, {} for a new run, and warn of what has changed since.

        `has_best` tells whether the best checkpoint so far is intact.
        """
        self.tokens_seen = int(state.get("tokens_seen", 0))
        self.metrics = dict(state.get("metrics", {}))
        self.metrics_step = int(state.get("metrics_step", -1))
        if self.packing is not None:
            self.packing.restore(state.get("packing", {}))
        # A best by another criterion, or one whose checkpoint was damaged and removed, is no longer the best.
        best = dict(state.get("best", {}))
        if has_best and best["criterion"] == self.criterion:
            self.best = best
        if not state or not self.group.is_main:  # rank 0 warns for all
            return
        if best and not has_best:
            logger.warning(
                f"the best checkpoint, of step {best['step']}, is gone or damaged; the best of the others counts"
            )
        # These changes are accepted, but the run is no longer the same bit for bit.
        for key, value in self.arithmetic.items():
            if state.get(key, value) != value:
                change, dropout = CHANGES[key].format(state[key], value), "and dropout " * (key == "world_size")
                logger.warning(
                    f"so far this run {change}: every sample is still seen exactly once, but sums {dropout}differ"
                )
        warn_of_moved_samples(self.timetable.phases, state)

    def run(self, step: int) -> PretrainingResult:
        """Train from `step` finished updates to the end, or until some rank is asked to stop."""
        self._saved_step = step or -1
        with self.watchdog, self._display:
            self.gradients.prepare(self._rehearse)
            if self.compiles and self.packing is None:
                compile_layers(self.model)
            for index in range(len(self.config.phases)):
                phase = self.timetable.phases[index]
                if step >= phase.end_step:
                    continue
                if self.packing is not None:
                    self._start_packing(self.packing, phase)
                for batches, seconds_waiting in self._batches(phase, step):
                    # The step is reported before the first collective, so that a rank that stalls it has a name.
                    self.watchdog.report_step(step)
                    counts, num_stop_requests, seconds = self._all_reduce_counts(batches)
                    if num_stop_requests:
                        self._read_updates(newest=True)
                        if step != self._saved_step:  # a store would remove the checkpoint that it has of this step
                            self._save_checkpoint(step, phase)
                        metrics = self.metrics if self.metrics_step == step else {}
                        return PretrainingResult(status="preempted", step=step, metrics=metrics)
                    # The clock of a budget may decide now where the phase ends.
                    if self.timetable.decide(step, index, seconds):
                        phase = self.timetable.phases[index]
                    self._train_step(step, phase, batches, counts)
                    step += 1
                    if self.after_step is not None:
                        self.after_step(step)
                    self._throughput.count(training_flops(self.model.config, counts), counts.tokens, seconds_waiting)
                    # What is due after this update. A phase ends with all three.
                    ends = step == phase.end_step
                    logs = ends or _is_due(step, self.config.log_interval_steps)
                    saves = ends or _is_due(step, self.config.checkpoint_interval_steps)
                    evaluates = saves or _is_due(step, self.config.evaluation_interval_steps)
                    # The newest losses are read now if something follows from them, else when the device has the
                    # next step to compute.
                    metrics = self._read_updates(newest=logs or evaluates)
                    if logs:
                        self._log(step, phase, metrics)
                    if evaluates:
                        self._evaluate(step, phase)
                    if saves:
                        self._examine(step, phase)
                        self._choose(step, phase)
                        self._save_checkpoint(step, phase)
                    if ends:  # the batches go on where the clock has decided the end
                        break
        return PretrainingResult(status="finished", step=step, metrics=self.metrics)

    def _batches(self, phase: Phase, step: int) -> Iterator[tuple[list[MicroBatch], float]]:
        """Yield this rank's micro-batches of every step from `step` on, and the seconds spent waiting for them."""
        # A GPU's next batch is prepared while it computes, and the next window of rows is read while this one is used;
        # on a CPU other threads would only slow down the first.
        prefetches = self.group.device.type != "cpu"
        with ThreadPoolExecutor(1) as executor, ThreadPoolExecutor(1) as reading:
            reader = self._reader(phase, reading if prefetches else None)
            future: Future[list[MicroBatch]] | None = None
            for current in range(step, phase.end_step):
                started = time.perf_counter()
                batches = future.result() if future is not None else self._prepare(reader, phase, current)
                if prefetches and current + 1 < phase.end_step:
                    future = executor.submit(self._prepare, reader, phase, current + 1)
                yield batches, time.perf_counter() - started

    def _prepare(self, reader: InstanceReader, phase: Phase, step: int) -> list[MicroBatch]:
        """Read this rank's part of a step's batch, mask it and split it into micro-batches."""
        group, how = self.group, (phase.masking, self.vocabulary)
        samples = reader.take(phase.position_at(step), phase.batch_size_at(step))
        if self.packing is not None:
            capacity = self.packing.capacities[str(phase.index)]
            return packed_batches(samples, capacity, *how, seed=self.config.seed, group=group)
        options: dict[str, Any] = {"seed": self.config.seed, "device": group.device, "few_sizes": self.few_sizes}
        parts = split_micro_batches(samples, self.config.micro_batch_size, rank=group.rank, world_size=group.world_size)
        return [make_batch(part, *how, **options) for part in parts]

    def _start_packing(self, packing: Packing, phase: Phase) -> None:
        """Choose the size of the phase's micro-batches, and compile for it."""

        def compute(batch: MicroBatch) -> None:
            # Eagerly, as in the first phase: in a later one each size that is tried would be compiled.
            with torch.compiler.set_stance("force_eager"), self.gradients.accumulating(is_last=False):
                self._accumulate(batch, 1.0, 1.0)

        moments = 0 if self.optimizer.state else sum(8 * parameter.numel() for parameter in self.model.parameters())
        packing.choose(phase, compute, moments)
        if self.compiles:
            compile_layers(self.model, packed=True)
            logger.info("phase %d: compiling %s", phase.index + 1, self.model.graphs)
            self._compiling_since = time.perf_counter()

    def _all_reduce_counts(self, batches: list[MicroBatch]) -> tuple[StepCounts, float, float]:
        """Return this step's counts and the number of stop requests, summed over the ranks, and rank 0's seconds.

        Losses are divided by these counts before the backward pass, and all ranks stop after the same step.
        """
        *counts, num_stop_requests, seconds = self.group.all_reduce_numbers(
            *map(float, np.sum([batch.counts for batch in batches], axis=0)),
            float(self.should_stop()),
            self.timetable.seconds if self.group.is_main else 0.0,
        )
        return StepCounts(*counts), num_stop_requests, seconds

    def _train_step(self, step: int, phase: Phase, batches: list[MicroBatch], counts: StepCounts) -> None:
        """Make one update; its losses are read by `_read_updates`."""
        learning_rate = self.timetable.learning_rate_at(step)
        set_learning_rate(self.optimizer, learning_rate)
        self.gradients.zero()

        # Accumulate gradients over the micro-batches. The losses are means over the global batch, so their gradients
        # add up, whichever rank and micro-batch a prediction is in.
        for index, batch in enumerate(batches):
            # Dropout draws from torch's default generators only.
            key = int(combine(self.config.seed, step, index, self.group.rank)[0]) >> 1
            torch.default_generator.manual_seed(key)
            if self.group.device.type == "cuda":
                torch.cuda.manual_seed(key)
            with self.gradients.accumulating(is_last=index == len(batches) - 1):
                # Of a batch of short texts or long words no token may be predicted.
                self._accumulate(batch.to(self.group.device), max(counts.predictions, 1.0), counts.instances)

        # Sum gradients and losses over the ranks, clip, update.
        self.gradients.all_reduce()
        norm = clip_gradients(self.model.parameters(), self.config.optimizer.max_gradient_norm)
        losses_and_norm = LateNumbers(torch.cat([self.gradients.numbers, norm.reshape(1)]))  # (3,)
        self._updates.append((step, phase, learning_rate, losses_and_norm))
        self.optimizer.step()
        self.tokens_seen += int(counts.tokens)
        if self._compiling_since is not None:  # the first step of a phase
            seconds = time.perf_counter() - self._compiling_since
            logger.info("compiled in %.0f s", seconds)
            self._throughput.exclude(seconds)
            self._compiling_since = None

    def _read_updates(self, *, newest: bool) -> dict[str, float]:
        """Read the losses of all updates, or of all but the newest, and return the metrics of the last one read.

        This is the only wait for a GPU in a step. Raise TrainingError on every rank if a number is not finite; the
        weights of such an update, and of one that may have followed, are neither evaluated nor saved.
        """
        ready = self._updates if newest else self._updates[:-1]
        self._updates = self._updates[len(ready) :]
        # The last one first: when it is there, the others are, and there is one wait.
        numbers = [losses_and_norm.read() for *_, losses_and_norm in reversed(ready)][::-1]
        metrics: dict[str, float] = {}
        for (step, phase, learning_rate, _), (masked_lm_loss, next_sentence_loss, gradient_norm) in zip(ready, numbers):
            if not math.isfinite(masked_lm_loss + next_sentence_loss + gradient_norm):
                # The same on all ranks: they have the same sums.
                samples = map(phase.position_at, (step, step + 1))
                raise TrainingError(
                    f"step {step}: loss {masked_lm_loss} (MLM), {next_sentence_loss} (NSP), gradient norm "
                    f"{gradient_norm}: not finite, so the update is not saved; the batch is "
                    f"{self._reader(phase).describe(*samples)}"
                )
            metrics = {"train/mlm_loss": masked_lm_loss, "train/loss": masked_lm_loss}
            if self.config.objective == "mlm_nsp":
                metrics |= {"train/nsp_loss": next_sentence_loss, "train/loss": masked_lm_loss + next_sentence_loss}
            metrics |= {"train/learning_rate": learning_rate, "train/gradient_norm": gradient_norm}
        return metrics

    def _accumulate(self, batch: MicroBatch, predictions: float, instances: float) -> None:
        """Add a micro-batch's part of the mean losses and of their gradients, given the counts of the global batch."""
        with autocast(self.group.device, self.precision):
            masked_lm, next_sentence = self.gradients.loss_sums(**batch.inputs)
        masked_lm, next_sentence = masked_lm / predictions, next_sentence / instances
        loss = masked_lm if self.config.objective == "mlm" else masked_lm + next_sentence
        self.gradients.numbers += torch.stack([masked_lm.detach(), next_sentence.detach()])
        loss.backward()

    def _rehearse(self) -> None:
        """Make a forward and backward pass on a batch that is the same in every process of the run."""
        phase = self.timetable.phases[0]
        two = phase.train.sample(1).select(np.arange(min(2, phase.train.groups[0].num_rows)))
        batch = make_batch(two, phase.masking, self.vocabulary, seed=self.config.seed)
        self._accumulate(batch.to(self.group.device), 1.0, 1.0)

    def _reader(self, phase: Phase, executor: ThreadPoolExecutor | None = None) -> InstanceReader:
        return InstanceReader(
            phase.train, seed=self.config.seed, groups_per_window=self.config.shuffle_row_groups, executor=executor
        )

    def _log(self, step: int, phase: Phase, metrics: dict[str, float]) -> None:
        """Record and show the metrics of a step on rank 0."""
        if self.tracker is None:
            return
        metrics |= {"train/tokens_seen": self.tokens_seen, "train/memory_bytes": peak_memory(self.group.device)}
        metrics |= self._throughput.rates() | system_load(self.group.device)
        self.tracker.record("train", step, metrics, phase=phase.index)
        note = f"phase {phase.index + 1}, loss {metrics['train/loss']:.3f}, "
        note += f"{metrics['train/tokens_per_second']:,.0f} tokens/s"
        if "train/model_flops_utilization" in metrics:
            note += f", {metrics['train/model_flops_utilization']:.0%} of the device's {self.peak.kind} rate"
        self._display.show(step, None if self.config.budget else self.config.total_steps, note=note)

    def _evaluate(self, step: int, phase: Phase) -> None:
        """Measure the held-out metrics on all ranks, and record them on rank 0."""
        started = time.perf_counter()
        with unsharded(self.model):
            self.metrics = evaluate(
                self.model, phase, self.config, self.vocabulary, self.group, after_batch=self.watchdog.touch
            )
        self.metrics_step = step
        self._throughput.exclude(time.perf_counter() - started)
        if self.tracker is not None and self.metrics:  # there may be no held-out instances
            self.tracker.record("evaluation", step, self.metrics, phase=phase.index)
            logger.info("step %d: %s", step, ", ".join(f"{key} {value:.4g}" for key, value in self.metrics.items()))

    def _examine(self, step: int, phase: Phase) -> None:
        """Score the minimal pairs on rank 0, for all ranks, and record the result."""
        exam = self.exam
        if exam is None:
            return
        started = time.perf_counter()
        is_last = step == self.timetable.phases[-1].end_step
        with unsharded(self.model), self.watchdog.paused():
            metrics = self.group.call_on_main(lambda: exam.metrics(self.model, is_last=is_last))
        self._throughput.exclude(time.perf_counter() - started)
        self.metrics = self.metrics | metrics
        if metrics and self.tracker is not None:
            self.tracker.record("exam", step, metrics, phase=phase.index)
            logger.info("step %d: exam %.1f %%", step, metrics["exam/accuracy"])

    def _choose(self, step: int, phase: Phase) -> None:
        """Keep the checkpoint of this step for publication if it is the best of the last phase so far."""
        key = {"loss": "held_out/mlm_loss", "exam": "exam/accuracy"}.get(self.config.choose, "")
        if phase.index < len(self.config.phases) - 1 or key not in self.metrics:
            return
        score = -self.metrics[key] if self.config.choose == "loss" else self.metrics[key]
        # Any comparison with NaN is false: as the best, it would remain so.
        if math.isfinite(score) and not score <= self.best.get("score", -math.inf):
            self.best = {"step": step, "score": score, "criterion": self.criterion}

    @property
    def criterion(self) -> list[str]:
        """What `best` is the best by: scores of another criterion do not compare."""
        pairs = input_of_pairs(self.exam.pairs)["sha256"] if self.exam is not None else ""
        last = self.timetable.phases[-1]
        held_out = {
            "instances": last.held_out.manifest.sha256,
            "count": self.config.evaluation_max_instances,
            "masking": to_mapping(last.masking),
        }
        measured_on = {"exam": pairs, "loss": content_sha256(held_out)}
        return [self.config.choose, str(len(self.config.phases)), measured_on.get(self.config.choose, "")]

    def _save_checkpoint(self, step: int, phase: Phase) -> None:
        """Copy the training state to host memory, on rank 0; a thread writes it while training continues."""
        self._saved_step = step
        if self.saver is None:
            if is_sharded(self.model):
                send_shards(self.model, self.optimizer)
            return
        started = time.perf_counter()
        # The state is what the next update depends on besides the weights, what `restore` compares, and the
        # clocks of budget and exams.
        snapshot = take_snapshot(
            self.model,
            self.optimizer,
            step=step,
            state={
                "phase": phase.index,
                "position": phase.position_at(step),
                "tokens_seen": self.tokens_seen,
                **self.arithmetic,
                **({"packing": self.packing.state()} if self.packing is not None else {}),
                "metrics": self.metrics,
                "metrics_step": self.metrics_step,
                "best": self.best,
                **({"budget": self.timetable.state()} if self.config.budget else {}),
                **({"exam": self.exam.state()} if self.exam is not None else {}),
            },
            metrics=self.metrics if self.metrics_step == step else {},
        )

        # Logged from the saver's thread, when the files are complete.
        def log_published(directory: Path) -> None:
            if self.tracker is not None:
                self.tracker.log_checkpoint(directory, step, snapshot.metrics, phase=phase.index, data=phase.data)

        self.saver.save(snapshot, log_published)
        self._throughput.exclude(time.perf_counter() - started)


def _is_due(step: int, interval: int) -> bool:
    return interval > 0 and step % interval == 0
