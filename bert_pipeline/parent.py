"""Processes that end with the one that started them, however that ended.

A process that outlives its parent holds GPUs, ports and locks that nobody frees. Each watches its parent in a thread,
on every platform; Linux's PR_SET_PDEATHSIG follows the thread that started a process, which may end before it. Only
what this project starts watches: `nohup bert pretrain` has no owner.
"""

import multiprocessing
import multiprocessing.connection
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

OWNER_VARIABLE = "BERT_OWNER"
"""Environment variable with the id of the process that started this one; by it `left_over` finds what is orphaned."""
POLL_SECONDS = 0.5
GRACE_SECONDS = 50.0
"""From TERM to KILL: enough for a checkpoint."""


def start(command: Sequence[str], *, env: Mapping[str, str] | None = None, **options: Any) -> "subprocess.Popen[bytes]":
    """Start a program, `[python, "-m" or "-c", …]`, that ends with this process; by default in a session of its own.

    SIGINT and SIGTERM get their default handlers: a shell's background job ignores SIGINT, and children inherit that.
    """
    environment = {**(os.environ if env is None else env), OWNER_VARIABLE: str(os.getpid())}
    words = [command[0], "-m", "bert_pipeline.parent", *command[1:]]
    return subprocess.Popen(words, env=environment, **{"start_new_session": True, **options})


def end_with_parent() -> None:
    """Send TERM to this process when the one that started it has ended, and KILL if that takes too long.

    The leader of a process group sends them to the group. Nothing is done in a process that was not started by
    `start`, by one of its programs or by multiprocessing.
    """
    parent = multiprocessing.parent_process()
    owner = os.environ.get(OWNER_VARIABLE, "")
    if owner == str(os.getpid()) or not (owner or parent):
        return
    os.environ[OWNER_VARIABLE] = str(os.getpid())  # for the processes that this one starts
    expected = int(owner) if parent is None else parent.pid
    threading.Thread(target=_watch, args=(expected,), name="parent", daemon=True).start()


def exit_with_parent(*ends: Any) -> None:
    """Exit at once when the parent of this worker process, or one of the connections `ends`, has ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker is started by a pool"
    threading.Thread(target=_exit_after, args=((parent.sentinel, *ends),), name="parent", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    group = os.getpid() if os.getpgrp() == os.getpid() else None
    for number in (signal.SIGTERM, signal.SIGKILL):
        if group is None:
            os.kill(os.getpid(), number)
        else:
            os.killpg(group, number)
        time.sleep(GRACE_SECONDS)


def _exit_after(ends: Sequence[Any]) -> None:
    multiprocessing.connection.wait(ends)
    os._exit(1)


def main(words: Sequence[str]) -> None:
    """Run `-m MODULE …` or `-c CODE …` as Python does, in a process that watches its parent."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent()
    option, program, *arguments = words
    sys.argv = [option, *arguments]
    if option == "-c":
        exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
