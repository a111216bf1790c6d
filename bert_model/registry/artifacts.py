"""Files of a registered version: upload, download, verification and reference outputs.

Reference outputs for a fixed input are stored at registration and recomputed before promotion. Hashes show that the
bytes are unchanged; these show that the code still computes the same from them.
"""

import dataclasses
import functools
import importlib.metadata
import logging
import re
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from bert_model.finetuning.results import dev_data
from bert_model.finetuning.task_model import load_task_model, read_task_description
from bert_model.inference.inputs import check_input
from bert_model.kinds import kind_of
from bert_model.model.bert import BertForPreTraining
from bert_model.model.cpu_kernels import limited_threads
from bert_model.model.weights import load_model
from bert_model.registry.client import download, read_document, read_stored_file, silence_mlflow
from bert_model.registry.model_card import CARD_NAME, card_problem, card_sha256
from bert_model.registry.promotion import Inspection
from bert_model.registry.versions import (
    CARD_TAG,
    KINDS,
    VERSION_NAME,
    Exam,
    RegisteredVersion,
    Version,
    refuse_unsafe_files,
)
from bert_model.training.home import bert_home
from bert_model.training.metrics_log import DataInput, metric_key, mlflow_run_id
from bert_model.training.mlflow_store import NOTE_TAG, dataset_input, experiment_id, has_run, moving_files
from bert_model.zero_shot.exam import take_exam
from bert_pipeline.atomic import atomic_directory, cached
from bert_pipeline.errors import ArtifactError, BertError, InputError, UnavailableError, UsageError
from bert_pipeline.exam.pairs import read_pairs
from bert_pipeline.manifest import MANIFEST_NAME, Manifest, load_manifest
from bert_pipeline.vocabulary.tokenizer import Tokenizer

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel, Run
    from mlflow.models import ModelSignature

logger = logging.getLogger(__name__)

EXPERIMENT = "bert"

EXAMPLE_INPUTS: dict[str, dict[str, Any]] = {
    "text": {"text": "The film was a delight from beginning to end."},
    "pair": {"text": "The cat sat on the mat.", "text_b": "An animal was on the mat."},
    "span": {"question": "Where was Ada born?", "context": "Ada was born in London."},
    "choice": {"context": "She opens the door.", "endings": ["She walks in.", "The sun is blue."]},
    "tagging": {"text": "Ada Lovelace lived in London."},
    "mlm": {"text": "The capital of the country is [MASK]."},
}
"""One input per form: the example that MLflow stores with a version, and the input of the reference outputs.

Changing one makes every registered version fail the gate "reproduces_logits".
"""

MAX_LOGITS = 256
TOLERANCE = 1e-3
"""Accepted difference of a logit, relative to the largest logit: thread counts and library versions change sums."""


def upload(
    client: "MlflowClient", manifest: Manifest, name: str, document: Version, attachments: Mapping[str, bytes]
) -> "LoggedModel":
    """Store a model directory, with its scores, as a logged model of its training run that MLflow can serve.

    `attachments` are small files stored next to the model: name -> content.
    """
    import mlflow

    from bert_model.inference.predict import answer_inputs, load_predictor
    from bert_model.registry import pyfunc

    # Answer the example once: the signature is inferred from a real input and its answers.
    task = document.task or "mlm"
    predictor = load_predictor(task, [manifest.path])
    example = {"id": "0"} | EXAMPLE_INPUTS[task if task == "mlm" else predictor.form]
    signature = _signature(example, answer_inputs(predictor, [example]))
    with tempfile.TemporaryDirectory() as scratch:
        # MLflow's own layout: a copy of the directory, this project's code, and the versions of its requirements.
        path = Path(scratch) / "served"
        with silence_mlflow():
            mlflow.pyfunc.save_model(
                path=str(path),
                python_model=pyfunc.__file__,
                code_paths=[importlib.import_module(name).__path__[0] for name in ("bert_pipeline", "bert_model")],
                artifacts={pyfunc.ARTIFACT: str(manifest.path)},
                signature=signature,
                input_example=[example],
                pip_requirements=_requirements(),
            )
        for file, data in attachments.items():
            (path / file).write_bytes(data)

        # READY comes last: until then nobody can use a model whose upload was interrupted.
        run = _training_run(client, manifest, name)
        condition = f"name = '{name}' AND tags.content_sha256 = '{manifest.sha256}'"
        for other in client.search_logged_models([run.info.experiment_id], filter_string=condition):
            if other.status == "PENDING":  # an upload of the same files, interrupted
                client.delete_logged_model(other.model_id)
        logged = client.create_logged_model(
            experiment_id=run.info.experiment_id,
            name=name,
            source_run_id=run.info.run_id,
            tags=document.tags(),
            model_type=manifest.kind,
        )
        with moving_files():
            client.log_model_artifacts(logged.model_id, str(path))
        _log_scores(client, logged, manifest, document)
        return client.finalize_logged_model(logged.model_id, "READY")


