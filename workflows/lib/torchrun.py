"""Training processes under Dagster: torchrun in a process group of its own, monitored through its `metrics.jsonl`.

The ranks do not depend on Dagster. The events that they append to `metrics.jsonl` are reported as they appear; when a
rank dies, the error names the rank and the last line of its log. No process is left running, however the step ends:

- normal end or error: processes that still carry the mark of this launch get TERM, then KILL;
- canceled run: the interrupt arrives in the waiting loop, torchrun gets TERM, and the ranks save and stop;
- killed process of the run, or torchrun: what it started ends with it (`bert_pipeline/parent.py`).

In-place restarts of torchrun are off (`--max-restarts=0`): they often meet stale addresses, while a new launch with a
fresh rendezvous reliably resumes from the last checkpoint.
"""

import contextlib
import dataclasses
import math
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bert_model.presets import LaunchConfig
from bert_model.training.metrics_log import LogReader, read_history
from bert_pipeline.errors import TrainingError
from bert_pipeline.parent import start
from workflows.lib.processes import processes_with

LAUNCH_VARIABLE = "BERT_LAUNCH_ID"
"""Environment variable that marks every process of one launch: torchrun gives each rank a session of its own."""

SHUTDOWN_VARIABLE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
"""Environment variable of torchrun from torch 2.12 on: seconds between TERM and KILL to its ranks, 30 without it."""

