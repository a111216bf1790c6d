"""Results of a search: results.json, and its log in metrics.jsonl and MLflow with a child run for every trial."""

import contextlib
import dataclasses
import math
import shutil
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_model.finetuning.caveats import kinds_of, known_about, read_caveats
from bert_model.finetuning.config import FinetuningConfig
from bert_model.finetuning.search import SearchResult, Trial, TrialResult
from bert_model.kinds import kind_of
from bert_model.metrics.glue import ERRORS
from bert_model.training.metrics_log import LOG_DIRECTORY, STATE_NAME, DataInput, RunStatus, read_lines, read_state
from bert_model.training.mlflow_sync import CLOSE_TIMEOUT_SECONDS, Tracker, sync
from bert_pipeline.errors import DiskFullError
from bert_pipeline.manifest import Manifest
from bert_pipeline.progress import RateLimit
from bert_pipeline.tasks.catalogue import Task
from bert_pipeline.tasks.task import TaskData

if TYPE_CHECKING:  # a trial imports torch, for which the UI and its reports need not wait
    from bert_model.finetuning.trial import TrialProgress

PROCEDURES = {
    "grid": "every setting is trained with every seed; the setting with the best mean on {split} is taken",
    "first_seed": "every setting is trained with the first seed; the best on {split} is trained with the other seeds",
}

WITH_CONTEXT = "_with_context"
"""Suffix of the metrics of a tagger whose input are documents: without it every sentence is an input of its own."""
CONTEXT_NOTE = (
    f"Metrics with {WITH_CONTEXT!r} read each sentence among its neighbors in the document; the others, by which the "
    "model was chosen, read it alone, as text lines, requests and transformers' pipeline do."
)

LOGS = ".tracking"
"""Directory of the logs, next to the fine-tuned models: a published directory never changes."""

SCORE = "score"
"""Metric of searches and trials: the main metric of the task, so that a table compares tasks."""
PROGRESS_EVENT = "progress"
"""Event of a trial's log while it runs."""
INTERRUPTION_SECONDS = 5.0
"""Time that an interrupted search waits for MLflow. What is missing is copied when it is resumed."""


def dev_data(task: str, sha256: str) -> DataInput:
    """Return the dev examples of a task as the data set that scores are measured on."""
    return {"name": f"{task}-dev", "kind": "task_data", "sha256": sha256, "context": "evaluation"}


def results_document(
    data: TaskData,
    config: FinetuningConfig,
    searches: Sequence[SearchResult],
    *,
    hashes: Mapping[str, str],
    analysis: Mapping[str, Any],
    truncated: Mapping[str, int],
) -> dict[str, Any]:
    """Return the content of results.json. `searches[0]` is the reported one, from pre-trained weights.

    `analysis` maps a split to what `analyze` returned for the published model, `truncated` train and each scored split
    to the number of its examples whose texts were cut.
    """
    # The keys are read by the registry, the model card and the report: they are a format, not names of this module.
    task = data.task
    main_split = next(iter(data.dev))
    main_key = f"{task.name}/{main_split}/{task.main_metric}"
    metrics, official = _metrics(data, searches), data.is_official
    steps, length = searches[0].best.steps, config.max_seq_length
    caveats = known_about(data, metrics[main_key], official=official, steps=steps, truncated=truncated, length=length)
    return {
        "task": task.name,
        "title": task.title,
        "main_key": main_key,
        "known": [dataclasses.asdict(caveat) for caveat in caveats],
        "official": official,
        "own_split": data.own_split,
        "generated_sample": data.generated,
        **hashes,
        "search": {
            "procedure": PROCEDURES[config.search].format(split=main_split)
            + (f"; each training keeps its best epoch on {main_split}" if config.select == "best" else "")
            + "; the same for every initialization",
            "seeds": list(config.seeds),
            "threads": config.threads,
        },
        "metrics": metrics,
        **({"note": CONTEXT_NOTE} if any(key.endswith(WITH_CONTEXT) for key in metrics) else {}),
        **({"feature_inputs": _feature_inputs(data, searches[0])} if task.feature_based else {}),
        "baseline": kind_of(task).baseline_name,
        "paper_source": task.paper_source,
        "initializations": {search.initialization.name: _search(search) for search in searches},
        "winner": searches[0].best.describe(),
        "degenerate": searches[0].degenerate,
        "analysis": dict(analysis),
    }


