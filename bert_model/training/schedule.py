"""Configuration of the optimizer and the learning-rate schedule; importable without torch."""

from typing import Literal

from pydantic import NonNegativeFloat, PositiveFloat

from bert_pipeline.configuration import Share, configuration


@configuration
class OptimizerConfig:
    """The optimizer; the defaults are those of the paper (appendix A.2) and google's optimization.py."""

    name: Literal["bert_adam", "adamw"] = "bert_adam"
    """`bert_adam` is Adam without bias correction, `adamw` has it."""
    beta1: Share = 0.9
    """Decay of the running mean of gradients."""
    beta2: Share = 0.999
    """Decay of the running mean of squared gradients."""
    epsilon: PositiveFloat = 1e-6
    """Added to the square root of the second moment."""
    weight_decay: NonNegativeFloat = 0.01
    """Decoupled weight decay of everything but biases and layer normalization."""
    max_gradient_norm: NonNegativeFloat = 1.0
    """Gradients are scaled down to this global norm; 0 disables clipping."""


def learning_rate_at(step: int, *, peak: float, total_steps: int, warmup_steps: int) -> float:
    """Return the learning rate of the update after `step` finished ones: linear warm-up, then linear decay to 0.

    As in google's optimization.py the decay starts at step 0, so at the end of the warm-up the rate drops by the factor
    1 - warmup_steps / total_steps.
    """
    if step < warmup_steps:
        return peak * step / warmup_steps
    return peak * max(0.0, 1.0 - step / total_steps)


def trapezoid_at(step: int, *, peak: float, warmup_steps: int, decay_start: int, end: int) -> float:
    """Return the learning rate of the update after `step` finished ones: linear warm-up, `peak`, linear decay to 0.

    The decay is that of the steps from `decay_start` to `end`, whatever came before. Source: Hägele et al. (2024),
    "Scaling laws and compute-optimal training beyond fixed training durations"; Hu et al. (2024), MiniCPM
    (warmup-stable-decay).
    """
    warmup = min(1.0, step / warmup_steps) if warmup_steps else 1.0
    decay = (end - step) / (end - decay_start) if step > decay_start else 1.0
    return peak * warmup * max(0.0, decay)
