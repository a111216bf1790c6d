"""Throughput: tokens per second, model FLOPs utilization (MFU) and peak memory.

MFU (PaLM, arXiv 2204.02311, appendix B) is the rate of the operations that the model needs over the device's rate in
large matrix products: the nominal one of its data sheet where that is known, else a measured one. A multiplication and
an addition are two operations. Only matrix products of real tokens count, and only those whose results are read: the
last block at masked and first positions, the vocabulary projection at masked positions.
"""

import contextlib
import re
import resource
import sys
import time
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from bert_model.model.config import BertConfig, ModernConfig
from bert_model.model.cpu_kernels import linear

PROBE_SECONDS = 0.1
"""Shortest measurement of a device's matrix products: a GPU raises its clock when it has work."""

NOMINAL_FLOPS = {"NVIDIA H100 80GB HBM3": 989e12, "NVIDIA H200": 989e12}
"""A GPU's name -> operations per second in bfloat16, without sparsity, in NVIDIA's data sheet; both are SXM modules."""


class PeakRate(NamedTuple):
    """A device's rate in large matrix products."""

    flops: float = 0.0
    """Operations per second; 0 if unknown."""
    kind: Literal["nominal", "measured"] = "measured"


class StepCounts(NamedTuple):
    """Sizes of micro-batches or steps, which may be summed."""

    instances: float
    tokens: float
    """Real tokens."""
    squared_lengths: float
    """Sum of the squared numbers of tokens of the instances; attention is proportional to it."""
    predictions: float


def training_flops(config: BertConfig, counts: StepCounts) -> float:
    """Return the operations of forward and backward passes; the backward pass needs twice those of the forward pass."""
    hidden, inner = config.hidden_size, config.intermediate_size * (1.5 if isinstance(config, ModernConfig) else 1)
    queries = counts.predictions + counts.instances  # positions that are read after the last block
    keys_seen = counts.squared_lengths * queries / max(counts.tokens, 1.0)  # query-key pairs of these positions
    per_query = 4 * hidden**2 + 4 * hidden * inner  # query and output projections, feed-forward
    keys_and_values = 4 * hidden**2 * counts.tokens
    block = per_query * counts.tokens + keys_and_values + 4 * hidden * counts.squared_lengths
    last = per_query * queries + keys_and_values + 4 * hidden * keys_seen
    heads = 2 * hidden * (hidden + config.vocab_size) * counts.predictions + 2 * hidden**2 * counts.instances
    return 3.0 * ((config.num_hidden_layers - 1) * block + last + heads)


def peak_rate(device: torch.device, precision: str) -> PeakRate:
    """Return a device's nominal rate if it is known for this precision, else the measured one."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    if precision == "bfloat16" and name in NOMINAL_FLOPS:
        return PeakRate(NOMINAL_FLOPS[name], "nominal")
    return PeakRate(peak_matmul_flops(device, precision))


def peak_matmul_flops(device: torch.device, precision: str) -> float:
    """Measure a device's operations per second in large matrix products, computed as wide layers are.

    Return 0 if a GPU has no memory left for them.
    """
    size = 8192 if device.type == "cuda" else 1024
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    best, rounds = 0.0, 0
    with torch.no_grad(), contextlib.suppress(torch.OutOfMemoryError):
        generator = torch.Generator(device).manual_seed(0)  # torch's default ones key dropout and must not move
        left, right = (torch.randn(size, size, device=device, generator=generator, dtype=dtype) for _ in range(2))
        # The best of four or more: the first one warms up, and another program may slow down any of them.
        ends = time.perf_counter() + PROBE_SECONDS
        while rounds < 4 or time.perf_counter() < ends:
            started = time.perf_counter()
            linear(left, right)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            best = max(best, 2 * size**3 / (time.perf_counter() - started))
            rounds += 1
    return best


class Throughput:
    """Rates since the last logged step."""

    def __init__(self, peak_flops: float = 0.0) -> None:
        """`peak_flops` is the sum of the devices' `peak_rate`, 0 if unknown."""
        self.peak_flops = peak_flops
        self.flops = 0.0
        self.num_tokens = 0.0
        self.seconds_waiting = 0.0
        self._started = time.perf_counter()

    def count(self, flops: float, num_tokens: float, seconds_waiting: float) -> None:
        """Add one step."""
        self.flops += flops
        self.num_tokens += num_tokens
        self.seconds_waiting += seconds_waiting

    def exclude(self, seconds: float) -> None:
        """Exclude time that was not spent on training from the rates."""
        self._started += seconds

    def rates(self) -> dict[str, float]:
        """Return real tokens per second, MFU and the share of time spent waiting for data, and reset the counts."""
        now = time.perf_counter()
        seconds = max(now - self._started, 1e-9)
        rates = {
            "train/tokens_per_second": self.num_tokens / seconds,
            "train/data_wait_share": self.seconds_waiting / seconds,
        }
        if self.peak_flops:
            rates["train/model_flops_utilization"] = self.flops / seconds / self.peak_flops
        self._started, self.flops, self.num_tokens, self.seconds_waiting = now, 0.0, 0.0, 0.0
        return rates


def system_load(device: torch.device) -> dict[str, float]:
    """Return the load of machine and GPU since the last call, under the names of MLflow's tab *System metrics*."""
    import psutil  # not among the requirements of a served version, which imports this module

    load = {"cpu_utilization": psutil.cpu_percent(), "system_memory_usage": psutil.virtual_memory().percent}
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        load["gpu_0_memory_usage"] = 100.0 * (1 - free / total)
        with contextlib.suppress(Exception):  # NVIDIA's library may be missing, or refuse
            load["gpu_0_utilization"] = float(torch.cuda.utilization(device))
    return {f"system/{name}_percentage": value for name, value in load.items()}


def peak_memory(device: torch.device) -> int:
    """Return the peak memory of this process in bytes: of the GPU, or of the machine."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with contextlib.suppress(OSError):  # getrusage may return the peak of the parent process
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        if match := re.search(r"VmHWM:\s*(\d+) kB", status):
            return int(match[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
