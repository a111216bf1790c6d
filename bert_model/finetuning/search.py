"""The search over settings and seeds, chosen on dev, and what is reported of it (paper, section 4 and A.3).

Nothing here trains: the functions take a way to run trials and to score them, so that every start of a comparison is
searched by the same code.
"""

import dataclasses
import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bert_model.finetuning.config import FinetuningConfig
from bert_pipeline.errors import TrainingError


@dataclasses.dataclass(frozen=True, order=True, slots=True)
class Setting:
    """One point of the grid."""

    learning_rate: float
    batch_size: int
    epochs: float
    variant: str = ""
    """What of the model a feature-based tagger reads; empty for every other task."""

    def describe(self) -> dict[str, Any]:
        """As JSON, the variant under the name of what it is."""
        document = dataclasses.asdict(self)
        variant = document.pop("variant")
        return {**document, "feature_input": variant} if variant else document


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """One finished trial: a setting with a seed, and its scores on dev."""

    start: str
    setting: Setting
    seed: int
    scores: Mapping[str, Mapping[str, float]]
    """Split -> metric -> score on the scale of 0 to 100; empty when the training diverged."""
    main_score: float
    """The score that is chosen by; -inf when the training diverged."""
    collapsed: bool
    """Whether the model says the same of every dev example."""
    diverged: bool
    """Whether the loss stopped being finite."""
    steps: int
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Tuned τ, losses and the like."""

    @property
    def usable(self) -> bool:
        return not (self.collapsed or self.diverged)

    def describe(self) -> dict[str, Any]:
        """As JSON; a diverged run has no scores."""
        return {
            "start": self.start,
            **self.setting.describe(),
            "seed": self.seed,
            "steps": self.steps,
            "scores": {split: dict(values) for split, values in self.scores.items()},
            "collapsed": self.collapsed,
            "diverged": self.diverged,
            **self.details,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arm:
    """One start of a comparison: the weights that training starts from, and how long it trains."""

    name: str
    """pretrained, random or random_x4."""
    start: str
    """pretrained or random."""
    epoch_multiple: int = 1
    """How many times the epochs of the grid."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArmResult:
    """All runs of an arm, the chosen setting of each variant, the best of these, and its best run."""

    arm: Arm
    runs: tuple[Run, ...]
    setting: Setting
    chosen: tuple[Run, ...]
    """The runs of the chosen setting, in the order of the seeds: what is reported."""
    variants: Mapping[str, tuple[Run, ...]]
    """Variant -> the runs of its chosen setting."""
    best: Run
    """The best run of the chosen setting that neither collapsed nor diverged, where there is one."""

    @property
    def degenerate(self) -> bool:
        """Whether no run of the chosen setting is usable."""
        return not self.best.usable

    def values(self, split: str, metric: str) -> list[float]:
        """The metric of every run of the chosen setting; diverged runs have none."""
        return [run.scores[split][metric] for run in self.chosen if not run.diverged]


RunTrials = Callable[[Sequence[tuple[Arm, Setting, int]]], list[Run]]
"""Runs (arm, setting, seed) triples, in any order, and returns their runs in the order asked for."""


def arms_of(config: FinetuningConfig) -> list[Arm]:
    """The starts that a configuration asks for."""
    arms = [Arm(name="pretrained", start="pretrained")]
    if config.compare_starts:
        arms.append(Arm(name="random", start="random"))
        if multiple := config.random_step_multiple:
            arms.append(Arm(name=f"random_x{multiple}", start="random", epoch_multiple=multiple))
    return arms


def grid_of(
    config: FinetuningConfig, learning_rates: Sequence[float], variants: Sequence[str] = ("",)
) -> list[Setting]:
    """The settings of the grid, in the order of the configuration."""
    return [
        Setting(learning_rate, batch_size, epochs, variant)
        for variant, learning_rate, batch_size, epochs in itertools.product(
            variants, learning_rates, config.batch_sizes, config.epochs
        )
    ]


def search(
    config: FinetuningConfig,
    arms: Sequence[Arm],
    learning_rates: Sequence[float],
    run_trials: RunTrials,
    variants: Sequence[str] = ("",),
) -> list[ArmResult]:
    """Search the grid from every start in the same way and return each arm's runs and choice.

    `search: grid` runs every setting with every seed. `search: first_seed` runs every setting with the first seed,
    chooses, and runs the chosen setting with the other seeds. An arm of more epochs is not searched: it runs the
    setting chosen for its start with every seed. With several variants each is searched so, and the best of their
    chosen settings is the arm's. TrainingError when every run of an arm's choice diverged.
    """
    first_seeds = config.seeds if config.search == "grid" else config.seeds[:1]
    asked = [
        (arm, setting, seed)
        for arm in arms
        if arm.epoch_multiple == 1
        for setting in grid_of(config, learning_rates, variants)
        for seed in first_seeds
    ]
    runs = list(zip(asked, run_trials(asked)))
    chosen = {
        arm.start: [
            choose_setting([run for (a, _, _), run in runs if a == arm and run.setting.variant == variant])
            for variant in variants
        ]
        for arm in arms
        if arm.epoch_multiple == 1
    }
    settings = {
        arm.name: [
            dataclasses.replace(setting, epochs=setting.epochs * arm.epoch_multiple) for setting in chosen[arm.start]
        ]
        for arm in arms
    }
    rest = [
        (arm, setting, seed)
        for arm in arms
        for setting in settings[arm.name]
        for seed in config.seeds
        if arm.epoch_multiple > 1 or seed not in first_seeds
    ]
    if rest:
        runs += zip(rest, run_trials(rest))
    return [
        _result_of(arm, [run for (asked_arm, _, _), run in runs if asked_arm == arm], settings[arm.name])
        for arm in arms
    ]


def choose_setting(runs: Sequence[Run]) -> Setting:
    """Return the setting with the best mean score over its runs; the earlier one on a tie.

    A setting all of whose runs collapsed or diverged is chosen only when there is no other.
    """
    settings = list(dict.fromkeys(run.setting for run in runs))

    def merit(setting: Setting) -> tuple[bool, float]:
        own = [run for run in runs if run.setting == setting]
        return any(run.usable for run in own), statistics.fmean(run.main_score for run in own)

    return max(settings, key=merit)


def _result_of(arm: Arm, runs: Sequence[Run], settings: Sequence[Setting]) -> ArmResult:
    variants = {setting.variant: tuple(run for run in runs if run.setting == setting) for setting in settings}
    setting = choose_setting([run for chosen in variants.values() for run in chosen])
    chosen = variants[setting.variant]
    best = max(chosen, key=lambda run: (run.usable, not run.diverged, run.main_score))
    if best.diverged:
        raise TrainingError(
            f"{arm.name}: the loss stopped being finite in every run at learning rate {setting.learning_rate:g}; "
            "give lower learning rates"
        )
    return ArmResult(arm=arm, runs=tuple(runs), setting=setting, chosen=chosen, variants=variants, best=best)


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Return values, mean, standard deviation (of a sample; 0 for one value), best and median."""
    return {
        "values": [round(value, 6) for value in values],
        "mean": round(statistics.fmean(values), 6),
        "sd": round(statistics.stdev(values), 6) if len(values) > 1 else 0.0,
        "best": round(max(values), 6),
        "median": round(statistics.median(values), 6),
    }
