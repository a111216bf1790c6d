"""Tasks: the official files, and a model fine-tuned on each beside its baselines."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import Field

from bert_model.presets import TaskRunsConfig
from bert_model.training.metrics_log import mlflow_run_id
from bert_pipeline.configuration import to_mapping
from bert_pipeline.errors import ArtefactError
from bert_pipeline.manifest import Manifest, load_manifest, publishing, write_text_durably
from workflows.defs.data import OWNERS as DATA_OWNERS
from workflows.defs.data import dump
from workflows.defs.pretraining import OWNERS, TRAINING_POOL, current_model, pretrained_model
from workflows.lib.conditions import AFTER_CANDIDATE, AFTER_INPUTS
from workflows.lib.launchpad import config_class, from_launchpad, launchpad_preset
from workflows.lib.metadata import (
    SAMPLE_MARK,
    for_reading,
    manifest_metadata,
    picture,
    readable_failures,
    score_bars,
    score_preview,
    shortened,
    table,
)
from workflows.lib.resources import BertHome, dump_and_task, dump_task_partitions, job_tags, sample_seed
from workflows.lib.reuse import code_version, made_or_reused, recipe

TASK_DATA_CODE = code_version("bert_pipeline.tasks.task.load_task_data")
FINETUNING_CODE = code_version("bert_model.finetuning.finetune.finetune")
RESULTS_NAME = "results.json"
TASK_SOURCE_NAME = "source.json"
TASK_DATA_KIND = "task_data"
SKIPPED_KIND = "skipped_task"


class TaskDataLaunchpad(dg.Config):
    """Where the official task files are."""

    glue: str = Field(default="", description="Folder with the GLUE tasks (CoLA, SST-2, …).")
    squad: str = Field(default="", description="Folder with SQuAD's JSON files.")
    swag: str = Field(default="", description="Folder with SWAG's CSV files.")
    ner: str = Field(default="", description="Folder with the CoNLL-2003 files (eng.train, …).")
    dev_fraction: float = Field(
        default=launchpad_preset().finetuning.dev_fraction,
        description="Where a task has one file only: the share of it that becomes the dev set; 0 skips the task.",
    )


FinetuningLaunchpad: Any = config_class(
    TaskRunsConfig, name="FinetuningLaunchpad", defaults=launchpad_preset().finetuning
)


@dg.asset(
    deps=[dump],
    group_name="finetuning",
    kinds={"json"},
    owners=DATA_OWNERS,
    tags=job_tags("task_data"),
    partitions_def=dump_task_partitions,
    output_required=False,
    automation_condition=AFTER_INPUTS,
    code_version=TASK_DATA_CODE,
)
def task_data(context: dg.AssetExecutionContext, config: TaskDataLaunchpad, home: BertHome) -> Any:
    """A task's training and dev examples, read from its official files and known by their hashes.

    For a generated sample the files lie in the sample; otherwise in the folders given. A task whose files are absent
    is skipped by name: nothing downstream of it runs, and the report says why.
    """
    from bert_pipeline.tasks.task import get_task, load_task_data, missing_task_data

    name, task_name = dump_and_task(context.partition_key)
    with readable_failures():
        task = get_task(task_name)
        path = task_path(home, name, task_name, config)
        if path is None:
            reason = f"no folder is given for {task.title}, and BERT_TASKS is not set"
        else:
            reason = missing_task_data(task, path, config.dev_fraction)
        if reason or path is None:
            _publish_skipped(home.task_data(name, task_name), task_name, reason)
            context.log.warning(f"skipped: {task_name}: {reason}")
            context.log_event(
                dg.AssetObservation(
                    asset_key=context.asset_key, partition=context.partition_key, metadata={"skipped": reason}
                )
            )
            return
        data = load_task_data(task, path, config.dev_fraction)
        manifest = _publish_task_data(home.task_data(name, task_name), task_name, path, config.dev_fraction, data)
    sizes = ", ".join(f"{len(examples):,} {split}" for split, examples in {"train": data.train, **data.dev}.items())
    context.log.info(f"{task.title}: {sizes}{' (own split)' if data.own_split else ''}")
    metadata = manifest_metadata(manifest) | {
        "title": task.title,
        "own_split": data.own_split,
        "generated_sample": sample_seed(name) is not None,
        "examples": table(_sample_examples(data.train)),
        "source": dg.MetadataValue.path(str(path)),
    }
    yield dg.MaterializeResult(metadata=for_reading(metadata), data_version=dg.DataVersion(manifest.sha256))


def suite_of(task_name: str) -> str:
    """Which of the launchpad's folders holds a task."""
    from bert_pipeline.tasks.task import get_task

    return {"squad": "squad", "swag": "swag", "conll": "ner"}.get(get_task(task_name).reader, "glue")


