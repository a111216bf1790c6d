"""Kernels on a CPU: float32 matrix products by torch's library or by oneDNN, and dropout with a faster draw.

torch multiplies float32 matrices with MKL, which leaves half of some processors' vector units idle; oneDNN, which torch
ships for convolutions, does not, but is slower elsewhere. So each weight shape of a model is timed with both at start
(`onednn_choice`), and all run on oneDNN where that is clearly faster (docs/decisions/0008-products-on-onednn.md).

Shapes: N rows, I inputs, O outputs of a layer.
"""

import contextlib
import functools
import platform
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from bert_model.model.config import BertConfig

Shape = tuple[int, int]
"""(O, I) of a weight."""

HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
"""Whether this torch was built with the kernel that its own compiler calls for a linear layer on a CPU."""

MIN_SAVING = 0.1
"""Share of a model's products that oneDNN must save: a choice must not hang on noise."""
PROBE_SECONDS = 0.02
"""Time in which a shape is tried; the large ones of base take up to three times as long."""
PROBE_OUTPUTS = 4096
"""Most outputs of a trial: a vocabulary is tried by a part of it, which both libraries compute at the same rate."""
TRANSPOSITION_COST = 4
"""Cost of adding a transposed gradient, per number, relative to copying one number of a factor: measured."""

_onednn_shapes: frozenset[Shape] = frozenset()


@contextlib.contextmanager
def cpu_settings(*, onednn: Iterable[Iterable[int]], num_threads: int | None = None) -> Iterator[None]:
    """Within the block compute layers of these weight shapes by oneDNN, on `num_threads` threads where given."""
    global _onednn_shapes
    before, threads_before = _onednn_shapes, torch.get_num_threads()
    _onednn_shapes = frozenset((int(outputs), int(inputs)) for outputs, inputs in onednn if HAS_ONEDNN)
    torch.set_num_threads(num_threads or threads_before)
    try:
        yield
    finally:
        _onednn_shapes = before
        torch.set_num_threads(threads_before)


def onednn_shapes() -> list[list[int]]:
    """Return the weight shapes that oneDNN computes at present, as JSON has them."""
    return [list(shape) for shape in sorted(_onednn_shapes)]


def onednn_choice(config: BertConfig, *, device: torch.device | str = "cpu") -> tuple[Shape, ...]:
    """Time a model's weight shapes on this machine; return them for oneDNN, none where it saves less than a tenth.

    Each size of model is timed once in a process; on a GPU there is nothing to choose.
    """
    if torch.device(device).type != "cpu" or not HAS_ONEDNN:
        return ()
    return _choose(config.num_hidden_layers, config.hidden_size, config.intermediate_size, config.vocab_size)


def processor() -> str:
    """Name this machine's processor and the instructions that torch uses: equal names give equal sums."""
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    return f"{name} ({torch.backends.cpu.get_cpu_capability()})"


@functools.cache
def _choose(layers: int, hidden: int, inner: int, vocab: int) -> tuple[Shape, ...]:
    tokens = 1024 if hidden <= 256 else 64
    products = {  # shape -> rows of a trial, products a token: 15 % of all tokens are predicted
        (hidden, hidden): (tokens, 4.0 * layers),
        (inner, hidden): (tokens, 1.0 * layers),
        (hidden, inner): (tokens, 1.0 * layers),
        (vocab, hidden): (40, 0.15),
    }
    by_torch = by_onednn = 0.0
    with cpu_settings(onednn=(), num_threads=1), torch.inference_mode(False), torch.enable_grad():
        for shape, (rows, count) in products.items():
            tried = (min(shape[0], PROBE_OUTPUTS), shape[1])
            weight = count / rows * shape[0] / tried[0]
            seconds = _seconds(tried, rows)
            by_torch += weight * seconds[0]
            by_onednn += weight * seconds[1]
    # All or none: a shape that gains next to nothing would be chosen in one run and not in the next.
    return tuple(sorted(products)) if by_onednn <= (1 - MIN_SAVING) * by_torch else ()


