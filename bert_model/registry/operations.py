"""The model registry: model directories as versions in MLflow, and the aliases candidate, champion and previous.

MLflow serves versions as models from code. This package takes only the model directory out of a version, checks every
file against its manifest, and loads nothing but safetensors, JSON and text.
"""

import contextlib
import dataclasses
import datetime
import functools
import hashlib
import json
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bert_model.metrics.uncertainty import STATISTICS_NAME, UnitStatistics
from bert_model.model.config import PRESET_SIZES, BertConfig, size_name
from bert_model.registry import artifacts
from bert_model.registry.client import (
    aliases_of,
    check_name,
    find_versions,
    known_names,
    model_name,
    parse_uri,
    read_stored_file,
    read_version,
    registry_client,
    registry_lock,
    resolve_version,
    with_finetuning_scores,
)
from bert_model.registry.model_card import (
    CARD_NAME,
    CURVES_NAME,
    README_NAME,
    card_sha256,
    description_of,
    encoder_of,
    model_card,
    readme_problem,
    with_license,
    with_scores,
)
from bert_model.registry.promotion import Decision, GateConfig, decide
from bert_model.registry.versions import (
    CARD_TAG,
    FINETUNED,
    KINDS,
    PRETRAINED,
    REGISTERED_TAG,
    VERSION_NAME,
    Exam,
    RegisteredVersion,
    Version,
    describe_model,
    refuse_unsafe_files,
)
from bert_model.tables import format_table
from bert_model.training.metrics_log import read_history
from bert_model.training.mlflow_store import current_user, ignoring
from bert_pipeline.errors import ArtifactError, PromotionError, UsageError
from bert_pipeline.manifest import Manifest, load_manifest

if TYPE_CHECKING:
    from mlflow import MlflowClient

logger = logging.getLogger(__name__)

CANDIDATE, CHAMPION, PREVIOUS = "candidate", "champion", "previous"
MOVE_TAG = "champion_move"
"""Tag of a registered model: the mark of the client that was last to begin a move of the champion."""
TOLERANCE = 1e-3
"""Accepted difference of a score that is computed again, in points."""
DECISION_NAME, DECISION_TABLE_NAME = "promotion.json", "promotion.txt"


def default_name(directory: Path | str) -> str:
    """Return `bert-<size>`, or `bert-<size>-<task>` for a fine-tuned model; UsageError if it has no preset's size."""
    manifest = load_manifest(directory)
    config = BertConfig.from_directory(directory)
    # A preset keeps its name if a configuration changes the size.
    model = manifest.configuration.get("model", {}) if manifest.kind == PRETRAINED else {}
    preset, architecture = model.get("preset"), model.get("architecture", "bert")
    size = size_name(preset, architecture) if preset in PRESET_SIZES else config.preset_size
    if not size:
        raise UsageError(
            f"{directory}: {config.num_hidden_layers} layers of width {config.hidden_size} with "
            f"{config.num_attention_heads} heads are none of the sizes {', '.join(PRESET_SIZES)}; give a --name such "
            "as bert-mine-rte"
        )
    return model_name(size, describe_model(manifest).task)


