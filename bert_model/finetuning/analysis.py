"""What a published model gets wrong: results.json's "analysis", results.md, and the page of the worst errors.

The page quotes the data set, which may not be redistributed with the model; it is written next to the model directory.
"""

import functools
import html
import string
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_model.finetuning.caveats import describe, read_caveats
from bert_model.kinds import Kind
from bert_model.kinds.base import Decision, Evaluation
from bert_model.metrics.analysis import calibration_error
from bert_model.metrics.uncertainty import CONFIDENCE, RESAMPLES, bootstrap_interval
from bert_model.tables import format_table

MAX_ERRORS = 100
"""Errors on the page."""


def errors_path(output: Path) -> Path:
    """Return the path of the page that belongs to a model directory."""
    return output.with_name(f"{output.name}.errors.html")


def analyze(kind: Kind, examples: Sequence[Any], evaluation: Evaluation, decided: Sequence[Decision]) -> dict[str, Any]:
    """Return the analysis of a split: interval of the main metric, calibration, classes and confusion."""
    task = kind.task
    low, high = bootstrap_interval(kind.statistics(examples, evaluation.predictions))
    document: dict[str, Any] = {
        "metric": task.main_metric,
        "score": round(evaluation.scores[task.main_metric], 6),
        "interval": [round(low, 4), round(high, 4)],
        "confidence": CONFIDENCE,
        "resamples": RESAMPLES,
    }
    if kind.measure == "confidence":
        document["calibration_error"] = error_of_confidence(decided)
    return document | kind.tables(examples, evaluation, decided)


def error_of_confidence(decided: Sequence[Decision]) -> float:
    """Return the expected calibration error of some decisions."""
    return round(calibration_error([d.confidence for d in decided], [d.is_correct for d in decided]), 4)


# --- results.md ---

_markdown = functools.partial(format_table, style="pipe", numbers=range(1, sys.maxsize))


def results_table(results: Mapping[str, Any]) -> str:
    """Return the content of results.md from that of results.json."""
    # After the means over seeds, the details of the one published model.
    parts = [f"# {results['title']}", scores_table(results, "pipe"), f"Baseline: {results['baseline']}."]
    parts.append(f"Known about this score: {describe(read_caveats(results['known']))}.")
    parts += [results["note"]] if "note" in results else []
    parts += [f"Published: {kept}."] if (kept := kept_epoch(results["winner"])) else []
    for split, analysis in results["analysis"].items():
        low, high = analysis["interval"]
        line = f"{analysis['metric']} {analysis['score']:.1f}, {CONFIDENCE:.0%} interval {low:.1f} to {high:.1f}"
        if "calibration_error" in analysis:
            line += f"; expected calibration error {analysis['calibration_error']:.1f}"
        if "uncalibrated_error" in analysis:
            line += f" ({analysis['uncalibrated_error']:.1f} without the temperature)"
        parts += [f"## {split}, published model", f"{line}."]
        # Tables of what the kind of task has.
        if "classes" in analysis:
            keys = ("label", "n", "predicted", "precision", "recall", "f1")
            classes = [[_cell(entry[key]) for key in keys] for entry in analysis["classes"]]
            parts.append(_markdown(["class", "N", "predicted", "precision", "recall", "F1"], classes))
        if "confusion" in analysis:
            labels = analysis["confusion"]["labels"]
            counts = zip(labels, analysis["confusion"]["rows"])
            confusion = [[label, *(f"{count:,}" for count in row)] for label, row in counts]
            parts.append(_markdown(["gold \\ predicted", *labels], confusion))
    return "\n\n".join(parts) + "\n"


def scores_table(results: Mapping[str, Any], style: str) -> str:
    """Return the means over seeds as a table in a style of tabulate."""
    head, rows = ["metric", "N", "mean ± sd", "best", "seeds", "baseline"], []
    for key, entry in results["metrics"].items():
        baseline = "" if entry["majority"] is None else f"{entry['majority']:.1f}"
        mean = f"{entry['mean']:.1f} ± {entry['sd']:.1f}"
        rows.append([key, f"{entry['n']:,}", mean, f"{entry['best']:.1f}", str(len(entry["values"])), baseline])
    return format_table(head, rows, style, numbers=range(1, len(head)))


def kept_epoch(winner: Mapping[str, Any]) -> str:
    """Return in words which epoch's weights a training has kept, and whether it was stopped; "" if none was scored."""
    if not (scores := winner.get("epoch_scores")):
        return ""
    shown = ", ".join(f"{score:.1f}" for _, score in scores)
    stopped = f"; stopped after {scores[-1][0]:g}" if scores[-1][0] < winner["epochs"] - 1e-3 else ""
    return f"epoch {winner['epoch']:g} of {winner['epochs']:g} (dev scores by epoch: {shown}{stopped})"


def _cell(value: Any) -> str:
    return f"{value:.1f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


# --- errors.html ---

PAGE = Path(__file__).with_name("errors.html")


def errors_page(kind: Kind, split: str, analysis: Mapping[str, Any], decided: Sequence[Decision]) -> str:
    """Return one self-contained HTML page with the wrong predictions of highest confidence, or largest distance."""
    wrong = [decision for decision in decided if not decision.is_correct]
    shown = sorted(wrong, key=lambda decision: -decision.confidence)[:MAX_ERRORS]
    low, high = analysis["interval"]
    what = "wrong predictions" if kind.measure == "confidence" else "predictions"
    summary = (
        f"{analysis['metric']} {analysis['score']:.1f} ({CONFIDENCE:.0%} interval {low:.1f} to {high:.1f}) over "
        f"{len(decided):,} predictions of {split}; the {len(shown):,} worst of {len(wrong):,} {what}."
    )
    return string.Template(PAGE.read_text(encoding="utf-8")).substitute(
        title=html.escape(f"{kind.task.title}: errors on {split}"),
        measure=kind.measure,
        summary=html.escape(summary),
        rows="\n".join(_row(decision, kind.page_text(decision)) for decision in shown),
    )


def _row(decision: Decision, text: str) -> str:
    cells = (html.escape(text) or "(none)" for text in (decision.gold, decision.predicted))
    return (
        f"<tr><td>{html.escape(decision.example.example_id)}</td>"
        f'<td class="number">{decision.confidence:.3f}</td><td>{"</td><td>".join(cells)}</td>'
        f'<td class="text">{text}</td></tr>'
    )
