"""Whether a version may become champion: the gates, each with its name and what it saw. Pure functions.

A fine-tuned model is judged by the score of its own task, a pre-trained one by those of its fine-tunings: the held-out
losses of two pre-trainings with different dumps or vocabularies are no measure of one another. Scores are means over
seeds, because the best of five seeds beats the best of three by luck, and count only where both versions have them on
the same examples.
"""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence

from pydantic import FiniteFloat, NonNegativeFloat, NonNegativeInt, PositiveInt

from bert_model.registry.versions import PRETRAINED, TaskScore, VersionFacts
from bert_pipeline.configuration import Proportion, configuration
from bert_pipeline.errors import ConfigurationError, PromotionError, suggest

GATES = (
    "scored",
    "not_degenerate",
    "intact",
    "reproduces_logits",
    "licensed",
    "documented",
    "new",
    "not_rolled_back",
    "comparable",
    "covers_champion",
    "better",
    "no_task_worse",
)
"""Every gate, in the order of the decision table; those from `new` on need a champion, but for `not_rolled_back`."""

NEVER_WAIVED = ("scored", "intact", "new")


@configuration
class GateConfig:
    """How strict the gates are."""

    min_seeds: PositiveInt = 1
    """How many seeds must stand behind each score."""
    min_tasks: PositiveInt = 1
    """How many fine-tuned tasks a pre-trained model needs, and how many of them on the champion's data."""
    margin: FiniteFloat = 0.0
    """Points by which the average must beat the champion's; at 0 it must be better, below 0 it may be that much worse
    (a newer dump for its own sake)."""
    tolerance: NonNegativeFloat = 3.0
    """Points by which any one task may be worse: about the standard error of an accuracy on RTE's 277 examples."""
    min_coverage: Proportion = 1.0
    """Share of the champion's tasks that must have a score on the same data."""
    max_degenerate_tasks: NonNegativeInt = 0
    """How many fine-tunings of a pre-trained model may say the same of every example."""
    ignored_tasks: tuple[str, ...] = ("wnli",)
    """Tasks by which no pre-trained model is judged; the paper leaves WNLI out too (section 4.1)."""
    waived_gates: tuple[str, ...] = ()
    """Gates whose refusal is recorded and overruled."""

    def __post_init__(self) -> None:
        for gate in self.waived_gates:
            if gate not in GATES:
                raise ConfigurationError(f"waived_gates: unknown gate {gate!r}{suggest(gate, GATES)}")
            if gate in NEVER_WAIVED:
                raise ConfigurationError(f"waived_gates: found {gate!r}, which always holds; make a sound version")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inspection:
    """What reopening a stored version has found wrong; None where nothing is."""

    damage: str | None = None
    """Files that are gone or not those that were registered."""
    logits: str | None = None
    """How the stored weights compute something else than the trained ones did."""
    card: str | None = None
    """What the model card lacks."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gate:
    """One condition and whether it holds."""

    name: str
    passed: bool
    detail: str
    """What was found, in words."""
    waived: bool = False
    """Whether its refusal is overruled by configuration."""

    @property
    def verdict(self) -> str:
        return "passed" if self.passed else "waived" if self.waived else "REFUSED"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskComparison:
    """One task in the decision: both scores, as far as there are any."""

    task: str
    metric: str
    candidate: TaskScore | None
    champion: TaskScore | None
    counts: bool
    """Whether the task enters the averages."""
    note: str
    """Why it does not, or what else differs."""

    @property
    def difference(self) -> float | None:
        if self.candidate is None or self.champion is None or not self.counts:
            return None
        return self.candidate.mean - self.champion.mean


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decision:
    """The outcome of asking whether a version may become champion."""

    name: str
    version: int
    champion: int | None
    """The version that holds the alias now."""
    tasks: tuple[TaskComparison, ...]
    gates: tuple[Gate, ...]
    config: GateConfig
    promoted: bool = False
    """Whether the alias was moved."""

    @property
    def passed(self) -> bool:
        return all(gate.passed or gate.waived for gate in self.gates)

    @property
    def refused_by(self) -> tuple[str, ...]:
        """Names of the gates that refuse."""
        return tuple(gate.name for gate in self.gates if not (gate.passed or gate.waived))

    def averages(self) -> tuple[float, float] | None:
        """Candidate's and champion's mean over the tasks that count; None where there are none."""
        counted = [task for task in self.tasks if task.difference is not None]
        if not counted:
            return None
        return _mean([task.candidate for task in counted]), _mean([task.champion for task in counted])

    def require(self) -> "Decision":
        """Return itself; PromotionError names the gates that refuse."""
        if not self.passed:
            reasons = "; ".join(f"{gate.name}: {gate.detail}" for gate in self.gates if gate.verdict == "REFUSED")
            kept = f"version {self.champion} stays champion" if self.champion else "there is no champion yet"
            raise PromotionError(f"{self.name} version {self.version} is not promoted ({reasons}); {kept}")
        return self

    def outcome(self) -> str:
        """The decision in a sentence."""
        if self.promoted:
            return f"{self.name} version {self.version} is champion"
        if self.passed:
            return f"{self.name} version {self.version} may become champion"
        return f"{self.name} version {self.version} is refused by: {', '.join(self.refused_by)}"

    def task_rows(self) -> list[dict[str, str]]:
        """The tasks as rows for people, the averages last."""
        rows = []
        for item in self.tasks:
            change = item.difference
            rows.append(
                {
                    "task": item.task,
                    "metric": item.metric.partition("/")[2],
                    "candidate": str(item.candidate or ""),
                    "champion": str(item.champion or ""),
                    "change": "" if change is None else f"{change:+.2f}",
                    "note": item.note,
                }
            )
        averages = self.averages()
        if averages and self.champion is not None:
            new, old = averages
            total = f"{new - old:+.2f}"
            note = f"over {sum(item.difference is not None for item in self.tasks)} tasks"
            rows.append(
                {"task": "average", "metric": "", "candidate": f"{new:.2f}", "champion": f"{old:.2f}"}
                | {"change": total, "note": note}
            )
        return rows

    def gate_rows(self) -> list[dict[str, str]]:
        """The gates as rows for people."""
        return [{"gate": gate.name, "verdict": gate.verdict, "found": gate.detail} for gate in self.gates]

    def table(self) -> str:
        """The decision as text: tasks, gates, outcome."""
        parts = [_text_table(rows) for rows in (self.task_rows(), self.gate_rows()) if rows]
        return "\n\n".join([*parts, self.outcome()])

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True)


def decide(
    candidate: VersionFacts,
    champion: VersionFacts | None,
    *,
    inspection: Inspection | None = None,
    config: GateConfig | None = None,
) -> Decision:
    """Hold a version against the gates. A first version has nothing to beat, and needs to be sound alone."""
    config, inspection = config or GateConfig(), inspection or Inspection()
    tasks = _compare(candidate, champion, config)
    gates = [
        _scored(candidate, config),
        _not_degenerate(candidate, config),
        _found("intact", inspection.damage, "every file has the hash of its manifest"),
        _found("reproduces_logits", inspection.logits, "the stored weights compute what the trained ones did"),
        Gate(name="licensed", passed=bool(candidate.licence), detail=candidate.licence or "it names no licence"),
        _found("documented", inspection.card, "its model card is there"),
        Gate(
            name="not_rolled_back",
            passed=not candidate.rolled_back,
            detail="it was champion, and was rolled back" if candidate.rolled_back else "it was never rolled back",
        ),
    ]
    if champion is not None:
        same = candidate.version == champion.version
        detail = f"version {champion.version} is champion{' already' if same else ''}"
        gates.append(Gate(name="new", passed=not same, detail=detail))
        gates += [_comparable(tasks, candidate, config), _covers(tasks, config)]
        gates += [_better(tasks, config), _no_task_worse(tasks, config)]
    waived = [dataclasses.replace(gate, waived=not gate.passed and gate.name in config.waived_gates) for gate in gates]
    return Decision(
        name=candidate.name,
        version=candidate.version,
        champion=champion.version if champion else None,
        tasks=tasks,
        gates=tuple(sorted(waived, key=lambda gate: GATES.index(gate.name))),
        config=config,
    )


def _compare(candidate: VersionFacts, champion: VersionFacts | None, config: GateConfig) -> tuple[TaskComparison, ...]:
    mine = candidate.judged(config.ignored_tasks)
    theirs = champion.judged(config.ignored_tasks) if champion else {}
    tasks = []
    for task in [*mine, *(name for name in theirs if name not in mine)]:
        new, old = mine.get(task), theirs.get(task)
        counts, note = False, ""
        if new is None:
            note = "the candidate has no score"
        elif old is None:
            note = "the champion has no score" if champion else ""
        elif new.metric != old.metric:
            note = f"the champion was measured by {old.metric}"
        elif not _data_of(new, candidate) or _data_of(new, candidate) != _data_of(old, candidate):
            note = f"other data: {_data_of(new, candidate)[:12]}, the champion's {_data_of(old, candidate)[:12]}"
        else:
            counts = True
            note = "" if new.configuration_sha256 == old.configuration_sha256 else "other fine-tuning settings"
        known = new or old
        assert known is not None
        tasks.append(
            TaskComparison(task=task, metric=known.metric, candidate=new, champion=old, counts=counts, note=note)
        )
    return tuple(tasks)


def _data_of(score: TaskScore, judged: VersionFacts) -> str:
    """What must be the same of two scores: more training data is a merit of a task model, not of a pre-trained one."""
    return score.data_sha256 if judged.kind == PRETRAINED else score.dev_sha256


def _scored(candidate: VersionFacts, config: GateConfig) -> Gate:
    scores = candidate.judged(config.ignored_tasks)
    needed = config.min_tasks if candidate.kind == PRETRAINED else 1
    problems = []
    if not scores:
        none = "none of its fine-tunings is registered" if candidate.kind == PRETRAINED else "it was never evaluated"
        problems.append(none)
    elif len(scores) < needed:
        problems.append(f"{len(scores)} tasks, expected at least {needed}")
    for task, score in scores.items():
        if not math.isfinite(score.mean):
            problems.append(f"{task}: its score is {score.mean}")
        elif score.num_seeds < config.min_seeds:
            problems.append(f"{task}: {score.num_seeds} seeds, expected at least {config.min_seeds}")
        elif not _data_of(score, candidate):
            problems.append(f"{task}: its score does not say which data it was taken on")
    seeds = min((score.num_seeds for score in scores.values()), default=0)
    detail = "; ".join(problems) or f"{len(scores)} task(s), each over {seeds} or more seeds"
    return Gate(name="scored", passed=not problems, detail=detail)


def _not_degenerate(candidate: VersionFacts, config: GateConfig) -> Gate:
    collapsed = [task for task, score in candidate.judged(config.ignored_tasks).items() if score.degenerate]
    most = config.max_degenerate_tasks if candidate.kind == PRETRAINED else 0
    detail = f"says the same of every dev example: {', '.join(collapsed)}" if collapsed else "its predictions differ"
    return Gate(name="not_degenerate", passed=len(collapsed) <= most, detail=detail)


def _found(name: str, problem: str | None, otherwise: str) -> Gate:
    return Gate(name=name, passed=problem is None, detail=problem or otherwise)


def _comparable(tasks: Sequence[TaskComparison], candidate: VersionFacts, config: GateConfig) -> Gate:
    shared = sum(task.counts for task in tasks)
    needed = config.min_tasks if candidate.kind == PRETRAINED else 1
    others = "; ".join(f"{task.task}: {task.note}" for task in tasks if not task.counts)
    detail = f"{shared} task(s) that both did on the same data, expected at least {needed}"
    return Gate(
        name="comparable",
        passed=shared >= needed,
        detail=detail + (f" ({others})" if shared < needed and others else ""),
    )


def _covers(tasks: Sequence[TaskComparison], config: GateConfig) -> Gate:
    theirs = [task for task in tasks if task.champion is not None]
    lacking = [task.task for task in theirs if not task.counts]
    share = 1 - len(lacking) / len(theirs) if theirs else 1.0
    detail = f"{share:.0%} of the champion's tasks, expected at least {config.min_coverage:.0%}"
    return Gate(
        name="covers_champion",
        passed=share >= config.min_coverage,
        detail=detail + (f" (lacking: {', '.join(lacking)})" if lacking else ""),
    )


def _better(tasks: Sequence[TaskComparison], config: GateConfig) -> Gate:
    counted = [task for task in tasks if task.difference is not None]
    if not counted:
        return Gate(name="better", passed=False, detail="there are no two scores to compare")
    new, old = _mean([task.candidate for task in counted]), _mean([task.champion for task in counted])
    gain = new - old
    return Gate(
        name="better",
        passed=gain >= config.margin and (gain > 0 or config.margin < 0),
        detail=f"{new:.2f} against the champion's {old:.2f} ({gain:+.2f}), margin {config.margin:g}",
    )


def _no_task_worse(tasks: Sequence[TaskComparison], config: GateConfig) -> Gate:
    losses = {task.task: task.difference for task in tasks if task.difference is not None}
    worse = [f"{task} {change:+.2f}" for task, change in losses.items() if change < -config.tolerance]
    detail = f"worse by more than {config.tolerance:g}: {', '.join(worse)}"
    if not worse:
        detail = f"no task is worse by more than {config.tolerance:g}"
    return Gate(name="no_task_worse", passed=not worse, detail=detail)


def _mean(scores: Sequence[TaskScore | None]) -> float:
    return sum(score.mean for score in scores if score is not None) / len(scores)


def _text_table(rows: Sequence[Mapping[str, str]]) -> str:
    lines = [list(rows[0]), *(list(row.values()) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)
