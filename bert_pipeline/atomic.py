"""Writing a directory or a file whole or not at all, on a disk: under another name first, then renamed; locks, caches.

Drafts of writers that were killed are found by their locks, or where a file system has none, by their age.
"""

import contextlib
import errno
import fcntl
import glob
import math
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from bert_pipeline import storage
from bert_pipeline.errors import ArtifactError, BertError, DiskFullError, UnavailableError
from bert_pipeline.storage import is_remote

ABANDONED_DAYS = 7
"""Age from which files of an attempt that did not publish are removed where no lock tells whether somebody writes."""


@contextlib.contextmanager
def locked(
    path: Path, *, wait: float = math.inf, busy: BertError | None = None, directory: bool = False
) -> Iterator[bool]:
    """Hold the lock of a file, which is created for it, or of an existing `directory` until block or process ends.

    If another process holds it for `wait` seconds, raise `busy`, or an UnavailableError, with the holder of a file's
    lock. Yield False where the file system has no locks: nothing is held then. ArtifactError if the file cannot be
    created.
    """
    deadline = time.monotonic() + wait
    while (taken := _take_lock(path, directory)) is None:
        if time.monotonic() >= deadline:
            error = busy or UnavailableError(f"{path}: in use by another process; wait until it ends")
            with contextlib.suppress(OSError):  # a directory, or removed at this moment
                error = type(error)(f"{error} (held by {path.read_text(encoding='utf-8', errors='replace')})")
            raise error
        time.sleep(0.1)
    descriptor, is_held = taken
    try:
        yield is_held
    finally:
        os.close(descriptor)


def _take_lock(path: Path, directory: bool) -> tuple[int, bool] | None:
    """Return the open file of a lock, and whether there are locks to hold; None if another process holds it."""
    if directory:
        descriptor = os.open(path, os.O_RDONLY)
    else:
        with disk_errors(path.parent, creating=True):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_taken = os.fstat(descriptor).st_nlink == 0  # by its former holder: others lock a new one
    except BlockingIOError:
        is_taken = True
    except OSError:
        return descriptor, False
    if is_taken:
        os.close(descriptor)
        return None
    with contextlib.suppress(OSError):  # a directory, or a full disk: the text is for who finds the lock taken
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {os.uname().nodename}".encode(), 0)
    return descriptor, True


def cached(target: Path, make: Callable[[Path], object], check: Callable[[Path], object] = os.stat) -> Path:
    """Return `target`, a path named by a key of its content, after `make` has written it whole if it is missing.

    One process makes it while the others of this machine wait. It counts as missing if `check` raises an ArtifactError
    or OSError.
    """
    with locked(target.with_name(f".{target.name}.lock")):
        try:
            check(target)
        except (ArtifactError, OSError):
            make(target)
    return target


@contextlib.contextmanager
def atomic_directory(directory: Path) -> Iterator[Path]:
    """Yield a temporary directory that replaces `directory` at the end, or is removed if the block raises.

    ArtifactError if `directory` was published or written to by others since the block began, or if the disk is full; it
    stays as it was.
    """
    # The name is unique and a lock says who is at work: process ids mean nothing to another container on the volume.
    temporary = directory.parent / f".{directory.name}.partial-{uuid.uuid4().hex}"
    with contextlib.ExitStack() as held:
        with disk_errors(directory, creating=True):
            directory.parent.mkdir(parents=True, exist_ok=True)
            # The parent's lock: nobody sees a draft without its lock, or `directory` between its two renames.
            with locked(directory.parent, directory=True):
                remove_abandoned_drafts(directory)
                before = _entries(directory)
                temporary.mkdir()
                held.enter_context(locked(temporary, directory=True))
        try:
            with disk_errors(directory):
                yield temporary
                with locked(directory.parent, directory=True):
                    if _entries(directory) != before:
                        raise ArtifactError(
                            f"{directory}: another run has published or written here since this one began; what it "
                            "wrote is kept, and the files of this run are removed; give another path, or run the "
                            "command again"
                        )
                    _replace_directory(directory, temporary)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _replace_directory(directory: Path, new: Path) -> None:
    """Rename `new` to `directory`. A former one moves aside first, and back if the renaming fails."""
    old = new.with_name(f"{new.name}-old")
    moved = directory.exists()  # `rename` does not replace a directory with files in it
    if moved:
        os.rename(directory, old)
    try:
        os.rename(new, directory)
    except BaseException:
        if moved:
            os.rename(old, directory)
        raise
    _flush_directory(directory.parent)
    storage.remove_tree(old)  # it may be a symbolic link


def _entries(directory: Path) -> tuple[int, list[str]] | None:
    """Return what tells whether others have replaced a directory or put something into it; None if there is none."""
    try:
        return directory.stat().st_ino, sorted(os.listdir(directory))
    except FileNotFoundError:
        return None


