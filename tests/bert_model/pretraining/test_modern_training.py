"""Pre-training of the modern architecture: objective, resume, windows, packed rows, ranks."""

import json
from pathlib import Path

import pytest
import torch
from instances_fixture import write_instances
from small_training import assert_same_training, configuration, train, train_events
from two_ranks import run_pretraining
from varlen_on_cpu import varlen_on_cpu

from bert_model.model.config import BertConfig, ModernConfig
from bert_model.pretraining.config import ModelConfig, PretrainingConfig
from bert_model.pretraining.run import resolve_initial_model
from bert_model.training.distributed import Group
from bert_pipeline.configuration import from_mapping
from bert_pipeline.errors import ConfigurationError

OVERRIDES = {"hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 64}
WINDOWS = {"num_hidden_layers": 3, "global_attn_every_n_layers": 2, "local_attention": 8}


def modern(**overrides):
    return {"architecture": "modern", "preset": "tiny", "overrides": OVERRIDES | overrides}


@pytest.mark.parametrize("overrides", [{"hidden_dropout_prob": 0.1}, WINDOWS], ids=["dropout", "windows"])
def test_resumed_training_equals_an_uninterrupted_one(data, tmp_path, overrides):
    config = configuration(data, model=modern(**overrides))
    train(config, tmp_path / "whole")
    train(config, tmp_path / "resumed", vanish=7)
    train(config, tmp_path / "resumed", resume=True)
    assert_same_training(tmp_path / "whole", tmp_path / "resumed")
    assert "train/nsp_loss" not in train_events(tmp_path / "whole")[1]
    assert isinstance(BertConfig.from_directory(tmp_path / "whole" / "model"), ModernConfig)


@pytest.mark.parametrize("data_parallel", ["ddp", "fsdp"])
def test_two_ranks_have_the_losses_of_one(data, tmp_path, data_parallel):
    config = configuration(data, model=modern(**WINDOWS))
    train(config, tmp_path / "one")
    codes, reports, _ = run_pretraining(config | {"data_parallel": data_parallel}, tmp_path / "two")
    assert codes == [0, 0], reports
    one, two = train_events(tmp_path / "one"), train_events(tmp_path / "two")
    for step, event in one.items():
        assert two[step]["train/mlm_loss"] == pytest.approx(event["train/mlm_loss"], rel=1e-5)
    for output in (tmp_path / "one", tmp_path / "two"):
        published = json.loads((output / "model" / "config.json").read_text(encoding="utf-8"))
        assert published["architectures"] == ["ModernBertForMaskedLM"]


def test_packed_training_resumes_and_has_the_losses_of_a_padded_one(data, tmp_path):
    settings = {"precision": "bfloat16", "micro_batch_tokens": 128, "compile": False}
    config = configuration(data, model=modern(**WINDOWS), **settings)
    train(config, tmp_path / "padded")
    with varlen_on_cpu() as calls:
        train(config, tmp_path / "whole")
        train(config, tmp_path / "resumed", vanish=7)
        train(config, tmp_path / "resumed", resume=True)
    assert calls
    assert_same_training(tmp_path / "whole", tmp_path / "resumed")
    packed, padded = train_events(tmp_path / "whole"), train_events(tmp_path / "padded")
    for step, event in padded.items():
        assert packed[step]["train/mlm_loss"] == pytest.approx(event["train/mlm_loss"], rel=2e-2)


def test_training_continues_with_more_positions_and_another_base(data, tmp_path):
    train(configuration(data, model=modern()), tmp_path / "short")
    start = {"initial_model": str(tmp_path / "short" / "model")}
    overrides = {"max_position_embeddings": 1024, "global_rope_theta": 160_000.0}
    longer = {"preset": "initial", "overrides": overrides}  # the architecture is the initial model's
    train(configuration(data, model=longer, objective="mlm", **start), tmp_path / "long")
    config = BertConfig.from_directory(tmp_path / "long" / "model")
    assert isinstance(config, ModernConfig)
    assert (config.max_position_embeddings, config.global_rope_theta, config.hidden_size) == (1024, 160_000.0, 32)
    with pytest.raises(ConfigurationError, match="has the architecture 'modern'; set model.preset to 'initial'"):
        train(configuration(data, model={"preset": "tiny"}, **start), tmp_path / "other")


def test_a_phase_of_long_texts_gives_the_model_its_positions(data):
    config = from_mapping(PretrainingConfig, configuration(data, model={"architecture": "modern", "preset": "tiny"}))
    assert config.model.resolve(vocab_size=60, max_length=32).max_position_embeddings == 512
    long = config.model.resolve(vocab_size=60, max_length=1020)
    assert (long.max_position_embeddings, long.global_attn_every_n_layers) == (1024, 3)


def test_texts_of_1024_tokens_are_trained_on_with_windows_after_short_ones(data, tmp_path):
    write_instances(tmp_path / "instances", max_seq_length=1024, shards=(12,), held_out=2)
    long = {"max_seq_length": 1024, "steps": 3, "global_batch_size": 4, "warmup_steps": 0, "learning_rate": 1e-3}
    phases = [configuration(data)["phases"][0], long | {"instances": str(tmp_path / "instances")}]
    model = {"architecture": "modern", "preset": "tiny", "overrides": {"hidden_size": 32, "num_hidden_layers": 4}}
    config = configuration(data, model=model, phases=phases)
    train(config, tmp_path / "whole")
    train(config, tmp_path / "resumed", vanish=10)
    train(config, tmp_path / "resumed", resume=True)
    assert_same_training(tmp_path / "whole", tmp_path / "resumed")
    found = BertConfig.from_directory(tmp_path / "whole" / "model")
    assert isinstance(found, ModernConfig)
    assert (found.max_position_embeddings, found.global_attn_every_n_layers, found.local_attention) == (1024, 3, 128)
    assert found.global_rope_theta > found.local_rope_theta == 10_000.0


def test_objective_follows_the_architecture_and_next_sentences_are_refused(data, tmp_path):
    assert from_mapping(PretrainingConfig, configuration(data)).objective == "mlm_nsp"
    assert from_mapping(PretrainingConfig, configuration(data, model=modern())).objective == "mlm"
    with pytest.raises(ConfigurationError, match="objective: found 'mlm_nsp' with model.architecture='modern'"):
        from_mapping(PretrainingConfig, configuration(data, model=modern(), objective="mlm_nsp"))


@pytest.mark.parametrize("architecture", ["bert", "modern"])
def test_objective_follows_the_architecture_of_the_initial_model_not_of_the_preset(data, tmp_path, architecture):
    shape = ModelConfig(architecture=architecture, preset="tiny").resolve(vocab_size=60)
    (tmp_path / "config.json").write_text(shape.to_json("BertForMaskedLM"))

    def resolved(preset, objective):
        model = {"architecture": preset, "preset": "initial"}
        values = configuration(data, model=model, objective=objective, initial_model=str(tmp_path))
        config = from_mapping(PretrainingConfig, values)
        return resolve_initial_model(config, Group(rank=0, world_size=1, device=torch.device("cpu")), Path)

    for preset in ("bert", "modern"):
        expected = {"bert": "mlm_nsp", "modern": "mlm"}[architecture]
        assert (resolved(preset, "auto").objective, resolved(preset, "mlm").objective) == (expected, "mlm")
        if architecture == "bert":
            assert resolved(preset, "mlm_nsp").objective == "mlm_nsp"
        else:
            with pytest.raises(ConfigurationError, match="objective: found 'mlm_nsp' with model.architecture='modern'"):
                resolved(preset, "mlm_nsp")


def test_identity_of_a_bert_run_is_as_before_the_other_architecture(data, tmp_path):
    for name, model in (("bert", configuration(data)["model"]), ("modern", modern())):
        config = configuration(data, model=model)
        config["phases"] = config["phases"][:1]
        config["phases"][0] |= {"steps": 2}
        train(config, tmp_path / name)
    stored = [json.loads((tmp_path / name / "configuration.json").read_text()) for name in ("bert", "modern")]
    described = [item["identity"]["configuration"]["model"].get("architecture") for item in stored]
    assert described == [None, "modern"]
