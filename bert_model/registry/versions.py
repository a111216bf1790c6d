"""Registry tags derived from a model directory, and a typed view of a registered version's tags."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from bert_pipeline.errors import ArtefactError
from bert_pipeline.manifest import Manifest, content_sha256

PRETRAINED, FINETUNED = "pretrained_model", "finetuned_model"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskScore:
    """How well a fine-tuned version does its task."""

    task: str
    metric: str
    """Key of the main metric: "sst2/dev/accuracy"."""
    mean: float
    """Mean over seeds, on the scale of 0 to 100."""
    sd: float
    """Standard deviation over seeds."""
    num_seeds: int
    num_examples: int
    """Dev examples."""
    data_sha256: str
    """Identity of training and dev examples."""
    dev_sha256: str
    """Identity of the dev examples."""
    configuration_sha256: str
    """Identity of the search behind the score."""
    degenerate: bool
    """Whether the chosen setting says the same of everything."""
    version: int
    """The registered version that has the score."""
    majority: float | None = None
    """What the trivial baseline scores."""
    paper: float | None = None
    """The paper's figure."""

    @classmethod
    def from_tags(cls, version: int, tags: Mapping[str, str]) -> "TaskScore | None":
        """Read what a fine-tuned version says of itself; None where it was never evaluated."""
        mean = _number(tags.get("score_mean") or tags.get("score"))
        if tags.get("kind") != FINETUNED or mean is None:
            return None
        return cls(
            task=tags.get("task", ""),
            metric=tags.get("metric", ""),
            mean=mean,
            sd=_number(tags.get("score_sd")) or 0.0,
            num_seeds=int(tags.get("num_seeds", "0")),
            num_examples=int(tags.get("num_examples", "0")),
            data_sha256=tags.get("training_data_sha256", ""),
            dev_sha256=tags.get("data_sha256", ""),
            configuration_sha256=tags.get("configuration_sha256", ""),
            degenerate=tags.get("degenerate", "") == "true",
            version=version,
            majority=_number(tags.get("majority")),
            paper=None if tags.get("generated_sample") == "true" else _number(tags.get("paper")),
        )

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.sd:.2f} ({self.num_seeds})"


@dataclasses.dataclass(frozen=True, kw_only=True)
class VersionFacts:
    """What a registered version says of itself, and its fine-tunings of it."""

    name: str
    version: int
    kind: str
    """finetuned_model or pretrained_model."""
    scores: tuple[TaskScore, ...] = ()
    """The score of a fine-tuned model; those of a pre-trained one's fine-tunings."""
    content_sha256: str = ""
    """Identity of the artefact."""
    licence: str = ""
    """Licence of the weights."""
    rolled_back: bool = False
    """Whether it was champion once and lost the alias by a rollback."""

    @classmethod
    def from_tags(
        cls, name: str, version: int, tags: Mapping[str, str], finetunings: Sequence[TaskScore] = ()
    ) -> "VersionFacts":
        own = TaskScore.from_tags(version, tags)
        return cls(
            name=name,
            version=version,
            kind=tags.get("kind", ""),
            scores=(own,) if own else tuple(finetunings),
            content_sha256=tags.get("content_sha256", ""),
            licence=tags.get("licence", ""),
            rolled_back=tags.get("rolled_back", "") == "true",
        )

    def judged(self, ignored_tasks: Sequence[str] = ()) -> dict[str, TaskScore]:
        """Task -> score, of the tasks that the version is judged by; a fine-tuned model is always judged by its own."""
        ignored = ignored_tasks if self.kind == PRETRAINED else ()
        return {score.task: score for score in self.scores if score.task not in ignored}


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text not in (None, "") else None
    except ValueError:
        return None


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
