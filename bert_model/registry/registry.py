"""The model registry: versions of our directories in MLflow, and the aliases candidate, champion and previous.

Versions are served by MLflow as models from code. Our own code takes only the directory inside, checks every file
against its manifest, and loads nothing but safetensors, JSON and text.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bert_model.registry.artifacts import add_beside, fetch, inspect, read_card, upload
from bert_model.registry.client import (
    RegisteredVersion,
    aliases_of,
    check_name,
    create_name,
    existing_versions,
    facts_with_finetunings,
    model_name,
    names_of_ours,
    parse_uri,
    registry_client,
    registry_lock,
    resolve_version,
    version_of,
    versions_of,
)
from bert_model.registry.model_card import CARD_NAME, CURVES_NAME, description_of, model_card, with_scores
from bert_model.registry.promotion import Decision, GateConfig, decide
from bert_model.registry.versions import KINDS, PRETRAINED, refuse_other_files, tags_of
from bert_model.training.metrics_log import METRICS_NAME, mlflow_run_id, read_lines
from bert_pipeline.errors import ArtefactError, PromotionError
from bert_pipeline.manifest import Manifest, load_manifest

if TYPE_CHECKING:
    from mlflow import MlflowClient

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
DECISION_NAME, DECISION_TABLE_NAME = "promotion.json", "promotion.txt"


def register(
    directory: Path | str, name: str, *, tags: Mapping[str, str] | None = None, curves: bytes | None = None
) -> RegisteredVersion:
    """Register one of our model directories as a new version and make it the candidate.

    Its files are checked and uploaded with a model card, and `curves`, a PNG, in it; tags carry score, data, lineage
    and what the model computes for a reference input, and `tags` adds to them ("licence" is one that promotion asks
    for). The same content under the same name is one version: registering it again returns that version.
    ArtefactError when the directory is not a model of ours or is damaged.
    """
    check_name(name)
    manifest = load_manifest(directory, verify="sha256")
    if manifest.kind not in KINDS:
        raise ArtefactError(f"{directory}: is a {manifest.kind}, expected a {' or a '.join(KINDS)}; give another path")
    refuse_other_files(manifest)
    with registry_lock(name), registry_client() as client:
        create_name(client, name)
        known = next((v for v in versions_of(client, name) if v.tags.get("content_sha256") == manifest.sha256), None)
        if known is None or "reference_logits" not in known.tags:
            known = _new_version(client, manifest, name, tags or {}, curves)
        client.set_registered_model_alias(name, CANDIDATE, str(known.version))
        return version_of(client, name, known.version)


def promote(
    name: str, version: int | None = None, dry_run: bool = False, *, config: GateConfig | None = None
) -> Decision:
    """Make a version (the newest where none is given) champion if every gate lets it pass.

    The decision is returned either way and stored with the version, as a tag and as a table among its artefacts;
    `Decision.require` turns a refusal into a PromotionError. With `dry_run` nothing is changed. The former champion
    stays as `previous`. A lock file serializes promotions on this machine; a change by another machine is detected by
    reading the alias back, and is a PromotionError.
    """
    check_name(name)
    with registry_client() as client:
        chosen = resolve_version(client, name, version)
        if not dry_run and chosen.facts.kind == PRETRAINED:
            chosen = _enter_scores(client, chosen)
        inspection = inspect(client, chosen)  # takes as long as the download, and is not done under the lock
        with registry_lock(name):
            chosen = resolve_version(client, name, chosen.version)
            standing = aliases_of(client, name).get(CHAMPION)
            champion = version_of(client, name, standing) if standing is not None else None
            decision = decide(
                facts_with_finetunings(client, chosen),
                facts_with_finetunings(client, champion) if champion else None,
                inspection=inspection,
                config=config,
            )
            if dry_run:
                return decision
            if decision.passed:
                _move_champion(client, name, expected=standing, chosen=chosen.version)
                decision = dataclasses.replace(decision, promoted=True)
            _store(client, chosen, decision)
            return decision


def rollback(name: str) -> RegisteredVersion:
    """Give the alias champion back to `previous`, and let the two change places; returns the new champion.

    The version that loses the alias is marked, and is not promoted again unless that gate is waived or the rollback
    is itself rolled back.
    """
    check_name(name)
    with registry_lock(name), registry_client() as client:
        existing_versions(client, name)
        aliases = aliases_of(client, name)
        champion, previous = aliases.get(CHAMPION), aliases.get(PREVIOUS)
        if previous is None:
            raise PromotionError(f"{name}: has no previous champion to go back to; nothing was changed")
        damage = inspect(client, version_of(client, name, previous)).damage
        if damage is not None:
            raise PromotionError(f"{name}: version {previous} is damaged ({damage}); nothing was changed")
        client.set_registered_model_alias(name, CHAMPION, str(previous))
        client.set_model_version_tag(name, str(previous), "rolled_back", "false")
        if champion is not None:
            client.set_registered_model_alias(name, PREVIOUS, str(champion))
            client.set_model_version_tag(name, str(champion), "rolled_back", "true")
        return version_of(client, name, previous)


def list_models(name: str | None = None) -> list[RegisteredVersion]:
    """Return all versions of all models of ours, or of one, by name and version."""
    with registry_client() as client:
        names = [check_name(name)] if name else names_of_ours(client)
        found = [version for item in names for version in versions_of(client, item)]
    return sorted(found, key=lambda version: (version.name, version.version))


def models_table(versions: list[RegisteredVersion]) -> str:
    """Versions as a table for people: name, version, aliases, score, data."""
    if not versions:
        return "no models are registered"
    rows = [("NAME", "VERSION", "ALIASES", "METRIC", "SCORE", "DATA", "MODEL")]
    for item in versions:
        score = f"{float(item.tags['score']):.2f}" if item.tags.get("score") else ""
        rows.append(
            (
                item.name,
                str(item.version),
                ", ".join(item.aliases),
                item.tags.get("metric", ""),
                score + (" degenerate" if item.tags.get("degenerate") == "true" else ""),
                item.tags.get("data_sha256", "")[:12],
                item.facts.content_sha256[:12],
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


def get_version(reference: str) -> RegisteredVersion:
    """Return the version of `models:/NAME@ALIAS` or `models:/NAME/VERSION`; UsageError when there is none."""
    name, version, alias = parse_uri(reference)
    with registry_client() as client:
        return resolve_version(client, name, version, alias)


def download(reference: str) -> Path:
    """Return a local directory with a version's model, every file checked against its manifest.

    Downloads go to a cache below BERT_HOME, named by content, so a version is fetched once. ArtefactError when a file
    is damaged, when the content is not what was registered, or when there are files that we never write.
    """
    name, version, alias = parse_uri(reference)
    with registry_client() as client:
        return fetch(client, resolve_version(client, name, version, alias))


def _new_version(
    client: "MlflowClient", manifest: Manifest, name: str, tags: Mapping[str, str], curves: bytes | None
) -> RegisteredVersion:
    from bert_model.registry.artifacts import reference_logits

    all_tags = {**tags_of(manifest), **tags, "reference_logits": json.dumps(reference_logits(manifest.path))}
    events = list(read_lines(manifest.path.parent)) if (manifest.path.parent / METRICS_NAME).is_file() else []
    card = model_card(name, manifest, all_tags, events=events, curves=curves is not None)
    beside = {CARD_NAME: card.encode(), **({CURVES_NAME: curves} if curves else {})}
    model_id = upload(client, manifest, name, {k: v for k, v in all_tags.items() if k != "reference_logits"}, beside)
    created = client.create_model_version(
        name,
        source=f"models:/{model_id}",
        model_id=model_id,  # a server refuses the source without it, MLflow's own store does not
        run_id=mlflow_run_id(manifest),
        tags=all_tags,
        description=description_of(card),
    )
    return version_of(client, name, int(created.version))


def _enter_scores(client: "MlflowClient", version: RegisteredVersion) -> RegisteredVersion:
    """Bring the card of a pre-trained model up to the scores that its fine-tunings have by now."""
    card = read_card(client, version)
    if not card:
        return version
    scored = with_scores(card, facts_with_finetunings(client, version).scores)
    if scored != card:
        add_beside(client, version, {CARD_NAME: scored.encode()})
        client.update_model_version(version.name, str(version.version), description=description_of(scored))
    return version_of(client, version.name, version.version)


def _move_champion(client: "MlflowClient", name: str, *, expected: int | None, chosen: int) -> None:
    if aliases_of(client, name).get(CHAMPION) != expected:
        raise PromotionError(f"{name}: the champion changed while version {chosen} was judged; try again")
    if expected is not None and expected != chosen:
        client.set_registered_model_alias(name, PREVIOUS, str(expected))
    client.set_registered_model_alias(name, CHAMPION, str(chosen))
    if aliases_of(client, name).get(CHAMPION) != chosen:
        raise PromotionError(f"{name}: another client moved the champion at the same time; look at bert models")


def _store(client: "MlflowClient", version: RegisteredVersion, decision: Decision) -> None:
    """Keep a decision with its version: the tag is the newest one, the files tell the same to people."""
    client.set_model_version_tag(version.name, str(version.version), "promotion", decision.to_json())
    table = decision.table() + "\n"
    add_beside(client, version, {DECISION_NAME: decision.to_json().encode(), DECISION_TABLE_NAME: table.encode()})
