"""Configuration of the model and of pre-training: frozen dataclasses, checked when made."""

import dataclasses
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bert_pipeline.configuration import from_mapping, to_mapping
from bert_pipeline.errors import ConfigurationError, InputError, suggest
from bert_pipeline.masking import MaskingConfig

IGNORED_LABEL = -100
"""Label of a position that has none, as torch's cross-entropy and Hugging Face have it."""

CONFIG_NAME = "config.json"

INITIAL_SIZE = "initial"
"""In the place of a preset's name: the size of the model that a training starts from."""

# Layers, hidden size and heads: paper section 3 (base, large), and the smaller models of google-research/bert.
PRESET_SIZES: dict[str, tuple[int, int, int]] = {
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "small": (4, 512, 8),
    "medium": (8, 512, 8),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}


@dataclass(frozen=True, kw_only=True)
class BertConfig:
    """The shape of a BERT, under the names that Hugging Face's config.json uses."""

    vocab_size: int = 30522
    """Number of WordPiece tokens."""
    hidden_size: int = 768
    """Width of every hidden state (H)."""
    num_hidden_layers: int = 12
    """Number of Transformer blocks (L)."""
    num_attention_heads: int = 12
    """Number of attention heads (A); it divides `hidden_size`."""
    intermediate_size: int = 3072
    """Width of the feed-forward layer, 4H in the paper."""
    hidden_act: Literal["gelu", "gelu_new"] = "gelu"
    """`gelu` is the erf form, `gelu_new` the tanh approximation that google's code uses."""
    hidden_dropout_prob: float = 0.1
    """Dropout after the embeddings and after each sublayer."""
    attention_probs_dropout_prob: float = 0.1
    """Dropout on the attention probabilities."""
    max_position_embeddings: int = 512
    """The longest sequence."""
    type_vocab_size: int = 2
    """Number of segments."""
    initializer_range: float = 0.02
    """Standard deviation of the truncated normal that weights start from."""
    layer_norm_eps: float = 1e-12
    """Added to the variance in layer normalization."""
    pad_token_id: int = 0
    """Id of [PAD]."""
    attention: Literal["bidirectional", "causal"] = "bidirectional"
    """`causal` lets each position see itself and what stands to its left (paper section 5.1, "LTR")."""
    head: Literal["linear", "bilstm"] = "linear"
    """`bilstm` puts a bidirectional LSTM between encoder and classifier at fine-tuning (paper section 5.1, Table 5)."""
    classifier_dropout: float | None = None
    """Dropout in front of a task's classifier; `hidden_dropout_prob` where not given."""
    labels: tuple[str, ...] = ()
    """Names of a classifier's outputs in order; `num_labels` follows from them. Empty: two unnamed outputs."""

    def __post_init__(self) -> None:
        for name in (
            "vocab_size",
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "intermediate_size",
            "max_position_embeddings",
            "type_vocab_size",
        ):
            require_at_least(self, name, 1)
        if self.hidden_size % self.num_attention_heads:
            raise ConfigurationError(
                f"hidden_size: found {self.hidden_size}, which {self.num_attention_heads} attention heads do not divide"
            )
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            require_share(self, name)
        if self.classifier_dropout is not None:
            require_share(self, "classifier_dropout")
        if self.head == "bilstm" and self.hidden_size % 2:
            raise ConfigurationError(
                f"head: found 'bilstm', whose two directions cannot share a hidden_size of {self.hidden_size} equally"
            )
        if not 0 <= self.pad_token_id < self.vocab_size:
            raise ConfigurationError(f"pad_token_id: found {self.pad_token_id}, expected an id below {self.vocab_size}")

    @property
    def num_labels(self) -> int:
        """Number of outputs of a task's classifier."""
        return len(self.labels) or 2

    @classmethod
    def from_preset(cls, name: str, **overrides: Any) -> "BertConfig":
        """Make a configuration of a known size; ConfigurationError names the nearest preset or key."""
        if name not in PRESET_SIZES:
            raise ConfigurationError(f"model.preset: unknown preset {name!r}{suggest(name, PRESET_SIZES)}")
        layers, hidden, heads = PRESET_SIZES[name]
        size = {
            "num_hidden_layers": layers,
            "hidden_size": hidden,
            "num_attention_heads": heads,
            "intermediate_size": 4 * overrides.get("hidden_size", hidden),
        }
        return from_mapping(cls, {**size, **overrides}, where=f"model ({name})")

    @classmethod
    def from_directory(cls, directory: Path | str, **overrides: Any) -> "BertConfig":
        """Read a directory's Hugging Face `config.json`; InputError when it is not a BERT that we compute alike."""
        path = Path(directory) / CONFIG_NAME
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror}); give a model directory") from error
        except ValueError as error:
            raise InputError(f"{path}: not valid JSON ({error}); give a Hugging Face model directory") from error
        _refuse_other_models(document, path)
        names = {item.name for item in dataclasses.fields(cls)} - {"labels"}
        values = {name: document[name] for name in names if name in document}
        id2label = document.get("id2label") or {}
        values["labels"] = [id2label[key] for key in sorted(id2label, key=int)]
        if document.get("is_decoder"):
            values["attention"] = "causal"  # what transformers' language models from left to right see
        return from_mapping(cls, {**values, **overrides}, where=str(path))

    def to_json(self, architecture: str) -> str:
        """Return the text of a Hugging Face `config.json` for a model class such as "BertForPreTraining"."""
        document = to_mapping(self)
        labels = document.pop("labels")
        document |= {"architectures": [architecture], "model_type": "bert", "dtype": "float32"}
        document["is_decoder"] = self.attention == "causal"  # transformers' name for a mask that hides what follows
        if labels:
            document["id2label"] = {str(index): label for index, label in enumerate(labels)}
            document["label2id"] = {label: index for index, label in enumerate(labels)}
        return json.dumps(document, indent=2, sort_keys=True) + "\n"