def register(
    directory: Path | str,
    name: str,
    *,
    tags: Mapping[str, str] | None = None,
    curves: bytes | None = None,
    replaces_license: bool = False,
) -> RegisteredVersion:
    """Register a model directory as a new version and make it the candidate.

    The files are checked and uploaded with a model card, which shows `curves`, a PNG, if given, and with a document:
    score, lineage and reference outputs, of which what is searched becomes tags. `tags` adds to its lineage
    ("license" is required for promotion). Content that is already registered under the name keeps its version, unless
    that is damaged; it gets a license if it had none, or with `replaces_license`. ArtifactError if the directory is not
    a model or is damaged, or its README.md is empty or cut off.
    """
    check_name(name)
    manifest = load_manifest(directory, verify="sha256")
    if manifest.kind not in KINDS:
        raise ArtifactError(f"{directory}: is a {manifest.kind}, expected a {' or a '.join(KINDS)}; give another path")
    refuse_unsafe_files(manifest)
    if (manifest.path / README_NAME).is_file() and (problem := readme_problem(manifest.path)):
        raise ArtifactError(f"{problem}; write it again, or remove it")

    document = describe_model(manifest, tags)

    # Content is registered once. A version that is damaged, and can no longer be promoted, gets a successor.
    with registry_client() as client:
        earlier = _newest_with(manifest, find_versions(client, name))
        damaged = 0
        if earlier is None:
            _refuse_other_score(manifest, document)
        elif artifacts.inspect(client, earlier).damage is not None:  # it is downloaded: too long to hold the lock
            damaged = earlier.version
        with registry_lock(name):
            with ignoring("RESOURCE_ALREADY_EXISTS"):
                client.create_registered_model(name, description=_description(document.task, encoder_of(manifest)))
            versions = find_versions(client, name)
            _refuse_other_task(versions, document.task, name)
            version = _newest_with(manifest, versions)
            if version is None or version.version == damaged:
                kept = {"rolled_back": "true"} if version is not None and version.rolled_back else {}  # its content was
                version = _create_version(client, manifest, name, document, curves, kept)
            elif (license := document.lineage.get("license")) and (replaces_license or not version.license):
                # The tag comes last: it tells that the card has the license too.
                _change_card(client, version, functools.partial(with_license, license=license))
                client.set_model_version_tag(name, str(version.version), "license", license)
            client.set_registered_model_alias(name, CANDIDATE, str(version.version))
            client.set_model_version_tag(name, str(version.version), REGISTERED_TAG, _now())
            return read_version(client, name, version.version)


def _newest_with(manifest: Manifest, versions: Sequence[RegisteredVersion]) -> RegisteredVersion | None:
    """Return the newest of some versions that has the content of a model directory."""
    return next((version for version in reversed(versions) if version.content_sha256 == manifest.sha256), None)


def _description(task: str, encoder: str) -> str:
    """Describe a registered model in Markdown: what its versions are, and which of them to load."""
    what = f"{encoder[0].upper()}{encoder[1:]} fine-tuned for {task}" if task else f"A pre-trained {encoder}"
    return (
        f"{what}; one version for each trained model. `@{CHAMPION}` is the version in use: the last one that passed "
        f"every promotion gate. `@{CANDIDATE}` is the newest, `@{PREVIOUS}` the one that a rollback restores."
    )


def _refuse_other_task(versions: Sequence[RegisteredVersion], task: str, name: str) -> None:
    """Raise UsageError if a name has versions of another task, with which the gates would compare."""
    if others := sorted({version.tags.get("task", "") for version in versions} - {task}):
        raise UsageError(
            f"{name}: its versions are of {others[0] or 'pre-training'}, found a model of {task or 'pre-training'}; "
            "give another name"
        )


def _change_card(client: "MlflowClient", version: RegisteredVersion, change: Callable[[str], str]) -> None:
    """Replace a version's model card by a changed one, with its hash and the description that is its beginning."""
    former, damage = artifacts.read_card(client, version)
    card = change(former)
    if damage is not None or version.tags[CARD_TAG] == card_sha256(card):  # a gate tells of damage
        return
    # An outage is no damage: until the file is there, both hashes count, and the next call writes the card again.
    hashes = f"{card_sha256(card)} {version.tags[CARD_TAG]}"
    client.set_model_version_tag(version.name, str(version.version), CARD_TAG, hashes)
    client.update_model_version(version.name, str(version.version), description=description_of(card))
    artifacts.attach(client, version, {CARD_NAME: card.encode()})
    client.set_model_version_tag(version.name, str(version.version), CARD_TAG, card_sha256(card))


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def _create_version(
    client: "MlflowClient", manifest: Manifest, name: str, document: Version, curves: bytes | None, kept: dict[str, str]
) -> RegisteredVersion:
    # The metrics log of a training is in the directory above its model.
    events = read_history(manifest.path.parent)
    card = model_card(name, manifest, document, events=events, curves=curves is not None)
    document = dataclasses.replace(document, reference_logits=artifacts.reference_logits(manifest.path))
    attachments = {CARD_NAME: card.encode(), VERSION_NAME: document.to_json().encode()}
    if STATISTICS_NAME in manifest.files:
        attachments[STATISTICS_NAME] = (manifest.path / STATISTICS_NAME).read_bytes()
    model = artifacts.upload(client, manifest, name, document, attachments | ({CURVES_NAME: curves} if curves else {}))
    created = client.create_model_version(
        name,
        source=f"models:/{model.model_id}",
        model_id=model.model_id,  # required by a server, though not by MLflow's SQL store
        run_id=model.source_run_id,
        tags=document.tags() | kept | {REGISTERED_TAG: _now(), CARD_TAG: card_sha256(card)},
        description=description_of(card),
    )
    # A server sets this itself: the column "Registered models" of MLflow's tables.
    link = {"name": name, "version": created.version}
    client.set_logged_model_tags(model.model_id, {"mlflow.modelVersions": json.dumps([link])})
    return read_version(client, name, int(created.version))


