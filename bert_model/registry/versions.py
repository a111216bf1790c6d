"""Registered versions: the description written at registration, and a typed view of them.

`describe_model` derives the description from a model directory. Its FILTER_TAGS become tags of the version in MLflow,
all of it the file DESCRIPTION_NAME; `RegisteredVersion` and `TaskScore` read it back.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from bert_model.finetuning.caveats import REPEATS, Caveat, read_caveats
from bert_model.metrics.uncertainty import STATISTICS_NAME, is_at_chance, standard_error
from bert_pipeline.errors import ArtifactError
from bert_pipeline.manifest import Manifest, content_sha256

PRETRAINED, FINETUNED = "pretrained_model", "finetuned_model"
KINDS = (PRETRAINED, FINETUNED)
PRETRAINED_METRIC = "held_out/mlm_loss"
EXAM_ACCURACY, EXAM_PAIRS = "exam_report/accuracy", "input.exam_report"
EXAM_NGRAM_BASELINE = "exam_report/ngram_baseline"
"""Entries of a model that was examined on minimal pairs for reporting: its score (0-100), the identity of the pairs,
and the score of an n-gram model."""
EXAM_SIZE = "exam_report/pairs"
"""The number of these pairs."""
EXAM_FOR_CHOOSING = "exam/accuracy"
"""Its score on the few pairs that checkpoints are compared by."""
EXAM_INPUTS = ("exam", "exam_report")
"""Inputs of a model's manifest that are pairs."""
DESCRIPTION_NAME = "description.json"
"""File next to a version's model: its description, with hashes and reference outputs, as text."""
FILTER_TAGS = (
    "kind",
    "task",
    "metric",
    "score",
    "dump",
    "license",
    "degenerate",
    "known",
    "own_split",
    "generated_sample",
    "content_sha256",
    "pretrained_model_sha256",
)
"""Entries that are tags too: those by which versions are searched."""
REGISTERED_TAG = "registered_at"
"""Tag with the seconds since 1970 at which the content of a version was last registered; its texts sort by time."""
CARD_TAG = "card_sha256"
"""Tag with the hash of a version's model card, which is rewritten after registration."""
SAFE_SUFFIXES = frozenset({".json", ".jsonl", ".safetensors", ".txt", ".md", ".png"})
"""File types that enter and leave the registry. None of them can carry code, as a pickle can."""


def describe_model(manifest: Manifest) -> dict[str, str]:
    """Return the description of a model directory: kind, identity, score, data and lineage."""
    description = {"kind": manifest.kind, "content_sha256": manifest.sha256}
    return description | (
        _describe_finetuned(manifest) if manifest.kind == FINETUNED else _describe_pretrained(manifest)
    )


def tags_of(description: Mapping[str, str]) -> dict[str, str]:
    """Return the part of a description that becomes tags."""
    return {key: description[key] for key in FILTER_TAGS if key in description}


def _describe_finetuned(manifest: Manifest) -> dict[str, str]:
    results = read_results(manifest)
    score = TaskScore.from_results(results)
    of_weights = json.loads((manifest.path / "task.json").read_text(encoding="utf-8"))["scores"][score.metric]
    return {
        **score.describe(),
        "score": repr(score.mean),
        "score_of_weights": repr(float(of_weights)),
        "pretrained_model_sha256": results["model_sha256"],
        "own_split": str(results["own_split"]).lower(),
        "known": ", ".join(map(str, score.known)) or "nothing",
        "statistics_sha256": manifest.files[STATISTICS_NAME]["sha256"],
        **({"generated_sample": "true"} if results["generated_sample"] else {}),
    }


def read_results(manifest: Manifest) -> dict[str, Any]:
    """Return results.json of a fine-tuned model."""
    results: dict[str, Any] = json.loads((manifest.path / "results.json").read_text(encoding="utf-8"))
    return results


