"""Where a training starts: from random weights, from another model, or from its own newest checkpoint."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from bert_model.checkpoint import OPTIMIZER_NAME, restore
from bert_model.config import INITIAL_SIZE, BertConfig, PretrainingConfig
from bert_model.distributed import Group
from bert_model.modeling import BertForPreTraining, new_model
from bert_model.optimizer import build_optimizer, load_optimizer_tensors
from bert_model.weights import load_model
from bert_pipeline.errors import ConfigurationError
from bert_pipeline.tokenization import Tokenizer


def build(
    config: PretrainingConfig, checkpoint: Path | None, tokenizer: Tokenizer, group: Group
) -> tuple[BertForPreTraining, torch.optim.Optimizer, int, dict[str, Any], str]:
    """Make model and optimizer and say in one line where their values come from."""
    model, origin, initial = _initial_model(config, tokenizer)
    longest = max(phase.max_seq_length for phase in config.phases)
    if longest > model.config.max_position_embeddings:
        raise ConfigurationError(
            f"phases: found max_seq_length {longest}, but the model has only "
            f"{model.config.max_position_embeddings} positions"
        )
    if config.objective == "mlm":
        for name, parameter in model.named_parameters():
            if name.startswith(("bert.pooler.", "cls.seq_relationship.")):
                parameter.requires_grad_(False)
    model.to(group.device)
    optimizer = build_optimizer(model, config.optimizer, config.phases[0].learning_rate)
    if initial is not None and config.initial_optimizer == "restored":
        load_optimizer_tensors(model, optimizer, load_file(initial / OPTIMIZER_NAME))
    step, state = 0, {}
    if checkpoint is not None:
        state = restore(checkpoint, model, optimizer)
        step = state["step"]
        origin = f"resuming from {checkpoint} at step {step:,} of {config.total_steps:,}"
    group.broadcast(parameter.data for parameter in model.parameters())
    return model, optimizer, step, state, origin


def _initial_model(config: PretrainingConfig, tokenizer: Tokenizer) -> tuple[BertForPreTraining, str, Path | None]:
    if not config.initial_model:
        model_config = config.model.resolve(vocab_size=tokenizer.vocab_size)
        _check_vocabulary_fits(model_config, tokenizer)
        origin = f"starting a {config.model.preset} model from random weights (seed {config.seed})"
        return new_model(BertForPreTraining, model_config, seed=config.seed), origin, None
    directory = Path(config.initial_model)
    its_tokenizer = Tokenizer.from_directory(directory)
    if its_tokenizer.sha256 != tokenizer.sha256:
        raise ConfigurationError(
            f"initial_model: {describe_difference(str(directory), its_tokenizer, 'the data', tokenizer)}"
        )
    overrides = {key: value for key, value in config.model.overrides.items() if key != "vocab_size"}
    if config.model.preset != INITIAL_SIZE:
        _check_size(config, BertConfig.from_directory(directory, **overrides), directory)
    model, report = load_model(BertForPreTraining, directory, seed=config.seed, **overrides)
    state = "its own" if config.initial_optimizer == "restored" else "fresh"
    return model, f"continuing from {config.initial_model} with {state} optimizer state: {report}", directory


def _check_size(config: PretrainingConfig, stored: BertConfig, directory: Path) -> None:
    """ConfigurationError when a preset was named that is not the size of the initial model."""
    wanted = config.model.resolve(vocab_size=stored.vocab_size)
    for key in ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size"):
        if getattr(wanted, key) != getattr(stored, key):
            raise ConfigurationError(
                f"model: {key} is {getattr(wanted, key)} by the preset {config.model.preset!r}, but "
                f"{getattr(stored, key)} in {directory}; set model.preset to {INITIAL_SIZE!r}"
            )


def _check_vocabulary_fits(config: BertConfig, tokenizer: Tokenizer) -> None:
    if config.vocab_size < tokenizer.vocab_size:
        raise ConfigurationError(
            f"model.overrides.vocab_size: found {config.vocab_size}, but the data's vocabulary has "
            f"{tokenizer.vocab_size} tokens"
        )


def describe_difference(one: str, tokenizer: Tokenizer, other: str, its_tokenizer: Tokenizer) -> str:
    """Say in which way two vocabularies that must be the same are not."""
    return f"two vocabularies: {one} has {tokenizer}, {other} has {its_tokenizer}; use one vocabulary throughout"
