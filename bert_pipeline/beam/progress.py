"""Progress of a Beam job, and other functions that are called while something else runs."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TypeVar

Value = TypeVar("Value")

_POLL_SECONDS = 0.5

Progress = Callable[[int, int], None]
"""Called periodically with the number of finished shards and the number of all shards."""


def of_total(progress: Progress | None, total: int) -> Callable[[int], None] | None:
    """Return a function of the number of finished shards alone, None for no progress."""
    return None if progress is None else lambda finished: progress(finished, total)


@contextlib.contextmanager
def call_periodically(function: Callable[[], None]) -> Iterator[None]:
    """Call `function` every half second from a background thread, and once more when the block ends."""
    stop = threading.Event()

    def poll() -> None:
        while not stop.wait(_POLL_SECONDS):
            function()

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield
    finally:
        # Join before the last call, so that `function` never runs twice at once.
        stop.set()
        thread.join()
        function()


def in_background(function: Callable[[], Value]) -> Future[Value]:
    """Start a function in a thread that ends with the process: one of an executor would keep a failed job alive."""
    future: Future[Value] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # raised where the result is asked for
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
