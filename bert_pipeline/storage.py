"""One door to storage: local paths, and URLs of stores such as `s3://bucket/corpus`.

`to_path` turns either into an object with the methods of `pathlib.Path`: a local path or `file:` URL into a `Path`, any
other URL into a `UPath` of universal_pathlib, which asks fsspec. A `UPath` is no `os.PathLike`, so `open`, pyarrow and
`os` refuse it instead of creating a local file of that name: they need `open_binary`, `local_copy` or `upload`.

A store has no rename, no append and no flush. An object appears when its upload is complete, and replaces the one
before.
"""

import argparse
import contextlib
import errno
import glob
import io
import os
import re
import shutil
import tempfile
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from bert_pipeline.errors import ArtifactError, BertError, InputError, UnavailableError, UsageError, suggest

EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
"""Extra of this project that brings the client of a scheme. The others are installed by their own name."""

_BLOCK_BYTES = 4 << 20
_MAX_BLOCKS = 4
_CLIENTS = ("aiobotocore", "aiohttp", "botocore", "fsspec", "gcsfs", "google", "huggingface_hub", "s3fs")
"""Packages whose exceptions come from a store."""


def scheme_of(name: Path | str) -> str:
    """Return the scheme of a URL, "" for a local path, which may contain any other colon."""
    scheme, separator, _ = str(name).partition("://")
    return scheme.lower() if separator and scheme.isalnum() else ""


def is_remote(name: Path | str) -> bool:
    """Return True for the URL of a store, or for the path made of one; False for local paths and `file:` URLs."""
    return scheme_of(name) not in ("", "file", "local")


def to_path(name: Path | str) -> Path:
    """Return the path of a local name or URL. UsageError for an unknown scheme, or one whose client is not installed.

    The path of a URL is a `UPath`, declared as `Path` because its methods are the same; see the module for what is not.
    """
    scheme = scheme_of(name)
    if not isinstance(name, str):
        return name
    if not scheme:
        kind, slash, _ = name.partition(":/")
        if slash and kind.lower() in (*EXTRAS, "hdfs", "memory"):
            raise UsageError(f"{name}: found one slash after {kind}:, expected {kind}://")
        return Path(name)
    if not is_remote(name):
        return Path(urllib.parse.unquote(name.partition("://")[2].removeprefix("localhost")))
    import fsspec  # 0.1 s with upath, for URLs only

    try:
        fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        extra = EXTRAS.get(scheme)
        remedy = f"install the extra: .venv/bin/pip install -e '.[{extra}]'" if extra else str(error)
        raise UsageError(f"{name}: the client of {scheme}:// is not installed; {remedy}") from None
    except ValueError:
        hint = suggest(scheme, [*EXTRAS, "file", "hdfs", "memory"])
        raise UsageError(f"{name}: no kind of storage is called {scheme!r}{hint}; give a path or such a URL") from None
    from upath import UPath

    # What a listing showed minutes ago is not what the store holds: other machines write to it.
    return cast(Path, UPath(name, use_listings_cache=False))


def path_or_url(name: str) -> Path:
    """Convert an argument: a local path, or the URL of a store."""
    try:
        return to_path(name)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def local_path(name: str) -> Path:
    """Convert an argument that names a local file or directory. The error names the URL of a store."""
    if is_remote(name):
        raise argparse.ArgumentTypeError(f"{name}: expected a local path; copy it from or to the store yourself")
    return to_path(name)


def local_directory(name: str, variable: str) -> Path:
    """Return the absolute path of a directory that an environment variable names. UsageError for the URL of a store."""
    if is_remote(name):
        raise UsageError(
            f"{variable}: found {name}, expected a local directory, because databases and locks lie in it; "
            "copies of what is in stores are kept there too"
        )
    return to_path(name).resolve()


