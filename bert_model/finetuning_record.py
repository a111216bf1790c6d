"""The record of a fine-tuning: metrics.jsonl and an MLflow run with a child for every run of the given weights."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_model.record import read_lines
from bert_model.search import ArmResult, Run
from bert_model.tracking import Tracker

RECORDS = ".tracking"
"""Directory beside the fine-tuned models that holds their records; a model's own directory never changes."""


class FinetuningRecord:
    """One parent run for a task. Trials are recorded as they end, in batches, so that logging costs next to nothing."""

    def __init__(
        self,
        output: Path,
        *,
        experiment: str,
        task: str,
        identity: str,
        tags: Mapping[str, str],
        params: Mapping[str, Any],
        resumed: bool = False,
    ) -> None:
        """`identity` names the configuration and inputs. A fine-tuning that is `resumed` goes on in its record, one
        that is made anew gets a new one."""
        self.directory = output.parent / RECORDS / f"{output.name}-{identity[:16]}"
        if not resumed:
            shutil.rmtree(self.directory, ignore_errors=True)
        self.task = task
        self._recorded = {line["trial"] for line in read_lines(self.directory) if "trial" in line}
        self.tracker = Tracker(
            self.directory,
            experiment=experiment,
            run_name=f"{task}-{identity[:16]}",
            tags={"kind": "finetuning", "task": task, **tags},
            params=params,
        )
        self._trials = len(self._recorded)

    def trial(self, name: str, run: Run) -> None:
        """Record a finished trial, whatever start it had; one that the record has already is not sent again."""
        if name in self._recorded:
            return
        metrics = {f"{run.start}/{key}": value for key, value in self._scores(run).items()}
        metrics[f"{run.start}/learning_rate"] = run.setting.learning_rate
        losses = run.details.get("losses")
        if losses:
            metrics[f"{run.start}/train_loss"] = losses[-1]
        self.tracker.record(
            "trial",
            self._trials,
            metrics,
            trial=name,
            start=run.start,
            seed=run.seed,
            collapsed=run.collapsed,
            steps=run.steps,
        )
        self._trials += 1

    def finish(self, arms: Sequence[ArmResult], results: Mapping[str, Any], output: Path) -> None:
        """Record the outcome and make the runs of the given weights children."""
        metrics: dict[str, float] = {}
        for key, entry in results["metrics"].items():
            metrics[key] = entry["mean"]
            for name, value in entry.items():
                is_start = name.startswith("random") and not name.endswith("_values")
                if is_start or name in ("sd", "best", "median", "majority"):
                    metrics[f"{key}/{name}"] = value
        known = {key: value for key, value in metrics.items() if value is not None}
        self.tracker.record("end", self._trials, known, degenerate=results["degenerate"])
        self.tracker.set_tags({"output": str(output), "degenerate": str(results["degenerate"]).lower()})
        self.tracker.log_artifact(output / "results.json")
        if self.tracker.run_id is not None:
            for run in arms[0].runs:
                self._child(run, is_winner=run is arms[0].best)
        self.tracker.close("FINISHED")

    def fail(self) -> None:
        """Record that the fine-tuning did not come to its end."""
        self.tracker.close("FAILED")

    @property
    def run_id(self) -> str | None:
        """The MLflow run's id; None without MLflow."""
        return self.tracker.run_id

    def _child(self, run: Run, *, is_winner: bool) -> None:
        setting = run.setting
        name = f"lr {setting.learning_rate:g}, batch {setting.batch_size}, seed {run.seed}"
        key = f"{setting.learning_rate:g}-{setting.batch_size}-{setting.epochs:g}-{run.seed}"
        if setting.variant:
            name, key = f"{setting.variant}, {name}", f"{setting.variant}-{key}"
        directory = self.directory / key
        tags = {"kind": "trial", "winner": str(is_winner).lower(), "collapsed": str(run.collapsed).lower()}
        child = self.tracker.child(
            directory, run_name=name, tags=tags, params={**run.setting.describe(), "seed": run.seed}
        )
        losses = run.details.get("losses", [])
        for index, loss in enumerate(losses, start=1):
            child.record("train", round(run.steps * index / len(losses)), {"train/loss": loss})
        child.record("evaluation", run.steps, self._scores(run))
        child.close("FAILED" if run.diverged else "FINISHED")

    def _scores(self, run: Run) -> dict[str, float]:
        return {
            f"{self.task}/{split}/{metric}": value
            for split, values in run.scores.items()
            for metric, value in values.items()
        }
