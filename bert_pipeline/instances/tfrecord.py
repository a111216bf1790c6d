"""Instances in google's TFRecord format (padded `tf.train.Example`s), read and written without TensorFlow.

A file is a sequence of records: length (8 bytes), masked CRC-32C of it (4), data, masked CRC-32C of the data (4).
The data is a protocol buffer, `tf.train.Example`. protobuf reads it; it is written by hand, all records at once.
"""

import contextlib
import functools
import gzip
import itertools
import mmap
import shutil
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Literal

import google_crc32c
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import DecodeError

from bert_pipeline.atomic import disk_errors
from bert_pipeline.compression import compression_of, open_bytes
from bert_pipeline.errors import InputError
from bert_pipeline.instances.columns import InstanceColumns, pad, unpad
from bert_pipeline.storage import read_errors

RECORDS_PER_ROW_GROUP = 4096

_HEADER = struct.Struct("<QI")
_MASK_DELTA = 0xA282EAD8  # tensorflow/core/lib/hash/crc32c.h
_FLOAT_LIST, _INT64_LIST = 2, 3
_INT_FEATURES = (
    "input_ids",
    "input_mask",
    "segment_ids",
    "masked_lm_positions",
    "masked_lm_ids",
    "next_sentence_labels",
)
_WEIGHTS = "masked_lm_weights"

# The part of tensorflow/core/example/example.proto that instances use.
_PROTO = """
name: "example.proto" package: "bert" syntax: "proto3"
message_type { name: "FloatList" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT } }
message_type { name: "Int64List" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
message_type { name: "Feature"
  field { name: "float_list" number: 2 type: TYPE_MESSAGE type_name: ".bert.FloatList" }
  field { name: "int64_list" number: 3 type: TYPE_MESSAGE type_name: ".bert.Int64List" } }
message_type { name: "Features"
  field { name: "feature" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".bert.Features.FeatureEntry" }
  nested_type { name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING }
    field { name: "value" number: 2 type: TYPE_MESSAGE type_name: ".bert.Feature" } } }
message_type { name: "Example"
  field { name: "features" number: 1 type: TYPE_MESSAGE type_name: ".bert.Features" } }
"""
_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(text_format.Parse(_PROTO, descriptor_pb2.FileDescriptorProto()))
Example = message_factory.GetMessageClass(_POOL.FindMessageTypeByName("bert.Example"))
"""`tf.train.Example`."""


class TfrecordWriter(contextlib.AbstractContextManager["TfrecordWriter"]):
    """Writes instances with static masks to one file, zero padded, with the features of google's script."""

    def __init__(
        self,
        path: Path | str,
        *,
        max_seq_length: int,
        max_predictions_per_seq: int,
        compression: Literal["none", "gzip"] = "none",
    ) -> None:
        self.rows = 0
        self.max_seq_length = max_seq_length
        self.max_predictions_per_seq = max_predictions_per_seq
        self._file = open(path, "wb")  # noqa: SIM115
        self._stream: gzip.GzipFile | IO[bytes] = self._file
        if compression == "gzip":  # without name and time, so that equal instances give equal bytes
            self._stream = gzip.GzipFile(filename="", mode="wb", fileobj=self._file, mtime=0)

    def write(self, columns: InstanceColumns) -> None:
        """Append instances. ValueError if they have no masks or do not fit."""
        masked_offsets = columns.masked_offsets
        if masked_offsets is None or columns.masked_lm_positions is None or columns.masked_lm_ids is None:
            raise ValueError("instances without masks; google's TFRecord stores masks")
        column = np.arange(self.max_seq_length)
        is_token = column < columns.lengths[:, None]  # (N, S)
        slots = np.arange(self.max_predictions_per_seq) < np.diff(masked_offsets)[:, None]  # (N, P)
        # All records at once: each feature is an array (N, width), encoded by rows.
        features = {
            "input_ids": pad(columns.input_ids, columns.offsets, self.max_seq_length),
            "input_mask": is_token,
            "segment_ids": is_token & (column >= columns.segment_b_start[:, None]),
            "masked_lm_positions": pad(columns.masked_lm_positions, masked_offsets, self.max_predictions_per_seq),
            "masked_lm_ids": pad(columns.masked_lm_ids, masked_offsets, self.max_predictions_per_seq),
            "next_sentence_labels": columns.is_random_next[:, None],
        }
        # google's script has the weights before the last feature, so they are inserted there.
        encoded = [_encode_feature(name, _varints(values)) for name, values in features.items()]
        floats = slots.astype("<f4")
        encoded.insert(5, _encode_feature(_WEIGHTS, [row.tobytes() for row in floats]))
        messages = (b"".join(parts) for parts in zip(*encoded))
        records = (b"\n" + _varint(len(message)) + message for message in messages)
        parts = ((_record_header(len(record)), record, masked_crc32c(record)) for record in records)
        self._stream.write(b"".join(itertools.chain.from_iterable(parts)))
        self.rows += columns.num_instances

    def __exit__(self, *_: object) -> None:
        try:
            if self._stream is not self._file:
                self._stream.close()
        finally:
            self._file.close()


