"""The model registry: versions of our directories in MLflow, and the aliases candidate, champion and previous.

Versions are served by MLflow as models from code. Our own code takes only the directory inside, checks every file
against its manifest, and loads nothing but safetensors, JSON and text.
"""

import contextlib
import dataclasses
import fcntl
import logging
import os
import re
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_model.promotion import Decision, GateConfig, VersionFacts, decide
from bert_model.registered_name import NAME_PATTERN, check_name, model_name, parse_uri
from bert_model.tracking import bert_home, experiment_id, open_client, tracking_uri
from bert_model.version_tags import KINDS, describe_in_words, refuse_other_files, tags_of
from bert_pipeline.errors import ArtefactError, BertError, PromotionError, UsageError
from bert_pipeline.manifest import MANIFEST_NAME, Manifest, load_manifest

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

__all__ = [
    "RegisteredVersion",
    "download",
    "get_version",
    "list_models",
    "model_name",
    "models_table",
    "promote",
    "register",
    "rollback",
]

CANDIDATE, CHAMPION, PREVIOUS = "candidate", "champion", "previous"
LOCK_SECONDS = 60.0
EXPERIMENT = "bert"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RegisteredVersion:
    """One version of a registered model."""

    name: str
    version: int
    aliases: tuple[str, ...]
    tags: dict[str, str]
    source: str
    run_id: str | None

    @property
    def facts(self) -> VersionFacts:
        return VersionFacts.from_tags(self.name, self.version, self.tags)


def register(directory: Path | str, name: str, *, tags: Mapping[str, str] | None = None) -> RegisteredVersion:
    """Register one of our model directories as a new version and make it the candidate.

    Its files are checked and uploaded; tags carry score, data and lineage, and `tags` adds to them. The same content
    under the same name is one version: registering it again returns that version. ArtefactError when the directory
    is not a model of ours or is damaged.
    """
    check_name(name)
    manifest = load_manifest(directory, verify="sha256")
    if manifest.kind not in KINDS:
        raise ArtefactError(f"{directory}: is a {manifest.kind}, expected a {' or a '.join(KINDS)}; give another path")
    refuse_other_files(manifest)
    with _registry_lock(name), _client() as client:
        _create_name(client, name)
        for version in _versions(client, name):
            if version.tags.get("content_sha256") == manifest.sha256:
                client.set_registered_model_alias(name, CANDIDATE, str(version.version))
                return _get(client, name, version.version)
        version_tags = {**tags_of(manifest), **(tags or {})}
        model_id = _upload(client, manifest, name, version_tags)
        created = client.create_model_version(
            name,
            source=f"models:/{model_id}",
            run_id=manifest.provenance.get("mlflow_run_id"),
            tags=version_tags,
            description=describe_in_words(manifest, version_tags),
        )
        client.set_registered_model_alias(name, CANDIDATE, created.version)
        return _get(client, name, int(created.version))


def promote(
    name: str, version: int | None = None, dry_run: bool = False, *, config: GateConfig | None = None
) -> Decision:
    """Make a version (the newest where none is given) champion if every gate lets it pass.

    The decision is returned either way and stored with the version; `Decision.require` turns a refusal into a
    PromotionError. With `dry_run` nothing is changed. The former champion stays as `previous`. A lock file
    serialises promotions on this machine; a change by another machine is detected by reading the alias back, and is
    a PromotionError.
    """
    check_name(name)
    with _registry_lock(name), _client() as client:
        versions = {item.version: item for item in _existing(client, name)}
        chosen = version if version is not None else max(versions)
        if chosen not in versions:
            known = ", ".join(map(str, versions))
            raise UsageError(f"{name}: has no version {chosen} (versions: {known})")
        champion = next((item for item in versions.values() if CHAMPION in item.aliases), None)
        decision = decide(
            versions[chosen].facts,
            champion.facts if champion else None,
            damage=_damage(client, versions[chosen]),
            config=config,
        )
        if dry_run:
            return decision
        if decision.passed:
            if _alias(client, name, CHAMPION) != decision.champion:
                raise PromotionError(f"{name}: the champion changed while version {chosen} was judged; try again")
            if champion is not None:
                client.set_registered_model_alias(name, PREVIOUS, str(champion.version))
            client.set_registered_model_alias(name, CHAMPION, str(chosen))
            if _alias(client, name, CHAMPION) != chosen:
                raise PromotionError(f"{name}: another client moved the champion at the same time; look at bert models")
            decision = dataclasses.replace(decision, promoted=True)
        client.set_model_version_tag(name, str(chosen), "promotion", decision.to_json())
        return decision


