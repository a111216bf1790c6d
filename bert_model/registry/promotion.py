"""Promotion gates: the conditions under which a version becomes champion. Pure functions.

A fine-tuned model is judged by the score of its own task, a pre-trained one by those of its fine-tunings: held-out
losses on different dumps or vocabularies do not compare. Scores are means over seeds, because the best of five seeds
beats the best of three by luck, and count only if both versions have them on the same examples. A difference is taken
with its interval over resampled examples and seeds.
"""

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import FiniteFloat, NonNegativeFloat, NonNegativeInt, PositiveInt, TypeAdapter

from bert_model.finetuning.caveats import kinds_of
from bert_model.metrics import uncertainty
from bert_model.registry.versions import PRETRAINED, Exam, RegisteredVersion, TaskScore
from bert_model.tables import format_table
from bert_model.zero_shot.result import CHANCE
from bert_pipeline.configuration import Proportion, configuration
from bert_pipeline.errors import ConfigurationError, PromotionError, suggest

GATES = (
    "scored",
    "not_degenerate",
    "beats_baseline",
    "not_contaminated",
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
    "exam_not_worse",
)
"""Every gate, in the order of the decision table. `new` and those after `not_rolled_back` need a champion; the latter
are left out if it has the same content under another number, or if it alone is a demo's and no task has scores of both
on the same data."""

NEVER_WAIVED = ("scored", "intact", "new")
MAX_REPEATS = 0.01
"""Share of the scored examples that may be in the training set; for a pre-trained model, the mean over its tasks."""

Statistics = Mapping[tuple[str, int], uncertainty.UnitStatistics]
"""Task and registered version of a score -> what it is computed from."""


