"""What a published model gets wrong: results.json's "analysis", results.md, and the page of the worst errors.

The page quotes the data set, which may not be redistributed with the model; it is written next to the model directory.
"""

import dataclasses
import functools
import html
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_model.finetuning.caveats import describe, read_caveats
from bert_model.finetuning.dataset import EncodedSet
from bert_model.finetuning.decode import Evaluation, confidences
from bert_model.metrics.analysis import (
    calibration_error,
    class_scores,
    confusion_matrix,
    entity_scores,
    label_scores,
)
from bert_model.metrics.score import score
from bert_model.metrics.uncertainty import CONFIDENCE, RESAMPLES, bootstrap_interval, unit_statistics
from bert_model.tables import format_table
from bert_pipeline.tasks.catalogue import Task
from bert_pipeline.tasks.example import ChoiceExample, SpanExample, TaggedExample, TextExample

MAX_ERRORS = 100
"""Errors on the page."""
ANSWER, NO_ANSWER = "answer", "no answer"


def errors_path(output: Path) -> Path:
    """Return the path of the page that belongs to a model directory."""
    return output.with_name(f"{output.name}.errors.html")


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """One prediction: of an example, or of a word of a tagged example."""

    example: Any
    gold: str
    predicted: str
    confidence: float
    """Probability of the prediction; for a regression the distance from gold."""
    is_correct: bool
    word: int | None = None


def decisions(
    task: Task, examples: Sequence[Any], encoded: EncodedSet, logits: np.ndarray, evaluation: Evaluation
) -> list[Decision]:
    """Return every prediction for labeled examples with its confidence."""
    # A decision is right by the task's own metric: equal labels, or for spans the official exact match.
    probabilities = confidences(task, examples, encoded, logits, evaluation)
    found: list[Decision] = []
    for example in examples:
        predicted: Any = evaluation.predictions[example.example_id]
        confidence = probabilities.get(example.example_id, np.zeros(1))
        if isinstance(example, TaggedExample):
            pairs = zip(example.tags or (), predicted, confidence.tolist(), strict=True)
            found += [Decision(example, a, b, c, a == b, word) for word, (a, b, c) in enumerate(pairs)]
        elif isinstance(example, SpanExample):
            is_correct = score(task, [example], evaluation.predictions)["exact_match"] == 100.0
            gold = " / ".join(dict.fromkeys(answer.text for answer in example.answers))
            found.append(Decision(example, gold, predicted, float(confidence[0]), is_correct))
        elif task.kind == "multilabel":
            # Right only if the whole set of labels is.
            gold, chosen = ", ".join(example.label), ", ".join(predicted)
            found.append(Decision(example, gold, chosen, float(confidence[0]), set(example.label) == set(predicted)))
        elif task.kind == "regression":
            # No prediction of a number is simply right: all are ranked by their distance.
            error = abs(float(example.label) - predicted)
            found.append(Decision(example, f"{example.label:g}", f"{predicted:.3g}", error, False))
        else:
            is_correct = example.label == predicted
            found.append(Decision(example, str(example.label), str(predicted), float(confidence[0]), is_correct))
    return found


def analyze(task: Task, examples: Sequence[Any], evaluation: Evaluation, found: Sequence[Decision]) -> dict[str, Any]:
    """Return the analysis of a split: interval of the main metric, calibration, classes and confusion."""
    low, high = bootstrap_interval(unit_statistics(task, examples, evaluation.predictions))
    document: dict[str, Any] = {
        "metric": task.main_metric,
        "score": round(evaluation.scores[task.main_metric], 6),
        "interval": [round(low, 4), round(high, 4)],
        "confidence": CONFIDENCE,
        "resamples": RESAMPLES,
    }

    # A regression has no probabilities, so nothing to calibrate.
    if task.kind != "regression":
        error = calibration_error([d.confidence for d in found], [d.is_correct for d in found])
        document["calibration_error"] = round(error, 4)

    # Classes and confusion: by label, by answered or not (SQuAD 2.0), or by type of entity.
    gold, predicted = [d.gold for d in found], [d.predicted for d in found]
    labels = list(task.labels)
    if task.kind == "multilabel":
        chosen: list[Any] = [evaluation.predictions[example.example_id] for example in examples]
        document["classes"] = label_scores([example.label for example in examples], chosen, labels)
        return document
    if task.kind == "span" and task.has_impossible:
        gold, predicted = ([ANSWER if text else NO_ANSWER for text in texts] for texts in (gold, predicted))
        labels = [ANSWER, NO_ANSWER]
    elif task.kind not in ("classification", "tagging"):
        return document

    # Tagging counts words in the confusion but entities in the classes, as conlleval does.
    confusion = confusion_matrix(gold, predicted, labels)
    if task.kind == "tagging":
        tags: list[Any] = [evaluation.predictions[example.example_id] for example in examples]
        document["classes"] = entity_scores([example.tags for example in examples], tags)
    else:
        document["classes"] = class_scores(confusion, labels)
    document["confusion"] = {"labels": labels, "rows": confusion.tolist()}
    return document


