"""How an error in a Beam worker reaches the user as the sentence that it is, not as Beam's nested tracebacks.

A worker leaves the error as a file and gives its shard up; the pipeline runs on, with nothing left to do, and whoever
started it raises the error. A runner that runs failed work again would only fail again.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from bert_pipeline import errors
from bert_pipeline.attempt import written_whole
from bert_pipeline.errors import ArtefactError, BertError
from bert_pipeline.manifest import file_sha256

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
