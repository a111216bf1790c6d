"""Files that workers write: whole or not there, even when a runner works on the same shard twice, and at once."""

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yield a name of this attempt's own to write to; it becomes `path` at the end, and is removed on failure.

    What a killed worker leaves ends in `.tmp`.
    """
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
