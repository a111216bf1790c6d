"""Manifests and atomic publishing: a directory of ours exists whole, with its manifest, or it does not exist.

A manifest has two halves. `content` is a function of the inputs and the configuration alone: files with sha256 and
rows, counts, the resolved configuration and the hashes of the manifests it was made from. `provenance` is everything
else: time, host, number of workers, paths. The sha256 of `content` is the artefact's identity and data version.
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
from typing import Any, Literal

from bert_pipeline.errors import ArtefactError, InputError

MANIFEST_NAME = "manifest.json"
FORMAT_VERSION = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """The manifest of one artefact directory, as read from disk."""

    path: Path
    """The directory that the manifest describes."""
    content: dict[str, Any]
    provenance: dict[str, Any]

    @property
    def kind(self) -> str:
        return self.content["kind"]

    @property
    def files(self) -> dict[str, dict[str, Any]]:
        """Relative POSIX path -> {"sha256", "bytes", and "rows" where rows make sense}, sorted by path."""
        return self.content["files"]

    @property
    def counts(self) -> dict[str, Any]:
        return self.content["counts"]

    @property
    def configuration(self) -> dict[str, Any]:
        return self.content["configuration"]

    @property
    def inputs(self) -> dict[str, Any]:
        return self.content["inputs"]

    @property
    def sha256(self) -> str:
        """The artefact's identity: equal content has equal hashes, whoever made it and when."""
        return content_sha256(self.content)

    def file_paths(self, prefix: str = "") -> list[Path]:
        """Absolute paths of the listed files whose relative path starts with `prefix`, in order."""
        return [self.path / name for name in self.files if name.startswith(prefix)]