@functools.lru_cache(maxsize=65_536)
def _record_header(length: int) -> bytes:
    encoded = length.to_bytes(8, "little")
    return encoded + masked_crc32c(encoded)


def masked_crc32c(data: bytes) -> bytes:
    """Return the CRC-32C of `data` as TensorFlow masks it: rotated and shifted, so that CRCs of CRCs stay sound."""
    crc = google_crc32c.value(data)
    return int((crc >> 15 | crc << 17) + _MASK_DELTA & 0xFFFFFFFF).to_bytes(4, "little")


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 128:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _varints(values: np.ndarray) -> list[bytes]:
    """Encode rows (N, W) of non-negative integers as packed varints, one byte string per row."""
    if values.dtype == bool or not values.size or int(values.max()) < 128:
        return [row.tobytes() for row in values.astype(np.uint8)]
    # Seven bits per byte, the lowest first; the high bit marks that another byte follows.
    values = values.astype(np.uint64)
    num_bytes = np.ones(values.shape, dtype=np.int64)  # (N, W)
    for shift in range(7, 64, 7):
        longer = values >= np.uint64(1 << shift)
        if not longer.any():
            break
        num_bytes += longer
    max_bytes = int(num_bytes.max())
    digits = np.empty((*values.shape, max_bytes), dtype=np.uint8)  # (N, W, bytes)
    for index in range(max_bytes):
        digits[..., index] = (values >> np.uint64(7 * index) & np.uint64(127)).astype(np.uint8)
        digits[..., index] |= np.where(num_bytes > index + 1, np.uint8(128), np.uint8(0))
    flat = digits[np.arange(max_bytes) < num_bytes[..., None]].tobytes()
    bounds = [0, *itertools.accumulate(num_bytes.sum(axis=1).tolist())]
    return [flat[start:stop] for start, stop in itertools.pairwise(bounds)]


def _encode_feature(name: str, payloads: list[bytes]) -> list[bytes]:
    """Wrap the packed values of one feature, one payload per record, into map entries."""
    return [_feature_head(name, len(payload)) + payload for payload in payloads]


@functools.lru_cache(maxsize=65_536)
def _feature_head(name: str, length: int) -> bytes:
    packed = b"\n" + _varint(length)
    kind = (_FLOAT_LIST if name == _WEIGHTS else _INT64_LIST) << 3 | 2
    values = bytes([kind]) + _varint(len(packed) + length) + packed
    key = b"\n" + _varint(len(name)) + name.encode()
    value = b"\x12" + _varint(len(values) + length) + values
    return b"\n" + _varint(len(key) + len(value) + length) + key + value


