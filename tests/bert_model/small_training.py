"""A small pre-training run of two phases."""

import contextlib
import json
import signal

import pytest
import torch
from instances_fixture import write_instances
from safetensors.torch import load_file

from bert_model.pretraining.config import PretrainingConfig
from bert_model.pretraining.run import pretrain
from bert_pipeline.configuration import from_mapping

SMALL_MODEL = {
    "preset": "tiny",
    "overrides": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
    },
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def small_model(**overrides):
    """The small model with other values in its config.json."""
    return SMALL_MODEL | {"overrides": SMALL_MODEL["overrides"] | overrides}  # type: ignore[operator]


def write_data(folder):
    """Write instances of two lengths; return their directories."""
    write_instances(folder / "short", max_seq_length=16, shards=(48, 32), held_out=21, rows_per_write=16)
    write_instances(folder / "long", max_seq_length=32, shards=(40,), held_out=10, rows_per_write=16)
    return {"short": str(folder / "short"), "long": str(folder / "long")}


def configuration(data, **changes):
    """Two phases with dropout, dynamic masks and gradient accumulation; the first is longer than an epoch."""
    phases = [
        {"max_seq_length": 16, "steps": 8, "global_batch_size": 16, "warmup_steps": 2, "instances": data["short"]},
        {"max_seq_length": 32, "steps": 6, "global_batch_size": 8, "warmup_steps": 1, "instances": data["long"]},
    ]
    return {
        "model": SMALL_MODEL,
        "phases": [phase | {"learning_rate": 1e-3} for phase in phases],
        "micro_batch_size": 3,
        "shuffle_row_groups": 2,
        "log_interval_steps": 1,
        "evaluation_interval_steps": 0,
        "checkpoint_interval_steps": 3,
        "timeout_seconds": 30,
    } | changes


class VanishedError(Exception):
    """The host is gone: nothing is written any more."""


def train(config, output, *, device="cpu", after_step=None, vanish=None, **options):
    """Pre-train in this process, without MLflow; after the step `vanish` the host is gone."""
    config = config if isinstance(config, PretrainingConfig) else from_mapping(PretrainingConfig, config)

    def after(step):
        if after_step is not None:
            after_step(step)
        if step == vanish:
            raise VanishedError

    with contextlib.nullcontext() if vanish is None else pytest.raises(VanishedError):
        return pretrain(config, output, experiment="", device=device, after_step=after, **options)


def at(step, action):
    """Return an `after_step` that does something after one step."""

    def after_step(finished):
        if finished == step:
            action()

    return after_step


def stop_after(step):
    """Return an `after_step` that asks for a stop, as a scheduler does."""
    return at(step, lambda: signal.raise_signal(signal.SIGTERM))


def read_events(output):
    """The events of a run's metrics log."""
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def train_events(output):
    """The losses of every step, the last ones of a repeated step."""
    kept = ("train/loss", "train/mlm_loss", "train/nsp_loss", "train/gradient_norm", "train/learning_rate")
    events = [event for event in read_events(output) if event["event"] == "train"]
    return {event["step"]: {key: event["metrics"][key] for key in kept if key in event["metrics"]} for event in events}


def assert_same_training(one, other):
    """Two runs have published the same bits, and had the same losses."""
    weights, expected = (load_file(run / "model" / "model.safetensors") for run in (one, other))
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    assert train_events(one) == train_events(other)