def _describe_pretrained(manifest: Manifest) -> dict[str, str]:
    # The weights that training started from are lineage, and the pairs of its exams were not read: no data.
    data = {name: entry for name, entry in manifest.inputs.items() if name not in ("initial_model", *EXAM_INPUTS)}
    scores = {
        key: repr(float(value))
        for key, value in manifest.counts.items()
        if key in (EXAM_ACCURACY, EXAM_NGRAM_BASELINE, EXAM_FOR_CHOOSING)
        or (key.startswith("held_out/") and isinstance(value, (int, float)))
    }

    # Several phases may read the same instances, whose hash is then named once.
    description = {
        "metric": PRETRAINED_METRIC,
        "data_sha256": content_sha256(data),
        "configuration_sha256": content_sha256(manifest.configuration),
        "steps": str(manifest.counts.get("steps", "")),
        **{f"input.{name}": next(reversed(entry.values())) for name, entry in manifest.inputs.items()},
        "instances_sha256": " ".join(dict.fromkeys(entry.get("content_sha256", "") for entry in data.values())),
        **scores,
        **({"score": scores[PRETRAINED_METRIC]} if PRETRAINED_METRIC in scores else {}),
    }
    if (size := manifest.inputs.get("exam_report", {}).get("name", "").removesuffix(" pairs")).isdecimal():
        description[EXAM_SIZE] = size
    return description


ENTRIES = {
    "mean": "score_mean",
    "sd": "score_sd",
    "data_sha256": "training_data_sha256",
    "dev_sha256": "data_sha256",
    "known": "caveats",
}
"""Field of a score -> its entry in a description, where that has another name."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskScore:
    """Score of a fine-tuned model: from its results.json, and from the description of its registered version.

    Promotion decisions store it field by field.
    """

    task: str = ""
    metric: str = ""
    """Key of the metric, such as "sst2/dev/accuracy"."""
    mean: float
    """Mean over seeds, from 0 to 100."""
    sd: float = 0.0
    """Standard deviation over seeds."""
    num_seeds: int = 0
    num_examples: int = 0
    """Number of dev examples."""
    data_sha256: str = ""
    """Identity of the training and dev examples."""
    dev_sha256: str = ""
    """Identity of the dev examples."""
    configuration_sha256: str = ""
    """Identity of the hyperparameter search."""
    degenerate: bool = False
    """True if every dev example gets the same prediction."""
    version: int = 0
    """The registered version that was scored."""
    majority: float | None = None
    """Score of the trivial baseline."""
    paper: float | None = None
    """Score in the paper; None for a generated sample."""
    known: tuple[Caveat, ...] = ()
    """What is known against it."""
    official: bool = False
    """True if the examples are the published ones."""
    statistics_sha256: str = ""
    """Hash of the version's STATISTICS_NAME."""

    @property
    def standard_error(self) -> float:
        """Standard error over examples and seeds."""
        return standard_error(self.num_examples, self.sd, self.num_seeds)

    @property
    def at_chance(self) -> bool:
        """True if the score is not clearly above the trivial baseline."""
        return is_at_chance(self.mean, self.majority, self.standard_error)

    @property
    def repeats(self) -> float:
        """Share of the examples that are known from training; 0 for the published files, which are as they are."""
        shares = (caveat.share for caveat in self.known if caveat.kind == REPEATS)
        return 0.0 if self.official else max(shares, default=0.0)

    @classmethod
    def from_results(cls, results: Mapping[str, Any], key: str = "", *, generated: bool = False) -> "TaskScore":
        """Read a score from the content of results.json, by default the main one.

        With `generated` the pre-trained model is of the generated sample, and the paper's score does not compare.
        """
        key = key or results["main_key"]
        entry = results["metrics"][key]
        same = ("task", "data_sha256", "dev_sha256", "configuration_sha256", "degenerate", "official")
        return cls(
            metric=key,
            mean=float(entry["mean"]),
            sd=float(entry["sd"]),
            num_seeds=len(entry["values"]),
            num_examples=entry["n"],
            majority=entry["majority"],
            paper=None if generated else entry["paper"],
            known=read_caveats(results["known"]),
            **{name: results[name] for name in same},
        )

    def describe(self) -> dict[str, str]:
        """Return the score as entries of a description: text, as tags are."""
        fields = {ENTRIES.get(key, key): value for key, value in dataclasses.asdict(self).items() if key != "version"}
        return {key: _text(value) for key, value in fields.items() if value is not None}

    @classmethod
    def from_description(cls, version: int, description: Mapping[str, str]) -> "TaskScore | None":
        """Read the score of a fine-tuned version; None if it was not evaluated."""
        mean = description.get("score_mean") or description.get("score")
        if description.get("kind") != FINETUNED or _number(mean) is None:
            return None
        names = {field.name: ENTRIES.get(field.name, field.name) for field in dataclasses.fields(cls)}
        fields: dict[str, Any] = {name: description[key] for name, key in names.items() if key in description}
        if description.get("generated_sample") == "true":
            fields.pop("paper", None)
        try:
            caveats = json.loads(description.get("caveats") or "[]")
            return _SCORE.validate_python({**fields, "mean": mean, "known": caveats, "version": version})
        except ValueError:  # one version that somebody wrote by hand must not hide the others
            return None

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.sd:.2f} ({self.num_seeds})"


