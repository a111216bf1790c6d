"""Configuration: preset sizes, refused values, and Hugging Face's config.json."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bert_model.model.bert import BertModel
from bert_model.model.config import BertConfig
from bert_model.pretraining.config import ModelConfig, PhaseConfig, PretrainingConfig
from bert_model.pretraining.phases import Phase, Timetable
from bert_model.training.schedule import learning_rate_at
from bert_pipeline.configuration import from_mapping
from bert_pipeline.errors import ConfigurationError, InputError


@pytest.mark.parametrize(
    ("preset", "millions"),
    [("tiny", 4.4), ("mini", 11.2), ("small", 28.8), ("medium", 41.4), ("base", 109.5), ("large", 335.1)],
)
def test_preset_sizes_have_published_parameter_counts(preset, millions):
    with torch.device("meta"):
        model = BertModel(BertConfig.from_preset(preset))
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.05)


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "millions"),
    [(3, 768, 12, 46), (6, 768, 3, 67), (6, 768, 12, 67), (12, 768, 12, 109), (12, 1024, 16, 184), (24, 1024, 16, 335)],
)
def test_sizes_of_table_6_are_overrides_of_presets(layers, hidden, heads, millions):
    shape = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads}
    config = ModelConfig(preset="base", overrides=shape).resolve(vocab_size=30522)
    assert config.intermediate_size == 4 * hidden
    with torch.device("meta"):
        model = BertModel(config)
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.8)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hidden_size": 100, "num_attention_heads": 12}, "hidden_size: found 100"),
        ({"hidden_dropout_prob": 1.5}, "hidden_dropout_prob: found 1.5"),
        ({"vocab_size": 0}, "vocab_size: found 0"),
        ({"pad_token_id": 30522}, "pad_token_id: found 30522"),
        ({"hidden_size": 9, "num_attention_heads": 3, "head": "bilstm"}, "head: found 'bilstm'"),
    ],
)
def test_invalid_model_configuration_names_key_and_value(values, message):
    with pytest.raises(ConfigurationError, match=message):
        BertConfig(**values)


def test_unknown_preset_or_key_names_the_nearest():
    with pytest.raises(ConfigurationError, match="did you mean 'large'"):
        BertConfig.from_preset("larg")
    with pytest.raises(ConfigurationError, match="did you mean 'hidden_size'"):
        ModelConfig(preset="tiny", overrides={"hiden_size": 64})


def test_config_json_round_trips(tmp_path):
    config = BertConfig.from_preset("mini", vocab_size=100, attention="causal", labels=("no", "yes", "maybe"))
    (tmp_path / "config.json").write_text(config.to_json("BertForSequenceClassification"))
    assert BertConfig.from_directory(tmp_path) == config
    document = json.loads((tmp_path / "config.json").read_text())
    assert document["id2label"] == {"0": "no", "1": "yes", "2": "maybe"}
    assert document["architectures"] == ["BertForSequenceClassification"]


@pytest.mark.parametrize(
    ("stored", "labels"),
    [
        ({"id2label": {str(index): f"l{index}" for index in (10, 2, 0)}}, ("l0", "l2", "l10")),
        ({"id2label": ["no", "yes", "maybe"]}, ("no", "yes", "maybe")),
        ({"id2label": {"0": 0, "1": 1.5}}, ("0", "1.5")),
        ({"id2label": {}, "num_labels": 3}, ("LABEL_0", "LABEL_1", "LABEL_2")),
        ({"id2label": {"0": "no"}, "num_labels": 3}, ("no",)),  # as transformers: the names count
        ({"id2label": None, "num_labels": None}, ()),
    ],
)
def test_labels_are_read_in_the_order_of_the_outputs(tmp_path, stored, labels):
    (tmp_path / "config.json").write_text(json.dumps(stored))
    assert BertConfig.from_directory(tmp_path).labels == labels


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ({"id2label": {"LABEL_0": "no"}}, "id2label has the key 'LABEL_0', expected the number of an output"),
        ({"id2label": "no"}, "id2label is 'no', expected an object"),
        ({"num_labels": "3"}, "num_labels is '3', expected the number"),
        ({"num_labels": 0}, "num_labels is 0, expected the number"),
    ],
)
def test_labels_without_an_order_are_refused(tmp_path, stored, message):
    (tmp_path / "config.json").write_text(json.dumps(stored))
    with pytest.raises(InputError, match=f"config.json: {message}"):
        BertConfig.from_directory(tmp_path)


@pytest.mark.parametrize(
    "other",
    [
        {"model_type": "roberta"},
        {"is_decoder": True, "attention": "bidirectional"},
        {"is_decoder": True, "add_cross_attention": True},
        {"position_embedding_type": "relative_key"},
    ],
)
def test_config_of_another_model_type_is_refused(tmp_path, other):
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 128, "num_attention_heads": 2, **other}))
    with pytest.raises(InputError, match=list(other)[-1] if "add_cross_attention" in other else next(iter(other))):
        BertConfig.from_directory(tmp_path)


def test_learning_rate_warms_up_then_decays_from_step_0():
    def rate(step):
        return learning_rate_at(step, peak=1.0, total_steps=100, warmup_steps=10)

    assert [rate(0), rate(5), rate(9)] == [0.0, 0.5, 0.9]
    assert rate(10) == pytest.approx(0.9)  # not 1.0: the drop by 1 - warmup / total
    assert rate(50) == pytest.approx(0.5)
    assert rate(100) == 0.0


def two_phases(**changes):
    phases = [
        {"steps": 90, "warmup_steps": 10, "learning_rate": 1.0},
        {"steps": 10, "warmup_steps": 0, "learning_rate": 1.0, "max_seq_length": 512},
    ]
    return from_mapping(PretrainingConfig, {"phases": phases, **changes})


def test_schedule_applies_to_each_phase_or_the_whole_run():
    def timetable(**changes):
        config, split = two_phases(**changes), SimpleNamespace(manifest=SimpleNamespace(sha256=""))
        placed: dict[str, Any] = {"masking": config.masking, "train": split, "held_out": split}
        return Timetable(config, [Phase(index=i, config=phase, **placed) for i, phase in enumerate(config.phases)])

    each, whole = timetable(), timetable(schedule="run")
    assert each.learning_rate_at(89) == pytest.approx(1 / 90)
    assert each.learning_rate_at(90) == 1.0
    assert whole.learning_rate_at(90) == pytest.approx(0.1)
    assert whole.config.total_steps == 100


def test_max_predictions_follow_the_sequence_length_of_the_phase():
    config = two_phases()
    assert [config.masking_of(phase).max_predictions_per_seq for phase in config.phases] == [20, 77]
    assert config.masking_of(PhaseConfig(max_predictions_per_seq=76)).max_predictions_per_seq == 76


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"phases": []}, "phases: found none"),
        ({"micro_batch_size": 0}, "micro_batch_size: found 0"),
        ({"masking": {"max_predictions_per_seq": 5}}, "set max_predictions_per_seq in the phases"),
        ({"initial_optimizer": "restored"}, "without an initial_model"),
        ({"model": {"preset": "initial"}}, "model.preset: found 'initial' without an initial_model"),
        ({"seed": 2**70}, "seed: found 1180591620717411303424"),
        ({"precision": "float16"}, "precision: found 'float16'"),
        ({"phases": [{"steps": 5, "warmup_steps": 6}]}, "warmup_steps: found 6"),
        ({"schedule": "run", "phases": [{}, {"warmup_steps": 3}]}, "phases.1"),
    ],
)
def test_contradictory_settings_are_refused(changes, message):
    with pytest.raises(ConfigurationError, match=message):
        two_phases(**changes)
