"""Pre-training steps in real tokens a second, beside transformers' BertForPreTraining.

Padding is not counted as tokens. Data, shapes, precision and dropout are the same on both sides; each is measured
eager and (unless left out) compiled, and the best of each makes the RATIO. Needs torch, tokenizers, pyarrow, numpy,
safetensors and pyyaml, and transformers for the peer.
"""

import argparse
import importlib.util
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch

from benchmarks.growth import measure_growth, render_growth, series
from benchmarks.machine import describe
from benchmarks.our_training import OurTraining
from benchmarks.ranks import measure_ranks
from benchmarks.sample_instances import sample_instances
from benchmarks.table import Contestant, Row, medians, render
from benchmarks.training_case import TrainingCase
from benchmarks.working_directory import working_directory
from bert_model.model.cpu_kernels import cpu_settings
from bert_model.pretraining.data import InstanceReader, InstanceSplit, rank_slice, split_micro_batches
from bert_model.training.distributed import keep_freed_memory
from bert_model.training.throughput import peak_matmul_flops
from bert_pipeline.errors import BertError, ConfigurationError
from bert_pipeline.manifest import Manifest, load_manifest
from bert_pipeline.vocabulary.tokenizer import Tokenizer

UNIT = "real tokens/s"
PEER = "transformers"


class Training(Protocol):
    """What both sides are to the benchmark."""

    def run(self, seconds: float) -> float:
        """Train for at least so long; returns real tokens a second."""
        ...


def measure(case: TrainingCase, *, compiled: bool, rounds: int, seconds: float) -> list[Row]:
    """Measure one case: a row beside the peer's best, and one beside its batches in reading order."""
    ours: dict[str, OurTraining] = {"ours": OurTraining(case)}
    peers: dict[str, Training] = {}
    if compiled:
        ours["ours, compiled"] = OurTraining(case, compiled=True)
    if importlib.util.find_spec(PEER):
        from benchmarks.transformers_training import TransformersTraining

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
    with cpu_settings(onednn=ours[best].onednn):
        rate = peak_matmul_flops(case.device, case.precision)
    utilization = rates[best] * ours[best].flops_per_token() / rate
    note = f"{best.removeprefix('ours').strip(', ') or 'eager'}; {utilization:.0%} of the matrix-product rate "
    note += f"({rate / 1e9:,.0f} GFLOP/s); {ours[best].waiting_share:.2%} waiting for data"
    if case.device.type == "cpu":
        shapes = ", ".join(f"{outputs:,} × {inputs:,}" for outputs, inputs in ours[best].onednn)
        note += f"; on oneDNN: {shapes or 'no layer'}"
    found = sorted((name for name in rates if name in peers), key=rates.__getitem__, reverse=True)
    if not found:
        return [Row(what=case.title, unit=UNIT, ours=rates[best], peer=PEER, note=note)]
    notes = [note, *[""] * len(found)]
    return [
        Row(what=case.title, unit=UNIT, ours=rates[best], peer=peer, theirs=rates[peer], note=notes[index])
        for index, peer in enumerate(found)
    ]


def lengths_and_padding(case: TrainingCase, num_batches: int = 40) -> tuple[float, float]:
    """Return the mean tokens of an instance, and the share of padding in batches of like lengths, of all positions."""
    config = case.pretraining_config(compiled=False)
    split = InstanceSplit(case.instances.path, "train")
    reader = InstanceReader(split, seed=config.seed, groups_per_window=config.shuffle_row_groups)
    instances = tokens = positions = 0
    for number in range(num_batches):
        samples = reader.take(number * case.global_batch_size, case.global_batch_size)
        for part in split_micro_batches(rank_slice(samples, rank=0, world_size=1), case.micro_batch_size):
            lengths = part.columns.lengths
            instances += len(lengths)
            tokens += int(lengths.sum())
            positions += len(lengths) * int(lengths.max())
    return tokens / instances, 1 - tokens / positions


