"""Results of a fine-tuning: results.json, metrics.jsonl, and an MLflow run with a child for every trial."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_model.finetuning.config import FinetuningConfig
from bert_model.finetuning.search import ArmResult, Run, summary
from bert_model.metrics.score import BASELINES, trivial_baseline
from bert_model.training.metrics_log import read_lines
from bert_model.training.mlflow_sync import Tracker
from bert_pipeline.tasks.catalogue import Task
from bert_pipeline.tasks.task import TaskData

SEARCHES = {
    "grid": "every setting is trained with every seed; the setting with the best mean on {split} is taken",
    "first_seed": "every setting is trained with the first seed; the best on {split} is trained with the other seeds",
}

PAPER_FEATURE_INPUTS = {
    "embeddings": "base, embeddings",
    "second_to_last": "base, second-to-last",
    "last": "base, last",
    "weighted_sum_last_four": "base, weighted last four",
    "concat_last_four": "base, concat last four",
    "weighted_sum_all": "base, weighted all",
}
"""How the catalogue's figures call the inputs of a feature-based tagger."""


def results_document(
    data: TaskData, config: FinetuningConfig, arms: Sequence[ArmResult], *, hashes: Mapping[str, str]
) -> dict[str, Any]:
    """Return what results.json holds. `arms[0]` is the given start; the others are compared with it."""
    task = data.task
    main_split = next(iter(data.dev))
    return {
        "task": task.name,
        "title": task.title,
        "main_key": f"{task.name}/{main_split}/{task.main_metric}",
        "own_split": data.own_split,
        **hashes,
        "search": {
            "procedure": SEARCHES[config.search].format(split=main_split) + "; the same for every start",
            "seeds": list(config.seeds),
        },
        "metrics": metrics_table(data, arms),
        **({"feature_inputs": feature_input_rows(data, arms[0])} if task.feature_based else {}),
        "baseline": BASELINES["span with unanswerable" if task.has_impossible else task.kind],
        "paper_source": task.paper_source,
        "starts": {arm.arm.name: _arm_document(arm) for arm in arms},
        "winner": arms[0].best.describe(),
        "degenerate": arms[0].degenerate,
    }


def metrics_table(data: TaskData, arms: Sequence[ArmResult]) -> dict[str, dict[str, Any]]:
    """Return "<task>/<split>/<metric>" -> N, the statistics over seeds, the other starts, baseline and paper."""
    task = data.task
    table: dict[str, dict[str, Any]] = {}
    given = arms[0]
    for split, examples in data.dev.items():
        baseline = trivial_baseline(task, data.train, examples)
        for metric in given.best.scores[split]:
            entry: dict[str, Any] = {
                "n": len(examples),
                "seeds": [run.seed for run in given.chosen if not run.diverged],
                **summary(given.values(split, metric)),
            }
            for arm in arms[1:]:
                values = [run.scores[split][metric] for run in arm.chosen if metric in run.scores.get(split, {})]
                statistics = summary(values)
                entry[arm.arm.name] = statistics["mean"]
                entry[f"{arm.arm.name}_sd"] = statistics["sd"]
                entry[f"{arm.arm.name}_values"] = statistics["values"]
            entry["majority"] = round(baseline[metric], 6) if metric in baseline else None
            entry["paper"], entry["paper_model"] = paper_figure(task, split, metric)
            table[f"{task.name}/{split}/{metric}"] = entry
    return table


def feature_input_rows(data: TaskData, arm: ArmResult) -> list[dict[str, Any]]:
    """Return a row for each input of a feature-based tagger (paper, Table 7): its setting, statistics and figure."""
    task = data.task
    split = next(iter(data.dev))
    rows = []
    for name, runs in arm.variants.items():
        sound = [run for run in runs if not run.diverged]
        figure = f"{PAPER_FEATURE_INPUTS[name]}/{split}/{task.main_metric}"
        values = [run.scores[split][task.main_metric] for run in sound]
        rows.append(
            {
                "feature_input": name,
                "metric": f"{task.name}/{split}/{task.main_metric}",
                "n": len(data.dev[split]),
                "setting": runs[0].setting.describe(),
                "seeds": [run.seed for run in sound],
                **(summary(values) if values else {}),
                "collapsed_runs": sum(run.collapsed for run in runs),
                "diverged_runs": sum(run.diverged for run in runs),
                "paper": task.paper.get(figure),
            }
        )
    return rows


def paper_figure(task: Task, split: str, metric: str) -> tuple[float | None, str | None]:
    """Return the published figure and its model: base before large, this split before the test set."""
    for wanted in (split, split.replace("dev", "test")):
        for model in ("base", "large"):
            key = f"{model}/{wanted}/{metric}"
            if key in task.paper:
                return task.paper[key], f"{model}, {wanted}"
    return None, None


def _arm_document(arm: ArmResult) -> dict[str, Any]:
    return {
        "setting": arm.setting.describe(),
        "steps": arm.best.steps,
        "degenerate": arm.degenerate,
        "collapsed_runs": sum(run.collapsed for run in arm.runs),
        "diverged_runs": sum(run.diverged for run in arm.runs),
        "runs": [run.describe() for run in arm.runs],
    }


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
