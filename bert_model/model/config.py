"""Configuration of a BERT model: preset sizes, and Hugging Face's config.json."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveInt

from bert_pipeline.configuration import Share, configuration, from_mapping, to_mapping
from bert_pipeline.errors import ConfigurationError, InputError, suggest

IGNORED_LABEL = -100
"""Label of positions without one; the default ignore_index of torch's cross-entropy."""

CONFIG_NAME = "config.json"

BILSTM_MODEL_TYPE = "bert_bilstm"
"""Model type of task models with a BiLSTM, which transformers does not have: it would drop the BiLSTM's weights."""
BILSTM_PREFIX = "BertBiLSTM"
"""What replaces "Bert" in the architecture of such a model: "BertBiLSTMForSequenceClassification"."""

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
        size = {
            "num_hidden_layers": layers,
            "hidden_size": hidden,
            "num_attention_heads": heads,
            "intermediate_size": 4 * overrides.get("hidden_size", hidden),
        }
        return from_mapping(cls, {**size, **overrides}, where=f"model ({name})")

    @classmethod
    def from_directory(cls, directory: Path | str, **overrides: Any) -> "BertConfig":
        """Read a Hugging Face `config.json`; raise InputError if it is not a BERT that this model computes."""
        return cls.from_file(Path(directory) / CONFIG_NAME, **overrides)

    @classmethod
    def from_file(cls, path: Path, **overrides: Any) -> "BertConfig":
        """Read a configuration as `from_directory`, from a file of any name."""
        document = read_document(path)
        _refuse_other_models(document, path)

        # Other keys are ignored: Hugging Face stores many that do not change what an encoder computes.
        names = {item.name for item in dataclasses.fields(cls)} - {"labels"}
        values = {name: document[name] for name in names if name in document}
        values["labels"] = _stored_labels(document, path)
        if document.get("is_decoder"):
            values["attention"] = "causal"  # transformers' left-to-right language models
        return from_mapping(cls, {**values, **overrides}, where=str(path))

    def to_json(self, architecture: str, *, problem_type: str = "") -> str:
        """Return the text of a Hugging Face `config.json` for a model class such as "BertForPreTraining".

        `problem_type` is transformers' key for what a classifier's outputs mean: without "regression", its pipeline
        applies a sigmoid to a single output.
        """
        document = to_mapping(self)
        labels = document.pop("labels")
        model_type = BILSTM_MODEL_TYPE if architecture.startswith(BILSTM_PREFIX) else "bert"
        document |= {"architectures": [architecture], "model_type": model_type, "dtype": "float32"}
        if problem_type:
            document["problem_type"] = problem_type
        document["is_decoder"] = self.attention == "causal"  # transformers' name for causal attention
        if labels:
            document["id2label"] = {str(index): label for index, label in enumerate(labels)}
            document["label2id"] = {label: index for index, label in enumerate(labels)}
        return json.dumps(document, indent=2, sort_keys=True) + "\n"


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


def stored_architectures(document: Mapping[str, Any]) -> list[str]:
    """Return the architectures that a config.json names; those with a BiLSTM without the prefix that tells so."""
    return [name.replace(BILSTM_PREFIX, "Bert", 1) for name in document.get("architectures") or []]


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


def _refuse_other_models(document: Mapping[str, Any], path: Path) -> None:
    """Raise InputError if a setting changes what a model computes and is not supported here."""
    # Files of this project name `attention`, and `is_decoder` must agree with it; in other files `is_decoder` decides.
    expected = {
        "model_type": BILSTM_MODEL_TYPE if document.get("model_type") == BILSTM_MODEL_TYPE else "bert",
        "position_embedding_type": "absolute",
        "is_decoder": document["attention"] == "causal" if "attention" in document else document.get("is_decoder"),
        "add_cross_attention": False,
    }
    for key, value in expected.items():
        if document.get(key, value) != value:
            raise InputError(f"{path}: {key} is {document[key]!r}, expected {value!r}; only BERT encoders are read")
