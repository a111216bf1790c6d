"""Processes under torchrun: process group, precision of a device, stall watchdog and signals."""

import contextlib
import ctypes
import datetime
import faulthandler
import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Literal, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from bert_pipeline.errors import BertError, TrainingError, UsageError

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

STORE_TIMEOUT_SECONDS = 5
"""Longest wait for the store, whose machine may be lost."""

SIGN_OF_LIFE_SECONDS = 0.5
"""Time between two signs of life of a rank that works alone; shorter than any timeout."""

_SILENT_STORE = "the machine of rank 0 ({}), which does not answer"


class OtherRankError(BertError):
    """Another rank failed and reported why; this one exits without repeating it."""


class LostRanksError(TrainingError):
    """This rank cannot reach the others: one of them failed, and may have reported why."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """The ranks of one training run. Without torchrun there is one, and nothing is communicated."""

    rank: int
    world_size: int
    device: torch.device
    store: "Store | None" = None
    """Key-value store that all ranks reach; None with one rank."""

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def all_reduce_numbers(self, *numbers: float) -> list[float]:
        """Sum numbers over the ranks."""
        if self.world_size == 1:
            return list(numbers)
        # In host memory: these numbers do not wait for the work that is queued on a GPU.
        tensor = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(tensor)
        return cast(list[float], tensor.tolist())

    def call_on_main(self, function: Callable[[], Result]) -> Result:
        """Call a function of any duration on rank 0 and return its result on all ranks; errors as in `on_all_ranks`."""
        outcome = [self.on_all_ranks(lambda: function() if self.is_main else None)]
        if self.world_size > 1:
            dist.broadcast_object_list(outcome, src=0, device=torch.device("cpu"))
        return cast(Result, outcome[0])

    def on_all_ranks(self, function: Callable[[], Result]) -> Result:
        """Call a function of any duration on every rank, and return its result when it has returned on all of them.

        A thread meanwhile exchanges signs of life, so the timeout is that of a rank which gives none. The function
        itself communicates nothing. If it fails on some ranks, the others raise OtherRankError.
        """
        if self.world_size == 1:
            return function()
        ended, outcome = threading.Event(), [0.0, 0.0, 0.0]  # ranks that ended, that failed, and their exit codes
        with ThreadPoolExecutor(1, thread_name_prefix="signs of life") as executor:
            summed = executor.submit(self._exchange, ended, outcome)
            try:
                result = function()
            except BaseException as error:
                outcome[1:] = 1.0, float(getattr(error, "exit_code", 1))
                raise
            finally:
                outcome[0] = 1.0
                ended.set()
        num_failed, exit_codes = summed.result()
        if num_failed:
            other = OtherRankError("another rank failed")
            other.exit_code = round(exit_codes / num_failed)
            raise other
        return result

    def _exchange(self, ended: threading.Event, outcome: list[float]) -> list[float]:
        """Sum the outcomes until all ranks have ended or one has failed; return the sums of failures and exit codes."""
        while True:
            # A rank that has ended waits in the sum for those that have not.
            ended.wait(SIGN_OF_LIFE_SECONDS)
            num_ended, *failures = self.all_reduce_numbers(*outcome)
            if failures[0] or num_ended == self.world_size:
                return failures

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite the tensors of every rank with those of rank 0."""
        if self.world_size > 1:
            for tensor in tensors:
                dist.broadcast(tensor, src=0)


class LateNumbers:
    """Numbers of a device, copied to the host in its queue, and read when the device has work for the meantime.

    Reading a tensor waits for all that is queued, including what was queued after the tensor; this waits for the copy
    alone.
    """

    def __init__(self, tensor: Tensor) -> None:
        """`tensor` is not changed afterwards."""
        self._copy = tensor.to("cpu", non_blocking=True)  # from a GPU to pinned memory
        self._event = None
        if tensor.device.type == "cuda":
            self._event = torch.cuda.Event()
            self._event.record()

    def read(self) -> list[float]:
        """Wait for the numbers."""
        if self._event is not None:
            self._event.synchronize()
        return cast(list[float], self._copy.tolist())


@contextlib.contextmanager
def process_group(timeout_seconds: int, device: str = "") -> Iterator[Group]:
    """Join the process group described by torchrun's environment: gloo for tensors on CPUs, NCCL for those on GPUs.

    Collectives time out after `timeout_seconds` and raise LostRanksError. `device` is "cuda", "cpu" or "", which takes
    a GPU if there is one.
    """
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    # Each rank of a machine takes the GPU of its local number.
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    chosen = torch.device(kind, int(os.environ.get("LOCAL_RANK", "0"))) if kind == "cuda" else torch.device(kind)
    if chosen.type == "cuda":
        if (chosen.index or 0) >= torch.cuda.device_count():
            raise UsageError(
                f"--device cuda: found {torch.cuda.device_count()} GPUs, local rank {chosen.index} has none; start as "
                "many processes as there are GPUs (--nproc-per-node), or give --device cpu"
            )
        torch.cuda.set_device(chosen)
    if world_size == 1:
        yield Group(rank=0, world_size=1, device=chosen)
        return
    try:
        # One timeout for joining, for collectives and for the store.
        backend = "cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=datetime.timedelta(seconds=timeout_seconds))
    except (RuntimeError, ValueError) as error:
        raise TrainingError(f"the ranks did not find each other within {timeout_seconds} s ({error})") from error
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    has_ended = False
    try:
        # torch reports a lost rank as a RuntimeError of the next collective; other errors pass unchanged.
        yield Group(rank=rank, world_size=world_size, device=chosen, store=store)
        has_ended = True
    except RuntimeError as error:
        if not is_lost_connection(error):
            raise
        raise LostRanksError(f"rank {rank} lost the other ranks ({str(error).splitlines()[0]})") from error
    finally:
        # After an error NCCL would wait here for ranks that are gone, or in a collective that this one never joins.
        if has_ended or chosen.type == "cpu":
            dist.destroy_process_group()


