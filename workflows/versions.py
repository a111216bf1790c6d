"""Code versions: a hash over the source files that decide what an asset holds, so that stale assets show as stale."""

import functools
import hashlib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@functools.cache
def source_version(*paths: str) -> str:
    """Hash source files and packages, given relative to the project ("bert_pipeline/wikipedia"), in sorted order."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        target = ROOT / path
        files = sorted(target.rglob("*.py")) if target.is_dir() else [target]
        for file in files:
            digest.update(file.relative_to(ROOT).as_posix().encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:12]
