"""Pre-training steps in real tokens per second, compared with transformers' BertForPreTraining.

Padding is not counted as tokens. Data, shapes, precision and dropout are the same on both sides; each is measured
eager and (unless left out) compiled, and the RATIO compares the best of each. Requires torch, tokenizers, pyarrow,
numpy, safetensors, pyyaml and pydantic, and transformers for the peer.
"""

import argparse
import contextlib
import dataclasses
import importlib.util
import itertools
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.harness import (
    Contestant,
    Row,
    describe_machine,
    errors_as_exit_codes,
    markdown_table,
    medians,
    program,
    render,
    working_directory,
)
from benchmarks.inputs import sample_instances
from benchmarks.training import RANK_TIMEOUT_SECONDS, OurTraining, TrainingCase, rank_environments
from bert_model.model.cpu_kernels import onednn_width
from bert_model.pretraining import trainer
from bert_model.pretraining.batch import split_micro_batches
from bert_model.training.distributed import keep_freed_memory
from bert_model.training.throughput import peak_rate
from bert_pipeline.errors import BertError, ConfigurationError
from bert_pipeline.manifest import Manifest, load_manifest
from bert_pipeline.vocabulary.tokenizer import Tokenizer

UNIT = "real tokens/s"
PEER = "transformers"
ALONE, RANKS, APART = "1 process", "2 gloo ranks", "2 processes apart"
# ----------------------------------------------------------------------------------------------------------------------
# Our side and the peer's


def measure(case: TrainingCase, *, compiled: bool, rounds: int, seconds: float) -> list[Row]:
    """Measure one case; return one row for each variant of the peer, the fastest first."""
    ours: dict[str, OurTraining] = {"ours": OurTraining(case)}
    peers: dict[str, Any] = {}
    if compiled:
        ours["ours, compiled"] = OurTraining(case, compiled=True)
    if importlib.util.find_spec(PEER):
        from benchmarks.transformers_peers import TransformersTraining

        peers[f"{PEER}, like lengths"] = TransformersTraining(case, grouped=True)
        peers[f"{PEER}, reading order"] = TransformersTraining(case, grouped=False)
        if compiled:
            peers[f"{PEER}, like lengths, compiled"] = TransformersTraining(case, grouped=True, compiled=True)
    contestants: dict[str, Contestant] = {}
    for name, training in {**ours, **peers}.items():
        try:
            training.run(seconds if "compiled" in name else 0.0)  # warm-up, and compilation of the shapes that occur
        except (RuntimeError, torch._dynamo.exc.TorchDynamoException) as error:  # no compiler on this machine, say
            reason = str(error).strip().splitlines()[0]
            print(f"{case.title}: {name}: not available ({reason})", file=sys.stderr)
            continue
        contestants[name] = lambda training=training: training.run(seconds)  # type: ignore[misc]
    rates = medians(contestants, rounds, case.title)
    best = max((name for name in rates if name in ours), key=rates.__getitem__)
    note = _note(case, best, ours[best], rates[best])
    found = sorted((name for name in rates if name in peers), key=rates.__getitem__, reverse=True)
    return [
        Row(what=case.title, unit=UNIT, ours=rates[best], peer=peer, theirs=rates.get(peer), note="" if index else note)
        for index, peer in enumerate(found or [PEER])
    ]


def _note(case: TrainingCase, name: str, training: OurTraining, tokens_per_second: float) -> str:
    rate, kind = peak_rate(case.device, case.precision)
    utilization = tokens_per_second * training.flops_per_token() / rate
    note = f"{name.removeprefix('ours').strip(', ') or 'eager'}; {utilization:.0%} of the {kind} rate "
    note += f"({rate / 1e9:,.0f} GFLOP/s); {training.waiting_share:.2%} waiting for data"
    if case.device.type == "cpu":
        width = onednn_width()
        note += f"; on oneDNN: {'no layer' if width is None else f'layers of width {width} or more'}"
    return note


def lengths_and_padding(case: TrainingCase, num_batches: int = 40) -> tuple[float, float]:
    """Return the mean tokens of an instance, and the share of padding in batches of like lengths, of all positions."""
    reader = case.reader()
    instances = tokens = positions = 0
    for number in range(num_batches):
        samples = reader.take(number * case.global_batch_size, case.global_batch_size)
        for part in split_micro_batches(samples, case.micro_batch_size):
            lengths = part.lengths
            instances += len(lengths)
            tokens += int(lengths.sum())
            positions += len(lengths) * int(lengths.max())
    return tokens / instances, 1 - tokens / positions