def _refuse_other_models(document: Any, path: Path) -> None:
    if not isinstance(document, dict):
        raise InputError(f"{path}: found {type(document).__name__}, expected a JSON object")
    expected = {
        "model_type": "bert",
        "position_embedding_type": "absolute",
        "is_decoder": document["attention"] == "causal" if "attention" in document else document.get("is_decoder"),
        "add_cross_attention": False,
    }
    for key, value in expected.items():
        if document.get(key, value) != value:
            raise InputError(f"{path}: {key} is {document[key]!r}, expected {value!r}; only BERT encoders are read")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Which model to train: a preset size, and what differs from it."""

    preset: str = "base"
    """tiny, mini, small, medium, base or large; `initial` is the size of `initial_model`."""
    overrides: dict[str, Any] = field(default_factory=dict)
    """Keys of the model's own configuration; `vocab_size` follows from the vocabulary where not given."""

    def __post_init__(self) -> None:
        if self.preset != INITIAL_SIZE:
            self.resolve(vocab_size=30522)

    def resolve(self, *, vocab_size: int) -> BertConfig:
        """Return the model's full configuration for a vocabulary of `vocab_size` tokens."""
        return BertConfig.from_preset(self.preset, **{"vocab_size": vocab_size, **self.overrides})


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """The optimizer, by default the one of the paper (appendix A.2) and google's optimization.py."""

    name: Literal["bert_adam", "adamw", "lamb"] = "bert_adam"
    """`bert_adam` is Adam without bias correction; `adamw` corrects; `lamb` scales each layer's step by its norm."""
    beta1: float = 0.9
    """Decay of the running mean of gradients."""
    beta2: float = 0.999
    """Decay of the running mean of squared gradients."""
    epsilon: float = 1e-6
    """Added to the root of the second moment."""
    weight_decay: float = 0.01
    """Decoupled decay, applied to everything but biases and layer normalization."""
    max_gradient_norm: float = 1.0
    """Gradients are scaled down to this global norm; 0 turns clipping off."""

    def __post_init__(self) -> None:
        for name in ("beta1", "beta2"):
            require_share(self, name)
        for name in ("weight_decay", "max_gradient_norm"):
            require_at_least(self, name, 0)
        if not self.epsilon > 0:
            raise ConfigurationError(f"epsilon: found {self.epsilon}, expected a number above 0")


