"""Assets of the tasks: `task_data` and `finetuned_model`, with the baselines of its score."""

import contextlib
import json
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import dagster as dg

from bert_model.finetuning.analysis import errors_path
from bert_model.finetuning.caveats import describe as describe_caveats
from bert_model.finetuning.results import replay_search
from bert_model.presets import TaskRunsConfig
from bert_model.registry.versions import TaskScore
from bert_model.training.metrics_log import mlflow_run_id
from bert_pipeline.atomic import write_text_durably
from bert_pipeline.configuration import changed_settings, to_mapping
from bert_pipeline.errors import BertError, InputError, UsageError
from bert_pipeline.hashes import content_sha256
from bert_pipeline.manifest import Manifest, load_manifest, publishing
from bert_pipeline.progress import RateLimit
from bert_pipeline.step import STEPS
from bert_pipeline.storage import is_file
from bert_pipeline.tasks.catalogue import Task
from bert_pipeline.tasks.files import missing_task_data
from bert_pipeline.tasks.task import load_task_data
from workflows.defs.automation import AFTER_CANDIDATE, AFTER_INPUTS
from workflows.defs.data import OFFICIAL_FILES, dump
from workflows.defs.pretraining import TRAINING_POOL, pretrained_model
from workflows.lib.lineage import TASK_SOURCE_NAME, content_key, load_published_task
from workflows.lib.metadata import manifest_metadata, materialization, observe, picture, score_bars, shortened, table
from workflows.lib.resources import TASK_NAMES, BertHome, Made, dump_and_task, dump_label, sample_seed, step_asset

if TYPE_CHECKING:
    from bert_model.finetuning.trial import TrialProgress

# --- task_data ---


@step_asset(
    deps=[dump, OFFICIAL_FILES],
    kinds={"json"},
    output_required=False,
    # Changed files are shown as stale: to fine-tune all dumps again is not decided by an observation.
    automation_condition=AFTER_INPUTS.ignore(dg.AssetSelection.assets(OFFICIAL_FILES)),
)
def task_data(
    context: dg.AssetExecutionContext,
    home: BertHome,
    dev_fraction: Annotated[
        float,
        "Where a task has one file only: the share of it that becomes the dev set; 0 skips the task. Not used if no "
        "folder is given and the files and the share of the last time are.",
    ],
    glue: Annotated[str, "Folder with the GLUE tasks (CoLA, SST-2, …)."] = "",
    squad: Annotated[str, "Folder with SQuAD's JSON files."] = "",
    swag: Annotated[str, "Folder with SWAG's CSV files."] = "",
    ner: Annotated[str, "Folder with the CoNLL-2003 files (eng.train, …)."] = "",
) -> Made | None:
    """A task's training and dev examples, read from its official files and identified by their hashes.

    The files are in the configured folder; without one in BERT_TASKS, else where they were the last time, else in the
    generated sample. An own task is described by a YAML file in BERT_TASKS, with its files in the same folder. A task
    without files is skipped by name: nothing downstream of it runs, and the report says why.
    """
    name, task_name = dump_and_task(context.partition_key)
    directory = home.task_data(name, task_name)
    folders = {"squad": squad, "swag": swag, "conll": ner}
    task, path, dev_fraction, reason = _find_task(home, name, task_name, folders, glue, dev_fraction)
    # Published as skipped, for the report to name; nothing is materialized, so nothing downstream runs.
    if reason or task is None or path is None:
        with publishing(
            directory, kind="skipped_task", configuration={"task": task_name}, inputs={}, replaces="task_data"
        ) as draft:
            draft.counts = {"reason": reason}
        context.log.warning(f"skipped: {task_name}: {reason}")
        observe(context, {"skipped": reason})
        return None

    # The examples stay in their files, which the artifact names by path and hash.
    data = load_task_data(task, path, dev_fraction)
    manifest = _publish_task_data(directory, path, dev_fraction, data)
    sizes = ", ".join(f"{len(examples):,} {split}" for split, examples in {"train": data.train, **data.dev}.items())
    context.log.info(f"{task.title}: {sizes}{' (own split)' if data.own_split else ''}")
    for note in data.notes():
        context.log.info(f"{task.title}: {note}")
    metadata = manifest_metadata(manifest, rates=False) | {
        "title": task.title,
        "own_split": data.own_split,
        "generated_sample": sample_seed(name) is not None,
        "examples": table(_sample_examples(data.train)),
        "source": dg.MetadataValue.path(str(path)),
    }
    return materialization(manifest.sha256, metadata)


