"""Manifests and atomic publishing: an artifact directory is complete with its manifest, or it does not exist.

A manifest has two halves. `content` is a function of the inputs and the configuration alone: files with sha256 and
rows, counts, the resolved configuration, and the hashes of the inputs' manifests. `provenance` is everything else:
time, host, number of workers, paths. The sha256 of `content` is the artifact's identity and data version.

A local directory is written under another name and renamed. A store has no rename: the files of an attempt are uploaded
below a directory of that attempt, `DIRECTORY/attempt-…/`, and `DIRECTORY/manifest.json` is written last; its provenance
names the attempt.
"""

import contextlib
import dataclasses
import datetime
import functools
import json
import logging
import os
import re
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

from bert_pipeline import storage
from bert_pipeline.atomic import ABANDONED_DAYS, atomic_directory, cached, describe_obstacle, disk_errors, replace_text
from bert_pipeline.errors import ArtifactError, BertError, InputError, UsageError
from bert_pipeline.hashes import check_shard, content_sha256, file_sha256, sha256_once
from bert_pipeline.storage import is_remote, to_path

MANIFEST_NAME = "manifest.json"
FORMAT_VERSIONS = {"corpus": 3, "instances": 2, "checkpoint": 2, "pretrained_model": 2, "finetuned_model": 2}
"""Format of the files of a kind, 1 for any other. No other format is read."""
ATTEMPT = "attempt"
"""Entry of the provenance of an artifact in a store: the directory with its files."""

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """The manifest of one artifact directory, as read from disk."""

    path: Path
    """The directory of the listed files. In a store, and in a copy of one, it is below that with the manifest."""
    content: dict[str, Any]
    provenance: dict[str, Any]

    @property
    def directory(self) -> Path:
        """The directory with the manifest, by which people name the artifact."""
        return self.path.parent if self.path.name == self.provenance.get(ATTEMPT) else self.path

    @property
    def kind(self) -> str:
        return cast(str, self.content["kind"])

    @property
    def format_version(self) -> int:
        return cast(int, self.content["format_version"])

    @property
    def files(self) -> dict[str, dict[str, Any]]:
        """Relative POSIX path -> {"sha256", "bytes", and where they make sense "rows", "footer_sha256"}, by path."""
        return cast("dict[str, dict[str, Any]]", self.content["files"])

    @property
    def counts(self) -> dict[str, Any]:
        return cast("dict[str, Any]", self.content["counts"])

    @property
    def configuration(self) -> dict[str, Any]:
        return cast("dict[str, Any]", self.content["configuration"])

    @property
    def inputs(self) -> dict[str, Any]:
        return cast("dict[str, Any]", self.content["inputs"])

    @property
    def sha256(self) -> str:
        """The artifact's identity: equal content has equal hashes, whatever the provenance."""
        return content_sha256(self.content)

    def file_paths(self, prefix: str = "") -> list[Path]:
        """Absolute paths of the listed files whose relative path starts with `prefix`, in order."""
        return [self.path / name for name in self.files if name.startswith(prefix)]


def load_manifest(
    directory: Path | str, *, kind: str | None = None, verify: Literal["sizes", "sha256"] = "sizes"
) -> Manifest:
    """Read and check the manifest of an artifact directory.

    `verify="sizes"` compares the size of every listed file, `"sha256"` its bytes too: of a file of this machine once a
    process, until it changes. Files that the manifest does not list are ignored. ArtifactError names the file, what was
    found and what was expected.
    """
    manifest = read_manifest(directory)
    if kind is not None and manifest.kind != kind:
        raise ArtifactError(f"{directory}: found a {manifest.kind}, expected a {kind}; give another path")
    # Sizes cost one `stat` a file, or one listing of a store, and catch interrupted copies; hashes read every byte.
    sizes = storage.sizes_below(manifest.path) if is_remote(manifest.path) else None
    for name, entry in manifest.files.items():
        path = manifest.path / name
        if sizes is not None:
            size = sizes.get(name)
        else:
            size = path.stat().st_size if path.is_file() else None
        if size != entry["bytes"]:
            state = "is missing" if size is None else f"has {size} bytes"
            raise ArtifactError(f"{path}: {state}, expected {entry['bytes']} bytes; make the artifact again")
        if verify == "sha256" and (actual := sha256_once(path)) != entry["sha256"]:
            raise ArtifactError(
                f"{path}: sha256 is {actual[:12]}…, expected {entry['sha256'][:12]}…; the file was changed or damaged"
            )
    return manifest


