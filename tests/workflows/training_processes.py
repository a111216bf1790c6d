"""Processes of trainings, found through /proc, and waiting for them; a job for runs that do nothing."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg

from workflows.lib.resources import BertHome
from workflows.lib.torchrun import LAUNCH_VARIABLE


@dg.op
def nothing() -> None: ...


@dg.job
def empty_job() -> None:
    nothing()


def training_processes(home: BertHome) -> list[tuple[int, str]]:
    """Return ids and command lines of torchrun and its ranks in all trainings of a home."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            marked = LAUNCH_VARIABLE.encode() in (entry / "environ").read_bytes()
        except OSError:  # it has ended meanwhile, or is another user's
            continue
        if marked and str(home.path) in words and "bert_model.pretraining" in words:
            found.append((int(entry.name), words))
    return found


def ranks_of(home: BertHome) -> list[int]:
    """Return the ids of the ranks in all trainings of a home."""
    return [pid for pid, words in training_processes(home) if "torch.distributed.run" not in words]


def wait_until(
    condition: Callable[[], Any], process: "subprocess.Popen[bytes] | None" = None, seconds: float = 600.0
) -> None:
    """Wait until a condition holds; fail if the process ends or the time is over before."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert process is None or process.poll() is None, f"the process ended with {process.returncode}"
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s in vain"
        time.sleep(0.03)
