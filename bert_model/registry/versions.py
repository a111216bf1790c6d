"""Registered versions: the document that is written at registration, and the state that the registry adds to it.

`describe_model` derives the document from a model directory. It is the file VERSION_NAME next to a version's model;
tags, card and tables are derived from it, and the gates read it.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from bert_model.finetuning.caveats import OWN_SPLIT, REPEATS, Caveat, kinds_of, read_caveats
from bert_model.metrics.uncertainty import STATISTICS_NAME, is_at_chance, standard_error
from bert_pipeline.errors import ArtifactError
from bert_pipeline.hashes import content_sha256
from bert_pipeline.manifest import Manifest

PRETRAINED, FINETUNED = "pretrained_model", "finetuned_model"
KINDS = (PRETRAINED, FINETUNED)
PRETRAINED_METRIC = "held_out/mlm_loss"
EXAM_ACCURACY, EXAM_NGRAM_BASELINE = "exam_report/accuracy", "exam_report/ngram_baseline"
"""Counts of a model that was examined on minimal pairs for reporting: its score, and that of an n-gram model."""
EXAM_FOR_CHOOSING = "exam/accuracy"
"""Its score on the few pairs that checkpoints are compared by."""
EXAM_INPUTS = ("exam", "exam_report")
"""Inputs of a model's manifest that are pairs."""
VERSION_NAME = "version.json"
"""File next to a version's model: its document."""
REGISTERED_TAG = "registered_at"
"""Tag with the time, in UTC, at which the content of a version was last registered; its texts sort by time."""
CARD_TAG = "card_sha256"
"""Tag with the hash of a version's model card, which is rewritten after registration."""
SAFE_SUFFIXES = frozenset({".json", ".jsonl", ".safetensors", ".txt", ".md", ".png"})
"""File types that enter and leave the registry. None of them can carry code, as a pickle can."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskScore:
    """A score: of a fine-tuned model on its task, or of a pre-trained one on held-out text, which has no task.

    Promotion decisions store it field by field.
    """

    task: str = ""
    metric: str = ""
    """Key of the metric, such as "sst2/dev/accuracy"."""
    mean: float
    """Mean over seeds, from 0 to 100."""
    sd: float = 0.0
    """Standard deviation over seeds."""
    by_seed: dict[int, float] = dataclasses.field(default_factory=dict)
    """Seed -> its score."""
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
    random: dict[str, float | None] = dataclasses.field(default_factory=dict)
    """Means of the same search from random weights, by initialization, such as "random" and "random_x4"."""
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
    def num_seeds(self) -> int:
        return len(self.by_seed)

    @property
    def standard_error(self) -> float:
        """Standard error over examples and seeds."""
        return standard_error(self.num_examples, self.sd, self.num_seeds)

    @property
    def baselines(self) -> dict[str, float | None]:
        """What the score is compared with: random initializations, the majority class and the paper."""
        return {**self.random, "majority": self.majority, "paper": self.paper}

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
            by_seed=dict(zip(entry["seeds"], entry["values"])),
            num_examples=entry["n"],
            random={k: v for k, v in entry.items() if k.startswith("random") and not k.endswith(("_sd", "_values"))},
            majority=entry["majority"],
            paper=None if generated else entry["paper"],
            known=read_caveats(results["known"]),
            **{name: results[name] for name in same},
        )

    def __str__(self) -> str:
        return f"{self.mean:.2f}" + (f" ± {self.sd:.2f} ({self.num_seeds})" if self.by_seed else "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exam:
    """Score of a pre-trained model on minimal pairs for reporting."""

    accuracy: float
    """From 0 to 100."""
    pairs_sha256: str = ""
    """Identity of the pairs; "" if it is not known."""
    num_pairs: int = 0
    """0 if it is not known."""
    ngram_baseline: float | None = None
    """Score of an n-gram model."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Version:
    """What is known of a version when it is registered: the content of VERSION_NAME."""

    kind: str = ""
    content_sha256: str = ""
    """Identity of the model directory."""
    score: TaskScore | None = None
    """The main score; None if none was measured."""
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    """Metric key -> mean over seeds of every score on dev, or the held-out loss and accuracies."""
    score_of_weights: float = 0.0
    """The main score of the published weights of a fine-tuned model, those of the best seed."""
    exam: Exam | None = None
    exam_for_choosing: float | None = None
    """Accuracy on the few pairs that checkpoints are compared by."""
    generated_sample: bool = False
    """True if it was made of the generated encyclopedia, as in a demo."""
    lineage: dict[str, str] = dataclasses.field(default_factory=dict)
    """Names and hashes of what it was made of, by what code, and its license at registration."""
    reference_logits: tuple[float, ...] = ()
    """Outputs for a fixed input, which are computed again before a promotion."""

    @property
    def task(self) -> str:
        """The task of a fine-tuned model; "" for a pre-trained one."""
        return self.score.task if self.score else ""

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Version":
        """Read what `to_json` wrote; ValueError if it is something else."""
        return _VERSION.validate_json(text)

    def tags(self) -> dict[str, str]:
        """Return what becomes tags: that by which versions are searched."""
        names = ("dump", "license", "pretrained_model_sha256")
        tags = {"kind": self.kind, "content_sha256": self.content_sha256}
        tags |= {name: self.lineage[name] for name in names if name in self.lineage}
        if self.score is not None:
            tags |= {"metric": self.score.metric, "score": repr(self.score.mean)}
        if self.score is not None and self.task:
            tags |= {
                "task": self.task,
                "degenerate": json.dumps(self.score.degenerate),
                "known": ", ".join(kinds_of(self.score.known)) or "nothing",
                "own_split": json.dumps(any(caveat.kind == OWN_SPLIT for caveat in self.score.known)),
            }
        return tags | ({"generated_sample": "true"} if self.generated_sample else {})


