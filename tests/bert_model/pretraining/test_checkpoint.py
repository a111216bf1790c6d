"""Checkpoints are published atomically, pruned by the retention settings, and restored bit for bit."""

import dataclasses
import errno
import json
import threading
import time
from concurrent.futures import wait
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from instances_fixture import make_tokenizer
from safetensors import SafetensorError

from bert_model.model import weights
from bert_model.model.bert import BertForPreTraining
from bert_model.model.config import BertConfig
from bert_model.model.initialization import new_model
from bert_model.model.weights import load_model
from bert_model.pretraining.checkpoint import BackgroundSaver, CheckpointDirectory, restore, take_snapshot
from bert_model.training.optimizer import build_optimizer, optimizer_tensors
from bert_model.training.schedule import OptimizerConfig
from bert_pipeline.errors import ArtifactError, TrainingError

CONFIG = BertConfig.from_preset("tiny", vocab_size=60, hidden_size=16, max_position_embeddings=16)


def trained(seed=1, config=CONFIG):
    model = new_model(BertForPreTraining, config, seed=seed)
    optimizer = build_optimizer(model, OptimizerConfig(), 0.01)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return model, optimizer


def snapshot(step, seed=1):
    model, optimizer = trained(seed)
    return take_snapshot(model, optimizer, step=step, state={"phase": 0}, metrics={"held_out/mlm_loss": 2.5})


def directory(path, **settings):
    defaults: dict[str, Any] = {"configuration": {"seed": 1}, "inputs": {}, "keep_last": 2}
    return CheckpointDirectory(path=path / "checkpoints", tokenizer=make_tokenizer(60), **(defaults | settings))


def test_checkpoint_restores_weights_and_optimizer_bit_for_bit(tmp_path):
    model, optimizer = trained()
    path = directory(tmp_path).save(snapshot(7))
    other, its_optimizer = trained(seed=2)
    state = restore(path, other, its_optimizer)
    assert state == {"step": 7, "phase": 0}
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, other.get_parameter(name))
    expected, found = optimizer_tensors(model, optimizer), optimizer_tensors(other, its_optimizer)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


@pytest.mark.parametrize("attention", ["bidirectional", "causal"])
def test_checkpoint_has_no_pickle_and_loads_into_transformers(tmp_path, attention):
    transformers = pytest.importorskip("transformers")
    model, optimizer = trained(config=dataclasses.replace(CONFIG, attention=attention))
    path = directory(tmp_path).save(take_snapshot(model, optimizer, step=7, state={}, metrics={}))
    assert {item.suffix for item in path.rglob("*") if item.is_file()} == {".json", ".safetensors", ".txt"}
    ids = torch.randint(5, 60, (3, 11), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(11) < torch.tensor([[11], [7], [9]])).long()
    inputs = {"input_ids": ids * mask, "attention_mask": mask, "token_type_ids": torch.ones_like(ids) * mask}
    bare = transformers.AutoModel.from_pretrained(path).eval()
    theirs = transformers.AutoModelForPreTraining.from_pretrained(path).eval()
    with torch.no_grad():
        found, expected = model.eval()(**inputs), theirs(**inputs)
        ours, states = model.bert(**inputs).sequence_output, bare(**inputs).last_hidden_state
    seen = mask.bool()
    torch.testing.assert_close(ours[seen], states[seen], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.prediction_logits[seen], expected.prediction_logits[seen], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.seq_relationship_logits, expected.seq_relationship_logits, atol=1e-5, rtol=1e-5)
    restored, _ = load_model(BertForPreTraining, path)
    assert restored.config.attention == attention


def test_snapshot_is_independent_of_later_updates():
    model, optimizer = trained()
    taken = take_snapshot(model, optimizer, step=1, state={}, metrics={})
    name = "bert.pooler.dense.weight"
    before = taken.parameters[name].clone()
    moments = taken.optimizer[f"exp_avg:{name}"].clone()
    optimizer.step()
    assert torch.equal(taken.parameters[name], before)
    assert torch.equal(taken.optimizer[f"exp_avg:{name}"], moments)


def test_retention_keeps_last_and_every_nth_checkpoint(tmp_path):
    kept = directory(tmp_path, keep_last=2, keep_every_steps=20)
    for step in (10, 20, 30, 40, 50):
        kept.save(snapshot(step))
    assert kept.steps() == [20, 40, 50]