def promote(
    name: str, version: int | None = None, dry_run: bool = False, *, config: GateConfig | None = None
) -> Decision:
    """Make a version, by default the newest, champion if every gate lets it pass.

    The decision is returned either way, and stored with the version as files, its outcome as the tag "promotion";
    `Decision.require` turns a refusal into a PromotionError. With `dry_run` nothing is changed. The former champion
    becomes `previous`. A lock file serializes promotions on this machine; of two machines that promote at once, at
    least one raises PromotionError.
    """
    check_name(name)
    with registry_client() as client:
        chosen = resolve_version(client, name, version)
        if not dry_run and chosen.kind == PRETRAINED:
            # The scores of its fine-tunings, which are registered after it.
            with registry_lock(name):  # a registration may rewrite the card too
                scores = with_finetuning_scores(client, chosen).scores
                _change_card(client, chosen, functools.partial(with_scores, scores=scores))
            chosen = read_version(client, name, chosen.version)
        # Both download versions: too long to hold the lock.
        inspection = artifacts.inspect(client, chosen)
        rival = aliases_of(client, name).get(CHAMPION)
        exam: Exam | None = None
        if rival is not None and inspection.damage is None:  # a damaged candidate is refused in any case
            try:
                exam = artifacts.exam_on_pairs_of(client, chosen, read_version(client, name, rival))
            except ArtifactError as error:
                inspection = dataclasses.replace(inspection, exam=f"the champion cannot be examined: {error}")
        with registry_lock(name):
            # Read again under the lock, as tags and aliases may have changed during the download.
            chosen = resolve_version(client, name, chosen.version)
            champion_number = aliases_of(client, name).get(CHAMPION)
            champion = read_version(client, name, champion_number) if champion_number is not None else None
            if champion is not None and champion_number == rival:
                document = dataclasses.replace(champion.document, exam=exam or champion.document.exam)
                champion = dataclasses.replace(champion, document=document)
            elif champion is not None and artifacts.needs_exam(chosen, champion):
                raise _champion_changed(name, chosen.version)
            judged = with_finetuning_scores(client, chosen)
            holder = with_finetuning_scores(client, champion) if champion else None
            statistics = _statistics_of(client, judged, holder) if holder else {}
            decision = decide(judged, holder, inspection=inspection, statistics=statistics, config=config)
            if dry_run:
                return decision
            if champion_number != chosen.version:
                # Before the move too: an interruption keeps the decision, which does not claim a move that failed.
                _store_decision(client, chosen, decision)
                if not decision.passed:
                    return decision
                _move_champion(client, champion, chosen)
            else:  # the decision that made it champion stays with it, and may lack that it did
                stored = _stored_decision(client, name, chosen.version)
                if stored is None or stored.promoted or not stored.passed:
                    return decision
                decision = stored
            decision = dataclasses.replace(decision, promoted=True)
            _store_decision(client, chosen, decision)
            return decision


def _statistics_of(client: "MlflowClient", *versions: RegisteredVersion) -> dict[tuple[str, int], UnitStatistics]:
    """Return task and version -> what the scores of some versions are computed from, where it is as registered."""
    statistics = {}
    for version in versions:
        for score in version.scores:
            name = version.name if version.kind == FINETUNED else f"{version.name}-{score.task}"
            text = read_stored_file(client, name, score.version, STATISTICS_NAME)
            if text is not None and hashlib.sha256(text.encode()).hexdigest() == score.statistics_sha256:
                statistics[score.task, score.version] = UnitStatistics.from_json(text)
            else:
                logger.warning("%s version %d: %s is missing or was changed", name, score.version, STATISTICS_NAME)
    return statistics