def _metrics(data: TaskData, searches: Sequence[SearchResult]) -> dict[str, dict[str, Any]]:
    """Return "<task>/<split>/<metric>" -> N, statistics over seeds, random initializations, baseline and paper."""
    task = data.task
    reported, *compared = searches
    table: dict[str, dict[str, Any]] = {}
    for split, examples in {**data.dev, **data.labeled_test}.items():
        baseline = kind_of(task).baseline(data.train, examples)
        for metric in reported.best.scores[split]:
            entry: dict[str, Any] = {
                "n": len(examples),
                "seeds": [result.trial.seed for result in reported.chosen if not result.diverged],
                **summarize(reported.values(split, metric), lowest=metric in ERRORS),
            }
            # Scores of random weights are named by their initialization, such as "random_x4_sd".
            for search in compared:
                name, summary = search.initialization.name, summarize(search.values(split, metric))
                entry[name] = summary["mean"]
                entry[f"{name}_sd"] = summary["sd"]
                entry[f"{name}_values"] = summary["values"]
            official = metric.removesuffix(WITH_CONTEXT)
            entry["majority"] = round(baseline[official], 6) if official in baseline else None
            # The paper's figures are of the real task; a score on a generated sample does not compare with them.
            published = (None, None) if data.generated else _paper_figure(task, split, official)
            entry["paper"], entry["paper_model"] = published
            table[f"{task.name}/{split}/{metric}"] = entry
    return table


def _feature_inputs(data: TaskData, search: SearchResult) -> list[dict[str, Any]]:
    """Return a row for each input of a feature-based tagger (paper, Table 7)."""
    task = data.task
    split = next(iter(data.dev))
    rows = []
    for feature_input, results in search.by_feature_input.items():
        # A diverged run has no score; the counts below tell how many were left out.
        converged = [result for result in results if not result.diverged]
        values = [result.scores[split][task.main_metric] for result in converged]
        rows.append(
            {
                "feature_input": feature_input,
                "metric": f"{task.name}/{split}/{task.main_metric}",
                "n": len(data.dev[split]),
                "setting": results[0].trial.setting.describe(),
                "seeds": [result.trial.seed for result in converged],
                **(summarize(values) if values else {}),
                "collapsed_runs": sum(result.collapsed for result in results),
                "diverged_runs": sum(result.diverged for result in results),
                # The paper's Table 7 has dev scores of each input.
                "paper": task.paper.get(f"base, {feature_input}/{split}/{task.main_metric}"),
            }
        )
    return rows


def _paper_figure(task: Task, split: str, metric: str) -> tuple[float | None, str | None]:
    """Return the published figure and its model: base before large, this split before the test set."""
    for published in (split, split.replace("dev", "test")):
        for model in ("base", "large"):
            key = f"{model}/{published}/{metric}"
            if key in task.paper:
                return task.paper[key], f"{model}, {published}"
    return None, None


def _search(search: SearchResult) -> dict[str, Any]:
    return {
        "setting": search.setting.describe(),
        "steps": search.best.steps,
        "degenerate": search.degenerate,
        "collapsed_runs": sum(result.collapsed for result in search.trials),
        "diverged_runs": sum(result.diverged for result in search.trials),
        "runs": [result.describe() for result in search.trials],
    }


