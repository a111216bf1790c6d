"""What registered versions say of themselves: their scores, data and licence, read from their tags."""

import dataclasses
from collections.abc import Mapping, Sequence

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