def profile(case: TrainingCase) -> str:
    """Return where our steps spend their time, by operator."""
    training = OurTraining(case)
    training.run(0.0)
    activities = [torch.profiler.ProfilerActivity.CPU]
    if case.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profiler:
        training.run(0.0)
    column = "self_cuda_time_total" if case.device.type == "cuda" else "self_cpu_time_total"
    return profiler.key_averages().table(sort_by=column, row_limit=25, max_name_column_width=60)


def _cases(args: argparse.Namespace, device: torch.device) -> list[TrainingCase]:
    """Every combination that was asked for; a given instance directory serves the vocabularies that can hold it."""
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


def _growth(args: argparse.Namespace, case: TrainingCase) -> str:
    rate = peak_matmul_flops(case.device, case.precision)
    rows = [
        row
        for cases in series(case, lambda length: _instances(args, case.vocab_size, length), (128, 256, 512))
        for row in measure_growth(cases, args.seconds, rate)
    ]
    return render_growth(rows)


def _batch_sizes(size: str, length: int, device: torch.device) -> tuple[int, int]:
    """(micro-batch, global batch) that suit a device."""
    if device.type == "cuda":
        micro = max(1, 128 * 128 // length)
        return micro, 4 * micro
    if size in ("base", "large"):  # two of these take as long as ten of the small ones
        micro = max(1, 8 * 128 // length)
        return micro, 2 * micro
    micro = max(1, 32 * 128 // length)
    return micro, 4 * micro


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pretraining", description=__doc__)
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
    parser.add_argument("--articles", type=int, default=1200, help="size of the generated encyclopaedia")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--no-growth", action="store_true", help="leave out how a step grows with batch, length, size")
    parser.add_argument("--no-ranks", action="store_true", help="leave out two gloo ranks beside one (CPU only)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds; medians are printed")
    parser.add_argument("--seconds", type=float, default=10.0, help="least length of a round")
    parser.add_argument("--quick", action="store_true", help="one short round, eager: shows that it runs")
    parser.add_argument("--profile", action="store_true", help="print where our steps spend their time, and stop")
    args = parser.parse_args(arguments)
    keep_freed_memory()  # as `bert pretrain` does; in one process it serves both sides
    if args.quick:
        args.rounds, args.seconds, args.no_compile, args.no_growth, args.no_ranks = 1, 0.0, True, True, True
    if args.base and "base" not in args.sizes:
        args.sizes.append("base")
    try:
        cases = _cases(args, device)
        if args.profile:
            for case in cases:
                print(f"{case.title}\n{profile(case)}")
            return 0
        gpu = torch.cuda.get_device_name(device) if on_gpu else ""
        head = describe(("torch", "transformers", "numpy"), gpu)
        rows = [
            row
            for case in cases
            for row in measure(case, compiled=not args.no_compile, rounds=args.rounds, seconds=args.seconds)
        ]
        if not on_gpu and not args.no_ranks:
            rows += measure_ranks(cases[0], rounds=args.rounds, seconds=args.seconds)
        growth = "" if args.no_growth else _growth(args, cases[0])
    except BertError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"{head}; {torch.get_num_threads()} threads")
    for path, case in {case.instances.path: case for case in cases}.items():
        mean, padding = lengths_and_padding(case)
        print(
            f"{path.name}: {mean:.1f} tokens an instance, of {case.max_seq_length}; in batches of like lengths "
            f"{padding:.1%} of all positions are padding: our attention computes on them, our dense layers do not"
        )
    batches = {f"{case.global_batch_size} in micro-batches of {case.micro_batch_size}" for case in cases}
    print(f"batches of {' and '.join(sorted(batches))}; medians of {args.rounds} rounds\n\n{render(rows)}")
    if growth:
        what = f"{cases[0].title}, batch {cases[0].global_batch_size}"
        print(f"\nGrowth of a step: {what}, but for what is named\n\n{growth}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