@configuration
class GateConfig:
    """How strict the gates are."""

    min_seeds: PositiveInt = 1
    """Minimum number of seeds for each score."""
    min_tasks: PositiveInt = 1
    """How many fine-tuned tasks a pre-trained model needs, and how many of them on the champion's data."""
    margin: FiniteFloat = 0.0
    """Points by which the average must beat the champion's, at the lower end of the 95 % interval of the difference;
    below 0 a newer version may be that much worse."""
    retraining_margin: FiniteFloat = -1.0
    """The default of `margin` for automatic runs, as scheduled retraining starts: fresh text rarely wins by more than
    chance on a few hundred examples."""
    tolerance: NonNegativeFloat = 3.0
    """Points by which any one task may be worse: about the standard error of an accuracy on RTE's 277 examples."""
    exam_tolerance: NonNegativeFloat = 3.0
    """Points by which the exam of a pre-trained model may be worse than the champion's on the same pairs."""
    min_coverage: Proportion = 1.0
    """Share of the champion's tasks that must have a score on the same data."""
    max_degenerate_tasks: NonNegativeInt = 0
    """How many fine-tunings of a pre-trained model may be collapsed: one prediction for all examples."""
    ignored_tasks: tuple[str, ...] = ("wnli",)
    """Tasks by which no pre-trained model is judged; the paper leaves WNLI out too (section 4.1)."""
    waived_gates: tuple[str, ...] = ()
    """Gates whose refusal is recorded and overruled."""

    def __post_init__(self) -> None:
        for gate in self.waived_gates:
            if gate not in GATES:
                raise ConfigurationError(f"waived_gates: unknown gate {gate!r}{suggest(gate, GATES)}")
            if gate in NEVER_WAIVED:
                raise ConfigurationError(f"waived_gates: {gate!r} cannot be waived")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inspection:
    """Problems found by downloading and running a stored version; None for each that passed."""

    damage: str | None = None
    """Files that are missing, or differ from those that were registered."""
    logits: str | None = None
    """How the outputs differ from those recorded at registration."""
    card: str | None = None
    """What the model card lacks."""
    exam: str | None = None
    """Why the champion could not be examined on the version's pairs, though it might be worse on them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gate:
    """Result of one promotion condition."""

    name: str
    passed: bool
    detail: str
    """What was found, in words."""
    waived: bool = False
    """True if it refused and the configuration overrules it."""

    @property
    def verdict(self) -> str:
        return "passed" if self.passed else "waived" if self.waived else "REFUSED"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskComparison:
    """Scores of candidate and champion for one task, None where there is no score."""

    task: str
    metric: str
    candidate: TaskScore | None
    champion: TaskScore | None
    counts: bool
    """True if the task enters the averages."""
    note: str
    """Why it does not, or what else differs."""
    interval: tuple[float, float] | None = None
    """Of the difference."""

    @property
    def difference(self) -> float | None:
        """Candidate minus champion, in points; None for a task that does not count."""
        if self.candidate is None or self.champion is None or not self.counts:
            return None
        return self.candidate.mean - self.champion.mean


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decision:
    """Outcome of evaluating the gates for a version."""

    name: str
    version: int
    champion: int | None
    """The version that holds the alias."""
    tasks: tuple[TaskComparison, ...]
    gates: tuple[Gate, ...] = ()
    config: GateConfig
    interval: tuple[float, float] | None = None
    """95 % interval of the difference of the averages; None if no task counts."""
    promoted: bool = False
    """True once the alias is moved."""

    @property
    def passed(self) -> bool:
        return all(gate.passed or gate.waived for gate in self.gates)

    @property
    def refused_by(self) -> tuple[str, ...]:
        """Names of the gates that refuse."""
        return tuple(gate.name for gate in self.gates if not (gate.passed or gate.waived))

    def averages(self) -> tuple[float, float] | None:
        """Return candidate's and champion's mean over the tasks that count; None if no task counts."""
        pairs = [(task.candidate, task.champion) for task in self.tasks if task.counts]
        means = [(new.mean, old.mean) for new, old in pairs if new and old]
        if not means:
            return None
        new_mean, old_mean = (sum(side) / len(means) for side in zip(*means))
        return new_mean, old_mean

    def require(self) -> "Decision":
        """Return itself if every gate passed or is waived; PromotionError names the others."""
        if not self.passed:
            kept = f"version {self.champion} stays champion" if self.champion else "there is no champion yet"
            raise PromotionError(f"{self.name} version {self.version} is not promoted ({self.reasons()}); {kept}")
        return self

    def reasons(self) -> str:
        """Return the gates that refuse, with what they found."""
        return "; ".join(f"{gate.name}: {gate.detail}" for gate in self.gates if gate.name in self.refused_by)

    def outcome(self) -> str:
        """Return the decision in one sentence."""
        if self.promoted:
            return f"{self.name} version {self.version} is champion"
        if self.version == self.champion:
            return f"{self.name} version {self.version} is champion already"
        if self.passed:
            return f"{self.name} version {self.version} may become champion"
        return f"{self.name} version {self.version} is refused by: {', '.join(self.refused_by)}"

    def task_rows(self) -> list[dict[str, str]]:
        """Return the tasks as table rows, the averages last."""
        rows = []
        for item in self.tasks:
            note = "; ".join(filter(None, [item.note, *kinds_of(item.candidate.known if item.candidate else ())]))
            change = "" if item.difference is None else _with_interval(item.difference, item.interval)
            metric = item.metric.partition("/")[2]
            rows.append([item.task, metric, str(item.candidate or ""), str(item.champion or ""), change, note])

        # The last row has the averages over the tasks that both versions have on the same data.
        if averages := self.averages():
            new, old = averages
            note = f"over {sum(item.difference is not None for item in self.tasks)} tasks"
            change = _with_interval(new - old, self.interval)
            rows.append(["average", "", f"{new:.2f}", f"{old:.2f}", change, note])
        return [dict(zip(("task", "metric", "candidate", "champion", "change", "note"), row)) for row in rows]

    def gate_rows(self) -> list[dict[str, str]]:
        """Return the gates as table rows."""
        return [{"gate": gate.name, "verdict": gate.verdict, "found": gate.detail} for gate in self.gates]

    def table(self) -> str:
        """Format the decision as plain text: tasks, gates, outcome."""
        tables = [rows for rows in (self.task_rows(), self.gate_rows()) if rows]
        parts = [format_table(rows[0], map(dict.values, rows), "plain") for rows in tables]
        return "\n\n".join([*parts, self.outcome()])

    def to_json(self) -> str:
        """Serialize for the version's file promotion.json."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "Decision":
        """Read what `to_json` wrote; ValueError if it is something else."""
        return TypeAdapter(cls).validate_json(text)


