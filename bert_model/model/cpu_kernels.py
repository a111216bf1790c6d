"""CPU kernels: float32 matrix products by MKL or oneDNN, fast dropout, and thread limits.

torch multiplies float32 matrices with MKL, which uses half of the vector units of some processors; oneDNN, which torch
ships for convolutions, uses all of them but is slower on others. `onednn_choice` therefore times a model's weight
shapes with both, and `cpu_settings` selects oneDNN where it is clearly faster
(docs/decisions/0008-products-on-onednn.md).

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

MIN_SAVING = 0.1
"""Minimum share of a model's product time that oneDNN must save, so that noise does not decide."""
PROBE_SECONDS = 0.02
"""Time limit for timing a shape; the large shapes of base take up to three times as long."""
MAX_PROBE_OUTPUTS = 4096
"""Limit on O while timing: part of a vocabulary is enough, both libraries have the same rate on the rest."""
TRANSPOSITION_COST = 4
"""Cost of adding a transposed gradient, per number, relative to copying one number of a factor (measured)."""

_onednn_shapes: frozenset[Shape] = frozenset()


@contextlib.contextmanager
def limited_threads(num_threads: int | None) -> Iterator[None]:
    """Compute on `num_threads` CPU threads within the block; None leaves the number unchanged."""
    threads_before = torch.get_num_threads()
    torch.set_num_threads(num_threads or threads_before)
    try:
        yield
    finally:
        torch.set_num_threads(threads_before)


@contextlib.contextmanager
def cpu_settings(*, onednn: Iterable[Iterable[int]], num_threads: int | None = None) -> Iterator[None]:
    """Compute layers of these weight shapes with oneDNN within the block, on `num_threads` threads if given."""
    # A module variable, not an argument: layers deep in the model look it up at every product.
    global _onednn_shapes
    shapes_before = _onednn_shapes
    requested = frozenset((int(outputs), int(inputs)) for outputs, inputs in onednn)
    _onednn_shapes = requested if requested and has_onednn_linear() else frozenset()
    try:
        with limited_threads(num_threads):
            yield
    finally:
        _onednn_shapes = shapes_before


def onednn_shapes() -> list[list[int]]:
    """Return the weight shapes that oneDNN computes now, in JSON values."""
    return [list(shape) for shape in sorted(_onednn_shapes)]


@functools.cache
def has_onednn_linear() -> bool:
    """Tell whether this torch has the private oneDNN kernel of its compiler, with the signature used here.

    It is tried once: a release may rename it or change its arguments, and then every layer computes with torch's own.
    """
    if not torch.backends.mkldnn.is_available():
        return False
    with contextlib.suppress(AttributeError, RuntimeError, TypeError):
        return bool(_matmul_nt(torch.full((1, 2), 2.0), torch.ones(1, 2), torch.ones(1)).item() == 5.0)
    return False


def onednn_choice(config: BertConfig, *, device: torch.device | str = "cpu") -> tuple[Shape, ...]:
    """Time a model's weight shapes on this machine and return those for oneDNN: all, or none if it saves too little.

    Each model size is timed once per process; on a GPU there is nothing to choose.
    """
    if torch.device(device).type != "cpu" or not has_onednn_linear():
        return ()
    return _choose(config.num_hidden_layers, config.hidden_size, config.intermediate_size, config.vocab_size)


def processor() -> str:
    """Return the processor's name and the instruction set that torch uses: equal names give equal sums."""
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
    products = {  # shape -> (rows of a trial, products per token); 15 % of the tokens are predicted
        (hidden, hidden): (tokens, 4.0 * layers),
        (inner, hidden): (tokens, 1.0 * layers),
        (hidden, inner): (tokens, 1.0 * layers),
        (vocab, hidden): (40, 0.15),
    }

    # Gradients are on, whatever the caller has set: two thirds of a training's products are in the backward pass.
    by_torch = by_onednn = 0.0
    with cpu_settings(onednn=(), num_threads=1), torch.inference_mode(False), torch.enable_grad():
        for shape, (rows, count) in products.items():
            tried = (min(shape[0], MAX_PROBE_OUTPUTS), shape[1])
            weight = count / rows * shape[0] / tried[0]  # trial to one token of the whole shape
            torch_seconds, onednn_seconds = _time_products(tried, rows)
            by_torch += weight * torch_seconds
            by_onednn += weight * onednn_seconds
    # All or none: a shape with a tiny gain would be chosen in one run and not in the next.
    return tuple(sorted(products)) if by_onednn <= (1 - MIN_SAVING) * by_torch else ()


def _time_products(shape: Shape, rows: int) -> tuple[float, float]:
    """Time one layer's forward and backward products in alternation; return the minimum of torch and of oneDNN.

    The minimum of this thread's processor time is robust against other programs on the machine.
    """
    # Constants instead of random numbers: dropout is keyed on torch's generator, which must not move.
    weight = torch.full(shape, 0.5, requires_grad=True)
    hidden = torch.full((rows, shape[1]), 0.5, requires_grad=True)
    gradient = torch.full((rows, shape[0]), 0.5)

    def seconds(function: Callable[[Tensor, Tensor], Tensor]) -> float:
        started = time.thread_time()
        torch.autograd.grad(function(hidden, weight), (hidden, weight), gradient)  # runs in this thread on a CPU
        return time.thread_time() - started

    seconds(functional.linear), seconds(_onednn_linear)  # warm-up: the first call initializes the library
    turns: list[tuple[float, float]] = []
    ends = time.thread_time() + PROBE_SECONDS
    while len(turns) < 3 or time.thread_time() < ends:
        turns.append((seconds(functional.linear), seconds(_onednn_linear)))
    torch_turns, onednn_turns = zip(*turns)
    return min(torch_turns), min(onednn_turns)


def linear(hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return hidden (..., I) times weight (O, I) transposed, plus bias (O): (..., O)."""
    if not _uses_onednn(hidden, weight):
        return functional.linear(hidden, weight, bias)
    return _onednn_linear(hidden, weight, bias)


class Linear(nn.Linear):
    """`nn.Linear` computed by `linear`."""

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
    rows = hidden.reshape(-1, hidden.shape[-1]).contiguous()  # (N, I); strided rows take a far slower kernel
    if torch.is_grad_enabled():
        product = _differentiable_linear(rows, weight, bias)  # (N, O)
    else:
        product = _matmul_nt(rows, weight, bias)
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
    """Return left (N, I) times right (O, I) transposed, plus bias (O): (N, O).

    This is the only call of torch's private kernel; `has_onednn_linear` tells whether it works.
    """
    product: Tensor = torch.ops.mkldnn._linear_pointwise(left, right, bias, "none", [], "")
    return product


def _matmul_tn(left: Tensor, right: Tensor) -> Tensor:
    """Return left (N, O) transposed times right (N, I): (O, I), the gradient of a weight.

    The kernel copies its left factor to transpose it. If the result is small compared with the factors, it is cheaper
    to have the narrower factor copied and to transpose the result.
    """
    num_rows, outputs, inputs = left.shape[0], left.shape[1], right.shape[1]
    if num_rows * outputs > num_rows * inputs + TRANSPOSITION_COST * outputs * inputs:
        return _matmul_nt(right.t(), left.t()).t()
    return _matmul_nt(left.t(), right.t())


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
