"""Batch prediction: the asset `predictions`, a champion's answers to files."""

import dataclasses
import itertools
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import dagster as dg

from bert_model.inference.inputs import read_rows, rejected_path
from bert_pipeline.errors import InputError
from bert_pipeline.manifest import Manifest, foreign_input, load_manifest, publishing
from bert_pipeline.step import STEPS
from bert_pipeline.tasks.catalogue import Task
from workflows.defs.promotion import REGISTRY_RETRIES, champion, registered_model
from workflows.lib.launchpad import launchpad_preset
from workflows.lib.lineage import name_of_preset
from workflows.lib.metadata import manifest_metadata, materialization, observe, shortened, table
from workflows.lib.resources import BertHome, Made, step_asset

PREDICTION_POOL = "prediction"
"""One run at a time: each uses the first GPU, or every core."""
NUM_SAMPLES = 5
NUM_CANDIDATE_ROWS = 100
"""First rows of a file among which the samples are."""


@step_asset(
    deps=[registered_model, champion],
    kinds={"pytorch", "mlflow", "json"},
    pool=PREDICTION_POOL,
    output_required=False,
    retry_policy=REGISTRY_RETRIES,
)
def predictions(
    context: dg.AssetExecutionContext,
    home: BertHome,
    inputs: Annotated[
        list[str],
        "Files as `bert predict` reads them: lines of text, tab-separated fields, JSON lines, or the task's own data "
        "files. Empty: every file in BERT_HOME/inputs/<task>.",
    ] = [],  # noqa: B006
    model: Annotated[
        str,
        "Registered version, such as models:/bert-tiny-sst2/3. Empty: the champion of the task and of the preset's "
        "size.",
    ] = "",
) -> Made | None:
    """The predictions of a task's champion: for each input file one of JSON lines, an answer for each input, in order.

    Rows that cannot be read or answered are set aside in a second file, `<input>.jsonl.rejected.jsonl`, and counted.

    The champion is resolved when the run starts; manifest and metadata name its version. The same files are not
    answered twice by the same version. Without any file or without a champion nothing is materialized.
    """
    from bert_model.registry.operations import download, get_version, why_no_champion

    task = context.partition_key
    files = input_files(home, task, inputs)
    champion = f"{name_of_preset(launchpad_preset())}-{task}"
    # Nothing to answer, or nobody who may, is no failure; the observation tells why nothing was materialized.
    skipped, why = "", ""
    if not files:
        skipped, why = "no input", f"{home.prediction_inputs(task)} holds no file, and `inputs` names none"
    elif not model and (reason := why_no_champion(champion)):
        skipped = why = f"no champion: {champion} {reason}"
    if skipped:
        context.log.warning(f"skipped: {why}")
        observe(context, {"skipped": skipped})
        return None

    # The alias may move while this runs: the version is fixed now, and part of the inputs.
    described = home.task(task)
    version = get_version(model or f"models:/{champion}@champion")
    uri = f"models:/{version.name}/{version.version}"
    context.log.info(f"{uri} answers {', '.join(path.name for path in files)}")
    # The same version answers files of the same content once.
    recorded = recorded_inputs(files, {"uri": uri, "content_sha256": version.content_sha256})
    manifest = STEPS["predictions"].make(
        home.predictions(task),
        lambda: _answer(task, download(uri), files, recorded, home.predictions(task)),
        settings={"task": task},
        inputs=recorded,
        log=context.log.info,
    )
    context.log.info(f"{manifest.counts['answers']:,} answers in {manifest.path}")
    if rejected := manifest.counts.get("rejected", 0):
        context.log.warning(f"{rejected:,} rows are not answered; see the *.rejected.jsonl files in {manifest.path}")
    metadata = manifest_metadata(manifest) | {
        "model": uri,
        "model_version": version.version,
        "mlflow_version": home.mlflow_version(version.name, version.version),
        "time/answers_per_second": float(manifest.provenance["answers_per_second"]),
        "answers_sample": table(itertools.islice(answered_rows(manifest, files, described), NUM_SAMPLES)),
    }
    return materialization(manifest.sha256, metadata)


def input_files(home: BertHome, task: str, named: Sequence[str]) -> list[Path]:
    """Return the files to answer, in order; InputError when one is missing or two have the same name."""
    folder = home.prediction_inputs(task)
    files = [Path(name) for name in named]
    if not files and folder.is_dir():
        files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    for path in files:
        if not path.is_file():
            raise InputError(f"{path}: no such file; give the path of a file to answer")

    # Answers are named by the name of their input alone.
    if twice := sorted(name for name, count in Counter(path.name for path in files).items() if count > 1):
        raise InputError(f"{twice[0]}: two inputs have this name, and so would their answers; rename one")
    return files


def recorded_inputs(files: Sequence[Path], model: Mapping[str, str]) -> dict[str, Any]:
    """Return what the answers depend on: the input files by name, and the version as "model"."""
    # A file may be named "model" too; no name of a file has a slash.
    names = {path: "./model" if path.name == "model" else path.name for path in files}
    return {name: foreign_input(path) for path, name in names.items()} | {"model": dict(model)}


def _answer(task: str, model: Path, files: Sequence[Path], inputs: dict[str, Any], directory: Path) -> Manifest:
    from bert_model.inference.predict import answer_file, load_predictor

    predictor = load_predictor(task, [model])
    configuration = {"task": task, "form": predictor.form}
    with publishing(directory, kind="predictions", configuration=configuration, inputs=inputs) as draft:
        # The rate includes reading and writing, but not loading the model.
        started = time.monotonic()
        totals: Counter[str] = Counter()
        for path in files:
            answers = draft.path / f"{path.name}.jsonl"
            counts = answer_file(predictor, str(path), str(answers))
            draft.rows[answers.name] = counts.lines
            if counts.rejected:
                draft.rows[rejected_path(str(answers)).name] = counts.rejected
            totals.update(dataclasses.asdict(counts))
        draft.counts = {"answers": totals["answers"]} | {name: count for name, count in totals.items() if count}
        draft.provenance = {
            "answers_per_second": round(totals["answers"] / max(time.monotonic() - started, 1e-6), 3),
            "paths": [str(path.resolve()) for path in files],
        }
    return load_manifest(directory, kind="predictions")


def answered_rows(manifest: Manifest, files: Sequence[Path], task: Task) -> Iterator[dict[str, Any]]:
    """Yield the first inputs of each file with their answers as table rows."""

    def cell(value: Any) -> str:
        return shortened(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), 240)

    for path in files:
        inputs = itertools.islice(read_rows(str(path), manifest.configuration["form"], task), NUM_CANDIDATE_ROWS)
        items = {str(row.fields["id"]): row.fields for row in inputs}
        with open(manifest.path / f"{path.name}.jsonl", encoding="utf-8") as lines:
            for answer in map(json.loads, itertools.islice(lines, NUM_CANDIDATE_ROWS)):
                item = items.get(str(answer["id"]))
                if item is not None and answer["prediction"] is not None:
                    fields = {key: cell(value) for key, value in item.items() if value is not None}
                    yield {"file": path.name, **fields, "answer": cell(answer)}
