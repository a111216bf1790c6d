"""Scores of fine-tuned models beside a baseline: same rows, settings and seeds.

The baseline is transformers' Trainer with the same weights, or with `--against random` the same training from random
weights of the same shape, and then also a bag of words. For each task, both sides are trained with every seed in
alternation, and score the same dev set. The difference of their means comes with a 95 % interval from a bootstrap over
dev examples and seeds, and against the Trainer with the processor time of both trainings. The predictions of a finished
training are kept in a directory (`--runs`), named by what was trained: an interrupted program continues on any machine
that has the same model and task files, and the intervals of docs/results.md are computed again from `docs/scores/`
without training. Of several learning rates each side gets, for each task, the one whose first seed scores best on the
dev set, as in the paper (section 4.1). `--without FILE` leaves out the dev examples that `benchmarks.contamination
--output` wrote.
"""

import argparse
import dataclasses
import functools
import hashlib
import json
import statistics
import sys
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import bag_of_words
from benchmarks.finetuning import (
    FinetuningCase,
    OurFinetuning,
    Side,
    mean_and_deviation,
    peer_finetuning,
)
from benchmarks.harness import describe_machine, errors_as_exit_codes, markdown_table, program, working_directory
from bert_model.kinds import kind_of
from bert_model.metrics.uncertainty import interval_of, resample, stacked
from bert_model.model.weights import weight_files
from bert_model.training.distributed import keep_freed_memory
from bert_pipeline.atomic import atomic_write, write_text_durably
from bert_pipeline.errors import UsageError
from bert_pipeline.hashes import file_sha256
from bert_pipeline.tasks.task import TaskData, load_task_data

SIDES: dict[str, dict[str, Side]] = {
    "peer": {"ours": OurFinetuning, "peer": peer_finetuning},
    "random": {"ours": OurFinetuning, "random": functools.partial(OurFinetuning, weights="random")},
}
"""By baseline: this project's training first."""


@dataclasses.dataclass(frozen=True)
class Run:
    """One training: its predictions of the dev examples, and what its training loop took."""

    predictions: Mapping[str, Any]
    seconds: float
    """Processor time of the training loop."""
    place: str = ""
    """Day, machine and versions of libraries."""


def run_or_load(case: FinetuningCase, side: str, make: Side, seed: int, directory: Path) -> Run:
    """Train with a seed, or read what an earlier call has stored for the same case."""
    # By content: the same files may be elsewhere on another machine, and other files in the same place. Random weights
    # are those of every model of the shape.
    files = [case.model / "config.json"] if side == "random" else weight_files(case.model)
    content = {"weights": [file_sha256(path) for path in files], "examples": _sha256_of(case)}
    names = ("batch_size", "learning_rate", "epochs", "precision", "optimizer")
    settings = json.dumps(content | {name: getattr(case, name) for name in names})
    path = directory / f"{case.task.name}-{side}-{case.learning_rate:g}-{seed}.npz"
    ids = [example.example_id for example in case.dev_examples]
    if path.is_file():
        stored = np.load(path)
        if str(stored["settings"]) == settings:
            predictions = dict(zip(ids, stored["predictions"].tolist()))
            return Run(predictions, float(stored["seconds"]), str(stored["place"]))
    trainer = make(case)
    started = time.process_time()
    trainer.train_from(seed)
    seconds = time.process_time() - started
    logits = trainer.logits()
    predictions = kind_of(case.task).decode(case.dev_examples, case.dev, logits, {})
    with atomic_write(path) as temporary, open(temporary, "wb") as file:
        values = np.array([predictions[example_id] for example_id in ids])
        place = day_and_machine()
        np.savez_compressed(file, predictions=values, seconds=seconds, settings=settings, place=place)
    print(f"{path.name}: {case.score(logits):.2f}, {seconds:.0f} processor seconds", file=sys.stderr, flush=True)
    return Run(predictions, seconds, place)


def with_best_rate(
    case: FinetuningCase, side: str, make: Side, learning_rates: Sequence[float], directory: Path, scored: Sequence[Any]
) -> FinetuningCase:
    """Return a case with the learning rate whose first seed scores best on the examples `scored` of the dev set.

    One rate needs no training.
    """
    candidates = [case.replace(learning_rate=rate) for rate in learning_rates]
    if len(candidates) == 1:
        return candidates[0]
    runs = [run_or_load(candidate, side, make, 1, directory) for candidate in candidates]
    found = scores_of(case.replace(dev_examples=scored), runs)
    return candidates[found.index(max(found))]


def day_and_machine() -> str:
    """Return day, machine and versions, without what differs between two trainings of one evening: time and load."""
    machine, versions = describe_machine(("torch", "transformers", "accelerate", "scikit-learn")).splitlines()
    moment, cores, _ = machine.split("; ", 2)
    return f"{moment[: len('2026-11-24')]}; {cores}; {versions}"