def decide(
    candidate: RegisteredVersion,
    champion: RegisteredVersion | None,
    *,
    inspection: Inspection | None = None,
    statistics: Statistics | None = None,
    config: GateConfig | None = None,
) -> Decision:
    """Evaluate the gates for a version. Without a champion there is no comparison, and it only needs to be sound."""
    config, inspection = config or GateConfig(), inspection or Inspection()
    candidate, champion = _judged(candidate, config), champion and _judged(champion, config)
    tasks = tuple(_compare(candidate, champion))
    drawn = [_drawn_differences(task, statistics or {}, seed) for seed, task in enumerate(tasks)]
    counted = [draws for draws in drawn if draws is not None]
    decision = Decision(
        name=candidate.name,
        version=candidate.version,
        champion=champion.version if champion else None,
        tasks=tuple(
            task if draws is None else dataclasses.replace(task, interval=uncertainty.interval_of(draws))
            for task, draws in zip(tasks, drawn)
        ),
        config=config,
        interval=uncertainty.interval_of(np.mean(counted, axis=0)) if counted else None,
    )

    # Whether the version is sound, by itself.
    rolled_back = "it was champion, and was rolled back"
    gates = [
        _scored(candidate, config),
        _not_degenerate(candidate, config),
        _beats_baseline(candidate),
        _not_contaminated(candidate),
        _no_problem("intact", inspection.damage, "every file and the model card have their hashes"),
        _no_problem("reproduces_logits", inspection.logits, "the stored weights compute what the trained ones did"),
        _no_problem("licensed", None if candidate.license else "it names no license", candidate.license),
        _no_problem("documented", inspection.card, "it has a complete model card"),
        _no_problem("not_rolled_back", rolled_back if candidate.rolled_back else None, "it was never rolled back"),
    ]

    # Whether it improves on the champion. A demo's champion must not block the first real model, nor one whose files
    # are damaged the same model, registered again.
    if champion is not None:
        same = candidate.version == champion.version
        new, old = candidate.document, champion.document
        is_demo = old.generated_sample and not new.generated_sample and not any(task.counts for task in tasks)
        detail = f"version {champion.version} is champion{' already' if same else ''}"
        detail += ", of the generated sample" if is_demo else ""
        gates.append(Gate(name="new", passed=not same, detail=detail))
    if champion is not None and not is_demo and not candidate.is_copy_of(champion):
        gates += [_comparable(tasks, candidate, config), _covers(tasks, config)]
        gates += [_better(decision, is_newer=candidate.version > champion.version), _no_task_worse(tasks, config)]
        if inspection.exam is not None:
            gates.append(_no_problem("exam_not_worse", inspection.exam, ""))
        elif old.exam is not None:
            gates.append(_exam_not_worse(new.exam, old.exam, config))

    # A waived gate is evaluated nevertheless, so that the decision records what it found.
    waived = [dataclasses.replace(gate, waived=not gate.passed and gate.name in config.waived_gates) for gate in gates]
    return dataclasses.replace(decision, gates=tuple(sorted(waived, key=lambda gate: GATES.index(gate.name))))


def _judged(version: RegisteredVersion, config: GateConfig) -> RegisteredVersion:
    """Return a version with the scores that promotion considers; tasks are ignored for pre-trained models only."""
    ignored = config.ignored_tasks if version.kind == PRETRAINED else ()
    return dataclasses.replace(version, scores=tuple(score for score in version.scores if score.task not in ignored))


def _compare(candidate: RegisteredVersion, champion: RegisteredVersion | None) -> Iterator[TaskComparison]:
    """Pair the scores of both versions by task, and note why a pair does not count."""
    new_scores = {score.task: score for score in candidate.scores}
    old_scores = {score.task: score for score in champion.scores} if champion else {}
    # A task that only one version has is listed too, with the reason why it does not count.
    for task in dict.fromkeys([*new_scores, *old_scores]):
        new, old = new_scores.get(task), old_scores.get(task)
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
            # Other settings are noted but do not exclude the pair: the data are what must be the same.
            counts = True
            note = "" if new.configuration_sha256 == old.configuration_sha256 else "other fine-tuning settings"
        metric = (new or old_scores[task]).metric
        yield TaskComparison(task=task, metric=metric, candidate=new, champion=old, counts=counts, note=note)


