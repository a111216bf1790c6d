"""Pre-training with DDP and FSDP on gloo ranks: bit-exact resume, and moves between them and between world sizes."""

import json
import os
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from small_training import NO_DROPOUT, configuration, small_model, train, train_events
from two_ranks import pretrain_rank, run_pretraining, run_ranks

from bert_model.pretraining import trainer
from bert_pipeline.manifest import load_manifest


def short(data, **changes):
    """Seven steps over two phases, for one, two or three ranks."""
    config = configuration(data, **changes)
    for phase, steps, batch in zip(config["phases"], (4, 3), (12, 6)):
        phase |= {"steps": steps, "global_batch_size": batch}
    return config


@pytest.mark.parametrize("kind", ["buffer", "ddp", "fsdp"])
def test_killed_run_of_three_ranks_resumes_bit_for_bit(data, tmp_path, kind):
    config = short(data, data_parallel=kind)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    # With two ranks any order of summation would do: a + b = b + a.
    codes, reports, warnings = run_pretraining(config, whole, world_size=3)
    assert (codes, warnings) == ([0] * 3, ""), reports
    codes, reports, _ = run_pretraining(config, killed, world_size=3, fail=(1, 5, "kill"))
    assert codes == [1, -9, 1]
    assert "rank 0 lost the other ranks at step 5" in reports[0]["error"]
    codes, reports, _ = run_pretraining(config, killed, world_size=3, resume=True)
    assert codes == [0] * 3, reports
    assert train_events(killed) == train_events(whole)
    assert load_manifest(killed / "model").sha256 == load_manifest(whole / "model").sha256


def pretrain_with_copies_on_rank_0(config, output):
    if os.environ["RANK"] != "0":
        trainer.take_snapshot = None  # type: ignore[assignment]
    pretrain_rank(config, output, {})


def test_rank_0_alone_copies_a_sharded_model_to_host_memory_and_names_it_as_others(data, tmp_path):
    config = short(data, data_parallel="fsdp")
    assert run_ranks(2, pretrain_with_copies_on_rank_0, config, str(tmp_path / "training")) == [0, 0]
    stored = load_file(tmp_path / "training" / "model" / "model.safetensors")
    assert stored["bert.embeddings.position_embeddings.weight"].shape == (64, 32)  # of both ranks
    for directory in (tmp_path / "training" / "model", *(tmp_path / "training" / "checkpoints").iterdir()):
        assert json.loads((directory / "config.json").read_text())["architectures"] == ["BertForPreTraining"]


def pretrain_on_another_device(config, output):
    own = "bfloat16" if os.environ["RANK"] == "0" else "float32"
    trainer.can_pack = lambda *_: own == "bfloat16"  # type: ignore
    trainer.Packing = None  # type: ignore
    trainer.resolve_precision = lambda precision, device: own if precision == "auto" else precision  # type: ignore
    autocast, precisions = trainer.autocast, set()
    trainer.autocast = lambda device, precision: (precisions.add(precision), autocast(device, precision))[1]  # type: ignore
    train(config, output)
    assert precisions == {"bfloat16"}


def test_rank_0_resolves_the_precision_of_all_and_none_packs_if_one_cannot(data, tmp_path):
    config = short(data, precision="auto")
    assert run_ranks(2, pretrain_on_another_device, config, tmp_path / "training") == [0, 0]


def test_run_moves_between_ddp_fsdp_and_one_process(data, tmp_path):
    model = small_model(**NO_DROPOUT)
    alone, moved = tmp_path / "alone", tmp_path / "moved"
    train(short(data, model=model), alone)

    legs: list[tuple[str, int, int | None, str]] = [
        ("ddp", 2, 2, ""),
        ("fsdp", 3, 4, "summed gradients with ddp, now it does with fsdp"),
        ("ddp", 2, 5, "had 3 ranks, now it has 2"),
        ("fsdp", 1, None, "summed gradients with ddp, now it does with buffer"),
    ]
    for number, (kind, world_size, stop, warning) in enumerate(legs):
        options: dict[str, Any] = {"fail": (1, stop, "terminate")} if stop else {}
        config = short(data, model=model, data_parallel=kind)
        codes, reports, warnings = run_pretraining(config, moved, world_size=world_size, resume=number > 0, **options)
        assert codes == [0] * world_size, reports
        assert reports[0]["step"] == stop or not stop
        assert warning in warnings

    # Without dropout a loss is a function of the weights and of the samples: every step saw the same ones.
    found, expected = train_events(moved), train_events(alone)
    assert list(found) == list(expected) == [1, 2, 3, 4, 5, 6, 7]
    for step, metrics in expected.items():
        assert found[step] == pytest.approx(metrics, rel=1e-5)
    weights, reference = (load_file(path / "model" / "model.safetensors") for path in (moved, alone))
    for name, weight in reference.items():
        torch.testing.assert_close(weights[name], weight, atol=1e-5, rtol=1e-4)


def test_bfloat16_with_untrained_heads_follows_float32(data, tmp_path):
    settings: dict[str, Any] = {"model": small_model(**NO_DROPOUT), "objective": "mlm"}
    train(short(data, **settings), tmp_path / "float32")
    expected = train_events(tmp_path / "float32")
    for kind, world_size in (("buffer", 1), ("ddp", 2), ("fsdp", 2)):
        output = tmp_path / kind
        reduced = short(data, **settings, data_parallel=kind, precision="bfloat16", activation_checkpointing=True)
        codes, reports, _ = run_pretraining(reduced, output, world_size=world_size)
        assert codes == [0] * world_size, reports
        found = train_events(output)
        for step, metrics in expected.items():
            assert found[step]["train/loss"] == pytest.approx(metrics["train/loss"], rel=0.01)
            assert found[step]["train/gradient_norm"] == pytest.approx(metrics["train/gradient_norm"], rel=0.05)
        assert found != expected
        stored = load_file(output / "model" / "model.safetensors")
        assert {tensor.dtype for tensor in stored.values()} == {torch.float32}
