"""Text files as bytes: compression, records, and the spans of whole records that workers read.

A *record* is a line of JSON lines and pairs, a document of `lines:` and a part of a `book:`. `read_records` finds them
for the reader of a file and for the planner of its spans, so a file gives the same documents however it is cut.
"""

import bz2
import contextlib
import dataclasses
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

import pyarrow as pa

from bert_pipeline.errors import InputError
from bert_pipeline.storage import failure_of, is_remote, open_binary, size_of, to_path, without_secrets

TextKind = Literal["lines", "book", "jsonl", "pairs"]
Compression = Literal["", "gzip", "bz2", "xz", "zstd"]

COMPRESSED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
MAX_DOCUMENT_BYTES = 16 << 20
"""Length from which documents of `lines:` and `book:` are continued in a next one: a shard of 64 MB must hold several,
because a random next sentence comes from another document of the shard."""
MAX_LINE_BYTES = 256 << 20
"""Longest line, and longest paragraph of a book: more is not text of this kind."""

GUTENBERG_END = r"(?:\*\*\* ?)?END OF (?:TH(?:E|IS) )?PROJECT GUTENBERG"
"""Start of the line before the license of Project Gutenberg."""
_GUTENBERG_END = re.compile(GUTENBERG_END.encode(), re.IGNORECASE)
_LICENSE_BYTES = 64 << 10
"""Maximum length of that license, which is about 20 KB."""

_MAGIC: dict[bytes, Compression] = {
    b"\x1f\x8b": "gzip",
    **{b"BZh%d1A" % level: "bz2" for level in range(1, 10)},
    **{b"BZh%d\x17r" % level: "bz2" for level in range(1, 10)},  # of an empty file
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x50\x2a\x4d\x18": "zstd",  # the skippable frame that pzstd writes first
}
_BUFFER_BYTES = 1 << 20
_LINES_BYTES = 64 << 10
"""Bytes that are split into lines at a time."""


class _StreamsReader(io.RawIOBase):
    """Decompress a run of streams, with zeros between and after them.

    `BZ2File` and `LZMAFile` end without an error at whatever is no stream after the first one, so that damage to a
    stream's header loses the rest of the file.
    """

    def __init__(self, file: str | BinaryIO, new: Callable[[], bz2.BZ2Decompressor | lzma.LZMADecompressor]) -> None:
        self._file: Any = io.FileIO(file) if isinstance(file, str) else file
        self._new = new
        self._stream = new()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = b""
        while not data:
            if self._stream.eof:
                following = self._stream.unused_data.lstrip(b"\0")
                while not following:
                    if not (read := self._file.read(io.DEFAULT_BUFFER_SIZE)):
                        return 0
                    following = read.lstrip(b"\0")
                self._stream = self._new()
            elif not self._stream.needs_input:
                following = b""
            elif not (following := self._file.read(io.DEFAULT_BUFFER_SIZE)):
                raise EOFError("the last stream has no end")
            data = self._stream.decompress(following, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


_OPENERS: dict[Compression, Callable[[Any], Any]] = {
    "": lambda file: io.FileIO(file) if isinstance(file, str) else file,
    "gzip": gzip.open,
    "bz2": lambda file: _StreamsReader(file, bz2.BZ2Decompressor),
    "xz": lambda file: _StreamsReader(file, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ)),
    "zstd": lambda file: pa.CompressedInputStream(file, "zstd"),  # in Python since 3.14 only
}
_BOM = b"\xef\xbb\xbf"

Record = tuple[int, bytes]
"""Offset in the decompressed file, and the bytes with their line ends."""


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """Whole records of a file: the bytes [start, stop), in Parquet the row groups, and the number of records before."""

    start: int = 0
    stop: int | None = None
    first: int = 0


WHOLE = Span()


# Reading


def compression_of(path: Path | str) -> Compression:
    """Return the compression of a file, which is known by its first bytes and not by its name."""
    with open_binary(path) as stream:
        head = stream.read(6)
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), "")


def stem_of(path: Path) -> str:
    """Return the name of a file without its suffix, and without that of its compression: "a" of a.txt and a.txt.gz."""
    name = to_path(without_secrets(str(path))).name  # a query of a URL, which may sign it, is no part of the name
    if compression_of(path):
        name = next((name[: -len(end)] for end in COMPRESSED_SUFFIXES if name.lower().endswith(end)), name)
    return Path(name).stem


@contextlib.contextmanager
def open_text(path: Path | str) -> Iterator[BinaryIO]:
    """Open a text file, plain or compressed. InputError, also while it is read, if its compressed data are damaged."""
    compression = compression_of(path)
    try:
        # One buffer for all: the line reader of some of these streams is in Python.
        with (
            open_binary(path) if is_remote(path) else contextlib.nullcontext(str(path)) as file,
            _OPENERS[compression](file) as source,
            io.BufferedReader(source, _BUFFER_BYTES) as stream,
        ):
            yield cast(BinaryIO, stream)
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        if not compression or failure_of(error):
            raise
        cut_off = isinstance(error, EOFError) or "Truncated" in str(error)
        what = "are cut off" if cut_off else f"are damaged ({error})"
        raise InputError(f"{path}: the {compression} data {what}; fetch the file again") from None