def read_manifest(directory: Path | str, *, any_format: bool = False) -> Manifest:
    """Read a manifest, without a look at the files. ArtifactError if there is none, or one of another format."""
    directory = to_path(directory)
    manifest_path = directory / MANIFEST_NAME
    try:
        with storage.store_errors(manifest_path):
            document = json.loads(manifest_path.read_text(encoding="utf-8"))
        content, provenance = document["content"], document["provenance"]
        files_at = _files_at(directory, content, provenance)
    except FileNotFoundError:
        raise ArtifactError(
            f"{directory}: no {MANIFEST_NAME}, so this is not a finished artifact; make it again or give another path"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(f"{manifest_path}: not a valid manifest ({error}); make the artifact again") from error
    # A manifest that was edited or cut short cannot vouch for its files.
    if content_sha256(content) != document.get("content_sha256"):
        raise ArtifactError(f"{manifest_path}: its content does not match its own hash; make the artifact again")
    manifest = Manifest(path=files_at, content=content, provenance=provenance)
    if not any_format and manifest.format_version != (version := FORMAT_VERSIONS.get(manifest.kind, 1)):
        raise ArtifactError(
            f"{directory}: its format is {manifest.format_version}, this version of the project reads {version}; "
            f"make the {manifest.kind} again, or use the version that made it"
        )
    return manifest


def _files_at(directory: Path, content: Mapping[str, Any], provenance: Mapping[str, Any]) -> Path:
    """Return the directory of an artifact's files: the one of its attempt if they are there, else `directory` itself.

    A copy from a store to a disk by other means has the store's layout, one made by `local_artifact` has not, and keeps
    that when it is copied back. ValueError if the provenance names no directory of an attempt.
    """
    if not (name := _attempt_name(provenance)):
        return directory
    return directory / name if any(storage.is_file(directory / name / file) for file in content["files"]) else directory


def _attempt_name(provenance: Mapping[str, Any]) -> str:
    """Return the directory of an artifact's attempt, "" if it has none. ValueError for any other name."""
    name = provenance.get(ATTEMPT, "")
    if name and not re.fullmatch(rf"{ATTEMPT}-[0-9a-f]+", name):
        raise ValueError(f"{ATTEMPT}: {name!r}")
    return cast(str, name)


def files_of(directory: Path | str) -> Path:
    """Return where the files of a directory are: of an artifact in a store, or its copy, the one of its attempt."""
    directory = to_path(directory)
    has_attempts = is_remote(directory) or any(directory.glob(f"{ATTEMPT}-*"))
    if has_attempts and storage.is_file(directory / MANIFEST_NAME):
        return load_manifest(directory).path
    return directory


def local_artifact(directory: Path | str, cache: Path) -> Path:
    """Return a local directory with the files of an artifact: its own, or a copy of what a store holds.

    Copies are kept in `cache` by the hash of their content, so that each is fetched once; one process fetches it while
    the others of this machine wait. ArtifactError if a file arrives damaged.
    """
    directory = to_path(directory)
    if not is_remote(directory):
        return directory
    manifest = load_manifest(directory)

    def copy(target: Path) -> None:
        logger.info("copying %s to %s", directory, target)
        with atomic_directory(target) as temporary:
            for name, entry in manifest.files.items():
                local = storage.path_below(temporary, name)
                try:
                    storage.download(manifest.path / name, local)
                except FileNotFoundError:
                    raise ArtifactError(
                        f"{manifest.path / name}: removed or replaced while it was copied; run the command again"
                    ) from None
                check_shard(str(local), entry["sha256"])
            _write_manifest(temporary, manifest.content, manifest.provenance)

    return cached(cache / manifest.sha256, copy, check=load_manifest)


def fetched(name: Path | str, cache: Path) -> Path:
    """Return a local path of a file or directory: its own, or that of a copy in `cache` of what the store holds now."""
    path = to_path(name)
    if not is_remote(path):
        return path
    if storage.scheme_of(path) in ("http", "https"):  # fsspec cannot tell whether such a file has changed
        raise UsageError(f"{path}: files of a web site are not copied; download it and give its local path")
    versions = storage.versions_below(path)
    if not versions:
        raise InputError(f"{path}: no such file or directory; check the URL")
    last = path.name or "bucket"  # a bucket itself has no name

    def copy(target: Path) -> None:
        with atomic_directory(target) as directory:
            for file in versions:
                storage.download(path / file if file else path, storage.path_below(directory, f"{last}/{file}"))

    return cached(cache / content_sha256({str(path): versions})[:32], copy) / last


def input_of(manifest: Manifest) -> dict[str, str]:
    """Return the entry of an artifact among the inputs of another one."""
    return {"kind": manifest.kind, "content_sha256": manifest.sha256}


def foreign_input(path: Path | str) -> dict[str, str]:
    """Return the entry of any other file among the inputs: its name and hash."""
    path = to_path(path)
    name = to_path(storage.without_secrets(str(path))).name if is_remote(path) else path.name
    return {"name": name, "sha256": file_sha256(path)}


class Draft:
    """A directory being written. Write files below `path`, and set `rows` and `counts` along the way."""

    def __init__(self, path: Path, kind: str, directory: Path, *, by_workers: bool = False) -> None:
        self.path = path
        self.kind, self.directory = kind, directory
        """What is written, and where it is published."""
        self.by_workers = by_workers
        self.rows: dict[str, int] = {}
        self.files_without_rows: set[str] = set()
        """With `rows`, all that is published of a draft that workers write; anything else there is removed."""
        self.counts: dict[str, Any] = {}
        self.provenance: dict[str, Any] = {}
        self.known_sha256: dict[str, str] = {}
        """Hashes that the writers of files have computed already; the others are computed at publishing."""
        self.footer_sha256: dict[str, str] = {}
        """Hashes of the footers of Parquet files, which page checksums do not cover."""


@contextlib.contextmanager
def publishing(
    directory: Path | str,
    *,
    kind: str,
    configuration: Mapping[str, Any],
    inputs: Mapping[str, Any],
    by_workers: bool = False,
    replaces: str = "",
) -> Iterator[Draft]:
    """Build `directory` atomically: yield a `Draft`; on success write the manifest last and rename the whole.

    `inputs` maps a name to `input_of(manifest)` or `foreign_input(path)`. `configuration` must hold neither paths nor
    worker counts, which belong in `draft.provenance`. If the block raises, nothing is left behind and an older
    artifact in `directory` is unchanged. ArtifactError if `directory` holds files that are not an artifact, or one of
    another kind than `kind` and `replaces`, or if another process has published there since the block began.

    For a `directory` in a store, `draft.path` is a local directory that is uploaded, or with `by_workers`, where
    processes on other machines write the files, a directory of the store.
    """
    directory = to_path(directory)
    refuse_foreign_directory(directory, kind, replaces)
    started = time.monotonic()
    with _attempt(directory, by_workers) as (files, finish):
        draft = Draft(files, kind, directory, by_workers=by_workers)
        yield draft
        # The artifact's identity: nothing here may depend on time, host, paths or workers.
        content = {
            "format_version": FORMAT_VERSIONS.get(kind, 1),
            "kind": kind,
            "files": _describe_files(draft),
            "counts": draft.counts,
            "configuration": dict(configuration),
            "inputs": dict(inputs),
        }
        # The rest may differ between runs that make the same content.
        provenance = {
            "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "host": socket.gethostname(),
            "seconds": round(time.monotonic() - started, 3),
            **draft.provenance,
        }
        # The manifest is written last: its existence means that the artifact is complete.
        finish(content, provenance)


_Attempt: TypeAlias = tuple[Path, Callable[[Mapping[str, Any], Mapping[str, Any]], None]]
"""A directory being written, and the function that writes its manifest."""


@contextlib.contextmanager
def _attempt(directory: Path, by_workers: bool) -> Iterator[_Attempt]:
    """Yield an attempt at a `directory`; its files are removed unless its manifest is written."""
    if not is_remote(directory):
        with atomic_directory(directory) as temporary:
            yield temporary, functools.partial(_write_manifest, temporary)
        return
    old = storage.read_object(directory / MANIFEST_NAME)
    name = f"{ATTEMPT}-{uuid.uuid4().hex}"
    target = directory / name
    try:
        current = _attempt_name(json.loads(old)["provenance"]) if old else ""
    except (ValueError, KeyError, TypeError, AttributeError):
        current = ""  # a damaged manifest is replaced; the files that it meant are removed at their age
    now = storage.check_writable(target / "first")  # before hours of work
    _remove_abandoned_attempts(directory, current, now)

    committing = False

    def finish(content: Mapping[str, Any], provenance: Mapping[str, Any]) -> None:
        nonlocal committing
        if not by_workers:
            for file in content["files"]:
                storage.upload(Path(staged) / file, target / file)
        data = _manifest_text(content, {**provenance, ATTEMPT: name}).encode()
        committing = True
        if not storage.replace_object(directory / MANIFEST_NAME, data, old=old):
            committing = False
            raise ArtifactError(
                f"{directory}: another run has published here since this one began; its artifact is kept, and the "
                "files of this run are removed; give another path, or run the command again to replace it"
            )

    try:
        with tempfile.TemporaryDirectory(prefix="bert-") as staged, disk_errors(Path(staged)):
            yield target if by_workers else Path(staged), finish
    except BaseException:
        # A manifest whose write failed without an answer may be there all the same: its files stay, for their age.
        if not committing:
            _try_to_remove(target)
        raise


def _try_to_remove(attempt: Path) -> None:
    """Remove the files of an attempt. What a store refuses is left for `_remove_abandoned_attempts`."""
    try:
        storage.remove_tree(attempt)
    except (BertError, OSError) as error:
        logger.warning("%s: not removed: %s", attempt, error)


def _remove_abandoned_attempts(directory: Path, current: str, now: float) -> None:
    """Remove attempts other than the `current` one whose age is over `ABANDONED_DAYS`; `now` is the store's time.

    That of an attempt that never published begins with its last file, that of a replaced one with the manifest that
    replaced it: others may still read its files. The manifest of today may be a later one, so it can stay for longer.
    """
    names = storage.sizes_below(directory)
    published = storage.modified(directory / MANIFEST_NAME) if MANIFEST_NAME in names else 0.0
    for attempt in {name.partition("/")[0] for name in names}:
        if not attempt.startswith(f"{ATTEMPT}-") or attempt == current:
            continue
        if now - max(published, storage.modified(directory / attempt)) > ABANDONED_DAYS * 24 * 3600:
            logger.warning("%s: removing files that no manifest named for %d days", directory / attempt, ABANDONED_DAYS)
            _try_to_remove(directory / attempt)


def write_part(manifest: Manifest, directory: Path, names: Container[str], *, kind: str) -> None:
    """Write into `directory` the manifest of some of an artifact's files; its provenance names the artifact."""
    held = {name: entry for name, entry in manifest.files.items() if name in names}
    _write_manifest(
        directory,
        {**manifest.content, "kind": kind, "format_version": FORMAT_VERSIONS.get(kind, 1), "files": held},
        {**manifest.provenance, "part_of": manifest.sha256},
    )


def _write_manifest(directory: Path, content: Mapping[str, Any], provenance: Mapping[str, Any]) -> None:
    replace_text(directory / MANIFEST_NAME, _manifest_text(content, provenance))


def _manifest_text(content: Mapping[str, Any], provenance: Mapping[str, Any]) -> str:
    document = {"content_sha256": content_sha256(content), "content": content, "provenance": provenance}
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def refuse_foreign_directory(directory: Path, kind: str, replaces: str = "") -> None:
    """Raise ArtifactError if `directory` is no place for an artifact of this kind.

    It may hold an earlier one of this kind, or of `replaces`, but no other files, and must be a place that a rename can
    replace.
    """
    try:
        existing = read_manifest(directory, any_format=True).kind
    except (ArtifactError, OSError):  # there is none, or it is damaged
        existing = kind
    if existing not in (kind, replaces):  # by a typo, a corpus
        raise ArtifactError(
            f"{directory}: holds a {existing}, which a {kind} would replace; give another path, or remove it"
        )
    if is_remote(directory):
        names = {name.partition("/")[0] for name in storage.sizes_below(directory)}
        is_foreign = MANIFEST_NAME not in names and any(not name.startswith(f"{ATTEMPT}-") for name in names)
    else:
        is_filled = directory.is_dir() and any(directory.iterdir())
        is_foreign = is_filled and not (directory / MANIFEST_NAME).is_file()
    if is_foreign:
        raise ArtifactError(
            f"{directory}: {'' if is_remote(directory) else 'exists and '}holds files that are not ours (no "
            f"{MANIFEST_NAME}); give a new directory or empty this one"
        )
    if is_remote(directory):
        return
    if os.path.lexists(directory) and not directory.is_dir():
        raise ArtifactError(f"{directory}: {describe_obstacle(directory)}; give another path")
    # The finished directory takes its name by a rename, at the very end.
    if directory.is_dir() and (os.path.ismount(directory) or os.path.samefile(directory, os.curdir)):
        what = "a mount point" if os.path.ismount(directory) else "the working directory"
        raise ArtifactError(f"{directory}: is {what}, which cannot be replaced; give a path in it")


def _describe_files(draft: Draft) -> dict[str, dict[str, Any]]:
    files: dict[str, dict[str, Any]] = {}
    if is_remote(draft.path):
        sizes = storage.sizes_below(draft.path)
    else:
        paths = [path for path in sorted(draft.path.rglob("*")) if path.is_file()]
        sizes = {path.relative_to(draft.path).as_posix(): path.stat().st_size for path in paths}
    if draft.by_workers:
        # A worker that was given up, whose task another one has done, may have written until this moment.
        for name in (unplanned := set(sizes) - set(draft.rows) - draft.files_without_rows):
            storage.remove_tree(draft.path / name)
        sizes = {name: size for name, size in sizes.items() if name not in unplanned}
        storage.remove_empty_directories(draft.path)
    for name, size in sizes.items():
        path = draft.path / name
        # Flush each file now: the manifest, written next, states that all of them are on disk.
        if not is_remote(path):
            with open(path, "rb") as stream:
                os.fsync(stream.fileno())
        files[name] = {"sha256": draft.known_sha256.get(name) or file_sha256(path), "bytes": size}
        if name in draft.rows:
            files[name]["rows"] = draft.rows[name]
        if name in draft.footer_sha256:
            files[name]["footer_sha256"] = draft.footer_sha256[name]
    # A listing may lack a file: a shared disk can show those of other machines late.
    if missing := sorted(set(draft.rows) - set(files)):
        raise ArtifactError(
            f"{draft.path / missing[0]}: not found, but {draft.rows[missing[0]]:,} rows were written to it "
            f"({len(missing)} such files); nothing was published, run the command again"
        )
    return files
