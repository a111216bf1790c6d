"""Names the rank that keeps the others waiting.

Every rank notes in the group's store which step it has come to, before it meets the others there. A thread looks at
the clock: when nothing has moved for half the group's timeout it says who has not come, and where this rank stands
in the code. The timeout itself ends the wait.
"""

import datetime
import faulthandler
import json
import logging
import os
import threading
import time
from types import TracebackType
from typing import Any

import torch.distributed as dist

from bert_model.distributed import Group

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