def _data_of(score: TaskScore, candidate: RegisteredVersion) -> str:
    """Return the identity of the data that two scores must share.

    A pre-trained model is judged by equal fine-tunings; a task model may owe its score to more training data.
    """
    return score.data_sha256 if candidate.kind == PRETRAINED else score.dev_sha256


def _min_tasks(candidate: RegisteredVersion, config: GateConfig) -> int:
    return config.min_tasks if candidate.kind == PRETRAINED else 1


def _scored(candidate: RegisteredVersion, config: GateConfig) -> Gate:
    scores, min_tasks = candidate.scores, _min_tasks(candidate, config)
    problems = []
    if not scores:
        none = "none of its fine-tunings is registered" if candidate.kind == PRETRAINED else "it was never evaluated"
        problems.append(none)
    elif len(scores) < min_tasks:
        problems.append(f"{len(scores)} tasks, expected at least {min_tasks}")

    # A mean that is not finite, rests on too few seeds, or has unknown data cannot be compared later.
    for score in scores:
        if not math.isfinite(score.mean):
            problems.append(f"{score.task}: its score is {score.mean}")
        elif score.num_seeds < config.min_seeds:
            problems.append(f"{score.task}: {score.num_seeds} seeds, expected at least {config.min_seeds}")
        elif not _data_of(score, candidate):
            problems.append(f"{score.task}: its score does not name the data it was measured on")
    seeds = min((score.num_seeds for score in scores), default=0)
    detail = "; ".join(problems) or f"{len(scores)} task(s), each over {seeds} or more seeds"
    return Gate(name="scored", passed=not problems, detail=detail)


def _not_degenerate(candidate: RegisteredVersion, config: GateConfig) -> Gate:
    collapsed = [score.task for score in candidate.scores if score.degenerate]
    limit = config.max_degenerate_tasks if candidate.kind == PRETRAINED else 0
    detail = f"one prediction for all dev examples: {', '.join(collapsed)}" if collapsed else "its predictions differ"
    return Gate(name="not_degenerate", passed=len(collapsed) <= limit, detail=detail)


def _beats_baseline(candidate: RegisteredVersion) -> Gate:
    """Refuse a score at chance: of a task model its own, of a pre-trained one the mean over tasks, and an exam."""
    scores = [score for score in candidate.scores if score.majority is not None]
    problems, detail = [], "no baseline is known"
    if scores:
        mean, baseline = (sum(values) / len(scores) for values in zip(*((s.mean, s.majority or 0.0) for s in scores)))
        error = math.hypot(*(score.standard_error for score in scores)) / len(scores)
        detail = f"{mean:.1f}, the trivial baseline {baseline:.1f}, standard error {error:.1f}"
        if uncertainty.is_at_chance(mean, baseline, error):
            problems.append(f"at chance: {detail}")
    if (exam := candidate.document.exam) is not None and uncertainty.is_at_chance(
        exam.accuracy, CHANCE, uncertainty.standard_error(exam.num_pairs) if exam.num_pairs else 0.0
    ):
        problems.append(f"its exam is at chance: {exam.accuracy:.1f} of minimal pairs")
    return Gate(name="beats_baseline", passed=not problems, detail="; ".join(problems) or detail)


def _not_contaminated(candidate: RegisteredVersion) -> Gate:
    repeats = {score.task: score.repeats for score in candidate.scores}
    share = sum(repeats.values()) / len(repeats) if repeats else 0.0
    detail = (
        f"{share:.1%} of the scored examples are known to be in the training set, expected at most {MAX_REPEATS:.0%}"
    )
    if share > MAX_REPEATS and len(repeats) > 1:
        detail += f" ({', '.join(f'{task} {own:.1%}' for task, own in repeats.items() if own)})"
    return Gate(name="not_contaminated", passed=share <= MAX_REPEATS, detail=detail)


def _no_problem(name: str, problem: str | None, detail: str) -> Gate:
    return Gate(name=name, passed=problem is None, detail=problem or detail)


