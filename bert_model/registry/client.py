"""MLflow's registry: model names and URIs, the client, a lock per name, and look-ups of versions and aliases."""

import contextlib
import dataclasses
import logging
import os
import re
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bert_model.registry.versions import PRETRAINED, REGISTERED_TAG, VERSION_NAME, RegisteredVersion, TaskScore, Version
from bert_model.training.home import bert_home, tracking_uri
from bert_model.training.metrics_log import first_line, without_password
from bert_model.training.mlflow_store import ignoring, moving_files, open_client
from bert_pipeline.atomic import disk_errors, locked, replace_text
from bert_pipeline.errors import UnavailableError, UsageError
from bert_pipeline.hashes import content_sha256

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

NAME_PATTERN = re.compile(r"bert-[a-z0-9]+(?:[-_][a-z0-9]+)*")
MAX_NAME_LENGTH = 80
URI_PATTERN = re.compile(r"models:/(?P<name>[^/@]+)(?:/(?P<version>[0-9]+)|@(?P<alias>[a-z]+))")

LOCK_SECONDS = 300.0


def model_name(preset: str, task: str | None = None) -> str:
    """Return the registered name: `bert-<size>` or `bert-<size>-<task>`."""
    return check_name(f"bert-{preset}" + (f"-{task}" if task else ""))


def check_name(name: str) -> str:
    """Return a registered name; UsageError if it does not fit NAME_PATTERN (MLflow accepts nearly any text)."""
    if len(name) > MAX_NAME_LENGTH or not NAME_PATTERN.fullmatch(name):
        shown = name if len(name) <= MAX_NAME_LENGTH else name[:MAX_NAME_LENGTH] + "…"
        raise UsageError(
            f"model name {shown!r}: expected bert-<size> or bert-<size>-<task> in small letters, digits, '-' and "
            f"'_', at most {MAX_NAME_LENGTH} characters"
        )
    return name


def parse_uri(reference: str) -> tuple[str, int | None, str | None]:
    """Split a models:/ URI into name, version and alias."""
    match = URI_PATTERN.fullmatch(reference)
    if match is None:
        raise UsageError(f"{reference!r}: expected models:/NAME@ALIAS or models:/NAME/VERSION")
    version = match["version"]
    return check_name(match["name"]), int(version) if version else None, match["alias"]


@contextlib.contextmanager
def registry_client() -> Iterator["MlflowClient"]:
    """Open a client; UnavailableError if MLflow refuses or cannot be reached, or if its database is locked."""
    uri = tracking_uri()
    try:
        client = open_client(uri)
        import mlflow

        # MLflow's SQL store resolves a version's source through the process-wide URI, which MLflow also copies into
        # these variables; both are restored for the code that runs afterwards.
        names = ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI")
        variables = {name: os.environ[name] for name in names if name in os.environ}
        mlflow.set_tracking_uri(uri)
        try:
            with disk_errors(bert_home() / "artifacts"):
                yield client
        finally:
            mlflow.set_tracking_uri("")
            for name in names:
                os.environ.pop(name, None)
            os.environ.update(variables)
    except Exception as error:
        import mlflow  # not before `open_client`, which sets variables for it
        import requests
        import sqlalchemy.exc

        # SQLAlchemy's own errors come out of MLflow while it opens a store, those of requests while it uploads files.
        if not isinstance(error, (mlflow.MlflowException, sqlalchemy.exc.OperationalError, requests.RequestException)):
            raise
        words = f"MLflow at {without_password(uri)} refused or cannot be reached: {first_line(error)}"
        raise UnavailableError(words) from error


def registry_lock(name: str) -> contextlib.AbstractContextManager[bool]:
    """Serialize registrations and promotions of a name on this machine; UnavailableError after LOCK_SECONDS."""
    path = bert_home() / "locks" / f"registry-{name}.lock"
    # A promotion moves several aliases and tags, for which MLflow has no transaction.
    busy = f"{name}: another registration or promotion has held {path} for {LOCK_SECONDS:.0f} s; try again"
    return locked(path, wait=LOCK_SECONDS, busy=UnavailableError(busy))


@contextlib.contextmanager
def silence_mlflow() -> Iterator[None]:
    """Silence MLflow's log messages below ERROR, and all warnings."""
    logger = logging.getLogger("mlflow")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logger.setLevel(level)


def known_names() -> list[str]:
    """Return the registered models whose names fit NAME_PATTERN; a shared server may hold others."""
    import mlflow

    names = [model.name for model in mlflow.search_registered_models()]
    return [name for name in names if NAME_PATTERN.fullmatch(name)]


def aliases_of(client: "MlflowClient", name: str) -> dict[str, int]:
    """Return alias -> version; empty if there is no such name."""
    with ignoring("RESOURCE_DOES_NOT_EXIST"):
        return {alias: int(version) for alias, version in client.get_registered_model(name).aliases.items()}
    return {}


def read_version(client: "MlflowClient", name: str, version: int) -> RegisteredVersion:
    """Return a version in its present state."""
    return _registered(client, client.get_model_version(name, str(version)), aliases_of(client, name))


def find_versions(client: "MlflowClient", name: str) -> list[RegisteredVersion]:
    """Return all versions of a name, oldest first; empty if there is no such name."""
    aliases = aliases_of(client, name)
    return [_registered(client, version, aliases) for version in _search_versions(f"name = '{name}'")]


