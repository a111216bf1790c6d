"""TFRecord files: google's are read, protobuf reads the written ones, and damage raises."""

import functools
import gzip
import itertools
import math
import struct

import google_crc32c
import pytest
from small_instances import assert_same, make_columns

from bert_pipeline.errors import DiskFullError, InputError
from bert_pipeline.instances.tfrecord import Example, TfrecordInstances, TfrecordWriter, read_widths

INTS = {"input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids", "next_sentence_labels"}


def plain_crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def plain_masked(data):
    crc = plain_crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records_of(data):
    """Every record of a TFRecord file, its CRCs checked bit by bit."""
    records, position = [], 0
    while position < len(data):
        length, length_crc = struct.unpack_from("<QI", data, position)
        assert length_crc == plain_masked(data[position : position + 8])
        record = data[position + 12 : position + 12 + length]
        (crc,) = struct.unpack_from("<I", data, position + 12 + length)
        assert crc == plain_masked(record)
        records.append(record)
        position += 16 + length
    return records


def framed(message):
    """A message as a record of a TFRecord file."""
    head = struct.pack("<Q", len(message))
    return head + struct.pack("<I", plain_masked(head)) + message + struct.pack("<I", plain_masked(message))


def features_of(record):
    """name -> (kind of list, values)."""
    example = Example.FromString(record)
    found = {}
    for name, feature in example.features.feature.items():
        ((field, values),) = feature.ListFields()
        found[name] = (field.name, list(values.value))
    return found


def write(path, columns, **values):
    with TfrecordWriter(path, **({"max_seq_length": 40, "max_predictions_per_seq": 6} | values)) as writer:
        writer.write(columns)


@pytest.mark.parametrize(
    ("data", "crc"), [(b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43)]
)
def test_crc_equals_vectors_of_rfc_3720(data, crc):
    assert plain_crc32c(data) == google_crc32c.value(data) == crc


@pytest.mark.real_data
def test_google_file_round_trips_with_equal_features(real_data, tmp_path):
    golden = real_data / "golden/pretraining-instances.tfrecord"
    with TfrecordInstances(golden) as shard:
        assert (shard.num_instances, shard.max_seq_length, shard.max_predictions_per_seq) == (60, 128, 20)
        columns = shard.read_row_group(0)
    write(tmp_path / "ours.tfrecord", columns, max_seq_length=128, max_predictions_per_seq=20)
    theirs = [features_of(record) for record in records_of(golden.read_bytes())]
    ours = [features_of(record) for record in records_of((tmp_path / "ours.tfrecord").read_bytes())]
    assert ours == theirs
    assert len(ours) == 60


def test_records_have_google_features_zero_padded(tmp_path):
    columns = make_columns(7, static=True)
    write(tmp_path / "x", columns)
    records = records_of((tmp_path / "x").read_bytes())
    assert len(records) == 7
    for row, record in enumerate(records):
        features = features_of(record)
        assert {name for name, (kind, _) in features.items() if kind == "int64_list"} == INTS
        assert {name for name, (kind, _) in features.items() if kind == "float_list"} == {"masked_lm_weights"}
        ids = columns.input_ids[columns.offsets[row] : columns.offsets[row + 1]].tolist()
        masked = slice(columns.masked_offsets[row], columns.masked_offsets[row + 1])
        positions = columns.masked_lm_positions[masked].tolist()
        length, start = len(ids), int(columns.segment_b_start[row])
        assert features["input_ids"][1] == ids + [0] * (40 - length)
        assert features["input_mask"][1] == [1] * length + [0] * (40 - length)
        assert features["segment_ids"][1] == [0] * start + [1] * (length - start) + [0] * (40 - length)
        assert features["masked_lm_positions"][1] == positions + [0] * (6 - len(positions))
        assert features["masked_lm_ids"][1] == columns.masked_lm_ids[masked].tolist() + [0] * (6 - len(positions))
        assert features["masked_lm_weights"][1] == [1.0] * len(positions) + [0.0] * (6 - len(positions))
        assert features["next_sentence_labels"][1] == [int(columns.is_random_next[row])]


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_instances_round_trip_in_groups(tmp_path, compression):
    columns = make_columns(5000, static=True)
    columns.input_ids[:4] = [127, 128, 16_384, 2_097_152]  # of one to four bytes
    write(tmp_path / "x", columns, compression=compression)
    with TfrecordInstances(tmp_path / "x") as shard:
        assert shard.row_group_sizes == (4096, 904)
        assert shard.num_row_groups == 2
        second = shard.read_row_group(1)
        first = shard.read_row_group(0)
    assert_same(first, part(columns, 0, 4096))
    assert_same(second, part(columns, 4096, 5000))


