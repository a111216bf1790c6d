"""Draw pre-trainings beside each other: losses, and exams of their checkpoints, over the tokens that they have seen.

    python -m benchmarks.curves "with next sentences=DIR" "without=DIR" --unigram 7 --floor 70 --output curves.png
    python -m benchmarks.curves "this project=duel/ours" "transformers=duel/peer.log" --output duel.png

Thin lines are training losses, dots evaluations on held-out text and exams on made pairs. The log of a duel's peer has
no tokens and no evaluations: beside one, the training losses alone are drawn, over the updates.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import errors_as_exit_codes, program
from bert_model.training.metrics_log import read_course
from bert_pipeline.atomic import atomic_write
from bert_pipeline.errors import UsageError

LOSS, HELD_OUT_LOSS, EXAM = "train/mlm_loss", "held_out/mlm_loss", "exam/accuracy"
TOKENS = "train/tokens_seen"
METRICS_NAME = "metrics.jsonl"
MEASURED = ("train", "evaluation", "exam")
"""Events with values of their own step; a checkpoint repeats those of the last evaluation."""


def read_log(path: Path) -> dict[str, np.ndarray]:
    """Return the updates and training losses (N, 2) in the log of `benchmarks.run_mlm`. UsageError if it has none."""
    records = [json.loads(line) for line in path.read_text().splitlines() if line.startswith('{"step"')]
    losses = {record["step"]: record["loss"] for record in records}  # steps after a stop are repeated
    if not losses:
        raise UsageError(f"{path}: has no losses; expected the log of a duel's peer")
    return {LOSS: np.array(sorted(losses.items()))}


def read_series(directory: Path, *, over_updates: bool = False) -> dict[str, np.ndarray]:
    """Return the tokens seen, or the updates, and the values (N, 2) of each metric of a training.

    UsageError if it has no metrics.
    """
    path = directory / METRICS_NAME
    if not path.is_file():
        raise UsageError(f"{directory}: has no {METRICS_NAME}; expected the directory of a pre-training")
    found: dict[str, dict[int, float]] = {}
    for event in read_course(directory):
        if event["event"] in MEASURED:
            for name, value in event["metrics"].items():
                found.setdefault(name, {})[event["step"]] = value
    tokens = found.get(TOKENS)
    if not tokens:
        raise UsageError(f"{path}: has no {TOKENS}; expected at least one record of training metrics")
    # Only records of training have the tokens; between two of them every step has equally many.
    steps = np.array([0, *sorted(tokens)])
    counts = np.array([0.0, *(tokens[step] for step in steps[1:])])
    if over_updates:
        counts = steps
    return {
        name: np.array([(np.interp(step, steps, counts), values[step]) for step in sorted(values)])
        for name, values in found.items()
        if name in (LOSS, HELD_OUT_LOSS, EXAM)
    }


def draw(
    runs: Mapping[str, Mapping[str, np.ndarray]],
    *,
    unigram: float | None,
    floor: float | None,
    title: str,
    over_updates: bool = False,
) -> Any:
    """Return a figure with the losses of the runs and, if there are exams, their accuracies beside them."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    panels = [("loss of masked tokens, nats", [LOSS, HELD_OUT_LOSS], unigram, "unigram model")]
    if over_updates:
        panels = [("training loss, nats a masked token", [LOSS], unigram, "unigram model")]
    elif any(EXAM in series for series in runs.values()):
        panels.append(("right of two texts, %", [EXAM], floor, "n-gram model"))
    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(5.5 * len(panels), 3.8), layout="constrained", squeeze=False
    )
    for place, (label, names, level, level_label) in zip(axes[0], panels):
        for color, (run, series) in zip(pyplot.rcParams["axes.prop_cycle"].by_key()["color"], runs.items()):
            for name in names:
                if name not in series:
                    continue
                places, values = series[name].T
                is_training = name == LOSS and HELD_OUT_LOSS in series and not over_updates
                place.plot(
                    places / (1e3 if over_updates else 1e6),
                    values,
                    color=color,
                    alpha=0.35 if is_training else 1.0,
                    linewidth=1.0,
                    marker=None if name == LOSS else "o",
                    markersize=4,
                    label=None if is_training else run,
                )
        if level is not None:
            place.axhline(level, color="grey", linestyle="--", linewidth=1, label=level_label)
        place.set_xlabel("thousand updates" if over_updates else "million tokens")
        place.set_ylabel(label)
        place.grid(alpha=0.3)
        place.legend(fontsize=8)
    figure.suptitle(title)
    return figure


def argument_parser() -> argparse.ArgumentParser:
    """Return the parser of this program's arguments."""
    parser = program("curves", __doc__)
    parser.add_argument(
        "run", nargs="+", metavar="NAME=DIR|LOG", help="name, and directory of a pre-training or log of a peer"
    )
    parser.add_argument("--unigram", type=float, help="loss of a unigram model, drawn as a level")
    parser.add_argument("--floor", type=float, help="accuracy of the n-gram model on the pairs of the exams")
    parser.add_argument("--title", default="")
    parser.add_argument("--output", type=Path, required=True, metavar="PNG")
    return parser


@errors_as_exit_codes
def main(arguments: Sequence[str] | None = None) -> int:
    """Write the picture."""
    args = argument_parser().parse_args(arguments)
    paths = {}
    for run in args.run:
        name, separator, path = run.partition("=")
        if not separator:
            raise UsageError(f"{run}: expected NAME=DIR|LOG")
        paths[name] = Path(path)
    over_updates = any(path.is_file() for path in paths.values())
    runs = {
        name: read_log(path) if path.is_file() else read_series(path, over_updates=over_updates)
        for name, path in paths.items()
    }
    figure = draw(runs, unigram=args.unigram, floor=args.floor, title=args.title, over_updates=over_updates)
    with atomic_write(args.output) as temporary:
        figure.savefig(temporary, format="png", dpi=100, metadata={"Software": None})
    return 0


if __name__ == "__main__":
    sys.exit(main())
