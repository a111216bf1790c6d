"""Configuration of an encoder of either architecture: preset sizes, and Hugging Face's config.json."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from bert_pipeline.configuration import Share, configuration, from_mapping, to_mapping
from bert_pipeline.errors import ConfigurationError, InputError, suggest

IGNORED_LABEL = -100
"""Label of positions without one; the default ignore_index of torch's cross-entropy."""

CONFIG_NAME = "config.json"

BILSTM_MODEL_TYPE = "bert_bilstm"
"""Model type of task models with a BiLSTM, which transformers does not have: it would drop the BiLSTM's weights."""
BILSTM_PREFIX = "BertBiLSTM"
"""What replaces "Bert" in the architecture of such a model: "BertBiLSTMForSequenceClassification"."""

MODERN_PREFIX = "Modern"
"""What transformers' names of modern architectures have in front of BERT's: "ModernBertForSequenceClassification"."""

# Layers, hidden size and heads: paper section 3 (base, large), and the smaller models of google-research/bert.
PRESET_SIZES: dict[str, tuple[int, int, int]] = {
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "small": (4, 512, 8),
    "medium": (8, 512, 8),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}


@configuration
class BertConfig:
    """Architecture of a BERT model, under the names of Hugging Face's config.json."""

    architecture: ClassVar[Literal["bert", "modern"]] = "bert"
    vocab_size: PositiveInt = 30522
    """Number of WordPiece tokens."""
    hidden_size: PositiveInt = 768
    """Width of every hidden state (H)."""
    num_hidden_layers: PositiveInt = 12
    """Number of Transformer blocks (L)."""
    num_attention_heads: PositiveInt = 12
    """Number of attention heads (A); must divide `hidden_size`."""
    intermediate_size: PositiveInt = 3072
    """Width of the feed-forward layer, 4H in the paper."""
    hidden_act: Literal["gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "relu", "silu"] = "gelu"
    """`gelu` is the erf form; `gelu_new`, `gelu_pytorch_tanh` and `gelu_fast` are the tanh form that google uses."""
    hidden_dropout_prob: Share = 0.1
    """Dropout after the embeddings and after each sublayer."""
    attention_probs_dropout_prob: Share = 0.1
    """Dropout on the attention probabilities."""
    max_position_embeddings: PositiveInt = 512
    """Maximum sequence length."""
    type_vocab_size: PositiveInt = 2
    """Number of segments."""
    initializer_range: float = 0.02
    """Standard deviation of the truncated normal distribution of initial weights."""
    layer_norm_eps: float = 1e-12
    """Added to the variance in layer normalization."""
    pad_token_id: NonNegativeInt = 0
    """Id of [PAD]."""
    attention: Literal["bidirectional", "causal"] = "bidirectional"
    """`causal` lets each position see only itself and earlier ones (paper section 5.1, "LTR")."""
    head: Literal["linear", "bilstm"] = "linear"
    """`bilstm` puts a bidirectional LSTM between encoder and classifier at fine-tuning (paper section 5.1, Table 5)."""
    classifier_dropout: Share | None = None
    """Dropout before a task's classifier; None takes `hidden_dropout_prob`."""
    labels: tuple[str, ...] = ()
    """Names of a classifier's outputs in order, which determine `num_labels`; empty for two unnamed outputs."""

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_attention_heads:
            raise ConfigurationError(
                f"hidden_size: found {self.hidden_size}, which {self.num_attention_heads} attention heads do not divide"
            )
        if self.head == "bilstm" and self.hidden_size % 2:
            raise ConfigurationError(
                f"head: found 'bilstm', whose two directions cannot share a hidden_size of {self.hidden_size} equally"
            )
        if self.pad_token_id >= self.vocab_size:
            raise ConfigurationError(f"pad_token_id: found {self.pad_token_id}, expected an id below {self.vocab_size}")

    @property
    def num_labels(self) -> int:
        """Number of outputs of a task's classifier."""
        return len(self.labels) or 2

    @property
    def preset_size(self) -> str:
        """Name of the preset with these layers, width and heads; "" if there is none."""
        shape = (self.num_hidden_layers, self.hidden_size, self.num_attention_heads)
        return next((name for name, size in PRESET_SIZES.items() if size == shape), "")

    @classmethod
    def from_preset(cls, name: str, **overrides: Any) -> "BertConfig":
        """Return the configuration of a preset size; raise ConfigurationError with the nearest preset or key."""
        if name not in PRESET_SIZES:
            raise ConfigurationError(f"model.preset: unknown preset {name!r}{suggest(name, PRESET_SIZES)}")
        layers, hidden, heads = PRESET_SIZES[name]
        size = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads}
        settings = {**size, **overrides}
        return from_mapping(cls, {**cls._defaults_of_size(**settings), **settings}, where=f"model ({name})")

    @classmethod
    def _defaults_of_size(cls, *, hidden_size: int, **settings: Any) -> dict[str, Any]:
        """Return the settings of a preset that follow from others."""
        return {"intermediate_size": 4 * hidden_size}

    @classmethod
    def from_directory(cls, directory: Path | str, **overrides: Any) -> "BertConfig":
        """Read a Hugging Face `config.json`; raise InputError if it is not a BERT that this model computes."""
        return cls.from_file(Path(directory) / CONFIG_NAME, **overrides)

    @classmethod
    def from_file(cls, path: Path, **overrides: Any) -> "BertConfig":
        """Read a configuration as `from_directory`, from a file of any name."""
        document = read_document(path)
        if document.get("model_type") == ModernConfig.model_type:
            return ModernConfig.from_document(document, path, overrides)
        # Files of this project name `attention`, and `is_decoder` must agree with it; in others `is_decoder` decides.
        expected = {
            "model_type": BILSTM_MODEL_TYPE if document.get("model_type") == BILSTM_MODEL_TYPE else "bert",
            "position_embedding_type": "absolute",
            "is_decoder": document["attention"] == "causal" if "attention" in document else document.get("is_decoder"),
            "add_cross_attention": False,
        }
        for key, value in expected.items():
            if document.get(key, value) != value:
                raise InputError(f"{path}: {key} is {document[key]!r}, expected {value!r}; only BERT encoders are read")

        # Other keys are ignored: Hugging Face stores many that do not change what an encoder computes.
        names = {item.name for item in dataclasses.fields(cls)} - {"labels"}
        values = {name: document[name] for name in names if name in document}
        values["labels"] = _stored_labels(document, path)
        if document.get("is_decoder"):
            values["attention"] = "causal"  # transformers' left-to-right language models
        return from_mapping(cls, {**values, **overrides}, where=str(path))

    def to_json(self, architecture: str, *, problem_type: str = "") -> str:
        """Return the text of a Hugging Face `config.json` for a role such as "BertForPreTraining".

        `problem_type` is transformers' key for what a classifier's outputs mean: without "regression", its pipeline
        applies a sigmoid to a single output.
        """
        document = self._document(architecture) | {"dtype": "float32"}
        if problem_type:
            document["problem_type"] = problem_type
        if labels := document.pop("labels"):
            document["id2label"] = {str(index): label for index, label in enumerate(labels)}
            document["label2id"] = {label: index for index, label in enumerate(labels)}
        return json.dumps(document, indent=2, sort_keys=True) + "\n"

    def _document(self, architecture: str) -> dict[str, Any]:
        return to_mapping(self) | {
            "architectures": [architecture],
            "model_type": BILSTM_MODEL_TYPE if architecture.startswith(BILSTM_PREFIX) else "bert",
            "is_decoder": self.attention == "causal",  # transformers' name for causal attention
        }