def _comparable(tasks: Sequence[TaskComparison], candidate: RegisteredVersion, config: GateConfig) -> Gate:
    num_shared, min_tasks = sum(task.counts for task in tasks), _min_tasks(candidate, config)
    others = "; ".join(f"{task.task}: {task.note}" for task in tasks if not task.counts)
    detail = f"{num_shared} task(s) scored on the same data, expected at least {min_tasks}"
    if num_shared < min_tasks and others:
        detail += f" ({others})"
    return Gate(name="comparable", passed=num_shared >= min_tasks, detail=detail)


def _covers(tasks: Sequence[TaskComparison], config: GateConfig) -> Gate:
    of_champion = [task for task in tasks if task.champion is not None]
    lacking = [task.task for task in of_champion if not task.counts]
    coverage = (len(of_champion) - len(lacking)) / len(of_champion) if of_champion else 1.0
    detail = f"{coverage:.0%} of the champion's tasks, expected at least {config.min_coverage:.0%}"
    if lacking:
        detail += f" (lacking: {', '.join(lacking)})"
    return Gate(name="covers_champion", passed=coverage >= config.min_coverage, detail=detail)


def _better(decision: Decision, *, is_newer: bool) -> Gate:
    averages, interval, margin = decision.averages(), decision.interval, decision.config.margin
    if averages is None or interval is None:
        return Gate(name="better", passed=False, detail="there are no two scores to compare")
    new, old = averages
    low, high = interval
    # A negative margin is for newer versions: with it, two versions would take the alias from each other at every new
    # decision.
    passed = low > margin and (low > 0 or is_newer)
    unclear = "not distinguishable: " if low <= 0 <= high and not passed else ""
    change = _with_interval(new - old, interval)
    detail = f"{unclear}{new:.2f} against the champion's {old:.2f} ({change}), margin {margin:g}"
    return Gate(name="better", passed=passed, detail=detail)


def _drawn_differences(task: TaskComparison, statistics: Statistics, seed: int) -> NDArray[np.float64] | None:
    """Return resampled differences of a task's scores; None for a task that does not count.

    Where statistics are missing or were changed, the standard errors stand for them, as if the scores were on different
    examples.
    """
    new, old, difference = task.candidate, task.champion, task.difference
    if new is None or old is None or difference is None:
        return None
    sides = [statistics[key] for score in (new, old) if (key := (score.task, score.version)) in statistics]
    if len(sides) == 2:
        means = uncertainty.resample(sides, seed=seed)
        return np.asarray(means[:, 0] - means[:, 1])
    error = math.hypot(new.standard_error, old.standard_error)
    return np.random.default_rng(seed).normal(difference, error, uncertainty.RESAMPLES)


def _with_interval(difference: float, interval: tuple[float, float] | None) -> str:
    between = f", {100 * uncertainty.CONFIDENCE:.0f} % {interval[0]:.1f} to {interval[1]:.1f}" if interval else ""
    return f"{difference:+.1f}{between}"


def _no_task_worse(tasks: Sequence[TaskComparison], config: GateConfig) -> Gate:
    changes = {task.task: task.difference for task in tasks if task.difference is not None}
    worse = [f"{task} {change:+.2f}" for task, change in changes.items() if change < -config.tolerance]
    limit = f"worse by more than {config.tolerance:g}"
    return _no_problem("no_task_worse", f"{limit}: {', '.join(worse)}" if worse else None, f"no task is {limit}")


def _exam_not_worse(candidate: Exam | None, champion: Exam, config: GateConfig) -> Gate:
    # Pairs made from another corpus are easier or harder: such exams do not compare, and refuse nothing.
    reason = "the champion was examined on other pairs"
    if candidate is None:
        reason = "only the champion was examined"
    elif not candidate.pairs_sha256:
        reason = "the candidate's pairs for reporting are not known"
    elif candidate.pairs_sha256 == champion.pairs_sha256:
        new, old, tolerance = candidate.accuracy, champion.accuracy, config.exam_tolerance
        detail = f"{new:.2f} against the champion's {old:.2f} ({new - old:+.2f}), tolerance {tolerance:g}"
        return Gate(name="exam_not_worse", passed=new >= old - tolerance, detail=detail)
    return Gate(name="exam_not_worse", passed=True, detail=f"not compared: {reason}")