_SCORE = TypeAdapter(TaskScore)  # reads numbers and truth from text


@dataclasses.dataclass(frozen=True, kw_only=True)
class RegisteredVersion:
    """One version of a registered model."""

    name: str
    version: int
    tags: dict[str, str]
    """Tags in MLflow: FILTER_TAGS, and the outcomes "promotion" and "rolled_back"."""
    description: dict[str, str] = dataclasses.field(default_factory=dict)
    """The tags, and what DESCRIPTION_NAME adds to them."""
    aliases: tuple[str, ...] = ()
    card_text: str = ""
    """Beginning of the model card, which MLflow shows as its description."""
    source: str = ""
    """MLflow URI of the logged model that holds the files."""
    run_id: str | None = None
    """MLflow run of the training."""
    scores: tuple[TaskScore, ...] = ()
    """The score of a fine-tuned version; for a pre-trained one `with_finetuning_scores` adds those of its
    fine-tunings."""

    @property
    def kind(self) -> str:
        return self.tags.get("kind", "")

    @property
    def content_sha256(self) -> str:
        """Identity of the model directory; "" if the version was not registered by this project."""
        return self.tags.get("content_sha256", "")

    def is_copy_of(self, other: "RegisteredVersion") -> bool:
        """Tell whether another version has the same content."""
        return self.version != other.version and self.content_sha256 == other.content_sha256 != ""

    @property
    def license(self) -> str:
        """License of the weights; "" if none was given."""
        return self.tags.get("license", "")

    @property
    def rolled_back(self) -> bool:
        """True if the version was champion and lost the alias to a rollback."""
        return self.tags.get("rolled_back") == "true"

    @property
    def is_of_sample(self) -> bool:
        """True if the version was made of the generated encyclopedia, as in a demo."""
        return self.description.get("generated_sample") == "true"

    @property
    def exam_accuracy(self) -> float | None:
        """Score of a pre-trained version on minimal pairs, from 0 to 100; None if it was not examined."""
        return _number(self.description.get(EXAM_ACCURACY))

    @property
    def exam_size(self) -> int:
        """Number of these pairs; 0 if it is not known."""
        return int(self.description.get(EXAM_SIZE, "0"))

    @property
    def exam_pairs(self) -> str:
        """Identity of the pairs of `exam_accuracy`; "" if it is not known."""
        return self.description.get(EXAM_PAIRS, "")

    @property
    def model_id(self) -> str:
        """Id of the logged model that holds the files."""
        return self.source.removeprefix("models:/")

    def judged_scores(self, ignored_tasks: Sequence[str] = ()) -> dict[str, TaskScore]:
        """Return task -> score for the tasks that promotion considers; `ignored_tasks` apply to pre-trained models."""
        ignored = ignored_tasks if self.kind == PRETRAINED else ()
        return {score.task: score for score in self.scores if score.task not in ignored}

    def __str__(self) -> str:
        return f"{self.name} version {self.version}"


def refuse_unsafe_files(manifest: Manifest) -> None:
    """Raise ArtifactError for files of other types than SAFE_SUFFIXES, listed in the manifest or not."""
    for path in sorted(manifest.path.rglob("*")):
        if path.is_symlink() or (path.is_file() and path.suffix not in SAFE_SUFFIXES):
            raise ArtifactError(
                f"{path}: only {', '.join(sorted(SAFE_SUFFIXES))} files go into and out of the registry; remove it"
            )
    for name in manifest.files:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ArtifactError(f"{manifest.path}: its manifest names {name!r} outside the directory")


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None


def _text(value: Any) -> str:
    """Return a value as text: repr keeps every digit of a score, so that it is the same number when it is read."""
    if isinstance(value, str):
        return value
    return repr(value) if isinstance(value, float) else json.dumps(value)
