"""The pre-training benchmarks measure both sides, ranks and growth on a tiny case."""

import re

import pytest
import torch

from benchmarks import pretraining
from benchmarks.inputs import sample_instances
from benchmarks.pretraining import measure_ranks, profile
from benchmarks.training import TrainingCase


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    instances = sample_instances(
        tmp_path_factory.mktemp("sample"), vocab_size=2000, max_seq_length=32, num_articles=100
    )
    return TrainingCase(
        size="tiny",
        vocab_size=2000,
        max_seq_length=32,
        global_batch_size=8,
        micro_batch_size=4,
        precision="float32",
        dropout=0.1,
        device=torch.device("cpu"),
        instances=instances,
    )


def test_profile_has_the_parts_of_a_step(case):
    table, operators = profile(case, num_steps=2).split("\n\n", 1)
    shares = {part: float(share) for part, share in re.findall(r"\| ([a-z ]+) \| ([\d.]+)% \|", table)}
    assert {"reading and masking", "forward pass", "backward pass", "clipping", "update"} < shares.keys()
    assert sum(shares.values()) == pytest.approx(100, abs=1)
    assert min(shares["backward pass"], shares["forward pass"]) > shares["clipping"]
    assert re.search("aten::mm|mkldnn::", operators)  # whichever the processor multiplies faster with


@pytest.mark.slow
def test_program_measures_both_sides(case, capsys):
    settings = ["--quick", "--instances", str(case.instances.path), "--vocab-sizes", "2000", "--lengths", "32"]
    assert pretraining.main([*settings, "--global-batch-size", "8", "--micro-batch-size", "4"]) == 0
    printed = capsys.readouterr().out
    rows = [line for line in printed.splitlines() if line.startswith("| tiny")]
    assert len(rows) == 2
    assert all(re.search(r"transformers, (like lengths|reading order) +\| +\d+\.\d\d", row) for row in rows)


def test_two_ranks_and_two_processes_are_compared_with_one(case, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    rows = measure_ranks(case, rounds=1, seconds=0.0)
    assert [row.what.rpartition(": ")[2] for row in rows] == ["2 gloo ranks", "2 processes apart"]
    assert all(row.ratio is not None and row.ratio > 0 for row in rows)
    assert "batches of 16" in rows[0].note