def decode(data: bytes, offset: int, path: Path | str) -> str:
    """Decode UTF-8 found at `offset`. InputError with the byte that is none, and for zero bytes, which no text has."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        where = " of the decompressed text" if compression_of(path) else ""
        raise InputError(
            f"{path}: not UTF-8 text ({error.reason} at byte {offset + error.start:,}{where}); convert it, or "
            "unpack it if it is an archive"
        ) from None
    if "\0" in text:
        raise InputError(f"{path}: holds zero bytes: unpack it if it is a tar archive, convert it if it is UTF-16")
    return text


# Records


def read_records(stream: BinaryIO, path: Path | str, kind: TextKind, span: Span = WHOLE) -> Iterator[Record]:
    """Yield the records of a span; a byte-order mark is dropped. InputError if a line is longer than 256 MiB."""
    lines = _lines(stream, path, span)
    if kind in ("jsonl", "pairs"):
        return lines
    return _documents(lines) if kind == "lines" else _parts(lines, path)


def _lines(stream: BinaryIO, path: Path | str, span: Span) -> Iterator[Record]:
    """Yield the lines, which end with LF, CR LF or CR, and with no other character that Python takes for a line end."""
    offset = span.start
    if offset:
        stream.seek(offset)
    begun = b""  # what has been read of the line at `offset`
    while True:
        # Twice as much of a long line each time: it is copied a few times only.
        limit = min(max(_LINES_BYTES, len(begun)), MAX_LINE_BYTES - len(begun))
        if span.stop is not None:
            limit = min(limit, span.stop - offset - len(begun))
        read = stream.read(limit)
        lines = (begun + read).splitlines(keepends=True)
        # The last line may go on, be it with the line feed behind a carriage return.
        begun = lines.pop() if read else b""
        for line in lines:
            if offset == 0 and line.startswith(_BOM):
                yield len(_BOM), line[len(_BOM) :]
            else:
                yield offset, line
            offset += len(line)
        if not read:
            return
        if len(begun) == MAX_LINE_BYTES:
            raise InputError(
                f"{path}: the line at byte {offset:,} is longer than 256 MiB; expected one record per line"
            )


def _documents(lines: Iterable[Record]) -> Iterator[Record]:
    """Join lines to documents of google's format.

    A blank line ends a document, and so does a line end `MAX_DOCUMENT_BYTES` or more after its start.
    """
    start = 0
    kept: list[bytes] = []
    for offset, line in lines:
        # Most lines are known by their first byte not to be blank; this loop reads the file once more for the planner.
        is_blank = not line[:1].isalnum() and _is_blank(line)
        if kept and (is_blank or offset - start >= MAX_DOCUMENT_BYTES):
            yield start, b"".join(kept)
            kept = []
        if not is_blank:
            if not kept:
                start = offset
            kept.append(line)
    if kept:
        yield start, b"".join(kept)


def _parts(lines: Iterable[Record], path: Path | str) -> Iterator[Record]:
    """Join lines to parts of a book: a part ends at the first blank line `MAX_DOCUMENT_BYTES` or more after its start.

    Project Gutenberg's license stays with the end of its book, by which it is known. InputError if there is no blank
    line for 256 MiB.
    """
    start = 0
    limit = MAX_DOCUMENT_BYTES
    kept: list[bytes] = []
    for offset, line in lines:
        if kept and offset - start >= limit and _is_blank(kept[-1]) and not _is_blank(line):
            yield start, b"".join(kept)
            kept = []
            limit = MAX_DOCUMENT_BYTES
        if not kept:
            start = offset
        kept.append(line)
        if offset - start >= MAX_DOCUMENT_BYTES - _LICENSE_BYTES and _GUTENBERG_END.match(line):
            limit = offset - start + _LICENSE_BYTES
        if offset - start > MAX_LINE_BYTES:
            raise InputError(
                f"{path}: no blank line in the 256 MiB from byte {start:,} on, expected paragraphs between blank "
                "lines; if each line is a sentence, name it lines:"
            )
    if kept:
        yield start, b"".join(kept)


def _is_blank(line: bytes) -> bool:
    """Return True if a line holds nothing but white space of any script."""
    return not line.decode(errors="replace").strip()


def plan_spans(path: Path | str, kind: TextKind, split_bytes: int) -> Iterator[Span]:
    """Cut a file into spans of whole records of `split_bytes` or more; compressed and smaller files are one span.

    The file is read once, because the number of records before a span is part of the ids of its documents.
    """
    if size_of(path) <= split_bytes or compression_of(path):
        yield WHOLE
        return
    start = first = 0
    with open_text(path) as stream:
        for number, (offset, _) in enumerate(read_records(stream, path, kind)):
            if offset - start >= split_bytes:
                yield Span(start, offset, first)
                start, first = offset, number
    yield Span(start, None, first)
