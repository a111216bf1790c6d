"""Data parallelism under torchrun: the process group, the gradient all-reduce and the stall watchdog.

Gradients are summed from one buffer of fixed layout. torch's DistributedDataParallel rebuilds its buckets after the
first step, so with more than two ranks a resumed training would add in another order than an uninterrupted one.
"""

import contextlib
import ctypes
import datetime
import faulthandler
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bert_pipeline.errors import BertError, TrainingError

Result = TypeVar("Result")

ALIGNMENT = 16
"""Every gradient starts at a multiple of this many floats (64 bytes), as tensors of their own do."""

BUCKET_BYTES = 32 * 2**20
"""Gradients are sent in pieces of about this size while the backward pass goes on."""


class OtherRankError(BertError):
    """Rank 0 failed; it has said why, so the other ranks end without repeating it."""


class LostRanksError(TrainingError):
    """This rank cannot reach the others: one of them failed, and may have said why."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """The processes of one training. Without torchrun it is this process alone, and nothing is sent."""

    rank: int
    world_size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over the ranks, in place."""
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return tensor

    def sum_numbers(self, *numbers: float) -> list[float]:
        """Sum plain numbers over the ranks."""
        if self.world_size == 1:
            return list(numbers)
        return self.sum(torch.tensor(numbers, dtype=torch.float64, device=self.device)).tolist()

    def first(self, function: Callable[[], Result]) -> Result:
        """Call a function on rank 0 and return its result on every rank.

        When it raises a BertError, rank 0 raises it and the other ranks raise OtherRankError.
        """
        outcome: list[Any] = [None, None]
        failure: BertError | None = None
        if self.is_main:
            try:
                outcome[0] = function()
            except BertError as error:
                failure = error
                outcome[1] = error.exit_code
        if self.world_size > 1:
            dist.broadcast_object_list(outcome, src=0, device=self.device)
        if failure is not None:
            raise failure
        if outcome[1] is not None:
            other = OtherRankError("rank 0 could not go on")
            other.exit_code = outcome[1]
            raise other
        return outcome[0]

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Give every rank the tensors of rank 0, in place."""
        if self.world_size > 1:
            for tensor in tensors:
                dist.broadcast(tensor, src=0)


def environments_of_ranks(world_size: int) -> list[dict[str, str]]:
    """Return what torchrun would tell each rank of a training on this machine; they meet at a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world_size)]


@contextlib.contextmanager
def process_group(timeout_seconds: int, device: str = "") -> Iterator[Group]:
    """Join the group that torchrun's environment describes: gloo on CPUs, nccl on GPUs.

    A rank waits for the others at most `timeout_seconds`; LostRanksError when one does not come. `device` overrides
    the choice between "cuda" and "cpu".
    """
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    chosen = torch.device(kind, int(os.environ.get("LOCAL_RANK", "0"))) if kind == "cuda" else torch.device(kind)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    if world_size == 1:
        yield Group(rank=0, world_size=1, device=chosen)
        return
    try:
        dist.init_process_group(
            "nccl" if chosen.type == "cuda" else "gloo", timeout=datetime.timedelta(seconds=timeout_seconds)
        )
    except (RuntimeError, ValueError) as error:
        raise TrainingError(f"the ranks did not find each other within {timeout_seconds} s ({error})") from error
    try:
        yield Group(rank=dist.get_rank(), world_size=world_size, device=chosen)
    except RuntimeError as error:
        if not is_lost_connection(error):
            raise
        raise LostRanksError(f"rank {dist.get_rank()} lost the other ranks ({str(error).splitlines()[0]})") from error
    finally:
        dist.destroy_process_group()


def is_lost_connection(error: Exception) -> bool:
    """Tell whether torch raised this because another rank, or the store of them all, did not answer."""
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and ("gloo" in str(error).lower() or "Connection" in str(error))
    )


def resolve_precision(precision: str, device: torch.device) -> Literal["float32", "bfloat16"]:
    """Return what `auto` means on a device: bfloat16 where it has instructions for it."""
    if precision != "auto":
        return "bfloat16" if precision == "bfloat16" else "float32"
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    # torch's own level may be set lower than the processor's, by ATEN_CPU_CAPABILITY
    allowed = torch.backends.cpu.get_cpu_capability() == "AVX512"
    capabilities: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()
    has_instructions = capabilities.get("avx512_bf16", False)
    return "bfloat16" if device.type == "cpu" and allowed and has_instructions else "float32"


def keep_freed_memory() -> None:
    """Let glibc keep the memory of freed tensors, process-wide.

    By default it gives large blocks back to the system at once, and every step pays for their pages anew: a tenth of
    a small model's step on a CPU. Elsewhere than on glibc nothing happens.
    """
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # malloc.h
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in ((mmap_threshold, 2**30), (trim_threshold, 2**31 - 1), (top_pad, 2**26)):
            mallopt(parameter, value)