def task_path(home: BertHome, dump_name: str, task_name: str, config: TaskDataLaunchpad) -> Path | None:
    """Where a task's files are: the folder given, BERT_TASKS, else the generated sample; None when there is none."""
    given = getattr(config, suite_of(task_name)) or home.tasks
    if given:
        return Path(given)
    return home.dump(dump_name) if sample_seed(dump_name) is not None else None


def load_published_task(home: BertHome, dump_name: str, task_name: str) -> Any:
    """Load the examples that `task_data` stands for; ArtefactError when its files have changed since."""
    from bert_pipeline.tasks.task import load_task_data

    manifest = load_manifest(home.task_data(dump_name, task_name), kind=TASK_DATA_KIND)
    source = json.loads((manifest.path / TASK_SOURCE_NAME).read_text(encoding="utf-8"))
    data = load_task_data(task_name, source["path"], source["dev_fraction"])
    expected = {name: entry["sha256"] for name, entry in manifest.inputs.items()}
    if data.sha256 != expected:
        changed = sorted(name for name in expected | data.sha256 if expected.get(name) != data.sha256.get(name))
        raise ArtefactError(
            f"{source['path']}: {', '.join(changed)} changed since task_data was materialized; materialize it again"
        )
    return data


def _publish_task_data(directory: Path, task_name: str, path: Path, dev_fraction: float, data: Any) -> Manifest:
    with publishing(
        directory,
        kind=TASK_DATA_KIND,
        configuration={"task": task_name, "dev_fraction": dev_fraction if data.own_split else 0.0},
        inputs={name: {"name": name, "sha256": digest} for name, digest in sorted(data.sha256.items())},
    ) as draft:
        draft.counts = {
            "train": len(data.train),
            "dev": {split: len(examples) for split, examples in data.dev.items()},
            "test": {split: len(examples) for split, examples in data.test.items()},
            "labels": _label_counts(data.train),
            "own_split": data.own_split,
            "defects": dict(data.counts),
        }
        source = {"path": str(path.resolve()), "dev_fraction": dev_fraction}
        write_text_durably(draft.path / TASK_SOURCE_NAME, json.dumps(source, indent=1) + "\n")
    return load_manifest(directory, kind=TASK_DATA_KIND)


def _publish_skipped(directory: Path, task_name: str, reason: str) -> None:
    with publishing(directory, kind=SKIPPED_KIND, configuration={"task": task_name}, inputs={}) as draft:
        draft.counts = {"reason": reason}


def _label_counts(examples: list[Any]) -> dict[str, int]:
    labels = [str(example.label) for example in examples if isinstance(getattr(example, "label", None), (str, int))]
    return dict(sorted(Counter(labels).items()))


def _sample_examples(examples: list[Any], count: int = 5) -> list[dict[str, Any]]:
    from bert_pipeline.tasks.example import example_text

    return [
        {
            "example_id": example.example_id,
            "text": shortened(example_text(example), 240),
            "label": shortened(
                str(getattr(example, "label", getattr(example, "tags", getattr(example, "answers", "")))), 80
            ),
        }
        for example in examples[:count]
    ]