def profile(case: TrainingCase, num_steps: int = 10) -> str:
    """Return a profile of our steps: shares of their parts, of the host's time, and the operators."""
    training = OurTraining(case)
    training.run(0.0)
    parts = {
        "reading and masking": (training.trainer, "_prepare"),
        "forward pass": (training.trainer.gradients, "loss_sums"),
        "forward and backward pass": (training.trainer, "_accumulate"),
        "sum over the ranks": (training.trainer.gradients, "all_reduce"),
        "clipping": (trainer, "clip_gradients"),
        "update": (training.trainer.optimizer, "step"),
    }
    activities = [torch.profiler.ProfilerActivity.CPU]
    if case.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    steps = itertools.count()
    training.trainer.should_stop = lambda: next(steps) >= num_steps
    with contextlib.ExitStack() as stack:
        for part, (owner, name) in parts.items():
            labeled = torch.profiler.record_function(part)(getattr(owner, name))
            stack.enter_context(mock.patch.object(owner, name, labeled))
        profiler = stack.enter_context(torch.profiler.profile(activities=activities))
        with torch.profiler.record_function("whole"):
            training.run(0.0)
    events = profiler.key_averages()
    times = {event.key: event.cpu_time_total for event in events if event.key in parts or event.key == "whole"}
    whole, forward = times.pop("whole"), times["forward pass"]
    times["backward pass"] = times.pop("forward and backward pass") - forward
    times["all else"] = whole - sum(times.values())
    rows = [[part, f"{time / whole:.1%}"] for part, time in times.items()]
    column = "self_cuda_time_total" if case.device.type == "cuda" else "self_cpu_time_total"
    operators = str(events.table(sort_by=column, row_limit=25, max_name_column_width=60))
    return f"{markdown_table(('part of a step', 'share'), rows)}\n\n{operators}"


# ----------------------------------------------------------------------------------------------------------------------
# Two ranks compared with one


def measure_ranks(case: TrainingCase, *, rounds: int, seconds: float) -> list[Row]:
    """Measure two gloo ranks, and two independent processes, against one process, each time in fresh processes.

    Each process has one thread. All use twice the case's batch, so that each rank has as many instances as the case.
    Two processes that share nothing are the upper bound of what a second process can add on the machine.
    """
    case = dataclasses.replace(case, global_batch_size=2 * case.global_batch_size)
    world_sizes = {ALONE: [1], RANKS: [2], APART: [1, 1]}
    contestants: dict[str, Contestant] = {
        name: lambda sizes=sizes: run_trainings(case, sizes, seconds)  # type: ignore[misc]
        for name, sizes in world_sizes.items()
    }
    rates = medians(contestants, rounds, case.title)
    notes = {
        RANKS: f"one thread each, batches of {case.global_batch_size}",
        APART: "they share nothing: what the machine gives",
    }
    return [
        Row(what=f"{case.title}: {name}", unit=UNIT, ours=rates[name], peer=ALONE, theirs=rates[ALONE], note=note)
        for name, note in notes.items()
    ]


