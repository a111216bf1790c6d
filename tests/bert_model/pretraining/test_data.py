"""Instance reader: every sample once per epoch, from any position, with any number of ranks."""

import dataclasses
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import fsspec
import numpy as np
import pytest
import torch
from instances_fixture import make_tokenizer, write_instances
from small_instances import with_flipped_bits

from bert_model.model.config import IGNORED_LABEL
from bert_model.pretraining import data
from bert_model.pretraining.batch import make_batch, mask_samples, round_up, split_micro_batches
from bert_model.pretraining.data import (
    InstanceReader,
    InstanceSplit,
    Samples,
    concatenate,
    held_out_samples,
    rank_rows,
    window_at,
)
from bert_pipeline.errors import ArtifactError, BertError
from bert_pipeline.instances.masking import MaskingConfig

TOKENIZER = make_tokenizer(60)
MASKING = MaskingConfig(max_predictions_per_seq=4)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "instances"
    write_instances(path, shards=(96, 64, 10), held_out=70, rows_per_write=16)
    return path


def reader(directory, **settings):
    return InstanceReader(InstanceSplit(directory, "train"), **{"seed": 1, "groups_per_window": 3, **settings})


def batch_of(samples, **settings):
    return make_batch(samples, MASKING, TOKENIZER, **{"seed": 1, **settings})


def test_every_epoch_reads_each_sample_once_in_another_order(directory):
    source = reader(directory)
    first, second = source.take(0, 170), source.take(170, 170)
    assert sorted(first.sample_indices) == sorted(second.sample_indices) == list(range(170))
    assert first.epochs.tolist() == [0] * 170
    assert second.epochs.tolist() == [1] * 170
    assert first.sample_indices.tolist() != second.sample_indices.tolist()
    assert first.sample_indices.tolist() != reader(directory, seed=2).take(0, 170).sample_indices.tolist()


def test_instances_of_a_store_are_read_from_a_local_copy(directory, tmp_path, monkeypatch):
    monkeypatch.setenv("BERT_HOME", str(tmp_path))
    fsspec.filesystem("memory").put(str(directory), "/data/instances", recursive=True)
    local, remote = (InstanceSplit(place, "train") for place in (directory, "memory://data/instances"))
    assert remote.manifest.sha256 == local.manifest.sha256
    assert remote.num_instances == local.num_instances == 170
    assert all(group.path.is_relative_to(tmp_path / "cache") for group in remote.groups)
    ids = [split.read(split.groups[-1]).input_ids.tolist() for split in (local, remote)]
    assert ids[0] == ids[1]
    fsspec.filesystem("memory").rm("/data", recursive=True)


@pytest.mark.parametrize("position", [0, 1, 47, 48, 160, 169, 170, 171, 500])
def test_reader_resumes_at_any_position(directory, position):
    whole = reader(directory).take(0, 600)
    part = reader(directory).take(position, 40)
    expected = whole.select(np.arange(position, position + 40))
    assert part.sample_indices.tolist() == expected.sample_indices.tolist()
    assert part.epochs.tolist() == expected.epochs.tolist()
    assert part.input_ids.tolist() == expected.input_ids.tolist()


def test_finding_a_position_reads_one_window_only(directory, monkeypatch):
    split = InstanceSplit(directory, "train")
    read: list[int] = []
    original = split.read

    def counted(group):
        read.append(group.first_row)
        return original(group)

    monkeypatch.setattr(split, "read", counted)
    InstanceReader(split, seed=1, groups_per_window=3).take(10**9, 1)
    assert len(read) <= 3


def test_shuffling_stays_in_a_window_of_mixed_shards():
    found = [window_at(position, np.full(30, 4), seed=3, groups_per_window=5) for position in range(0, 240, 20)]
    assert [window.positions.start for window in found] == list(range(0, 240, 20))
    windows = [window.groups for window in found[:6]]
    assert sorted(np.concatenate(windows).tolist()) == list(range(30))
    assert any(np.abs(np.diff(window)).max() > 5 for window in windows)
    rows = found[2].rows.tolist()
    assert sorted(rows) == list(range(20)) != rows
    assert found[6 + 2].rows.tolist() != rows


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_rank_slices_partition_a_batch_almost_equally(directory, world_size):
    samples = reader(directory).take(100, 48)
    rows = [rank_rows(samples.lengths, rank=rank, world_size=world_size) for rank in range(world_size)]
    slices = [samples.select(own) for own in rows]
    shared = np.concatenate([part.sample_indices for part in slices])
    assert sorted(shared) == sorted(samples.sample_indices)
    tokens = [int(part.lengths.sum()) for part in slices]
    assert max(tokens) - min(tokens) <= 24  # one instance of the longest
    for part in slices:
        assert (np.diff(part.lengths) <= 0).all()


