"""CPU kernels: float32 matrix products by MKL or oneDNN, fast cross-entropy and dropout, and thread limits.

torch multiplies float32 matrices with MKL, which uses half of the vector units of some processors; oneDNN, which torch
ships for convolutions, uses all of them but is slower on others, and for narrow layers. `onednn_width` is a rule of
processor and width (docs/decisions/0008-products-on-onednn.md), which the environment variable BERT_ONEDNN overrides.

Shapes: N rows, I inputs, O outputs of a layer, V vocabulary.
"""

import contextlib
import functools
import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from bert_model.model.config import IGNORED_LABEL
from bert_pipeline.errors import ConfigurationError

ONEDNN_VARIABLE = "BERT_ONEDNN"
"""Environment variable: 1 computes all layers with oneDNN, 0 none."""
TRANSPOSITION_COST = 4
"""Cost of adding a transposed gradient, per number, relative to copying one number of a factor (measured)."""
CROSS_ENTROPY_ROWS = 32
"""Of a vocabulary of 8,192 to 32,768 tokens these are 1 to 4 MB of float32."""


@contextlib.contextmanager
def limited_threads(num_threads: int | None) -> Iterator[None]:
    """Compute on `num_threads` CPU threads within the block; None leaves the number unchanged."""
    threads_before = torch.get_num_threads()
    torch.set_num_threads(num_threads or threads_before)
    try:
        yield
    finally:
        torch.set_num_threads(threads_before)


@functools.cache
def onednn_width() -> int | None:
    """Return the minimum width of the layers that oneDNN computes on this processor; None if it computes none.

    ConfigurationError for another value of BERT_ONEDNN than 0 and 1.
    """
    forced = os.environ.get(ONEDNN_VARIABLE, "")
    if forced not in ("", "0", "1"):
        raise ConfigurationError(f"{ONEDNN_VARIABLE}: found {forced!r}, expected 0, 1 or nothing")
    if forced == "0" or not torch.backends.mkldnn.is_available():
        return None
    if forced == "1":
        return 1
    # MKL leaves units of AMD's processors unused: of Zen 5 half, so that every layer but a classifier gains; of those
    # before it with AVX-512 so few that only wide layers gain a tenth.
    if _cpu_info("vendor_id") != "AuthenticAMD" or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return None
    return 64 if int(_cpu_info("cpu family")) >= ZEN5_FAMILY else 768


ZEN5_FAMILY = 26


def processor() -> str:
    """Return the processor's name and the instruction set that torch uses: equal names give equal sums."""
    name = _cpu_info("model name") or platform.processor() or platform.machine()
    return f"{name} ({torch.backends.cpu.get_cpu_capability()})"


def _cpu_info(key: str) -> str:
    """Return what Linux knows of the processor; "" elsewhere."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.partition(":")[0].strip() == key:
                return line.partition(":")[2].strip()
    return ""


def linear(hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return hidden (..., I) times weight (O, I) transposed, plus bias (O): (..., O)."""
    width = None if torch.compiler.is_compiling() else onednn_width()
    if (
        width is not None
        and min(weight.shape) >= width
        and hidden.device.type == "cpu"
        and hidden.dtype == torch.float32
        and hidden.numel() > 0
        and not torch.is_autocast_enabled("cpu")
    ):
        return _onednn_linear(hidden, weight, bias)
    return functional.linear(hidden, weight, bias)


class Linear(nn.Linear):
    """`nn.Linear` computed by `linear`."""

    def forward(self, hidden: Tensor) -> Tensor:
        return linear(hidden, self.weight, self.bias)


