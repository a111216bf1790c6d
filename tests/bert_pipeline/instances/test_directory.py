"""Instance directories with a manifest, and directories of other TFRecord files."""

import contextlib
import gzip

import numpy as np
import pytest
from small_corpus import make_corpus, make_documents, make_tokenizer, make_vocabulary
from small_instances import assert_same, make_columns, with_flipped_bits

from bert_pipeline.errors import ArtifactError, BertError, InputError
from bert_pipeline.instances.columns import InstanceColumns
from bert_pipeline.instances.directory import (
    check_vocabulary,
    is_tfrecord,
    load_instances,
    open_shard,
    shard_paths,
    verify_shard,
)
from bert_pipeline.instances.job import build_instances, show_instances
from bert_pipeline.instances.pairs import InstancesConfig
from bert_pipeline.instances.parquet import InstanceWriter, ParquetInstances
from bert_pipeline.instances.tfrecord import TfrecordWriter, read_widths
from bert_pipeline.manifest import publishing
from bert_pipeline.parquet_io import footer_sha256


def write(path, count=5, **widths):
    path.parent.mkdir(parents=True, exist_ok=True)
    with TfrecordWriter(path, **({"max_seq_length": 40, "max_predictions_per_seq": 6} | widths)) as writer:
        if count:
            writer.write(make_columns(count, static=True))


@pytest.mark.parametrize(
    "name",
    ["tf_examples.tfrecord", "train.tf_record", "a.tfrecord.gz", "tf_examples.tfrecord-00003-of-00010", "a.tfrecords"],
)
def test_tfrecord_files_are_known_by_name(name):
    assert is_tfrecord(name)
    assert not is_tfrecord(f"{name}.json")


def test_foreign_files_outside_held_out_are_for_training(tmp_path):
    for name in ("b.tfrecord-00001-of-00002", "b.tfrecord-00000-of-00002", "more/c.tfrecord", "held_out/d.tfrecord"):
        write(tmp_path / name)
    (tmp_path / "vocab.txt").write_text("not read here\n")
    manifest = load_instances(tmp_path)
    names = {
        split: [path.relative_to(tmp_path).as_posix() for path in shard_paths(manifest, split)]
        for split in ("train", "held_out")
    }
    assert names == {
        "train": ["b.tfrecord-00000-of-00002", "b.tfrecord-00001-of-00002", "more/c.tfrecord"],
        "held_out": ["held_out/d.tfrecord"],
    }
    assert manifest.configuration["max_seq_length"] == 40
    assert manifest.configuration["max_predictions_per_seq"] == 6


def test_hash_of_foreign_files_depends_on_bytes(tmp_path):
    write(tmp_path / "a.tfrecord")
    before = load_instances(tmp_path).sha256
    assert load_instances(tmp_path).sha256 == before
    write(tmp_path / "a.tfrecord", count=6)
    assert load_instances(tmp_path).sha256 != before


def test_parquet_is_preferred_to_tfrecord(tmp_path):
    with publishing(tmp_path / "made", kind="instances", configuration={}, inputs={}) as draft:
        for name in ("train/a.parquet", "train/a.tfrecord", "held_out/a.tfrecord"):
            (draft.path / name).parent.mkdir(exist_ok=True)
            (draft.path / name).touch()
    manifest = load_instances(tmp_path / "made")
    assert [path.name for path in shard_paths(manifest, "train")] == ["a.parquet"]
    assert [path.name for path in shard_paths(manifest, "held_out")] == ["a.tfrecord"]


def test_directory_without_instances_raises(tmp_path):
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(ArtifactError, match=r"no manifest\.json"):
            load_instances(path)


def test_widths_are_read_from_first_record(tmp_path):
    write(tmp_path / "a", max_seq_length=128, max_predictions_per_seq=20)
    (tmp_path / "b").write_bytes(gzip.compress((tmp_path / "a").read_bytes()))
    assert read_widths(tmp_path / "a") == read_widths(tmp_path / "b") == (128, 20)
    (tmp_path / "empty").write_bytes(b"")
    assert read_widths(tmp_path / "empty") == (0, 0)
    (tmp_path / "other").write_bytes(b"PAR1" + bytes(40))
    with pytest.raises(InputError, match="the CRC of its length is wrong"):
        read_widths(tmp_path / "other")


def columns_of(ids, positions=None, labels=()):
    """Columns of one instance, with masks unless `positions` is None."""
    masks = {}
    if positions is not None:
        masks = {"masked_lm_positions": np.array(positions), "masked_lm_ids": np.array(labels)}
        masks["masked_offsets"] = np.array([0, len(positions)])
    return InstanceColumns(
        input_ids=np.array(ids, dtype=np.int32),
        offsets=np.array([0, len(ids)]),
        segment_b_start=np.array([3]),
        is_random_next=np.array([False]),
        **masks,
    )


