"""Plan of a pre-training: what this machine will read, from some seconds of each phase's own steps."""

import dataclasses
import gc
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bert_model.pretraining.config import PretrainingConfig
from bert_model.pretraining.phases import UNDECIDED, Phase, Timetable, load_phases
from bert_model.pretraining.run import check_batch_sizes, resolve_initial_model
from bert_model.pretraining.run_directory import initialize_or_resume
from bert_model.pretraining.trainer import Trainer
from bert_model.tables import format_table
from bert_model.training.distributed import Group, process_group
from bert_model.training.throughput import peak_memory
from bert_pipeline.vocabulary.tokenizer import Tokenizer

MEASURED_SECONDS = 10.0
"""Seconds of training that are measured in each phase."""
WARM_STEPS = 2
"""Steps before them: the first one compiles, or prepares kernels."""
MAX_TOKENS_ON_CPU = 2**14
"""Tokens that a rank reads in a measured step at most: a CPU would take an hour for a step of a GPU's preset."""
HEAD = ("phase", "length", "tokens/s", "s/step", "steps", "hours", "tokens", "passes", "peak memory")


def plan(
    config: PretrainingConfig,
    *,
    device: str = "",
    resolve: Callable[[str], Path] = Path,
    clock: Callable[[], float] = time.perf_counter,
) -> str:
    """Train some steps of each phase, write nothing, and return a table of what the budget, or the steps, will read.

    Passes are those over the text. Evaluations, exams and checkpoints are not counted. Errors of configuration and data
    are those of `pretrain`.
    """
    with process_group(config.timeout_seconds, device) as group:
        config = resolve_initial_model(config, group, resolve)
        phases, tokenizer = load_phases(config)
        check_batch_sizes(config, group.world_size)
        rows, totals = [], [0.0, 0.0, 0.0]
        for phase in phases:
            size = phase.config.global_batch_size
            pace, tokens = (size * amount for amount in _measure(config, phase, tokenizer, group, clock))
            gc.collect()  # the trainer refers to itself, and holds the model
            steps = phase.config.samples_in(phase.config.steps) / size  # of the whole batch
            if config.budget:
                share = phase.config.share / sum(phase.share for phase in config.phases)
                most = (config.max_passes or math.inf) * share / (size * phase.passes_per_sample)
                steps = min(config.budget_seconds * share / pace, most)
            passes = steps * size * phase.passes_per_sample
            amounts = [steps * pace / 3600, steps * tokens, passes]
            totals = [total + amount for total, amount in zip(totals, amounts)]
            length, memory = phase.config.max_seq_length, peak_memory(group.device) / 1e9
            row = phase.index + 1, length, tokens / pace, pace, steps, *amounts, memory
            rows.append("{} {} {:,.0f} {:.3g} {:,.0f} {:.2f} {:,.0f} {:.2f} {:.2f}GB".format(*row).split())
        rows.append(["all", *[""] * 4, *"{:.2f} {:,.0f} {:.2f}".format(*totals).split(), ""])
        return format_table(HEAD, rows, "simple", range(1, len(HEAD)))


def _measure(
    config: PretrainingConfig, phase: Phase, tokenizer: Tokenizer, group: Group, clock: Callable[[], float]
) -> tuple[float, float]:
    """Return seconds and tokens of an instance, of all ranks together."""
    size, most = phase.config.global_batch_size, MAX_TOKENS_ON_CPU // phase.config.max_seq_length * group.world_size
    size = min(size, most) if group.device.type == "cpu" else size
    full: dict[str, Any] = {"steps": UNDECIDED, "global_batch_size": size, "warmup_steps": 0, "initial_batch_size": 0}
    alone = dataclasses.replace(phase.config, **full)
    settings: dict[str, Any] = {"phases": (alone,), "schedule": "phase", "budget": "", "max_passes": 0.0}
    settings |= {"log_interval_steps": UNDECIDED, "evaluation_interval_steps": 0, "checkpoint_interval_steps": 0}
    config = dataclasses.replace(config, **settings)
    marks: list[tuple[float, int, int]] = []  # clock, tokens and steps at the beginning and the end

    def after_step(step: int) -> None:
        if step == WARM_STEPS or marks and clock() - marks[0][0] >= MEASURED_SECONDS:
            if group.device.type == "cuda":
                torch.cuda.synchronize(group.device)
            marks.append((clock(), trainer.tokens_seen, step))

    model, optimizer, *_ = initialize_or_resume(config, None, tokenizer, group)
    trainer = Trainer(
        config,
        timetable=Timetable(config, [dataclasses.replace(phase, index=0, config=alone)]),
        model=model,
        optimizer=optimizer,
        vocabulary=tokenizer,
        group=group,
        should_stop=lambda: group.is_main and len(marks) > 1,
        after_step=after_step,
    )
    trainer.run(0)
    # Rank 0 decides the end: another rank may have no second mark.
    (started, before, first), (ended, after, last) = group.call_on_main(lambda: marks[:2])
    return (ended - started) / (last - first) / size, (after - before) / (last - first) / size
