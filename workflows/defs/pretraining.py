"""The asset `pretrained_model`: torchrun over the instances, monitored by the step, and the exported model."""

import contextlib
import dataclasses
import datetime
import json
from pathlib import Path
from typing import Annotated, Any

import dagster as dg
import yaml

from bert_model.presets import LaunchConfig, with_phases_in
from bert_model.pretraining.config import PretrainingConfig
from bert_model.registry.resolve import resolve_model
from bert_model.training.metrics_log import CODE_VERSION_VARIABLE, mlflow_run_id, read_history
from bert_model.training.mlflow_sync import sync
from bert_pipeline.atomic import replace_text
from bert_pipeline.configuration import to_mapping
from bert_pipeline.errors import ArtifactError, BertError
from bert_pipeline.exam.pairs import read_pairs
from bert_pipeline.manifest import load_manifest
from bert_pipeline.step import STEPS
from bert_pipeline.storage import without_secrets
from workflows.defs.automation import MONTHLY
from workflows.defs.data import exam, instances
from workflows.lib.metadata import (
    flat_numbers,
    manifest_metadata,
    materialization,
    observe,
    picture,
    table,
    training_curves,
)
from workflows.lib.resources import BertHome, Made, dump_label, step_asset
from workflows.lib.torchrun import Launch, run_training

TRAINING_POOL = "training"
"""One training at a time while the pool's limit is 1: each uses every visible GPU."""

SHOWN_METRICS = {
    "train/mlm_loss": ("MLM loss", 3),
    "train/nsp_loss": ("NSP loss", 3),
    "train/tokens_per_second": ("tokens/s", 0),
    "held_out/mlm_loss": ("held-out MLM loss", 3),
    "held_out/mlm_accuracy": ("MLM accuracy %", 1),
    "held_out/nsp_accuracy": ("NSP accuracy %", 1),
    "exam/accuracy": ("exam %", 1),
    "exam_report/accuracy": ("exam of the model %", 1),
    "exam_report/ngram_baseline": ("n-gram model %", 1),
}
"""Metrics in log lines: words and decimals. The others are in `metrics.jsonl` and MLflow."""


@step_asset(deps=[instances, exam], kinds={"pytorch", "huggingface"}, pool=TRAINING_POOL, freshness_policy=MONTHLY)
def pretrained_model(
    context: dg.AssetExecutionContext,
    home: BertHome,
    settings: PretrainingConfig,
    launch: Annotated[LaunchConfig, "Machines and processes."],
) -> Made:
    """A BERT pre-trained on masked words and next sentences, as a Hugging Face `BertForPreTraining` directory.

    The training's directory is named by the hash of its configuration and data: materializing again after a kill
    resumes from the last checkpoint. Checkpoints are examined on the pairs of `exam`, if there are any and the
    configuration names no others. A finished training is not repeated, even if the code has changed since; log and
    metadata then say so.
    """
    name = context.partition_key
    # Each phase reads the instances of its sequence length.
    directories = {phase.max_seq_length: home.instances(name, phase.max_seq_length) for phase in settings.phases}
    settings = with_phases_in(settings, directories)
    if not settings.exam:
        settings = dataclasses.replace(settings, exam=_made_pairs(context, home, name))
    if settings.initial_model:
        context.log.info(f"continuing from {without_secrets(settings.initial_model)}")
        # An alias may move while ranks start; the directory of a version does not.
        settings = dataclasses.replace(settings, initial_model=str(resolve_model(settings.initial_model)))
    # The directory follows from settings and data, so a rerun finds its finished model or its checkpoints.
    output = _training_directory(home, name, settings)
    manifest = None
    with contextlib.suppress(BertError):  # it has to be started or resumed
        manifest = load_manifest(output / "model", kind="pretrained_model", verify="sha256")
    if is_new := manifest is None:
        _train(context, home, name, settings, launch, output)
        manifest = load_manifest(output / "model", kind="pretrained_model")
    else:
        context.log.info(f"training {output.name} is finished already; nothing to do")
        # It may have ended while MLflow was down.
        sync(output)
    # Assets downstream find the current training by this pointer.
    current = {"training": output.name, "sha256": manifest.sha256}
    replace_text(home.current_training(name), json.dumps(current) + "\n")

    # The whole history is read again, so that a resumed or reused training has full curves.
    events = read_history(output)
    evaluations = [event for event in events if event.get("event") == "evaluation" and event.get("metrics")]
    if is_new and evaluations:
        context.log.info(describe_event(evaluations[-1], settings))
    curves = training_curves(events, f"BERT-{settings.model.name} on {dump_label(name)}")
    metadata = manifest_metadata(manifest, rates=False) | {
        "training_id": output.name,
        "training_directory": dg.MetadataValue.path(str(output)),
        "configuration": dg.MetadataValue.json(to_mapping(settings)),
        "curves": picture(curves, "loss and accuracy against steps"),
        "evaluations": table(
            [
                {"step": int(event["step"])}
                | {key.rpartition("/")[2]: round(float(value), 4) for key, value in event["metrics"].items()}
                for event in evaluations
            ]
        ),
    }

    # Metadata that only some trainings have.
    if other_code := describe_other_code(events, output):
        context.log.warning(other_code)
        metadata["trained_by_other_code"] = dg.MetadataValue.md(other_code)
    if run_id := mlflow_run_id(manifest):
        metadata["mlflow_run"] = home.mlflow_run(run_id)
    # The last value of each metric; not every event has all of them. Those of the published checkpoint are the model's.
    last_metrics: dict[str, Any] = {}
    for event in events:
        last_metrics |= event.get("metrics") or {}
    of_the_model = {key: value for key, value in last_metrics.items() if not key.startswith("system/")}
    return materialization(manifest.sha256, flat_numbers(of_the_model) | metadata)


