"""Worker failures of a Beam job: recorded by the worker, raised in the parent with their type.

Workers and the parent share a scratch directory, and nothing else, so this works on every runner that shares a file
system with the parent.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from bert_pipeline import errors
from bert_pipeline.errors import BertError
from bert_pipeline.manifest import atomic_write
from bert_pipeline.storage import failure_of, make_directory

_FAILURES = "failures"


@contextlib.contextmanager
def record_failure(scratch: Path, shard: int) -> Iterator[None]:
    """In a worker: write a `BertError` of the block to `scratch` and suppress it; other exceptions propagate.

    What the client of a store raises becomes one. Beam would run the bundle again, and raise the error in the parent as
    a RuntimeError with the worker's traceback.
    """
    try:
        yield
    except Exception as raised:
        if (error := raised if isinstance(raised, BertError) else failure_of(raised)) is None:
            raise
        make_directory(scratch / _FAILURES)
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
