"""The pre-training benchmarks measure both sides, ranks and growth on a tiny case."""

import re

import pytest
import torch

from benchmarks import pretraining
from benchmarks.inputs import sample_instances
from benchmarks.pretraining import growth_series, measure_growth, measure_ranks, profile, render_growth
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
def test_program_measures_both_sides(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("BERT_HOME", str(tmp_path))
    settings = ["--quick", "--vocab-sizes", "2000", "--lengths", "32", "--global-batch-size", "8", "--articles", "100"]
    assert pretraining.main([*settings, "--micro-batch-size", "4"]) == 0
    printed = capsys.readouterr().out
    rows = [line for line in printed.splitlines() if line.startswith("| tiny")]
    assert len(rows) == 2
    assert all(re.search(r"transformers, (like lengths|reading order) +\| +\d+\.\d\d", row) for row in rows)


def test_growth_covers_batch_length_and_size(case):
    found = list(growth_series(case, lambda length: case.instances if length == 32 else None, (32, 64)))
    assert [[what for what, _ in cases] for cases in found] == [
        ["batch 4", "batch 8", "batch 16", "batch 32"],
        ["length 32"],
        ["tiny", "mini", "small"],
    ]
    rows = measure_growth(found[0][:2], seconds=0.0, rate=1e11)
    assert rows[0].times == 1.0
    assert 1.5 < rows[1].operations < 2.5  # twice the instances, of lengths that differ
    assert all(row.utilization > 0 and 0 <= row.waiting < 1 for row in rows)
    assert render_growth(rows).count("\n| batch") == 2


def test_two_ranks_and_two_processes_are_compared_with_one(case, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    rows = measure_ranks(case, rounds=1, seconds=0.0)
    assert [row.what.rpartition(": ")[2] for row in rows] == ["2 gloo ranks", "2 processes apart"]
    assert all(row.ratio is not None and row.ratio > 0 for row in rows)
    assert "batches of 16" in rows[0].note
