"""Effect of each of our kernels on a training step on this processor.

Steps of all variants alternate in one process. A ratio is the median, over the turns, of a variant's rate over that of
the first variant in the same turn: torch's own products, our dropout and unpadded rows. Above 1 is faster.
"""

import contextlib
import dataclasses
import io
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.harness import describe_machine, errors_as_exit_codes, markdown_table, program, working_directory
from benchmarks.inputs import sample_instances
from benchmarks.training import OurTraining, TrainingCase
from bert_model.model.cpu_kernels import Shape, cpu_settings, fast_dropout, onednn_choice, processor
from bert_model.pretraining.batch import Batch, collate
from bert_model.training.distributed import keep_freed_memory

HEADER = ("training", "tokens/s", "all on oneDNN", "vocabulary on oneDNN", "torch's dropout", "padded", "chosen")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to compute a step."""

    onednn: Sequence[Shape] = ()
    dropout: Callable[[Tensor, float, bool], Tensor] = fast_dropout
    padded: bool = False


def variants_of(case: TrainingCase) -> list[Variant]:
    """Return the variants in the order of the table; the others are compared with the first."""
    config = case.model_config()
    hidden, inner, vocabulary = config.hidden_size, config.intermediate_size, (config.vocab_size, config.hidden_size)
    layers = [(hidden, hidden), (inner, hidden), (hidden, inner)]
    return [
        Variant(),
        Variant(onednn=[*layers, vocabulary]),
        Variant(onednn=[vocabulary]),
        Variant(dropout=functional.dropout),
        Variant(padded=True),
    ]


def measure(case: TrainingCase, num_turns: int) -> tuple[float, list[float]]:
    """Return the first variant's median rate in real tokens per second, and every variant's ratio to it."""
    variants = variants_of(case)
    training = OurTraining(case)
    rates: list[list[float]] = [[] for _ in variants]
    settings = contextlib.ExitStack()
    current = Variant()
    last = [time.perf_counter(), 0.0]
    steps = 0

    def collated(*samples: Any, **named: Any) -> Batch:
        batch = collate(*samples, **named)
        return batch._replace(token_indices=None) if current.padded else batch

    def after_step(_: int) -> None:
        """Record the rate of the step that ended, and switch to the next variant."""
        nonlocal current, steps
        now, tokens = time.perf_counter(), float(training.trainer.tokens_seen)
        rates[steps % len(variants)].append((tokens - last[1]) / (now - last[0]))
        steps += 1
        current = variants[steps % len(variants)]
        settings.close()
        settings.enter_context(cpu_settings(onednn=current.onednn))
        for module in ("bert", "cpu_kernels"):
            settings.enter_context(mock.patch(f"bert_model.model.{module}.fast_dropout", current.dropout))
        last[:] = time.perf_counter(), tokens

    training.trainer.after_step = after_step
    training.trainer.should_stop = lambda: steps >= len(variants) * (num_turns + 1)
    with (
        settings,
        mock.patch("bert_model.pretraining.batch.collate", collated),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        training.trainer.run(0)
    turns = list(zip(*(found[1:] for found in rates)))  # the first turn warms up
    ratios = [statistics.median(turn[i] / turn[0] for turn in turns) for i in range(len(variants))]
    return statistics.median(rates[0][1:]), ratios


@errors_as_exit_codes
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table."""
    parser = program("kernels", __doc__)
    parser.add_argument("--sizes", nargs="+", default=["tiny", "base"], metavar="SIZE")
    parser.add_argument("--vocab-sizes", nargs="+", type=int, default=[30_522])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--turns", type=int, default=10, help="steps of each variant (default: %(default)s)")
    parser.add_argument("--articles", type=int, default=1200, help="size of the generated encyclopedia")
    args = parser.parse_args(arguments)
    torch.set_num_threads(args.threads)
    keep_freed_memory()
    directory = working_directory("pretraining")
    rows = []
    for size in args.sizes:
        for vocab_size in args.vocab_sizes:
            micro = 8 if size in ("base", "large") else 32
            case = TrainingCase(
                size=size,
                vocab_size=vocab_size,
                max_seq_length=128,
                global_batch_size=micro * 2,
                micro_batch_size=micro,
                precision="float32",
                dropout=0.1,
                device=torch.device("cpu"),
                instances=sample_instances(
                    directory, vocab_size=vocab_size, max_seq_length=128, num_articles=args.articles
                ),
            )
            shapes = onednn_choice(case.model_config())
            chosen = ", ".join(f"{outputs:,} × {inputs:,}" for outputs, inputs in shapes) or "none"
            rate, ratios = measure(case, args.turns)
            cells = [f"{ratio:.2f}" for ratio in ratios[1:]]
            rows.append([f"{size}, vocabulary {vocab_size:,}", f"{rate:,.0f}", *cells, chosen])
    print(describe_machine(("torch",)))
    print(f"{processor()}; threads: {args.threads}; medians of {args.turns} turns\n")
    print(markdown_table(HEADER, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
