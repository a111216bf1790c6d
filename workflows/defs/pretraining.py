"""Pre-training: torchrun over the instances, watched from here, and the model that it leaves."""

import dataclasses
import datetime
import json
from pathlib import Path
from typing import Any

import dagster as dg
import yaml
from pydantic import Field

from bert_model.presets import LaunchConfig, with_phases_in
from bert_model.pretraining.config import PretrainingConfig
from bert_model.training.metrics_log import CODE_VERSION_VARIABLE, mlflow_run_id
from bert_pipeline.configuration import from_mapping, to_mapping
from bert_pipeline.errors import ArtefactError, BertError
from bert_pipeline.manifest import Manifest, load_manifest, write_text_durably
from workflows.defs.data import instances
from workflows.lib.conditions import MONTHLY
from workflows.lib.launchpad import config_class, from_launchpad, launchpad_preset
from workflows.lib.metadata import (
    SAMPLE_MARK,
    flat_numbers,
    for_reading,
    loss_preview,
    manifest_metadata,
    picture,
    readable_failures,
    table,
    training_curves,
)
from workflows.lib.resources import BertHome, dump_partitions, job_tags, sample_seed
from workflows.lib.reuse import code_version
from workflows.lib.torchrun import Launch, read_metrics, run_training

OWNERS = ["team:modelling"]
TRAINING_POOL = "training"
"""One training at a time, as long as the pool's limit is 1: each takes every GPU that it sees."""

PRETRAINING_CODE = code_version("bert_model.pretraining.run.pretrain")

SAVING_TIMES = ("seconds", "_per_second")
"""Ends of the keys that say how long the export of the finished weights took: of no interest beside the training's."""

SHOWN_METRICS = {
    "train/mlm_loss": ("MLM loss", 3),
    "train/nsp_loss": ("NSP loss", 3),
    "train/tokens_per_second": ("tokens/s", 0),
    "held_out/mlm_loss": ("held-out MLM loss", 3),
    "held_out/mlm_accuracy": ("MLM accuracy %", 1),
    "held_out/nsp_accuracy": ("NSP accuracy %", 1),
}
"""What a log line shows of an event: words and decimals. The rest is in `metrics.jsonl` and MLflow."""

PretrainingLaunchpad: Any = config_class(
    PretrainingConfig,
    name="PretrainingLaunchpad",
    defaults=launchpad_preset().pretraining,
    extra={
        "launch": (
            config_class(LaunchConfig, name="LaunchLaunchpad", defaults=launchpad_preset().launch),
            Field(description="Machines and processes."),
        )
    },
)


@dg.asset(
    deps=[instances],
    group_name="pretraining",
    kinds={"pytorch", "huggingface"},
    owners=OWNERS,
    tags=job_tags("pretrained_model"),
    partitions_def=dump_partitions,
    pool=TRAINING_POOL,
    freshness_policy=MONTHLY,
    code_version=PRETRAINING_CODE,
)
def pretrained_model(
    context: dg.AssetExecutionContext, config: PretrainingLaunchpad, home: BertHome
) -> dg.MaterializeResult[None]:
    """A BERT pre-trained on masked words and next sentences, as a Hugging Face `BertForPreTraining` directory.

    The training's directory is named by the hash of its configuration and data: materializing again after a kill
    resumes from the last checkpoint, and a finished training is not repeated, by whatever code it was made: where that
    is not today's, the log and the metadata say so.
    """
    name = context.partition_key
    home.apply_environment()
    with readable_failures():
        launch = from_mapping(LaunchConfig, config.launch.model_dump(), where="launch")
        settings = from_launchpad(PretrainingConfig, config)
        directories = {phase.max_seq_length: home.instances(name, phase.max_seq_length) for phase in settings.phases}
        settings = with_phases_in(settings, directories)
        if settings.initial_model:  # an alias may move while ranks start: from here on it is a directory
            from bert_model.registry.resolve import resolve_model

            context.log.info(f"continuing from {settings.initial_model}")
            settings = dataclasses.replace(settings, initial_model=str(resolve_model(settings.initial_model)))
        output, training = _training_directory(home, name, settings)
        manifest = _finished(output)
        if manifest is None:
            _train(context, home, name, settings, launch, output)
            for event in _evaluations(read_metrics(output / "metrics.jsonl"))[-1:]:
                context.log.info(describe_event(event, settings.total_steps))
            manifest = load_manifest(output / "model", kind="pretrained_model")
        else:
            context.log.info(f"training {training} is finished already; nothing to do")
        write_text_durably(
            home.current_training(name), json.dumps({"training": training, "sha256": manifest.sha256}) + "\n"
        )
    events = read_metrics(output / "metrics.jsonl")
    other_code = describe_other_code(events, output)
    facts = manifest_metadata(manifest)
    metadata = {key: value for key, value in facts.items() if not key.endswith(SAVING_TIMES)} | {
        "training_id": training,
        "training_directory": dg.MetadataValue.path(str(output)),
        "configuration": dg.MetadataValue.json(to_mapping(settings)),
        "loss": loss_preview(events),
        "curves": picture(
            training_curves(events, training_title(settings.model.preset, name)), "loss and accuracy against steps"
        ),
        "evaluations": table(evaluation_rows(events)),
    }
    if other_code:
        context.log.warning(other_code)
        metadata["trained_by_other_code"] = dg.MetadataValue.md(other_code)
    if run_id := mlflow_run_id(manifest):
        metadata["mlflow_run"] = dg.MetadataValue.url(home.run_page(run_id))
    metadata |= flat_numbers(last_metrics(events))
    return dg.MaterializeResult(metadata=for_reading(metadata), data_version=dg.DataVersion(manifest.sha256))


