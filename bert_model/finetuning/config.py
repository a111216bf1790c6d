"""Configuration of fine-tuning."""

import dataclasses
import math
from typing import Any, Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from bert_model.kinds import kind_of
from bert_model.kinds.base import EncodingConfig
from bert_pipeline.configuration import Seed, Share, configuration, from_mapping
from bert_pipeline.errors import ConfigurationError
from bert_pipeline.tasks.catalogue import TASKS, Task

FeatureInput = Literal[
    "embeddings", "second_to_last", "last", "weighted_sum_last_four", "concat_last_four", "weighted_sum_all"
]


@configuration
class FinetuningConfig(EncodingConfig):
    """Everything that decides what a fine-tuning computes. Defaults are those of the paper's GLUE runs (4.1, A.3)."""

    learning_rates: tuple[PositiveFloat, ...] = (5e-5, 4e-5, 3e-5, 2e-5)
    """Learning rates of the grid."""
    batch_sizes: tuple[PositiveInt, ...] = (32,)
    """Batch sizes of the grid."""
    epochs: tuple[PositiveFloat, ...] = (3.0,)
    """Numbers of epochs of the grid. Without any it is 3, or as many as make 300 steps of a small training set."""
    seeds: tuple[Seed, ...] = (1, 2, 3)
    """Restarts: the seed decides the head's first weights, the order of the data and dropout."""
    search: Literal["grid", "first_seed"] = "grid"
    """`grid` trains every setting with every seed and chooses by the mean; `first_seed` chooses the setting with the
    first seed and trains only the chosen one with the others. Both are searched in the same way."""
    compare_random: bool = False
    """Whether random weights are fine-tuned beside the given ones: same examples, steps and search."""
    random_step_multiple: NonNegativeInt = 4
    """With `compare_random`, random weights are also trained for so many times the steps, at the setting chosen for
    random weights; 0 leaves that out."""
    gradient_accumulation: PositiveInt = 1
    """Micro-batches to a batch."""
    optimizer: Literal["bert_adam", "adamw"] = "bert_adam"
    """`bert_adam` is the paper's Adam without bias correction; `adamw` corrects, which steadies small training sets
    (Zhang et al. 2021, arXiv 2006.05987)."""
    warmup_share: Share = 0.1
    """Share of the steps in which the learning rate rises (A.3)."""
    weight_decay: NonNegativeFloat = 0.01
    """Decoupled weight decay."""
    max_gradient_norm: NonNegativeFloat = 1.0
    """Gradients are scaled down to this global norm."""
    classifier_dropout: Share = 0.1
    """Dropout before the task's head."""
    hidden_dropout: Share | None = None
    """Dropout within the encoder; what the model was trained with where not given."""
    head: Literal["linear", "bilstm"] = "linear"
    """`bilstm` puts a BiLSTM of random weights between the encoder and the task's classifier (paper, Table 5)."""
    precision: Literal["auto", "float32", "bfloat16"] = "float32"
    """`bfloat16` computes under autocast, weights and optimizer state stay in float32; `auto` does so where the device
    has instructions for it."""
    select: Literal["best", "last"] = "best"
    """`best` keeps the weights of the epoch with the best score on dev, the later one of equals; `last` those of the
    last, as in the paper."""
    patience: NonNegativeInt = 0
    """Epochs without a better score on dev after which a training ends; 0 trains them all."""
    document_context: bool = False
    """Whether a tagger's rows of training are filled with the neighboring sentences of their documents (paper, 5.3),
    where the files separate documents. By default a row has one sentence."""
    feature_inputs: tuple[FeatureInput, ...] = ("concat_last_four",)
    """What a feature-based tagger reads from the frozen encoder (paper, Table 7); of several the best is kept, and
    each is reported."""
    lstm_hidden_size: PositiveInt = 768
    """Width of each direction of the feature-based tagger's BiLSTM (paper, 5.3)."""
    lstm_learning_rates: tuple[PositiveFloat, ...] = (1e-3,)
    """Learning rates of the grid for a feature-based tagger, whose BiLSTM always starts from random weights."""
    threads: NonNegativeInt = 0
    """CPU threads of each training, on which its sums depend; 0 divides the cores by the trainings that run at once.
    The number is recorded, and kept when a search is resumed or extended."""
    keep: Literal["best", "all"] = "best"
    """`all` also publishes the model of every seed of the chosen setting, in `seeds/`, for ensembles."""

    def __post_init__(self) -> None:
        for key in ("learning_rates", "batch_sizes", "epochs", "seeds", "lstm_learning_rates", "feature_inputs"):
            values = getattr(self, key)
            if not (values or key == "epochs") or len(set(values)) < len(values):
                raise ConfigurationError(f"{key}: found {list(values)}, expected one or more different values")
        if self.window_pooling != "mean" and not self.stride:
            raise ConfigurationError("window_pooling: found max without windows; give a stride as well")
        for size in self.batch_sizes:
            if size % self.gradient_accumulation:
                raise ConfigurationError(
                    f"gradient_accumulation: found {self.gradient_accumulation}, expected a divisor of the batch size "
                    f"{size}"
                )


GRID_KEYS = (
    "learning_rates",
    "lstm_learning_rates",
    "batch_sizes",
    "epochs",
    "seeds",
    "feature_inputs",
    "search",
    "compare_random",
    "random_step_multiple",
    "keep",
)
"""Keys that decide which trials are run and what is kept of them, not what a trial computes."""


EPOCHS = 3
SMALL_SET_STEPS = 300
"""Optimizer steps that a small training set is read for, where the configuration leaves the epochs to its size."""


def with_epochs(config: FinetuningConfig, num_examples: int) -> FinetuningConfig:
    """Return a configuration without epochs with those for a training set of so many examples."""
    if config.epochs:
        return config
    steps_per_epoch = math.ceil(num_examples / max(config.batch_sizes))
    epochs = max(EPOCHS, math.ceil(SMALL_SET_STEPS / steps_per_epoch))
    return dataclasses.replace(config, epochs=(float(epochs),))


PAPER_SETTINGS: dict[str, dict[str, Any]] = {
    "squad1": {"max_seq_length": 384, "learning_rates": [5e-5]},
    "squad2": {"max_seq_length": 384, "learning_rates": [5e-5], "batch_sizes": [48], "epochs": [2.0]},
    "swag": {"learning_rates": [2e-5], "batch_sizes": [16]},
    "ner": {"batch_sizes": [16], "epochs": [], "seeds": [1, 2, 3, 4, 5]},
    "ner_features": {"seeds": [1, 2, 3, 4, 5], "epochs": [20.0]},
}
"""Where a task's settings differ from the GLUE runs' (paper, 4.2 to 4.4 and 5.3). A tagger's rows are sentences, as its
input is; the paper's document context is a setting of the paper's presets."""


def task_configuration(task: str | Task, settings: dict[str, Any] | None = None) -> FinetuningConfig:
    """Return the configuration of a task, or by name of one of TASKS: the paper's settings, overridden by `settings`.

    A task of one's own has those of SQuAD if it answers with spans, and of CoNLL-2003 if it tags.
    """
    definition = TASKS.get(task) if isinstance(task, str) else task
    name = str(task) if isinstance(task, str) else task.name
    merged = {**PAPER_SETTINGS.get(kind_of(definition).paper_task if definition else name, {}), **(settings or {})}
    return from_mapping(FinetuningConfig, merged, where=f"finetuning ({name})")