def rollback(name: str) -> RegisteredVersion:
    """Give the alias champion back to `previous`, and let the two change places; returns the new champion."""
    check_name(name)
    with _registry_lock(name), _client() as client:
        _existing(client, name)
        champion, previous = _alias(client, name, CHAMPION), _alias(client, name, PREVIOUS)
        if previous is None:
            raise PromotionError(f"{name}: has no previous champion to go back to; nothing was changed")
        damage = _damage(client, _get(client, name, previous))
        if damage is not None:
            raise PromotionError(f"{name}: version {previous} is damaged ({damage}); nothing was changed")
        client.set_registered_model_alias(name, CHAMPION, str(previous))
        if champion is not None:
            client.set_registered_model_alias(name, PREVIOUS, str(champion))
        return _get(client, name, previous)


def list_models(name: str | None = None) -> list[RegisteredVersion]:
    """Return all versions of all models of ours, or of one, by name and version."""
    with _client() as client:
        names = [check_name(name)] if name else [model.name for model in _all(client.search_registered_models)]
        ours = [item for item in names if NAME_PATTERN.fullmatch(item)]
        found = [version for item in ours for version in _versions(client, item)]
    return sorted(found, key=lambda version: (version.name, version.version))


def models_table(versions: list[RegisteredVersion]) -> str:
    """Versions as a table for people: name, version, aliases, score, data."""
    if not versions:
        return "no models are registered"
    rows = [("NAME", "VERSION", "ALIASES", "METRIC", "SCORE", "DATA", "MODEL")]
    for item in versions:
        score = "" if item.facts.score is None else f"{item.facts.score:.2f}"
        rows.append(
            (
                item.name,
                str(item.version),
                ", ".join(item.aliases),
                item.facts.metric,
                score + (" degenerate" if item.facts.degenerate else ""),
                item.facts.data_sha256[:12],
                item.facts.content_sha256[:12],
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


def get_version(reference: str) -> RegisteredVersion:
    """Return the version of `models:/NAME@ALIAS` or `models:/NAME/VERSION`; UsageError when there is none."""
    name, version, alias = parse_uri(reference)
    with _client() as client:
        return _resolve(client, name, version, alias)


def download(reference: str) -> Path:
    """Return a local directory with a version's model, every file checked against its manifest.

    Downloads go to a cache below BERT_HOME, named by content, so a version is fetched once. ArtefactError when a file
    is damaged, when the content is not what was registered, or when there are files that we never write.
    """
    name, version, alias = parse_uri(reference)
    with _client() as client:
        return _fetch(client, _resolve(client, name, version, alias))


def _fetch(client: "MlflowClient", version: RegisteredVersion) -> Path:
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


def _download_into(client: "MlflowClient", version: RegisteredVersion, scratch: Path) -> Manifest:
    import mlflow

    where = f"{version.name} version {version.version}"
    try:
        uri = client.get_model_version_download_uri(version.name, str(version.version))
        fetched = Path(mlflow.artifacts.download_artifacts(artifact_uri=f"{uri}/artifacts", dst_path=str(scratch)))
    except (mlflow.MlflowException, OSError) as error:
        raise ArtefactError(f"{where}: its artefacts cannot be read ({_first_line(error)})") from error
    inside = [path.parent for path in fetched.glob(f"*/{MANIFEST_NAME}")]
    if len(inside) != 1:
        raise ArtefactError(f"{where}: holds {len(inside)} directories with a {MANIFEST_NAME}, expected one")
    manifest = load_manifest(inside[0], verify="sha256")
    if manifest.kind not in KINDS:
        raise ArtefactError(f"{where}: holds a {manifest.kind}, expected a {' or a '.join(KINDS)}")
    refuse_other_files(manifest)
    return manifest


def _damage(client: "MlflowClient", version: RegisteredVersion) -> str | None:
    """Say what is wrong with a version's stored artefact; None when every hash is right."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            manifest = _download_into(client, version, Path(scratch))
        except BertError as error:
            return str(error).replace(scratch, "")
        expected = version.facts.content_sha256
        if manifest.sha256 != expected:
            return f"its content is {manifest.sha256[:12]}…, {expected[:12]}… was registered"
    return None


def _upload(client: "MlflowClient", manifest: Manifest, name: str, tags: Mapping[str, str]) -> str:
    """Store the directory as a logged model that MLflow can serve; return its id."""
    import mlflow

    from bert_model import serving
    from bert_model.prediction import answer_records, load_predictor

    task = tags.get("task", "mlm")
    predictor = load_predictor(task, [manifest.path])
    example = serving.EXAMPLES[task if task == "mlm" else predictor.form]
    signature = _signature(example, answer_records(predictor, [example]))
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "served"
        with _quiet():
            mlflow.pyfunc.save_model(
                path=str(path),
                python_model=serving.__file__,
                artifacts={serving.ARTIFACT: str(manifest.path)},
                signature=signature,
                input_example=[example],
                pip_requirements=_requirements(),
            )
        logged = client.create_logged_model(
            experiment_id=experiment_id(client, EXPERIMENT),
            name=name,
            source_run_id=manifest.provenance.get("mlflow_run_id"),
            tags=dict(tags),
            model_type=manifest.kind,
        )
        client.log_model_artifacts(logged.model_id, str(path))
        client.finalize_logged_model(logged.model_id, "READY")
    return logged.model_id


def _signature(example: Mapping[str, Any], answers: list[dict[str, Any]]) -> Any:
    from mlflow.models import ModelSignature, infer_signature
    from mlflow.types import DataType
    from mlflow.types.schema import Array, ColSpec, Schema, TensorSpec

    columns: list[ColSpec | TensorSpec] = [
        ColSpec(Array(DataType.string) if isinstance(value, list) else DataType.string, name)
        for name, value in example.items()
    ]
    with _quiet():
        outputs = infer_signature(model_output=answers).outputs
    return ModelSignature(inputs=Schema(columns), outputs=outputs)


def _requirements() -> list[str]:
    from importlib.metadata import version

    return [f"{package}=={version(package)}" for package in ("torch", "tokenizers", "safetensors", "numpy", "mlflow")]


def _create_name(client: "MlflowClient", name: str) -> None:
    from mlflow import MlflowException

    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def _existing(client: "MlflowClient", name: str) -> list[RegisteredVersion]:
    versions = _versions(client, name)
    if not versions:
        known = sorted(model.name for model in _all(client.search_registered_models))
        raise UsageError(f"{name}: no such registered model (known: {', '.join(known) or 'none'})")
    return versions


def _versions(client: "MlflowClient", name: str) -> list[RegisteredVersion]:
    aliases = _aliases(client, name)
    found = _all(lambda **page: client.search_model_versions(f"name = '{name}'", **page))
    return sorted((_registered(version, aliases) for version in found), key=lambda item: item.version)


def _aliases(client: "MlflowClient", name: str) -> dict[str, int]:
    from mlflow import MlflowException

    try:
        return {alias: int(version) for alias, version in client.get_registered_model(name).aliases.items()}
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return {}
        raise


def _alias(client: "MlflowClient", name: str, alias: str) -> int | None:
    return _aliases(client, name).get(alias)


def _get(client: "MlflowClient", name: str, version: int) -> RegisteredVersion:
    return _registered(client.get_model_version(name, str(version)), _aliases(client, name))


def _registered(version: "ModelVersion", aliases: Mapping[str, int]) -> RegisteredVersion:
    number = int(version.version)
    return RegisteredVersion(
        name=version.name,
        version=number,
        aliases=tuple(sorted(alias for alias, holder in aliases.items() if holder == number)),
        tags=dict(version.tags),
        source=version.source or "",
        run_id=version.run_id or None,
    )


def _resolve(client: "MlflowClient", name: str, version: int | None, alias: str | None) -> RegisteredVersion:
    versions = {item.version: item for item in _existing(client, name)}
    if alias is not None:
        version = _alias(client, name, alias)
        if version is None:
            known = ", ".join(sorted(_aliases(client, name))) or "none"
            raise UsageError(f"{name}: has no alias {alias!r} (aliases: {known})")
    assert version is not None, "a models:/ URI names a version or an alias"
    if version not in versions:
        raise UsageError(f"{name}: has no version {version} (versions: {', '.join(map(str, versions))})")
    return versions[version]


def _all(search: Any) -> list[Any]:
    """Collect every page of a search."""
    found: list[Any] = []
    token: str | None = None
    while True:
        page = search(page_token=token)
        found.extend(page)
        token = page.token
        if not token:
            return found


@contextlib.contextmanager
def _client() -> Iterator["MlflowClient"]:
    """Open a client; MLflow's errors about the store become ours."""
    uri = tracking_uri()
    client = open_client(uri)
    import mlflow

    variables = {name: os.environ.get(name) for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI")}
    # MLflow's own store looks a version's source up by the address of the process, which it also keeps in a variable.
    mlflow.set_tracking_uri(uri)
    try:
        yield client
    except mlflow.MlflowException as error:
        raise BertError(f"the registry at {uri} refused or cannot be reached: {_first_line(error)}") from error
    finally:
        mlflow.set_tracking_uri("")
        for name, value in variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _registry_lock(name: str) -> Iterator[None]:
    """Hold the lock file of a name; PromotionError when another process holds it for a minute."""
    path = bert_home() / "locks" / f"registry-{name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + LOCK_SECONDS
    with open(path, "w", encoding="utf-8") as stream:
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise PromotionError(
                        f"{name}: another registration or promotion has held {path} for {LOCK_SECONDS:.0f} s; try again"
                    ) from None
                time.sleep(0.1)
        yield


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep MLflow's hints and progress bars about a model that is as it should be out of the log."""
    logger = logging.getLogger("mlflow")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