def without_secrets(name: str) -> str:
    """Return a URL without user and password, and without a query, which may sign it; any other name as it is."""
    if "://" not in name:
        return name
    return re.sub(r"://[^/@\s]*@", "://", re.sub(r"\?[^?/]*=.*", "", name))  # any other "?" is a pattern's


def open_binary(name: Path | str) -> BinaryIO:
    """Open a file for reading; it can seek. Of a remote file, only the blocks that are read are fetched."""
    if not is_remote(name):
        return open(name, "rb")
    path = to_path(name)
    options = {"cache_type": "blockcache", "cache_options": {"maxblocks": _MAX_BLOCKS}, "block_size": _BLOCK_BYTES}
    with store_errors(name):
        return cast(BinaryIO, _store(path).open(_key(path), "rb", **options))


def read_at(stream: BinaryIO, size: int, offset: int) -> bytes:
    """Read up to `size` bytes of an open file from `offset` on."""
    if isinstance(stream, io.BufferedReader):
        return os.pread(stream.fileno(), size, offset)
    stream.seek(offset)
    return stream.read(size)


def read_range(name: Path | str, start: int, stop: int) -> bytes:
    """Return the bytes of a file in a store from `start` up to `stop`, or to its end; no others are fetched."""
    path = to_path(name)
    with store_errors(name):
        return cast(bytes, _store(path).cat_file(_key(path), start=start, end=stop))


def arrow_source(name: Path | str) -> str | BinaryIO:
    """Return what pyarrow opens a file by: the name of a local one, the open file of a store."""
    return open_binary(name) if is_remote(name) else str(name)


def absolute(name: Path | str) -> str:
    """Return a name that workers in other directories can open; the URL of a store is one."""
    return str(name) if is_remote(name) else str(to_path(name).absolute())


def make_directory(path: Path) -> None:
    """Create a directory, and its parents, if it does not exist. A store has names of files only."""
    if not is_remote(path):
        path.mkdir(parents=True, exist_ok=True)


def sizes_below(path: Path) -> dict[str, int]:
    """Return the size of every file below a directory of a store, by its relative POSIX path, from one listing."""
    store, key = _store(path), _key(path)
    with store_errors(path):
        try:
            entries = store.find(key, detail=True)
        except FileNotFoundError:
            return {}
    # Consoles of stores mark a folder by an empty object whose name ends in a slash.
    files = {name: entry["size"] for name, entry in entries.items() if name.rstrip("/") != key and name[-1:] != "/"}
    sizes = {name[len(key) :].strip("/"): size for name, size in files.items()}
    return dict(sorted(sizes.items(), key=lambda item: item[0].split("/")))  # in the order of paths


def versions_below(path: Path) -> dict[str, str]:
    """Return `version_of` each file at or below a path of a store, by its relative path: "" for the path itself."""
    store, key = _store(path), _key(path)
    with store_errors(path):  # an empty object whose name ends in a slash marks a folder, as above
        return {file[len(key) :].strip("/"): store.ukey(file) for file in store.find(key) if not file.endswith("/")}


def size_of(name: Path | str) -> int:
    """Return the size of a file in bytes."""
    with store_errors(name):
        return to_path(name).stat().st_size


def version_of(name: Path | str) -> str:
    """Return what changes when a file is written again: size and time, or what the store says of it."""
    if not is_remote(name):
        status = os.stat(name)
        return f"{status.st_size} {status.st_mtime_ns}"
    path = to_path(name)
    with store_errors(name):
        return cast(str, _store(path).ukey(_key(path)))


def is_file(name: Path | str) -> bool:
    """Return True if there is a file of this name."""
    with store_errors(name):
        return to_path(name).is_file()


def files_in(name: Path | str) -> list[str] | None:
    """Return the files of a directory, without hidden ones, sorted; None if it is no directory."""
    path = to_path(name)
    with store_errors(name):
        if not path.is_dir():
            return None
        # A link to nowhere is one too: it is refused where it is read, and not left out in silence.
        files = (file for file in path.iterdir() if not file.name.startswith("."))
        return sorted(str(file) for file in files if file.is_file() or not file.exists())


