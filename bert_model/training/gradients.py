"""Sums of gradients over the ranks: a flat buffer, DistributedDataParallel, or parameters sharded by FSDP2.

In each of them a process that has just resumed adds in the same order as one that has not, so a resumed run equals an
uninterrupted one bit for bit (docs/decisions/0004-gradient-sum.md).
"""

import contextlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bert_model.training.distributed import Group
from bert_pipeline.errors import ConfigurationError, TrainingError

DataParallel = Literal["auto", "buffer", "ddp", "fsdp"]
"""How ranks share the work: see `PretrainingConfig.data_parallel`."""

ALIGNMENT = 16
"""Every gradient starts at a multiple of this many floats (64 bytes), as separately allocated tensors do."""


def resolve_data_parallel(kind: DataParallel, group: Group) -> Literal["buffer", "ddp", "fsdp"]:
    """Resolve `auto` for a group: DDP on GPUs, the buffer on CPUs and in one process, which sends nothing."""
    if group.world_size == 1:
        return "buffer"
    if kind == "auto":
        return "ddp" if group.device.type == "cuda" else "buffer"
    if kind == "buffer" and group.device.type == "cuda":
        raise ConfigurationError("data_parallel: found 'buffer' on GPUs, expected 'auto', 'ddp' or 'fsdp'")
    return kind


class GradientSum(ABC):
    """The losses of a model whose gradients are summed over the ranks, and numbers that are summed along with them.

    In each step: `zero`, one forward and backward pass in `accumulating` for each micro-batch, `all_reduce`.
    """

    loss_sums: Callable[..., tuple[Tensor, Tensor]]
    """The forward pass: `loss_sums` of the model."""
    numbers: Tensor
    """The numbers, float32: add to them in place."""

    def prepare(self, rehearse: Callable[[], None]) -> None:  # noqa: B027 (the buffer needs nothing)
        """Make ready for the first step; `rehearse` makes a forward and backward pass with fixed inputs."""

    @abstractmethod
    def zero(self) -> None:
        """Set all gradients and numbers to 0."""

    @contextlib.contextmanager
    def accumulating(self, *, is_last: bool) -> Iterator[None]:
        """Add gradients within the block; those of the step's last micro-batch are sent as they become ready."""
        yield

    @abstractmethod
    def all_reduce(self) -> None:
        """Sum gradients and numbers over the ranks; returns when they are summed."""


def build_gradient_sum(
    kind: Literal["buffer", "ddp", "fsdp"], model: nn.Module, group: Group, *, num_numbers: int
) -> GradientSum:
    """Build the sum for a model with the method `loss_sums`; for "fsdp" `shard_parameters` has sharded it."""
    kinds: dict[str, Callable[..., GradientSum]]
    kinds = {"buffer": GradientBuffer, "ddp": ReplicatedGradients, "fsdp": ShardedGradients}
    return kinds[kind](model, group, num_numbers)


def compile_layers(model: Any, *, packed: bool = False, **options: Any) -> None:
    """Compile each layer's forward pass in training, with options of `torch.compile`; without gradients it stays eager.

    Layers are compiled alone because the first gradient of a graph is ready only when the whole graph has run. Call it
    after `GradientSum.prepare`, which has its own sizes: all layers share one function, of which torch compiles eight
    variants and leaves the rest eager. So sizes are dynamic from the first batch on, and evaluations take no variant.

    Packed batches have one size: there are four graphs, of the embeddings, the losses, a layer and the last one. Call
    it again for another size.
    """
    # An analysis of torch 2.11 compares products of sizes term by term, and fails on sizes that vary; torch 2.13 has
    # none of it: https://github.com/pytorch/pytorch/issues/181563.
    if torch.__version__ < "2.13":  # a TorchVersion, which compares as versions do
        import torch._inductor.config as inductor

        inductor.triton.coalesce_tiling_analysis = False
    torch._dynamo.reset()
    parts = [(layer, "forward") for layer in model.bert.blocks]
    if packed:
        parts += [(model.bert.embeddings, "forward"), (model, "losses")]
    for part, name in parts:
        eager = getattr(type(part), name).__get__(part)  # also where it is compiled already
        setattr(part, name, _in_training(torch.compile(eager, dynamic=not packed, **options), eager))