def _seconds(shape: Shape, rows: int) -> tuple[float, float]:
    """Time one layer's forward and backward products, by turns; return the least of torch and of oneDNN.

    This thread's processor time counts, and the least of it, so that another program on the machine does not decide.
    """
    weight = torch.full(shape, 0.5, requires_grad=True)  # no random numbers: dropout is keyed on torch's generator
    hidden = torch.full((rows, shape[1]), 0.5, requires_grad=True)
    gradient = torch.full((rows, shape[0]), 0.5)

    def seconds(function: Callable[[Tensor, Tensor], Tensor]) -> float:
        started = time.thread_time()
        torch.autograd.grad(function(hidden, weight), (hidden, weight), gradient)  # on a CPU in this very thread
        return time.thread_time() - started

    seconds(functional.linear), seconds(_onednn_linear)  # the first call of each sets up its library
    turns: list[tuple[float, float]] = []
    ends = time.thread_time() + PROBE_SECONDS
    while len(turns) < 3 or time.thread_time() < ends:
        turns.append((seconds(functional.linear), seconds(_onednn_linear)))
    by_torch, by_onednn = zip(*turns)
    return min(by_torch), min(by_onednn)


def linear(hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return hidden (..., I) times weight (O, I) transposed, plus bias (O): (..., O)."""
    if not _uses_onednn(hidden, weight):
        return functional.linear(hidden, weight, bias)
    return _onednn_linear(hidden, weight, bias)


class Linear(nn.Linear):
    """torch's linear layer, computed by `linear`."""

    def forward(self, hidden: Tensor) -> Tensor:
        return linear(hidden, self.weight, self.bias)


def _uses_onednn(hidden: Tensor, weight: Tensor) -> bool:
    return (
        bool(_onednn_shapes)
        and not torch.compiler.is_compiling()
        and tuple(weight.shape) in _onednn_shapes
        and hidden.device.type == "cpu"
        and hidden.dtype == torch.float32
        and hidden.numel() > 0
        and not torch.is_autocast_enabled("cpu")
    )


def _onednn_linear(hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    rows = hidden.reshape(-1, hidden.shape[-1]).contiguous()  # (N, I); rows at a distance take a far slower kernel
    product = _OnednnLinear.apply(rows, weight, bias) if torch.is_grad_enabled() else _matmul_nt(rows, weight, bias)
    return product.view(*hidden.shape[:-1], weight.shape[0])


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
        gradient = gradient.contiguous()  # a sum's gradient is one number with strides of 0
        needs_rows, needs_weight, needs_bias = context.needs_input_grad
        return (
            _matmul_nt(gradient, weight.t()) if needs_rows else None,  # (N, I)
            _matmul_tn(gradient, rows) if needs_weight else None,  # (O, I)
            gradient.sum(0) if needs_bias else None,  # (O,)
        )


def _matmul_nt(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return left (N, I) times right (O, I) transposed, plus bias: (N, O).

    The one call of torch's private kernel; without it (`HAS_ONEDNN`) every layer is torch's own.
    """
    return torch.ops.mkldnn._linear_pointwise(left, right, bias, "none", [], "")


def _matmul_tn(left: Tensor, right: Tensor) -> Tensor:
    """Return left (N, O) transposed times right (N, I): (O, I), the gradient of a weight.

    The kernel transposes its left factor first. Where the result is small beside the factors it is cheaper to transpose
    the narrower factor, and the result afterwards.
    """
    num_rows, outputs, inputs = left.shape[0], left.shape[1], right.shape[1]
    if num_rows * outputs > num_rows * inputs + TRANSPOSITION_COST * outputs * inputs:
        return _matmul_nt(right.t(), left.t()).t()
    return _matmul_nt(left.t(), right.t())


def fast_dropout(hidden: Tensor, probability: float, training: bool) -> Tensor:
    """Set values to 0 with a probability and scale the others up, while training.

    torch's dropout on a CPU draws its numbers one by one and takes a tenth of a small model's step: there, 16 random
    bits decide on each value, which rounds the probability to 1/65536.
    """
    if not training or probability == 0.0:
        return hidden
    if hidden.device.type != "cpu" or torch.compiler.is_compiling():
        return functional.dropout(hidden, probability)
    count = hidden.numel()
    words = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)  # 64 bits each: 4 values
    threshold = round(probability * 65536) - 32768
    kept = (words.view(torch.int16)[:count] >= threshold).view(hidden.shape)
    return hidden * kept.to(hidden.dtype).mul_(1.0 / (1.0 - probability))


class Dropout(nn.Module):
    """Dropout as a module without parameters."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, hidden: Tensor) -> Tensor:
        return fast_dropout(hidden, self.probability, self.training)