def _sha256_of(case: FinetuningCase) -> str:
    """Return a hash of what is trained on and what is scored."""
    found = hashlib.sha256(repr(case.dev_examples).encode())
    for encoded in (case.train, case.dev):
        columns = {**encoded.row_columns, **encoded.token_columns}
        for values in (encoded.input_ids, encoded.offsets, *(columns[name] for name in sorted(columns))):
            found.update(values.tobytes())
    return found.hexdigest()


def resampled_differences(case: FinetuningCase, runs: Mapping[str, Sequence[Run]]) -> np.ndarray:
    """Return (first side - second) for draws of dev examples, jointly, and of each side's seeds."""
    first, second = (
        stacked([kind_of(case.task).statistics(case.dev_examples, run.predictions) for run in side_runs])
        for side_runs in runs.values()
    )
    means = resample([first, second], seed=1)
    return means[:, 0] - means[:, 1]


def difference_with_interval(difference: float, resampled: np.ndarray) -> str:
    """Return a difference and its 95 % interval."""
    low, high = interval_of(resampled)
    return f"{difference:+.1f} [{low:+.1f}, {high:+.1f}]"


def scores_of(case: FinetuningCase, runs: Sequence[Run]) -> list[float]:
    """Return the main metric of each run."""
    return [kind_of(case.task).score(case.dev_examples, run.predictions)[case.task.main_metric] for run in runs]


def compare(
    case: FinetuningCase, runs: Mapping[str, Sequence[Run]], size: str
) -> tuple[tuple[str, ...], tuple[float, float], np.ndarray]:
    """Return the first cells of a task's row, the mean of each side, and their resampled differences."""
    first, second = (scores_of(case, side_runs) for side_runs in runs.values())
    means, resampled = (statistics.fmean(first), statistics.fmean(second)), resampled_differences(case, runs)
    difference = difference_with_interval(means[0] - means[1], resampled)
    of_task = (case.task.title, case.task.main_metric, size)
    return (*of_task, mean_and_deviation(first), mean_and_deviation(second), difference), means, resampled


def peer_table(cases: Sequence[FinetuningCase], runs: Mapping[str, Mapping[str, Sequence[Run]]]) -> str:
    """Return the table against transformers' Trainer."""
    rows = []
    for case in cases:
        of_task = runs[case.task.name]
        cells, *_ = compare(case, of_task, f"{len(case.dev_examples):,}")
        seconds = {side: statistics.median(run.seconds for run in side_runs) for side, side_runs in of_task.items()}
        rows.append((*cells, f"{seconds['peer'] / seconds['ours']:.2f}"))
    header = ("task", "metric", "N", "this project", "transformers' Trainer", "difference", "processor time, ratio")
    return markdown_table(header, rows)


def random_table(
    cases: Sequence[FinetuningCase], runs: Mapping[str, Mapping[str, Sequence[Run]]], bags: Mapping[str, float]
) -> str:
    """Return the table against random weights and a bag of words, with the means over tasks."""
    rows, means, resampled = [], [], []
    for case in cases:
        bag, size = bags[case.task.name], f"{case.train.num_examples:,} / {len(case.dev_examples):,}"
        cells, (pretrained, random), differences = compare(case, runs[case.task.name], size)
        means.append((pretrained, random, bag))
        resampled.append(differences)
        rows.append((*cells, f"{bag:.1f}", f"{pretrained - bag:+.1f}"))
    pretrained_mean, random_mean, bag = (statistics.fmean(column) for column in zip(*means))
    interval = difference_with_interval(pretrained_mean - random_mean, np.mean(resampled, axis=0))
    mean_row = ("mean", "", "", f"{pretrained_mean:.1f}", f"{random_mean:.1f}", interval)
    rows.append((*mean_row, f"{bag:.1f}", f"{pretrained_mean - bag:+.1f}"))
    header = ("task", "metric", "train / dev", "pre-trained", "random weights", "difference", "bag of words")
    return markdown_table((*header, "difference"), rows)


def bag_or_load(data: TaskData, dev: Sequence[Any], directory: Path) -> dict[str, Any]:
    """Return the predictions of a bag of words by id, fitted or read from what an earlier call has stored."""
    path = directory / f"{data.task.name}-bag-of-words.json"
    rows = hashlib.sha256(repr((list(data.train), list(dev))).encode()).hexdigest()
    if path.is_file() and (stored := json.loads(path.read_text()))["rows"] == rows and "predictions" in stored:
        return dict(stored["predictions"])
    predictions = bag_of_words.predict(data.task, data.train, dev)
    found = kind_of(data.task).score(dev, predictions)[data.task.main_metric]
    write_text_durably(path, json.dumps({"rows": rows, "predictions": predictions}) + "\n")
    print(f"{data.task.name}, bag of words: {found:.2f}", file=sys.stderr, flush=True)
    return predictions


