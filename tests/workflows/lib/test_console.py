"""Console output of a run: a line for each step, every warning, the time left; the details are in a file."""

import logging
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from bert_pipeline.progress import LINE_INTERVAL_SECONDS
from workflows.lib import console, instance
from workflows.lib.console import (
    ProgressFormatter,
    StepConsole,
    TimeLeft,
    log_of_libraries,
    progress_logger,
)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(console, "TIME_LEFT", TimeLeft())
    return now


@pytest.fixture
def terminal(clock, capsys) -> StepConsole:
    handler = StepConsole()
    handler.setFormatter(ProgressFormatter())
    return handler


def say(handler: StepConsole, asset: str, message: str, level: int = logging.INFO, event: str = "") -> None:
    record = logging.LogRecord("dagster", level, __file__, 1, message, None, None)
    meta: dict[str, Any] = {"step_key": asset, "orig_message": message}
    if event:
        meta["dagster_event"] = SimpleNamespace(event_type_value=event, event_specific_data=None)
    record.dagster_meta = meta
    handler.handle(record)


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.partition("  ")[2] for line in capsys.readouterr().err.splitlines()]


def test_finished_step_prints_its_last_message(terminal, capsys):
    say(terminal, "corpus", "reading dump.xml")
    say(terminal, "corpus", "1,208 documents")
    say(terminal, "corpus", "check corpus_intact passed: 2 files")
    assert lines(capsys) == []
    say(terminal, "corpus", "Finished execution of step", logging.DEBUG, event="STEP_SUCCESS")
    assert lines(capsys) == ["corpus                        1,208 documents"]


def test_reuse_and_the_reason_against_it_are_printed_at_once(terminal, capsys):
    for message in ("unchanged since today: corpus is reused", "corpus is made again: its settings.language changed"):
        say(terminal, "corpus", message)
        assert message in lines(capsys)[0]


def test_warning_is_printed_at_once(terminal, capsys):
    say(terminal, "task_data", "skipped: swag: no folder is given", logging.WARNING)
    assert lines(capsys) == ["task_data                     warning: skipped: swag: no folder is given"]


def test_task_data_has_no_line_of_its_own(terminal, capsys):
    say(terminal, "task_data", "RTE: 400 train, 300 dev")
    say(terminal, "task_data", "Finished execution of step", logging.DEBUG, event="STEP_SUCCESS")
    assert lines(capsys) == []


def test_long_step_prints_messages_with_time_left(terminal, clock, capsys):
    console.TIME_LEFT.enter("pretraining")
    for step in range(1, 8):
        clock[0] += LINE_INTERVAL_SECONDS / 2
        say(terminal, "pretrained_model", f"step {step}0/100: MLM loss 2.0")
    say(terminal, "pretrained_model", "Finished execution of step", logging.DEBUG, event="STEP_SUCCESS")
    assert lines(capsys) == [
        "pretrained_model              step 20/100: MLM loss 2.0  (about 40 s of pretraining left)",
        "pretrained_model              step 40/100: MLM loss 2.0  (about 30 s of pretraining left)",
        "pretrained_model              step 60/100: MLM loss 2.0  (about 20 s of pretraining left)",
        "pretrained_model              step 70/100: MLM loss 2.0  (about 20 s of pretraining left)",
    ]


def test_time_left_of_a_resumed_training_counts_its_own_steps(terminal, clock):
    console.TIME_LEFT.enter("pretraining")
    clock[0] += 100  # until the ranks have started
    say(terminal, "pretrained_model", "resuming from step 600 of 1000")
    assert str(console.TIME_LEFT) == ""
    clock[0] += 60
    say(terminal, "pretrained_model", "step 700/1000: MLM loss 2.0")
    assert str(console.TIME_LEFT) == "about 3 min of pretraining left"


def test_printed_message_is_not_repeated_at_the_end(terminal, clock, capsys):
    clock[0] += LINE_INTERVAL_SECONDS
    say(terminal, "report", "14 tasks")
    say(terminal, "report", "Finished execution of step", logging.DEBUG, event="STEP_SUCCESS")
    assert lines(capsys) == ["report                        14 tasks"]


def test_time_left_follows_the_share_of_a_stage(clock):
    left = TimeLeft()
    left.enter("finetuning")
    assert str(left) == ""
    clock[0] += 100
    left.reach(1 / 3)
    assert str(left) == "about 3 min of finetuning left"
    left.reach(1.0)
    assert str(left) == "about 10 s of finetuning left"


def test_run_that_is_executed_again_in_a_restored_home_has_its_details(clean_environment):
    clean_environment.mkdir()  # a backup has no logs
    progress_logger(dg.build_init_logger_context({"details": "logs/enwiki-1.log"})).info("again")
    assert "again" in (clean_environment / "logs" / "enwiki-1.log").read_text()


@dg.asset
def noisy_asset() -> None:
    logging.getLogger("bert_model.finetuning.trial_runner").warning("34 texts were cut")
    logging.getLogger("dagster._core.execution.plan.active").warning("a check emitted no result")


def test_warnings_of_this_project_name_their_step_and_those_of_libraries_are_details(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    (tmp_path / "dagster.yaml").write_text(instance.DAGSTER_YAML)
    details = tmp_path / "details.log"
    job = dg.Definitions([noisy_asset], loggers={"console": progress_logger}).resolve_implicit_global_asset_job_def()
    loggers = {"console": {"config": {"details": str(details)}}}
    with log_of_libraries(details), dg.DagsterInstance.get() as dagster:
        job.execute_in_process(instance=dagster, run_config={"loggers": loggers})
    assert lines(capsys) == ["noisy_asset                   warning: 34 texts were cut"]
    assert "dagster._core.execution.plan.active  WARNING: a check emitted no result" in details.read_text()
