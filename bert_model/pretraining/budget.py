"""Time budgets: the clock decides when a phase ends and when the learning rate decays, once, for all ranks.

A decision is a step number. It is part of every later checkpoint, so that a resumed training does the same, and an
uninterrupted training with the same steps computes the same bits. What counts is the time of training on rank 0 up to
the checkpoint that was resumed from: neither pauses nor steps that were lost and repeated.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bert_model.pretraining.config import PretrainingConfig
from bert_model.pretraining.phases import UNDECIDED, Phase, place_phases
from bert_model.training.schedule import trapezoid_at
from bert_pipeline.errors import ConfigurationError

_MIN_STEPS = 4
"""Steps of the last phase before its decay: fewer have no steady pace."""
_RESUMED_SHARE = 0.01
"""Share of the budget after which the pace since a resume counts alone."""


def refuse_other_budget(config: PretrainingConfig, state: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for another budget than in a stored `Budget.state` if it comes too late.

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


class Budget:
    """The clock of a training, its decisions, and the learning rate and phases that follow from them."""

    def __init__(
        self,
        config: PretrainingConfig,
        phases: Sequence[Phase],
        state: Mapping[str, Any],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`state` is what `state` returned for the checkpoint that is resumed from; {} for a new training."""
        self.config = config
        self.phases = list(phases)
        # Step after which each phase ended; the last one's is decided when its decay begins.
        self.phase_ends: list[int] = list(state.get("phase_ends", ()))
        self.decay_start: int | None = state.get("decay_start")
        self._clock = clock
        self._started = clock() - float(state.get("seconds", 0.0))
        # Step and seconds from which on the phase's pace is measured: it decides how many steps the decay has.
        self._pace_from: list[float] = list(state.get("pace_from", []))
        # The same of the first two steps since a resume, which may be on another machine.
        self._since_resume: list[list[float]] | None = [] if state else None
        self._replace_phases()

    @property
    def seconds(self) -> float:
        """Seconds of training so far."""
        return self._clock() - self._started

    def state(self, seconds: float) -> dict[str, Any]:
        """Return what a checkpoint holds of the budget, in JSON values."""
        return {
            "budget_seconds": self.config.budget_seconds,
            "max_passes": self.config.max_passes,
            "seconds": seconds,
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
        passes = sum(phase.passes_before(min(step, phase.end_step)) for phase in self.phases[: index + 1])
        passes_a_step = self.phases[index].config.global_batch_size * self.phases[index].passes_per_sample

        if index == len(shares) - 1:
            if steps < _MIN_STEPS or max(seconds / total, passes / most) < 1 - self.config.decay_share:
                return False
            left = min(round((total - seconds) / max(pace, 1e-9)), (most - passes) // passes_a_step)
            self.phase_ends.append(step + max(1, int(left)))
            self.decay_start = step
        elif max((seconds + pace) / total, (passes + passes_a_step) / most) >= sum(shares[: index + 1]) / sum(shares):
            self.phase_ends.append(step + 1)
            self._pace_from, self._since_resume = [], None
        else:
            return False
        self._replace_phases()
        return True

    def learning_rate_at(self, step: int, phase: Phase) -> float:
        """Return the learning rate of the update of `step`: warm-up, the phase's rate, and linear decay to 0."""
        return trapezoid_at(
            step,
            peak=phase.config.learning_rate,
            warmup_steps=self.config.phases[0].warmup_steps,
            decay_start=UNDECIDED if self.decay_start is None else self.decay_start,
            end=phase.end_step,
        )

    def _replace_phases(self) -> None:
        ends = [*self.phase_ends, *[UNDECIDED] * len(self.phases)]
        self.phases = place_phases(self.phases, ends[: len(self.phases)])