def run_trainings(case: TrainingCase, world_sizes: Sequence[int], seconds: float) -> float:
    """Run one training for each world size, all at once; return the real tokens per second of all together."""
    command = [sys.executable, "-m", "benchmarks.training", case.to_json(seconds=seconds)]
    environments = [environment for world_size in world_sizes for environment in rank_environments(world_size)]
    processes = [
        subprocess.Popen(
            command,
            env=os.environ | environment | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for environment in environments
    ]
    try:
        outputs = [process.communicate(timeout=RANK_TIMEOUT_SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for environment, process, (_, errors) in zip(environments, processes, outputs):
        if process.returncode:
            which = f"rank {environment['RANK']} of {environment['WORLD_SIZE']}"
            raise BertError(f"{which} ended with {process.returncode}: {errors.strip()[-500:]}")
    return sum(float(text) for environment, (text, _) in zip(environments, outputs) if environment["RANK"] == "0")


# ----------------------------------------------------------------------------------------------------------------------
# The program


def _cases(args: argparse.Namespace, device: torch.device) -> list[TrainingCase]:
    """Return every requested combination; an instance directory serves all vocabulary sizes that can hold it."""
    cases = []
    for size, length, vocab_size, precision, dropout in itertools.product(
        args.sizes, args.lengths, args.vocab_sizes, args.precisions, args.dropouts
    ):
        instances = _instances(args, vocab_size, length)
        if instances is None:
            continue
        micro, batch = _batch_sizes(size, length, device)
        cases.append(
            TrainingCase(
                size=size,
                vocab_size=vocab_size,
                max_seq_length=length,
                global_batch_size=args.global_batch_size or batch,
                micro_batch_size=args.micro_batch_size or micro,
                precision=precision,
                dropout=dropout,
                device=device,
                instances=instances,
            )
        )
    if not cases:
        raise ConfigurationError("no instances fit any of the lengths and vocabulary sizes asked for")
    return cases


def _instances(args: argparse.Namespace, vocab_size: int, length: int) -> Manifest | None:
    if not args.instances:
        directory = working_directory("pretraining")
        return sample_instances(directory, vocab_size=vocab_size, max_seq_length=length, num_articles=args.articles)
    for path in args.instances:
        manifest = load_manifest(path, kind="instances")
        tokens = Tokenizer.from_directory(path).vocab_size
        if manifest.configuration["max_seq_length"] == length and tokens <= vocab_size:
            return manifest
    print(f"length {length}, vocabulary {vocab_size:,}: no instances given that fit; left out", file=sys.stderr)
    return None


def _batch_sizes(size: str, length: int, device: torch.device) -> tuple[int, int]:
    """Return micro-batch and global batch sizes that suit a device."""
    is_slow = device.type == "cpu" and size in ("base", "large")  # two of these take as long as ten of the small ones
    micro = max(1, (128 if device.type == "cuda" else 8 if is_slow else 32) * 128 // length)
    return micro, (2 if is_slow else 4) * micro


def _parser(*, on_gpu: bool) -> argparse.ArgumentParser:
    parser = program("pretraining", __doc__, rounds=5, quick="one short round, eager: shows that it runs")
    parser.add_argument("--sizes", nargs="+", default=["base", "large"] if on_gpu else ["tiny"], metavar="SIZE")
    parser.add_argument("--base", action="store_true", help="size base as well")
    parser.add_argument("--vocab-sizes", nargs="+", type=int, default=[30_522] if on_gpu else [8_000, 30_522])
    parser.add_argument("--lengths", nargs="+", type=int, default=[128, 512] if on_gpu else [128])
    parser.add_argument(
        "--precisions", nargs="+", default=["bfloat16"] if on_gpu else ["float32"], choices=["float32", "bfloat16"]
    )
    parser.add_argument("--dropouts", nargs="+", type=float, default=[0.1, 0.0] if on_gpu else [0.1], metavar="SHARE")
    parser.add_argument(
        "--global-batch-size", type=int, default=0, help="instances in a step (default: two or four micro)"
    )
    parser.add_argument("--micro-batch-size", type=int, default=0)
    parser.add_argument("--instances", nargs="+", type=Path, help="instance directories (default: generated ones)")
    parser.add_argument("--articles", type=int, default=1200, help="size of the generated encyclopedia")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--no-ranks", action="store_true", help="leave out two gloo ranks compared with one (CPU only)")
    parser.add_argument("--seconds", type=float, default=10.0, help="minimum length of a round")
    parser.add_argument("--profile", action="store_true", help="print where our steps spend their time, and stop")
    return parser


@errors_as_exit_codes
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"
    args = _parser(on_gpu=on_gpu).parse_args(arguments)
    keep_freed_memory()  # as `bert pretrain` does; in one process it serves both sides
    if args.quick:
        args.rounds, args.seconds, args.no_compile, args.no_ranks = 1, 0.0, True, True
    if args.base and "base" not in args.sizes:
        args.sizes.append("base")
    cases = _cases(args, device)
    if args.profile:
        for case in cases:
            print(f"{case.title}\n{profile(case)}")
        return 0
    gpu = torch.cuda.get_device_name(device) if on_gpu else ""
    head = describe_machine(("torch", "transformers", "numpy"), gpu)
    rows = [
        row
        for case in cases
        for row in measure(case, compiled=not args.no_compile, rounds=args.rounds, seconds=args.seconds)
    ]
    if not on_gpu and not args.no_ranks:
        rows += measure_ranks(cases[0], rounds=args.rounds, seconds=args.seconds)
    print(f"{head}; {torch.get_num_threads()} threads")
    for path, case in {case.instances.path: case for case in cases}.items():
        mean, padding = lengths_and_padding(case)
        print(
            f"{path.name}: {mean:.1f} tokens an instance, of {case.max_seq_length}; in batches of like lengths "
            f"{padding:.1%} of all positions are padding: our attention computes on them, our dense layers do not"
        )
    batches = {f"{case.global_batch_size} in micro-batches of {case.micro_batch_size}" for case in cases}
    print(f"batches of {' and '.join(sorted(batches))}; medians of {args.rounds} rounds\n\n{render(rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
