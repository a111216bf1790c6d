"""The report of a dump: results of all tasks as CSV, text and Markdown, the exam of the model, and the plots."""

import contextlib
import csv
import dataclasses
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_model.finetuning.caveats import kinds_of
from bert_model.finetuning.results import LOGS, WITH_CONTEXT
from bert_model.registry.versions import TaskScore, read_results
from bert_model.tables import format_table
from bert_model.training.mlflow_sync import Tracker
from bert_model.zero_shot.result import EXAM_NAME, ExamResult, exam_table
from bert_pipeline.errors import BertError, UnavailableError
from bert_pipeline.manifest import Manifest, input_of, load_manifest, publishing
from workflows.lib.metadata import flat_numbers, score_bars, training_curves
from workflows.lib.resources import BertHome, dump_label, sample_seed

REPORT_NAME = "report.md"
TABLE_NAME = "results.csv"
TEXT_NAME = "results.txt"
DATA_NAME = "results.json"
TRAINING_PLOT = "pretraining.png"
SCORES_PLOT = "scores.png"

COLUMNS = {
    "task": "task",
    "metric": "metric",
    "n": "N",
    "score": "pre-trained",
    "sd": "±",
    "random": "random",
    "random_longer": "random, longer",
    "majority": "majority",
    "paper": "paper",
    "note": "",
}
"""Key of a row -> heading. `random, longer`: random weights trained for a multiple of the steps."""
BARS = {
    "score": "pre-trained",
    "random": "random weights",
    "random_longer": "random weights, longer",
    "majority": "majority",
}
EXAM_HEADING = "Exam without fine-tuning, on the minimal pairs for reporting:"
RANDOM_LONGER = re.compile(r"random_x(\d+)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Results:
    """Results of one dump's model on all tasks."""

    dump: str
    rows: tuple[dict[str, Any], ...]
    """One for each task that was run: those of the paper in its order, then own ones."""
    skipped: dict[str, str]
    """Task -> why it was not run."""
    inputs: dict[str, dict[str, str]]
    """Identities of the manifests that the results are from."""
    exam: ExamResult | None = None
    """The model's exam on the minimal pairs for reporting; None if it was not examined."""

    @property
    def generated(self) -> bool:
        """Whether the dump is a generated sample."""
        return sample_seed(self.dump) is not None

    @property
    def at_chance(self) -> tuple[str, ...]:
        """Tasks whose score is not clearly above the majority baseline."""
        return tuple(row["task"] for row in self.rows if row["at_chance"])

    @property
    def headings(self) -> dict[str, str]:
        """The columns of the table that are not empty, with the multiple of the longer training."""
        multiples = sorted({row["random_multiple"] for row in self.rows if row["random_multiple"]})
        longer = {"random_longer": f"random ×{'/'.join(map(str, multiples))}"} if multiples else {}
        named = (COLUMNS | longer).items()
        return {key: head for key, head in named if any(row[key] not in (None, "") for row in self.rows)}

    def shown_rows(self) -> list[dict[str, Any]]:
        """Return the rows by heading, rounded to one decimal."""
        columns = {head or key: key for key, head in self.headings.items()}
        rows = [{head: row[key] for head, key in columns.items()} for row in self.rows]
        return [{k: round(v, 1) if isinstance(v, float) else v for k, v in row.items()} for row in rows]

    def exam_scores(self) -> dict[str, float]:
        """Return the mean accuracy in the exam, and that of the n-gram model; {} without an exam."""
        scores = {"accuracy": self.exam.mean, "ngram_baseline": self.exam.ngram_baseline_mean} if self.exam else {}
        return {key: value for key, value in scores.items() if value is not None}

    def averages(self) -> dict[str, float]:
        """Return the mean of each score over the tasks that have all of them."""
        numbers = [flat_numbers(row) for row in self.rows]
        keys = [key for key in BARS if any(key in row for row in numbers)]
        # The same tasks in every average, or they would not compare.
        complete = [row for row in numbers if all(key in row for key in keys)]
        return {key: sum(row[key] for row in complete) / len(complete) for key in keys if complete}


def collect_results(home: BertHome, dump: str, model: Manifest) -> Results:
    """Read the exam of a pre-trained model and the results.json of every task.

    A task without results of this model is skipped with its reason.
    """
    rows: list[dict[str, Any]] = []
    skipped: dict[str, str] = {}
    inputs: dict[str, dict[str, str]] = {}
    for task in home.tasks_of(dump):
        directory = home.finetuning(dump, task)
        reason = ""
        with contextlib.suppress(BertError):
            reason = str(load_manifest(home.task_data(dump, task)).counts.get("reason", ""))  # of a skipped task
        # Without data, or not fine-tuned so far: the report names which.
        if reason or not (directory / "manifest.json").is_file():
            skipped[task] = reason or "not fine-tuned on this dump yet"
            continue
        manifest = load_manifest(directory, kind="finetuned_model")
        results = read_results(manifest)
        if results.get("model_sha256") != model.sha256:
            skipped[task] = "not fine-tuned on this pre-trained model yet"
            continue
        inputs[task] = input_of(manifest)
        rows.append(result_row(results, generated=sample_seed(dump) is not None))
    path = model.path / EXAM_NAME
    exam = ExamResult.from_json(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None
    return Results(dump=dump, rows=tuple(rows), skipped=skipped, inputs=inputs, exam=exam)


def result_row(results: Mapping[str, Any], *, generated: bool) -> dict[str, Any]:
    """Return one row of the table from the results of a task; the paper's score is left out for a generated sample."""
    score = TaskScore.from_results(results, generated=generated)
    # The multiple of the longer training is part of its key, such as random_x4.
    matches = filter(None, map(RANDOM_LONGER.fullmatch, score.random))
    longer, multiple = next(((match[0], int(match[1])) for match in matches), ("", None))
    with_context = results["metrics"].get(score.metric + WITH_CONTEXT)
    notes = [
        *([f"in documents {with_context['mean']:.1f}"] if with_context else []),
        *kinds_of(score.known),
        *(["degenerate"] if score.degenerate else []),
    ]
    return {
        "task": score.task,
        "metric": score.metric.partition("/")[2],
        "n": score.num_examples,
        "score": score.mean,
        "sd": score.sd,
        "random": score.random.get("random"),
        "random_longer": score.random.get(longer),
        "majority": score.majority,
        "paper": score.paper,
        "note": ", ".join(notes),
        "at_chance": score.at_chance,
        "seeds": score.num_seeds,
        "random_multiple": multiple,
    }


def write_report(results: Results, events: Sequence[Mapping[str, Any]], model: Manifest, directory: Path) -> Manifest:
    """Publish the table in all formats and the plots; without tasks there is the exam, and the plot of the training."""
    inputs = {"pretrained_model": input_of(model), **results.inputs}
    with publishing(directory, kind="report", configuration={"dump": results.dump}, inputs=inputs) as draft:
        pictures = {TRAINING_PLOT: training_curves(events, f"pre-training on {dump_label(results.dump)}")}
        if results.rows:
            pictures[SCORES_PLOT] = score_bars(list(results.rows), BARS, f"scores on {dump_label(results.dump)}")
        for name, picture in pictures.items():
            (draft.path / name).write_bytes(picture)
        (draft.path / TABLE_NAME).write_text(csv_table(results), encoding="utf-8")
        (draft.path / TEXT_NAME).write_text(text_table(results), encoding="utf-8")
        (draft.path / REPORT_NAME).write_text(markdown_report(results), encoding="utf-8")

        # The same rows for programs, such as the check `report_intact`.
        document = {
            "dump": results.dump,
            "rows": list(results.rows),
            "skipped": results.skipped,
            "exam": results.exam_scores(),
        }
        (draft.path / DATA_NAME).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        draft.rows[TABLE_NAME] = len(results.rows)
        draft.counts = {
            "tasks": len(results.rows),
            "skipped": len(results.skipped),
            "at_chance": len(results.at_chance),
            "averages": {key: round(value, 4) for key, value in results.averages().items()},
        }
    return load_manifest(directory, kind="report")


def log_report(results: Results, report: Manifest, *, dagster_run_id: str) -> str:
    """Log a report as an MLflow run of its own, where the scores of several dumps compare; return the run's id.

    UnavailableError if MLflow does not have all of it; the same report, logged again, continues the run.
    """
    generated = json.dumps(results.generated)
    tracker = Tracker(
        report.path.parent / LOGS / f"report-{report.sha256[:16]}",
        experiment="reports",
        run_name="report",
        tags={"dump": results.dump, "generated_sample": generated, "dagster_run_id": dagster_run_id},
        note=f"The model that was pre-trained on {dump_label(results.dump)}: scores of {len(results.rows)} tasks"
        f"{' and an exam' if results.exam else ''}; the tables are in the artifact `{REPORT_NAME}`.",
    )
    metrics = {f"{row['task']}/{row['metric']}": float(row["score"]) for row in results.rows}
    metrics |= {f"average/{key}": value for key, value in results.averages().items()}
    metrics |= {f"exam/{key}": value for key, value in results.exam_scores().items()}
    tracker.record("report", 0, metrics)
    tracker.log_artifact(report.path)
    tracker.close()
    if tracker.failure or tracker.run_id is None:
        raise UnavailableError(f"{report.path}: MLflow lacks part of it ({tracker.failure}); materialize report again")
    return tracker.run_id


def csv_table(results: Results) -> str:
    """Return the table as CSV, not rounded."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, [*COLUMNS, "seeds", "random_multiple", "at_chance"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(results.rows)
    return stream.getvalue()


def text_table(results: Results) -> str:
    """Return the table for a terminal, followed by averages, tasks at chance, skipped tasks and the exam."""
    lines = [_table(results, "simple")] if results.rows else []
    exam = f"\n{EXAM_HEADING}\n{exam_table(results.exam)}\n" if results.exam else ""
    return "\n".join([dump_label(results.dump), *lines, *_notes(results), exam])


def markdown_report(results: Results) -> str:
    """Return the report as Markdown that refers to the plots in its directory."""
    parts = [f"# {dump_label(results.dump)}"]
    if results.rows:
        parts += [
            "Scores are means over seeds on the dev set, on the scale of 0 to 100. Both starts got the same examples, "
            "steps and search; *random ×N* trained for N times the steps.",
            _table(results, "pipe"),
        ]
    parts.append("\n".join(f"- {note}" for note in _notes(results)))
    if results.exam:
        parts.append(f"{EXAM_HEADING}\n\n```text\n{exam_table(results.exam)}\n```")

    # The pictures are named by file, so that the directory can be moved as a whole.
    if results.rows:
        parts.append(f"![scores]({SCORES_PLOT})")
    parts.append(f"![pre-training]({TRAINING_PLOT})")
    return "\n\n".join([*filter(None, parts), ""])


def _table(results: Results, style: str) -> str:
    """Return the table as text; task, metric and note are aligned to the left."""
    headings = results.headings
    rows = [["" if cell is None else str(cell) for cell in row.values()] for row in results.shown_rows()]
    numbers = [index for index, key in enumerate(headings) if key not in ("task", "metric", "note")]
    return format_table(headings.values(), rows, style, numbers=numbers)


def _notes(results: Results) -> Iterator[str]:
    averages = results.averages()
    if "random" in averages:
        gain = averages["score"] - averages["random"]
        parts = ", ".join(f"{BARS[key]} {value:.1f}" for key, value in averages.items())
        yield f"average: {parts}; pre-training gives {gain:+.1f} points over random weights"
    if results.at_chance:
        tasks = ", ".join(results.at_chance)
        yield f"at chance (at most one standard error above the majority baseline): {tasks}"

    # One line for each reason: without task files, all tasks have the same one.
    for reason in dict.fromkeys(results.skipped.values()):
        tasks = ", ".join(task for task, its_reason in results.skipped.items() if its_reason == reason)
        yield f"skipped: {tasks}: {reason}"
