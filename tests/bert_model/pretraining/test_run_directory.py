"""Initial models with another vocabulary, or too few embeddings, are refused."""

import dataclasses
import json

import pytest
import tiny_tasks
import torch

from bert_model.pretraining.config import ModelConfig, PhaseConfig, PretrainingConfig
from bert_model.pretraining.run_directory import identity, initialize_or_resume, open_directory
from bert_model.training.distributed import Group
from bert_pipeline.errors import ConfigurationError
from bert_pipeline.vocabulary.tokenizer import Tokenizer

ALONE = Group(rank=0, world_size=1, device=torch.device("cpu"))
PHASE = PhaseConfig(max_seq_length=32, steps=2, warmup_steps=1, instances="instances")


def test_initial_model_with_another_vocabulary_is_refused(tmp_path):
    model = tiny_tasks.make_model(tmp_path / "model")
    config = PretrainingConfig(model=ModelConfig(preset="initial"), phases=(PHASE,), initial_model=str(model))
    own = Tokenizer.from_directory(model)
    other = Tokenizer.from_tokens((*tiny_tasks.TOKENS[:-1], "##ing", "##est"), True)
    with pytest.raises(ConfigurationError) as refused:
        initialize_or_resume(config, None, other, ALONE)
    for tokenizer in (own, other):
        assert f"{tokenizer.vocab_size} tokens, lower-casing ({tokenizer.sha256[:12]}…)" in str(refused.value)
    *_, origin = initialize_or_resume(config, None, own, ALONE)
    assert origin.startswith(f"continuing from {model}")


def test_model_smaller_than_the_vocabulary_is_refused():
    tokenizer = Tokenizer.from_tokens(tiny_tasks.TOKENS, True)
    size = tokenizer.vocab_size
    config = PretrainingConfig(model=ModelConfig(preset="tiny", overrides={"vocab_size": size - 1}), phases=(PHASE,))
    with pytest.raises(ConfigurationError, match=f"found {size - 1}, but the data's vocabulary has {size} tokens"):
        initialize_or_resume(config, None, tokenizer, ALONE)


def test_rows_beyond_the_vocabulary_are_not_predicted_in_training(tmp_path):
    tokenizer = Tokenizer.from_tokens(tiny_tasks.TOKENS, True)
    size = tokenizer.vocab_size
    start = tiny_tasks.make_model(tmp_path / "model", vocab_size=size + 8)
    for config in (
        PretrainingConfig(model=ModelConfig(preset="tiny", overrides={"vocab_size": size + 8}), phases=(PHASE,)),
        PretrainingConfig(model=ModelConfig(preset="initial"), phases=(PHASE,), initial_model=str(start)),
    ):
        model, *_ = initialize_or_resume(config, None, tokenizer, ALONE)
        assert (model.config.vocab_size, model.cls.predictions.num_tokens) == (size + 8, size)


@pytest.mark.parametrize(
    ("device", "positions", "message"),
    [
        ("cpu", 100, None),
        ("cpu", 96, "max_seq_length 100, but the model has only 96 positions"),
        ("cuda", 100, "max_seq_length 100, for which a GPU needs 104 positions, but the model has only 100"),
    ],
)
def test_phase_that_is_longer_than_the_positions_is_refused(device, positions, message):
    tokenizer = Tokenizer.from_tokens(tiny_tasks.TOKENS, True)
    model = ModelConfig(preset="tiny", overrides={"max_position_embeddings": positions})
    config = PretrainingConfig(model=model, phases=(dataclasses.replace(PHASE, max_seq_length=100),))
    group = dataclasses.replace(ALONE, device=torch.device(device))
    if message is None:
        assert initialize_or_resume(config, None, tokenizer, group)
    else:
        with pytest.raises(ConfigurationError, match=message):
            initialize_or_resume(config, None, tokenizer, group)


