"""Training processes: monitored while they run, named when they fail, and never left running."""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from training_processes import wait_until

from bert_model.presets import LaunchConfig
from bert_model.training.metrics_log import METRICS_NAME, LogReader, read_history
from bert_pipeline.errors import TrainingError
from workflows.lib.torchrun import (
    LAUNCH_VARIABLE,
    SHUTDOWN_VARIABLE,
    Launch,
    describe_failure,
    launch_processes,
    run_training,
)

ROOT = Path(__file__).resolve().parents[3]
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are found through /proc")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlainLaunch(Launch):
    """Return a launch of one plain program in place of torchrun, which starts faster."""

    program: str = ""

    def command(self) -> list[str]:
        return [sys.executable, "-c", textwrap.dedent(self.program)]


def plain(tmp_path: Path, program: str) -> PlainLaunch:
    return PlainLaunch(
        module="",
        arguments=(),
        output=tmp_path / "training",
        log_directory=tmp_path / "logs",
        program=program,
        environment={"METRICS": str(tmp_path / "training" / "metrics.jsonl")},
    )


WRITE_TWO_EVENTS = """
    import json, os, pathlib, time
    path = pathlib.Path(os.environ["METRICS"])
    path.parent.mkdir(exist_ok=True)
    for step in (10, 20):
        with open(path, "a") as stream:
            stream.write(json.dumps({"event": "train", "step": step, "metrics": {"train/mlm_loss": 1.0}}) + "\\n")
        time.sleep(0.05)
"""


def test_torchrun_gives_its_ranks_the_whole_grace_period(tmp_path):
    program = f"""
        import os, sys
        from torch.distributed.launcher.api import LaunchConfig
        default = getattr(LaunchConfig(1, 1, 1), "shutdown_timeout", 45)  # torch 2.11 has no setting for it
        print(os.environ[{SHUTDOWN_VARIABLE!r}], default, file=sys.stderr)
        sys.exit(3)
    """
    with pytest.raises(TrainingError, match="exit code 3.*: 45 45"):
        run_training(plain(tmp_path, program), report=lambda _: None, log=lambda _: None, poll_seconds=0.02)


def test_events_are_reported_once_in_order_and_again_by_no_resumed_training(tmp_path):
    launch = plain(tmp_path, WRITE_TWO_EVENTS)
    for _ in range(2):
        events: list[dict] = []
        run_training(launch, report=events.append, log=lambda _: None, poll_seconds=0.02)
        assert [event["step"] for event in events] == [10, 20]


def test_incomplete_line_is_reported_once_complete(tmp_path):
    path = tmp_path / METRICS_NAME
    reader = LogReader(tmp_path)
    assert reader.new_lines() == []
    path.write_text('{"event": "train", "step": 1}\n{"event": "tr', encoding="utf-8")
    assert [event["step"] for event in reader.new_lines()] == [1]
    with open(path, "a", encoding="utf-8") as stream:
        stream.write('ain", "step": 2}\n')
    assert [event["step"] for event in reader.new_lines()] == [2]


def test_events_superseded_by_a_resume_are_left_out(tmp_path):
    path = tmp_path / METRICS_NAME
    lines = [("start", 0), ("train", 10), ("train", 20), ("train", 30), ("resume", 20), ("train", 30), ("end", 30)]
    path.write_text("".join(json.dumps({"event": e, "step": s}) + "\n" for e, s in lines), encoding="utf-8")
    kept = [(event["event"], event["step"]) for event in read_history(tmp_path)]
    assert kept == [("start", 0), ("train", 10), ("train", 20), ("resume", 20), ("train", 30), ("end", 30)]
    # A start that ended before its first checkpoint is superseded by the next one.
    lines = [("start", 0), ("train", 10), ("start", 0), ("train", 10)]
    path.write_text("".join(json.dumps({"event": e, "step": s}) + "\n" for e, s in lines), encoding="utf-8")
    kept = [(event["event"], event["step"]) for event in read_history(tmp_path)]
    assert kept == [("start", 0), ("start", 0), ("train", 10)]


def test_failure_before_first_checkpoint_reports_exit_code_and_last_line(tmp_path):
    launch = plain(tmp_path, "import sys; print('the disk is full', file=sys.stderr); sys.exit(3)")
    with pytest.raises(TrainingError, match=r"exit code 3.*the disk is full.*no checkpoint yet"):
        run_training(launch, report=lambda _: None, log=lambda _: None, poll_seconds=0.02)