def files_matching(pattern: str) -> list[str]:
    """Return the files that match a pattern with "*", "?", "[…]" and "**", sorted."""
    if not is_remote(pattern):
        found = glob.glob(pattern, recursive=True)
        return sorted(name for name in found if os.path.isfile(name) or not os.path.exists(name))
    # A path takes patterns below a directory: the last one before the first character that is part of a pattern.
    fixed = re.split(r"[*?\[]", pattern, maxsplit=1)[0].rpartition("/")[0]
    if not glob.has_magic(pattern) or not is_remote(fixed):
        return []
    with store_errors(pattern), contextlib.suppress(FileNotFoundError):
        return sorted(str(file) for file in to_path(fixed).glob(pattern[len(fixed) + 1 :]) if file.is_file())
    return []


def reason_of(error: OSError) -> str:
    """Return why a file cannot be read: what the system or the client of a store says."""
    if isinstance(error, FileNotFoundError):
        return os.strerror(errno.ENOENT)
    return error.strerror or str(error)


@contextlib.contextmanager
def read_errors(name: Path | str, remedy: str = "; check the path and its permissions") -> Iterator[None]:
    """Turn what keeps the block from reading a file into an InputError; of a store's client as `store_errors`."""
    try:
        with store_errors(name):
            yield
    except OSError as error:
        raise InputError(f"{name}: cannot be read ({reason_of(error)}){remedy}") from error


@contextlib.contextmanager
def local_copy(name: Path | str) -> Iterator[Path]:
    """Yield a local path with the bytes of a file: its own, or for the block that of a download."""
    path = to_path(name)
    if not is_remote(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="bert-") as directory:
        local = Path(directory) / path.name
        try:
            download(path, local)
        except FileNotFoundError as error:
            raise InputError(f"{path}: cannot be read ({reason_of(error)}); check the URL") from None
        yield local


def check_writable(path: Path) -> float:
    """Write and remove an empty file; return the store's time. A `BertError` says what keeps it from being written."""
    with _writing(path):
        _store(path).pipe_file(_key(path), b"")
        now = modified(path)
        _store(path).rm_file(_key(path))
    return now


def path_below(directory: Path, name: str) -> Path:
    """Return the path of a file below a local directory. InputError for a name that leads out of it."""
    if ".." in name.split("/") or name.startswith("/"):
        raise InputError(f"{name!r}: refused, because the name leads out of its directory; rename it in the store")
    return directory / name


def download(path: Path, local: Path) -> None:
    """Copy a file of a store to a local one."""
    local.parent.mkdir(parents=True, exist_ok=True)
    with store_errors(path):
        _store(path).get_file(_key(path), str(local))


