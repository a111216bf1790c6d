"""Progress of a job, told by the files that its workers have finished: true for every runner."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

Progress = Callable[[int, int], None]
"""Called now and then with the number of finished shards and the number of all."""

_POLL_SECONDS = 0.5


@contextlib.contextmanager
def reporting(directory: Path, pattern: str, total: int, progress: Progress | None) -> Iterator[None]:
    """Around a pipeline: count the files in `directory` that match `pattern`, from a thread of its own."""
    if progress is None:
        yield
        return
    stop = threading.Event()

    def poll() -> None:
        while not stop.wait(_POLL_SECONDS):
            progress(sum(1 for _ in directory.glob(pattern)), total)

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    progress(total, total)