def _training_run(client: "MlflowClient", manifest: Manifest, name: str) -> "Run":
    """Return the MLflow run that a model was trained in, or a new one if this store does not have it."""
    if (run_id := mlflow_run_id(manifest)) and has_run(client, run_id):
        return client.get_run(run_id)
    note = "Registration of a model that was trained without this MLflow store."
    run = client.create_run(experiment_id(client, EXPERIMENT), run_name=name, tags={NOTE_TAG: note})
    client.set_terminated(run.info.run_id)
    return run


def _log_scores(client: "MlflowClient", model: "LoggedModel", manifest: Manifest, document: Version) -> None:
    """Log the scores of a model with the data that they were measured on: MLflow lists them by data set."""
    from mlflow.entities import Metric

    instances = [item for item in manifest.provenance.get("data", []) if item["context"] == "training"]
    data: DataInput | None = instances[-1] if instances else None  # of the last phase
    if document.score and document.task:
        data = dev_data(document.task, document.score.dev_sha256)
    source: tuple[str | None, str | None] = (None, None)
    run_id = str(model.source_run_id)
    if data:
        read = dataset_input(data)
        source = (read.dataset.name, read.dataset.digest)
        client.log_inputs(run_id, datasets=[read])

    # The run has the same metrics, and with the same time and step MLflow stores them once.
    metrics = []
    for key, value in document.metrics.items():
        history = client.get_metric_history(run_id, metric_key(key))
        # The published checkpoint may be an earlier one.
        history = [entry for entry in history if entry.step == manifest.counts.get("published_step", entry.step)]
        when = (history[-1].timestamp, history[-1].step) if history else (int(time.time() * 1000), 0)
        metrics.append(Metric(metric_key(key), value, *when, model.model_id, *source))
    client.log_batch(run_id, metrics=metrics)


@moving_files()
def attach(client: "MlflowClient", version: RegisteredVersion, attachments: Mapping[str, bytes]) -> None:
    """Store small files next to a version's model, replacing those of the same names."""
    with tempfile.TemporaryDirectory() as scratch:
        for file, data in attachments.items():
            (Path(scratch) / file).write_bytes(data)
        client.log_model_artifacts(version.model_id, scratch)


def read_card(client: "MlflowClient", version: RegisteredVersion) -> tuple[str, str | None]:
    """Return the stored model card, "" for none, and how it differs from the one that was written last."""
    card = read_stored_file(client, version.name, version.version, CARD_NAME)
    if card is not None and card_sha256(card) in version.tags.get(CARD_TAG, "").split():
        return card, None
    state = "missing" if card is None else "cut off or was changed"
    return card or "", f"its {CARD_NAME} is {state}; register the model again"