def test_failure_reports_first_rank_signal_and_checkpoint(tmp_path):
    launch = plain(tmp_path, "")
    launch.log_directory.mkdir()
    (launch.log_directory / "torchrun.log").write_text(
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-21\n  host      : here\n"
        "  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 77)\n  error_file: <N/A>\n",
        encoding="utf-8",
    )
    for step in (100, 200):
        checkpoint = launch.output / "checkpoints" / f"step-{step:08d}"
        checkpoint.mkdir(parents=True)
        (checkpoint / "manifest.json").write_text("{}", encoding="utf-8")
    (launch.output / METRICS_NAME).write_text(json.dumps({"event": "train", "step": 230}) + "\n", encoding="utf-8")
    message = describe_failure(launch, 1)
    assert "rank 1 was ended by SIGKILL after step 230" in message
    assert "step-00000200 is intact" in message
    assert str(launch.log_directory) in message


@linux
def test_process_ignoring_term_is_killed_when_the_run_is_canceled(tmp_path):
    launch = plain(
        tmp_path,
        """
        import os, pathlib, signal, subprocess, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
        subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
        path = pathlib.Path(os.environ["METRICS"])
        path.parent.mkdir(exist_ok=True)
        path.write_text('{"event": "start", "step": 0}\\n')
        time.sleep(60)
        """,
    )
    found: list[str] = []

    def cancel(_: dict) -> None:
        found.extend(launch_marks(tmp_path))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_training(launch, report=cancel, log=lambda _: None, poll_seconds=0.02, grace_seconds=0.5)
    assert found
    assert all(launch_processes(launch_id) == [] for launch_id in found)


@linux
def test_training_ends_when_the_step_process_is_killed(tmp_path):
    program = f"""
        import sys
        sys.path[:0] = {[str(folder) for folder in Path(__file__).parents[:2]]}
        from pathlib import Path
        from test_torchrun import plain
        from workflows.lib.torchrun import run_training
        launch = plain(Path({str(tmp_path)!r}), "import time; time.sleep(60)")
        run_training(launch, report=print, log=print)
    """
    step = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    wait_until(lambda: launch_marks(tmp_path), step)
    marks = launch_marks(tmp_path)
    step.kill()
    step.wait()
    wait_until(lambda: all(launch_processes(mark) == [] for mark in marks))


@linux
@pytest.mark.slow
def test_torchrun_log_gives_rank_and_last_line(tmp_path):
    """Run torchrun over ranks that only die."""
    module = tmp_path / "dying_rank.py"
    module.write_text(
        "import os, sys, time\n"
        "if os.environ['RANK'] == '1':\n"
        "    sys.exit('error: the loss is nan at step 12')\n"
        "time.sleep(60)\n",
        encoding="utf-8",
    )
    launch = Launch(
        module="dying_rank",
        arguments=(),
        output=tmp_path,
        log_directory=tmp_path / "logs",
        machines=LaunchConfig(processes_per_node=2),
        environment={"PYTHONPATH": str(tmp_path)},
    )
    with pytest.raises(TrainingError, match=r"rank 1 failed with exit code 1.*the loss is nan at step 12"):
        run_training(launch, report=lambda _: None, log=lambda _: None)


def test_multi_node_command_uses_rendezvous_without_restarts(tmp_path):
    launch = Launch(
        module="bert_model.pretraining",
        arguments=("--resume",),
        output=tmp_path / "abc",
        log_directory=tmp_path / "logs",
        machines=LaunchConfig(processes_per_node=8, nodes=2, rendezvous_endpoint="node1:29500"),
    )
    command = launch.command()
    assert {"--nnodes=2", "--rdzv-endpoint=node1:29500", "--rdzv-id=abc", "--max-restarts=0"} <= set(command)
    assert command[-3:] == ["-m", "bert_model.pretraining", "--resume"]


def launch_marks(tmp_path: Path) -> set[str]:
    """Return the marks of the launches of a test that are running."""
    marks = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            environment = dict(entry.partition("=")[::2] for entry in path.read_text(errors="replace").split("\0"))
            if environment.get("METRICS", "").startswith(str(tmp_path)):
                marks.add(environment[LAUNCH_VARIABLE])
    return marks
