"""The directory of a training: what it is named by, who may work in it, and what stands there already."""

import contextlib
import fcntl
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from bert_model.checkpoint import OPTIMIZER_NAME
from bert_model.config import PretrainingConfig
from bert_model.weights import weight_files
from bert_pipeline.configuration import to_mapping
from bert_pipeline.errors import ArtefactError, ConfigurationError, TrainingError, UsageError
from bert_pipeline.manifest import (
    Manifest,
    content_sha256,
    file_sha256,
    input_of,
    load_manifest,
    write_text_durably,
)

logger = logging.getLogger(__name__)

MODEL_KIND = "pretrained_model"
CONFIGURATION_NAME = "configuration.json"

# Keys that say where things are or how a training is watched; weights do not depend on them.
WATCHING = (
    "log_interval_steps",
    "evaluation_interval_steps",
    "evaluation_max_instances",
    "checkpoint_interval_steps",
    "keep_last",
    "keep_every_steps",
    "upload_checkpoints",
    "timeout_seconds",
)


def identity(config: PretrainingConfig, manifests: Sequence[Manifest]) -> dict[str, Any]:
    """Return what decides a training's weights: the configuration without paths, and the hashes of its inputs.

    `manifests` are those of the phases' instance directories, in order.
    """
    mapping = to_mapping(config)
    for key in WATCHING:
        del mapping[key]
    for phase in mapping["phases"]:
        del phase["instances"]
    inputs: dict[str, Any] = {f"instances_{index}": input_of(manifest) for index, manifest in enumerate(manifests)}
    if mapping.pop("initial_model"):
        directory = Path(config.initial_model)
        files = weight_files(directory)
        if config.initial_optimizer == "restored":
            if not (directory / OPTIMIZER_NAME).is_file():
                raise ConfigurationError(
                    f"initial_optimizer: found 'restored', but {directory / OPTIMIZER_NAME} does not exist; only the "
                    "checkpoints of a training hold it"
                )
            files.append(directory / OPTIMIZER_NAME)
        hashes = {path.name: file_sha256(path) for path in files}
        sha256 = next(iter(hashes.values())) if len(hashes) == 1 else content_sha256(hashes)
        inputs["initial_model"] = {"name": ", ".join(hashes), "sha256": sha256}
    return {"configuration": mapping, "inputs": inputs}


def training_id(config: PretrainingConfig, manifests: Sequence[Manifest]) -> str:
    """Return the name of a training's directory: 16 hexadecimal digits of the hash of its identity."""
    return content_sha256(identity(config, manifests))[:16]


@contextlib.contextmanager
def training_lock(output: Path) -> Iterator[None]:
    """Keep a second training out of a directory; the lock goes with the process, however it ends."""
    output.mkdir(parents=True, exist_ok=True)
    with open(output / ".lock", "a+", encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            stream.seek(0)
            raise TrainingError(
                f"{output}: another training is at work here ({stream.read().strip() or 'unknown process'}); "
                "wait for it or give another directory"
            ) from None
        stream.truncate(0)
        stream.write(f"process {os.getpid()} on {os.uname().nodename}")
        stream.flush()
        yield


def open_directory(
    output: Path, config: PretrainingConfig, described: dict[str, Any], *, resume: bool, allow_changes: bool
) -> Literal["new", "unfinished", "finished"]:
    """Look at what stands in the training's directory, and write or compare its configuration."""
    path = output / CONFIGURATION_NAME
    started = any((output / "checkpoints").glob("step-*")) or (output / "model").exists()
    if path.is_file() and not started and not resume:
        _write_configuration(path, config, described)  # it was stopped before it had anything to keep
        return "new"
    if not path.is_file():
        others = [entry.name for entry in output.iterdir() if entry.name != ".lock"]
        if others:
            raise ArtefactError(f"{output}: holds {others[0]!r} but no {CONFIGURATION_NAME}; give a new directory")
        _write_configuration(path, config, described)
        return "new"
    if not resume:
        raise UsageError(f"{output}: a training stands here already; add --resume to go on, or give a new directory")
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        differences = list(_differences(stored["identity"], described))
    except (ValueError, KeyError, TypeError) as error:
        raise ArtefactError(f"{path}: not the configuration of a training ({error}); give a new directory") from error
    if differences and not allow_changes:
        raise ConfigurationError(
            f"{output}: the training here was started otherwise: {'; '.join(differences)}; go back to the old values, "
            "give a new directory, or add --allow-changes"
        )
    if differences:
        logger.warning("going on although the training was started otherwise: %s", "; ".join(differences))
        _write_configuration(path, config, described)
    elif (output / "model").is_dir():
        with contextlib.suppress(ArtefactError):
            load_manifest(output / "model", kind=MODEL_KIND)
            return "finished"
    return "unfinished"


def _write_configuration(path: Path, config: PretrainingConfig, described: dict[str, Any]) -> None:
    document = {"configuration": to_mapping(config), "identity": described}
    temporary = path.with_suffix(".partial")
    write_text_durably(temporary, json.dumps(document, indent=1, sort_keys=True) + "\n")
    os.replace(temporary, path)


def _differences(stored: Any, current: Any, key: str = "") -> Iterator[str]:
    """Yield "key: was …, is …" for every leaf in which two JSON documents differ."""
    if isinstance(stored, Mapping) and isinstance(current, Mapping):
        for name in sorted({*stored, *current}):
            yield from _differences(stored.get(name), current.get(name), f"{key}.{name}" if key else str(name))
    elif isinstance(stored, list) and isinstance(current, list) and len(stored) == len(current):
        for index, (one, other) in enumerate(zip(stored, current)):
            yield from _differences(one, other, f"{key}.{index}")
    elif stored != current:
        yield f"{key}: was {stored!r}, is {current!r}"