def _find_task(
    home: BertHome, dump: str, name: str, folders: Mapping[str, str], glue: str, dev_fraction: float
) -> tuple[Task | None, Path | None, float, str]:
    """Return a task, the folder of its files, the share that becomes the dev set, and why the task is skipped or "".

    `folders` maps readers of tasks to the launchpad's folders; the other tasks are in that of GLUE.
    """
    try:
        task = home.task(name)
    except UsageError as error:
        return None, None, 0.0, str(error)
    # The launchpad's folder; without one BERT_TASKS, else where the files were the last time, else the sample. An own
    # task's files are in the folder of its YAML file.
    folder = folders.get(task.reader, glue) if name in TASK_NAMES else ""
    places = [(Path(place), dev_fraction) for place in [folder or home.tasks] if place]
    former: list[tuple[Path, float]] = []
    if name in TASK_NAMES and not folder:
        if is_file(source := home.task_data(dump, name) / TASK_SOURCE_NAME):
            recorded = json.loads(source.read_text(encoding="utf-8"))
            former = [(Path(recorded["path"]), recorded["dev_fraction"])]
        sample = [(home.dump(dump), dev_fraction)] if sample_seed(dump) is not None else []
        places += [*former, *sample]
    reasons = {place: missing_task_data(task, *place) for place in places}
    for (path, share), reason in reasons.items():
        if not reason:
            return task, path, share, ""
    if former:  # skipped, the task would forget where they were
        raise InputError(f"{reasons[former[0]]}; restore the files of the last time, or give their folder")
    if not places:
        return task, None, 0.0, f"no folder is given for {task.title}, and BERT_TASKS is not set"
    return task, *places[0], reasons[places[0]]


def _publish_task_data(directory: Path, path: Path, dev_fraction: float, data: Any) -> Manifest:
    """Publish paths, hashes and counts of a task's files; the examples themselves are not copied."""
    task: Task = data.task
    description = {} if task.name in TASK_NAMES else {"description": to_mapping(task)}
    # Counts of classes or endings, for the UI; spans and tags have no such table.
    labels = Counter(
        str(example.label) for example in data.train if isinstance(getattr(example, "label", None), (str, int))
    )
    with publishing(
        directory,
        kind="task_data",
        configuration={"task": task.name, "dev_fraction": dev_fraction if data.own_split else 0.0, **description},
        inputs={name: {"name": name, "sha256": digest} for name, digest in sorted(data.sha256.items())},
        replaces="skipped_task",
    ) as draft:
        draft.counts = {
            "train": len(data.train),
            "dev": {split: len(examples) for split, examples in data.dev.items()},
            "test": {split: len(examples) for split, examples in data.test.items()},
            "labels": dict(sorted(labels.items())),
            "own_split": data.own_split,
            "defects": dict(data.counts),
        }
        source = {"path": str(path.resolve()), "dev_fraction": dev_fraction}
        write_text_durably(draft.path / TASK_SOURCE_NAME, json.dumps(source, indent=1) + "\n")
    return load_manifest(directory, kind="task_data")


def _sample_examples(examples: list[Any]) -> Iterator[dict[str, Any]]:
    for example in examples[:5]:
        label = getattr(example, "label", getattr(example, "tags", getattr(example, "answers", "")))
        text = shortened("\n".join(example.texts), 240)
        yield {"example_id": example.example_id, "text": text, "label": shortened(str(label), 80)}


# --- finetuned_model ---


