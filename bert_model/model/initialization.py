"""New models: random weights as in google's code, a function of the seed, or none yet."""

from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bert_model.model.bert import BertLMPredictionHead
from bert_model.model.config import BertConfig, ModernConfig
from bert_model.model.modern import IN_SHAPE

Model = TypeVar("Model", bound=nn.Module)


class WithoutInitialization(TorchFunctionMode):
    """Skip the initialization of new modules: the caller sets every weight, which would otherwise be drawn twice."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__module__", "") == "torch.nn.init":
            return (kwargs or {}).get("tensor", args[0] if args else None)
        return function(*args, **(kwargs or {}))


@torch.no_grad()
def initialize_weights(module: nn.Module, generator: torch.Generator, initializer_range: float = 0.02) -> None:
    """Initialize as google's code: normal weights truncated at two standard deviations, biases 0, scales 1."""
    # One generator in the order of modules(): a module that is added or moved changes every weight after it.
    for child in module.modules():
        if isinstance(child, nn.LayerNorm):
            child.weight.fill_(1.0)
            if child.bias is not None:
                child.bias.zero_()
        elif isinstance(child, (nn.Linear, nn.Embedding)):
            _fill_truncated_normal(child.weight, getattr(child, "initial_deviation", initializer_range), generator)
            if isinstance(child, nn.Linear) and child.bias is not None:
                child.bias.zero_()
        elif isinstance(child, BertLMPredictionHead):
            # The projection in front of this bias is the word embeddings, which are initialized as such.
            child.bias.zero_()
        elif isinstance(child, nn.LSTM):  # uniform within 1 / sqrt(hidden size), torch's default
            for parameter in child.parameters():
                parameter.uniform_(-(child.hidden_size**-0.5), child.hidden_size**-0.5, generator=generator)


def _fill_truncated_normal(weight: Tensor, deviation: float, generator: torch.Generator) -> None:
    """Redraw values beyond two deviations, as TensorFlow does; torch's inverse-CDF method is far slower."""
    weight.normal_(0.0, deviation, generator=generator)
    flat = weight.view(-1)
    while (beyond := (flat.abs() > 2 * deviation).nonzero().squeeze(1)).numel():
        flat[beyond] = torch.empty(beyond.numel()).normal_(0.0, deviation, generator=generator)


def new_model(model_class: type[Model], config: BertConfig, *, seed: int) -> Model:
    """Build a model of a class such as `BertForPreTraining` with random weights, a function of the seed only."""
    model = empty_model(model_class, config)
    initialize_weights(model, torch.Generator().manual_seed(seed), config.initializer_range)
    return model


def empty_model(model_class: type[Model], config: BertConfig) -> Model:
    """Build a model with uninitialized weights, in the shape of its configuration: the caller sets every one."""
    with WithoutInitialization():
        return in_shape(model_class, config)(config)


def in_shape(model_class: type[Model], config: BertConfig) -> type[Model]:
    """Return the class of a role, which BERT's class names, in the shape of a configuration."""
    shaped = IN_SHAPE.get(model_class, model_class) if isinstance(config, ModernConfig) else model_class
    return cast(type[Model], shaped)