@dg.asset(
    deps=[task_data, pretrained_model, "registered_pretrained_model"],
    group_name="finetuning",
    kinds={"pytorch", "huggingface"},
    owners=OWNERS,
    tags=job_tags("finetuned_model"),
    partitions_def=dump_task_partitions,
    pool=TRAINING_POOL,
    automation_condition=AFTER_CANDIDATE,
    code_version=FINETUNING_CODE,
)
def finetuned_model(
    context: dg.AssetExecutionContext, config: FinetuningLaunchpad, home: BertHome
) -> dg.MaterializeResult[None]:
    """The pre-trained model fine-tuned on one task, chosen on dev over learning rates and seeds.

    With `comparison` the same search runs from random weights, once with the same steps and once with four times as
    many; the majority baseline stands beside them. All scores are on the field's scale of 0 to 100.
    """
    from bert_model.finetuning.finetune import finetune
    from bert_model.finetuning.worker_pool import shared_pool

    name, task_name = dump_and_task(context.partition_key)
    home.apply_environment()
    with readable_failures():
        settings = from_launchpad(TaskRunsConfig, config).for_task(task_name)
        data = load_published_task(home, name, task_name)
        model = current_model(home, name)
        directory = home.finetuning(name, task_name)
        manifest = made_or_reused(
            directory,
            "finetuned_model",
            recipe(
                code_version=FINETUNING_CODE,
                settings=to_mapping(settings),
                inputs={
                    "pretrained_model": load_manifest(model, kind="pretrained_model").sha256,
                    "task_data": load_manifest(home.task_data(name, task_name), kind=TASK_DATA_KIND).sha256,
                },
            ),
            lambda: (
                finetune(
                    data,
                    model,
                    directory,
                    settings,
                    pool=shared_pool(),
                    progress=lambda done, total, line: context.log.info(f"{done}/{total} {line}"),
                ).manifest
            ),
            context.log.info,
        )
        results = json.loads((directory / RESULTS_NAME).read_text(encoding="utf-8"))
    if sample_seed(name) is not None:  # the paper's figures are no measure of the generated tasks
        for entry in results["metrics"].values():
            entry["paper"] = None
    main = results["metrics"][results["main_key"]]
    context.log.info(f"{results['main_key']}: {describe_scores(main)}")
    metadata = manifest_metadata(manifest) | {
        "main_metric": results["main_key"],
        "score": float(main["mean"]),
        "own_split": data.own_split,
        "generated_sample": sample_seed(name) is not None,
        "degenerate": bool(results["degenerate"]),
        "scores": table([{"metric": key, **_table_row(entry)} for key, entry in results["metrics"].items()]),
        "configuration": dg.MetadataValue.json(to_mapping(settings)),
        "baselines": score_preview([("pre-trained", main["mean"], None), *_baseline_bars(main)]),
        "comparison": picture(_bars(name, task_name, main), f"{task_name}: score against its baselines"),
    }
    if manifest.provenance.get("training_seconds"):
        metadata["tokens_per_second"] = manifest.provenance["training_tokens"] / manifest.provenance["training_seconds"]
    if run_id := mlflow_run_id(manifest):
        metadata["mlflow_run"] = dg.MetadataValue.url(home.run_page(run_id))
    for start, value in baselines_of(main).items():
        metadata[f"score/{start}"] = float(value)
    return dg.MaterializeResult(metadata=for_reading(metadata), data_version=dg.DataVersion(manifest.sha256))


def _baseline_bars(entry: dict[str, Any]) -> list[tuple[str, float, None]]:
    return [(key.replace("_", " "), value, None) for key, value in baselines_of(entry).items()]


def baseline_keys(entry: dict[str, Any]) -> list[str]:
    """The keys of what stands beside a score: the other starts, the majority baseline and the paper's figure."""
    starts = [key for key in entry if key.startswith("random") and not key.endswith(("_sd", "_values"))]
    return [*starts, "majority", "paper"]


def baselines_of(entry: dict[str, Any]) -> dict[str, float]:
    """What stands beside a score, as far as there is any."""
    return {key: entry[key] for key in baseline_keys(entry) if entry.get(key) is not None}


def describe_scores(entry: dict[str, Any]) -> str:
    """One line: the mean over seeds, its spread, and the baselines."""
    beside = ", ".join(f"{key.replace('_', ' ')} {value:.1f}" for key, value in baselines_of(entry).items())
    return (
        f"{entry['mean']:.1f} ± {entry['sd']:.1f} over {len(entry['values'])} seeds{f' ({beside})' if beside else ''}"
    )


def _table_row(entry: dict[str, Any]) -> dict[str, Any]:
    row = {"n": entry["n"]} | {key: round(entry[key], 2) for key in ("mean", "sd", "best", "median")}
    beside = baselines_of(entry)
    return row | {key: round(beside[key], 2) if key in beside else "" for key in baseline_keys(entry)}


def _bars(dump_name: str, task_name: str, entry: dict[str, Any]) -> bytes:
    row = {"task": task_name, "pre-trained": entry["mean"], **baselines_of(entry)}
    columns = {key: key.replace("_", " ") for key in row if key != "task"}
    mark = f" ({SAMPLE_MARK})" if sample_seed(dump_name) is not None else ""
    return score_bars([row], columns, f"{task_name} on {dump_name}{mark}")