def summarize(values: Sequence[float], *, lowest: bool = False) -> dict[str, Any]:
    """Return values, mean, standard deviation (of a sample; 0 for one value), best (or `lowest`) and median."""
    return {
        "values": [round(value, 6) for value in values],
        "mean": round(statistics.fmean(values), 6),
        "sd": round(statistics.stdev(values), 6) if len(values) > 1 else 0.0,
        "best": round(min(values) if lowest else max(values), 6),
        "median": round(statistics.median(values), 6),
    }


def named_scores(task: str, result: "TrialResult | TrialProgress") -> dict[str, float]:
    """Return "<task>/<split>/<metric>" -> score of a trial."""
    return {
        f"{task}/{split}/{metric}": value for split, values in result.scores.items() for metric, value in values.items()
    }


def replay_search(manifest: Manifest) -> bool:
    """Copy to MLflow what an outage kept from it of the search that made a model; True if it then has everything."""
    directory = manifest.provenance.get(LOG_DIRECTORY)
    return directory is None or sync(manifest.path.parent / directory)


@dataclasses.dataclass
class _RunningTrial:
    """Log of a running trial, which is opened with the first line, and its reports since the last line."""

    tracker: Tracker | None = None
    is_due: RateLimit = dataclasses.field(default_factory=RateLimit)
    unlogged: list["TrialProgress"] = dataclasses.field(default_factory=list)


