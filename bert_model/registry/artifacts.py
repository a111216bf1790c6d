"""Files of a registered version: upload, download, verification and reference outputs.

Reference outputs for a fixed input are stored at registration and recomputed before promotion: hashes show that the
bytes are unchanged, these that the code still computes the same from them.
"""

import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bert_model.finetuning.encode import encode_examples
from bert_model.finetuning.task_model import load_task_model, read_task_facts
from bert_model.inference.inputs import check_input, to_examples
from bert_model.model.bert import BertForPreTraining
from bert_model.model.weights import load_model
from bert_model.registry.client import RegisteredVersion, quiet
from bert_model.registry.model_card import CARD_NAME, card_problem
from bert_model.registry.promotion import Inspection
from bert_model.registry.versions import KINDS, refuse_other_files
from bert_model.training.metrics_log import bert_home, first_line, mlflow_run_id
from bert_model.training.mlflow_sync import experiment_id
from bert_pipeline.errors import ArtefactError, BertError
from bert_pipeline.manifest import MANIFEST_NAME, Manifest, load_manifest
from bert_pipeline.vocabulary.tokenizer import Tokenizer

if TYPE_CHECKING:
    from mlflow import MlflowClient


EXPERIMENT = "bert"


def upload(
    client: "MlflowClient", manifest: Manifest, name: str, tags: Mapping[str, str], beside: Mapping[str, bytes]
) -> str:
    """Store a directory as a logged model that MLflow can serve, with the files `beside` it; return its id."""
    import mlflow

    from bert_model.inference.predict import answer_inputs, load_predictor
    from bert_model.registry import pyfunc

    task = tags.get("task", "mlm")
    predictor = load_predictor(task, [manifest.path])
    example = pyfunc.EXAMPLES[task if task == "mlm" else predictor.form]
    signature = _signature(example, answer_inputs(predictor, [example]))
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "served"
        with quiet():
            mlflow.pyfunc.save_model(
                path=str(path),
                python_model=pyfunc.__file__,
                artifacts={pyfunc.ARTIFACT: str(manifest.path)},
                signature=signature,
                input_example=[example],
                pip_requirements=_requirements(),
            )
        for file, data in beside.items():
            (path / file).write_bytes(data)
        logged = client.create_logged_model(
            experiment_id=experiment_id(client, EXPERIMENT),
            name=name,
            source_run_id=mlflow_run_id(manifest),
            tags=dict(tags),
            model_type=manifest.kind,
        )
        client.log_model_artifacts(logged.model_id, str(path))
        client.finalize_logged_model(logged.model_id, "READY")
    return logged.model_id


def add_beside(client: "MlflowClient", version: RegisteredVersion, files: Mapping[str, bytes]) -> None:
    """Write small files beside a version's model, over those of the same names."""
    with tempfile.TemporaryDirectory() as scratch:
        for file, data in files.items():
            (Path(scratch) / file).write_bytes(data)
        client.log_model_artifacts(version.model_id, scratch)


def read_card(client: "MlflowClient", version: RegisteredVersion) -> str:
    """The version's model card; "" where there is none."""
    import mlflow

    with tempfile.TemporaryDirectory() as scratch:
        try:
            uri = client.get_model_version_download_uri(version.name, str(version.version))
            path = mlflow.artifacts.download_artifacts(artifact_uri=f"{uri}/{CARD_NAME}", dst_path=scratch)
            return Path(path).read_text(encoding="utf-8")
        except (mlflow.MlflowException, OSError, ValueError):
            return ""


