"""Text in and out for commands: files or the standard streams."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from bert_pipeline.errors import InputError


@contextlib.contextmanager
def reading(path: str) -> Iterator[tuple[IO[str], str]]:
    """Open a file, or standard input for "-": yields (lines, what to call it). InputError when it cannot be read."""
    if path == "-":
        yield sys.stdin, "standard input"
        return
    try:
        with open(path, encoding="utf-8", newline="\n") as stream:
            yield stream, path
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 ({error.reason} at byte {error.start})") from error
    except OSError as error:
        if error.filename != path:
            raise
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path") from error


@contextlib.contextmanager
def writing(path: str) -> Iterator[IO[str]]:
    """Open a file that appears whole when the block ends well, or standard output for "-"."""
    if path == "-":
        yield sys.stdout
        return
    target = Path(path)
    temporary = target.with_name(f".{target.name}.partial-{os.getpid()}")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(temporary, "w", encoding="utf-8") as stream:
            yield stream
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
