"""MLflow's registry: names, model URIs, versions, aliases, and a lock for each name."""

import contextlib
import dataclasses
import fcntl
import logging
import os
import re
import time
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from bert_model.registry.versions import PRETRAINED, TaskScore, VersionFacts
from bert_model.training.metrics_log import bert_home, first_line, tracking_uri, without_password
from bert_model.training.mlflow_sync import open_client
from bert_pipeline.errors import PromotionError, UnavailableError, UsageError

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion


LOCK_SECONDS = 300.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class RegisteredVersion:
    """One version of a registered model."""

    name: str
    version: int
    aliases: tuple[str, ...]
    tags: dict[str, str]
    description: str
    source: str
    run_id: str | None

    @property
    def facts(self) -> VersionFacts:
        """What its tags say; the fine-tunings of a pre-trained model are other versions."""
        return VersionFacts.from_tags(self.name, self.version, self.tags)

    @property
    def model_id(self) -> str:
        """The logged model that holds its files."""
        return self.source.removeprefix("models:/")


@contextlib.contextmanager
def registry_client() -> Iterator["MlflowClient"]:
    """Open a client. UnavailableError when MLflow refuses or cannot be reached."""
    uri = tracking_uri()
    client = open_client(uri)
    import mlflow

    variables = {name: os.environ.get(name) for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI")}
    # MLflow's own store looks a version's source up by the address of the process, which it also keeps in a variable.
    mlflow.set_tracking_uri(uri)
    try:
        yield client
    except mlflow.MlflowException as error:
        raise UnavailableError(
            f"the registry at {without_password(uri)} refused or cannot be reached: {first_line(error)}"
        ) from error
    finally:
        mlflow.set_tracking_uri("")
        for name, value in variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def registry_lock(name: str) -> Iterator[None]:
    """Hold the lock file of a name; it goes with the process. PromotionError when another one keeps it."""
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
def quiet() -> Iterator[None]:
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


def create_name(client: "MlflowClient", name: str) -> None:
    """Make a registered model where there is none of that name."""
    from mlflow import MlflowException

    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def names_of_ours(client: "MlflowClient") -> list[str]:
    """The registered models that our names fit."""
    names = [model.name for model in _all_pages(client.search_registered_models)]
    return [name for name in names if NAME_PATTERN.fullmatch(name)]


def versions_of(client: "MlflowClient", name: str) -> list[RegisteredVersion]:
    """All versions of a name, oldest first; none where there is no such name."""
    aliases = aliases_of(client, name)
    found = _all_pages(lambda **page: client.search_model_versions(f"name = '{name}'", **page))
    return sorted((_registered(version, aliases) for version in found), key=lambda item: item.version)


def existing_versions(client: "MlflowClient", name: str) -> list[RegisteredVersion]:
    """All versions of a name, oldest first; UsageError where there is none."""
    versions = versions_of(client, name)
    if not versions:
        known = sorted(model.name for model in _all_pages(client.search_registered_models))
        raise UsageError(f"{name}: no such registered model (known: {', '.join(known) or 'none'})")
    return versions


def aliases_of(client: "MlflowClient", name: str) -> dict[str, int]:
    """Alias -> version; empty where there is no such name."""
    from mlflow import MlflowException

    try:
        return {alias: int(version) for alias, version in client.get_registered_model(name).aliases.items()}
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return {}
        raise


def version_of(client: "MlflowClient", name: str, version: int) -> RegisteredVersion:
    """One version as it is now."""
    return _registered(client.get_model_version(name, str(version)), aliases_of(client, name))


def resolve_version(
    client: "MlflowClient", name: str, version: int | None, alias: str | None = None
) -> RegisteredVersion:
    """The version by number, or by alias; the newest where neither is given. UsageError names what there is."""
    versions = {item.version: item for item in existing_versions(client, name)}
    if alias is not None:
        version = aliases_of(client, name).get(alias)
        if version is None:
            known = ", ".join(sorted(aliases_of(client, name))) or "none"
            raise UsageError(f"{name}: has no alias {alias!r} (aliases: {known})")
    if version is None:
        version = max(versions)
    if version not in versions:
        raise UsageError(f"{name}: has no version {version} (versions: {', '.join(map(str, versions))})")
    return versions[version]


def facts_with_finetunings(client: "MlflowClient", version: RegisteredVersion) -> VersionFacts:
    """What promotion looks at: of a pre-trained model also the scores of its newest registered fine-tunings."""
    if version.facts.kind != PRETRAINED:
        return version.facts
    condition = f"tags.pretrained_model_sha256 = '{version.facts.content_sha256}'"
    found = _all_pages(lambda **page: client.search_model_versions(condition, **page))
    scores: dict[str, TaskScore] = {}
    for item in sorted(found, key=lambda item: int(item.version)):
        score = TaskScore.from_tags(int(item.version), item.tags)
        if score is not None and item.name == f"{version.name}-{score.task}":
            scores[score.task] = score
    ordered = tuple(scores[task] for task in sorted(scores))
    return VersionFacts.from_tags(version.name, version.version, version.tags, ordered)


def _registered(version: "ModelVersion", aliases: Mapping[str, int]) -> RegisteredVersion:
    number = int(version.version)
    return RegisteredVersion(
        name=version.name,
        version=number,
        aliases=tuple(sorted(alias for alias, holder in aliases.items() if holder == number)),
        tags=dict(version.tags),
        description=version.description or "",
        source=version.source or "",
        run_id=version.run_id or None,
    )


def _all_pages(search: Any) -> list[Any]:
    """Collect every page of a search."""
    found: list[Any] = []
    token: str | None = None
    while True:
        page = search(page_token=token)
        found.extend(page)
        token = page.token
        if not token:
            return found


NAME_PATTERN = re.compile(r"bert-[a-z0-9]+(?:[-_][a-z0-9]+)*")
MAX_NAME_LENGTH = 80
URI_PATTERN = re.compile(r"models:/(?P<name>[^/@]+)(?:/(?P<version>[0-9]+)|@(?P<alias>[a-z]+))")


def model_name(preset: str, task: str | None = None) -> str:
    """Return the registered name: `bert-<preset>` or `bert-<preset>-<task>`."""
    return check_name(f"bert-{preset}" + (f"-{task}" if task else ""))


def check_name(name: str) -> str:
    """Return a registered name; UsageError when it is none of ours (MLflow takes nearly anything)."""
    if len(name) > MAX_NAME_LENGTH or not NAME_PATTERN.fullmatch(name):
        shown = name if len(name) <= MAX_NAME_LENGTH else name[:MAX_NAME_LENGTH] + "…"
        raise UsageError(
            f"model name {shown!r}: expected bert-<preset> or bert-<preset>-<task> in small letters, digits, '-' and "
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