def _refuse_other_score(manifest: Manifest, document: Version) -> None:
    """Raise ArtifactError if a fine-tuned model's results.json or task.json has another score than its statistics."""
    if (score := document.score) is None or not document.task:
        return
    statistics = UnitStatistics.from_json((manifest.path / STATISTICS_NAME).read_text(encoding="utf-8"))
    if score.metric.rpartition("/")[2] != statistics.metric or tuple(score.by_seed) != statistics.seeds:
        raise ArtifactError(
            f"{manifest.path / STATISTICS_NAME}: is of another score than {score.metric} of results.json"
        )
    expected = statistics.scores()[0].tolist()  # by seed
    pairs = zip([*score.by_seed.values(), score.mean], [*expected, statistics.mean()], strict=True)
    differ = [a for a, b in pairs if not abs(a - b) <= TOLERANCE]
    of_weights = document.score_of_weights
    if differ or not any(abs(of_weights - value) <= TOLERANCE for value in expected):
        raise ArtifactError(
            f"{manifest.path}: found {score.metric} {(differ or [of_weights])[-1]:.4f}, expected "
            f"{statistics.mean():.4f} as computed from {STATISTICS_NAME}; results.json or task.json was changed: "
            "fine-tune it again"
        )


def _move_champion(client: "MlflowClient", champion: RegisteredVersion | None, chosen: RegisteredVersion) -> None:
    """Move the alias if `champion` still has it, and check that nobody else moved it meanwhile.

    MLflow cannot compare and set. Every client therefore puts a mark on the name before it reads the champion, and
    looks for its mark after its move: of two clients that move at once, the one that marked first either finds the
    other's mark, or moved before the other read the champion, which then is not the expected one.
    """
    name, mark = chosen.name, f"{current_user()} at {_now()} (to {chosen.version}, {uuid.uuid4().hex})"
    client.set_registered_model_tag(name, MOVE_TAG, mark)
    aliases = aliases_of(client, name)
    if aliases.get(CHAMPION) != (champion.version if champion else None):
        raise _champion_changed(name, chosen.version)
    if chosen.rolled_back:  # it returns by another rollback, or its gate was waived
        client.set_model_version_tag(name, str(chosen.version), "rolled_back", "false")
    moves = [(CHAMPION, chosen.version)]
    # The champion itself, or a copy of it, takes its place: a rollback leads to what was champion before both.
    if champion is not None and champion.version != chosen.version and not chosen.is_copy_of(champion):
        # What returns keeps its alias until it is champion: an interrupted rollback would lose it.
        moves.insert(int(aliases.get(PREVIOUS) == chosen.version), (PREVIOUS, champion.version))
    for alias, version in moves:
        client.set_registered_model_alias(name, alias, str(version))
    mark_now = client.get_registered_model(name).tags.get(MOVE_TAG)
    if aliases_of(client, name).get(CHAMPION) != chosen.version or mark_now != mark:
        raise PromotionError(f"{name}: another client moved the champion at the same time; look at bert models")


def _champion_changed(name: str, chosen: int) -> PromotionError:
    return PromotionError(f"{name}: the champion changed while version {chosen} was inspected; try again")


def _store_decision(client: "MlflowClient", version: RegisteredVersion, decision: Decision) -> None:
    """Keep a decision with its version: its outcome as a tag, all of it as files."""
    outcome = "passed" if decision.passed else f"refused by {', '.join(decision.refused_by)}"
    client.set_model_version_tag(version.name, str(version.version), "promotion", outcome)
    table = decision.table() + "\n"
    artifacts.attach(client, version, {DECISION_NAME: decision.to_json().encode(), DECISION_TABLE_NAME: table.encode()})


def _stored_decision(client: "MlflowClient", name: str, version: int) -> Decision | None:
    """Return the decision that is stored with a version; None if there is none, or only a part of one."""
    with contextlib.suppress(ValueError):
        return Decision.from_json(read_stored_file(client, name, version, DECISION_NAME) or "")
    return None


