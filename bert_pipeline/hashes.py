"""Hashes of files and of JSON documents, by which artifacts and their files are known."""

import contextlib
import functools
import hashlib
import io
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from bert_pipeline import storage
from bert_pipeline.errors import ArtifactError
from bert_pipeline.storage import is_remote, open_binary

SETTLING_SECONDS = 2.0
"""Age from which a time of change tells whether a file has changed: clocks of file systems count in coarse steps."""


def content_sha256(content: Mapping[str, Any]) -> str:
    """Hash a JSON-compatible mapping in canonical form (sorted keys, no spaces)."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def file_sha256(path: Path | str) -> str:
    """Return the sha256 of a file. InputError if it cannot be read."""
    with storage.read_errors(path), open_binary(path) as stream:
        return hashlib.file_digest(cast("io.BufferedReader", stream), "sha256").hexdigest()


def sha256_once(path: Path) -> str:
    """Return the sha256 of a file; of one that has not changed since this process last asked, without reading it."""
    if is_remote(path):
        return file_sha256(path)
    status = path.stat()
    # A file that was written this moment could change without another time.
    if time.time() - status.st_ctime < SETTLING_SECONDS:
        return file_sha256(path)
    return _sha256_at(path, status.st_ino, status.st_size, status.st_ctime_ns)


@functools.lru_cache(maxsize=1 << 16)
def _sha256_at(path: Path, inode: int, size: int, changed_ns: int) -> str:
    return file_sha256(path)


@contextlib.contextmanager
def checked_copy(path: Path | str, sha256: str) -> Iterator[Path]:
    """Yield a local path of a file with this sha256, which of one in a store is a copy. ArtifactError if it differs."""
    with storage.local_copy(path) as local:
        check_shard(str(local), sha256, name=path)
        yield local


def check_shard(path: str, sha256: str, *, name: Path | str = "") -> None:
    """Raise ArtifactError if the shard's sha256 differs from the one in its manifest; `name` is what a copy is of."""
    actual = file_sha256(path)
    if actual != sha256:
        raise ArtifactError(
            f"{name or path}: sha256 is {actual[:12]}…, expected {sha256[:12]}…; the file was changed or damaged, "
            "make it again"
        )
