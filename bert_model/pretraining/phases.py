"""Phases of a run: their instances, when each of them ends, and the learning rate of each step.

Steps and rates follow from the configuration, or with a time budget from the clock, which decides when a phase ends and
when the learning rate decays, once, for all ranks. A decision is a step number. It is part of every later checkpoint,
so that a resumed training does the same, and an uninterrupted training with the same steps computes the same bits. What
counts is the time of training on rank 0 up to the checkpoint that was resumed from: neither pauses nor steps that were
lost and repeated.
"""

import dataclasses
import itertools
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bert_model.pretraining.config import PhaseConfig, PretrainingConfig
from bert_model.pretraining.data import InstanceSplit
from bert_model.training.metrics_log import DataInput
from bert_model.training.schedule import learning_rate_at, trapezoid_at
from bert_pipeline.errors import ConfigurationError, TrainingError
from bert_pipeline.instances.masking import MaskingConfig, continuing, whole_word_problem
from bert_pipeline.storage import is_remote
from bert_pipeline.vocabulary.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

UNDECIDED = 1 << 40
"""End of a phase that the clock has not decided yet: beyond all steps."""
_MIN_STEPS = 4
"""Steps of the last phase before its decay: fewer have no steady pace."""
_RESUMED_SHARE = 0.01
"""Share of the budget after which the pace since a resume counts alone."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A phase of the configuration with its data and its position in the run, which `Timetable` decides."""

    index: int
    config: PhaseConfig
    masking: MaskingConfig
    train: InstanceSplit
    held_out: InstanceSplit
    first_step: int = 0
    end_step: int = 0
    """Step after its last update; `UNDECIDED` if the clock will decide it."""
    first_position: int = 0
    """Samples of the same instances that earlier phases have consumed; this phase continues after them."""

    def batch_size_at(self, step: int) -> int:
        """Return the number of instances in the update of `step`, over all ranks."""
        return self.position_at(step + 1) - self.position_at(step)

    @property
    def data(self) -> DataInput:
        """The instances, as an input of the run."""
        return {
            "name": f"instances-{self.config.max_seq_length}",
            "kind": "instances",
            "sha256": self.train.manifest.sha256,
            "context": "training",
            "num_rows": self.train.num_instances,
        }

    def position_at(self, step: int) -> int:
        """Return the position in the data before the update of `step`."""
        return self.first_position + self.config.samples_in(step - self.first_step)

    @property
    def passes_per_sample(self) -> float:
        """Part of the text, of 1, that an instance holds: with a dupe_factor the instances hold it several times."""
        manifest = self.train.manifest
        return float(manifest.configuration.get("dupe_factor", 1)) / self.train.num_instances


def load_phases(config: PretrainingConfig) -> tuple[list[Phase], Tokenizer]:
    """Open the instances of every phase, in no place yet; raise if they do not fit the phases or one another."""
    phases: list[Phase] = []
    tokenizer: Tokenizer | None = None
    for index, phase in enumerate(config.phases):
        where = f"phases.{index}"
        if not phase.instances:
            raise ConfigurationError(f"{where}.instances: not given; name a directory, or fewer phases by phases=[…]")
        train, held_out = InstanceSplit(phase.instances, "train"), InstanceSplit(phase.instances, "held_out")
        train.check_fits(max_seq_length=phase.max_seq_length, where=where)
        first = train.read(train.groups[0])
        if config.objective == "mlm_nsp" and (first.segment_b_start == first.lengths).all():
            raise ConfigurationError(
                f"{where}.instances: {phase.instances} holds rows of text without pairs, and objective=mlm_nsp learns "
                "next sentences from pairs; give objective=mlm, or instances made with --pairs next_sentence"
            )
        if not held_out.num_instances:
            logger.warning("%s: no held-out instances, so the phase is not evaluated", phase.instances)
        # One vocabulary throughout: that of the first phase.
        phase_tokenizer = Tokenizer.from_directory(phase.instances)
        for split in (train, held_out):
            split.check_vocabulary(phase_tokenizer)
        tokenizer = tokenizer or phase_tokenizer
        check_vocabularies(f"{where}.instances", "phase 0", tokenizer, where, phase_tokenizer)

        masking = config.masking_of(phase)
        if masking.whole_word_masking and not first.is_masked:
            joins = continuing(first.input_ids, phase_tokenizer, first.continues_word)
            if problem := whole_word_problem(float(joins.mean())):
                logger.warning("%s: %s", phase.instances, problem)
        phases.append(Phase(index=index, config=phase, masking=masking, train=train, held_out=held_out))
    assert tokenizer is not None
    return phases, tokenizer