@dataclass(frozen=True, kw_only=True)
class PhaseConfig:
    """One stretch of pre-training at one sequence length."""

    max_seq_length: int = 128
    """Longest instance that the phase accepts, in tokens."""
    steps: int = 900_000
    """Number of optimizer steps."""
    global_batch_size: int = 256
    """Instances in each step, over all ranks and micro-batches."""
    learning_rate: float = 1e-4
    """Peak learning rate."""
    warmup_steps: int = 10_000
    """Steps of linear warm-up."""
    max_predictions_per_seq: int = 0
    """Most predictions in an instance with dynamic masks; 0 takes `masking.masked_lm_prob` of `max_seq_length`."""
    instances: str = ""
    """The phase's instance directory."""

    def __post_init__(self) -> None:
        for name in ("steps", "global_batch_size"):
            require_at_least(self, name, 1)
        require_at_least(self, "max_seq_length", 5)
        require_at_least(self, "learning_rate", 0)
        require_at_least(self, "warmup_steps", 0)
        require_at_least(self, "max_predictions_per_seq", 0)
        if self.warmup_steps > self.steps:
            raise ConfigurationError(
                f"warmup_steps: found {self.warmup_steps}, expected at most the phase's {self.steps} steps"
            )


@dataclass(frozen=True, kw_only=True)
class PretrainingConfig:
    """Everything that decides what a pre-training run computes, and how it is watched."""

    model: ModelConfig = field(default_factory=ModelConfig)
    """The model to train."""
    phases: tuple[PhaseConfig, ...] = ()
    """The phases, in order."""
    schedule: Literal["phase", "run"] = "phase"
    """`phase` warms up and decays in every phase; `run` draws one warm-up and one decay line over all phases."""
    micro_batch_size: int = 32
    """Most instances that one rank computes at once; the global batch is filled by accumulation."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """The optimizer."""
    seed: int = 12345
    """Seed of weights, order, masks and dropout."""
    precision: Literal["float32", "bfloat16", "auto"] = "float32"
    """`bfloat16` computes under autocast, weights and optimizer state stay in float32; `auto` takes it where the
    device is built for it."""
    compile: bool = False
    """Compile the model with torch.compile."""
    objective: Literal["mlm_nsp", "mlm"] = "mlm_nsp"
    """`mlm` leaves the next-sentence loss out (paper section 5.1, "No NSP")."""
    masking: MaskingConfig = field(default_factory=MaskingConfig)
    """How tokens are masked where the instances do not hold masks of their own."""
    shuffle_row_groups: int = 8
    """Row groups that a reader holds and shuffles together."""
    initial_model: str = ""
    """Model to continue from (directory, models:/ URI or hub id); empty starts from random weights."""
    initial_optimizer: Literal["fresh", "restored"] = "fresh"
    """`restored` takes the optimizer state that lies beside `initial_model` as well."""
    log_interval_steps: int = 10
    """Steps between two lines of training metrics."""
    evaluation_interval_steps: int = 1000
    """Steps between two held-out evaluations; 0 evaluates at the end of each phase only."""
    evaluation_max_instances: int = 0
    """Most held-out instances evaluated, spread evenly over them; 0 takes all."""
    checkpoint_interval_steps: int = 1000
    """Steps between two checkpoints; 0 saves at the end of each phase only."""
    keep_last: int = 3
    """Checkpoints kept on disk; older ones are removed."""
    keep_every_steps: int = 0
    """Checkpoints at multiples of this are kept for good; 0 keeps none beyond `keep_last`."""
    upload_checkpoints: bool = True
    """Whether MLflow gets the weights of each checkpoint, or its path and hash only."""
    timeout_seconds: int = 600
    """Longest wait of one rank for the others."""

    def __post_init__(self) -> None:
        if not self.phases:
            raise ConfigurationError("phases: found none, expected at least one")
        for name in ("micro_batch_size", "shuffle_row_groups", "log_interval_steps", "keep_last", "timeout_seconds"):
            require_at_least(self, name, 1)
        for name in (
            "seed",
            "evaluation_interval_steps",
            "evaluation_max_instances",
            "checkpoint_interval_steps",
            "keep_every_steps",
        ):
            require_at_least(self, name, 0)
        if self.masking.max_predictions_per_seq != MaskingConfig.max_predictions_per_seq:
            raise ConfigurationError(
                f"masking.max_predictions_per_seq: found {self.masking.max_predictions_per_seq}, but it follows from "
                "each phase's length; set max_predictions_per_seq in the phases"
            )
        if self.model.preset == INITIAL_SIZE and not self.initial_model:
            raise ConfigurationError(f"model.preset: found {INITIAL_SIZE!r} without an initial_model to take it from")
        if self.initial_optimizer == "restored" and not self.initial_model:
            raise ConfigurationError("initial_optimizer: found 'restored' without an initial_model to restore it from")
        if self.schedule == "run":
            for index, phase in enumerate(self.phases[1:], start=1):
                if phase.warmup_steps or phase.learning_rate != self.phases[0].learning_rate:
                    raise ConfigurationError(
                        f"phases.{index}: with schedule=run the first phase's learning_rate and warmup_steps hold for "
                        f"the whole run; expected learning_rate {self.phases[0].learning_rate} and warmup_steps 0"
                    )

    @property
    def total_steps(self) -> int:
        """Optimizer steps of all phases."""
        return sum(phase.steps for phase in self.phases)

    def masking_of(self, phase: PhaseConfig) -> MaskingConfig:
        """Return the masking of a phase, with its own bound on predictions."""
        most = phase.max_predictions_per_seq or math.ceil(self.masking.masked_lm_prob * phase.max_seq_length)
        return dataclasses.replace(self.masking, max_predictions_per_seq=most)

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate of the update after `step` finished ones, over all phases."""
        if self.schedule == "run":
            first = self.phases[0]
            return learning_rate_at(
                step, peak=first.learning_rate, total_steps=self.total_steps, warmup_steps=first.warmup_steps
            )
        for phase in self.phases:
            if step < phase.steps:
                return learning_rate_at(
                    step, peak=phase.learning_rate, total_steps=phase.steps, warmup_steps=phase.warmup_steps
                )
            step -= phase.steps
        raise AssertionError("a step beyond the last phase")


def learning_rate_at(step: int, *, peak: float, total_steps: int, warmup_steps: int) -> float:
    """Return the rate of the update after `step` finished ones: linear warm-up, then linear decay to 0.

    The decay line starts at step 0, so the rate drops by the factor 1 - warmup_steps / total_steps when the warm-up
    ends (google's optimization.py).
    """
    if step < warmup_steps:
        return peak * step / warmup_steps
    return peak * max(0.0, 1.0 - step / total_steps)


def require_at_least(config: Any, name: str, least: float) -> None:
    """Raise ConfigurationError when a number is below `least` or not a number at all."""
    value = getattr(config, name)
    if not value >= least:
        raise ConfigurationError(f"{name}: found {value}, expected at least {least}")


def require_share(config: Any, name: str) -> None:
    """Raise ConfigurationError when a value is not in [0, 1)."""
    value = getattr(config, name)
    if not 0 <= value < 1:
        raise ConfigurationError(f"{name}: found {value}, expected a number from 0 to below 1")