class GradientBuffer:
    """The gradients of all parameters in one float32 tensor, with room for numbers that are summed along with them."""

    def __init__(self, parameters: Iterable[nn.Parameter], group: Group, num_numbers: int) -> None:
        # Gradients become ready from the last layer to the first: laid out in that order, the pieces fill in turn.
        self.parameters = list(parameters)[::-1]
        self.group = group
        offsets = []
        end = num_numbers + -num_numbers % ALIGNMENT
        for parameter in self.parameters:
            offsets.append(end)
            end += parameter.numel() + -parameter.numel() % ALIGNMENT
        self.flat = torch.zeros(end, dtype=torch.float32, device=group.device)
        self.numbers = self.flat[:num_numbers]
        for parameter, offset in zip(self.parameters, offsets):
            parameter.grad = self.flat[offset : offset + parameter.numel()].view_as(parameter)
        self._pieces = self._cut(offsets)
        self._works: list[Any] = []
        self._sending = False
        self._hooked = False
        self._left: list[int] = []
        if group.world_size > 1 and group.device.type == "cuda":
            self._install_hooks()

    def zero(self) -> None:
        """Set all gradients and numbers to 0."""
        self.flat.zero_()

    def send_during_backward(self) -> None:
        """Announce the last backward pass of a step: pieces are sent as soon as they are complete."""
        self._sending = True
        self._left = [len(members) for _, members in self._pieces]

    def sum_over_ranks(self) -> None:
        """Sum gradients and numbers over the ranks; returns when they are summed."""
        if self.group.world_size > 1:
            if not self._hooked:
                dist.all_reduce(self.flat)
            else:
                first = self._pieces[0][0].start if self._pieces else len(self.flat)
                self._works.append(dist.all_reduce(self.flat[:first], async_op=True))
                for work in self._works:
                    work.wait()
                self._works.clear()
        self._sending = False

    def _cut(self, offsets: list[int]) -> list[tuple[slice, list[int]]]:
        """Return (stretch of the buffer, its parameters) of about `BUCKET_BYTES` each."""
        pieces: list[tuple[slice, list[int]]] = []
        members: list[int] = []
        for index in range(len(offsets)):
            members.append(index)
            end = offsets[index + 1] if index + 1 < len(offsets) else len(self.flat)
            if (end - offsets[members[0]]) * 4 >= BUCKET_BYTES or end == len(self.flat):
                pieces.append((slice(offsets[members[0]], end), members))
                members = []
        return pieces

    def _install_hooks(self) -> None:
        self._hooked = True
        for number, (_, members) in enumerate(self._pieces):
            for index in members:
                self.parameters[index].register_post_accumulate_grad_hook(lambda _, number=number: self._ready(number))

    def _ready(self, number: int) -> None:
        if not self._sending:
            return
        self._left[number] -= 1
        if self._left[number] == 0:
            self._works.append(dist.all_reduce(self.flat[self._pieces[number][0]], async_op=True))


logger = logging.getLogger(__name__)

ANSWER_SECONDS = 5
"""Longest wait for the store, which may have gone with the machine that kept it."""


class Watchdog:
    """Watches one rank's steps; without other ranks it only keeps count."""

    def __init__(self, group: Group, timeout_seconds: float) -> None:
        self.group = group
        self.timeout_seconds = timeout_seconds
        self.step = 0
        self._moved = time.monotonic()
        self._warned = False
        self._ended = threading.Event()
        self._store: Any = dist.distributed_c10d._get_default_store() if group.world_size > 1 else None
        self._thread: threading.Thread | None = None

    def arrive(self, step: int) -> None:
        """Note that this rank has come to the meeting of all ranks after `step` finished updates."""
        self.step = step
        self.touch()
        if self._store is not None:
            self._store.set(_key(self.group.rank), json.dumps([step, os.uname().nodename, os.getpid()]))

    def touch(self) -> None:
        """Note that this rank is alive: evaluation, say, takes longer than a step."""
        self._moved, self._warned = time.monotonic(), False

    def missing(self, *, is_lost: bool = False) -> str:
        """Describe the ranks that have not come to this rank's step; empty when all have, or when nobody knows.

        With `is_lost` some rank is gone: where all had come to the step, it is one of all the others.
        """
        if self._store is None:
            return ""
        behind: list[str] = []
        level: list[str] = []
        usual = self._store.timeout
        try:
            self._store.set_timeout(datetime.timedelta(seconds=ANSWER_SECONDS))
            for rank in range(self.group.world_size):
                if not self._store.check([_key(rank)]):
                    behind.append(f"rank {rank} (has not begun)")
                    continue
                step, host, process = json.loads(self._store.get(_key(rank)))
                where = f"rank {rank} (process {process} on {host}, last seen at step {step})"
                if step < self.step:
                    behind.append(where)
                elif rank != self.group.rank:
                    level.append(where)
        except (RuntimeError, ValueError):  # whatever torch raises when the store has gone
            return f"the machine of rank 0 ({os.environ.get('MASTER_ADDR', 'unknown')}), which does not answer"
        finally:
            self._store.set_timeout(usual)
        return ", ".join(behind) or (" or ".join(level) if is_lost else "")

    def _watch(self) -> None:
        while not self._ended.wait(min(self.timeout_seconds / 10, 5.0)):
            waited = time.monotonic() - self._moved
            if waited < self.timeout_seconds / 2 or self._warned:
                continue
            self._warned = True
            missing = self.missing()
            logger.warning(
                "rank %d has stood at step %d for %.0f s, %s; the others wait %.0f s at most",
                self.group.rank,
                self.step,
                waited,
                f"waiting for {missing}" if missing else "and no other rank is behind it; this is where it stands",
                self.timeout_seconds,
            )
            if not missing:
                faulthandler.dump_traceback(file=2)

    def __enter__(self) -> "Watchdog":
        self.touch()
        if self._store is not None:
            self._ended.clear()
            self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(ANSWER_SECONDS)


def _key(rank: int) -> str:
    return f"bert/arrived/{rank}"