# Positions in a window, across two windows of 48, across epochs of 170, and across more than one epoch.
@pytest.mark.parametrize(("position", "count"), [(5, 40), (30, 40), (150, 40), (100, 400)])
def test_samples_of_a_step_are_those_of_its_positions(directory, position, count):
    samples, one_by_one = reader(directory).take(position, count), reader(directory)
    for row in range(count):
        alone, chosen = one_by_one.take(position + row, 1), samples.select(np.array([row]))
        assert (alone.sample_indices, alone.epochs) == (chosen.sample_indices, chosen.epochs)
        assert alone.input_ids.tolist() == chosen.input_ids.tolist()


@pytest.mark.parametrize("position", [0, 30, 200])
def test_window_read_ahead_is_the_one_that_follows(directory, monkeypatch, position):
    reads: list[bool] = []
    read_groups = data._read_groups

    def recorded(*arguments):
        reads.append(threading.current_thread() is threading.main_thread())
        return read_groups(*arguments)

    plain = reader(directory)
    with ThreadPoolExecutor(1) as executor:
        ahead = reader(directory, executor=executor)
        monkeypatch.setattr(data, "_read_groups", recorded)
        for start in range(position, position + 400, 16):
            found, expected = ahead.take(start, 16), plain.take(start, 16)
            assert found.sample_indices.tolist() == expected.sample_indices.tolist()
            assert found.epochs.tolist() == expected.epochs.tolist()
            assert found.input_ids.tolist() == expected.input_ids.tolist()
    in_main = sum(reads)
    # The reader without a thread reads each of its windows, the other one the first of them, and one more in the end.
    assert (in_main, len(reads) - in_main) == (in_main, in_main - 1)


def test_threads_read_one_after_the_other(directory, monkeypatch):
    class Shard:
        is_read = False

        def read_row_group(self, index):
            assert not self.is_read
            self.is_read = True
            time.sleep(0.05)
            self.is_read = False
            return index

    shard, split = Shard(), InstanceSplit(directory, "train")
    monkeypatch.setattr(data, "open_cached_shard", lambda *_: shard)
    with ThreadPoolExecutor(4) as executor:
        assert list(executor.map(split.read, split.groups[:4])) == [0, 1, 2, 3]


def test_error_of_a_window_that_is_read_ahead_is_raised_when_it_is_needed(directory, monkeypatch):
    with ThreadPoolExecutor(1) as executor:
        source = reader(directory, executor=executor)
        read = source.source.read

        def fail(group):
            if threading.current_thread() is not threading.main_thread():
                raise ArtifactError("the disk is gone")
            return read(group)

        monkeypatch.setattr(source.source, "read", fail)
        assert source.take(0, 40).num_instances == 40
        with pytest.raises(ArtifactError, match="the disk is gone"):
            source.take(40, 40)


def test_sizes_are_few_and_little_larger():
    sizes = [round_up(count) for count in range(1, 2049)]
    assert round_up(0) == 0
    assert all(size >= count and size % 8 == 0 for count, size in enumerate(sizes, start=1))
    assert all(size <= count * 17 / 16 for count, size in enumerate(sizes, start=1) if count >= 128)
    assert len({size for size in sizes if 1024 < size <= 2048}) == 16  # of 1,024
    assert [round_up(size) for size in sizes] == sizes


