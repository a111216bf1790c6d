"""Random access to any .bz2 file: its blocks are found by their magic number and decompressed one by one.

A bzip2 file is a run of streams, each a run of blocks of at most 900,000 bytes, and blocks start at any *bit*. Every
block carries a 48-bit magic number and a checksum, and depends on nothing before it. So a byte range of the file can
be read alone, whether the file was written as one stream or many, and the ranges together yield what a reader from
the front yields. A block is passed to a decoder as a stream of its own, which verifies its checksum: to that of
`indexed_bzip2`, which is faster than the `bz2` module, and to `bz2` if the other one refuses it or is not installed.
"""

import bz2
import io
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from bert_pipeline.storage import open_binary, read_at, size_of

try:
    import indexed_bzip2
except ImportError:
    indexed_bzip2 = None

_BLOCK_MAGIC = 0x314159265359
_END_MAGIC = 0x177245385090
_MAGIC_BITS = 48
_CHECKSUM_BITS = 32  # after the end mark; the next stream begins at the next whole byte
_HEADER_BITS = 32  # "BZh9"
_CUT_OFF = re.compile(rb"(?:B(?:Z(?:h(?:[1-9].{0,5})?)?)?)?", re.DOTALL)
"""What may follow the last stream of a file: nothing, or less than the header and magic number of another one."""
_BEGIN_BYTES = 10
_WINDOW_BYTES = 1 << 20
_READ_BYTES = 1 << 20  # a tenth faster than reading to the end in one call
_MAX_BLOCK_BYTES = 1_200_000  # a block holds at most 900,000 bytes, and bzip2 grows incompressible data slightly


class DamagedError(Exception):
    """A block that cannot be decompressed: its first byte in the file, and whether the file ends in it."""

    def __init__(self, offset: int, truncated: bool) -> None:
        super().__init__(f"block at byte {offset:,}")
        self.offset = offset
        self.truncated = truncated