def fetch(client: "MlflowClient", version: RegisteredVersion) -> Path:
    """Return a local directory with a version's model, downloaded once into a cache keyed by content."""
    expected = version.content_sha256
    if not re.fullmatch(r"[0-9a-f]{64}", expected):
        raise ArtifactError(f"{version}: was not registered by this program (no content_sha256); register it again")

    def download_checked(target: Path) -> None:
        scratch = tempfile.TemporaryDirectory(prefix=".download-", dir=target.parent)
        with scratch as folder, atomic_directory(target) as clean:
            manifest = _download(client, version, Path(folder))
            # Only what the manifest lists leaves the scratch directory.
            for file in (MANIFEST_NAME, *manifest.files):
                (clean / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.move(manifest.path / file, clean / file)

    check = functools.partial(load_manifest, verify="sha256")  # a damaged copy is downloaded again
    return cached(bert_home() / "cache" / "models" / expected, download_checked, check)


def needs_exam(candidate: RegisteredVersion, champion: RegisteredVersion) -> bool:
    """Return True if the candidate was examined on pairs on which the champion was not."""
    exam, other = candidate.document.exam, champion.document.exam
    return exam is not None and exam.pairs_sha256 not in ("", other.pairs_sha256 if other else "")


def exam_on_pairs_of(client: "MlflowClient", candidate: RegisteredVersion, champion: RegisteredVersion) -> Exam | None:
    """Return an exam of the champion on the pairs that the candidate was examined on.

    None if it has taken that one, or if the pairs are not known or not all of them can be scored: a retraining on
    another dump makes other pairs, and models of other objectives and lengths read other ones. ArtifactError if the
    files of one of them cannot be read.
    """
    if (exam := candidate.document.exam) is None or not needs_exam(candidate, champion):
        return None
    pairs, model = read_pairs(fetch(client, candidate)), fetch(client, champion)
    try:
        result = take_exam(model, pairs)
    except (UsageError, InputError) as error:  # it cannot score them; any other error is no reason to compare less
        logger.warning("%s is not examined on the pairs of %s: %s", champion, candidate, error)
        return None
    if sum(kind_result.score.count for kind_result in result.kinds.values()) < len(pairs):
        return None
    return dataclasses.replace(exam, accuracy=result.mean)


def inspect(client: "MlflowClient", version: RegisteredVersion) -> Inspection:
    """Download a version, past the cache, and check its files, its outputs and its model card."""
    text, damage = read_card(client, version)
    card = card_problem(text)
    if card is None and not version.card_text:
        card = "its description is empty"

    # What the store has now is inspected, not what the cache kept of it.
    if read_document(client, version.name, version.version, version.content_sha256) != version.document:
        return Inspection(
            damage=f"its {VERSION_NAME} is missing, of an earlier version of the project, or was changed; register the "
            "model again",
            logits=f"cannot check outputs without {VERSION_NAME}",
            card=card,
        )
    with tempfile.TemporaryDirectory() as scratch:
        try:
            manifest = _download(client, version, Path(scratch))
        except UnavailableError:
            raise
        except BertError as error:
            # The temporary path is gone when the message is read.
            damage = str(error).replace(scratch, "")
            return Inspection(damage=damage, logits="its files are damaged", card=card)
        try:
            logits = check_outputs(manifest.path, version.document.reference_logits)
        except BertError as error:
            logits = str(error).replace(scratch, "")
    return Inspection(damage=damage, logits=logits, card=card)


def check_outputs(directory: Path, recorded: Sequence[float]) -> str | None:
    """Compare a model's outputs with recorded reference outputs; describe the difference, if any."""
    if not recorded:
        return "its logits were not recorded; register it again"
    expected, logits = np.asarray(recorded), np.asarray(reference_logits(directory))
    if expected.shape != logits.shape:
        return f"{logits.size} logits, {expected.size} were recorded"
    # NaN compares as false, so it is looked for by itself.
    gap = np.abs(expected - logits)
    if not np.isfinite(logits).all() or gap.max(initial=0.0) > TOLERANCE * max(1.0, np.abs(expected).max(initial=0.0)):
        worst = int(np.nanargmax(gap)) if np.isfinite(gap).any() else 0
        return f"logit {worst} is {logits[worst]:.6g}, {expected[worst]:.6g} was recorded"
    return None


def reference_logits(directory: Path) -> tuple[float, ...]:
    """Compute a model's outputs for the example input of its form, thinned to at most MAX_LOGITS.

    Runs on the CPU in one thread. InputError or ArtifactError if the directory cannot be loaded.
    """
    logits = _pretrained_logits(directory) if read_task_description(directory) is None else _task_logits(directory)
    chosen = np.unique(np.linspace(0, logits.size - 1, min(logits.size, MAX_LOGITS)).astype(int))
    return tuple(float(f"{value:.6g}") for value in logits[chosen])


def _task_logits(directory: Path) -> npt.NDArray[np.float64]:
    model = load_task_model(directory, log=False)  # often a copy in a temporary directory
    kind = kind_of(model.task)
    example = kind.parse("0", check_input(EXAMPLE_INPUTS[kind.form], kind.form, "reference input"))
    encoded = kind.encode([example], model.tokenizer, model.config)
    # Not in "auto", which is another precision on another processor than the one that recorded the outputs.
    logits = model.logits(encoded, num_threads=1, precision=model.config.precision.replace("auto", "float32"))
    return np.asarray(logits, dtype=np.float64).ravel()


@torch.inference_mode()
def _pretrained_logits(directory: Path) -> npt.NDArray[np.float64]:
    # A pair of texts, so that both segments and both heads have a part in the outputs.
    tokenizer = Tokenizer.from_directory(directory)
    model, _ = load_model(BertForPreTraining, directory, log=False)
    model.predictions.num_tokens = model.config.vocab_size  # those of padded embeddings too, as ever
    with limited_threads(1):
        a, b = tokenizer.encode_batch(list(EXAMPLE_INPUTS["pair"].values()))
        max_length = (model.config.max_position_embeddings - 3) // 2  # of each text, next to [CLS] and two [SEP]
        first = [tokenizer.cls_id, *a[:max_length], tokenizer.sep_id]
        second = [*b[:max_length], tokenizer.sep_id]
        segments = torch.tensor([[0] * len(first) + [1] * len(second)])
        output = model.eval()(torch.tensor([first + second]), torch.ones_like(segments), segments)
    parts = (output.seq_relationship_logits, output.prediction_logits)
    return np.concatenate([part.double().numpy().ravel() for part in parts])


def _download(client: "MlflowClient", version: RegisteredVersion, scratch: Path) -> Manifest:
    """Download a version's model below `scratch` and check every file; ArtifactError if one is damaged or unsafe.

    UnavailableError if the store cannot be read: that is no damage.
    """
    fetched = download(client, version.name, version.version, "artifacts", scratch)
    if fetched is None:
        raise ArtifactError(f"{version}: its files are missing in the store; register the model again")

    # The model directory is a folder below `artifacts/`, whatever its name was at registration.
    inside = [path.parent for path in fetched.glob(f"*/{MANIFEST_NAME}")]
    if len(inside) != 1:
        raise ArtifactError(f"{version}: holds {len(inside)} directories with a {MANIFEST_NAME}, expected one")
    manifest = load_manifest(inside[0], verify="sha256")
    if manifest.kind not in KINDS:
        raise ArtifactError(f"{version}: holds a {manifest.kind}, expected a {' or a '.join(KINDS)}")
    refuse_unsafe_files(manifest)
    # Files of another model are intact too, by their own manifest.
    if manifest.sha256 != (expected := version.content_sha256):
        hashes = f"{manifest.sha256[:12]}…, expected {expected[:12]}… as registered"
        raise ArtifactError(f"{version}: holds {hashes}; it was replaced")
    return manifest


def _signature(example: Mapping[str, Any], answers: list[dict[str, Any]]) -> "ModelSignature":
    from mlflow.models import ModelSignature, infer_signature
    from mlflow.types import DataType
    from mlflow.types.schema import Array, ColSpec, Schema, TensorSpec

    columns: list[ColSpec | TensorSpec] = [
        ColSpec(Array(DataType.string) if isinstance(value, list) else DataType.string, name, required=name != "id")
        for name, value in example.items()
    ]
    with silence_mlflow():
        outputs = infer_signature(model_output=answers).outputs
    return ModelSignature(inputs=Schema(columns), outputs=outputs)


def _requirements() -> list[str]:
    """Return what the stored code imports to answer: a few of the packages that data and training need."""
    packages = ("mlflow", "numpy", "pydantic", "pyyaml", "safetensors", "tabulate", "tokenizers", "torch", "tqdm")
    # "+cpu" is a build that the public index does not have.
    return [f"{package}=={importlib.metadata.version(package).partition('+')[0]}" for package in packages]
