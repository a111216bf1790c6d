"""Progress of a Beam job."""

import contextlib
import threading
from collections.abc import Callable, Iterator

Progress = Callable[[int, int], None]
"""Called periodically with the number of finished shards and the number of all shards."""


def of_total(progress: Progress | None, total: int) -> Callable[[int], None] | None:
    """Return a function of the number of finished shards alone, None for no progress."""
    return None if progress is None else lambda finished: progress(finished, total)


@contextlib.contextmanager
def call_periodically(function: Callable[[], None], seconds: float = 0.5) -> Iterator[None]:
    """Call `function` every few `seconds` from a background thread, and once more when the block ends."""
    stop = threading.Event()

    def poll() -> None:
        while not stop.wait(seconds):
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
