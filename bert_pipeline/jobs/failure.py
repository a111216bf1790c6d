"""How an error in a Beam worker reaches the user as the sentence that it is, not as Beam's nested tracebacks."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from bert_pipeline import errors
from bert_pipeline.errors import ArtefactError, BertError
from bert_pipeline.manifest import file_sha256

_NAME = "failure.json"


@contextlib.contextmanager
def recorded_in(directory: Path) -> Iterator[None]:
    """In a worker: write an error of ours into `directory` on its way up."""
    try:
        yield
    except BertError as error:
        temporary = directory / f"{_NAME}.{os.getpid()}"
        temporary.write_text(json.dumps({"kind": type(error).__name__, "message": str(error)}), encoding="utf-8")
        os.replace(temporary, directory / _NAME)
        raise


@contextlib.contextmanager
def raised_from(directory: Path) -> Iterator[None]:
    """Around a pipeline: raise the error that a worker wrote into `directory`, if that is why the pipeline failed."""
    try:
        yield
    except Exception as error:
        with contextlib.suppress(FileNotFoundError):
            record = json.loads((directory / _NAME).read_text(encoding="utf-8"))
            raise getattr(errors, record["kind"])(record["message"]) from error
        raise


def check_shard(path: str, sha256: str) -> None:
    """In a worker: ArtefactError when a shard's bytes are not those that its manifest lists."""
    found = file_sha256(Path(path))
    if found != sha256:
        raise ArtefactError(
            f"{path}: sha256 is {found[:12]}…, expected {sha256[:12]}…; the file was changed or damaged, make it again"
        )