def upload(local: Path, name: Path | str) -> None:
    """Copy a local file to a store, where it appears at once."""
    path = to_path(name)
    with _writing(path):
        _store(path).put_file(str(local), _key(path))


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn what a client raises in the block, also for the lack of a bucket, into a `BertError` of one sentence."""
    with store_errors(path):
        _create_parent(path)
        try:
            yield
        except FileNotFoundError as error:
            raise InputError(f"{path}: cannot be written ({error}); create the bucket, or give another URL") from error


def read_object(path: Path) -> bytes | None:
    """Return the bytes of a small file in a store, None if there is none."""
    try:
        with store_errors(path):
            return path.read_bytes()
    except FileNotFoundError:
        return None


def replace_object(name: Path | str, data: bytes, *, old: bytes | None) -> bool:
    """Write a small object if the store still holds `old` there, None for nothing; return False if it does not.

    Where the store compares and writes in one operation (S3, Google Cloud Storage, memory), one of several writers of a
    new object wins. Of writers that replace one, S3 decides too; elsewhere the last one wins of those that compared
    within the same moment.
    """
    path = to_path(name)
    store, key = _store(path), _key(path)
    with store_errors(path):
        _create_parent(path)
        try:
            if old is None:
                try:
                    store.pipe_file(key, data, mode="create")
                except (NotImplementedError, ValueError):  # a store without this condition, such as HDFS
                    if store.exists(key):
                        return False
                    store.pipe_file(key, data)
                return True
            # The tag is asked for before the bytes: whatever is written between the two fails the condition.
            tag = store.info(key)["ETag"] if scheme_of(path) in ("s3", "s3a") else None
            if store.cat_file(key) != old:
                return False
            try:
                store.pipe_file(key, data, **({"IfMatch": tag} if tag else {}))
            except OSError as error:
                if not tag or not _is_refused_condition(error):
                    raise
                store.pipe_file(key, data, IfMatch=tag.strip('"'))  # Ceph compares tags without their quotes
            return True
        except FileNotFoundError:
            return False
        except OSError as error:
            if not isinstance(error, FileExistsError) and not _is_refused_condition(error):
                raise
            # A client that lost the answer to its first try is refused by its own object.
            with contextlib.suppress(FileNotFoundError):  # removed at this moment
                return bool(store.cat_file(key) == data)
            return False


def _is_refused_condition(error: OSError) -> bool:
    """Return True for the S3 answers 412 (condition not met) and 409 (another conditional write at this moment)."""
    answer = getattr(error.__cause__ or error.__context__, "response", None) or {}
    return answer.get("ResponseMetadata", {}).get("HTTPStatusCode") in (409, 412)


def modified(path: Path) -> float:
    """Return when a file of a store, or the newest file below a directory of one, was written: seconds since 1970."""
    store = _store(path)
    with store_errors(path):
        return max((store.modified(key).timestamp() for key in store.find(_key(path))), default=0.0)


def remove_tree(path: Path) -> None:
    """Remove a file or a directory with everything in it, if it exists."""
    if not is_remote(path):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        return
    with store_errors(path), contextlib.suppress(FileNotFoundError):
        _store(path).rm(_key(path), recursive=True)


def remove_empty_directories(path: Path) -> None:
    """Remove the empty directories below a local directory. A store has none."""
    if not is_remote(path):
        for directory in sorted((item for item in path.rglob("*") if item.is_dir()), reverse=True):
            with contextlib.suppress(OSError):  # it holds something
                directory.rmdir()


@contextlib.contextmanager
def store_errors(name: Path | str = "") -> Iterator[None]:
    """Turn what a store's client raises in the block into a `BertError` of one sentence; FileNotFoundError passes."""
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:
        if (failure := failure_of(error, name)) is None:
            raise
        raise failure from error


def failure_of(error: BaseException, name: Path | str = "") -> BertError | None:
    """Return the one sentence for an exception of a store's client, None for any other exception.

    An UnavailableError can pass when the call is repeated, an InputError or ArtifactError cannot.
    """
    chain = [error, error.__cause__ or error.__context__]
    if isinstance(error, BertError) or not any(type(item).__module__.partition(".")[0] in _CLIENTS for item in chain):
        return None
    where = f"{name}: " if name else ""
    reason = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, FileNotFoundError):
        return InputError(f"{where}not found in the store ({reason}); check the URL")
    if isinstance(error, PermissionError) or "redential" in f"{type(error).__name__} {reason}":
        return ArtifactError(f"{where}the store refuses access ({reason}); check the credentials and their permissions")
    return UnavailableError(f"{where}the store does not answer or refuses ({reason}); run the command again")


def _store(path: Path) -> Any:
    return cast(Any, path).fs


def _key(path: Path) -> str:
    return cast(str, cast(Any, path).path)


def _create_parent(path: Path) -> None:
    """Create the directory of a file where the store has directories; a bucket is never created."""
    if scheme_of(path) not in EXTRAS:
        path.parent.mkdir(parents=True, exist_ok=True)
