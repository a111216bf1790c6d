"""Configuration of a pre-training run and its command-line arguments; importable without torch."""

import argparse
import dataclasses
import functools
import itertools
import re
from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from bert_model.model.config import ARCHITECTURES, BertConfig, size_name
from bert_model.training.schedule import OptimizerConfig
from bert_pipeline.configuration import Proportion, Seed, SettingsAction, configuration
from bert_pipeline.errors import ConfigurationError
from bert_pipeline.instances.masking import MaskingConfig
from bert_pipeline.storage import path_or_url
from bert_pipeline.vocabulary.files import CASED_HELP

INITIAL_SIZE = "initial"
"""Special preset name: the size of `initial_model`."""


@configuration
class ModelConfig:
    """The model to train: an architecture, a preset size and overrides."""

    architecture: Literal["bert", "modern"] = "bert"
    """`modern` is ModernBERT's: pre-norm blocks, rotary positions, gated feed-forward layers, no biases; no next
    sentences."""
    preset: str = "base"
    """tiny, mini, small, medium, base or large; `initial` takes the size of `initial_model`."""
    overrides: dict[str, Any] = field(default_factory=dict)
    """Keys of the model's config.json; `vocab_size` defaults to that of the vocabulary."""

    def __post_init__(self) -> None:
        if self.preset != INITIAL_SIZE:
            self.resolve(vocab_size=30522)

    @property
    def name(self) -> str:
        """What names a model: the size, of a modern one with the architecture."""
        return size_name(self.preset, self.architecture)

    def resolve(self, *, vocab_size: int, max_length: int = 0) -> BertConfig:
        """Return the full configuration for a vocabulary of `vocab_size` tokens and texts of up to `max_length`.

        A modern model's positions are numbers without weights: it has as many as the texts need.
        """
        settings: dict[str, Any] = {"vocab_size": vocab_size, **self.overrides}
        if self.architecture == "modern" and max_length > BertConfig.max_position_embeddings:
            settings = {"max_position_embeddings": -(-max_length // 8) * 8} | settings
        return ARCHITECTURES[self.architecture].from_preset(self.preset, **settings)


@configuration
class PhaseConfig:
    """A part of pre-training at one sequence length."""

    max_seq_length: Annotated[int, Field(ge=5)] = 128
    """Maximum length of an instance, in tokens."""
    steps: PositiveInt = 900_000
    """Number of optimizer steps."""
    global_batch_size: PositiveInt = 256
    """Instances per step, over all ranks and micro-batches."""
    learning_rate: NonNegativeFloat = 1e-4
    """Peak learning rate."""
    warmup_steps: NonNegativeInt = 10_000
    """Steps of linear warm-up."""
    max_predictions_per_seq: NonNegativeInt = 0
    """Maximum predictions per instance with dynamic masks; 0 takes `masking.masked_lm_prob` of `max_seq_length`."""
    initial_batch_size: NonNegativeInt = 0
    """Instances of the first step; during the warm-up the batch grows in multiples of this to `global_batch_size`.
    0 starts with the whole batch."""
    share: PositiveFloat = 1.0
    """With a budget, the phase's part of it, in relation to the other phases."""
    instances: str = ""
    """The phase's instance directory."""

    def __post_init__(self) -> None:
        if self.initial_batch_size and (self.global_batch_size % self.initial_batch_size or not self.warmup_steps):
            raise ConfigurationError(
                f"initial_batch_size: found {self.initial_batch_size}, expected a divisor of global_batch_size "
                f"{self.global_batch_size}, and warmup_steps in which the batch grows"
            )
        if self.warmup_steps > self.steps:
            raise ConfigurationError(
                f"warmup_steps: found {self.warmup_steps}, expected at most the phase's {self.steps} steps"
            )

    def samples_in(self, steps: int) -> int:
        """Return the number of instances in the first `steps` steps of the phase."""
        ramp = _ramp(self.initial_batch_size or self.global_batch_size, self.global_batch_size, self.warmup_steps)
        return ramp[min(steps, self.warmup_steps)] + max(0, steps - self.warmup_steps) * self.global_batch_size


@functools.lru_cache(maxsize=16)
def _ramp(first: int, last: int, num_steps: int) -> list[int]:
    """Return the samples before each step of a ramp, and after it: a staircase from batches of `first` to `last`."""
    stairs = last // first
    sizes = (first * (1 + step * stairs // num_steps) for step in range(num_steps))
    return list(itertools.accumulate(sizes, initial=0))


@configuration
class PretrainingConfig:
    """What a pre-training run computes, and how it is logged, evaluated and saved."""

    model: ModelConfig = field(default_factory=ModelConfig)
    """The model to train."""
    phases: tuple[PhaseConfig, ...] = ()
    """The phases, in order."""
    schedule: Literal["phase", "run", "trapezoid"] = "phase"
    """`phase` warms up and decays in every phase; `run` draws one warm-up and one decay line over all phases;
    `trapezoid` warms up once, keeps each phase's rate, and decays at the end."""
    decay_share: Proportion = 0.2
    """Share of the steps, or of the budget, in which a trapezoid decays to 0; at most the last phase."""
    budget: str = ""
    """Time of training, such as 3h or 90m, instead of the phases' `steps`; the decay ends when it is over."""
    max_passes: NonNegativeFloat = 0.0
    """With a budget, the training ends after so many passes over the text if they come first; 0 sets no limit."""
    micro_batch_size: PositiveInt = 32
    """Maximum instances per forward pass of a rank; gradients are accumulated up to the global batch."""
    micro_batch_tokens: PositiveInt | Literal["auto"] = "auto"
    """Maximum tokens per forward pass of a rank on a GPU in bfloat16 and without dropout in attention, which packs
    instances and does not read `micro_batch_size`; `auto` measures what fits into its memory."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """The optimizer."""
    seed: Seed = 12345
    """Seed of weights, order, masks and dropout."""
    precision: Literal["float32", "bfloat16", "auto"] = "float32"
    """`bfloat16` computes under autocast, with weights and optimizer state in float32; `auto` takes it if the device
    has instructions for it."""
    compile: bool | Literal["auto"] = "auto"
    """Compile each layer with torch.compile; `auto` does where instances are packed (`micro_batch_tokens`), whose one
    size needs four graphs a phase."""
    activation_checkpointing: bool = False
    """Compute each block's activations again in the backward pass instead of keeping them: less memory, about a third
    more computation, the same gradients."""
    data_parallel: Literal["auto", "buffer", "ddp", "fsdp"] = "auto"
    """How several ranks sum gradients: `ddp` by DistributedDataParallel, `fsdp` with sharded parameters and optimizer
    state (FSDP2), `buffer` in one sum at the end of a step, on CPUs only; `auto` is `ddp` on GPUs and `buffer` on
    CPUs."""
    objective: Literal["auto", "mlm_nsp", "mlm"] = "auto"
    """`mlm` omits the next-sentence loss (paper section 5.1, "No NSP"); `auto` is `mlm_nsp` with architecture `bert`
    and `mlm` with `modern`."""
    masking: MaskingConfig = field(default_factory=MaskingConfig)
    """How tokens are masked, unless the instances have static masks."""
    shuffle_row_groups: PositiveInt = 8
    """Row groups that a reader holds in memory and shuffles together."""
    initial_model: str = ""
    """Model to continue from (directory, models:/ URI or hub id); empty starts from random weights."""
    initial_optimizer: Literal["fresh", "restored"] = "fresh"
    """`restored` also loads the optimizer state of `initial_model`, which must be a checkpoint."""
    log_interval_steps: PositiveInt = 10
    """Steps between two records of training metrics."""
    evaluation_interval_steps: NonNegativeInt = 1000
    """Steps between two held-out evaluations; every checkpoint is evaluated too, with 0 no other step."""
    evaluation_max_instances: NonNegativeInt = 0
    """Maximum held-out instances evaluated, evenly spaced; 0 takes all."""
    checkpoint_interval_steps: NonNegativeInt = 1000
    """Steps between two checkpoints; with 0 only at the end of each phase."""
    keep_last: PositiveInt = 3
    """Checkpoints kept on disk; older ones are removed."""
    keep_every_steps: NonNegativeInt = 0
    """Checkpoints at multiples of this are never removed; 0 keeps only `keep_last`."""
    exam: str = ""
    """Minimal pairs that checkpoints are examined on: a directory of `build_exam`, or a file; "" for none."""
    exam_pairs: PositiveInt = 20
    """Pairs of each kind, of those for choosing."""
    choose: Literal["last", "loss", "exam"] = "last"
    """The checkpoint that is published: the last one, or of the last phase's the one with the lowest held-out loss or
    the best exam."""
    upload_checkpoints: bool = True
    """Whether MLflow gets the weights of every checkpoint, or only its path and hash."""
    timeout_seconds: PositiveInt = 600
    """Timeout of the communication between ranks."""

    def __post_init__(self) -> None:
        if self.model.preset != INITIAL_SIZE:  # else the architecture is that of a model which is not there yet
            object.__setattr__(self, "objective", self.objective_of(self.model.architecture))
        # Conditions between fields; the range of a single field is in its type.
        if not self.phases:
            raise ConfigurationError("phases: found none, expected at least one")
        if self.masking.max_predictions_per_seq != MaskingConfig.max_predictions_per_seq:
            raise ConfigurationError(
                f"masking.max_predictions_per_seq: found {self.masking.max_predictions_per_seq}, but it follows from "
                "each phase's length; set max_predictions_per_seq in the phases"
            )
        if self.model.preset == INITIAL_SIZE and not self.initial_model:
            raise ConfigurationError(f"model.preset: found {INITIAL_SIZE!r} without an initial_model to take it from")
        if self.initial_optimizer == "restored" and not self.initial_model:
            raise ConfigurationError("initial_optimizer: found 'restored' without an initial_model to restore it from")

        if self.budget and (self.schedule != "trapezoid" or not self.budget_seconds):
            raise ConfigurationError(
                f"budget: found {self.budget!r} with schedule={self.schedule}, expected a time such as 3h or 90m with "
                "schedule=trapezoid"
            )
        if self.max_passes and not self.budget:
            raise ConfigurationError(
                f"max_passes: found {self.max_passes:g} without a budget; give one (such as budget=24h), or the "
                "phases' steps alone"
            )
        # With one line over the whole run, settings of the later phases would be ignored.
        for index, phase in enumerate(self.phases[1:], start=1):
            if self.schedule == "trapezoid" and phase.warmup_steps:
                raise ConfigurationError(
                    f"phases.{index}.warmup_steps: found {phase.warmup_steps}, expected 0: with schedule=trapezoid "
                    "only the first phase warms up"
                )
            has_own = phase.warmup_steps or phase.learning_rate != self.phases[0].learning_rate
            if self.schedule == "run" and has_own:
                raise ConfigurationError(
                    f"phases.{index}: with schedule=run the first phase's learning_rate and warmup_steps hold for the "
                    f"whole run; expected learning_rate {self.phases[0].learning_rate} and warmup_steps 0"
                )

    def objective_of(self, architecture: str) -> Literal["mlm_nsp", "mlm"]:
        """Return the objective of a model of this architecture; ConfigurationError if it has no head for it."""
        if architecture == "modern" and self.objective == "mlm_nsp":
            raise ConfigurationError(
                "objective: found 'mlm_nsp' with model.architecture='modern', which has no segments and no head for "
                "next sentences; expected 'mlm'"
            )
        default: Literal["mlm_nsp", "mlm"] = "mlm" if architecture == "modern" else "mlm_nsp"
        return default if self.objective == "auto" else self.objective

    @property
    def total_steps(self) -> int:
        """Optimizer steps of all phases, if there is no budget."""
        return sum(phase.steps for phase in self.phases)

    @property
    def budget_seconds(self) -> float:
        """The budget in seconds; 0 without one, or if it is not a time."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", self.budget)
        return float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]] if match else 0.0

    @property
    def goal(self) -> str:
        """What follows the number of a step: of how many, or the budget."""
        return f" (budget {self.limits})" if self.budget else f" of {self.total_steps:,}"

    @property
    def limits(self) -> str:
        """The budget, with the passes that end the training before it."""
        return f"{self.budget}, at most {self.max_passes:g} passes" if self.max_passes else self.budget

    def masking_of(self, phase: PhaseConfig) -> MaskingConfig:
        """Return the masking of a phase, with its own limit on predictions."""
        max_predictions = phase.max_predictions_per_seq or self.masking.max_predictions(phase.max_seq_length)
        return dataclasses.replace(self.masking, max_predictions_per_seq=max_predictions)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `bert pretrain` to a parser."""
    parser.add_argument("--config", required=True, metavar="FILE|PRESET", help="YAML file or name of a preset")
    parser.add_argument(
        "--output", type=path_or_url, metavar="DIR", help="the training's directory, or its URL; not with --plan"
    )
    parser.add_argument(
        "--plan",
        action="store_true",
        help="time ten seconds of each phase, print what this machine will read, and exit",
    )
    parser.add_argument(
        "--from", dest="start", metavar="MODEL", help="continue from a model: directory, models:/ URI or hub id"
    )
    parser.add_argument(
        "--optimizer-state",
        choices=("fresh", "restored"),
        help="with --from: fresh (the default), or restored from the training's checkpoint that MODEL is",
    )
    parser.add_argument("--cased", action=argparse.BooleanOptionalAction, help=f"with --from: {CASED_HELP}")
    parser.add_argument("--resume", action="store_true", help="go on where the training in DIR stopped")
    parser.add_argument("--allow-changes", action="store_true", help="resume although configuration or data changed")
    parser.add_argument("--experiment", default="pretraining", help="name of the MLflow experiment")
    parser.add_argument("--device", default="", choices=("", "cpu", "cuda"), help="cpu or cuda; default: what is there")
    parser.add_argument("assignments", nargs="*", metavar="key=value", help="configuration, such as phases.0.steps=100")
    parser.add_argument("--settings", action=SettingsAction)