def with_own_copies(phases: list[Phase], config: PretrainingConfig) -> list[Phase]:
    """Return rank 0's phases; those with instances in a store read this rank's copy, as its host may be another."""
    if not any(is_remote(phase.instances) for phase in config.phases):
        return phases
    own, _ = load_phases(config)
    for phase, copy in zip(phases, own):
        if copy.train.manifest.sha256 != phase.train.manifest.sha256:
            raise TrainingError(f"{copy.config.instances}: replaced while the ranks were starting; start again")
    return own


def refuse_other_budget(config: PretrainingConfig, state: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for another budget than in a stored `Timetable.state` if it comes too late.

    The learning rate decays already, or has no time left for it.
    """
    goal = (config.budget_seconds, config.max_passes)
    if not config.budget or goal == (state.get("budget_seconds", goal[0]), state.get("max_passes", goal[1])):
        return
    if state["decay_start"] is not None:
        raise ConfigurationError(
            f"budget: found {config.limits}, but since step {state['decay_start']} the learning rate decays to the end "
            f"of {state['budget_seconds']:g} s of training; restore it, or continue from the finished model in a new "
            "directory, with --from"
        )
    if state["seconds"] > config.budget_seconds * (1 - config.decay_share):
        raise ConfigurationError(
            f"budget: found {config.budget}, but after {state['seconds']:.0f} s of training less than its decay_share "
            f"({config.decay_share:g}) is left; give a larger one, or another directory"
        )


class Timetable:
    """The phases of a training with their steps, and its learning rate; with a budget its clock and decisions."""

    def __init__(
        self,
        config: PretrainingConfig,
        phases: Sequence[Phase],
        state: Mapping[str, Any] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`state` is what `state` returned for the checkpoint that is resumed from; only a budget reads it."""
        self.config = config
        self.phases = list(phases)
        if config.budget:
            # Step after which each phase ended; the last one's is decided when its decay begins.
            state = state or {}
            self.phase_ends: list[int] = list(state.get("phase_ends", ()))
            self.decay_start: int | None = state.get("decay_start")
        else:
            state, total = {}, config.total_steps
            self.phase_ends = list(itertools.accumulate(phase.steps for phase in config.phases))
            self.decay_start = max(total - config.phases[-1].steps, total - round(config.decay_share * total))
        self._clock = clock
        self._started = clock() - float(state.get("seconds", 0.0))
        # Step and seconds from which on the phase's pace is measured: it decides how many steps the decay has.
        self._pace_from: list[float] = list(state.get("pace_from", []))
        # The same of the first two steps since a resume, which may be on another machine.
        self._since_resume: list[list[float]] | None = [] if state else None
        self._place_phases()

    @property
    def seconds(self) -> float:
        """Seconds of training so far."""
        return self._clock() - self._started

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds of the budget, in JSON values."""
        return {
            "budget_seconds": self.config.budget_seconds,
            "max_passes": self.config.max_passes,
            "seconds": self.seconds,
            "pace_from": self._pace_from,
            **self.decisions,
        }

    @property
    def decisions(self) -> dict[str, Any]:
        """What the clock has decided so far, in JSON values."""
        return {"phase_ends": list(self.phase_ends), "decay_start": self.decay_start}

    def decide(self, step: int, index: int, seconds: float) -> bool:
        """Decide, before the update of `step` in phase `index`, whether the phase or its stable rate ends here.

        `seconds` are those of rank 0, so that all ranks decide alike. Returns whether a decision was made: the phase
        then ends after this update, or the decay begins with it.
        """
        if len(self.phase_ends) > index:
            return False
        # The first step of a phase comes after the evaluation of the one before it, and may compile: it has no pace.
        if not self._pace_from:
            if step > self.phases[index].first_step:
                self._pace_from = [step, seconds]
            return False
        total, shares = self.config.budget_seconds, [phase.share for phase in self.config.phases]
        # Nor has the first one since a resume, and a few more say little: until then the pace before it counts too.
        start = self._pace_from
        if self._since_resume is not None:
            if len(self._since_resume) < 2:
                self._since_resume.append([step, seconds])
            elif seconds - self._since_resume[1][1] >= _RESUMED_SHARE * total:
                start = self._since_resume[1]
        steps = step - int(start[0])
        pace = (seconds - start[1]) / max(1, steps)  # seconds a step
        # Passes end a phase as seconds do, by the same shares: whichever are over first.
        most = self.config.max_passes or math.inf
        passes = sum(
            phase.config.samples_in(min(step, phase.end_step) - phase.first_step) * phase.passes_per_sample
            for phase in self.phases[: index + 1]
        )
        passes_a_step = self.phases[index].config.global_batch_size * self.phases[index].passes_per_sample

        if index == len(shares) - 1:
            if steps < _MIN_STEPS or max(seconds / total, passes / most) < 1 - self.config.decay_share:
                return False
            left = min(round((total - seconds) / max(pace, 1e-9)), (most - passes) // passes_a_step)
            self.phase_ends.append(step + max(1, int(left)))
            self.decay_start, end = step, self.phase_ends[-1]
            if end - step > 1:
                logger.info("step %d: the learning rate decays from here to step %d", step, end)
            else:
                logger.warning("step %d: the budget has ended, and leaves no time for the learning rate to decay", step)
        elif max((seconds + pace) / total, (passes + passes_a_step) / most) >= sum(shares[: index + 1]) / sum(shares):
            self.phase_ends.append(step + 1)
            self._pace_from, self._since_resume = [], None
        else:
            return False
        self._place_phases()
        return True

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate of the update after `step` finished ones."""
        config, first = self.config, self.config.phases[0]
        phase = next(phase for phase in self.phases if step < phase.end_step)
        if config.schedule == "trapezoid":
            return trapezoid_at(
                step,
                peak=phase.config.learning_rate,
                warmup_steps=first.warmup_steps,
                decay_start=UNDECIDED if self.decay_start is None else self.decay_start,
                end=self.phases[-1].end_step,
            )
        if config.schedule == "run":
            step_of, part, total_steps = step, first, config.total_steps
        else:
            step_of, part, total_steps = step - phase.first_step, phase.config, phase.config.steps
        return learning_rate_at(
            step_of, peak=part.learning_rate, total_steps=total_steps, warmup_steps=part.warmup_steps
        )

    def _place_phases(self) -> None:
        """Give the phases their steps and positions, by the step after which each of them ends."""
        ends = [*self.phase_ends, *[UNDECIDED] * len(self.phases)]
        consumed: dict[str, int] = {}  # samples of each instance directory that the phases so far consume
        first_step = 0
        for index, (phase, end) in enumerate(zip(self.phases, ends)):
            # A later phase on the same instances reads on where the earlier one ended.
            key = phase.train.manifest.sha256
            self.phases[index] = phase = dataclasses.replace(
                phase, first_step=first_step, end_step=end, first_position=consumed.get(key, 0)
            )
            consumed[key] = phase.position_at(end)
            first_step = end


def warn_of_moved_samples(phases: Sequence[Phase], state: Mapping[str, Any]) -> None:
    """Warn if the phases place the step of a checkpoint's state at another sample than the run was at."""
    step, index, former = state["step"], state["phase"], state["position"]
    if index >= len(phases):
        return
    phase = phases[index]
    if not phase.first_step <= step <= phase.end_step:
        logger.warning(
            f"step {step} was in phase {index} and is in another one now, because the phases have changed; that phase "
            "continues at the sample of this step"
        )
    elif (position := phase.position_at(step)) != former:
        between = "skipped" if position > former else "read again"
        logger.warning(
            f"so far this run read the samples before {former}, now its batch sizes place step {step} at sample "
            f"{position}: those between are {between}"
        )


def data_inputs(phases: Sequence[Phase]) -> list[DataInput]:
    """Return the data sets of a run: the instances of its phases, and the corpora and vocabularies they are made of."""
    inputs: list[DataInput] = []
    for phase in phases:
        inputs.append(phase.data)
        # An artifact is identified by its content, a vocabulary by what decides the ids.
        for name, entry in phase.train.manifest.inputs.items():
            if sha256 := entry.get("content_sha256") or entry.get("sha256"):
                inputs.append({"name": name, "kind": name, "sha256": sha256, "context": "source"})
    return [item for index, item in enumerate(inputs) if item not in inputs[:index]]


def check_vocabularies(key: str, one: str, tokenizer: Tokenizer, other: str, other_tokenizer: Tokenizer) -> None:
    """Raise ConfigurationError for two vocabularies that differ but must not."""
    if tokenizer.sha256 != other_tokenizer.sha256:
        raise ConfigurationError(
            f"{key}: two vocabularies: {one} has {tokenizer}, {other} has {other_tokenizer}; give instances made with "
            "`bert instances --vocab` of the one, or move a model to the other by `bert adapt`"
        )
