"""TFRecord files of google-research/bert train without conversion."""

import shutil

import numpy as np
import pytest
from instances_fixture import make_tokenizer, write_instances

from bert_model.pretraining.config import PretrainingConfig
from bert_model.pretraining.data import InstanceReader, InstanceSplit
from bert_model.pretraining.run import pretrain
from bert_pipeline.configuration import from_mapping
from bert_pipeline.errors import ConfigurationError, InputError, UsageError
from bert_pipeline.instances.tfrecord import TfrecordInstances, TfrecordWriter
from bert_pipeline.vocabulary.tokenizer import Tokenizer

SMALL_MODEL = {"hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 128}


def train(directory, output, *, max_seq_length=24, steps=2, **changes):
    phase = {"max_seq_length": max_seq_length, "steps": steps, "global_batch_size": 8, "warmup_steps": 0}
    mapping = {
        "model": {"preset": "tiny", "overrides": SMALL_MODEL},
        "phases": [phase | {"learning_rate": 1e-3, "instances": str(directory)}],
        "micro_batch_size": 4,
        **changes,
    }
    result = pretrain(from_mapping(PretrainingConfig, mapping), output, experiment="", device="cpu")
    assert result.status == "finished"
    return result.metrics


@pytest.fixture
def foreign(tmp_path):
    """Files of google's script: no manifest, several parts, its names."""
    write_instances(tmp_path / "ours", shards=(40, 30), file_format="tfrecord")
    directory = tmp_path / "foreign"
    (directory / "held_out").mkdir(parents=True)
    for index in range(2):
        name = f"tf_examples.tfrecord-{index:05d}-of-00002"
        shutil.copy(tmp_path / f"ours/train/instances-{index:05d}.tfrecord", directory / name)
    shutil.copy(tmp_path / "ours/held_out/instances-00000.tfrecord", directory / "held_out/tf_examples.tfrecord")
    make_tokenizer(60).save(directory)
    return directory


def test_foreign_files_equal_native_files(foreign, tmp_path):
    for split, count in (("train", 70), ("held_out", 30)):
        theirs, ours = (InstanceSplit(tmp_path / name, split) for name in ("foreign", "ours"))
        assert theirs.num_instances == ours.num_instances == count
        left, right = (InstanceReader(s, seed=1, groups_per_window=4).take(0, 100) for s in (theirs, ours))
        for field in left.__dataclass_fields__:
            assert np.array_equal(getattr(left, field), getattr(right, field)), field


def test_foreign_files_train(foreign, tmp_path):
    metrics = train(foreign, tmp_path / "training")
    assert metrics["held_out/instances"] == 30
    assert metrics == train(tmp_path / "ours", tmp_path / "same")


def test_foreign_files_require_vocabulary_and_casing(foreign, tmp_path):
    (foreign / "tokenizer_config.json").unlink()
    with pytest.raises(UsageError, match="do_lower_case is not stated"):
        train(foreign, tmp_path / "training")
    make_tokenizer(20).save(foreign)
    with pytest.raises(InputError, match="the vocabulary next to it has 20 tokens"):
        train(foreign, tmp_path / "training")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("input_ids", 60, "input_ids holds token id 60, but the vocabulary next to it has 60 tokens"),
        ("masked_lm_ids", 61, "masked_lm_ids holds token id 61, but the vocabulary next to it has 60 tokens"),
        ("masked_lm_positions", 24, r"instance 0 has masked_lm_positions 24, expected 0 to \d+, its last token"),
    ],
)
@pytest.mark.parametrize("name", ["tf_examples.tfrecord-00001-of-00002", "held_out/tf_examples.tfrecord"])
def test_foreign_files_that_do_not_fit_are_refused_in_every_file(foreign, tmp_path, name, field, value, message):
    with TfrecordInstances(foreign / name) as shard:
        columns = shard.read_row_group(0)
    getattr(columns, field)[1] = value
    with TfrecordWriter(foreign / name, max_seq_length=24, max_predictions_per_seq=20) as writer:
        writer.write(columns)
    with pytest.raises(InputError, match=rf"{name}: row group 0: {message}"):
        train(foreign, tmp_path / "training")


def test_next_sentences_are_not_learned_from_rows_without_pairs(foreign, tmp_path):
    for path in foreign.glob("*.tfrecord-*"):
        with TfrecordInstances(path) as shard:
            columns = shard.read_row_group(0)
        columns.segment_b_start[:] = columns.lengths
        columns.is_random_next[:] = False
        with TfrecordWriter(path, max_seq_length=24, max_predictions_per_seq=20) as writer:
            writer.write(columns)
    with pytest.raises(ConfigurationError, match=r"phases.0.instances: .*foreign holds rows of text without pairs"):
        train(foreign, tmp_path / "training")
    assert not (tmp_path / "training").exists()
    assert "held_out/mlm_loss" in train(foreign, tmp_path / "training", objective="mlm")


def test_casing_of_data_and_model_must_match(foreign, tmp_path):
    train(foreign, tmp_path / "first", steps=1)
    tokens = make_tokenizer(60).tokens
    Tokenizer.from_tokens(tokens, do_lower_case=False).save(foreign)
    with pytest.raises(ConfigurationError) as caught:
        train(foreign, tmp_path / "second", steps=1, initial_model=str(tmp_path / "first/model"))
    message = str(caught.value)
    assert f"has {Tokenizer.from_tokens(tokens, do_lower_case=True)}" in message
    assert f"has {Tokenizer.from_tokens(tokens, do_lower_case=False)}" in message


def test_foreign_files_longer_than_the_phase_are_refused(foreign, tmp_path):
    with pytest.raises(ConfigurationError, match="were made for max_seq_length=24, the phase has 16"):
        train(foreign, tmp_path / "training", max_seq_length=16)


@pytest.mark.real_data
def test_instances_of_googles_script_train(real_data, tmp_path):
    directory = tmp_path / "google"
    directory.mkdir()
    (directory / "tf_examples.tfrecord").symlink_to(real_data / "golden/pretraining-instances.tfrecord")
    (directory / "vocab.txt").symlink_to(real_data / "vocab/bert-base-uncased-vocab.txt")
    (directory / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    with TfrecordInstances(real_data / "golden/pretraining-instances.tfrecord") as shard:
        expected = shard.read_row_group(0)
    split = InstanceSplit(directory, "train")
    assert np.array_equal(split.read(split.groups[0]).input_ids, expected.input_ids)
    assert train(directory, tmp_path / "training", max_seq_length=128, steps=1) == {}  # nothing is held out
