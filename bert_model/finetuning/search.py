"""Search over settings and seeds, decided on dev (paper, section 4 and A.3).

Nothing here trains: `search` takes a function that runs trials, so that every initialization is searched alike.
"""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from bert_model.finetuning.config import FinetuningConfig
from bert_pipeline.errors import TrainingError


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """One point of the grid."""

    learning_rate: float
    batch_size: int
    epochs: float
    feature_input: str = ""
    """Hidden states that a feature-based tagger reads; empty for every other task."""

    def describe(self) -> dict[str, Any]:
        """Return the setting as JSON, without an empty `feature_input`."""
        return {key: value for key, value in dataclasses.asdict(self).items() if value != ""}


@dataclasses.dataclass(frozen=True, slots=True)
class Initialization:
    """Initial weights and training length being compared."""

    name: str
    """"pretrained", "random" or, for random weights that train four times as long, "random_x4"."""
    weights: Literal["pretrained", "random"]
    epoch_multiple: int = 1
    """Factor on the epochs of the grid."""


@dataclasses.dataclass(frozen=True, slots=True)
class Trial:
    """One training of a search."""

    initialization: Initialization
    setting: Setting
    seed: int

    @property
    def key(self) -> str:
        """Setting and seed as a file name, such as "5e-05-32-3-1"."""
        setting = self.setting
        prefix = f"{setting.feature_input}-" if setting.feature_input else ""
        rate, epochs = (repr(number).removesuffix(".0") for number in (setting.learning_rate, setting.epochs))
        return f"{prefix}{rate}-{setting.batch_size}-{epochs}-{self.seed}"

    @property
    def name(self) -> str:
        """Unique file name within a search, such as "pretrained-5e-05-32-3-1"."""
        return f"{self.initialization.name}-{self.key}"

    @property
    def title(self) -> str:
        """What distinguishes it from the others of its search, in words."""
        own, start = self.setting, f"{self.initialization.name} {self.setting.feature_input}".rstrip()
        return f"{start} lr {own.learning_rate:g} batch {own.batch_size} epochs {own.epochs:g} seed {self.seed}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """How a training went."""

    steps: int
    """Number of optimizer steps."""
    losses: tuple[float, ...] = ()
    """Mean training loss of at most 20 equal stretches of the training."""
    diverged: bool
    """True if its loss or its outputs stopped being finite."""
    epoch: float = 0.0
    """The epoch whose weights and outputs are kept, if each was scored."""
    epoch_scores: tuple[tuple[float, float], ...] = ()
    """Epoch and main dev score, if each was scored."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialResult(Training):
    """Dev scores of a finished trial."""

    trial: Trial
    scores: Mapping[str, Mapping[str, float]]
    """Split -> metric -> score from 0 to 100; empty if the training diverged."""
    main_score: float
    """The score that decides; -inf if the training diverged."""
    collapsed: bool
    """True if every dev example gets the same prediction."""
    fitted: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """What was chosen on dev beside the weights, as `Evaluation.fitted`."""

    @property
    def usable(self) -> bool:
        return not (self.collapsed or self.diverged)

    def describe(self) -> dict[str, Any]:
        """Return the result as it appears in results.json."""
        return {
            "initialization": self.trial.initialization.name,
            **self.trial.setting.describe(),
            "seed": self.trial.seed,
            "steps": self.steps,
            "scores": {split: dict(values) for split, values in self.scores.items()},
            "collapsed": self.collapsed,
            "diverged": self.diverged,
            "losses": [loss if math.isfinite(loss) else None for loss in self.losses],  # JSON has no NaN
            **self.fitted,
            **({"epoch": self.epoch, "epoch_scores": self.epoch_scores} if self.epoch_scores else {}),
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchResult:
    """All trials of one initialization, and the choice among them."""

    initialization: Initialization
    trials: tuple[TrialResult, ...]
    by_feature_input: Mapping[str, tuple[TrialResult, ...]]
    """Feature input ("" where there is none) -> the trials of its chosen setting."""
    chosen: tuple[TrialResult, ...]
    """The trials of the chosen setting in the order of the seeds: these are reported."""
    best: TrialResult
    """The best chosen trial; a usable one if there is any."""

    @property
    def setting(self) -> Setting:
        """The chosen setting."""
        return self.best.trial.setting

    @property
    def degenerate(self) -> bool:
        """True if no trial of the chosen setting is usable."""
        return not self.best.usable

    def values(self, split: str, metric: str) -> list[float]:
        """Return a metric of the chosen trials, without the diverged ones."""
        return [result.scores[split][metric] for result in self.chosen if not result.diverged]


class DivergedError(TrainingError):
    """The loss of every trial of a setting stopped being finite: it would do so again."""


RunTrials = Callable[[Sequence[Trial]], list[TrialResult]]
"""Runs trials in any order and returns their results in the order of its argument."""


def initializations_of(config: FinetuningConfig) -> list[Initialization]:
    """Return the initializations that a configuration compares; the pre-trained weights come first."""
    initializations = [Initialization("pretrained", "pretrained")]
    if config.compare_random:
        initializations.append(Initialization("random", "random"))
        if multiple := config.random_step_multiple:
            initializations.append(Initialization(f"random_x{multiple}", "random", multiple))
    return initializations


def first_trials(config: FinetuningConfig, *, feature_based: bool = False) -> list[Trial]:
    """Return the trials that a search begins with: the grid, from every initialization that is searched."""
    rates = config.lstm_learning_rates if feature_based else config.learning_rates
    inputs = config.feature_inputs if feature_based else ("",)
    return [
        Trial(initialization, Setting(rate, batch_size, epochs, feature_input), seed)
        for initialization in initializations_of(config)
        if initialization.epoch_multiple == 1
        for feature_input, rate, batch_size, epochs in itertools.product(
            inputs, rates, config.batch_sizes, config.epochs
        )
        for seed in (config.seeds if config.search == "grid" else config.seeds[:1])
    ]


def search(config: FinetuningConfig, run_trials: RunTrials, *, feature_based: bool = False) -> list[SearchResult]:
    """Search the grid from every initialization in the same way; return one result for each.

    `search: grid` runs every setting with every seed. `search: first_seed` runs every setting with the first seed,
    chooses, and runs the chosen setting with the other seeds. An initialization with an epoch multiple is not
    searched: it runs the setting chosen for its weights with every seed. Each feature input is searched by itself, and
    the best of their chosen settings is reported. DivergedError if every trial of a chosen setting diverged.
    """
    grid = first_trials(config, feature_based=feature_based)
    results = run_trials(grid)

    # Choose a setting for the weights of each initialization and for each feature input. Random weights are searched
    # once: their longer training reuses the setting chosen here.
    searched: dict[tuple[str, str], list[TrialResult]] = {}
    for result in results:
        key = result.trial.initialization.weights, result.trial.setting.feature_input
        searched.setdefault(key, []).append(result)
    chosen: dict[Initialization, list[Setting]] = {}
    for initialization in initializations_of(config):
        settings = [choose_setting(own) for (weights, _), own in searched.items() if weights == initialization.weights]
        chosen[initialization] = [
            dataclasses.replace(setting, epochs=setting.epochs * initialization.epoch_multiple) for setting in settings
        ]

    # Train the chosen settings with the remaining seeds, and the longer trainings.
    remaining = [
        trial
        for initialization, settings in chosen.items()
        for setting in settings
        for seed in config.seeds
        if (trial := Trial(initialization, setting, seed)) not in grid
    ]
    results = [*results, *(run_trials(remaining) if remaining else ())]
    return [_search_result(initialization, results, settings) for initialization, settings in chosen.items()]


def choose_setting(results: Sequence[TrialResult]) -> Setting:
    """Return the setting with the best mean score over its trials; the first one on a tie.

    A setting without a usable trial is chosen only if no setting has one.
    """
    settings = list(dict.fromkeys(result.trial.setting for result in results))

    def merit(setting: Setting) -> tuple[bool, float]:
        own = [result for result in results if result.trial.setting == setting]
        return any(result.usable for result in own), statistics.fmean(result.main_score for result in own)

    return max(settings, key=merit)


def _search_result(
    initialization: Initialization, results: Sequence[TrialResult], settings: Sequence[Setting]
) -> SearchResult:
    """Collect the trials of one initialization; `settings` has the chosen one of each feature input."""
    own = tuple(result for result in results if result.trial.initialization == initialization)
    by_feature_input = {
        setting.feature_input: tuple(result for result in own if result.trial.setting == setting)
        for setting in settings
    }

    # Chosen twice: within each feature input, and here among the chosen ones.
    setting = choose_setting([result for trials in by_feature_input.values() for result in trials])
    chosen = by_feature_input[setting.feature_input]
    best = max(chosen, key=lambda result: (result.usable, not result.diverged, result.main_score))
    if best.diverged:
        raise DivergedError(
            f"{initialization.name}: loss or outputs stopped being finite in every trial at learning rate "
            f"{setting.learning_rate:g}; give lower learning rates"
        )
    return SearchResult(
        initialization=initialization, trials=own, by_feature_input=by_feature_input, chosen=chosen, best=best
    )