def content_sha256(content: Mapping[str, Any]) -> str:
    """Hash a JSON-compatible mapping in canonical form (sorted keys, no spaces)."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file; InputError when it cannot be read."""
    try:
        with open(path, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions") from error


class Draft:
    """A directory in the making. Write files below `path`; set `rows` and `counts` on the way."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, int] = {}
        self.counts: dict[str, Any] = {}
        self.provenance: dict[str, Any] = {}
        self.known_sha256: dict[str, str] = {}
        """Hashes already computed by whoever wrote the file; the others are computed at publishing."""


@contextlib.contextmanager
def publishing(
    directory: Path | str,
    *,
    kind: str,
    configuration: Mapping[str, Any],
    inputs: Mapping[str, Any],
) -> Iterator[Draft]:
    """Make `directory` atomically: yields a `Draft`; on success the manifest is written last and the whole renamed.

    `inputs` maps a name to `input_of(manifest)` or `foreign_input(path)`. `configuration` must hold neither paths nor
    worker counts, which belong into `draft.provenance`. When the block raises, nothing is left behind and an older
    artefact in `directory` stays as it was. ArtefactError when `directory` holds something that is not ours.
    """
    directory = Path(directory)
    refuse_foreign_directory(directory)
    directory.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned_drafts(directory)
    temporary = directory.parent / f".{directory.name}.partial-{os.getpid()}"
    temporary.mkdir()
    started = time.monotonic()
    try:
        draft = Draft(temporary)
        yield draft
        content = {
            "format_version": FORMAT_VERSION,
            "kind": kind,
            "files": _describe_files(draft),
            "counts": draft.counts,
            "configuration": dict(configuration),
            "inputs": dict(inputs),
        }
        provenance = {
            "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "host": socket.gethostname(),
            "seconds": round(time.monotonic() - started, 3),
            **draft.provenance,
        }
        document = {"content_sha256": content_sha256(content), "content": content, "provenance": provenance}
        write_text_durably(temporary / MANIFEST_NAME, json.dumps(document, indent=1, ensure_ascii=False) + "\n")
        _swap_into_place(temporary, directory)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def load_manifest(
    directory: Path | str, *, kind: str | None = None, verify: Literal["sizes", "sha256"] = "sizes"
) -> Manifest:
    """Read and check the manifest of one of our directories.

    `verify="sizes"` compares every listed file's size, `"sha256"` its bytes too. Files that the manifest does not
    list are ignored: the manifest rules, not a glob. ArtefactError names the file, what was found and expected.
    """
    directory = Path(directory)
    manifest_path = directory / MANIFEST_NAME
    try:
        document = json.loads(manifest_path.read_text(encoding="utf-8"))
        content, provenance = document["content"], document["provenance"]
    except FileNotFoundError:
        raise ArtefactError(
            f"{directory}: no {MANIFEST_NAME}, so this is not a finished artefact; make it again or give another path"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise ArtefactError(f"{manifest_path}: not a valid manifest ({error}); make the artefact again") from error
    if content_sha256(content) != document.get("content_sha256"):
        raise ArtefactError(f"{manifest_path}: its content does not match its own hash; make the artefact again")
    if kind is not None and content["kind"] != kind:
        raise ArtefactError(f"{directory}: found a {content['kind']}, expected a {kind}; give another path")
    manifest = Manifest(path=directory, content=content, provenance=provenance)
    for name, entry in manifest.files.items():
        path = directory / name
        size = path.stat().st_size if path.is_file() else None
        if size != entry["bytes"]:
            found = "is missing" if size is None else f"has {size} bytes"
            raise ArtefactError(f"{path}: {found}, expected {entry['bytes']} bytes; make the artefact again")
        if verify == "sha256" and (actual := file_sha256(path)) != entry["sha256"]:
            raise ArtefactError(
                f"{path}: sha256 is {actual[:12]}…, expected {entry['sha256'][:12]}…; the file was changed or damaged"
            )
    return manifest


def input_of(manifest: Manifest) -> dict[str, str]:
    """Name one of our artefacts as an input."""
    return {"kind": manifest.kind, "content_sha256": manifest.sha256}


def foreign_input(path: Path | str) -> dict[str, str]:
    """Name a file that is not ours as an input: by name and hash."""
    path = Path(path)
    return {"name": path.name, "sha256": file_sha256(path)}


def refuse_foreign_directory(directory: Path) -> None:
    """Raise ArtefactError when `directory` holds files but no manifest of ours: it is never overwritten."""
    if directory.is_dir() and any(directory.iterdir()) and not (directory / MANIFEST_NAME).is_file():
        raise ArtefactError(
            f"{directory}: exists and holds files that are not ours (no {MANIFEST_NAME}); "
            "give a new directory or empty this one"
        )
    if directory.exists() and not directory.is_dir():
        raise ArtefactError(f"{directory}: exists and is not a directory; give another path")


def remove_abandoned_drafts(directory: Path) -> None:
    """Remove the drafts of `directory` whose process is gone (killed before it could clean up)."""
    for leftover in directory.parent.glob(f".{directory.name}.partial-*"):
        process_id = leftover.name.rpartition("-")[2]
        if process_id.isdigit() and int(process_id) != os.getpid() and Path(f"/proc/{process_id}").exists():
            continue
        shutil.rmtree(leftover, ignore_errors=True)


def write_text_durably(path: Path, text: str) -> None:
    """Write a small text file and flush it to the disk."""
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def _describe_files(draft: Draft) -> dict[str, dict[str, Any]]:
    files: dict[str, dict[str, Any]] = {}
    for path in sorted(draft.path.rglob("*")):
        if not path.is_file():
            continue
        name = path.relative_to(draft.path).as_posix()
        with open(path, "rb") as stream:
            os.fsync(stream.fileno())
        files[name] = {
            "sha256": draft.known_sha256.get(name) or file_sha256(path),
            "bytes": path.stat().st_size,
        }
        if name in draft.rows:
            files[name]["rows"] = draft.rows[name]
    unknown = set(draft.rows) - set(files)
    assert not unknown, f"rows were counted for files that were not written: {sorted(unknown)}"
    return files


def _swap_into_place(temporary: Path, directory: Path) -> None:
    """Rename `temporary` to `directory`; an older artefact is moved aside first and removed after."""
    aside = directory.parent / f".{directory.name}.partial-{os.getpid()}-old"
    if directory.exists():
        os.rename(directory, aside)
    os.rename(temporary, directory)
    parent = os.open(directory.parent, os.O_RDONLY)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)
    shutil.rmtree(aside, ignore_errors=True)


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
