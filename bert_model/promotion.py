"""Whether a version may become champion: the gates, each with its name and what it saw. Pure functions."""

import dataclasses
import json
from collections.abc import Mapping

from bert_pipeline.errors import PromotionError

LOWER_IS_BETTER = ("loss", "perplexity")


@dataclasses.dataclass(frozen=True, kw_only=True)
class VersionFacts:
    """What a registered version says of itself, from its tags."""

    name: str
    version: int
    kind: str
    """finetuned_model or pretrained_model."""
    metric: str
    """The metric that versions are compared by: "sst2/dev/accuracy", "held_out/mlm_loss"."""
    score: float | None
    """The version's own score; None when it was never evaluated."""
    num_seeds: int
    """How many seeds stand behind the choice of these weights."""
    data_sha256: str
    """Identity of the data that the score was taken on."""
    content_sha256: str
    """Identity of the artefact."""
    degenerate: bool
    """Whether the model says the same of everything."""

    @classmethod
    def from_tags(cls, name: str, version: int, tags: Mapping[str, str]) -> "VersionFacts":
        score = tags.get("score")
        return cls(
            name=name,
            version=version,
            kind=tags.get("kind", ""),
            metric=tags.get("metric", ""),
            score=float(score) if score not in (None, "") else None,
            num_seeds=int(tags.get("num_seeds", "0")),
            data_sha256=tags.get("data_sha256", ""),
            content_sha256=tags.get("content_sha256", ""),
            degenerate=tags.get("degenerate", "") == "true",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gate:
    """One condition and whether it holds."""

    name: str
    passed: bool
    detail: str
    """What was found, in words."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decision:
    """The outcome of asking whether a version may become champion."""

    name: str
    version: int
    champion: int | None
    """The version that holds the alias now."""
    gates: tuple[Gate, ...]
    promoted: bool = False
    """Whether the alias was moved."""

    @property
    def passed(self) -> bool:
        return all(gate.passed for gate in self.gates)

    @property
    def refused_by(self) -> tuple[str, ...]:
        """Names of the gates that refuse."""
        return tuple(gate.name for gate in self.gates if not gate.passed)

    def require(self) -> "Decision":
        """Return itself; PromotionError names the gates that refuse."""
        if not self.passed:
            reasons = "; ".join(f"{gate.name}: {gate.detail}" for gate in self.gates if not gate.passed)
            kept = f"version {self.champion} stays champion" if self.champion else "there is no champion yet"
            raise PromotionError(f"{self.name} version {self.version} is not promoted ({reasons}); {kept}")
        return self

    def table(self) -> str:
        """The decision as a table for people."""
        width = max(len(gate.name) for gate in self.gates)
        lines = [
            f"{gate.name:<{width}}  {'passed ' if gate.passed else 'REFUSED'}  {gate.detail}" for gate in self.gates
        ]
        if self.promoted:
            lines.append(f"{self.name} version {self.version} is champion")
        elif self.passed:
            lines.append(f"{self.name} version {self.version} may become champion")
        else:
            lines.append(f"{self.name} version {self.version} is refused by: {', '.join(self.refused_by)}")
        return "\n".join(lines)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GateConfig:
    """How strict the gates are."""

    margin: float = 0.0
    """By how much the score must be better than the champion's; at 0 it must still be better, not equal."""
    min_seeds: int = 1
    """How many seeds must stand behind a fine-tuned model."""


def decide(
    candidate: VersionFacts, champion: VersionFacts | None, *, damage: str | None, config: GateConfig | None = None
) -> Decision:
    """Hold a version against the gates.

    `damage` says what is wrong with its artefact, None when every hash is right. A first version has nothing to
    beat. The scores of two versions are compared only when they were taken on the same data.
    """
    config = config or GateConfig()
    gates = [
        _scored(candidate, config),
        Gate(name="intact", passed=damage is None, detail=damage or "every file has the hash of its manifest"),
        Gate(
            name="not_degenerate",
            passed=not candidate.degenerate,
            detail="says the same of every dev example" if candidate.degenerate else "its predictions differ",
        ),
    ]
    if champion is not None:
        gates += [_other_version(candidate, champion), _same_data(candidate, champion)]
        gates.append(_better(candidate, champion, config))
    return Decision(
        name=candidate.name,
        version=candidate.version,
        champion=champion.version if champion else None,
        gates=tuple(gates),
    )


def higher_is_better(metric: str) -> bool:
    """Whether more of a metric is better."""
    return not metric.rpartition("/")[2].endswith(LOWER_IS_BETTER)


def _scored(candidate: VersionFacts, config: GateConfig) -> Gate:
    if candidate.score is None or candidate.score != candidate.score:
        return Gate(name="scored", passed=False, detail="it was never evaluated")
    if candidate.kind == "finetuned_model" and candidate.num_seeds < config.min_seeds:
        detail = f"{candidate.num_seeds} seeds, expected at least {config.min_seeds}"
        return Gate(name="scored", passed=False, detail=detail)
    if not candidate.data_sha256:
        return Gate(name="scored", passed=False, detail="its score does not say which data it was taken on")
    return Gate(name="scored", passed=True, detail=f"{candidate.metric} {candidate.score:.4f}")


def _other_version(candidate: VersionFacts, champion: VersionFacts) -> Gate:
    same = candidate.version == champion.version
    return Gate(
        name="new",
        passed=not same,
        detail=f"version {champion.version} is champion{' already' if same else ''}",
    )


def _same_data(candidate: VersionFacts, champion: VersionFacts) -> Gate:
    same = bool(candidate.data_sha256) and candidate.data_sha256 == champion.data_sha256
    same = same and candidate.metric == champion.metric
    found = f"{candidate.metric} on {candidate.data_sha256[:12] or 'unknown data'}"
    expected = f"{champion.metric} on {champion.data_sha256[:12] or 'unknown data'}"
    return Gate(
        name="same_data",
        passed=same,
        detail=f"{found}, as the champion" if same else f"{found}, the champion's is {expected}",
    )


def _better(candidate: VersionFacts, champion: VersionFacts, config: GateConfig) -> Gate:
    if candidate.score is None or champion.score is None:
        passed = champion.score is None and candidate.score is not None
        return Gate(name="better", passed=passed, detail="there are no two scores to compare")
    gain = candidate.score - champion.score
    if not higher_is_better(candidate.metric):
        gain = -gain
    return Gate(
        name="better",
        passed=gain > 0 and gain >= config.margin,
        detail=f"{candidate.score:.4f} against the champion's {champion.score:.4f}, margin {config.margin:g}",
    )
