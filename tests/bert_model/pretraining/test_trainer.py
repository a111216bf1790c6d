"""The training loop in one process: when it reads from its device, recomputed blocks, measured rates."""

from typing import Any

import torch
from small_training import assert_same_training, configuration, train, train_events
from torch.overrides import TorchFunctionMode

from bert_model.model import bert
from bert_model.pretraining.trainer import Trainer
from bert_model.training.distributed import LateNumbers


class Reads(TorchFunctionMode):
    """Count what a GPU would be waited for."""

    names = ("item", "tolist", "cpu", "numpy", "__float__", "__int__", "__bool__", "__index__", "nonzero")

    def __init__(self):
        super().__init__()
        self.found: list[str] = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if getattr(function, "__name__", "") in self.names:
            self.found.append(function.__name__)
        return function(*args, **(kwargs or {}))


def test_losses_are_read_when_the_next_step_is_queued(data, tmp_path, monkeypatch):
    events: list[str] = []
    made: list[LateNumbers] = []
    train_step, read = Trainer._train_step, LateNumbers.read

    def queue(self, step, *arguments):
        with Reads() as reads:
            train_step(self, step, *arguments)
        assert reads.found == []
        made.append(self._updates[-1][-1])
        events.append(f"step {step}")

    def wait(self):
        events.append(f"read {made.index(self)}")
        return read(self)

    monkeypatch.setattr(Trainer, "_train_step", queue)
    monkeypatch.setattr(LateNumbers, "read", wait)
    train(configuration(data, log_interval_steps=4, checkpoint_interval_steps=0), tmp_path / "training")
    # Before a record the newest losses are read too, and first: the wait for them is the only one of its step.
    first = ["step 0", "step 1", "read 0", "step 2", "read 1", "step 3", "read 3", "read 2"]
    second = ["step 4", "step 5", "read 4", "step 6", "read 5", "step 7", "read 7", "read 6"]
    assert events[:16] == first + second
    assert [event for event in events if event.startswith("step")] == [f"step {step}" for step in range(14)]
    with Reads() as reads:  # the count counts
        float(torch.ones(1).tolist()[0] + torch.ones(()).item())
    assert reads.found == ["tolist", "item"]


def test_losses_that_are_read_late_are_those_of_their_steps(data, tmp_path):
    for name, interval in (("every", 1), ("third", 3)):
        train(configuration(data, log_interval_steps=interval), tmp_path / name)
    every, third = (train_events(tmp_path / name) for name in ("every", "third"))
    assert list(third) == [3, 6, 8, 9, 12, 14]  # the phases end with 8 and 14
    assert third == {step: every[step] for step in third}


def test_run_with_recomputed_blocks_resumes_bit_for_bit(data, tmp_path, monkeypatch):
    calls: list[Any] = []
    checkpoint = bert.checkpoint
    monkeypatch.setattr(
        bert, "checkpoint", lambda *given, **named: (calls.append(given), checkpoint(*given, **named))[1]
    )
    kept, recomputed = tmp_path / "kept", tmp_path / "recomputed"
    train(configuration(data), kept)
    assert not calls
    changed = configuration(data, activation_checkpointing=True)
    train(changed, recomputed, vanish=7)
    train(changed, recomputed, resume=True)
    assert calls
    assert_same_training(recomputed, kept)
