"""A duel of pre-trainings: this project's and transformers' run_mlm recipe, each for the same time on the same text.

Both sides train a model of the same shape and vocabulary on the same documents, with the same share of masked tokens
and without next sentences. They take turns in slices, so that a slow hour of the machine affects both. Then the same
code scores both models: the held-out loss on positions that are written once, minimal pairs made from the held-out
text, and BLiMP.

A side goes on from its checkpoint, with its clock, so the program may be stopped at any time and started again.
"""

import argparse
import contextlib
import dataclasses
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import psutil
import torch
import yaml
from torch.nn import functional

from benchmarks.harness import (
    children_cpu_seconds,
    describe_machine,
    errors_as_exit_codes,
    markdown_table,
    num_cores,
    program,
    working_directory,
)
from benchmarks.inputs import documents_of, load_or_make, sample_dump
from benchmarks.run_mlm import Lines, RunMlmCase, lines_of, newest_checkpoint, write_lines
from benchmarks.training import rank_environments
from bert_model.model.bert import BertForPreTraining
from bert_model.model.initialization import new_model
from bert_model.model.weights import load_model, save_model
from bert_model.presets import RunPreset, preset_from_mapping, preset_path, with_phases_in
from bert_model.pretraining.checkpoint import read_state
from bert_model.pretraining.config import PretrainingConfig
from bert_model.pretraining.fast_exam import input_of_pairs
from bert_model.training.distributed import resolve_precision
from bert_model.training.home import bert_home
from bert_model.zero_shot.exam import take_exam
from bert_pipeline.atomic import atomic_directory, atomic_write, write_text_durably
from bert_pipeline.configuration import from_mapping, override, read_yaml, to_mapping
from bert_pipeline.corpus.job import build_corpus
from bert_pipeline.errors import BertError, UsageError
from bert_pipeline.exam.job import prepared_exam
from bert_pipeline.exam.ngrams import NGRAM_BASELINE_NAME
from bert_pipeline.exam.pairs import read_pairs_of
from bert_pipeline.instances.job import build_instances
from bert_pipeline.manifest import Manifest, load_manifest
from bert_pipeline.parent import start
from bert_pipeline.signals import exiting_on_signals
from bert_pipeline.vocabulary.job import build_vocabulary
from bert_pipeline.vocabulary.tokenizer import Tokenizer

SIDES = ("ours", "peer")
MASKED_SHARE = 0.15
MAX_TESTS = 2_000
"""Texts of the held-out test."""
STOP_SECONDS = 120
"""Longest time in which a process saves its state and ends."""
MEMORY_SECONDS = 2.0
"""Time between two looks at the memory: one goes through all pages of the processes, which the training waits for."""
MEASURED_SECONDS = 20.0
"""Of each variant of the peer."""
PEER_WARMUP = 0.05
"""Share of the budget in which the peer's learning rate rises."""
SEARCH_SHARE = 0.15
"""Share of the budget for which the peer is trained with each of several recipes, to choose one."""
LEAST_DIFFERENCE = 0.1
"""Nats a token between learning rates below which all of them may still be at the level of word frequencies."""
PREEMPTED = 75
NUM_RESAMPLES = 1_000


class OurSide:
    """Our training: `bert pretrain` in the preset's processes, on all cores."""

    def __init__(self, directory: Path, config: PretrainingConfig, processes: int | None) -> None:
        self.name, self.output = "ours", directory / "ours"
        self.model = self.output / "model"  # does not exist before the end
        self.config, self.processes = directory / "ours.yaml", processes or 1
        write_text_durably(self.config, yaml.safe_dump(to_mapping(config), sort_keys=False))

    def commands(self) -> list[tuple[list[str], dict[str, str]]]:
        """Return the command and the environment of each rank for the next slice."""
        command = [sys.executable, "-m", "bert_model.pretraining", "--config", str(self.config), "--experiment", ""]
        command += ["--device", "cpu", "--output", str(self.output), "--resume"]
        return _ranks(command, self.processes)

    def seconds(self) -> float:
        """Return the seconds of training up to the newest checkpoint."""
        found = sorted(self.output.glob("checkpoints/step-*/manifest.json"))
        return float(read_state(found[-1].parent)["budget"]["seconds"]) if found else 0.0

    def trained(self) -> dict[str, float]:
        """Return updates and tokens of the finished training."""
        counts = load_manifest(self.model, kind="pretrained_model").counts
        return {"updates": counts["steps"], "tokens seen": counts["tokens_seen"]}