def current_model(home: BertHome, dump: str) -> Path:
    """The directory of a dump's pre-trained model; ArtefactError when there is none."""
    pointer = home.current_training(dump)
    try:
        training = json.loads(pointer.read_text(encoding="utf-8"))["training"]
    except (OSError, ValueError, KeyError):
        raise ArtefactError(f"{pointer}: no pre-trained model of {dump} yet; materialize pretrained_model") from None
    return home.pretraining(dump, training) / "model"


def training_picture(model: Path, dump: str) -> bytes | None:
    """The curves of the training that left a model, as PNG; None where its record is gone."""
    events = read_metrics(model.parent / "metrics.jsonl")
    preset = load_manifest(model, kind="pretrained_model").configuration["model"]["preset"]
    return training_curves(events, training_title(preset, dump)) if events else None


def training_title(preset: str, dump: str) -> str:
    """What stands over the curves."""
    mark = f" ({SAMPLE_MARK})" if sample_seed(dump) is not None else ""
    return f"BERT-{preset} on {dump}{mark}"


def describe_other_code(events: list[dict[str, Any]], directory: Path) -> str:
    """What to know of a training that was not made by today's code alone; "" where it was."""
    versions: list[str] = []
    for event in events:
        if event.get("event") == "start":  # anew, if an earlier start had not come to a checkpoint
            versions = []
        if event.get("event") in ("start", "resume"):
            versions.append(event.get("code_version") or "of unknown version")
    if versions and set(versions) == {PRETRAINING_CODE}:
        return ""
    makers = ", then by code ".join(dict.fromkeys(versions)) or "of unknown version"
    return (
        f"this model was trained by code {makers}, and today's is {PRETRAINING_CODE}: a finished training is kept when "
        f"code changes. To train it again, delete {directory} and materialize pretrained_model"
    )


def last_metrics(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The last value of every metric."""
    last: dict[str, Any] = {}
    for event in events:
        last.update(event.get("metrics") or {})
    return last


def evaluation_rows(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every held-out evaluation as a table row; the columns without the "held_out/" that all have."""
    return [
        {
            "step": int(event["step"]),
            **{key.rpartition("/")[2]: round(float(value), 4) for key, value in event["metrics"].items()},
        }
        for event in _evaluations(events)
    ]


def _evaluations(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event.get("event") == "evaluation" and event.get("metrics")]


def _training_directory(home: BertHome, dump: str, settings: PretrainingConfig) -> tuple[Path, str]:
    from bert_model.pretraining.run_directory import training_id

    manifests = [load_manifest(phase.instances, kind="instances") for phase in settings.phases]
    name = training_id(settings, manifests)
    return home.pretraining(dump, name), name


def _finished(output: Path) -> Manifest | None:
    """The model of a training that ended; None when it has to be trained, or trained on."""
    try:
        return load_manifest(output / "model", kind="pretrained_model", verify="sha256")
    except BertError:
        return None


def _train(
    context: dg.AssetExecutionContext,
    home: BertHome,
    dump: str,
    settings: PretrainingConfig,
    launch: LaunchConfig,
    output: Path,
) -> None:
    started = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%S.%f")
    logs = home.pretraining_logs(dump, output.name) / started
    logs.mkdir(parents=True)
    configuration = logs / "configuration.yaml"
    write_text_durably(configuration, yaml.safe_dump(to_mapping(settings), sort_keys=False))
    resume = any((output / "checkpoints").glob("step-*/manifest.json"))
    if resume:
        context.log.info(f"training {output.name} was interrupted: resuming from its last checkpoint")
    total = settings.total_steps

    def report(event: dict[str, Any]) -> None:
        context.log.info(describe_event(event, total))
        if event.get("event") == "evaluation" and event.get("metrics"):
            context.log_event(
                dg.AssetObservation(
                    asset_key=context.asset_key,
                    partition=context.partition_key,
                    metadata={"step": int(event["step"]), **flat_numbers(event["metrics"])},
                )
            )

    run_training(
        Launch(
            module="bert_model.pretraining",
            arguments=("--config", str(configuration), "--output", str(output), *(["--resume"] if resume else [])),
            metrics_path=output / "metrics.jsonl",
            log_directory=logs,
            processes_per_node=launch.processes_per_node or _num_devices(),
            nodes=launch.nodes,
            rendezvous_endpoint=launch.rendezvous_endpoint,
            rendezvous_id=output.name,
            threads_per_process=launch.threads_per_process,
            environment={
                **home.environment(),
                "BERT_DAGSTER_RUN_ID": context.run.run_id,
                CODE_VERSION_VARIABLE: PRETRAINING_CODE,
            },
        ),
        report=report,
        say=context.log.info,
    )


def describe_event(event: dict[str, Any], total_steps: int) -> str:
    """One line on an event of `metrics.jsonl`."""
    kind, step = str(event.get("event", "")), int(event.get("step", 0))
    metrics = event.get("metrics") or {}
    if kind in ("start", "resume"):
        verb = "starting" if kind == "start" else "resuming"
        return f"{verb} from step {step} of {total_steps}"
    if kind == "checkpoint":
        return f"step {step}/{total_steps}: checkpoint saved"
    if kind == "end":
        return f"step {step}/{total_steps}: {event.get('status') or 'end'}"
    numbers = flat_numbers(metrics)
    shown = [f"{words} {numbers[key]:,.{digits}f}" for key, (words, digits) in SHOWN_METRICS.items() if key in numbers]
    return f"step {step}/{total_steps}: {', '.join(shown) or kind}"


def _num_devices() -> int:
    import torch

    return max(1, torch.cuda.device_count())