def _onednn_linear(hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    rows = hidden.reshape(-1, hidden.shape[-1]).contiguous()  # (N, I); strided rows take a far slower kernel
    product = _differentiable_linear(rows, weight, bias)  # (N, O)
    return product.view(*hidden.shape[:-1], weight.shape[0])  # (..., O)


class _OnednnLinear(torch.autograd.Function):
    """oneDNN's linear layer with its gradients."""

    @staticmethod
    def forward(context: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        context.save_for_backward(rows, weight)
        return _matmul_nt(rows, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        rows, weight = context.saved_tensors
        gradient = gradient.contiguous()  # the gradient of a sum is one number with strides of 0
        needs_rows, needs_weight, needs_bias = context.needs_input_grad
        return (
            _matmul_nt(gradient, weight.t()) if needs_rows else None,  # (N, I)
            _matmul_tn(gradient, rows) if needs_weight else None,  # (O, I)
            gradient.sum(0) if needs_bias else None,  # (O,)
        )


_differentiable_linear: Callable[..., Tensor] = _OnednnLinear.apply


def _matmul_nt(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return left (N, I) times right (O, I) transposed, plus bias (O): (N, O), by the kernel of torch's compiler."""
    return torch.ops.mkldnn._linear_pointwise(left, right, bias, "none", [], "")


def _matmul_tn(left: Tensor, right: Tensor) -> Tensor:
    """Return left (N, O) transposed times right (N, I): (O, I), the gradient of a weight.

    The kernel copies its left factor to transpose it. If the result is small compared with the factors, it is cheaper
    to have the narrower factor copied and to transpose the result.
    """
    num_rows, outputs, inputs = left.shape[0], left.shape[1], right.shape[1]
    if num_rows * outputs > num_rows * inputs + TRANSPOSITION_COST * outputs * inputs:
        return _matmul_nt(right.t(), left.t()).t()
    return _matmul_nt(left.t(), right.t())


class _CrossEntropy(torch.autograd.Function):
    """Cross-entropy of logits (N, V) in float32, a few rows at a time, which stay in the processor's cache.

    torch's own operations write five arrays of (N, V) numbers.
    """

    @staticmethod
    def forward(context: Any, logits: Tensor, labels: Tensor) -> Tensor:
        ignored = (labels == IGNORED_LABEL).unsqueeze(1)  # (N, 1)
        labels, sums = labels.unsqueeze(1).clamp(min=0), []
        for rows in logits.split(CROSS_ENTROPY_ROWS):
            numbers = rows.float()
            # The logarithm of the sum of exponentials, from the largest probability: unlike the label's it is never 0.
            sums.append(numbers.amax(-1, keepdim=True) - numbers.softmax(-1).amax(-1, keepdim=True).log())
        context.save_for_backward(logits, labels, ignored)
        return (torch.cat(sums) - logits.gather(1, labels)).masked_fill_(ignored, 0.0).sum()

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        logits, labels, ignored = context.saved_tensors
        result = torch.empty_like(logits)
        tensors = (logits, labels, ignored, result)
        for rows, label, is_ignored, part in zip(*(tensor.split(CROSS_ENTROPY_ROWS) for tensor in tensors)):
            probabilities = rows.float().softmax(-1)
            probabilities.scatter_add_(1, label, probabilities.new_full(label.shape, -1.0))
            part.copy_(probabilities.mul_(gradient).masked_fill_(is_ignored, 0.0))
        return result, None


def summed_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the summed cross-entropy of logits (N, V) and labels (N,), a scalar in float32; -100 is ignored."""
    if logits.device.type != "cpu" or torch.compiler.is_compiling():
        return functional.cross_entropy(logits.float(), labels, reduction="sum")
    return _differentiable_cross_entropy(logits, labels)


_differentiable_cross_entropy: Callable[..., Tensor] = _CrossEntropy.apply


def fast_dropout(hidden: Tensor, probability: float, training: bool) -> Tensor:
    """Apply dropout while training, with 16 random bits per value on a CPU.

    torch's CPU dropout draws one number after another and takes a tenth of a small model's step. 16 bits round the
    probability to a multiple of 1/65536.
    """
    if not training or probability == 0.0:
        return hidden
    if hidden.device.type != "cpu" or torch.compiler.is_compiling():
        return functional.dropout(hidden, probability)
    count = hidden.numel()
    words = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)  # 64 bits for 4 values each
    threshold = round(probability * 65536) - 32768  # in the range of int16
    kept = (words.view(torch.int16)[:count] >= threshold).view(hidden.shape)
    return hidden * kept.to(hidden.dtype).mul_(1.0 / (1.0 - probability))


class Dropout(nn.Module):
    """`nn.Dropout` computed by `fast_dropout`."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, hidden: Tensor) -> Tensor:
        return fast_dropout(hidden, self.probability, self.training)