def is_abandoned(draft: Path) -> bool:
    """Tell whether nobody holds the lock of a draft; of a file, or without locks, whether it has reached its age."""
    try:
        with locked(draft, wait=0, directory=True) as has_locks:
            if has_locks and draft.is_dir():  # writers of files hold none
                return True
            with tempfile.TemporaryFile(dir=draft.parent) as probe:  # its time is of the same clock as the draft's
                return os.fstat(probe.fileno()).st_mtime - draft.stat().st_mtime > ABANDONED_DAYS * 24 * 3600
    except UnavailableError:
        return False


def remove_abandoned_drafts(directory: Path) -> None:
    """Remove the temporary directories of `directory` whose writer was killed; put an artifact moved aside back.

    The caller holds the lock of the parent directory.
    """
    for leftover in directory.parent.glob(f".{glob.escape(directory.name)}.partial-*"):
        with contextlib.suppress(FileNotFoundError):  # a writer that ends at this moment removes its own
            if not is_abandoned(leftover):
                continue
            if leftover.name.endswith("-old") and not directory.exists():  # killed between the two renames
                os.rename(leftover, directory)
            storage.remove_tree(leftover)


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path that is renamed to `path` at the end, or removed if the block raises.

    The name is unique, so that two attempts at one file do not meet. A killed process leaves a hidden `*.tmp` file.
    The temporary path is always a local one: a file in a store is uploaded at the end. ArtifactError before the block
    if nothing can be written there, and if the disk is full.
    """
    if is_remote(path):
        with tempfile.TemporaryDirectory(prefix="bert-") as scratch:
            with disk_errors(local := Path(scratch) / path.name):
                yield local
            storage.upload(local, path)
        return
    check_file_target(path)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with disk_errors(path):
            yield temporary
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def check_file_target(path: Path) -> None:
    """Raise ArtifactError if no local file can be written at `path`: before the work, which the renaming would lose."""
    if is_remote(path):
        return
    if path.is_dir():
        raise ArtifactError(f"{path}: is a directory, expected the name of a file to write; give a path in it")
    place = next(parent for parent in path.absolute().parents if os.path.lexists(parent))
    if not place.is_dir():
        raise ArtifactError(f"{path}: cannot be written: {place}: {describe_obstacle(place)}; give another path")
    if not os.access(place, os.W_OK | os.X_OK):
        raise ArtifactError(f"{path}: cannot be written: {place} may not be written; give a path in another")


@contextlib.contextmanager
def disk_errors(path: Path, *, creating: bool = False) -> Iterator[None]:
    """Turn the error of a full disk or quota, which names no file, into a DiskFullError that names `path`.

    With `creating`, the block makes `path` a directory or the first file in it, and each OSError is an ArtifactError.
    """
    try:
        yield
    except OSError as error:
        if creating:
            # The nearest name that exists decides: a file, a link to nowhere, or a directory that may not be written.
            # What replaces a directory that may be written is first written beside it.
            is_beside = path.is_dir() and os.access(path, os.W_OK)
            places = path.absolute().parents if is_beside else (path, *path.absolute().parents)
            place = next((item for item in places if os.path.lexists(item)), path)
            reason = error.strerror or str(error) if place.is_dir() else describe_obstacle(place)
            raise ArtifactError(
                f"{path}: cannot be written: {place}: {reason}; give a path in a directory that can be written"
            ) from error
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        # A file of a draft is not what the user knows: the directory is that it was to become.
        target = re.sub(r"(^|/)\.([^/]+)\.partial-[0-9a-f]{32}(/.*)?$", r"\1\2", str(path))
        free = f"{shutil.disk_usage(path.parent).free:,} bytes are free there"
        with contextlib.suppress(OSError):  # raised where no file can be created in any temporary directory
            scratch = tempfile.gettempdir()  # where the work spills to: it may be that which is full
            free += f", {shutil.disk_usage(scratch).free:,} in {scratch}"
        raise DiskFullError(
            f"{target}: cannot be written: {os.strerror(error.errno)}; {free}; free some, or give a path on another "
            "disk, or another TMPDIR"
        ) from error


def replace_text(path: Path, text: str) -> None:
    """Replace a small text file, whole or not at all."""
    with atomic_write(path) as temporary:
        write_text_durably(temporary, text)


def write_text_durably(path: Path, text: str) -> None:
    """Write a small text file and flush it to disk."""
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def _flush_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def describe_obstacle(path: Path) -> str:
    """Return what a path is that exists and is not a directory."""
    if path.is_symlink():
        return f"exists and is a symbolic link to {os.readlink(path)}, which is not a directory"
    return "exists and is not a directory"