_ROOT_CAUSE_RANK = re.compile(r"Root Cause.*?rank\s*:\s*(\d+).*?exitcode\s*:\s*(-?\d+)", re.DOTALL)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Launch:
    """One launch of a training: the command, and where its output goes."""

    module: str
    """Python module that every rank runs."""
    arguments: tuple[str, ...]
    """Arguments of the module."""
    output: Path
    """Run directory, with the `metrics.jsonl` that rank 0 appends to; it may not exist yet."""
    log_directory: Path
    """Receives torchrun's output and every rank's stdout and stderr."""
    machines: LaunchConfig = LaunchConfig(processes_per_node=1)
    """Machines and ranks; each further machine runs the command that is logged at the start."""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Further environment variables of the ranks."""

    def command(self) -> list[str]:
        """Return the torchrun command line."""
        machines = self.machines
        if machines.nodes == 1:
            rendezvous = ["--standalone"]
        else:
            rendezvous = [
                f"--nnodes={machines.nodes}",
                "--rdzv-backend=c10d",
                f"--rdzv-endpoint={machines.rendezvous_endpoint}",
                f"--rdzv-id={self.output.name}",  # the same on all machines
            ]

        # --redirects=3 sends both streams of every rank to files of its own, which `describe_failure` reads.
        return [
            sys.executable,
            "-m",
            "torch.distributed.run",
            *rendezvous,
            f"--nproc-per-node={machines.processes_per_node}",
            "--max-restarts=0",
            f"--log-dir={self.log_directory}",
            "--redirects=3",
            "-m",
            self.module,
            *self.arguments,
        ]


def run_training(
    launch: Launch,
    *,
    report: Callable[[dict[str, Any]], None],
    log: Callable[[str], None],
    poll_seconds: float = 0.3,
    grace_seconds: float = 45.0,
) -> None:
    """Run a training to its end and pass each event of `metrics.jsonl` to `report` as it appears.

    The ranks get `grace_seconds` between TERM and KILL, enough for a checkpoint, or what TORCH_ELASTIC_SHUTDOWN_TIMEOUT
    says; with torch 2.11, whose torchrun has no setting for it, 30 seconds at most. TrainingError names the rank that
    failed first, its exit code or signal, the last line of its log, the last intact checkpoint and the logs.
    """
    launch.log_directory.mkdir(parents=True, exist_ok=True)

    # The mark in the environment is what all processes of the launch share, also those that outlive torchrun.
    launch_id = uuid.uuid4().hex
    environment = {**os.environ, **launch.environment, LAUNCH_VARIABLE: launch_id, "PYTHONUNBUFFERED": "1"}
    if launch.machines.threads_per_process:
        environment["OMP_NUM_THREADS"] = str(launch.machines.threads_per_process)
    # By environment, because the torchrun of torch 2.11 refuses the option --shutdown-timeout.
    environment.setdefault(SHUTDOWN_VARIABLE, str(math.ceil(grace_seconds)))

    # Events of an earlier launch are skipped, and none of this one is missed.
    log_reader = LogReader(launch.output)
    log_reader.new_lines()
    torchrun_log = launch.log_directory / "torchrun.log"
    command = launch.command()
    log(f"starting {launch.machines.processes_per_node} process(es): {' '.join(command)}")

    # In a session of its own: Ctrl-C in a terminal ends the launch through `_end_launch` only.
    with open(torchrun_log, "ab") as output:
        process = start(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        try:
            while process.poll() is None:
                for event in filter(None, log_reader.new_lines()):
                    report(event)
                time.sleep(poll_seconds)
        finally:
            # However the loop ends, by an interrupt too, no rank is left.
            _end_launch(process, launch_id, grace_seconds)

    # What was written between the last poll and the end.
    for event in filter(None, log_reader.new_lines()):
        report(event)
    if process.returncode != 0:
        raise TrainingError(describe_failure(launch, process.returncode))


def describe_failure(launch: Launch, exit_code: int) -> str:
    """Return why a training stopped, in one paragraph: the rank that failed first, the cause, and what is intact."""
    torchrun_log = launch.log_directory / "torchrun.log"
    text = torchrun_log.read_text(encoding="utf-8", errors="replace") if torchrun_log.is_file() else ""
    if match := _ROOT_CAUSE_RANK.search(text):
        # torchrun names the rank that failed first; the cause is in that rank's own log.
        rank, ending = f"rank {match[1]}", _ending(int(match[2]))
        logs = sorted(launch.log_directory.glob(f"*/attempt_0/{match[1]}/stderr.log"))
        words = _last_line(logs[-1]) if logs else ""
    else:
        rank, ending, words = "torchrun", _ending(exit_code), _last_line(torchrun_log)

    # What is intact, and where to read on.
    step = max((event.get("step", 0) for event in read_history(launch.output)), default=0)
    checkpoints = launch.output.glob("checkpoints/step-*/manifest.json")
    last = max((path.parent.name for path in checkpoints), default="")
    intact = f"{last} is intact; materialize again to resume from it" if last else "no checkpoint yet"
    cause = f": {words}" if words else ""
    return f"{rank} {ending} after step {step}{cause}. {intact}. Logs: {launch.log_directory}"


def _ending(exit_code: int) -> str:
    if exit_code >= 0:
        return f"failed with exit code {exit_code}"
    try:
        return f"was ended by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was ended by signal {-exit_code}"


def _last_line(path: Path) -> str:
    """Return the last line of a log that is no ruler, cut to a readable length; "" if there is none."""
    if not path.is_file():
        return ""
    lines = [line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
    lines = [line for line in lines if line and not set(line) <= set("=-~^ ")]
    return lines[-1][-500:] if lines else ""


def launch_processes(launch_id: str) -> list[int]:
    """Return the ids of the other processes that carry the mark of a launch."""
    marked = [pid for pid, environment in processes_with(LAUNCH_VARIABLE) if environment[LAUNCH_VARIABLE] == launch_id]
    return [pid for pid in marked if pid != os.getpid()]


def _end_launch(process: subprocess.Popen[bytes], launch_id: str, grace_seconds: float) -> None:
    """End all processes of a launch: TERM to torchrun, which stops its ranks, then KILL to what remains."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(grace_seconds)
    if process.poll() is not None:  # ranks that outlived torchrun get a TERM of their own first
        _end_marked(launch_id, signal.SIGTERM, min(grace_seconds, 5.0))

    # The grace period is over: kill the group of torchrun, and what carries the mark.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    _end_marked(launch_id, signal.SIGKILL, 10.0)


def _end_marked(launch_id: str, number: signal.Signals, seconds: float) -> None:
    """Send a signal to the processes of a launch, and wait, up to a time, until none is left."""
    deadline = time.monotonic() + seconds
    for process_id in (remaining := launch_processes(launch_id)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process_id, number)
    while remaining and time.monotonic() < deadline:
        time.sleep(0.05)
        remaining = launch_processes(launch_id)
