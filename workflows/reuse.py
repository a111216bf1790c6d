"""Finished work is not repeated: beside each artefact stands what it was made from.

Artefacts are functions of their inputs, their settings and the code. A retried run, or a second one with the same
preset, finds the same recipe beside an intact artefact and takes it as it is.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bert_pipeline.errors import BertError
from bert_pipeline.manifest import Manifest, content_sha256, load_manifest, write_text_durably


def recipe(*, code_version: str | None, settings: Mapping[str, Any], inputs: Mapping[str, str]) -> dict[str, Any]:
    """What decides an artefact's content: the code, the settings, and the identities of its inputs."""
    return {"code_version": code_version, "settings": dict(settings), "inputs": dict(inputs)}


def recipe_path(directory: Path) -> Path:
    """Where the recipe of an artefact stands: beside it, so that it never is part of it."""
    return directory.parent / f".{directory.name}.recipe.json"


def made_or_reused(
    directory: Path, kind: str, wanted: Mapping[str, Any], make: Callable[[], Manifest], say: Callable[[str], None]
) -> Manifest:
    """Return the artefact in `directory` if it was made by the same recipe and is intact; otherwise make it."""
    key = content_sha256(wanted)
    found = _reusable(directory, kind, key)
    if found is not None:
        say(f"unchanged since {found.provenance.get('created', 'it was made')}: {directory} is taken as it is")
        return found
    manifest = make()
    document = {"recipe_sha256": key, "content_sha256": manifest.sha256, "recipe": wanted}
    write_text_durably(recipe_path(directory), json.dumps(document, indent=1) + "\n")
    return manifest


def _reusable(directory: Path, kind: str, key: str) -> Manifest | None:
    try:
        stored = json.loads(recipe_path(directory).read_text(encoding="utf-8"))
        if stored["recipe_sha256"] != key:
            return None
        manifest = load_manifest(directory, kind=kind)
        return manifest if manifest.sha256 == stored["content_sha256"] else None
    except (BertError, OSError, ValueError, KeyError, TypeError):
        return None
