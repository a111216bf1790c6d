"""Manifests and atomic publishing: an artifact directory is complete with its manifest, or it does not exist.

A manifest has two halves. `content` is a function of the inputs and the configuration alone: files with sha256 and
rows, counts, the resolved configuration, and the hashes of the inputs' manifests. `provenance` is everything else:
time, host, number of workers, paths. The sha256 of `content` is the artifact's identity and data version.
"""

import contextlib
import dataclasses
import datetime
import hashlib
import json
import os
import shutil
import socket
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, cast

from bert_pipeline.errors import ArtifactError, InputError

MANIFEST_NAME = "manifest.json"
FORMAT_VERSIONS = {"corpus": 2, "instances": 2}
"""Format of the files of a kind, 1 for any other. In 2 the pages of Parquet files have checksums."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """The manifest of one artifact directory, as read from disk."""

    path: Path
    """The directory that the manifest describes."""
    content: dict[str, Any]
    provenance: dict[str, Any]

    @property
    def kind(self) -> str:
        return cast(str, self.content["kind"])

    @property
    def format_version(self) -> int:
        return cast(int, self.content.get("format_version", 1))

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

    `verify="sizes"` compares the size of every listed file, `"sha256"` its bytes too. Files that the manifest does not
    list are ignored. ArtifactError names the file, what was found and what was expected.
    """
    directory = Path(directory)
    manifest_path = directory / MANIFEST_NAME
    try:
        document = json.loads(manifest_path.read_text(encoding="utf-8"))
        content, provenance = document["content"], document["provenance"]
    except FileNotFoundError:
        raise ArtifactError(
            f"{directory}: no {MANIFEST_NAME}, so this is not a finished artifact; make it again or give another path"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise ArtifactError(f"{manifest_path}: not a valid manifest ({error}); make the artifact again") from error
    # A manifest that was edited or cut short cannot vouch for its files.
    if content_sha256(content) != document.get("content_sha256"):
        raise ArtifactError(f"{manifest_path}: its content does not match its own hash; make the artifact again")
    if kind is not None and content["kind"] != kind:
        raise ArtifactError(f"{directory}: found a {content['kind']}, expected a {kind}; give another path")
    manifest = Manifest(path=directory, content=content, provenance=provenance)
    if manifest.format_version > (known := FORMAT_VERSIONS.get(manifest.kind, 1)):
        raise ArtifactError(
            f"{directory}: its format is {manifest.format_version}, this version of the project reads up to {known}; "
            "update the project, or make the artifact again"
        )
    # Sizes cost one `stat` a file and catch interrupted copies; hashes read every byte.
    for name, entry in manifest.files.items():
        path = directory / name
        size = path.stat().st_size if path.is_file() else None
        if size != entry["bytes"]:
            found = "is missing" if size is None else f"has {size} bytes"
            raise ArtifactError(f"{path}: {found}, expected {entry['bytes']} bytes; make the artifact again")
        if verify == "sha256" and (actual := file_sha256(path)) != entry["sha256"]:
            raise ArtifactError(
                f"{path}: sha256 is {actual[:12]}…, expected {entry['sha256'][:12]}…; the file was changed or damaged"
            )
    return manifest


def input_of(manifest: Manifest) -> dict[str, str]:
    """Return the entry of an artifact among the inputs of another one."""
    return {"kind": manifest.kind, "content_sha256": manifest.sha256}


def foreign_input(path: Path | str) -> dict[str, str]:
    """Return the entry of any other file among the inputs: its name and hash."""
    path = Path(path)
    return {"name": path.name, "sha256": file_sha256(path)}


class Draft:
    """A directory being written. Write files below `path`, and set `rows` and `counts` along the way."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, int] = {}
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
) -> Iterator[Draft]:
    """Build `directory` atomically: yield a `Draft`; on success write the manifest last and rename the whole.

    `inputs` maps a name to `input_of(manifest)` or `foreign_input(path)`. `configuration` must hold neither paths nor
    worker counts, which belong in `draft.provenance`. If the block raises, nothing is left behind and an older
    artifact in `directory` is unchanged. ArtifactError if `directory` holds files that are not an artifact.
    """
    directory = Path(directory)
    refuse_foreign_directory(directory)
    started = time.monotonic()
    with atomic_directory(directory) as temporary:
        draft = Draft(temporary)
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
        _write_manifest(temporary, content, provenance)


def write_part(manifest: Manifest, directory: Path, *, kind: str) -> None:
    """Write the manifest of a directory that holds some of an artifact's files; its provenance names the artifact."""
    held = {name: entry for name, entry in manifest.files.items() if (directory / name).is_file()}
    _write_manifest(
        directory,
        {**manifest.content, "kind": kind, "files": held},
        {**manifest.provenance, "part_of": manifest.sha256},
    )


def _write_manifest(directory: Path, content: Mapping[str, Any], provenance: Mapping[str, Any]) -> None:
    document = {"content_sha256": content_sha256(content), "content": content, "provenance": provenance}
    write_text_durably(directory / MANIFEST_NAME, json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def refuse_foreign_directory(directory: Path) -> None:
    """Raise ArtifactError if `directory` holds files but no manifest: it is never overwritten."""
    if directory.is_dir() and any(directory.iterdir()) and not (directory / MANIFEST_NAME).is_file():
        raise ArtifactError(
            f"{directory}: exists and holds files that are not ours (no {MANIFEST_NAME}); "
            "give a new directory or empty this one"
        )
    if os.path.lexists(directory) and not directory.is_dir():
        raise ArtifactError(f"{directory}: {_describe_obstacle(directory)}; give another path")


@contextlib.contextmanager
def creating(directory: Path) -> Iterator[None]:
    """Turn an OSError of the block, which creates a directory or the first file in it, into an ArtifactError."""
    try:
        yield
    except OSError as error:
        # The nearest name that exists decides: a file, a link to nowhere, or a directory that may not be written.
        place = next(path for path in (directory, *directory.parents) if os.path.lexists(path))
        reason = error.strerror or str(error) if place.is_dir() else _describe_obstacle(place)
        raise ArtifactError(
            f"{directory}: cannot be written: {place}: {reason}; give a path in a directory that can be written"
        ) from error


def _describe_obstacle(path: Path) -> str:
    """Return what a path is that exists and is not a directory."""
    if path.is_symlink():
        return f"exists and is a symbolic link to {os.readlink(path)}, which is not a directory"
    return "exists and is not a directory"


def _describe_files(draft: Draft) -> dict[str, dict[str, Any]]:
    files: dict[str, dict[str, Any]] = {}
    for path in sorted(draft.path.rglob("*")):
        if not path.is_file():
            continue
        name = path.relative_to(draft.path).as_posix()
        # Flush each file now: the manifest, written next, states that all of them are on disk.
        with open(path, "rb") as stream:
            os.fsync(stream.fileno())
        files[name] = {
            "sha256": draft.known_sha256.get(name) or file_sha256(path),
            "bytes": path.stat().st_size,
        }
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


@contextlib.contextmanager
def atomic_directory(directory: Path) -> Iterator[Path]:
    """Yield a temporary directory that replaces `directory` at the end, or is removed if the block raises."""
    temporary = directory.parent / f".{directory.name}.partial-{os.getpid()}"
    old = directory.parent / f"{temporary.name}-old"
    with creating(directory):
        directory.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned_drafts(directory)
        temporary.mkdir()
    try:
        yield temporary
        # `rename` does not replace a directory with files in it, so an older artifact moves aside first.
        if directory.exists():
            os.rename(directory, old)
        os.rename(temporary, directory)
        _flush_directory(directory.parent)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        if old.exists() and not directory.exists():
            os.rename(old, directory)
        shutil.rmtree(temporary, ignore_errors=True)


def remove_abandoned_drafts(directory: Path) -> None:
    """Remove the temporary directories of `directory` whose process was killed; put an artifact moved aside back."""
    for leftover in directory.parent.glob(f".{directory.name}.partial-*"):
        process_id = leftover.name.removesuffix("-old").rpartition("-")[2]
        # A living process may still write to it. Its own id is of an earlier process: containers reuse ids.
        if process_id.isdigit() and int(process_id) != os.getpid() and Path(f"/proc/{process_id}").exists():
            continue
        if leftover.name.endswith("-old") and not directory.exists():  # killed between the two renames
            os.rename(leftover, directory)
        shutil.rmtree(leftover, ignore_errors=True)


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path that is renamed to `path` at the end, or removed if the block raises.

    The name is unique, so that two attempts at one file do not meet. A killed process leaves a hidden `*.tmp` file.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


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


def content_sha256(content: Mapping[str, Any]) -> str:
    """Hash a JSON-compatible mapping in canonical form (sorted keys, no spaces)."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file. InputError if it cannot be read."""
    try:
        with open(path, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions") from error


def check_shard(path: str, sha256: str) -> None:
    """Raise ArtifactError if the shard's sha256 differs from the one in its manifest."""
    found = file_sha256(Path(path))
    if found != sha256:
        raise ArtifactError(
            f"{path}: sha256 is {found[:12]}…, expected {sha256[:12]}…; the file was changed or damaged, make it again"
        )