def test_batch_of_few_sizes_has_padding_that_nothing_reads(directory):
    samples = reader(directory).take(0, 30)
    plain, rounded = batch_of(samples), batch_of(samples, few_sizes=True)
    for name in ("input_ids", "attention_mask", "labels", "masked_lm_positions", "token_type_ids"):
        assert torch.equal(getattr(plain, name), getattr(rounded, name))
    assert plain.counts == rounded.counts
    assert plain.token_indices is not None
    assert plain.attention_mask is not None
    assert rounded.token_indices is not None
    tokens, predictions = len(plain.token_indices), len(plain.prediction_indices)
    assert len(rounded.token_indices) == round_up(tokens) > tokens
    assert torch.equal(rounded.token_indices[:tokens], plain.token_indices)
    padding = rounded.token_indices[tokens:]
    assert not plain.attention_mask.flatten()[padding].any()
    assert len(padding.unique()) == len(padding)
    assert len(rounded.prediction_indices) == round_up(predictions) > predictions
    assert torch.equal(rounded.prediction_indices[:predictions], plain.prediction_indices)
    assert (plain.labels.flatten()[rounded.prediction_indices[predictions:]] == IGNORED_LABEL).all()


def test_micro_batches_are_few_and_nearly_equal(directory):
    samples = reader(directory).take(0, 20)
    parts = split_micro_batches(samples, 8)
    assert [part.num_instances for part in parts] == [7, 7, 6]
    assert sorted(np.concatenate([part.sample_indices for part in parts])) == sorted(samples.sample_indices)
    assert (np.diff(np.concatenate([part.lengths for part in parts])) <= 0).all()  # long ones first


def test_mask_depends_on_seed_epoch_and_sample_only(directory):
    samples = reader(directory).take(0, 30)
    alone = samples.select(np.array([7]))
    together, single = batch_of(samples), batch_of(alone)
    width = single.input_ids.shape[1]
    assert torch.equal(together.input_ids[7, :width], single.input_ids[0])
    count = int((single.labels != IGNORED_LABEL).sum())
    assert torch.equal(together.masked_lm_positions[7, :count], single.masked_lm_positions[0, :count])
    later = dataclasses.replace(samples, epochs=samples.epochs + 1)
    assert not torch.equal(batch_of(later).input_ids, together.input_ids)
    assert not torch.equal(batch_of(samples, seed=2).input_ids, together.input_ids)


def test_batch_has_the_names_and_values_of_the_model(directory):
    samples = reader(directory).take(0, 12)
    batch = batch_of(samples)
    lengths = samples.lengths
    assert batch.input_ids.shape == (12, lengths.max())
    assert batch.counts.tokens == lengths.sum()
    assert batch.counts.predictions == (batch.labels != IGNORED_LABEL).sum()
    assert batch.attention_mask is not None
    assert batch.attention_mask.sum(1).tolist() == lengths.tolist()
    assert batch.next_sentence_label.tolist() == samples.is_random_next.astype(int).tolist()
    for row in range(12):
        start, length = samples.segment_b_start[row], lengths[row]
        assert batch.token_type_ids[row].tolist() == [0] * start + [1] * (length - start) + [0] * (
            batch.input_ids.shape[1] - length
        )
        original = samples.input_ids[samples.offsets[row] : samples.offsets[row + 1]]
        predicted = batch.labels[row] != IGNORED_LABEL
        positions = batch.masked_lm_positions[row][predicted]
        assert batch.labels[row][predicted].tolist() == original[positions.numpy()].tolist()
        untouched = np.setdiff1d(np.arange(length), positions.numpy())
        assert batch.input_ids[row][untouched].tolist() == original[untouched].tolist()


def test_batch_of_equal_lengths_has_no_mask(directory):
    samples = reader(directory).take(0, 60)
    full = samples.select(np.flatnonzero(samples.lengths == 24))
    assert batch_of(full).attention_mask is None
    rounded = mask_samples(samples, MASKING, TOKENIZER, seed=1, pad_to_multiple=16)
    assert rounded.input_ids.shape[1] == 32
    assert rounded.positions.shape[1] == rounded.labels.shape[1] == 16
    assert rounded.sizes.predictions == batch_of(samples).counts.predictions