def part(columns, start, stop):
    tokens = slice(columns.offsets[start], columns.offsets[stop])
    masked = slice(columns.masked_offsets[start], columns.masked_offsets[stop])
    return type(columns)(
        input_ids=columns.input_ids[tokens],
        offsets=columns.offsets[start : stop + 1] - columns.offsets[start],
        segment_b_start=columns.segment_b_start[start:stop],
        is_random_next=columns.is_random_next[start:stop],
        masked_lm_positions=columns.masked_lm_positions[masked],
        masked_lm_ids=columns.masked_lm_ids[masked],
        masked_offsets=columns.masked_offsets[start : stop + 1] - columns.masked_offsets[start],
    )


def test_gzip_has_equal_bytes_without_time(tmp_path):
    columns = make_columns(20, static=True)
    for name in ("plain", "packed", "again"):
        write(tmp_path / name, columns, compression="none" if name == "plain" else "gzip")
    assert gzip.decompress((tmp_path / "packed").read_bytes()) == (tmp_path / "plain").read_bytes()
    assert (tmp_path / "packed").read_bytes() == (tmp_path / "again").read_bytes()


def test_unpacked_numbers_are_read(tmp_path):
    """Older writers repeat the tag before each number; both forms are the same message."""
    columns = make_columns(3, static=True)
    write(tmp_path / "packed", columns)
    data = b""
    for record in records_of((tmp_path / "packed").read_bytes()):
        entries = b""
        for name, (kind, values) in features_of(record).items():
            if kind == "float_list":
                numbers, field = b"".join(b"\x0d" + struct.pack("<f", value) for value in values), b"\x12"
            else:
                numbers, field = b"".join(b"\x08" + varint(value) for value in values), b"\x1a"
            feature = field + varint(len(numbers)) + numbers
            entry = b"\n" + varint(len(name)) + name.encode() + b"\x12" + varint(len(feature)) + feature
            entries += b"\n" + varint(len(entry)) + entry
        data += framed(b"\n" + varint(len(entries)) + entries)
    (tmp_path / "single").write_bytes(data)
    with TfrecordInstances(tmp_path / "single") as shard:
        assert_same(shard.read_row_group(0), columns)


def varint(value):
    encoded = b""
    while value >= 128:
        encoded += bytes([value & 127 | 128])
        value >>= 7
    return encoded + bytes([value])


def test_empty_file_has_no_row_groups(tmp_path):
    (tmp_path / "none").write_bytes(b"")
    with TfrecordInstances(tmp_path / "none") as shard:
        assert shard.num_instances == shard.num_row_groups == 0


def test_any_flipped_bit_raises(tmp_path):
    write(tmp_path / "good", make_columns(3, static=True))
    good = (tmp_path / "good").read_bytes()
    for position in itertools.chain(range(16), range(16, len(good), 37), range(len(good) - 4, len(good))):
        bad = bytearray(good)
        bad[position] ^= 1
        (tmp_path / "bad").write_bytes(bad)
        with pytest.raises(InputError, match="CRC|cut short"), TfrecordInstances(tmp_path / "bad") as shard:
            shard.read_row_group(0)


def test_truncated_file_raises(tmp_path):
    write(tmp_path / "good", make_columns(3, static=True))
    good = (tmp_path / "good").read_bytes()
    for length in (5, 11, 100, len(good) - 1):
        (tmp_path / "short").write_bytes(good[:length])
        with pytest.raises(InputError, match="cut short"):
            TfrecordInstances(tmp_path / "short")
    (tmp_path / "short.gz").write_bytes(gzip.compress(good)[:-20])
    with pytest.raises(InputError, match="cut off"):
        TfrecordInstances(tmp_path / "short.gz")