_VERSION = TypeAdapter(Version)


def describe_model(manifest: Manifest, tags: Mapping[str, str] | None = None) -> Version:
    """Return the document of a model directory; `tags` add to its lineage, and "generated_sample" if it is "true"."""
    lineage = dict(tags or {})
    is_generated = lineage.pop("generated_sample", "") == "true"
    describe = _describe_finetuned if manifest.kind == FINETUNED else _describe_pretrained
    version = describe(manifest, is_generated)
    return dataclasses.replace(version, lineage=version.lineage | lineage)


def _describe_finetuned(manifest: Manifest, is_generated: bool) -> Version:
    if STATISTICS_NAME not in manifest.files:
        raise ArtifactError(
            f"{manifest.path}: has no {STATISTICS_NAME}, from which its score is computed; fine-tune it again"
        )
    results = read_results(manifest)
    is_generated = is_generated or results["generated_sample"]
    score = TaskScore.from_results(results, generated=is_generated)
    task = json.loads((manifest.path / "task.json").read_text(encoding="utf-8"))
    return Version(
        kind=manifest.kind,
        content_sha256=manifest.sha256,
        score=dataclasses.replace(score, statistics_sha256=manifest.files[STATISTICS_NAME]["sha256"]),
        metrics={key: float(entry["mean"]) for key, entry in results["metrics"].items() if "/dev" in key},
        score_of_weights=float(task["scores"][score.metric]),
        generated_sample=is_generated,
        lineage={"pretrained_model_sha256": results["model_sha256"], "training_data_sha256": score.data_sha256},
    )


def read_results(manifest: Manifest) -> dict[str, Any]:
    """Return results.json of a fine-tuned model."""
    results: dict[str, Any] = json.loads((manifest.path / "results.json").read_text(encoding="utf-8"))
    return results


def _describe_pretrained(manifest: Manifest, is_generated: bool) -> Version:
    # The weights that training started from are lineage, and the pairs of its exams were not read: no data.
    data = {name: entry for name, entry in manifest.inputs.items() if name not in ("initial_model", *EXAM_INPUTS)}
    counts, pairs = manifest.counts, manifest.inputs.get("exam_report", {})
    metrics = {key: float(value) for key, value in counts.items() if key.startswith("held_out/")}
    score, exam, identity = None, None, content_sha256(data)
    if PRETRAINED_METRIC in metrics:
        score = TaskScore(
            metric=PRETRAINED_METRIC,
            mean=metrics[PRETRAINED_METRIC],
            data_sha256=identity,
            dev_sha256=identity,
            configuration_sha256=content_sha256(manifest.configuration),
        )
    if EXAM_ACCURACY in counts:
        size = str(pairs.get("name", "")).removesuffix(" pairs")
        exam = Exam(
            accuracy=counts[EXAM_ACCURACY],
            pairs_sha256=pairs.get("sha256", ""),
            num_pairs=int(size) if size.isdecimal() else 0,
            ngram_baseline=counts.get(EXAM_NGRAM_BASELINE),
        )
    # Several phases may read the same instances, whose hash is then named once.
    instances = " ".join(dict.fromkeys(entry.get("content_sha256", "") for entry in data.values()))
    return Version(
        kind=manifest.kind,
        content_sha256=manifest.sha256,
        score=score,
        metrics=metrics,
        exam=exam,
        exam_for_choosing=counts.get(EXAM_FOR_CHOOSING),
        generated_sample=is_generated,
        lineage={f"input.{name}": next(reversed(entry.values())) for name, entry in manifest.inputs.items()}
        | {"instances_sha256": instances},
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RegisteredVersion:
    """One version of a registered model."""

    name: str
    version: int
    tags: dict[str, str]
    """Tags in MLflow: those of the document, of which "license" may have changed, "promotion" and "rolled_back"."""
    document: Version = Version()
    """An empty one if it is missing or damaged."""
    aliases: tuple[str, ...] = ()
    card_text: str = ""
    """Beginning of the model card, which MLflow shows as its description."""
    source: str = ""
    """MLflow URI of the logged model that holds the files."""
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
    def model_id(self) -> str:
        """Id of the logged model that holds the files."""
        return self.source.removeprefix("models:/")

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