def fetch(client: "MlflowClient", version: RegisteredVersion) -> Path:
    """Return a local directory with a version's model; downloads go to a cache, named by content."""
    expected = version.facts.content_sha256
    where = f"{version.name} version {version.version}"
    if not re.fullmatch(r"[0-9a-f]{64}", expected):
        raise ArtefactError(f"{where}: was not registered by this program (no content_sha256); register it anew")
    target = bert_home() / "cache" / "models" / expected
    with contextlib.suppress(ArtefactError):
        return load_manifest(target, verify="sha256").path
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".download-", dir=target.parent) as scratch:
        manifest = _download_into(client, version, Path(scratch))
        if manifest.sha256 != expected:
            raise ArtefactError(
                f"{where}: holds {manifest.sha256[:12]}…, expected {expected[:12]}… as registered; it was replaced"
            )
        clean = Path(scratch) / "clean"
        for file in (MANIFEST_NAME, *manifest.files):  # only what the manifest lists leaves the scratch directory
            (clean / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.move(manifest.path / file, clean / file)
        shutil.rmtree(target, ignore_errors=True)
        os.rename(clean, target)
    return target


def inspect(client: "MlflowClient", version: RegisteredVersion) -> Inspection:
    """Download a version afresh and say what is wrong with its files, what it computes, and its card."""

    card = card_problem(read_card(client, version))
    if card is None and not version.description:
        card = "its description is empty"
    with tempfile.TemporaryDirectory() as scratch:
        try:
            manifest = _download_into(client, version, Path(scratch))
        except BertError as error:
            damage = str(error).replace(scratch, "")
            return Inspection(damage=damage, logits="its files are damaged", card=card)
        expected = version.facts.content_sha256
        if manifest.sha256 != expected:
            damage = f"its content is {manifest.sha256[:12]}…, {expected[:12]}… was registered"
            return Inspection(damage=damage, logits="its files are others", card=card)
        try:
            logits = difference(version.tags.get("reference_logits", ""), manifest.path)
        except BertError as error:
            logits = str(error).replace(scratch, "")
    return Inspection(logits=logits, card=card)


def _download_into(client: "MlflowClient", version: RegisteredVersion, scratch: Path) -> Manifest:
    import mlflow

    where = f"{version.name} version {version.version}"
    try:
        uri = client.get_model_version_download_uri(version.name, str(version.version))
        fetched = Path(mlflow.artifacts.download_artifacts(artifact_uri=f"{uri}/artifacts", dst_path=str(scratch)))
    except (mlflow.MlflowException, OSError) as error:
        raise ArtefactError(f"{where}: its artefacts cannot be read ({first_line(error)})") from error
    inside = [path.parent for path in fetched.glob(f"*/{MANIFEST_NAME}")]
    if len(inside) != 1:
        raise ArtefactError(f"{where}: holds {len(inside)} directories with a {MANIFEST_NAME}, expected one")
    manifest = load_manifest(inside[0], verify="sha256")
    if manifest.kind not in KINDS:
        raise ArtefactError(f"{where}: holds a {manifest.kind}, expected a {' or a '.join(KINDS)}")
    refuse_other_files(manifest)
    return manifest


def _signature(example: Mapping[str, Any], answers: list[dict[str, Any]]) -> Any:
    from mlflow.models import ModelSignature, infer_signature
    from mlflow.types import DataType
    from mlflow.types.schema import Array, ColSpec, Schema, TensorSpec

    columns: list[ColSpec | TensorSpec] = [
        ColSpec(Array(DataType.string) if isinstance(value, list) else DataType.string, name)
        for name, value in example.items()
    ]
    with quiet():
        outputs = infer_signature(model_output=answers).outputs
    return ModelSignature(inputs=Schema(columns), outputs=outputs)


def _requirements() -> list[str]:
    from importlib.metadata import version

    return [f"{package}=={version(package)}" for package in ("torch", "tokenizers", "safetensors", "numpy", "mlflow")]


MOST_LOGITS = 256
TOLERANCE = 1e-3
"""Largest difference of two logits that another library or number of threads may make, relative to the largest."""

INPUTS: dict[str, dict[str, Any]] = {
    "text": {"text": "The film was a delight from beginning to end."},
    "pair": {"text": "The cat sat on the mat.", "text_b": "An animal was on the mat."},
    "span": {"question": "Where was Ada born?", "context": "Ada was born in London."},
    "choice": {"context": "She opens the door.", "endings": ["She walks in.", "The sun is blue."]},
    "tagging": {"text": "Ada Lovelace lived in London."},
}
"""One input of each form."""


def reference_logits(directory: Path | str) -> list[float]:
    """Compute the outputs of a pre-trained or fine-tuned model of ours for the input of its form, at most 256 of them.

    Computed on the CPU in one thread. InputError or ArtefactError when the directory cannot be loaded.
    """
    directory = Path(directory)
    logits = _pretrained_logits(directory) if read_task_facts(directory) is None else _task_logits(directory)
    chosen = np.unique(np.linspace(0, logits.size - 1, min(logits.size, MOST_LOGITS)).astype(int))
    return [float(f"{value:.6g}") for value in logits[chosen]]


def difference(recorded: str, directory: Path | str) -> str | None:
    """Say how a model's outputs differ from recorded ones (a JSON list); None where they are the same."""
    if not recorded:
        return "its logits were not recorded; register it again"
    expected, found = np.asarray(json.loads(recorded)), np.asarray(reference_logits(directory))
    if expected.shape != found.shape:
        return f"{found.size} logits, {expected.size} were recorded"
    gap = np.abs(expected - found)
    if not np.isfinite(found).all() or gap.max(initial=0.0) > TOLERANCE * max(1.0, np.abs(expected).max(initial=0.0)):
        worst = int(np.nanargmax(gap)) if np.isfinite(gap).any() else 0
        return f"logit {worst} is {found[worst]:.6g}, {expected[worst]:.6g} was recorded"
    return None


def _task_logits(directory: Path) -> np.ndarray:
    model = load_task_model(directory)
    kind = model.task.kind
    form = kind if kind in INPUTS else "pair" if model.task.pair else "text"
    examples = to_examples([check_input(INPUTS[form], form, "reference input")], form)
    encoded = encode_examples(model.task, examples, model.tokenizer, model.config)
    return np.asarray(model.logits(encoded, num_threads=1), dtype=np.float64).ravel()


@torch.inference_mode()
def _pretrained_logits(directory: Path) -> np.ndarray:
    tokenizer = Tokenizer.from_directory(directory)
    model, _ = load_model(BertForPreTraining, directory)
    threads_before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        a, b = tokenizer.encode_batch([INPUTS["pair"]["text"], INPUTS["pair"]["text_b"]])
        room = (model.config.max_position_embeddings - 3) // 2
        first, second = [tokenizer.cls_id, *a[:room], tokenizer.sep_id], [*b[:room], tokenizer.sep_id]
        segments = torch.tensor([[0] * len(first) + [1] * len(second)])
        output = model.eval()(torch.tensor([first + second]), torch.ones_like(segments), segments)
    finally:
        torch.set_num_threads(threads_before)
    parts = (output.seq_relationship_logits, output.prediction_logits)
    return np.concatenate([part.double().numpy().ravel() for part in parts])