def is_lost_connection(error: Exception) -> bool:
    """Tell whether torch raised this because another rank, or the store, did not answer."""
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and ("gloo" in str(error).lower() or "Connection" in str(error))
    )


def resolve_precision(precision: str, device: torch.device) -> Literal["float32", "bfloat16"]:
    """Resolve `auto` for a device: bfloat16 if it has instructions for it, else float32."""
    if precision != "auto":
        return "bfloat16" if precision == "bfloat16" else "float32"
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    # ATEN_CPU_CAPABILITY may limit torch to fewer instructions than the processor has.
    allowed = torch.backends.cpu.get_cpu_capability() == "AVX512"
    capabilities: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()
    has_instructions = capabilities.get("avx512_bf16", False)
    return "bfloat16" if device.type == "cpu" and allowed and has_instructions else "float32"


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Return the context in which forward passes compute in a precision: "float32", "bfloat16" or "auto"."""
    enabled = resolve_precision(precision, device) == "bfloat16"
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=enabled)


def keep_freed_memory() -> None:
    """Make glibc keep the memory of freed tensors, process-wide; do nothing with other C libraries.

    By default glibc returns large blocks to the system at once, and every step pays for their page faults again: a
    tenth of a small model's step on a CPU.
    """
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # malloc.h
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in ((mmap_threshold, 2**30), (trim_threshold, 2**31 - 1), (top_pad, 2**26)):
            mallopt(parameter, value)


class Watchdog:
    """Report which rank stalls the collectives.

    Every rank publishes its step in the store before a step's first collective. A thread warns after half the timeout
    which ranks are behind; a rank with none behind it dumps its stack, because it is the one that hangs. With one
    rank only the step is counted.
    """

    def __init__(self, group: Group, timeout_seconds: float) -> None:
        self.group = group
        self.timeout_seconds = timeout_seconds
        self.step = 0
        self._last_sign_of_life = math.inf
        """Time of the last progress; infinite where there is nothing to warn of."""
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def report_step(self, step: int) -> None:
        """Publish that this rank has finished `step` updates and enters the next collective."""
        self.step = step
        self.touch()
        if self.group.store is not None:
            self.group.store.set(_key(self.group.rank), json.dumps([step, os.uname().nodename, os.getpid()]))

    def touch(self) -> None:
        """Note that this rank makes progress, also during an evaluation, which takes longer than a step."""
        self._last_sign_of_life = time.monotonic()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Watch nothing in the block, in which the ranks exchange signs of life of their own: `Group.on_all_ranks`."""
        self._last_sign_of_life = math.inf
        try:
            yield
        finally:
            self.touch()

    def stalled_ranks(self, *, is_lost: bool = False) -> str:
        """Describe the ranks behind this rank's step; "" if there are none.

        With `is_lost` some rank is gone: if none is behind, it is one of the others.
        """
        store = self.group.store
        if store is None:
            return ""
        answers: list[str] = []
        # In a thread, which may be left behind: a request to a machine that is cut off from the network never ends, and
        # neither do those that wait for their turn behind it.
        asking = threading.Thread(target=lambda: answers.append(self._ask(store, is_lost)), name="store", daemon=True)
        asking.start()
        asking.join(2 * STORE_TIMEOUT_SECONDS)
        return answers[0] if answers else _SILENT_STORE.format(os.environ.get("MASTER_ADDR", "unknown"))

    def _ask(self, store: "Store", is_lost: bool) -> str:
        behind: list[str] = []
        level: list[str] = []
        try:
            # Ask with a short timeout: the store's machine may be the one that is lost.
            store.set_timeout(datetime.timedelta(seconds=STORE_TIMEOUT_SECONDS))
            for rank in range(self.group.world_size):
                if not store.check([_key(rank)]):
                    behind.append(f"rank {rank} (not started)")
                    continue
                step, host, process = json.loads(store.get(_key(rank)))
                description = f"rank {rank} (process {process} on {host}, last seen at step {step})"
                # A rank at the same step waits as well; it is named only if some rank is known to be gone.
                if step < self.step:
                    behind.append(description)
                elif rank != self.group.rank:
                    level.append(description)
        except (RuntimeError, ValueError):  # torch raises several kinds when the store is gone
            return _SILENT_STORE.format(os.environ.get("MASTER_ADDR", "unknown"))
        finally:
            store.set_timeout(datetime.timedelta(seconds=self.timeout_seconds))
        return ", ".join(behind) or (" or ".join(level) if is_lost else "")

    def _watch(self) -> None:
        while not self._ended.wait(min(self.timeout_seconds / 10, 5.0)):
            # Warn once a step and at half the timeout: after the whole timeout the processes are gone.
            waited = time.monotonic() - self._last_sign_of_life
            if waited < self.timeout_seconds / 2:
                continue
            self._last_sign_of_life = math.inf
            stalled = self.stalled_ranks()
            reason = f"waiting for {stalled}" if stalled else "and no other rank is behind it: its stack follows"
            logger.warning(
                f"rank {self.group.rank} has been at step {self.step} for {waited:.0f} s, {reason}; the collective "
                f"times out after {self.timeout_seconds:.0f} s"
            )
            # Nobody is behind this rank, so it is the one that hangs.
            if not stalled:
                faulthandler.dump_traceback(file=2)

    def __enter__(self) -> "Watchdog":
        self.touch()
        if self.group.store is not None:
            self._ended.clear()
            self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(STORE_TIMEOUT_SECONDS)


def _key(rank: int) -> str:
    return f"bert/step/{rank}"
