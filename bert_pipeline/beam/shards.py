"""Shards of a Beam job: progress, and the first failure of a worker raised in the parent."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from bert_pipeline import errors
from bert_pipeline.errors import ArtefactError, BertError
from bert_pipeline.manifest import file_sha256, written_whole

_NAME = "failure.json"


@contextlib.contextmanager
def recorded_in(directory: Path) -> Iterator[None]:
    """In a worker: an error of ours ends the block and is kept in `directory`; any other goes its way."""
    try:
        yield
    except BertError as error:
        with written_whole(directory / _NAME) as path:
            path.write_text(json.dumps({"kind": type(error).__name__, "message": str(error)}), encoding="utf-8")


def has_failed(directory: Path) -> bool:
    """In a worker: true when the job is lost, so that there is no use in working on."""
    return (directory / _NAME).exists()


@contextlib.contextmanager
def raised_from(directory: Path) -> Iterator[None]:
    """Around a pipeline: raise the error that a worker left in `directory`."""
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            record = json.loads((directory / _NAME).read_text(encoding="utf-8"))
            raise getattr(errors, record["kind"])(record["message"])


def check_shard(path: str, sha256: str) -> None:
    """In a worker: ArtefactError when a shard's bytes are not those that its manifest lists."""
    found = file_sha256(Path(path))
    if found != sha256:
        raise ArtefactError(
            f"{path}: sha256 is {found[:12]}…, expected {sha256[:12]}…; the file was changed or damaged, make it again"
        )


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
