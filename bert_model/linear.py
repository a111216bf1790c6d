"""Linear layers; on a CPU, products in float32 run on oneDNN.

torch multiplies float32 matrices on a CPU with MKL, which leaves the 512-bit instructions of processors from other
makers idle: on a Zen 5 core it gives 96 GFLOP/s and oneDNN, which torch brings along, 210 (docs/decisions/). The
sums are float32 sums either way.

Shapes: N rows, I inputs, O outputs of a layer.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
"""Whether this torch was built with the kernel that its own compiler calls for a linear layer on a CPU."""

TURNING_COST = 4
"""What adding a transposed gradient costs for each number, beside copying a number of a factor: measured."""


def linear(hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return hidden (..., I) times weight (O, I) transposed, plus bias (O): (..., O)."""
    if not uses_onednn(hidden):
        return functional.linear(hidden, weight, bias)
    rows = hidden.reshape(-1, hidden.shape[-1]).contiguous()  # (N, I); rows at a distance take a far slower kernel
    if torch.is_grad_enabled():
        product = _Linear.apply(rows, weight, bias)
    else:
        product = times_transposed(rows, weight, bias)
    return product.view(*hidden.shape[:-1], weight.shape[0])


def uses_onednn(hidden: Tensor) -> bool:
    """Tell whether the products of a tensor go to oneDNN: float32 on a CPU, not under autocast, not compiled."""
    return (
        HAS_ONEDNN
        and hidden.device.type == "cpu"
        and hidden.dtype == torch.float32
        and hidden.numel() > 0
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


def times_transposed(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return left (N, I) times right (O, I) transposed, plus bias: (N, O), by oneDNN and without a gradient."""
    return torch.ops.mkldnn._linear_pointwise(left, right, bias, "none", [], "")


def transposed_times(left: Tensor, right: Tensor) -> Tensor:
    """Return left (N, O) transposed times right (N, I): (O, I), the gradient of a weight.

    The kernel first turns its left factor around. Where the result is small beside the factors it is cheaper to turn
    the narrower factor, and the result afterwards.
    """
    num_rows, outputs, inputs = left.shape[0], left.shape[1], right.shape[1]
    if num_rows * outputs > num_rows * inputs + TURNING_COST * outputs * inputs:
        return times_transposed(right.t(), left.t()).t()
    return times_transposed(left.t(), right.t())


class Linear(nn.Linear):
    """torch's linear layer, computed by `linear`."""

    def forward(self, hidden: Tensor) -> Tensor:
        return linear(hidden, self.weight, self.bias)


class _Linear(torch.autograd.Function):
    """`times_transposed` with its gradients."""

    @staticmethod
    def forward(context: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        context.save_for_backward(rows, weight)
        return times_transposed(rows, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        rows, weight = context.saved_tensors
        gradient = gradient.contiguous()  # a sum's gradient is one number with strides of 0
        wants_rows, wants_weight, wants_bias = context.needs_input_grad
        return (
            times_transposed(gradient, weight.t()) if wants_rows else None,  # (N, I)
            transposed_times(gradient, rows) if wants_weight else None,  # (O, I)
            gradient.sum(0) if wants_bias else None,  # (O,)
        )