def resolve_version(
    client: "MlflowClient", name: str, version: int | None = None, alias: str | None = None
) -> RegisteredVersion:
    """Return a version by number or alias, or the newest one; UsageError lists what exists."""
    # Read all versions first, so that an error can list what exists.
    versions = {item.version: item for item in find_versions(client, name)}
    if not versions:
        raise UsageError(f"{name}: no such registered model (known: {', '.join(sorted(known_names())) or 'none'})")
    if alias is not None:
        aliases = {alias: item.version for item in versions.values() for alias in item.aliases}
        if alias not in aliases:
            raise UsageError(f"{name}: has no alias {alias!r} (aliases: {', '.join(sorted(aliases)) or 'none'})")
        version = aliases[alias]
    version = max(versions) if version is None else version
    if version not in versions:
        raise UsageError(f"{name}: has no version {version} (versions: {', '.join(map(str, versions))})")
    return versions[version]


def with_finetuning_scores(client: "MlflowClient", version: RegisteredVersion) -> RegisteredVersion:
    """Add to a pre-trained version the score of its last registered fine-tuning for each task."""
    if version.kind != PRETRAINED:
        return version
    scores: dict[str, TaskScore] = {}
    # Of several registrations for a task the last is kept, which may be that of an old version with the same content.
    versions = _search_versions(f"tags.pretrained_model_sha256 = '{version.content_sha256}'")
    for item in sorted(versions, key=lambda item: item.tags.get(REGISTERED_TAG, "")):
        for score in _registered(client, item, {}).scores:
            if item.name == f"{version.name}-{score.task}":
                scores[score.task] = score
    return dataclasses.replace(version, scores=tuple(scores[task] for task in sorted(scores)))


def _search_versions(condition: str) -> list["ModelVersion"]:
    """Return the versions that fulfil a condition, by number; the client is that of `registry_client`."""
    import mlflow

    return sorted(mlflow.search_model_versions(filter_string=condition), key=lambda version: int(version.version))


def read_document(client: "MlflowClient", name: str, version: int, identity: str) -> Version | None:
    """Return the document that is stored with a version; None if it is missing, damaged or of another model."""
    try:
        document = Version.from_json(read_stored_file(client, name, version, VERSION_NAME) or "")
    except ValueError:
        return None
    return document if document.content_sha256 == identity else None


def read_stored_file(client: "MlflowClient", name: str, version: int, file: str) -> str | None:
    """Return a text file that is stored next to a version's model; None if it is missing or no text."""
    with tempfile.TemporaryDirectory() as scratch:
        path = download(client, name, version, file, scratch)
        try:
            return path.read_text(encoding="utf-8") if path is not None else None
        except ValueError:
            return None


@moving_files()
def download(client: "MlflowClient", name: str, version: int, file: str, folder: Path | str) -> Path | None:
    """Download into `folder` what is stored next to a version's model, a file or a directory; None if it is missing.

    UnavailableError if the store cannot be read: a file that is there must not be taken for a missing one.
    """
    import mlflow

    uri = client.get_model_version_download_uri(name, str(version))
    try:
        return Path(mlflow.artifacts.download_artifacts(artifact_uri=f"{uri}/{file}", dst_path=str(folder)))
    except Exception as error:  # of MLflow, or of a library with which it reads a store
        if _is_missing(uri, file):
            return None
        cause = (str(error).splitlines() or [type(error).__name__])[-1]  # MLflow lists the files first
        raise UnavailableError(
            f"{name}, version {version}: {file} cannot be read from MLflow at "
            f"{without_password(tracking_uri())}: {cause}; try again"
        ) from error


def _is_missing(uri: str, file: str) -> bool:
    """Return True if a store can be listed and does not have the file, or no longer has the model.

    A failed download does not tell: for a missing file, stores raise errors of different types.
    """
    import mlflow

    try:
        listed = mlflow.artifacts.list_artifacts(artifact_uri=uri)
    except Exception as error:
        return isinstance(error, mlflow.MlflowException) and error.error_code == "RESOURCE_DOES_NOT_EXIST"
    return file not in {item.path.rpartition("/")[2] for item in listed}


def _document_of(client: "MlflowClient", version: "ModelVersion") -> Version:
    """Return a version's document, which is downloaded once into a cache; an empty one if there is none."""
    if not (identity := version.tags.get("content_sha256", "")):  # of another program
        return Version()
    cached = bert_home() / "cache" / "versions" / f"{content_sha256({'source': version.source})}.json"
    with contextlib.suppress(OSError, ValueError):
        return Version.from_json(cached.read_text(encoding="utf-8"))
    if document := read_document(client, version.name, int(version.version), identity):
        cached.parent.mkdir(parents=True, exist_ok=True)
        replace_text(cached, document.to_json())
    return document or Version()


def _registered(client: "MlflowClient", version: "ModelVersion", aliases: Mapping[str, int]) -> RegisteredVersion:
    number, document = int(version.version), _document_of(client, version)
    return RegisteredVersion(
        name=version.name,
        version=number,
        aliases=tuple(sorted(alias for alias, holder in aliases.items() if holder == number)),
        tags=dict(version.tags),
        document=document,
        card_text=version.description or "",
        source=version.source or "",
        scores=(dataclasses.replace(document.score, version=number),) if document.score and document.task else (),
    )
