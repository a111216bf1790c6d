"""`bert pretrain --plan`: the figures follow from the measured steps, and nothing is written."""

import itertools
from pathlib import Path

import pytest
import yaml
from small_training import configuration
from two_ranks import run_ranks

from bert_model.cli import main
from bert_model.pretraining.config import PretrainingConfig
from bert_model.pretraining.data import InstanceReader, InstanceSplit
from bert_model.pretraining.plan import HEAD, plan
from bert_pipeline.configuration import from_mapping
from bert_pipeline.errors import ConfigurationError

SECONDS_PER_STEP = 1.1
"""Of a clock that goes on by a second with each look at it: 11 seconds, ten steps."""


def planned(values):
    """Return the rows of the plan, and of each phase the tokens of a measured step and its part of an epoch."""
    config = from_mapping(PretrainingConfig, values)
    lines = plan(config, device="cpu", clock=map(float, itertools.count()).__next__).splitlines()
    assert tuple(lines[0].replace("peak memory", "peak_memory").split()) == (*HEAD[:-1], "peak_memory")
    measured = []
    for phase in config.phases:
        split, size = InstanceSplit(phase.instances, "train"), min(phase.global_batch_size, 1024)
        reader = InstanceReader(split, seed=config.seed, groups_per_window=config.shuffle_row_groups)
        # The first two steps are not measured.
        measured.append((reader.take(2 * size, 10 * size).lengths.sum() / 10, size / split.num_instances))
    return [line.split() for line in lines[2:]], measured


def budgeted(data, **changes):
    values = configuration(data, schedule="trapezoid", budget="1h", **changes)
    values["phases"][0] |= {"share": 3.0, "initial_batch_size": 8}
    values["phases"][1] |= {"warmup_steps": 0}
    return values


def test_plan_is_the_budget_over_the_pace_of_each_phase(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows, measured = planned(budgeted(data))
    steps = [2700 / SECONDS_PER_STEP, 900 / SECONDS_PER_STEP]
    tokens = [n * tokens for n, (tokens, _) in zip(steps, measured)]
    passes = [n * epochs for n, (_, epochs) in zip(steps, measured)]
    for index, (length, hours) in enumerate([("16", "0.75"), ("32", "0.25")]):
        rate, count = f"{measured[index][0] / SECONDS_PER_STEP:,.0f}", f"{steps[index]:,.0f}"
        amounts = [hours, f"{tokens[index]:,.0f}", f"{passes[index]:.2f}"]
        assert rows[index][:-1] == [str(index + 1), length, rate, "1.1", count, *amounts]
        assert rows[index][-1].endswith("GB")
    assert rows[2] == ["all", "1.00", f"{sum(tokens):,.0f}", f"{sum(passes):.2f}"]
    assert list(tmp_path.iterdir()) == []


def test_plan_ends_with_the_passes_where_they_come_before_the_budget(data):
    rows, measured = planned(budgeted(data, max_passes=40.0))
    for row, passes, (_, in_a_step) in zip(rows, (30, 10), measured):
        assert (row[4], row[7]) == (f"{passes / in_a_step:,.0f}", f"{passes}.00")


def test_plan_without_a_budget_is_the_time_of_the_steps(data):
    values = configuration(data)
    values["phases"][0] |= {"steps": 8000, "warmup_steps": 4000, "initial_batch_size": 8}
    rows, measured = planned(values)
    steps = 7000  # 2,000 of the first have half of the batch
    tokens = f"{steps * measured[0][0]:,.0f}"
    assert rows[0][4:7] == ["7,000", f"{steps * SECONDS_PER_STEP / 3600:.2f}", tokens]


def test_steps_of_a_gpu_are_measured_in_part_on_a_cpu(data):
    values = configuration(data, micro_batch_size=512)
    values["phases"] = [values["phases"][0] | {"global_batch_size": 4096}]
    rows, measured = planned(values)
    rate = f"{measured[0][0] / SECONDS_PER_STEP:,.0f}"  # 1,024 instances of up to 16 tokens are read in a step
    assert rows[0][2:4] == [rate, f"{4 * SECONDS_PER_STEP:.3g}"]


def test_plan_refuses_what_a_training_refuses(data):
    values = configuration(data)
    values["phases"][1]["max_seq_length"] = 16
    with pytest.raises(ConfigurationError, match="were made for max_seq_length=32, the phase has 16"):
        planned(values)


def write_plan(values, path):
    text = plan(from_mapping(PretrainingConfig, values), device="cpu", clock=map(float, itertools.count()).__next__)
    with open(path, "a", encoding="utf-8") as file:
        file.write(text + "\n")


def test_ranks_share_the_steps_of_a_plan(data, tmp_path):
    assert run_ranks(2, write_plan, budgeted(data, data_parallel="fsdp"), tmp_path / "plans") == [0, 0]
    first, second = (tmp_path / "plans").read_text().split("phase")[1:]
    alone, _ = planned(budgeted(data))
    for text in (first, second):
        assert [line.split()[:-1] for line in text.splitlines()[2:4]] == [row[:-1] for row in alone[:2]]


@pytest.mark.parametrize("arguments", [[], ["--plan", "--output", "out"], ["--plan", "--resume"]])
def test_command_takes_either_an_output_or_a_plan(data, tmp_path, monkeypatch, capsys, arguments):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("bert_model.pretraining.plan.MEASURED_SECONDS", 0.0)
    Path("config.yaml").write_text(yaml.safe_dump(configuration(data)))
    assert main(["pretrain", "--config", "config.yaml", *arguments]) == 2
    assert "--output DIR" in capsys.readouterr().err
    assert main(["pretrain", "--config", "config.yaml", "--plan", "--device", "cpu"]) == 0
    assert capsys.readouterr().out.startswith("phase")
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]
