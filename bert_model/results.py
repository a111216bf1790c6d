"""The results of a fine-tuning: every score beside its N, its spread, the baselines and the paper's figure."""

from collections.abc import Mapping, Sequence
from typing import Any

from bert_model.finetuning_config import FinetuningConfig
from bert_model.metrics import BASELINES, trivial_baseline
from bert_model.search import ArmResult, summary
from bert_pipeline.tasks.description import Task
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