def _made_pairs(context: dg.AssetExecutionContext, home: BertHome, dump: str) -> str:
    """Return the directory of the asset `exam`; "" if it has no pairs, or none for one of both purposes."""
    directory = home.exam(dump)
    if not directory.is_dir():
        return ""
    load_manifest(directory, kind="exam", verify="sha256")
    if len({pair.part for pair in read_pairs(directory)}) < 2:
        context.log.warning(
            "the training is not examined: all pairs are of few documents, for choosing or for reporting; make the "
            "corpus with a larger held_out_per_mille"
        )
        return ""
    return str(directory)


def _training_directory(home: BertHome, dump: str, settings: PretrainingConfig) -> Path:
    from bert_model.pretraining.run_directory import training_id

    manifests = [load_manifest(phase.instances, kind="instances") for phase in settings.phases]
    corpora = {manifest.directory: manifest.inputs["corpus"]["content_sha256"] for manifest in manifests}
    if len({*corpora.values()}) > 1:  # some lengths were left out when the others were made again
        found = ", ".join(f"{without_secrets(str(path))} of corpus {digest[:12]}…" for path, digest in corpora.items())
        raise ArtifactError(f"{found}: expected one corpus; materialize instances with all lengths of the phases")
    return home.pretraining(dump, training_id(settings, manifests))


def _train(
    context: dg.AssetExecutionContext,
    home: BertHome,
    dump: str,
    settings: PretrainingConfig,
    launch: LaunchConfig,
    output: Path,
) -> None:
    """Run torchrun to the end of the training, or resume it; log its events and observe its evaluations."""
    import torch

    # One log directory for each launch, so that a resumed training keeps the logs of the failure.
    logs = home.pretraining_logs(dump, output.name) / f"{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%S.%f}"
    logs.mkdir(parents=True)
    configuration = logs / "configuration.yaml"
    replace_text(configuration, yaml.safe_dump(to_mapping(settings), sort_keys=False))
    # The manifest is written last: a checkpoint that has one is complete.
    resume = any((output / "checkpoints").glob("step-*/manifest.json"))
    if resume:
        context.log.info(f"training {output.name} was interrupted: resuming from its last checkpoint")

    def report(event: dict[str, Any]) -> None:
        context.log.info(describe_event(event, settings))
        if event.get("event") in ("evaluation", "exam", "exam_report") and event.get("metrics"):
            observe(context, {"step": int(event["step"]), **flat_numbers(event["metrics"])})

    ranks = launch.processes_per_node or max(1, torch.cuda.device_count())
    run_training(
        Launch(
            module="bert_model.pretraining",
            arguments=("--config", str(configuration), "--output", str(output), *(["--resume"] if resume else [])),
            output=output,
            log_directory=logs,
            machines=dataclasses.replace(launch, processes_per_node=ranks),
            environment={**home.environment(), CODE_VERSION_VARIABLE: str(STEPS["pretrained_model"].code_version)},
        ),
        report=report,
        log=context.log.info,
    )


def describe_event(event: dict[str, Any], settings: PretrainingConfig) -> str:
    """Return one line on an event of `metrics.jsonl`."""
    goal = "" if settings.budget else f"/{settings.total_steps}"
    kind, step = str(event.get("event", "")), int(event.get("step", 0))
    if kind in ("start", "resume"):
        verb = "starting" if kind == "start" else "resuming"
        return f"{verb} from step {step}{settings.goal.replace(',', '')}"
    if kind == "checkpoint":
        return f"step {step}{goal}: checkpoint saved"
    if kind == "end":
        return f"step {step}{goal}: {event.get('status') or 'end'}"
    numbers = flat_numbers(event.get("metrics") or {})
    shown = [f"{words} {numbers[key]:,.{digits}f}" for key, (words, digits) in SHOWN_METRICS.items() if key in numbers]
    return f"step {step}{goal}: {', '.join(shown) or kind}"


def training_picture(model: Path, dump: str) -> bytes | None:
    """Return the curves of the training of a model as PNG; None without its metrics."""
    events = read_history(model.parent)
    preset = load_manifest(model, kind="pretrained_model").configuration["model"]["preset"]
    return training_curves(events, f"BERT-{preset} on {dump_label(dump)}") if events else None


def describe_other_code(events: list[dict[str, Any]], directory: Path) -> str:
    """Return a warning if code of another version has trained the model; "" otherwise."""
    versions: list[str] = []
    for event in events:
        if event.get("event") == "start":  # an earlier start ended before its first checkpoint
            versions = []
        if event.get("event") in ("start", "resume"):
            versions.append(event.get("code_version") or "of unknown version")
    current = STEPS["pretrained_model"].code_version
    if versions and set(versions) == {current}:
        return ""
    makers = ", then by code ".join(dict.fromkeys(versions)) or "of unknown version"
    return (
        f"this model was trained by code {makers}, and today's is {current}: a finished training is kept when "
        f"code changes. To train it again, delete {directory} and materialize pretrained_model"
    )