# --- results.md ---

_markdown = functools.partial(format_table, style="pipe", numbers=range(1, sys.maxsize))


def results_table(results: Mapping[str, Any]) -> str:
    """Return the content of results.md from that of results.json."""
    head, rows = ["metric", "N", "mean ± sd", "best", "seeds", "baseline"], []
    for key, entry in results["metrics"].items():
        baseline = "" if entry["majority"] is None else f"{entry['majority']:.1f}"
        mean = f"{entry['mean']:.1f} ± {entry['sd']:.1f}"
        rows.append([key, f"{entry['n']:,}", mean, f"{entry['best']:.1f}", str(len(entry["values"])), baseline])

    # After the means over seeds, the details of the one published model.
    parts = [f"# {results['title']}", _markdown(head, rows), f"Baseline: {results['baseline']}."]
    parts.append(f"Known about this score: {describe(read_caveats(results['known']))}.")
    parts += [results["note"]] if "note" in results else []
    for split, analysis in results["analysis"].items():
        low, high = analysis["interval"]
        line = f"{analysis['metric']} {analysis['score']:.1f}, {CONFIDENCE:.0%} interval {low:.1f} to {high:.1f}"
        if "calibration_error" in analysis:
            line += f"; expected calibration error {analysis['calibration_error']:.1f}"
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


def _cell(value: Any) -> str:
    return f"{value:.1f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


# --- errors.html ---

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
body {{ font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; color: #222 }}
table {{ border-collapse: collapse; width: 100% }}
th, td {{ border-bottom: 1px solid #ddd; padding: .5rem; text-align: left; vertical-align: top }}
td.number {{ text-align: right; font-variant-numeric: tabular-nums }}
td.text {{ white-space: pre-wrap; overflow-wrap: anywhere }}
mark {{ background: #ffd9a8 }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{summary}</p>
<table>
<thead><tr><th>id</th><th>{measure}</th><th>gold</th><th>predicted</th><th>example</th></tr></thead>
<tbody>
{rows}
</tbody>
</table>
</body>
</html>
"""


def errors_page(task: Task, split: str, analysis: Mapping[str, Any], found: Sequence[Decision]) -> str:
    """Return one self-contained HTML page with the wrong predictions of highest confidence, or largest distance."""
    wrong = [decision for decision in found if not decision.is_correct]
    shown = sorted(wrong, key=lambda decision: -decision.confidence)[:MAX_ERRORS]
    low, high = analysis["interval"]
    what = "predictions" if task.kind == "regression" else "wrong predictions"
    summary = (
        f"{analysis['metric']} {analysis['score']:.1f} ({CONFIDENCE:.0%} interval {low:.1f} to {high:.1f}) over "
        f"{len(found):,} predictions of {split}; the {len(shown):,} worst of {len(wrong):,} {what}."
    )
    return PAGE.format(
        title=html.escape(f"{task.title}: errors on {split}"),
        measure="distance" if task.kind == "regression" else "confidence",
        summary=html.escape(summary),
        rows="\n".join(map(_row, shown)),
    )


def _row(decision: Decision) -> str:
    cells = (html.escape(text) or "(none)" for text in (decision.gold, decision.predicted))
    return (
        f"<tr><td>{html.escape(decision.example.example_id)}</td>"
        f'<td class="number">{decision.confidence:.3f}</td><td>{"</td><td>".join(cells)}</td>'
        f'<td class="text">{"".join(_text(decision))}</td></tr>'
    )


def _text(decision: Decision) -> Iterator[str]:
    """Yield the example as escaped HTML, with the wrong word or ending marked."""
    # Only the example is marked up; gold and prediction have columns of their own.
    example = decision.example
    if isinstance(example, TaggedExample):
        words = [html.escape(word) for word in example.words]
        if decision.word is not None:
            words[decision.word] = f"<mark>{words[decision.word]}</mark>"
        yield " ".join(words)
    elif isinstance(example, SpanExample):
        yield f"<b>{html.escape(example.question)}</b>\n{html.escape(example.context)}"
    elif isinstance(example, ChoiceExample):
        yield html.escape(example.context)
        # The page lists wrong predictions, so the marked ending is a wrong one.
        for number, ending in enumerate(example.endings):
            text = f"{number}: {html.escape(ending)}"
            yield f"\n<mark>{text}</mark>" if str(number) == decision.predicted else f"\n{text}"
    else:
        assert isinstance(example, TextExample), type(example)
        yield html.escape(example.text_a)
        yield "" if example.text_b is None else f"\n{html.escape(example.text_b)}"
