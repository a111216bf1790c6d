"""A version's files in the registry: our directory inside an MLflow model, its card beside it; up, down, and judged."""

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_model.model_card import CARD_NAME, card_problem
from bert_model.promotion import Inspection
from bert_model.record import first_line, mlflow_run_id
from bert_model.registry_client import RegisteredVersion, quiet
from bert_model.tracking import bert_home, experiment_id
from bert_model.version_tags import KINDS, refuse_other_files
from bert_pipeline.errors import ArtefactError, BertError
from bert_pipeline.manifest import MANIFEST_NAME, Manifest, load_manifest

if TYPE_CHECKING:
    from mlflow import MlflowClient

EXPERIMENT = "bert"


def upload(
    client: "MlflowClient", manifest: Manifest, name: str, tags: Mapping[str, str], beside: Mapping[str, bytes]
) -> str:
    """Store a directory as a logged model that MLflow can serve, with the files `beside` it; return its id."""
    import mlflow

    from bert_model import serving
    from bert_model.prediction import answer_records, load_predictor

    task = tags.get("task", "mlm")
    predictor = load_predictor(task, [manifest.path])
    example = serving.EXAMPLES[task if task == "mlm" else predictor.form]
    signature = _signature(example, answer_records(predictor, [example]))
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "served"
        with quiet():
            mlflow.pyfunc.save_model(
                path=str(path),
                python_model=serving.__file__,
                artifacts={serving.ARTIFACT: str(manifest.path)},
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
    from bert_model.reference_logits import difference

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
