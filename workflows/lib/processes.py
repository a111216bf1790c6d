"""The process that executes a run: its code, the mark by which a killed one is recognized, and what that has left."""

import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import psutil

from bert_pipeline.parent import GRACE_SECONDS, OWNER_VARIABLE

ROOT = Path(__file__).resolve().parents[2]

PROCESS_TAG = "bert/process"
"""Tag of a run with the process that executes it; see `run_mark`."""
GRPC_TAG = ".dagster/grpc_info"
"""Tag in which Dagster stores the address of the code server that executes a run."""


def process_mark(process_id: int | None = None) -> str:
    """Return host, process id and start time of a process, "" if it is gone.

    The start time tells it from a later process with the same id. On Linux it counts from the start of the machine,
    so that a clock that is set does not change it.
    """
    process_id = os.getpid() if process_id is None else process_id
    try:
        process = psutil.Process(process_id)
        if process.status() == psutil.STATUS_ZOMBIE:
            return ""
        if Path("/proc/self/stat").exists():
            started = Path(f"/proc/{process_id}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
        else:
            started = f"{process.create_time():.0f}"
    except (psutil.NoSuchProcess, OSError):
        return ""
    return f"{socket.gethostname()}:{process_id}:{started}"


def processes_with(variable: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield id and environment of each process in which a variable is set."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # of another user, or it has ended
            if (environment := process.environ()).get(variable):
                yield process.pid, environment


def left_over(home: Path) -> list[int]:
    """Return the processes of a home that have lost the one that started them: they save, and end within a minute."""
    owned = [(pid, each) for pid, each in processes_with(OWNER_VARIABLE) if each.get("BERT_HOME") == str(home)]
    return [pid for pid, each in owned if not process_mark(int(each[OWNER_VARIABLE]))]


def wait_for_left_over(home: Path, log: Callable[[str], None]) -> None:
    """Wait until what a killed process of this home has left is gone, and with it its locks and GPU memory."""
    deadline = time.monotonic() + GRACE_SECONDS + 20
    if remaining := left_over(home):
        log(f"waiting for {len(remaining)} processes of a run or UI that was killed: they end within a minute")
    while remaining and time.monotonic() < deadline:
        time.sleep(0.2)
        remaining = left_over(home)


def holder_of_port(port: int) -> str:
    """Return the process that listens on a port, such as "process 12 (python)"; "" for none, or if it is unknown."""
    with contextlib.suppress(psutil.Error):  # of another user, or on macOS
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                return f"process {connection.pid} ({psutil.Process(connection.pid).name()})"
    return ""


def run_mark(run_id: str) -> str:
    """Return the value of the tag: the marks of this process and of the run that it executes.

    Dagster copies tags to a run that is executed again, where the mark of the former run has no meaning.
    """
    return f"{process_mark()}:{run_id}"


def process_of(run: dg.DagsterRun) -> str:
    """Return the mark of the process that executes a run, "" if the run has none of its own."""
    value = run.tags.get(PROCESS_TAG, "")
    mark, _, run_id = value.rpartition(":")
    return mark if run_id == run.run_id else ""


def mark_run(instance: dg.DagsterInstance, run: dg.DagsterRun) -> None:
    """Tag a run of the UI with this process, which executes it.

    A code server that others reach by a port is left out: it may be in a container, and marks its runs itself.
    """
    if not process_of(run) and "socket" in json.loads(run.tags.get(GRPC_TAG, "{}")):
        instance.add_run_tags(run.run_id, {PROCESS_TAG: run_mark(run.run_id)})


def repeat_lost_interrupt(dropped: "sys.UnraisableHookArgs") -> None:
    """Send an interrupt again that Python drops, since it arrived in a finalizer: a canceled run would go on."""
    sys.__unraisablehook__(dropped)
    if issubclass(dropped.exc_type, (KeyboardInterrupt, dg.DagsterExecutionInterruptedError)):
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()  # raised here, it would be dropped too


@functools.cache
def code_commit() -> str:
    """Return the commit of the working tree, "+changes" appended if files differ; "" outside a git checkout."""
    command = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+changes"]  # by no tag's name
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
