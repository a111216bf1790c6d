"""Scores of fine-tuned models, compared with transformers' Trainer: same weights, rows, settings and seeds.

For each task, both sides are trained with every seed in alternation, and score the same dev set. The difference of
their means comes with a 95 % interval from a bootstrap over dev examples and seeds, and with the processor time of both
trainings. A finished training is kept in the working directory, so an interrupted program continues.
"""

import argparse
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.finetuning import FinetuningCase, OurFinetuning, PeerFinetuning, encode_case, mean_and_deviation
from benchmarks.harness import describe_machine, errors_as_exit_codes, program, working_directory
from bert_model.finetuning.decode import decode
from bert_model.metrics.score import score
from bert_model.training.distributed import keep_freed_memory
from bert_pipeline.manifest import atomic_write
from bert_pipeline.tasks.task import load_task_data

SIDES = {"ours": OurFinetuning, "peer": PeerFinetuning}
NUM_RESAMPLES = 1000


@dataclasses.dataclass(frozen=True)
class Run:
    """One training: its predictions of the dev examples, and the processor seconds of its training loop."""

    predictions: Mapping[str, Any]
    seconds: float


def run_or_load(case: FinetuningCase, side: str, seed: int, directory: Path) -> Run:
    """Train with a seed, or read what an earlier call has stored for the same case."""
    settings = json.dumps(
        {
            "model": str(case.model),
            "examples": [case.train.num_examples, case.dev.num_examples],
            "batch_size": case.batch_size,
            "learning_rate": case.learning_rate,
            "epochs": case.epochs,
            "precision": case.precision,
            "optimizer": case.optimizer,
        }
    )
    path = directory / f"{case.task.name}-{side}-{seed}.npz"
    if path.is_file():
        stored = np.load(path)
        if str(stored["settings"]) == settings:
            return Run(decode(case.task, case.dev_examples, case.dev, stored["logits"]), float(stored["seconds"]))
    trainer = SIDES[side](case)
    started = time.process_time()
    trainer.train_from(seed)
    seconds = time.process_time() - started
    logits = trainer.logits()
    with atomic_write(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, logits=logits, seconds=seconds, settings=settings)
    print(f"{path.name}: {case.score(logits):.2f}, {seconds:.0f} processor seconds", file=sys.stderr, flush=True)
    return Run(decode(case.task, case.dev_examples, case.dev, logits), seconds)


def interval_of_difference(case: FinetuningCase, runs: Mapping[str, Sequence[Run]]) -> tuple[float, float]:
    """Return the 95 % interval of (ours - peer), resampling dev examples jointly and each side's seeds."""
    rng = np.random.default_rng(1)
    differences = []
    for _ in range(NUM_RESAMPLES):
        chosen = rng.integers(len(case.dev_examples), size=len(case.dev_examples))
        examples = [case.dev_examples[index] for index in chosen]
        means = {}
        for side, side_runs in runs.items():
            seeds, counts = np.unique(rng.integers(len(side_runs), size=len(side_runs)), return_counts=True)
            scores = [score(case.task, examples, side_runs[seed].predictions)[case.task.main_metric] for seed in seeds]
            means[side] = float(np.average(scores, weights=counts))
        differences.append(means["ours"] - means["peer"])
    low, high = np.percentile(differences, [2.5, 97.5])
    return float(low), float(high)


def row(case: FinetuningCase, runs: Mapping[str, Sequence[Run]]) -> str:
    """Return the table row of a task."""
    scores = {
        side: [score(case.task, case.dev_examples, run.predictions)[case.task.main_metric] for run in side_runs]
        for side, side_runs in runs.items()
    }
    seconds = {side: statistics.median(run.seconds for run in side_runs) for side, side_runs in runs.items()}
    ours, peer = (mean_and_deviation(scores[side]) for side in SIDES)
    difference = statistics.fmean(scores["ours"]) - statistics.fmean(scores["peer"])
    low, high = interval_of_difference(case, runs)
    return (
        f"| {case.task.title} | {case.task.main_metric} | {len(case.dev_examples):,} | {ours} | {peer} "
        f"| {difference:+.1f} [{low:+.1f}, {high:+.1f}] | {seconds['peer'] / seconds['ours']:.2f} |"
    )


def argument_parser() -> argparse.ArgumentParser:
    """Return the program's parser."""
    parser = program("scores", __doc__)
    parser.add_argument("--model", type=Path, required=True, help="a model directory")
    parser.add_argument(
        "--task", action="append", required=True, metavar="NAME=DATA", help="a GLUE task and its files; may be repeated"
    )
    parser.add_argument("--seeds", type=int, default=5, help="seeds 1 to N (default: %(default)s)")
    parser.add_argument("--epochs", type=float, default=3.0)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16"])
    return parser


@errors_as_exit_codes
def main(arguments: Sequence[str] | None = None) -> int:
    """Train what is missing, and print the table."""
    args = argument_parser().parse_args(arguments)
    keep_freed_memory()  # as the workers of `bert finetune` do; in one process it serves both sides
    device = "cuda" if torch.cuda.is_available() else "cpu"
    directory = working_directory("scores")
    cases = []
    for name, _, path in (word.partition("=") for word in args.task):
        data = load_task_data(name, path)
        dev = next(iter(data.dev.values()))
        cases.append(encode_case(data.task, data.train, dev, args, device=device, optimizer="adamw"))
    runs: dict[str, dict[str, list[Run]]] = {case.task.name: {side: [] for side in SIDES} for case in cases}
    for seed in range(1, args.seeds + 1):
        for case in cases:
            for side in SIDES:
                runs[case.task.name][side].append(run_or_load(case, side, seed, directory))
    print(describe_machine(("torch", "transformers", "accelerate")))
    print(
        f"{args.seeds} seeds, {args.epochs:g} epochs, batch {args.batch_size}, learning rate {args.learning_rate:g}\n"
    )
    print("| task | metric | N | this project | transformers' Trainer | difference | processor time, ratio |")
    print("|---|---|---|---|---|---|---|")
    for case in cases:
        print(row(case, runs[case.task.name]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