@pytest.mark.parametrize("file_format", ["parquet", "tfrecord"])
def test_static_masks_are_read_unchanged(tmp_path, file_format):
    write_instances(tmp_path / "plain", shards=(40,))
    write_instances(tmp_path / "masked", shards=(40,), static_masks=True, file_format=file_format)
    originals = InstanceSplit(tmp_path / "plain", "train")
    plain = InstanceReader(originals, seed=1, groups_per_window=9).source.read(originals.groups[0])
    masked = InstanceSplit(tmp_path / "masked", "train")
    columns = masked.read(masked.groups[0])
    assert columns.is_masked
    samples = Samples(**vars(columns), sample_indices=np.arange(columns.num_instances), epochs=np.zeros(40, np.int64))
    rows = np.arange(8)
    batch = batch_of(samples.select(rows))
    again = batch_of(samples.select(rows), seed=99)
    assert torch.equal(batch.input_ids, again.input_ids)
    for row in rows:
        original = plain.input_ids[plain.offsets[row] : plain.offsets[row + 1]]
        predicted = batch.labels[row] != IGNORED_LABEL
        positions = batch.masked_lm_positions[row][predicted].numpy()
        assert batch.labels[row][predicted].tolist() == original[positions].tolist()


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("limit", [0, 25, 1000])
def test_held_out_instances_are_seen_once_by_one_rank(directory, world_size, limit):
    split = InstanceSplit(directory, "held_out")
    seen = [
        index
        for rank in range(world_size)
        for samples in held_out_samples(split, limit=limit, rank=rank, world_size=world_size)
        for index in samples.sample_indices.tolist()
    ]
    assert len(seen) == len(set(seen)) == (25 if limit == 25 else 70)
    assert max(seen) >= 67  # spread over all of them


def test_shard_that_was_written_again_is_opened_again(tmp_path):
    def first_ids():
        split = InstanceSplit(tmp_path / "instances", "train")
        return split.read(split.groups[0]).input_ids.tolist()

    write_instances(tmp_path / "instances", shards=(16,))
    before = first_ids()
    shutil.rmtree(tmp_path / "instances")
    write_instances(tmp_path / "instances", shards=(16,), seed=5)
    assert first_ids() != before


def test_extra_shard_is_ignored_and_missing_shard_is_named(directory, tmp_path):
    write_instances(tmp_path / "instances", shards=(16, 16))
    shard = tmp_path / "instances" / "train" / "instances-00001.parquet"
    (shard.parent / "instances-00002.parquet").write_bytes(shard.read_bytes())
    assert InstanceSplit(tmp_path / "instances", "train").num_instances == 32
    shard.unlink()
    with pytest.raises(ArtifactError, match=r"instances-00001\.parquet: is missing"):
        InstanceSplit(tmp_path / "instances", "train")


def test_flipped_bit_of_a_shard_is_found_before_it_is_trained_on(directory, tmp_path):
    name = "train/instances-00001.parquet"
    for damaged in with_flipped_bits(directory, tmp_path / "copy", name):
        with pytest.raises(BertError, match=rf"{name}: (the file was changed or damaged|row group \d cannot be read)"):
            InstanceReader(InstanceSplit(damaged, "train"), seed=1, groups_per_window=2).take(0, 160)


def test_instances_for_shorter_sequences_are_warned_of(directory, caplog):
    InstanceSplit(directory, "train").check_fits(max_seq_length=24, where="phases.0")
    assert not caplog.text
    InstanceSplit(directory, "train").check_fits(max_seq_length=32, where="phases.1")
    assert "phases.1: " in caplog.text
    assert "max_seq_length=24, the phase has 32: positions from 24 on are not trained by it" in caplog.text


def test_shards_with_and_without_a_column_do_not_mix(tmp_path):
    parts = []
    for name, static in (("a", False), ("b", True)):
        write_instances(tmp_path / name, shards=(8,), static_masks=static)
        split = InstanceSplit(tmp_path / name, "train")
        parts.append(InstanceReader(split, seed=1, groups_per_window=1).take(0, 8))
    with pytest.raises(ArtifactError, match="some shards hold masked_lm_positions"):
        concatenate(parts)
    marked = dataclasses.replace(parts[0], continues_word=np.zeros(len(parts[0].input_ids), dtype=bool))
    for mixed in ([parts[0], marked], [marked, parts[0]]):
        with pytest.raises(ArtifactError, match="some shards hold continues_word"):
            concatenate(mixed)
