"""Files as bytes, plain or compressed: gzip, bzip2, xz and zstd, known by their first bytes and not by their names."""

import bz2
import contextlib
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

from bert_pipeline.errors import InputError
from bert_pipeline.storage import failure_of, is_remote, open_binary

Compression = Literal["", "gzip", "bz2", "xz", "zstd"]

COMPRESSED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
_MAGIC: dict[bytes, Compression] = {
    b"\x1f\x8b\x08": "gzip",  # the third byte too: a TFRecord file begins with any length
    **{b"BZh%d1A" % level: "bz2" for level in range(1, 10)},
    **{b"BZh%d\x17r" % level: "bz2" for level in range(1, 10)},  # of an empty file
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    **{b"%c\x2a\x4d\x18" % number: "zstd" for number in range(0x50, 0x60)},  # skippable frames, as pzstd writes first
}
_BUFFER_BYTES = 1 << 20


def compression_of(path: Path | str) -> Compression:
    """Return the compression of a file; "" for a pipe, whose first bytes can be read only once."""
    if not is_remote(path) and Path(path).exists() and not Path(path).is_file():
        return ""
    with open_binary(path) as stream:
        head = stream.read(6)
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), "")


def without_compression(name: str) -> str:
    """Return the name of a file without the suffix of a compression: "a.txt" of a.txt.gz."""
    return next((name[: -len(end)] for end in COMPRESSED_SUFFIXES if name.lower().endswith(end)), name)


@contextlib.contextmanager
def open_bytes(path: Path | str) -> Iterator[BinaryIO]:
    """Open a file; a plain one can seek. InputError, also while it is read, if its compressed data are damaged."""
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


def _open_zstd(file: str | BinaryIO) -> Any:
    import pyarrow as pa  # zstd is in Python since 3.14 only

    return pa.CompressedInputStream(file, "zstd")


_OPENERS: dict[Compression, Callable[[Any], Any]] = {
    "": lambda file: io.FileIO(file) if isinstance(file, str) else file,
    "gzip": gzip.open,
    "bz2": lambda file: _StreamsReader(file, bz2.BZ2Decompressor),
    "xz": lambda file: _StreamsReader(file, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ)),
    "zstd": _open_zstd,
}