class PeerSide:
    """transformers' recipe, in the variant that was measured to be fastest; its methods are those of `OurSide`."""

    def __init__(self, case: RunMlmCase) -> None:
        self.name, self.model = "peer", case.finished
        self.case = case

    def commands(self) -> list[tuple[list[str], dict[str, str]]]:
        command = [sys.executable, "-m", "benchmarks.run_mlm", self.case.to_json()]
        return _ranks(command, self.case.processes)

    def seconds(self) -> float:
        found = newest_checkpoint(Path(self.case.output))
        return found.seconds if found else 0.0

    def trained(self) -> dict[str, float]:
        found = newest_checkpoint(Path(self.case.output))
        return {"updates": found.updates, "tokens seen": found.tokens} if found else {}


Side: TypeAlias = OurSide | PeerSide


def _ranks(command: list[str], processes: int) -> list[tuple[list[str], dict[str, str]]]:
    environments = rank_environments(processes) if processes > 1 else [{}]
    threads = str(max(1, num_cores() // processes))
    return [(command, environment | {"OMP_NUM_THREADS": threads}) for environment in environments]


# ----------------------------------------------------------------------------------------------------------------------
# Slices


@dataclasses.dataclass
class Usage:
    """What the processes of a slice used."""

    processor_seconds: float = 0.0
    peak_bytes: int = 0
    """Largest sum over the processes at one time; pages that they share count once."""


def run_slice(commands: Sequence[tuple[list[str], dict[str, str]]], seconds: float, log: Path, usage: Usage) -> None:
    """Run the ranks of a training for a time, then let them save and end; BertError if one fails."""
    before = children_cpu_seconds()
    with log.open("ab") as stream:
        # They end with this program, however it ends: two trainings at a time would slow each other down.
        processes = [
            start(command, env=os.environ | environment, stdout=stream, stderr=stream)
            for command, environment in commands
        ]
    stop, next_look, told = time.monotonic() + seconds, 0.0, False
    codes: list[int | None] = [None]
    try:
        while None in codes:
            time.sleep(0.2)
            if time.monotonic() >= next_look:
                usage.peak_bytes = max(usage.peak_bytes, _memory([process.pid for process in processes]))
                next_look = time.monotonic() + MEMORY_SECONDS
            codes = [process.poll() for process in processes]
            failed = [code for code in codes if code not in (None, 0, PREEMPTED)]
            if failed and not told:
                lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["no output"]
                raise BertError(f"{log}: a process ended with {failed[0]}: {lines[-1]}")
            if None in codes and time.monotonic() > stop + STOP_SECONDS:
                raise BertError(f"{log}: a process did not end within {STOP_SECONDS} seconds")
            if time.monotonic() > stop and not told:
                told = True
                for process in processes:
                    process.terminate()
    finally:
        # After an error, or when this program is stopped: the processes save their state too.
        for process in processes:
            process.terminate()
        until = time.monotonic() + STOP_SECONDS
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
            process.kill()
            process.wait()
        usage.processor_seconds += children_cpu_seconds() - before


def _memory(pids: Sequence[int]) -> int:
    total = 0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            parent = psutil.Process(pid)
            for process in [parent, *parent.children(recursive=True)]:
                with contextlib.suppress(psutil.Error):
                    found = process.memory_full_info()
                    total += getattr(found, "pss", found.rss)
    return total


def fight(sides: Sequence[Side], slice_seconds: float, directory: Path) -> None:
    """Train both sides to the end, the one that is behind first; each slice is a line of slices.jsonl."""
    while unfinished := [side for side in sides if not side.model.exists()]:
        side = min(unfinished, key=lambda side: side.seconds())
        before, usage, started = side.seconds(), Usage(), time.monotonic()
        print(f"{side.name}: training from second {before:,.0f}", file=sys.stderr, flush=True)
        try:
            run_slice(side.commands(), slice_seconds, directory / f"{side.name}.log", usage)
        finally:
            record = {"side": side.name, "from": before, "to": side.seconds(), "wall": time.monotonic() - started}
            with (directory / "slices.jsonl").open("a") as stream:
                stream.write(json.dumps(record | dataclasses.asdict(usage)) + "\n")
        if side.seconds() <= before and not side.model.exists():
            raise BertError(f"{directory / side.name}.log: a slice made no step; give a longer --slice")


def used(directory: Path) -> dict[str, dict[str, float]]:
    """Return what each side used in all slices: training seconds, processor seconds, and its largest memory."""
    slices = pd.read_json(directory / "slices.jsonl", lines=True)
    slices["seconds"] = slices["to"] - slices["from"]
    totals = slices.groupby("side").agg({"seconds": "sum", "processor_seconds": "sum", "peak_bytes": "max"})
    return {str(side): dict(total) for side, total in totals.iterrows()}


# ----------------------------------------------------------------------------------------------------------------------
# The peer at its best


def fastest_variant(case: RunMlmCase, directory: Path) -> tuple[RunMlmCase, dict[str, float]]:
    """Return the case with the processes, precision and compilation that train fastest here, and all rates.

    A rate of 0 belongs to a variant that this machine cannot run; its log has the reason.
    """
    path = directory / "variants.json"
    rates: dict[str, float] = json.loads(path.read_text()) if path.is_file() else {}

    def measure(changes: dict[str, Any]) -> float:
        name = json.dumps(changes)
        if name not in rates:
            measured = dataclasses.replace(case, **changes, measure=MEASURED_SECONDS, output=str(directory / "scratch"))
            rates[name] = _rate(PeerSide(measured).commands(), directory / "variants.log")
            print(f"peer, {name}: {rates[name]:,.0f} tokens/s", file=sys.stderr, flush=True)
            write_text_durably(path, json.dumps(rates) + "\n")
        return rates[name]

    precisions = [False] if resolve_precision("auto", torch.device("cpu")) == "float32" else [False, True]
    plain: list[dict[str, Any]] = [
        {"processes": processes, "bf16": bf16, "compile": False}
        for processes in sorted({1, num_cores()})
        if case.lines[-1].batch % processes == 0
        for bf16 in precisions
    ]
    best = max(plain, key=measure)
    best = max([best, best | {"compile": True}], key=measure)
    return dataclasses.replace(case, **best), rates


def _rate(commands: Sequence[tuple[list[str], dict[str, str]]], log: Path) -> float:
    before = log.stat().st_size if log.exists() else 0
    try:
        run_slice(commands, 30 * MEASURED_SECONDS, log, Usage())
    except BertError as error:
        print(f"not available: {error}", file=sys.stderr)
        return 0.0
    with log.open() as stream:
        stream.seek(before)
        found = [json.loads(line) for line in stream if line.startswith('{"tokens_per_second"')]
    return float(found[-1]["tokens_per_second"]) if found else 0.0


def best_recipe(
    case: RunMlmCase, learning_rates: Sequence[float], test: Path, directory: Path
) -> tuple[RunMlmCase, dict[str, float]]:
    """Return the case with the learning rate and order of the lowest held-out loss in short trainings, and all losses.

    Batches of like lengths are tried with the best rate. Each training has the warm-up of the whole one, and its
    lengths and decay in proportion. The losses are those of the final test, which favors the peer.
    """
    found: dict[str, float] = {}

    def loss(changes: dict[str, Any]) -> float:
        name = ", ".join(f"{key} {value:g}" for key, value in changes.items())
        if name not in found:
            short = dataclasses.replace(
                case,
                **changes,
                output=str(directory / name.replace(", ", "-").replace(" ", "-")),
                budget=SEARCH_SHARE * case.budget,
                decay=SEARCH_SHARE * case.decay,
                lines=[lines._replace(until=SEARCH_SHARE * lines.until) for lines in case.lines],
            )
            side = PeerSide(short)
            if not side.model.exists():
                print(f"peer, {name}: training", file=sys.stderr, flush=True)
                # The clock of a training stands still while its first step compiles.
                run_slice(side.commands(), 2 * short.budget + STOP_SECONDS, directory / "recipes.log", Usage())
            losses, counts = held_out_losses(side.model, test)
            found[name] = float(losses.sum() / counts.sum())
            print(f"peer, {name}: {found[name]:.3f} nats a token", file=sys.stderr, flush=True)
        return found[name]

    best: dict[str, Any] = min(({"learning_rate": rate} for rate in learning_rates), key=loss)
    if max(found.values()) - min(found.values()) < LEAST_DIFFERENCE and len(found) > 1:
        print("peer: these losses hardly differ, so they say little about the best rate", file=sys.stderr)
    best = min(best, best | {"like_lengths": True}, key=loss)
    return dataclasses.replace(case, **best), found


# ----------------------------------------------------------------------------------------------------------------------
# Scores


def write_test(corpus: Manifest, tokenizer: Tokenizer, length: int, path: Path) -> None:
    """Write held-out texts as rows of ids, padded with -1, and which of their tokens are masked: (N, length) each.

    A text is a line of the peer's training, of other documents. A file that is there is kept.
    """
    if path.is_file():
        return
    texts = [line for document in documents_of(corpus, "held_out") for line in lines_of(document, tokenizer, length)]
    if not texts:
        raise UsageError(f"{corpus.path}: has no held-out documents to test on; make it with a larger held_out")
    chosen = np.unique(np.linspace(0, len(texts) - 1, MAX_TESTS).round().astype(int))
    ids = np.full((len(chosen), length), -1, dtype=np.int32)
    masked = np.zeros(ids.shape, dtype=bool)
    rng = np.random.default_rng(17)
    for row, text in enumerate(texts[index] for index in chosen):
        ids[row, : len(text)] = text
        count = max(1, round(MASKED_SHARE * (len(text) - 2)))
        masked[row, 1 + rng.choice(len(text) - 2, count, replace=False)] = True
    with atomic_write(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, ids=ids, masked=masked)


@torch.inference_mode()
def held_out_losses(directory: Path, test: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return for each text of the test the sum of its losses in nats (N,) and its number of masked tokens (N,)."""
    model, _ = load_model(BertForPreTraining, directory, log=False)
    model.eval()
    mask_id = Tokenizer.from_directory(directory).mask_id
    with np.load(test) as stored:
        ids, masked = stored["ids"].astype(np.int64), stored["masked"]
    lengths, losses = (ids >= 0).sum(axis=1), np.zeros(len(ids))
    # Texts of one length have as many masked tokens each, and need no padding.
    for length in np.unique(lengths):
        for rows in np.array_split(same := np.flatnonzero(lengths == length), -(-len(same) // 64)):
            targets = torch.from_numpy(ids[rows, :length])
            chosen = torch.from_numpy(masked[rows, :length])
            positions = chosen.nonzero()[:, 1].reshape(len(rows), -1)
            logits = model(targets.masked_fill(chosen, mask_id), masked_lm_positions=positions).prediction_logits
            loss = functional.cross_entropy(logits.flatten(0, 1), targets[chosen], reduction="none")
            losses[rows] = loss.reshape(len(rows), -1).double().sum(1).numpy()
    return losses, masked.sum(axis=1)


def score_side(side: Side, test: Path, exams: Mapping[str, tuple[Path, str, Path]], path: Path) -> None:
    """Add what is missing to a side's scores in a JSON file: loss, and exams by name: pairs, part, trigrams."""
    scores = json.loads(path.read_text()) if path.is_file() else {}

    def add(name: str, value: Any) -> None:
        scores[name] = value
        write_text_durably(path, json.dumps(scores) + "\n")
        print(f"{side.name}: {name} scored", file=sys.stderr, flush=True)

    if "losses" not in scores:
        add("losses", [column.tolist() for column in held_out_losses(side.model, test)])
    losses, counts = map(sum, scores["losses"])
    print(f"{side.name}: held-out loss {losses / counts:.3f} nats a token", file=sys.stderr, flush=True)
    for name, (source, part, baseline) in exams.items():
        pairs = read_pairs_of(source, part)
        sha256 = input_of_pairs(pairs)["sha256"]
        if scores.get(name, {}).get("pairs") != sha256:  # other pairs under the same name are another exam
            add(name, take_exam(side.model, pairs, ngram_baseline=baseline).to_json() | {"pairs": sha256})


def difference_of_losses(ours: np.ndarray, peer: np.ndarray, counts: np.ndarray) -> tuple[float, float, float]:
    """Return (ours - peer) in nats a token and its 95 % interval, from a bootstrap over texts."""
    rng = np.random.default_rng(1)
    chosen = rng.integers(len(counts), size=(NUM_RESAMPLES, len(counts)))
    resampled = (ours - peer)[chosen].sum(1) / counts[chosen].sum(1)
    low, high = np.percentile(resampled, [2.5, 97.5])
    return float((ours - peer).sum() / counts.sum()), float(low), float(high)


def report(sides: Sequence[Side], directory: Path, exams: Sequence[str]) -> str:
    """Return the table of a finished duel; results.json has its numbers."""
    usage = used(directory)
    scores = {side.name: json.loads((directory / f"{side.name}-scores.json").read_text()) for side in sides}
    numbers: dict[str, dict[str, float]] = {}  # of a row: by side
    intervals: dict[tuple[str, str], str] = {}  # of a row and side
    for side in sides:
        losses, counts = map(np.array, scores[side.name]["losses"])
        found = {
            **side.trained(),
            "training seconds": side.seconds(),
            "held-out MLM loss, nats a token": losses.sum() / counts.sum(),
            "peak memory, MB": usage[side.name]["peak_bytes"] / 1e6,
            # A slice that was killed with this program left no record.
            "processor seconds": usage[side.name]["processor_seconds"]
            * max(1.0, side.seconds() / max(usage[side.name]["seconds"], 1e-9)),
        }
        for exam in exams:
            result = scores[side.name][exam]
            found[f"{exam}, mean over {len(result['kinds'])} kinds"] = result["mean"]
            if result["group_mean"] is not None:
                found[f"{exam}, mean over groups"] = result["group_mean"]
            if len(result["kinds"]) < 10:
                for kind, score in ((kind, values["score"]) for kind, values in result["kinds"].items()):
                    found[f"{exam}: {kind}"] = score["accuracy"]
                    intervals[f"{exam}: {kind}", side.name] = f" [{score['low']:.1f}, {score['high']:.1f}]"
        for name, value in found.items():
            numbers.setdefault(name, {})[side.name] = float(value)
    losses, counts = (np.array([scores[side.name]["losses"][part] for side in sides]) for part in (0, 1))
    difference, low, high = difference_of_losses(losses[0], losses[1], counts[0])
    document = {"rows": numbers, "loss_difference": [difference, low, high]}
    write_text_durably(directory / "results.json", json.dumps(document, indent=1) + "\n")

    rows = []
    for name, by_side in numbers.items():
        cells = (f"{by_side[side]:,.{_digits(name)}f}{intervals.get((name, side), '')}" for side in SIDES)
        rows.append((name, *cells, f"{by_side['ours'] / by_side['peer']:.2f}"))
    table = markdown_table(("what", "ours", "transformers", "ratio"), rows, ("---", "---:", "---:", "---:"))
    baselines = [f"{name} {scores['ours'][name]['ngram_baseline_mean']:.1f}" for name in exams]
    return (
        f"{table}\n\nDifference of the losses: {difference:+.3f} nats a token [{low:+.3f}, {high:+.3f}], "
        f"{int(counts[0].sum()):,} masked tokens of {counts.shape[1]:,} texts. Chance in the exams: 50"
        f"{''.join(f'; trigram: {baseline}' for baseline in baselines)}."
    )


def _digits(name: str) -> int:
    return 3 if "loss" in name else 1 if "mean" in name or ":" in name else 0


# ----------------------------------------------------------------------------------------------------------------------
# Inputs and the program


def given_instances(preset: RunPreset, given: Sequence[Path]) -> dict[int, Manifest]:
    """Return the instances of each length of the preset."""
    found = {load_manifest(path).configuration.get("max_seq_length"): path for path in given}
    if missing := set(preset.sequence_lengths) - set(found):
        raise UsageError(f"--instances: none has max_seq_length {min(missing)}, which the preset needs")
    return {length: load_manifest(found[length], kind="instances") for length in preset.sequence_lengths}


def make_instances(preset: RunPreset, corpus: Path, directory: Path, suffix: str = "") -> dict[int, Manifest]:
    """Return the vocabulary and the instances of each length of the preset, made from the corpus and kept."""
    vocabulary = directory / "vocabulary"
    load_or_make(vocabulary, lambda path: build_vocabulary(corpus, path, preset.vocabulary))
    return {
        length: load_or_make(
            directory / f"instances-{length}{suffix}",
            functools.partial(
                build_instances, corpus, vocabulary, config=dataclasses.replace(preset.instances, max_seq_length=length)
            ),
        )
        for length in preset.sequence_lengths
    }


def phases_of(config: PretrainingConfig, directory: Path) -> list[Lines]:
    """Return what the peer trains on in each of our phases: the same lengths and batches for the same time."""
    shares, last = np.cumsum([phase.share for phase in config.phases]), config.phases[-1]
    found = []
    for phase, share in zip(config.phases, shares):
        if phase.global_batch_size % last.global_batch_size:
            raise UsageError(
                f"phases: found batches of {phase.global_batch_size} and {last.global_batch_size}, expected multiples "
                "of the last, whose places in the order of the training have several lines in the other phases"
            )
        until = float(config.budget_seconds * share / shares[-1])
        file = directory / f"lines-{phase.max_seq_length}.npy"
        found.append(Lines(until, str(file), phase.global_batch_size))
    return found


def check_settings(settings: Mapping[str, Any], path: Path) -> None:
    """Keep the settings of a duel, which a later start must have too."""
    text = json.dumps(settings, indent=1, sort_keys=True) + "\n"
    if path.is_file() and path.read_text() != text:
        raise UsageError(f"{path}: the duel in this directory has other settings; give another --name, or remove it")
    write_text_durably(path, text)


def argument_parser() -> argparse.ArgumentParser:
    """Return the program's parser."""
    parser = program("duel", __doc__)
    parser.add_argument("--corpus", type=Path, metavar="DIR", help="default: the generated encyclopedia")
    parser.add_argument(
        "--instances", type=Path, nargs="+", default=[], metavar="DIR", help="of the corpus; default: made"
    )
    parser.add_argument("--preset", default="cpu-3h", help="shape and settings (default: %(default)s)")
    parser.add_argument("--budget", default="1h", help="training time of each side (default: %(default)s)")
    parser.add_argument("--slice", type=float, default=600.0, help="seconds of a turn (default: %(default)g)")
    parser.add_argument("--name", default="duel", help="directory below benchmarks/ (default: %(default)s)")
    parser.add_argument("--blimp", type=Path, metavar="PATH", help="default: BERT_HOME/data/blimp.zip, if it is there")
    parser.add_argument(
        "--peer-learning-rate",
        type=float,
        nargs="+",
        metavar="RATE",
        help="the best in short trainings is taken (default: a third, two thirds and the whole of ours)",
    )
    parser.add_argument("assignments", nargs="*", metavar="key=value", help="changes of our pre-training")
    return parser


@errors_as_exit_codes
def main(arguments: Sequence[str] | None = None) -> int:
    """Train what is missing, score both models, and print the table."""
    args = argument_parser().parse_intermixed_args(arguments)
    directory = working_directory(args.name)
    changes = [f"pretraining.{assignment}" for assignment in args.assignments]
    preset = preset_from_mapping(override(read_yaml(preset_path(args.preset)), changes), name=args.preset)
    if args.corpus is None:
        corpus = load_or_make(directory / "corpus", lambda path: build_corpus([str(sample_dump(directory))], path))
    else:
        corpus = load_manifest(args.corpus, kind="corpus")
    # The held-out text of another corpus may be in what was made of this one, which is kept for a later start.
    for path in args.instances:
        made_of = load_manifest(path, kind="instances").inputs.get("corpus", {})
        if made_of.get("content_sha256") != corpus.sha256:
            raise UsageError(f"--instances {path}: not made of the corpus {corpus.path}, whose test may be in them")
    given = sorted(load_manifest(path).sha256 for path in args.instances)
    own = {} if given else {"vocabulary": to_mapping(preset.vocabulary), "made": to_mapping(preset.instances)}
    check_settings({"corpus": corpus.sha256, "instances": given} | own, directory / "inputs.json")
    if args.instances:
        instances = given_instances(preset, args.instances)
    else:
        instances = make_instances(preset, corpus.path, directory)

    # Ours: the preset without next sentences. Checkpoints are evaluated on one instance, the minimum, because both
    # sides' losses are measured after the training.
    ours = to_mapping(with_phases_in(preset.pretraining, {length: found.path for length, found in instances.items()}))
    ours |= {"objective": "mlm", "budget": args.budget, "evaluation_interval_steps": 0}
    ours |= {"evaluation_max_instances": 1}
    config = from_mapping(PretrainingConfig, ours, where=args.preset)
    if not config.budget_seconds:
        raise UsageError(f"--budget: found {args.budget!r}, expected a time such as 1h or 90m")

    # The peer: the same initial weights and vocabulary, lines of the same text.
    last = config.phases[-1]
    tokenizer = Tokenizer.from_directory(config.phases[0].instances)
    initial = directory / "start"
    if not initial.exists():
        shape = config.model.resolve(vocab_size=tokenizer.vocab_size)
        with atomic_directory(initial) as temporary:
            save_model(new_model(BertForPreTraining, shape, seed=config.seed), temporary, tokenizer)
    lines = phases_of(config, directory)
    for phase, (_, file, _) in zip(config.phases, lines):
        if not Path(file).is_file():
            write_lines(corpus, tokenizer, phase.max_seq_length, Path(file))
    test = directory / "test.npz"
    write_test(corpus, tokenizer, last.max_seq_length, test)
    case = RunMlmCase(
        lines=lines,
        model=str(initial),
        output=str(directory / "peer"),
        learning_rate=last.learning_rate,
        budget=config.budget_seconds,
        warmup=PEER_WARMUP * config.budget_seconds,
        decay=config.decay_share * config.budget_seconds,
        save_steps=config.checkpoint_interval_steps or 1_000,
        epsilon=config.optimizer.epsilon,
        mlm_probability=config.masking.masked_lm_prob,
        seed=config.seed,
    )

    learning_rates = args.peer_learning_rate or [float(f"{last.learning_rate * part / 3:.3g}") for part in (1, 2, 3)]
    settings = {"ours": to_mapping(config), "peer": dataclasses.asdict(case), "peer_learning_rates": learning_rates}
    check_settings(settings | {"corpus": corpus.sha256}, directory / "settings.json")

    with exiting_on_signals():
        case, speeds = fastest_variant(case, directory)
        case, losses = best_recipe(case, learning_rates, test, directory)
        sides: list[Side] = [OurSide(directory, config, preset.launch.processes_per_node), PeerSide(case)]
        fight(sides, args.slice, directory)

        # The pairs come from the held-out text, which neither side has read.
        made = prepared_exam(corpus.path, bert_home() / "exams")
        baseline = made / NGRAM_BASELINE_NAME
        exams = {"made pairs": (made, "reporting", baseline)}
        blimp = args.blimp or bert_home() / "data" / "blimp.zip"
        if args.blimp or blimp.exists():
            exams["BLiMP"] = (blimp, "all", baseline)
        for side in sides:
            score_side(side, test, exams, directory / f"{side.name}-scores.json")

    print(describe_machine(("torch", "transformers", "accelerate")))
    print(f"{args.budget} each, {args.preset} without next sentences; the peer: {case.to_json()}")
    print(f"its variants, tokens/s: {', '.join(f'{name} {speed:,.0f}' for name, speed in speeds.items())}")
    print(f"its losses: {'; '.join(f'{name}: {loss:.3f}' for name, loss in losses.items())}")
    print()
    print(report(sides, directory, list(exams)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