@step_asset(
    deps=[task_data, pretrained_model, "candidate_model"],
    kinds={"pytorch", "huggingface"},
    pool=TRAINING_POOL,
    automation_condition=AFTER_CANDIDATE,
)
def finetuned_model(context: dg.AssetExecutionContext, home: BertHome, settings: TaskRunsConfig) -> Made:
    """The pre-trained model fine-tuned on one task, chosen on dev over learning rates and seeds.

    With `comparison` the same search runs from random weights, once with the same steps and once with more, four times
    as many by default; the majority class is a further baseline. All scores are on the field's scale of 0 to 100.
    """
    from bert_model.finetuning.display import describe_trial
    from bert_model.finetuning.finetune import finetune
    from bert_model.finetuning.worker_pool import shared_pool

    name, task_name = dump_and_task(context.partition_key)
    directory = home.finetuning(name, task_name)
    is_due = RateLimit()

    def watch(report: "TrialProgress") -> None:
        if report.scores or is_due():
            context.log.info(f"{task_name}: {describe_trial(report)}")

    data = load_published_task(home, name, task_name)
    of_task = settings.for_task(data.task)
    model = home.current_model(name)

    # The search that is here may have ended while MLflow was down.
    with contextlib.suppress(BertError):
        replay_search(load_manifest(directory, kind="finetuned_model"))

    # A search of hours is repeated only if the weights, the examples, the task, the settings or the step differ.
    manifest = STEPS["finetuned_model"].make(
        directory,
        lambda: (
            finetune(
                data,
                model,
                directory,
                of_task,
                pool=shared_pool(),
                progress=lambda done, total, line: context.log.info(f"{done}/{total} {line}"),
                watch=watch,
                replace=True,  # the directory is of the dump, whose pre-trained model may be another one by now
            ).manifest
        ),
        settings=of_task,
        inputs={
            "task": content_sha256(changed_settings(data.task)),
            "pretrained_model": load_manifest(model, kind="pretrained_model").sha256,
            "task_data": content_key(load_manifest(home.task_data(name, task_name), kind="task_data")),
        },
        log=context.log.info,
    )
    results = json.loads((directory / "results.json").read_text(encoding="utf-8"))
    generated = sample_seed(name) is not None
    scores = {key: TaskScore.from_results(results, key, generated=generated) for key in results["metrics"]}

    # The main metric next to its baselines, in the log and as a plot; the numbers become time series in the UI.
    main = scores[results["main_key"]]
    baselines = {key: value for key, value in main.baselines.items() if value is not None}
    compared = ", ".join(f"{key.replace('_', ' ')} {value:.1f}" for key, value in baselines.items())
    context.log.info(f"{main.metric}: {main.mean:.1f} ± {main.sd:.1f} over {main.num_seeds} seeds ({compared})")
    bars = {"pre-trained": main.mean, **{key.replace("_", " "): value for key, value in baselines.items()}}
    plot = score_bars([{"task": task_name, **bars}], {key: key for key in bars}, f"{task_name} on {dump_label(name)}")
    metadata = manifest_metadata(manifest) | {
        "main_metric": main.metric,
        "score": main.mean,
        "own_split": data.own_split,
        "generated_sample": generated,
        "degenerate": main.degenerate,
        "known": describe_caveats(main.known),
        "scores": table([_table_row(score) for score in scores.values()]),
        "configuration": dg.MetadataValue.json(dict(manifest.configuration)),
        "comparison": picture(plot, f"{task_name}: score against its baselines"),
    }
    if seconds := manifest.provenance.get("training_seconds"):
        metadata["time/tokens_per_second"] = manifest.provenance["training_tokens"] / seconds
    metadata |= _analysis_metadata(results)
    if run_id := mlflow_run_id(manifest):
        metadata["mlflow_run"] = home.mlflow_run(run_id)
    if (page := errors_path(directory)).is_file():
        metadata["errors"] = dg.MetadataValue.path(str(page))
    metadata |= {f"score/{key}": value for key, value in baselines.items()}
    return materialization(manifest.sha256, metadata)


def _analysis_metadata(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return interval, calibration, classes and confusion of the published model on dev."""
    split = results["main_key"].split("/")[1]
    analysis = results["analysis"][split]
    low, high = analysis["interval"]
    metadata: dict[str, Any] = {"interval": f"{low:.1f} to {high:.1f} ({analysis['confidence']:.0%})"}
    if "calibration_error" in analysis:
        metadata["calibration_error"] = float(analysis["calibration_error"])
    if "classes" in analysis:
        metadata["classes"] = table(analysis["classes"])
    if "confusion" in analysis:
        labels = analysis["confusion"]["labels"]
        rows = zip(labels, analysis["confusion"]["rows"])
        metadata["confusion"] = table([{"gold": gold, **dict(zip(labels, row))} for gold, row in rows])
    return metadata


def _table_row(score: TaskScore) -> dict[str, Any]:
    values = score.by_seed.values()
    numbers = {"mean": score.mean, "sd": score.sd, "best": max(values), "median": statistics.median(values)}
    cells = {key: "" if value is None else round(value, 2) for key, value in (numbers | score.baselines).items()}
    return {"metric": score.metric, "n": score.num_examples, **cells}
