"""Options of the Beam jobs: worker processes by default, and any named runner as Beam has it."""

import os

import pytest
from apache_beam.options.pipeline_options import PortableOptions, StandardOptions
from apache_beam.transforms.environments import ExternalEnvironment

from bert_pipeline.beam.options import available_cores, num_processes, num_workers, pipeline_options
from bert_pipeline.errors import UsageError


@pytest.mark.parametrize(("arguments", "expected"), [(("--workers", "3"), 3), (("--workers=1",), 1)])
def test_workers_option_sets_number_of_processes(arguments, expected):
    options = pipeline_options(arguments)
    assert (num_processes(options), num_workers(options)) == (expected, expected)


def test_default_is_one_process_per_core():
    assert num_processes(pipeline_options()) == num_workers(pipeline_options()) >= 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--workers=0",), "1 or more"),
        (("--workers",), "expected one argument"),
        (("--direct_num_workers=two",), "invalid"),
        (("--direct_num_workrs=2",), "did you mean '--direct_num_workers'"),
        (("stray",), "Beam option 'stray' is not known"),
        (("--runner=FlinkRunner", "--workers=2"), "give FlinkRunner's own option"),
        (("--runner=FnApiRunner", "--workers=2"), "give FnApiRunner's own option"),
        (("--runner=DaskRunner",), "Beam's DaskRunner computes only what its last step depends on.*without an error"),
        (("--direct_num_workers=2", "--workers=2"), "give the direct runner's own option"),
    ],
)
def test_option_that_would_be_ignored_raises(arguments, message):
    with pytest.raises(UsageError, match=message):
        pipeline_options(arguments)


@pytest.mark.parametrize("runner", ["DirectRunner", "FnApiRunner", "apache_beam.runners.direct.DirectRunner"])
def test_named_runner_of_beam_is_obeyed(runner):
    options = pipeline_options((f"--runner={runner}", "--direct_num_workers=2"))
    assert options.view_as(StandardOptions).runner == runner
    assert (num_processes(options), num_workers(options)) == (0, 2)


def test_options_of_other_runners_pass_through():
    options = pipeline_options(("--runner=FlinkRunner", "--flink_master=host:8081"))
    assert options.get_all_options()["flink_master"] == "host:8081"
    assert num_workers(options) is None


def test_nothing_is_staged_for_the_workers_of_an_engine():
    given = ("--runner=PortableRunner", "--environment_type=EXTERNAL", "--environment_config=localhost:50000")
    environment = ExternalEnvironment.from_options(pipeline_options(given).view_as(PortableOptions))
    assert not list(environment.artifacts())


@pytest.mark.parametrize(("limit", "cores"), [("150000 100000", 1), ("50000 100000", 1), ("900000 100000", 8)])
def test_default_workers_are_within_the_limit_of_a_container(limit, cores, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    for text, expected in (("max 100000", 8), (limit, cores)):
        (tmp_path / "cpu.max").write_text(text + "\n")
        assert available_cores(tmp_path / "cpu.max") == expected
