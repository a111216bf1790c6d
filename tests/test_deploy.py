"""The Slurm script starts the same entry point, and puts a job that was stopped into the queue again."""

import argparse
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from bert_model.pretraining.config import add_arguments

SCRIPT = Path(__file__).resolve().parent.parent / "deploy" / "pretrain.slurm"

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash on this machine")


def program(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)


@pytest.fixture
def cluster(tmp_path: Path) -> dict[str, str]:
    """Stand-ins of Slurm's programs that write down how they were called, on a cluster of two nodes."""
    record = f'echo $$ > {tmp_path}/srun.pid; printf "%s\\n" "$@" > {tmp_path}/srun.txt; env > {tmp_path}/env.txt'
    program(tmp_path / "srun", f"{record}; exec $BEHAVIOR")
    program(tmp_path / "scancel", f'echo "$@" > {tmp_path}/scancel.txt; kill -TERM $(cat {tmp_path}/srun.pid)')
    job = 'echo "  JobState=$STATE PreemptTime=$PREEMPTED"'
    answers = f'case "$2" in hostnames) printf "node7\\nnode9\\n";; job) {job};; esac'
    program(tmp_path / "scontrol", f'echo "$@" >> {tmp_path}/scontrol.txt; {answers}')
    job = {"SLURM_JOB_NODELIST": "node[7,9]", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_ID": "42"}
    job |= {
        "SLURM_GPUS_ON_NODE": "4",
        "SLURM_CPUS_PER_TASK": "16",
        "BEHAVIOR": "true",
        "PREEMPTED": "None",
        "STATE": "RUNNING",
    }
    return os.environ | job | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}


def start(environment: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in environment.items() if name != "OMP_NUM_THREADS"}
    return subprocess.Popen(["bash", str(SCRIPT), *arguments], env=environment, stderr=subprocess.PIPE, text=True)


def test_every_node_starts_torchrun_with_the_trainings_entry_point(cluster: dict[str, str], tmp_path: Path) -> None:
    assert start(cluster, "paper-large", "/shared/training", "phases.0.instances=/shared/i").wait(60) == 0
    called = (tmp_path / "srun.txt").read_text().splitlines()
    program = called.index("python")
    assert "--cpus-per-task=16" in called[:program]  # since Slurm 22.05, srun does not inherit it
    assert called[program : program + 3] == ["python", "-m", "torch.distributed.run"]
    options = {"--nnodes=2", "--nproc-per-node=4", "--max-restarts=0", "--rdzv-backend=c10d"}
    assert options | {"--rdzv-endpoint=node7:29500", "--rdzv-id=42"} <= set(called)
    assert "OMP_NUM_THREADS=4" in (tmp_path / "env.txt").read_text().splitlines()
    module = called.index("bert_model.pretraining")
    assert called[module - 1] == "-m"
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    parsed = parser.parse_intermixed_args(called[module + 1 :])
    assert (parsed.config, parsed.output, parsed.resume) == ("paper-large", Path("/shared/training"), True)
    assert parsed.assignments == ["phases.0.instances=/shared/i"]


def test_a_failed_training_fails_the_job_and_is_not_queued_again(cluster: dict[str, str], tmp_path: Path) -> None:
    assert start(cluster | {"BEHAVIOR": "false"}, "demo", str(tmp_path / "training")).wait(60) == 1
    assert "requeue" not in (tmp_path / "scontrol.txt").read_text()


def test_a_preempted_job_is_queued_again(cluster: dict[str, str], tmp_path: Path) -> None:
    preempted = cluster | {"BEHAVIOR": "false", "PREEMPTED": "2026-11-23T03:28:55"}
    assert start(preempted, "demo", str(tmp_path / "training")).wait(60) == 0
    assert "requeue 42" in (tmp_path / "scontrol.txt").read_text()


@pytest.mark.parametrize(("state", "is_finished"), [("RUNNING", False), ("RUNNING", True), ("COMPLETING", False)])
def test_a_stopped_job_is_queued_again_unless_it_is_canceled_or_the_model_is_there(
    cluster: dict[str, str], tmp_path: Path, state: str, is_finished: bool
) -> None:
    program(
        tmp_path / "ranks",
        f"trap 'touch {tmp_path}/saved; exit 1' TERM; touch {tmp_path}/ready; while true; do sleep 0.05; done",
    )
    output = tmp_path / "training"
    if is_finished:
        (output / "model").mkdir(parents=True)
        (output / "model" / "manifest.json").write_text("{}")
    job = start(cluster | {"BEHAVIOR": f"{tmp_path}/ranks", "STATE": state}, "demo", str(output))
    deadline = time.monotonic() + 120
    while not (tmp_path / "ready").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    job.send_signal(signal.SIGTERM)
    is_requeued = state == "RUNNING" and not is_finished
    assert job.wait(60) == (0 if is_requeued else 1)
    assert (tmp_path / "saved").exists()
    assert (tmp_path / "scancel.txt").read_text() == "--signal=TERM 42.0\n"
    assert ("requeue 42" in (tmp_path / "scontrol.txt").read_text()) is is_requeued


def test_without_arguments_the_usage_is_printed(cluster: dict[str, str]) -> None:
    job = start(cluster)
    _, said = job.communicate(timeout=60)
    assert job.returncode == 2
    assert said.startswith("usage: sbatch")