class TfrecordInstances(contextlib.AbstractContextManager["TfrecordInstances"]):
    """One TFRecord file of instances, plain or gzip, read in groups of 4,096 records."""

    def __init__(self, path: Path | str) -> None:
        """InputError names the byte at which the file is not a complete TFRecord file of instances."""
        self.path = Path(path)
        self._memory = _map(self.path)
        self._groups: list[int] = []
        self.num_instances = 0
        # TFRecord has no index: pass over all headers once, and find a truncated file before training does.
        for start, _ in self._records(0):
            if self.num_instances % RECORDS_PER_ROW_GROUP == 0:
                self._groups.append(start)
            self.num_instances += 1
        self.num_row_groups = len(self._groups)
        whole, rest = divmod(self.num_instances, RECORDS_PER_ROW_GROUP)
        self.row_group_sizes = (RECORDS_PER_ROW_GROUP,) * whole + ((rest,) if rest else ())
        self.max_seq_length = self.max_predictions_per_seq = 0
        # The first record gives the widths; `read_row_group` compares all others with them.
        if self.num_instances:
            self.max_seq_length, self.max_predictions_per_seq = _widths(self._record_bytes(0, 1)[0], self.path)

    def read_row_group(self, index: int) -> InstanceColumns:
        """Read one group of records. InputError if a CRC is wrong or a record is not an instance."""
        size = self.row_group_sizes[index]
        first = index * RECORDS_PER_ROW_GROUP
        # Records of one file have equal widths, so a feature of all of them is an array (N, width).
        widths = dict.fromkeys(_INT_FEATURES[:3], self.max_seq_length)
        widths |= dict.fromkeys((*_INT_FEATURES[3:5], _WEIGHTS), self.max_predictions_per_seq)
        widths |= {"next_sentence_labels": 1}
        values = {name: np.empty((size, width), "<f4" if name == _WEIGHTS else int) for name, width in widths.items()}
        for row, record in enumerate(self._record_bytes(index, size)):
            where = f"{self.path}: record {first + row}"
            for name, feature in _parse(record, where).items():
                if len(feature) != widths[name]:
                    raise InputError(f"{where}: {name} has {len(feature)} values, expected {widths[name]}")
                values[name][row] = feature
        for name in _INT_FEATURES:
            if values[name].size and not 0 <= values[name].min() <= values[name].max() <= np.iinfo(np.int32).max:
                raise InputError(f"{self.path}: {name} holds a value outside 0 to 2147483647; not instances of BERT")
            values[name] = values[name].astype(np.int32)
        # Drop the padding: the mask counts the tokens of an instance, the weights its predictions.
        num_masked = self._counts(values[_WEIGHTS], _WEIGHTS, first)
        lengths = self._counts(values["input_mask"], "input_mask", first)
        input_ids, offsets = unpad(values["input_ids"], lengths)
        positions, masked_offsets = unpad(values["masked_lm_positions"], num_masked)
        return InstanceColumns(
            input_ids=input_ids,
            offsets=offsets,
            segment_b_start=(lengths - values["segment_ids"].sum(axis=1)).astype(np.int32),
            is_random_next=values["next_sentence_labels"][:, 0] == 1,
            masked_lm_positions=positions,
            masked_lm_ids=unpad(values["masked_lm_ids"], num_masked)[0],
            masked_offsets=masked_offsets,
        )

    def _counts(self, marks: np.ndarray, name: str, first: int) -> np.ndarray:
        """Sum the rows (N, width) of a mask, whose ones come first, to (N,) int64."""
        sums = marks.sum(axis=1)
        if (wrong := np.flatnonzero(~((sums >= 0) & (sums <= marks.shape[1])))).size:  # NaN too
            raise InputError(
                f"{self.path}: record {first + int(wrong[0])}: {name} sums to {sums[wrong[0]]:g}, expected 0 to "
                f"{marks.shape[1]}; not instances of BERT"
            )
        counts: np.ndarray = sums.astype(np.int64)
        return counts

    def _records(self, position: int) -> Iterator[tuple[int, int]]:
        """Yield (offset, length of the data) of each record from `position` on."""
        memory, end = self._memory, len(self._memory)
        while position < end:
            if position + _HEADER.size > end:
                raise InputError(f"{self.path}: ends inside a record at byte {position}; the file is cut short")
            # The length has its own CRC: without it, a damaged one would lead anywhere in the file.
            length, _ = _HEADER.unpack_from(memory, position)
            stop = position + _HEADER.size + length + 4
            if memory[position : position + _HEADER.size] != _record_header(length):
                raise InputError(f"{self.path}: no TFRecord at byte {position}: the CRC of its length is wrong")
            if stop > end:
                raise InputError(f"{self.path}: ends inside a record at byte {position}; the file is cut short")
            yield position, length
            position = stop

    def _record_bytes(self, group: int, count: int) -> list[bytes]:
        records: list[bytes] = []
        for start, length in itertools.islice(self._records(self._groups[group]), count):
            data = start + _HEADER.size
            record = self._memory[data : data + length]
            if masked_crc32c(record) != self._memory[data + length : data + length + 4]:
                number = group * RECORDS_PER_ROW_GROUP + len(records)
                raise InputError(f"{self.path}: record {number}: the CRC of its data is wrong; the file is damaged")
            records.append(record)
        return records

    def __exit__(self, *_: object) -> None:
        if isinstance(self._memory, mmap.mmap):
            self._memory.close()


def read_widths(path: Path | str) -> tuple[int, int]:
    """Read max_seq_length and max_predictions_per_seq off the first record; zeros when the file holds none."""
    path = Path(path)
    # A stream, not a map: a directory may have thousands of files, of which this reads one record each.
    with read_errors(path, ""), open_bytes(path) as stream:
        header = stream.read(_HEADER.size)
        length = _HEADER.unpack(header)[0] if len(header) == _HEADER.size else 0
        if header and header != _record_header(length):
            raise InputError(f"{path}: no TFRecord at byte 0: the CRC of its length is wrong")
        record = stream.read(length)
    return _widths(record, path) if header else (0, 0)


def _map(path: Path) -> mmap.mmap | bytes:
    """Map a file into memory; a compressed one through a temporary one, since it has no way to its middle."""
    with read_errors(path, ""), open_bytes(path) as stream:
        if not compression_of(path):
            return _mapped(stream)
        with disk_errors(Path(tempfile.gettempdir(), path.name)), tempfile.TemporaryFile() as plain:
            shutil.copyfileobj(stream, plain, 1 << 20)
            plain.flush()
            return _mapped(plain)


def _mapped(file: IO[bytes]) -> mmap.mmap | bytes:
    file.seek(0, 2)
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if file.tell() else b""


def _widths(record: bytes, path: Path) -> tuple[int, int]:
    first = _parse(record, f"{path}: record 0")
    return len(first["input_ids"]), len(first["masked_lm_positions"])


def _parse(record: bytes, where: str) -> dict[str, list[float]]:
    """Return the values of each feature that instances have; other features are left alone."""
    try:
        features = Example.FromString(record).features.feature
    except DecodeError as error:
        raise InputError(f"{where}: not a tf.train.Example ({error})") from error
    names = (*_INT_FEATURES, _WEIGHTS)
    for name in names:
        if name not in features:
            present = ", ".join(sorted(set(names) & set(features)))
            raise InputError(f"{where}: no feature {name!r}; found {present or 'none of instances'}")
    integers = {name: features[name].int64_list.value[:] for name in _INT_FEATURES}
    return integers | {_WEIGHTS: features[_WEIGHTS].float_list.value[:]}
