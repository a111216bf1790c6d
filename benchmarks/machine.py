"""What a figure depends on and a table must say: date, machine, load, versions."""

import datetime
import importlib.metadata
import os
import platform
from collections.abc import Iterable
from pathlib import Path

BUSY_LOAD = 0.5
"""Above this load average other programs take part of the machine, and rates are too low."""


def num_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe(packages: Iterable[str], device: str = "") -> str:
    """Return two lines: date, cores, processor and load; then the versions of Python and `packages`."""
    load = os.getloadavg()[0]
    busy = f"; BUSY (load {load:.1f}), figures are too low" if load > BUSY_LOAD else f"; load {load:.1f}"
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    versions = [f"Python {platform.python_version()}", *(f"{name} {_version(name)}" for name in packages)]
    where = f"{num_cores()} cores of {_processor()}{f', {device}' if device else ', no GPU'}"
    return f"{now}; {where}{busy}\n{', '.join(versions)}"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return " ".join(line.partition(":")[2].split())
    except OSError:
        pass
    return platform.processor() or platform.machine()