class SearchLog:
    """Log of one search: a parent run, and a child run for each trial from pre-trained weights.

    A trial of a few seconds is written at the end and in batches, so that logging does not slow the search; the log of
    a longer one is written while it runs.
    """

    def __init__(
        self,
        output: Path,
        *,
        experiment: str,
        task: str,
        identity: str,
        tags: Mapping[str, str],
        params: Mapping[str, Any],
        inputs: Sequence[DataInput] = (),
        note: str = "",
        resumed: bool = False,
    ) -> None:
        """`identity` is a hash of the configuration and inputs. A `resumed` search continues an unfinished log.

        `inputs` are the data sets of the search and of each trial, `note` describes the search.
        """
        self.directory = output.parent / LOGS / f"{output.name}-{identity[:16]}"
        if not resumed or read_state(self.directory / STATE_NAME).get("status") == "FINISHED":
            shutil.rmtree(self.directory, ignore_errors=True)
        self.task, self.inputs = task, inputs
        self._running: dict[Trial, _RunningTrial] = {}
        self._logged = {line["trial"] for line in read_lines(self.directory) if "trial" in line}
        self.tracker = Tracker(
            self.directory,
            experiment=experiment,
            run_name=task,
            tags={"kind": "finetuning", "task": task, **tags},
            params=params,
            inputs=inputs,
            note=note,
        )

    def report(self, report: "TrialProgress") -> None:
        """Log the loss of a running trial from pre-trained weights every ten seconds, and its dev scores."""
        if report.trial.initialization.weights != "pretrained":
            return
        running = self._running.setdefault(report.trial, _RunningTrial())
        running.unlogged.append(report)
        metrics, scores = {}, named_scores(self.task, report)
        if running.is_due():
            metrics = {
                "train/loss": sum(own.loss * own.num_steps for own in running.unlogged)
                / sum(own.num_steps for own in running.unlogged),
                "train/learning_rate": report.learning_rate,
                "train/tokens_per_second": report.tokens_per_second,
                **report.load,
            }
            running.unlogged.clear()

        # A child run is opened with its first line, so that trials of seconds do not open one here.
        if (metrics or scores) and running.tracker is None:
            running.tracker = self._child(report.trial)
        for event, values in (("evaluation", scores), (PROGRESS_EVENT, metrics)):
            if values and running.tracker is not None:
                running.tracker.record(event, report.step, values)

    def add(self, result: TrialResult) -> None:
        """Log a finished trial, unless it was logged before an interruption."""
        trial, start = result.trial, result.trial.initialization.name
        if (running := self._running.pop(trial, None)) is not None and running.tracker is not None:
            running.tracker.close("FAILED" if result.diverged else "FINISHED", INTERRUPTION_SECONDS)
        if trial.name in self._logged:
            return

        # The steps of the search's log are its trials, in the order in which they finish.
        metrics = {f"{start}/learning_rate": trial.setting.learning_rate}
        if result.scores:
            metrics[f"{start}/{SCORE}"] = result.main_score
        if result.losses and math.isfinite(result.losses[-1]):
            metrics[f"{start}/train_loss"] = result.losses[-1]
        self.tracker.record(
            "trial",
            len(self._logged),
            metrics,
            trial=trial.name,
            start=start,
            seed=trial.seed,
            collapsed=result.collapsed,
            steps=result.steps,
        )
        self._logged.add(trial.name)

    def finish(
        self, searches: Sequence[SearchResult], results: Mapping[str, Any], output: Path, pages: Sequence[Path]
    ) -> None:
        """Log the results of a published model with its pages, and its trials as child runs."""
        # The means alone: spreads and baselines are in the artifacts, and would be hundreds of columns in MLflow.
        metrics = {key: entry["mean"] for key, entry in results["metrics"].items()}
        metrics[SCORE] = metrics[results["main_key"]]

        # Children are written last, in one go: trials of seconds would otherwise wait for the server one by one.
        self.tracker.record("end", len(self._logged), metrics, degenerate=results["degenerate"])
        caveats = ", ".join(kinds_of(read_caveats(results["known"]))) or "nothing"
        self.tracker.set_tags(
            {"output": str(output), "degenerate": str(results["degenerate"]).lower(), "known": caveats}
        )
        for path in (output / "results.json", output / "results.md", *pages):
            self.tracker.log_artifact(path)
        for result in searches[0].trials:
            self._add_child(result, is_winner=result is searches[0].best)
        self.tracker.close("FINISHED")

    def fail(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the log as failed, or as killed by an interruption, unless it is finished."""
        interrupted = kind is not None and not issubclass(kind, Exception)
        status: RunStatus = "KILLED" if interrupted else "FAILED"

        # All logs share one deadline, so that many running trials do not delay the exit.
        deadline = time.monotonic() + (INTERRUPTION_SECONDS if interrupted else CLOSE_TIMEOUT_SECONDS)
        for tracker in (*(running.tracker for running in self._running.values()), self.tracker):
            if tracker is not None:
                with contextlib.suppress(DiskFullError, OSError):  # the first error is the cause
                    tracker.close(status, max(0.0, deadline - time.monotonic()))

    def _child(self, trial: Trial, tags: Mapping[str, str] | None = None) -> Tracker:
        """Open the log of a trial, a child run; that of an interrupted trial is continued."""
        return Tracker(
            self.directory / trial.key,
            experiment=self.tracker.experiment,
            run_name=trial.title,
            tags={"kind": "trial", **(tags or {})},
            params={**trial.setting.describe(), "seed": trial.seed},
            inputs=self.inputs,
            note=f"One trial of the search for {self.task} in the parent run: a setting trained with one seed.",
            is_child=True,
        )

    def _add_child(self, result: TrialResult, *, is_winner: bool) -> None:
        trial = result.trial
        was_watched = any(line.get("event") == PROGRESS_EVENT for line in read_lines(self.directory / trial.key))
        child = self._child(trial, {"winner": str(is_winner).lower(), "collapsed": str(result.collapsed).lower()})

        # A trial that was too short to be watched has only the mean losses of its stretches.
        if not was_watched:
            for index, loss in enumerate(result.losses, start=1):
                child.record("train", round(result.steps * index / len(result.losses)), {"train/loss": loss})
        score = {SCORE: result.main_score} if result.scores else {}
        child.record("evaluation", result.steps, named_scores(self.task, result) | score)
        child.close("FAILED" if result.diverged else "FINISHED")