@pytest.mark.parametrize("checkpoint", [None, "checkpoints/step-00000014"])
@pytest.mark.parametrize("objective", ["mlm", "mlm_nsp"])
def test_next_sentence_head_that_is_not_trained_on_counts_as_untrained(undisturbed, objective, checkpoint):
    config = PretrainingConfig(
        model=ModelConfig(preset="initial"),
        phases=(PHASE,),
        initial_model=str(undisturbed / "model"),
        objective=objective,
    )
    resumed = checkpoint and undisturbed / checkpoint
    model, *_ = initialize_or_resume(config, resumed, Tokenizer.from_directory(undisturbed / "model"), ALONE)
    assert model.has_trained_next_sentence == (objective != "mlm")


def test_longer_phase_that_changes_a_resumed_model_is_said(tmp_path, monkeypatch, caplog):
    tokenizer = Tokenizer.from_tokens(tiny_tasks.TOKENS, True)
    model = ModelConfig(preset="tiny", architecture="modern")
    stored = model.resolve(vocab_size=tokenizer.vocab_size, max_length=512)
    (tmp_path / "config.json").write_text(stored.to_json("BertForMaskedLM"))
    monkeypatch.setattr("bert_model.pretraining.run_directory.restore", lambda *_: {"step": 3})
    for length in (512, 1024):
        config = PretrainingConfig(model=model, phases=(PHASE, dataclasses.replace(PHASE, max_seq_length=length)))
        initialize_or_resume(config, tmp_path, tokenizer, ALONE)
        assert ("global_attn_every_n_layers: was 1, is 3; global_rope_theta: was 10000.0, is" in caplog.text) == (
            length == 1024
        )
        assert ("the model computes otherwise" in caplog.text) == (length == 1024)


def test_configuration_is_written_without_the_secrets_of_urls(tmp_path):
    phase = dataclasses.replace(PHASE, instances="s3://me:secret@bucket/instances")
    config = PretrainingConfig(model=ModelConfig(preset="tiny"), phases=(phase,))
    open_directory(tmp_path, config, {"configuration": {}, "inputs": {}}, resume=False, allow_changes=False)
    stored = json.loads((tmp_path / "configuration.json").read_text())
    assert stored["configuration"]["phases"][0]["instances"] == "s3://bucket/instances"


def test_run_that_begins_anew_with_another_configuration_has_a_log_of_its_own(tmp_path):
    config = PretrainingConfig(model=ModelConfig(preset="tiny"), phases=(PHASE,))
    described = {"configuration": {"seed": 1}, "inputs": {}}

    def open_again(seed):
        other = described | {"configuration": {"seed": seed}}
        return open_directory(tmp_path, config, other, resume=False, allow_changes=False)

    assert open_again(1) == "new"
    log, state = tmp_path / "metrics.jsonl", tmp_path / "tracking.json"
    log.write_text('{"event": "start", "step": 0}\n{"event": "train", "step": 5}\n')
    state.write_text("{}")
    assert open_again(1) == "new"  # killed before its first checkpoint
    assert log.read_text().count("\n") == 2
    assert state.exists()
    (tmp_path / "metrics-2.jsonl").write_text("an earlier log")
    assert open_again(2) == "new"
    assert not log.exists()
    assert (tmp_path / "metrics-1.jsonl").read_text().count("\n") == 2
    assert (tmp_path / "metrics-2.jsonl").read_text() == "an earlier log"
    assert not state.exists()


def test_configuration_of_the_initial_model_belongs_to_the_identity(tmp_path):
    model = tiny_tasks.make_model(tmp_path / "model")
    config = PretrainingConfig(model=ModelConfig(preset="initial"), phases=(PHASE,), initial_model=str(model))
    before = identity(config, [])
    text = (model / "config.json").read_text()
    (model / "config.json").write_text(text.replace('"hidden_dropout_prob": 0.1', '"hidden_dropout_prob": 0.2'))
    assert identity(config, []) != before
    (model / "config.json").write_text(text)
    assert identity(config, []) == before