def test_damaged_checkpoints_are_skipped_with_a_reason(tmp_path, caplog):
    checkpoints = directory(tmp_path, keep_last=5)
    paths = {step: checkpoints.save(snapshot(step)) for step in (1, 2, 3, 4)}
    flipped = bytearray((paths[4] / "model.safetensors").read_bytes())
    flipped[-5] ^= 64
    (paths[4] / "model.safetensors").write_bytes(flipped)
    (paths[3] / "manifest.json").unlink()
    (paths[2] / "training_state" / "state.json").write_text("{}")
    newest = checkpoints.newest()
    assert newest is not None
    assert newest.path == paths[1]
    assert "step 4 is skipped" in caplog.text
    assert "sha256" in caplog.text
    assert "step 3 is skipped" in caplog.text
    assert "step 2 is skipped" in caplog.text


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        SafetensorError("I/O error: No space left on device (os error 28)"),
        SafetensorError("I/O error: Disk quota exceeded (os error 122)"),
    ],
)
def test_full_disk_reports_required_bytes_and_keeps_the_last_checkpoint(tmp_path, monkeypatch, error):
    checkpoints = directory(tmp_path)
    checkpoints.save(snapshot(5))

    monkeypatch.setattr(weights, "save_file", mock.Mock(side_effect=error))
    with pytest.raises(TrainingError, match=r"step 10 could not be written.*bytes.*free; make room, and .* --resume"):
        checkpoints.save(snapshot(10))
    assert [item.name for item in checkpoints.path.iterdir()] == ["step-00000005"]


def test_incomplete_checkpoints_are_removed(tmp_path):
    checkpoints = directory(tmp_path)
    checkpoints.save(snapshot(5))
    (checkpoints.path / ".step-00000010.partial-999999").mkdir()
    (checkpoints.path / ".upload-abc").mkdir()
    checkpoints.clean()
    assert [item.name for item in checkpoints.path.iterdir()] == ["step-00000005"]


def test_checkpoint_of_another_model_names_the_tensor(tmp_path):
    path = directory(tmp_path).save(snapshot(5))
    config = BertConfig.from_preset("tiny", vocab_size=60, hidden_size=16, max_position_embeddings=17)
    other = new_model(BertForPreTraining, config, seed=1)
    with pytest.raises(ArtifactError, match="position_embeddings"):
        restore(path, other, build_optimizer(other, OptimizerConfig(), 0.01))


def test_background_saver_reports_publications_and_raises_failures(tmp_path):
    checkpoints = directory(tmp_path)
    saver = BackgroundSaver(checkpoints)
    published: list[Path] = []
    for step in (1, 2):
        saver.save(snapshot(step), published.append)
    saver.wait()
    assert published == [checkpoints.path_of(1), checkpoints.path_of(2)]

    both_wait = threading.Event()

    def fail(path):
        assert both_wait.wait(60)
        raise RuntimeError(f"{path.name} was not recorded")

    def slowly(path):
        time.sleep(0.2)
        published.append(path)

    # The one after it is written before the failure is raised: the run still has its log and its lock.
    saver.save(snapshot(3), fail)
    saver.save(snapshot(4), slowly)
    both_wait.set()
    with pytest.raises(RuntimeError, match="step-00000003 was not recorded"):
        saver.wait()
    assert published[-1] == checkpoints.path_of(4)
    saver.wait()

    saver.save(snapshot(5), fail)
    wait(saver._unfinished)
    with pytest.raises(RuntimeError, match="step-00000005 was not recorded"):
        saver.save(snapshot(6), published.append)
    saver.wait()
    assert published[-1] == checkpoints.path_of(6)


def test_training_continues_while_two_checkpoints_are_pending(tmp_path, monkeypatch):
    checkpoints = directory(tmp_path)
    disk_is_free, save = threading.Event(), checkpoints.save

    def slow(snapshot):
        assert disk_is_free.wait(60)
        return save(snapshot)

    monkeypatch.setattr(checkpoints, "save", slow)
    saver = BackgroundSaver(checkpoints)
    for step in (1, 2):
        saver.save(snapshot(step), lambda path: None)  # returns although nothing can be written
    assert checkpoints.steps() == []
    disk_is_free.set()
    saver.wait()
    assert checkpoints.steps() == [1, 2]


def test_manifest_has_step_metrics_and_inputs(tmp_path):
    path = directory(tmp_path, inputs={"instances_0": {"kind": "instances", "content_sha256": "ab"}}).save(snapshot(5))
    content = json.loads((path / "manifest.json").read_text())["content"]
    assert content["counts"] == {"step": 5, "held_out/mlm_loss": 2.5}
    assert content["inputs"]["instances_0"]["content_sha256"] == "ab"
