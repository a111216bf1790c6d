"""Safe unpacking of task archives from untrusted sources."""

import bz2
import gzip
import io
import lzma
import posixpath
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

from bert_pipeline.atomic import atomic_directory
from bert_pipeline.errors import InputError
from bert_pipeline.storage import read_errors

CHUNK_BYTES = 1 << 20
MAX_BYTES = 32 << 30
"""More than any task needs (MNLI with its parse trees, the largest, unpacks to about 1 GB)."""
MAX_MEMBERS = 100_000
MAX_RATIO = 150
"""Text compresses 3- to 20-fold; a bomb of zeros about 1,000-fold."""
RATIO_FLOOR_BYTES = 16 << 20
"""Below this size a high ratio does no harm."""
MAX_HEADER_BYTES = 1 << 20
"""Maximum size of a long name or extended header in a tar archive."""
DECOMPRESSORS: dict[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}
DRIVE = re.compile(r"[A-Za-z]:")
_DAMAGE = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    NotImplementedError,  # a compression or version that zipfile does not know
    UnicodeDecodeError,  # a name in a zip archive that is marked as UTF-8 and is not
)


def extract_archive(archive: Path | str, output: Path | str, *, max_bytes: int = MAX_BYTES) -> list[str]:
    """Unpack a zip or tar archive (gzip, bzip2, xz or plain) into the new directory `output`; return the file names.

    Every member is checked before the first is written. InputError names the member when it is absolute or leaves the
    directory ("..", a drive, a backslash), is a link, a device or encrypted, is repeated, or if the archive unpacks
    to more than `max_bytes` or more than 150 times its own size; also when the archive is damaged. Then nothing is
    left behind. InputError too when `output` exists and is not empty.
    """
    archive, output = Path(archive), Path(output)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise InputError(f"{output}: exists already and is not empty; give a new directory")
    with read_errors(archive, "; check the path"):
        allowed, is_zip = min(max_bytes, max_unpacked_bytes(archive)), zipfile.is_zipfile(archive)
    try:
        with atomic_directory(output) as temporary:
            return (_extract_zip if is_zip else _extract_tar)(archive, temporary, allowed)
    except _DAMAGE as error:
        raise InputError(f"{archive}: not a whole zip or tar archive ({error}); nothing was unpacked") from error
    except OSError as error:
        raise InputError(f"{archive}: cannot be unpacked ({error.strerror or error}); nothing was kept") from error


def max_unpacked_bytes(archive: Path) -> int:
    """Return the size from which an archive is a bomb; small ones may unpack to 16 MB whatever their ratio."""
    return max(RATIO_FLOOR_BYTES, MAX_RATIO * archive.stat().st_size)


def _extract_zip(archive: Path, target: Path, allowed: int) -> list[str]:
    with zipfile.ZipFile(archive) as container:
        check = _Check(archive, allowed)
        members = []
        for member in container.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                check.refuse(member.filename, "is a link or a device")
            if member.flag_bits & 1:
                check.refuse(member.filename, "is encrypted")
            # orig_filename: zipfile itself cuts names at NUL and turns backslashes
            check.member(member.orig_filename, member.file_size, is_directory=member.is_dir())
            # From Python 3.12 on a Unicode path field replaces the name that was just checked
            if member.filename != member.orig_filename:
                check.member(member.filename, 0, is_directory=member.is_dir())
            if not member.is_dir():
                members.append(member)
        # Only now, after every member was checked, is anything written.
        for member in members:
            with container.open(member) as source:
                _write(source, target / member.filename, member.file_size, check)
        return sorted(member.filename for member in members)


def _extract_tar(archive: Path, target: Path, allowed: int) -> list[str]:
    names: list[str] = []
    for writing in (False, True):  # first every member is checked, then the files are written
        check = _Check(archive, allowed)
        for container, member in _tar_members(archive, check):
            # A sparse file may claim any size; links and devices may lead out of the directory.
            if member.issparse() or not (member.isfile() or member.isdir()):
                check.refuse(member.name, "is a link, a device or a sparse file")
            check.member(member.name, member.size, is_directory=member.isdir())
            if writing and member.isfile():
                source = container.extractfile(member)
                assert source is not None, member.name
                _write(source, target / member.name, member.size, check)
                names.append(posixpath.normpath(member.name))
    return sorted(names)


def _tar_members(archive: Path, check: "_Check") -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    with open(archive, "rb") as stream:
        magic = stream.read(6)
    opener = next((opener for start, opener in DECOMPRESSORS.items() if magic.startswith(start)), open)
    with (
        opener(archive, "rb") as unpacked,
        tarfile.TarFile.open(fileobj=_Bounded(unpacked, check), mode="r:") as container,
    ):
        for member in container:
            yield container, member


def _write(source: IO[bytes], path: Path, expected: int, check: "_Check") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    written = 0
    with open(path, "xb") as sink:
        while chunk := source.read(CHUNK_BYTES):
            written += len(chunk)
            sink.write(chunk)
    if written != expected:
        check.refuse(path.name, f"unpacks to {written} bytes where {expected} were announced")


class _Check:
    """Running checks over the members of one archive."""

    def __init__(self, archive: Path, allowed: int) -> None:
        self.archive = archive
        self.allowed = allowed
        self.total = 0
        self.members = 0
        self.seen: set[str] = set()

    def refuse(self, name: str, reason: str) -> NoReturn:
        raise InputError(f"{self.archive}: member {name[:200]!r} {reason}; nothing was unpacked")

    def member(self, name: str, size: int, *, is_directory: bool) -> None:
        parts = name.split("/")
        if not name or name.startswith("/") or ".." in parts or "\\" in name or "\0" in name or DRIVE.match(name):
            self.refuse(name, "would leave the directory it is unpacked into")
        # Directories may be repeated; a file twice would overwrite what was checked.
        normal = posixpath.normpath(name)
        if not is_directory:
            if normal in self.seen or normal == ".":
                self.refuse(name, "is repeated or is not a file name")
            self.seen.add(normal)
        # Announced sizes, which `_write` holds the members to.
        self.total += size
        self.members += 1
        if self.total > self.allowed:
            self.refuse(name, f"brings the archive to more than the {self.allowed} bytes it may unpack to")
        if self.members > MAX_MEMBERS:
            self.refuse(name, f"is one more than the {MAX_MEMBERS} files that an archive may hold")


class _Bounded(io.RawIOBase):
    """The unpacked bytes of a tar archive, refusing headers that would fill the memory."""

    def __init__(self, stream: IO[bytes], check: _Check) -> None:
        self.stream = stream
        self.check = check

    def read(self, size: int = -1) -> bytes:
        if size < 0 or size > CHUNK_BYTES + MAX_HEADER_BYTES:
            self.check.refuse("(a header)", f"is longer than {MAX_HEADER_BYTES} bytes")
        return self.stream.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self.stream.seek(offset, whence)

    def tell(self) -> int:
        return self.stream.tell()