def test_length_like_the_first_bytes_of_gzip_is_read(tmp_path):
    write(tmp_path / "x", make_columns(1, static=True))
    (record,) = records_of((tmp_path / "x").read_bytes())
    example = Example.FromString(record)
    padding = example.features.feature["other"].int64_list.value
    padding.extend([1] * (0x8B1F - len(record) - 100))
    while example.ByteSize() < 0x8B1F:
        padding.append(1)
    (tmp_path / "x").write_bytes(framed(example.SerializeToString()))
    assert read_widths(tmp_path / "x") == (40, 6)
    with TfrecordInstances(tmp_path / "x") as shard:
        assert shard.num_instances == shard.read_row_group(0).num_instances == 1


def test_damaged_gzip_raises(tmp_path):
    write(tmp_path / "good.gz", make_columns(3, static=True), compression="gzip")
    damaged = bytearray((tmp_path / "good.gz").read_bytes())
    damaged[12:63] = bytes(255 - byte for byte in damaged[12:63])
    (tmp_path / "bad.gz").write_bytes(damaged)
    for read in TfrecordInstances, read_widths:
        with pytest.raises(InputError, match=r"bad\.gz: the gzip data are damaged \(.+\); fetch the file"):
            read(tmp_path / "bad.gz")


def test_full_disk_is_no_damaged_gzip(tmp_path, monkeypatch):
    write(tmp_path / "shard.gz", make_columns(5, static=True), compression="gzip")
    monkeypatch.setattr("tempfile.TemporaryFile", functools.partial(open, "/dev/full", "r+b"))
    with pytest.raises(DiskFullError, match="shard.gz: cannot be written: No space left on device; .*another TMPDIR"):
        TfrecordInstances(tmp_path / "shard.gz")


def test_records_of_other_features_raise(tmp_path):
    for message, expected in ((b"\n\x00", "no feature 'input_ids'"), (b"\xff\xff\xff", "not a tf.train.Example")):
        (tmp_path / "other").write_bytes(framed(message))
        with pytest.raises(InputError, match=expected):
            TfrecordInstances(tmp_path / "other")


def test_records_of_unequal_lengths_raise(tmp_path):
    write(tmp_path / "a", make_columns(2, static=True))
    write(tmp_path / "b", make_columns(2, static=True), max_seq_length=41)
    (tmp_path / "both").write_bytes((tmp_path / "a").read_bytes() + (tmp_path / "b").read_bytes())
    with (
        TfrecordInstances(tmp_path / "both") as shard,
        pytest.raises(InputError, match="record 2: input_ids has 41 values, expected 40"),
    ):
        shard.read_row_group(0)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("input_mask", 41, r"record 1: input_mask sums to \d+, expected 0 to 40;"),
        ("masked_lm_weights", -30, r"record 1: masked_lm_weights sums to -\d+, expected 0 to 6;"),
        ("masked_lm_weights", math.nan, "record 1: masked_lm_weights sums to nan, expected 0 to 6;"),
        ("masked_lm_ids", -1, "masked_lm_ids holds a value outside 0 to 2147483647"),
        ("input_ids", 1 << 31, "input_ids holds a value outside 0 to 2147483647"),
    ],
)
def test_values_that_instances_cannot_have_raise(tmp_path, name, value, expected):
    write(tmp_path / "good", make_columns(2, static=True))
    data = b""
    for record in records_of((tmp_path / "good").read_bytes()):
        example = Example.FromString(record)
        feature = example.features.feature[name]
        (feature.float_list if name == "masked_lm_weights" else feature.int64_list).value[0] = value
        data += framed(example.SerializeToString() if data else record)
    (tmp_path / "bad").write_bytes(data)
    with TfrecordInstances(tmp_path / "bad") as shard, pytest.raises(InputError, match=expected):
        shard.read_row_group(0)
