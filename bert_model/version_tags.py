"""What a model directory says of itself when it is registered: score, data, lineage; and what it may hold."""

import json
from pathlib import Path

from bert_pipeline.errors import ArtefactError
from bert_pipeline.manifest import Manifest, content_sha256

KINDS = ("pretrained_model", "finetuned_model")
PRETRAINED_METRIC = "held_out/mlm_loss"
SAFE_SUFFIXES = frozenset({".json", ".jsonl", ".safetensors", ".txt", ".md", ".png"})
"""Kinds of files that are taken out of the registry; a pickle is none of them."""


def tags_of(manifest: Manifest) -> dict[str, str]:
    """Return the tags that a directory's own files give its version: score, data, lineage."""
    tags = {"kind": manifest.kind, "content_sha256": manifest.sha256}
    if manifest.kind == "finetuned_model":
        facts = json.loads((manifest.path / "task.json").read_text(encoding="utf-8"))
        results = json.loads((manifest.path / "results.json").read_text(encoding="utf-8"))
        entry = results["metrics"][facts["main_key"]]
        tags |= {
            "task": facts["task"],
            "metric": facts["main_key"],
            "score": repr(float(facts["scores"][facts["main_key"]])),
            "score_mean": repr(float(entry["mean"])),
            "score_sd": repr(float(entry["sd"])),
            "num_examples": str(entry["n"]),
            "num_seeds": str(len(entry["values"])),
            "data_sha256": facts["dev_sha256"],
            "training_data_sha256": facts["data_sha256"],
            "configuration_sha256": facts["configuration_sha256"],
            "pretrained_model_sha256": facts["model_sha256"],
            "own_split": str(facts["own_split"]).lower(),
            "degenerate": str(facts["degenerate"]).lower(),
            **{key: repr(float(entry[key])) for key in ("majority", "paper") if entry.get(key) is not None},
        }
        return tags
    inputs = {name: entry for name, entry in manifest.inputs.items() if name != "initial_model"}
    tags |= {
        "metric": PRETRAINED_METRIC,
        "data_sha256": content_sha256(inputs),
        "configuration_sha256": content_sha256(manifest.configuration),
        "steps": str(manifest.counts.get("steps", "")),
        **{f"input.{name}": next(reversed(entry.values())) for name, entry in manifest.inputs.items()},
        "instances_sha256": " ".join(dict.fromkeys(entry.get("content_sha256", "") for entry in inputs.values())),
    }
    if PRETRAINED_METRIC in manifest.counts:
        tags["score"] = repr(float(manifest.counts[PRETRAINED_METRIC]))
    for key, value in manifest.counts.items():
        if key.startswith("held_out/") and isinstance(value, (int, float)):
            tags[key] = repr(float(value))
    return tags


def refuse_other_files(manifest: Manifest) -> None:
    """Refuse files that can carry code, listed in the manifest or not."""
    for path in sorted(manifest.path.rglob("*")):
        if path.is_symlink() or (path.is_file() and path.suffix not in SAFE_SUFFIXES):
            raise ArtefactError(
                f"{path}: only {', '.join(sorted(SAFE_SUFFIXES))} files go into and out of the registry; remove it"
            )
    for name in manifest.files:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ArtefactError(f"{manifest.path}: its manifest names {name!r} outside the directory")
