"""Batch prediction: what the champion of a task answers to files."""

import itertools
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import Field

from bert_pipeline.errors import InputError
from bert_pipeline.manifest import Manifest, foreign_input, load_manifest, publishing
from workflows.defs.pretraining import OWNERS
from workflows.defs.promotion import REGISTRY_RETRIES, registered_task_model, version_link
from workflows.lib.launchpad import launchpad_preset
from workflows.lib.metadata import for_reading, manifest_metadata, readable_failures, shortened, table
from workflows.lib.resources import BertHome, job_tags, task_partitions
from workflows.lib.reuse import code_version, made_or_reused, recipe

PREDICTION_POOL = "prediction"
"""One at a time: each takes the first GPU, or every core."""
PREDICTIONS_KIND = "predictions"
NUM_SAMPLES = 5

PREDICTION_CODE = code_version(
    "bert_model.inference.predict.load_predictor", "bert_model.inference.predict.answer_file"
)


class PredictionLaunchpad(dg.Config):
    """What is answered, and by which model."""

    inputs: list[str] = Field(
        default=[],
        description="Files as `bert predict` reads them: lines of text, tab-separated fields, JSON lines, CoNLL "
        "columns. Empty: every file in BERT_HOME/inputs/<task>.",
    )
    model: str = Field(
        default="",
        description="Registered version, such as models:/bert-tiny-sst2/3. Empty: the champion of the task and of the "
        "preset's size.",
    )


@dg.asset(
    deps=[registered_task_model],
    group_name="serving",
    kinds={"pytorch", "mlflow", "json"},
    owners=OWNERS,
    tags=job_tags("predictions"),
    partitions_def=task_partitions,
    pool=PREDICTION_POOL,
    output_required=False,
    retry_policy=REGISTRY_RETRIES,
    code_version=PREDICTION_CODE,
)
def predictions(context: dg.AssetExecutionContext, config: PredictionLaunchpad, home: BertHome) -> Any:
    """A task's champion asked about files: for each file one of JSON lines, an answer for each input, in order.

    The registry's version is taken when the run starts, and is named in the manifest and in the metadata. The same
    files with the same version are not answered twice. Without any file nothing is made.
    """
    from bert_model.registry.registry import download, get_version

    task = context.partition_key
    home.apply_environment()
    with readable_failures():
        files = input_files(home, task, config.inputs)
        if not files:
            context.log.warning(f"skipped: {home.prediction_inputs(task)} holds no file, and `inputs` names none")
            context.log_event(
                dg.AssetObservation(asset_key=context.asset_key, partition=task, metadata={"skipped": "no input"})
            )
            return
        version = get_version(config.model or f"models:/{launchpad_preset().model_name}-{task}@champion")
        uri = f"models:/{version.name}/{version.version}"
        context.log.info(f"{uri} answers {', '.join(path.name for path in files)}")
        inputs: dict[str, Any] = {path.name: foreign_input(path) for path in files}
        inputs["model"] = {"uri": uri, "content_sha256": version.content_sha256}
        manifest = made_or_reused(
            home.predictions(task),
            PREDICTIONS_KIND,
            recipe(code_version=PREDICTION_CODE, settings={"task": task}, inputs=inputs),
            lambda: _answer(task, download(uri), files, inputs, home.predictions(task)),
            context.log.info,
        )
        sample = sample_answers(manifest, files)
    context.log.info(f"{manifest.counts['answers']:,} answers in {manifest.path}")
    metadata = manifest_metadata(manifest) | {
        "model": uri,
        "model_version": version.version,
        "mlflow_version": version_link(home, version),
        "answers_per_second": float(manifest.provenance["answers_per_second"]),
        "answers_sample": table(sample),
    }
    yield dg.MaterializeResult(metadata=for_reading(metadata), data_version=dg.DataVersion(manifest.sha256))


def input_files(home: BertHome, task: str, named: Sequence[str]) -> list[Path]:
    """The files to answer, in order; InputError when one is missing or two have the same name."""
    folder = home.prediction_inputs(task)
    files = [Path(name) for name in named]
    if not files and folder.is_dir():
        files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    for path in files:
        if not path.is_file():
            raise InputError(f"{path}: no such file; give the path of a file to answer")
    twice = [name for name, same in itertools.groupby(sorted(path.name for path in files)) if len(list(same)) > 1]
    if twice:
        raise InputError(f"{twice[0]}: two inputs have this name, and so would their answers; rename one")
    return files


def _answer(task: str, model: Path, files: Sequence[Path], inputs: dict[str, Any], directory: Path) -> Manifest:
    from bert_model.inference.predict import answer_file, load_predictor

    predictor = load_predictor(task, [model])
    configuration = {"task": task, "form": predictor.form}
    with publishing(directory, kind=PREDICTIONS_KIND, configuration=configuration, inputs=inputs) as draft:
        started = time.monotonic()
        for path in files:
            draft.rows[answers_name(path)] = answer_file(predictor, str(path), str(draft.path / answers_name(path)))
        total = sum(draft.rows.values())
        draft.counts = {"answers": total}
        draft.provenance = {
            "answers_per_second": round(total / max(time.monotonic() - started, 1e-6), 3),
            "paths": [str(path.resolve()) for path in files],
        }
    return load_manifest(directory, kind=PREDICTIONS_KIND)


def answers_name(path: Path) -> str:
    """The file of the answers to `path`."""
    return f"{path.name}.jsonl"


def sample_answers(manifest: Manifest, files: Sequence[Path]) -> list[dict[str, Any]]:
    """The first inputs and their answers, for people to look at."""
    from bert_model.inference.inputs import read_inputs

    form = manifest.configuration["form"]
    rows = []
    for path in files:
        with open(path, encoding="utf-8", newline="\n") as lines, open(manifest.path / answers_name(path)) as answers:
            for record, answer in zip(read_inputs(lines, form, str(path)), answers):
                rows.append({"file": path.name, **_shown(record), "answer": shortened(_plain(json.loads(answer)), 240)})
                if len(rows) == NUM_SAMPLES:
                    return rows
    return rows


def _shown(record: dict[str, Any]) -> dict[str, str]:
    return {key: shortened(_plain(value), 240) for key, value in record.items() if value is not None}


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
