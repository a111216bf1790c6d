"""Model-FLOP utilization: the operations that a step needs, against the rate at which this device multiplies matrices.

A multiplication and an addition are two operations. Only the matrix products of real tokens count, and of these only
those whose results are read: the last block at masked and first positions, the vocabulary projection at masked ones.
"""

import time
from dataclasses import dataclass

import torch

from bert_model.config import BertConfig
from bert_model.cpu_kernels import cpu_settings, linear, onednn_shapes


@dataclass(frozen=True, kw_only=True)
class StepCounts:
    """What some steps have computed on, summed over their instances."""

    instances: float
    tokens: float
    """Real tokens."""
    squared_lengths: float
    """Sum of each instance's tokens squared: attention grows with it."""
    predictions: float


def training_flops(config: BertConfig, counts: StepCounts) -> float:
    """Return the operations of forward and backward passes; a backward pass needs twice those of the forward one."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queried = counts.predictions + counts.instances  # positions that are read after the last block
    attended = counts.squared_lengths * queried / max(counts.tokens, 1.0)  # keys that these positions see
    per_query = 4 * hidden**2 + 4 * hidden * inner  # query and output projections, feed-forward
    keys_and_values = 4 * hidden**2 * counts.tokens
    block = per_query * counts.tokens + keys_and_values + 4 * hidden * counts.squared_lengths
    last = per_query * queried + keys_and_values + 4 * hidden * attended
    heads = 2 * hidden * (hidden + config.vocab_size) * counts.predictions + 2 * hidden**2 * counts.instances
    return 3.0 * ((config.num_hidden_layers - 1) * block + last + heads)


def matrix_product_rate(device: torch.device, precision: str) -> float:
    """Measure a device's floating-point operations a second in large matrix products, as our layers compute them."""
    size = 8192 if device.type == "cuda" else 1024
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    left, right = (torch.randn(size, size, device=device, generator=_generator(device)).to(dtype) for _ in range(2))
    best = 0.0
    with torch.no_grad(), cpu_settings(onednn=[(size, size)] if onednn_shapes() else []):
        for _ in range(4):
            started = time.perf_counter()
            linear(left, right)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            best = max(best, 2 * size**3 / (time.perf_counter() - started))
    return best


def _generator(device: torch.device) -> torch.Generator:
    """Draw apart from torch's own generators, which dropout is keyed on."""
    return torch.Generator(device).manual_seed(0)