def read_found(path: Path) -> set[tuple[str, str]]:
    """Return test set and id of each text that `benchmarks.contamination --output` wrote."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return {(record["test_set"], record["id"]) for record in map(json.loads, lines)}


def task_folder(name: str, path: Path, directory: Path) -> Path:
    """Return a task's folder; from an archive such as BabyLM's glue_10k.zip its rows are unpacked."""
    if not zipfile.is_zipfile(path):
        return path
    folder = directory / f"{path.stem}-{name}"
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(path) as archive:
        for split, target in (("train", "train"), ("valid", "validation")):
            member = f"{name}.{split}.jsonl"
            if member not in archive.namelist():
                raise UsageError(f"{path}: has no {member}, only {', '.join(sorted(archive.namelist()))}")
            with atomic_write(folder / f"{target}.jsonl") as temporary:
                temporary.write_bytes(archive.read(member))
    return folder


def argument_parser() -> argparse.ArgumentParser:
    """Return the program's parser."""
    parser = program("scores", __doc__)
    parser.add_argument("--model", type=Path, required=True, help="a model directory")
    parser.add_argument(
        "--task",
        action="append",
        required=True,
        metavar="NAME=DATA",
        help="task and files, or an archive with NAME.train.jsonl",
    )
    parser.add_argument("--against", default="peer", choices=list(SIDES), help="the baseline (default: %(default)s)")
    parser.add_argument("--without", type=Path, metavar="FILE", help="dev examples not to score, of contamination")
    parser.add_argument("--runs", type=Path, metavar="DIR", help="finished trainings (default: below BERT_HOME)")
    parser.add_argument("--seeds", type=int, default=5, help="seeds 1 to N (default: %(default)s)")
    parser.add_argument("--epochs", type=float, default=3.0)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rates", type=float, nargs="+", default=[5e-5], metavar="RATE")
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16"])
    return parser


@errors_as_exit_codes
def main(arguments: Sequence[str] | None = None) -> int:
    """Train what is missing, and print the table."""
    args = argument_parser().parse_args(arguments)
    keep_freed_memory()  # as the workers of `bert finetune` do; in one process it serves both sides
    device = "cuda" if torch.cuda.is_available() else "cpu"
    files, sides = working_directory("scores"), SIDES[args.against]
    directory = args.runs or files / args.against
    directory.mkdir(parents=True, exist_ok=True)
    found = read_found(args.without) if args.without else set()
    cases, bags, scored = [], {}, {}
    for name, _, path in (word.partition("=") for word in args.task):
        data = load_task_data(name, task_folder(name, Path(path), files))
        if data.task.kind not in ("classification", "regression"):
            raise UsageError(f"--task {name}: found {data.task.kind}, expected a classification or a regression")
        split, dev = next(iter(data.dev.items()))
        scored[name] = [example for example in dev if (f"{name} {split}", example.example_id) not in found]
        rate = args.learning_rates[0]
        case = FinetuningCase(data.task, data.train, dev, args, device=device, learning_rate=rate, optimizer="adamw")
        cases.append(case)
        if args.against == "random":
            bags[name] = bag_or_load(data, dev, directory)
    rated = {
        (case.task.name, side): with_best_rate(case, side, make, args.learning_rates, directory, scored[case.task.name])
        for case in cases
        for side, make in sides.items()
    }
    runs: dict[str, dict[str, list[Run]]] = {case.task.name: {side: [] for side in sides} for case in cases}
    for seed in range(1, args.seeds + 1):
        for (task, side), case in rated.items():
            runs[task][side].append(run_or_load(case, side, sides[side], seed, directory))
    # Trained and predicted alike, whatever is scored.
    cases = [case.replace(dev_examples=scored[case.task.name]) for case in cases]
    places = {run.place for sides in runs.values() for side_runs in sides.values() for run in side_runs}
    print("\n".join(sorted(places)))
    print(f"{args.seeds} seeds, {args.epochs:g} epochs, batch {args.batch_size}")
    for side in sides:
        rates = (f"{task} {rated[task, side].learning_rate:g}" for task in runs)
        print(f"learning rates, {side}: {', '.join(rates)}")
    print()
    bag_scores = {
        case.task.name: kind_of(case.task).score(case.dev_examples, bags[case.task.name])[case.task.main_metric]
        for case in cases
        if case.task.name in bags
    }
    print(random_table(cases, runs, bag_scores) if args.against == "random" else peer_table(cases, runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
