"""What a program does on SIGINT and SIGTERM, until the end of a block."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType

ONE_REQUEST_SECONDS = 5.0
"""Time in which further signals belong to the first."""

Handler = Callable[[int, FrameType | None], object]


@contextlib.contextmanager
def handling(interrupt: Handler, terminate: Handler) -> Iterator[None]:
    """Handle SIGINT and SIGTERM in the block; outside of the main thread, the caller does.

    SIGINT is obeyed in background jobs too, which shells start with it ignored; their children inherit that.
    """
    previous = {}
    try:
        with contextlib.suppress(ValueError):  # not the main thread
            for number, handler in {signal.SIGINT: interrupt, signal.SIGTERM: terminate}.items():
                previous[number] = signal.signal(number, handler)
        yield
    finally:
        for number, former in previous.items():
            signal.signal(number, former)


def exiting_on_signals() -> contextlib.AbstractContextManager[None]:
    """Let SIGTERM unwind the block as SIGINT does, so that workers end and drafts are removed; the exit code is 143."""
    return handling(signal.default_int_handler, lambda *_: sys.exit(128 + signal.SIGTERM))


def term_as_interrupt() -> contextlib.AbstractContextManager[None]:
    """Turn SIGTERM into an interrupt, on which Dagster ends a run in order."""
    return handling(signal.default_int_handler, lambda *_: os.kill(os.getpid(), signal.SIGINT))


@contextlib.contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Catch both signals: the yielded function tells whether one arrived; a later one ends the process."""
    requested: float | None = None

    def handle(number: int, _: FrameType | None) -> None:
        nonlocal requested
        # The first signal waits for the end of a step; a later one must end a step that hangs. A scheduler that stops
        # every process of a job sends one, and torchrun passes on its own.
        if requested is None:
            requested = time.monotonic()
        elif time.monotonic() - requested > ONE_REQUEST_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    with handling(handle, handle):
        yield lambda: requested is not None
