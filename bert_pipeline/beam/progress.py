"""Progress of a Beam job: the number of finished shards, counted in the scratch directory that all workers share."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

_POLL_SECONDS = 0.5

Progress = Callable[[int, int], None]
"""Called periodically with the number of finished shards and the number of all shards."""


@contextlib.contextmanager
def report_shards(scratch: Path, pattern: str, total: int, progress: Progress | None) -> Iterator[None]:
    """Around a pipeline: report how many files in `scratch` match `pattern`."""
    if progress is None:
        yield
        return
    with call_periodically(lambda: progress(sum(1 for _ in scratch.glob(pattern)), total)):
        yield


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