def rollback(name: str) -> RegisteredVersion:
    """Exchange the aliases champion and previous; return the new champion.

    The version that loses the alias is tagged, and the gate "not_rolled_back" refuses it until it is waived or the
    rollback is itself rolled back.
    """
    check_name(name)
    with registry_lock(name), registry_client() as client:
        resolve_version(client, name)
        aliases = aliases_of(client, name)
        # Both aliases are on one version if champion was moved by hand, or restored after it was deleted.
        if PREVIOUS not in aliases or aliases[PREVIOUS] == aliases.get(CHAMPION):
            raise PromotionError(f"{name}: has no previous champion to go back to; nothing was changed")
        # The previous champion may have been damaged since: serving must not switch to it.
        previous = read_version(client, name, aliases[PREVIOUS])
        damage = artifacts.inspect(client, previous).damage
        if damage is not None:
            raise PromotionError(f"{name}: version {previous.version} is damaged ({damage}); nothing was changed")
        champion = read_version(client, name, aliases[CHAMPION]) if CHAMPION in aliases else None
        if champion is not None:  # before the move: what an interruption leaves must not be promoted again
            client.set_model_version_tag(name, str(champion.version), "rolled_back", "true")
        _move_champion(client, champion, previous)
        return read_version(client, name, previous.version)


def list_models(name: str | None = None) -> list[RegisteredVersion]:
    """Return all versions of a model, or of every model that is named by this project, by name and version."""
    with registry_client() as client:
        names = [check_name(name)] if name else known_names()
        versions = [version for item in names for version in find_versions(client, item)]
    return sorted(versions, key=lambda version: (version.name, version.version))


def champions() -> dict[str, int]:
    """Return the version of each model that is champion."""
    with registry_client() as client:
        aliases = {name: aliases_of(client, name) for name in known_names()}
    return {name: versions[CHAMPION] for name, versions in aliases.items() if CHAMPION in versions}


def describe_move(name: str, version: int) -> tuple[str, Decision | None]:
    """Return who moved the alias to a version, "" if not by this project, and the decision on it, if it is whole."""
    with registry_client() as client:
        mark = client.get_registered_model(name).tags.get(MOVE_TAG, "")
        user = mark.partition(" (")[0] if f"(to {version}, " in mark else ""
        return user, _stored_decision(client, name, version)


def why_no_champion(name: str) -> str:
    """Return why a registered model has no champion, by the decision on its newest version; "" if it has one."""
    check_name(name)
    with registry_client() as client:
        versions = find_versions(client, name)
        if any(CHAMPION in version.aliases for version in versions):
            return ""
        if not versions:
            return "is not registered"
        newest = versions[-1]
        decision = _stored_decision(client, name, newest.version)
    if decision is not None and not decision.passed:
        return f"version {newest.version} is refused ({decision.reasons()})"
    return f"version {newest.version} {newest.tags.get('promotion', 'was never decided on')}"


def models_table(versions: list[RegisteredVersion]) -> str:
    """Format versions as a plain-text table."""
    if not versions:
        return "no models are registered"
    rows = []
    for version in versions:
        score, tags = version.document.score, version.tags
        shown = f"{score or tags.get('score', '')}{' degenerate' if tags.get('degenerate') == 'true' else ''}"
        data, known = score.dev_sha256[:12] if score else "", tags.get("known", "")
        identity = [version.name, str(version.version), ", ".join(version.aliases)]
        rows.append([*identity, tags.get("metric", ""), shown, data, version.content_sha256[:12], known])
    head = ["NAME", "VERSION", "ALIASES", "METRIC", "SCORE", "DATA", "MODEL", "KNOWN"]
    return format_table(head, rows, "plain")


def get_version(reference: str) -> RegisteredVersion:
    """Return the version of `models:/NAME@ALIAS` or `models:/NAME/VERSION`; UsageError if there is none."""
    with registry_client() as client:
        return resolve_version(client, *parse_uri(reference))


def download(reference: str) -> Path:
    """Return a local directory with a version's model, every file checked against its manifest.

    Downloads are cached below BERT_HOME, keyed by content. ArtifactError if a file is damaged, if the content is not
    what was registered, or if there are files that can carry code.
    """
    with registry_client() as client:
        return artifacts.fetch(client, resolve_version(client, *parse_uri(reference)))