def _in_training(compiled: Callable[..., Any], eager: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: (compiled if torch.is_grad_enabled() else eager)(*arguments)


class GradientBuffer(GradientSum):
    """The gradients of all parameters in one float32 tensor, preceded by the numbers, which is summed at the end.

    Layout: numbers, padding to ALIGNMENT, then each gradient and its padding. On a CPU one sum at the end is faster
    than sums during the backward pass, which they would slow down.
    """

    def __init__(self, model: Any, group: Group, num_numbers: int) -> None:
        self.loss_sums = model.loss_sums
        self.group = group
        parameters = trained_parameters(model)[::-1]
        sizes = [num_numbers, *(parameter.numel() for parameter in parameters)]
        *offsets, end = itertools.accumulate(size + -size % ALIGNMENT for size in sizes)
        self.flat = torch.zeros(end, dtype=torch.float32, device=group.device)
        self.numbers = self.flat[:num_numbers]
        # autograd accumulates into `grad` in place, so each parameter writes into its slice of the buffer.
        for parameter, offset in zip(parameters, offsets):
            parameter.grad = self.flat[offset : offset + parameter.numel()].view_as(parameter)

    def zero(self) -> None:
        self.flat.zero_()

    def all_reduce(self) -> None:
        if self.group.world_size > 1:
            dist.all_reduce(self.flat)


class ReplicatedGradients(GradientSum):
    """DistributedDataParallel: every rank has the whole model, and gradients are sent in buckets as they become ready.

    DDP lays out its buckets by the order in which the gradients of its first backward pass become ready, and begins
    with another layout. Sums of more than two ranks depend on the layout in their last bits, so that first pass is a
    rehearsal: every step of every process has the same layout.
    """

    def __init__(self, model: nn.Module, group: Group, num_numbers: int) -> None:
        self.numbers = torch.zeros(num_numbers, dtype=torch.float32, device=group.device)
        self._num_summed = 0  # gradients of the current step that are sent
        self._parameters = trained_parameters(model)
        self._module = nn.parallel.DistributedDataParallel(_LossSums(model), gradient_as_bucket_view=True)
        # DDP refuses annotations other than its own, which builds of torch for one process lack.
        self._module.register_comm_hook(None, lambda state, bucket: self._sum_bucket(bucket))
        self.loss_sums = self._module

    def prepare(self, rehearse: Callable[[], None]) -> None:
        self.zero()
        with self.accumulating(is_last=True):
            rehearse()
        self.all_reduce()

    def zero(self) -> None:
        self.numbers.zero_()
        # In place: the gradients are views of the buckets.
        if gradients := [parameter.grad for parameter in self._parameters if parameter.grad is not None]:
            torch._foreach_zero_(gradients)

    @contextlib.contextmanager
    def accumulating(self, *, is_last: bool) -> Iterator[None]:
        with contextlib.nullcontext() if is_last else self._module.no_sync():
            yield

    def all_reduce(self) -> None:
        # DDP sends a bucket when all its gradients are ready, and reports one that never is in the next step only.
        summed, self._num_summed = self._num_summed, 0
        if summed != len(self._parameters):
            raise TrainingError(
                f"DistributedDataParallel summed {summed} of {len(self._parameters)} gradients, because the loss does "
                "not depend on some parameter; take data_parallel=fsdp, or on CPUs data_parallel=buffer"
            )
        dist.all_reduce(self.numbers)

    def _sum_bucket(self, bucket: Any) -> Any:
        """Start the sum of a `GradBucket` over the ranks; return its future. DDP itself would compute the mean."""
        self._num_summed += len(bucket.parameters())
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return future.then(lambda summed: summed.value()[0])


class _LossSums(nn.Module):
    """A model whose forward pass is `loss_sums`: DDP wraps `forward` only."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model: Any = model
        # DDP would send the buffers in every step, which are constants.
        self._ddp_params_and_buffers_to_ignore = [name for name, _ in self.named_buffers()]

    def forward(self, *arguments: Any, **named: Any) -> tuple[Tensor, Tensor]:
        sums: tuple[Tensor, Tensor] = self.model.loss_sums(*arguments, **named)
        return sums


class ShardedGradients(GradientSum):
    """FSDP2: every rank has a part of each parameter, of its gradient and of its optimizer state.

    A layer's parameters are gathered for its forward pass and kept until the end of its backward pass; its gradients
    are then summed, and every rank keeps its part of them.
    """

    def __init__(self, model: Any, group: Group, num_numbers: int) -> None:
        self.numbers = torch.zeros(num_numbers, dtype=torch.float32, device=group.device)
        self.loss_sums = model.loss_sums
        self._model = model

    def zero(self) -> None:
        self.numbers.zero_()
        self._model.zero_grad()

    @contextlib.contextmanager
    def accumulating(self, *, is_last: bool) -> Iterator[None]:
        self._model.set_requires_gradient_sync(is_last)
        yield

    def all_reduce(self) -> None:
        dist.all_reduce(self.numbers)


def trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that get gradients."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def shard_parameters(model: Any, group: Group) -> None:
    """Replace each parameter by this rank's part of rank 0's, in place; build the optimizer afterwards."""
    # Imported where it is used: a process that does not shard would wait for it as long as for torch itself.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    group.broadcast(parameter.data for parameter in model.parameters())
    mesh = init_device_mesh(group.device.type, (group.world_size,))
    for module in (*model.bert.blocks, model):
        part = fully_shard(module, mesh=mesh, reshard_after_forward=False)
        # Sums, not means, set for each part; gloo has no operation that divides.
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)
    register_fsdp_forward_method(model, "loss_sums")


def is_sharded(model: nn.Module) -> bool:
    """Tell whether `shard_parameters` has sharded the model."""
    return hasattr(model, "unshard")


@contextlib.contextmanager
def unsharded(model: nn.Module) -> Iterator[None]:
    """Gather all parameters of a sharded model within the block, which all ranks enter; leave any other unchanged.

    Forward passes in the block communicate nothing, so ranks may make different numbers of them.
    """
    parts: list[Any] = [module for module in model.modules() if is_sharded(module)]
    for part in parts:
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.reshard()


def full_tensor(tensor: Tensor) -> Tensor:
    """Return a tensor with the parts of all ranks, which all call this; a tensor that is not sharded as it is."""
    gather: Callable[[], Tensor] | None = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather()


def shard_like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """Copy a whole tensor to the device of a parameter; of a sharded one, this rank's part of rank 0's tensor."""
    copied = tensor.to(parameter.device, copy=True)
    if not hasattr(parameter, "full_tensor"):
        return copied
    from torch.distributed.tensor import distribute_tensor

    part: Any = parameter  # a DTensor
    return distribute_tensor(copied, part.device_mesh, part.placements)
