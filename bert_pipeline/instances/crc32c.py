"""CRC-32C of many byte strings at once, as TFRecord files want it, with numpy alone."""

from collections.abc import Sequence

import numpy as np

_POLYNOMIAL = 0x82F63B78  # Castagnoli, reflected (RFC 3720, appendix B.4)
_ALL_ONES = np.uint32(0xFFFFFFFF)
_MASK_DELTA = np.uint32(0xA282EAD8)  # tensorflow/core/lib/hash/crc32c.h


def _advance(state: np.ndarray, num_bytes: int) -> np.ndarray:
    for _ in range(8 * num_bytes):
        state = np.where(state & np.uint32(1), state >> np.uint32(1) ^ np.uint32(_POLYNOMIAL), state >> np.uint32(1))
    return state


_HALVES = np.arange(65_536, dtype=np.uint32)
_LOW = _advance(_HALVES, 4)
"""State four bytes later, for each value of its low half alone; the tables of two halves add up by exclusive or."""
_HIGH = _advance(_HALVES << np.uint32(16), 4)


def crc32c(records: Sequence[bytes]) -> np.ndarray:
    """Return the CRC-32C (N,) uint32 of N byte strings, which advance together, four bytes at a time."""
    lengths = np.array([len(record) for record in records], dtype=np.int64)
    if not len(lengths):
        return np.zeros(0, dtype=np.uint32)
    # A state of zero stays zero over leading zeros, so shorter records are aligned at their ends. The prescribed
    # start from all ones is the same as a start from zero with the first four bytes inverted.
    width = max(4, -(-int(lengths.max()) // 4) * 4)
    padded = np.zeros((len(records), width), dtype=np.uint8)  # (N, W)
    columns = np.arange(width)
    firsts = width - lengths
    padded[columns >= firsts[:, None]] = np.frombuffer(b"".join(records), dtype=np.uint8)
    rows = np.arange(len(records))
    for index in range(4):
        has_byte = lengths > index
        padded[rows[has_byte], firsts[has_byte] + index] ^= np.uint8(255)
    words = np.ascontiguousarray(padded.view("<u4").T)  # (W / 4, N)
    state = np.zeros(len(records), dtype=np.uint32)
    for word in words:
        state ^= word
        state = _LOW[state & np.uint32(0xFFFF)] ^ _HIGH[state >> np.uint32(16)]
    result = state ^ _ALL_ONES
    for row in np.flatnonzero(lengths < 4).tolist():  # too short for the inverted start
        result[row] = _crc_of_few(records[row])
    return result


def masked_crc32c(records: Sequence[bytes]) -> np.ndarray:
    """Return TensorFlow's masked CRCs (N,) uint32: rotated and shifted, so that CRCs of CRCs stay sound."""
    crc = crc32c(records)
    return (crc >> np.uint32(15) | crc << np.uint32(17)) + _MASK_DELTA


def _crc_of_few(record: bytes) -> int:
    state = 0xFFFFFFFF
    for byte in record:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (_POLYNOMIAL if state & 1 else 0)
    return state ^ 0xFFFFFFFF
