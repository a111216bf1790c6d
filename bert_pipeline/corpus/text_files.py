"""Text files as bytes: records, and the spans of whole records that workers read.

A *record* is a line of JSON lines and pairs, a document of `lines:` and a part of a `book:`. `read_records` finds them
for the reader of a file and for the planner of its spans, so a file gives the same documents however it is cut.
"""

import dataclasses
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Literal

from bert_pipeline.compression import compression_of, open_bytes, without_compression
from bert_pipeline.errors import InputError
from bert_pipeline.records import BOM
from bert_pipeline.storage import size_of, to_path, without_secrets

TextKind = Literal["lines", "book", "jsonl", "pairs"]

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

_LINES_BYTES = 64 << 10
"""Bytes that are split into lines at a time."""


Record = tuple[int, bytes]
"""Offset in the decompressed file, and the bytes with their line ends."""


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """Whole records of a file: the bytes [start, stop), in Parquet the row groups, and the number of records before."""

    start: int = 0
    stop: int | None = None
    first: int = 0


WHOLE = Span()


def stem_of(path: Path) -> str:
    """Return the name of a file without its suffix, and without that of its compression: "a" of a.txt and a.txt.gz."""
    name = to_path(without_secrets(str(path))).name  # a query of a URL, which may sign it, is no part of the name
    return Path(without_compression(name) if compression_of(path) else name).stem


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
            if offset == 0 and line.startswith(BOM):
                yield len(BOM), line[len(BOM) :]
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
    with open_bytes(path) as stream:
        for number, (offset, _) in enumerate(read_records(stream, path, kind)):
            if offset - start >= split_bytes:
                yield Span(start, offset, first)
                start, first = offset, number
    yield Span(start, None, first)
