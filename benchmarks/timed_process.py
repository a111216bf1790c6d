"""A command run to its end in a process of its own, on one core or all of them, with its time and memory."""

import dataclasses
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence

from bert_pipeline.errors import BertError


class CommandError(BertError):
    """A measured command failed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
    """What a finished command took."""

    seconds: float
    """Wall time, the start of the interpreter included."""
    cpu_seconds: float
    """Processor time of the process and those of its children that it waited for."""
    peak_bytes: int
    """Resident memory of the largest one of these processes."""
    output: str


def run_timed(command: Sequence[str], *, one_core: bool, environment: Mapping[str, str] | None = None) -> Timing:
    """Run a command; CommandError with the end of what it said when it fails.

    With `one_core` the process and its children share one core, so that helpers of a "single process" count too.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as errors:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=said, stderr=errors, env={**os.environ, **(environment or {})})
        if one_core and cores:
            os.sched_setaffinity(process.pid, {cores[-1]})  # at once: an interpreter takes longer to start
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        errors.seek(0)
        if process.returncode:
            lines = errors.read().strip().splitlines() or ["it said nothing"]
            raise CommandError(f"{' '.join(command)}: exit code {process.returncode}: {lines[-1]}")
        return Timing(
            seconds=seconds,
            cpu_seconds=usage.ru_utime + usage.ru_stime,
            peak_bytes=usage.ru_maxrss * 1024,
            output=said.read(),
        )