@configuration
class ModernConfig(BertConfig):
    """Architecture of a modern encoder, transformers' ModernBert; the defaults are those of its config.json.

    A field of BERT that ModernBert has under another name keeps BERT's name here.
    """

    architecture: ClassVar[Literal["bert", "modern"]] = "modern"
    model_type: ClassVar[str] = "modernbert"
    RENAMED: ClassVar[dict[str, str]] = {
        "hidden_act": "hidden_activation",
        "hidden_dropout_prob": "mlp_dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "layer_norm_eps": "norm_eps",
    }
    """Field -> its name in transformers."""
    LACKING: ClassVar[tuple[str, ...]] = ("attention", "head", "type_vocab_size")
    """Fields of BERT that have one value here, and are not written."""

    vocab_size: PositiveInt = 50368
    num_hidden_layers: PositiveInt = 22
    intermediate_size: PositiveInt = 1152
    """Width of each half of the gated feed-forward layer (I)."""
    hidden_dropout_prob: Share = 0.0
    """Dropout after the embeddings and in each feed-forward layer."""
    attention_probs_dropout_prob: Share = 0.0
    """Dropout on the attention probabilities, and after their projection."""
    max_position_embeddings: PositiveInt = 8192
    """Maximum sequence length; no weight depends on it."""
    layer_norm_eps: float = 1e-5
    pad_token_id: NonNegativeInt = 50283
    classifier_dropout: Share | None = 0.0
    classifier_activation: Literal["gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "relu", "silu"] = "gelu"
    """Activation in the head."""
    classifier_pooling: Literal["cls", "mean"] = "cls"
    """What a classifier of texts reads: the first token, or the mean of all."""
    norm_bias: bool = False
    """Whether normalizations have biases."""
    attention_bias: bool = False
    """Whether attention's projections have biases."""
    mlp_bias: bool = False
    """Whether feed-forward layers have biases."""
    classifier_bias: bool = False
    """Whether the dense layer of the head has a bias."""
    global_attn_every_n_layers: PositiveInt = 3
    """Each of these layers, from the first, attends to the whole text; the others to a window. 1: all layers."""
    local_attention: PositiveInt = 128
    """Width of the window: half of it on each side of a token, both ends included."""
    global_rope_theta: PositiveFloat = 160_000.0
    """Base of the rotary positions of layers that attend to the whole text."""
    local_rope_theta: PositiveFloat = 10_000.0
    """Base of the rotary positions of the other layers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.LACKING:
            if getattr(self, name) != (expected := getattr(BertConfig, name)):
                raise ConfigurationError(
                    f"{name}: found {getattr(self, name)!r}, expected {expected!r} with architecture=modern"
                )
        if self.hidden_size // self.num_attention_heads % 2:
            raise ConfigurationError(
                f"num_attention_heads: found {self.num_attention_heads}, which leaves heads of "
                f"{self.hidden_size // self.num_attention_heads} numbers; rotary positions need pairs of them"
            )

    @property
    def preset_size(self) -> str:
        return (size := super().preset_size) and size_name(size, "modern")

    @classmethod
    def _defaults_of_size(cls, *, hidden_size: int, **settings: Any) -> dict[str, Any]:
        # As measured for texts of up to 512 tokens; longer ones take the published model's windows and base.
        short = {"global_attn_every_n_layers": 1, "global_rope_theta": 10_000.0}
        length = settings.get("max_position_embeddings", BertConfig.max_position_embeddings)
        return {
            "intermediate_size": -(-8 * hidden_size // 3 // 64) * 64,
            "max_position_embeddings": length,
            "pad_token_id": 0,
            **(short if length <= BertConfig.max_position_embeddings else {}),
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any], path: Path, overrides: Mapping[str, Any]) -> "ModernConfig":
        """Read transformers' config.json of either generation; InputError if it is not what this model computes."""
        for key, value in {"decoder_bias": True, "tie_word_embeddings": True, "rope_scaling": None}.items():
            if document.get(key, value) != value:
                raise InputError(f"{path}: {key} is {document[key]!r}, expected {value!r}")
        stored = {cls.RENAMED.get(item.name, item.name): item.name for item in dataclasses.fields(cls)}
        known = {key: name for key, name in stored.items() if name not in cls.LACKING}
        values = {name: document[key] for key, name in known.items() if document.get(key) is not None}
        if "pad_token_id" in document:
            values.setdefault("pad_token_id", 0)  # null: a vocabulary of any size has this id
        for kind, key in (("full_attention", "global_rope_theta"), ("sliding_attention", "local_rope_theta")):
            rope = (document.get("rope_parameters") or {}).get(kind) or {}
            if rope.get("rope_type", "default") != "default":
                raise InputError(f"{path}: the rope_type of {kind} is {rope['rope_type']!r}, expected 'default'")
            values |= {key: rope["rope_theta"]} if "rope_theta" in rope else {}
        if types := document.get("layer_types"):
            every = [n for n in range(1, len(types) + 1) if list(types) == _layer_types(n, len(types))]
            if not every:
                raise InputError(f"{path}: layer_types is {types!r}, expected a full_attention in every n-th layer")
            values["global_attn_every_n_layers"] = every[0]
        values = {name: float(value) if "theta" in name else value for name, value in values.items()}
        values["labels"] = _stored_labels(document, path)
        return from_mapping(cls, {**values, **overrides}, where=str(path))

    def _document(self, architecture: str) -> dict[str, Any]:
        values = {key: value for key, value in to_mapping(self).items() if key not in self.LACKING}
        dropout = self.classifier_dropout
        # Windows and bases are written as transformers 5 reads them, and as 4.57 does.
        kinds = {"full_attention": self.global_rope_theta, "sliding_attention": self.local_rope_theta}
        return {self.RENAMED.get(key, key): value for key, value in values.items()} | {
            "architectures": [MODERN_PREFIX + architecture],
            "model_type": self.model_type,
            "embedding_dropout": self.hidden_dropout_prob,
            "classifier_dropout": self.hidden_dropout_prob if dropout is None else dropout,
            "decoder_bias": True,
            "tie_word_embeddings": True,
            "layer_types": _layer_types(self.global_attn_every_n_layers, self.num_hidden_layers),
            "rope_parameters": {kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in kinds.items()},
            # The tokenizer's own ids count; transformers' defaults are those of another vocabulary.
            **dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")),
        }


ARCHITECTURES = {"bert": BertConfig, "modern": ModernConfig}


def size_name(preset: str, architecture: str = "bert") -> str:
    """Return what models of a preset size are named after: "base", "modern-base"."""
    return preset if architecture == "bert" else f"{architecture}-{preset}"


def _layer_types(every: int, count: int) -> list[str]:
    return ["sliding_attention" if layer % every else "full_attention" for layer in range(count)]


def _stored_labels(document: Mapping[str, Any], path: Path) -> list[Any]:
    """Return the names of a classifier's outputs in order; InputError if their order is not stated."""
    stored = document.get("id2label")
    if isinstance(stored, Mapping) and stored:
        for key in stored:
            if not (key.isascii() and key.isdecimal()):
                raise InputError(f"{path}: id2label has the key {key!r}, expected the number of an output, such as '0'")
        # JSON keys are text: sort them as numbers, so that label 10 comes after label 2.
        stored = [stored[key] for key in sorted(stored, key=int)]
    if isinstance(stored, list) and stored:
        return [str(label) if isinstance(label, int | float) else label for label in stored]
    if stored:
        raise InputError(f"{path}: id2label is {stored!r}, expected an object such as {{'0': 'no', '1': 'yes'}}")

    # Outputs that are only counted get the names that transformers gives them.
    number = document.get("num_labels")
    if number is None:
        return []
    if type(number) is not int or number < 1:
        raise InputError(f"{path}: num_labels is {number!r}, expected the number of a classifier's outputs")
    return [f"LABEL_{index}" for index in range(number)]


def read_document(path: Path) -> dict[str, Any]:
    """Return the JSON object of a `config.json`; InputError if it cannot be read."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give a model directory") from error
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON ({error}); give a Hugging Face model directory") from error
    if not isinstance(document, dict):
        raise InputError(f"{path}: a JSON {type(document).__name__}, expected an object; give a model directory")
    return document
