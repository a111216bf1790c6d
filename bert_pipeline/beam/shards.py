"""Shards of a Beam job: worker failures that keep their type, input checks, and progress.

Workers and the parent share a scratch directory, and nothing else: workers write small files to it, the parent reads
them. So both work on every runner that shares a file system with the parent.
"""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from bert_pipeline import errors
from bert_pipeline.errors import ArtefactError, BertError
from bert_pipeline.manifest import atomic_write, file_sha256

_FAILURES = "failures"
_POLL_SECONDS = 0.5

Progress = Callable[[int, int], None]
"""Called periodically with the number of finished shards and the number of all shards."""


@contextlib.contextmanager
def record_failure(scratch: Path, shard: int) -> Iterator[None]:
    """In a worker: write a `BertError` of the block to `scratch` and suppress it; other exceptions propagate.

    Beam would run the bundle again, and raise the error in the parent as a RuntimeError with the worker's traceback.
    """
    try:
        yield
    except BertError as error:
        (scratch / _FAILURES).mkdir(exist_ok=True)
        with atomic_write(scratch / _FAILURES / f"{shard:06d}.json") as path:
            path.write_text(json.dumps({"kind": type(error).__name__, "message": str(error)}), encoding="utf-8")


def has_failed(scratch: Path) -> bool:
    """In a worker: return True if any shard has failed, so that the remaining ones can be skipped."""
    return (scratch / _FAILURES).exists()


@contextlib.contextmanager
def raise_failure(scratch: Path) -> Iterator[None]:
    """Around a pipeline: raise the recorded error of the first shard that failed, with its original type."""
    try:
        yield
    finally:
        for path in sorted(scratch.glob(f"{_FAILURES}/*.json"))[:1]:
            record = json.loads(path.read_text(encoding="utf-8"))
            raise getattr(errors, record["kind"])(record["message"])


def check_shard(path: str, sha256: str) -> None:
    """Raise ArtefactError if the shard's sha256 differs from the one in its manifest."""
    found = file_sha256(Path(path))
    if found != sha256:
        raise ArtefactError(
            f"{path}: sha256 is {found[:12]}…, expected {sha256[:12]}…; the file was changed or damaged, make it again"
        )


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
        stop.set()
        thread.join()
        function()