def read_blocks(path: Path | str, start: int, stop: int | None) -> Iterator[tuple[bytes, bool]]:
    """Yield (decompressed block, True if it begins before byte `stop`), from the first block at or after `start`.

    Blocks are read up to the end of the file, because a page that begins before `stop` may end after it. Raise
    DamagedError for a block that is cut off or fails its checksum.
    """
    size = size_of(path)
    limit = (size if stop is None else stop) * 8
    with open_binary(path) as stream:
        magics = _find_magics(stream, start, size)
        magic = next(magics, None)
        # In an intact file the first block directly follows the header.
        if start == 0 and magic and magic[0] != _HEADER_BITS:
            raise DamagedError(0, truncated=False)
        while magic is not None:
            position, is_block = magic
            following = next(magics, None)
            # A stream ends here, after its checksum; the next one begins at a whole byte.
            if not is_block:
                end = -(-(position + _MAGIC_BITS + _CHECKSUM_BITS) // 8) * 8
                behind = b"" if following else read_at(stream, _BEGIN_BYTES, end // 8)
                # A block whose magic number is damaged, or what is no stream
                if following and following[0] != end + _HEADER_BITS or not _CUT_OFF.fullmatch(behind):
                    raise DamagedError(end // 8, truncated=False)
                magic = following
                continue
            # The next magic number ends the block, unless it is one that occurs in its data, once in 2^48 bits
            block = None
            is_cut_off = following is None
            for _ in range(3):
                if following is None:
                    break
                block = _decompress(stream, position, following[0])
                if block is not None or following[0] - position > 8 * _MAX_BLOCK_BYTES:
                    break
                following = next(magics, None)
            if block is None:
                raise DamagedError(position // 8, truncated=is_cut_off)
            yield block, position < limit
            magic = following


def ends_cleanly(path: Path | str) -> bool:
    """Return True if the last stream is complete: it has an end mark and checksum, and only padding after them."""
    size = size_of(path)
    with open_binary(path) as stream:
        last = None
        for last in _find_magics(stream, max(0, size - 64), size):  # noqa: B007
            pass
    return last is not None and not last[1] and size * 8 - (last[0] + _MAGIC_BITS + _CHECKSUM_BITS) in range(8)


def _decompress(stream: BinaryIO, first_bit: int, end_bit: int) -> bytes | None:
    """Decompress the bits [first_bit, end_bit) as one block; None if they are not exactly one intact block."""
    # Align the block to bytes
    first_byte, shift = divmod(first_bit, 8)
    raw = np.frombuffer(read_at(stream, (end_bit + 7) // 8 - first_byte + 1, first_byte), dtype=np.uint8)
    num_bytes, num_rest = divmod(end_bit - first_bit, 8)
    if shift:
        padded = np.append(raw, np.uint8(0))
        aligned = ((padded[:-1] << np.uint8(shift)) | (padded[1:] >> np.uint8(8 - shift))).tobytes()
    else:
        aligned = raw.tobytes() + b"\0"
    # Append the end of a stream to its last bits; the checksum of a stream of one block is the block's
    checksum = int.from_bytes(aligned[6:10], "big")
    tail = aligned[num_bytes] >> (8 - num_rest) if num_rest else 0
    tail = ((tail << _MAGIC_BITS) | _END_MAGIC) << _CHECKSUM_BITS | checksum
    num_tail_bits = num_rest + _MAGIC_BITS + _CHECKSUM_BITS
    padding = -num_tail_bits % 8
    # The checksum is verified: a wrong end bit cannot give a block.
    return _decode(b"BZh9" + aligned[:num_bytes] + (tail << padding).to_bytes((num_tail_bits + padding) // 8, "big"))


def _decode(stream: bytes) -> bytes | None:
    """Decompress a stream of one block; None if it is damaged, or not the whole of a stream."""
    if indexed_bzip2 is not None:
        try:
            with indexed_bzip2.open(io.BytesIO(stream), parallelization=1) as file:
                return b"".join(iter(lambda: file.read(_READ_BYTES), b""))
        except Exception:  # of several kinds; bz2 decides whether the stream is damaged
            pass
    decompressor = bz2.BZ2Decompressor()
    try:
        block = decompressor.decompress(stream)
    except (OSError, EOFError):
        return None
    return block if decompressor.eof else None


_STARTS: dict[int, list[tuple[int, int]]] = {}
"""First two whole bytes of a magic number at any bit -> (its bits before them, the number)."""
for _magic, _bits in itertools.product((_BLOCK_MAGIC, _END_MAGIC), range(8)):
    _STARTS.setdefault(_magic >> (_MAGIC_BITS - _bits - 16) & 0xFFFF, []).append((_bits, _magic))
_IS_START = np.zeros(1 << 16, dtype=bool)
_IS_START[[*_STARTS]] = True


def _find_magics(stream: BinaryIO, start: int, size: int) -> Iterator[tuple[int, bool]]:
    """Yield (bit position, True for a block or False for a stream's end) in order, from byte `start` on."""
    for offset in range(start, size, _WINDOW_BYTES):
        # Windows overlap by 7 bytes: a number of 48 bits that begins in the last byte of one ends within them.
        window = read_at(stream, _WINDOW_BYTES + 7, offset)
        stop = min(8 * _WINDOW_BYTES, 8 * len(window) - _MAGIC_BITS + 1)
        magics: list[tuple[int, bool]] = []
        # One look at all pairs of bytes instead of a search for each of sixteen; the few that are left are compared.
        values = np.frombuffer(window, dtype=np.uint8).astype(np.uint16)
        pairs = values[:-1] << 8 | values[1:]
        padded = b"\0" + window + bytes(6)
        for at in np.flatnonzero(_IS_START[pairs]).tolist():
            around = int.from_bytes(padded[at : at + 8], "big")
            for num_before, magic in _STARTS[int(pairs[at])]:
                position = at * 8 - num_before
                is_here = around >> (8 + num_before) & ((1 << _MAGIC_BITS) - 1) == magic
                if is_here and 0 <= position < stop:
                    magics.append((offset * 8 + position, magic == _BLOCK_MAGIC))
        yield from sorted(magics)