VOCABULARY = make_tokenizer()
CLS, SEP, SIZE = VOCABULARY.cls_id, VOCABULARY.sep_id, VOCABULARY.vocab_size
SOUND = (CLS, 7, SEP, 8, SEP)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (columns_of(SOUND), ""),
        (columns_of((CLS, 7, SEP, SIZE, SEP)), "x: input_ids holds token id"),
        (columns_of((CLS, 7, SEP, -1, SEP)), "x: input_ids holds token id -1"),
        (columns_of(()), "x: instance 0 has no tokens"),
        (columns_of((101, 7, 102, 8, 102)), "x: input_ids holds token id|x: instance 0 has token id 101 where"),
        (columns_of((9, 7, SEP, 8, SEP)), r"x: instance 0 has token id 9 where \[CLS\] belongs, which is 2"),
        (columns_of((CLS, 7, SEP, 8, 9)), r"x: instance 0 has token id 9 where \[SEP\] belongs, which is 3"),
        (columns_of(SOUND, [0, 4], [7, SIZE - 1]), ""),
        (columns_of(SOUND, [1, 5], [7, 7]), "x: instance 0 has masked_lm_positions 5, expected 0 to 4"),
        (columns_of(SOUND, [-1, 3], [7, 7]), "x: instance 0 has masked_lm_positions -1, expected 0 to 4"),
        (columns_of(SOUND, [1, 3], [7, SIZE]), "x: masked_lm_ids holds token id"),
        (columns_of(SOUND, [1, 3], [7]), "x: holds 1 masked_lm_ids and 2 masked_lm_positions"),
    ],
)
def test_instances_of_another_vocabulary_raise(columns, message):
    with pytest.raises(InputError, match=message) if message else contextlib.nullcontext():
        check_vocabulary(columns, VOCABULARY, "x")


@pytest.mark.real_data
def test_google_instances_are_shown_as_text(real_data, tmp_path):
    (tmp_path / "tf_examples.tfrecord").symlink_to(real_data / "golden/pretraining-instances.tfrecord")
    (tmp_path / "vocab.txt").symlink_to(real_data / "vocab/bert-base-uncased-vocab.txt")
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    texts = list(show_instances(tmp_path, 100))
    assert len(texts) == 60
    assert all(text.startswith("A  [CLS] ") for text in texts)
    assert "[MASK]→" in texts[0]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A corpus, a vocabulary, and instances in both formats."""
    place = tmp_path_factory.mktemp("built")
    corpus = make_corpus(place / "corpus", [make_documents(400, held_out=[3])])
    vocabulary = make_vocabulary(place / "vocabulary")
    config = InstancesConfig(max_seq_length=32, dupe_factor=5, format="both", max_predictions_per_seq=4)
    build_instances(corpus, vocabulary, place / "instances", config, ["--workers", "1"])
    return place


@pytest.mark.parametrize("suffix", ["parquet", "tfrecord"])
def test_flipped_bit_of_a_shard_is_found(built, tmp_path, suffix):
    name = f"train/instances-00000.{suffix}"

    def read(directory):
        manifest = load_instances(directory)
        verify_shard(manifest, directory / name)
        with open_shard(directory / name) as shard:
            return [shard.read_row_group(index) for index in range(shard.num_row_groups)]

    assert read(built / "instances")[0].num_instances == 4096
    for directory in with_flipped_bits(built / "instances", tmp_path / "copy", name):
        with pytest.raises(BertError, match=rf"{name}: (.*damaged|row group 0 cannot be read|.*CRC)"):
            read(directory)


def test_flipped_bit_of_shown_instances_or_of_their_vocabulary_is_found(built, tmp_path):
    for number, name in enumerate(("vocab.txt", "train/instances-00000.parquet")):
        for directory in with_flipped_bits(built / "instances", tmp_path / str(number), name, places=2):
            with pytest.raises(BertError, match=name):
                list(show_instances(directory, 3))


def test_flipped_bits_are_harmless_or_found(tmp_path):
    """Also those of page headers, which no checksum covers."""
    path, columns = tmp_path / "instances.parquet", make_columns(20, static=False)
    with InstanceWriter(path) as writer:
        writer.write(columns)
    whole, footer = path.read_bytes(), footer_sha256(path)
    found = 0
    places = range(0, len(whole), 3)
    for place in places:
        data = bytearray(whole)
        data[place] ^= 1 << place % 8
        path.write_bytes(data)
        if footer_sha256(path) != footer:
            found += 1
            continue
        try:
            with ParquetInstances(path) as shard:
                assert_same(shard.read_row_group(0), columns)
        except BertError:
            found += 1
    assert found > 0.95 * len(places)
