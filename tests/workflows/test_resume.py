"""Trainings that are killed at various points resume when materialized again, and leave no process running."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import dagster as dg
import miniature
import pytest
import yaml
from training_processes import ranks_of, training_processes, wait_until

from bert_model.training.metrics_log import read_history
from workflows.lib.instance import open_instance
from workflows.lib.resources import BertHome

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are found through /proc"),
]

STEPS = 240
PHASE = {"max_seq_length": 32, "steps": STEPS, "global_batch_size": 32, "learning_rate": 5e-3, "warmup_steps": 6}


@pytest.fixture
def home(finished_home: BertHome, tmp_path: Path) -> BertHome:
    """Home with the data of the finished run and no training."""
    fresh = BertHome(directory=str(tmp_path / "home"))
    fresh.dump_directory(miniature.DUMP).mkdir(parents=True)
    for name in ("dump", "corpus", "vocabulary", "instances"):
        shutil.copytree(
            finished_home.dump_directory(miniature.DUMP) / name, fresh.dump_directory(miniature.DUMP) / name
        )
    shutil.copy(finished_home.path / "mlflow.db", fresh.path / "mlflow.db")  # creating the tables takes seconds
    return fresh


@pytest.fixture
def preset(tmp_path: Path) -> Path:
    return miniature.write_preset(tmp_path, "long", phases=[PHASE], checkpoint_interval_steps=10, keep_last=2)


def test_killed_training_resumes_when_materialized_again(home, preset, tmp_path):
    # The run is killed, as the system does when memory runs out: torchrun and its ranks go with it.
    step = start(home, preset, tmp_path / "first.log")
    directory = wait_for_checkpoint(home, step)
    step.kill()
    assert step.wait(timeout=300) == -signal.SIGKILL
    wait_until(lambda: not training_processes(home))
    interrupted_at = last_checkpoint(directory)
    assert 0 < interrupted_at < STEPS

    # A rank is killed: the run fails, and names the rank and what is intact.
    step = start(home, preset, tmp_path / "second.log")
    wait_until(lambda: last_checkpoint(directory) > interrupted_at, step)
    os.kill(ranks_of(home)[0], signal.SIGKILL)
    assert step.wait(timeout=300) == 1
    log = (tmp_path / "second.log").read_text(encoding="utf-8") + details(home)
    assert f"resuming from step {interrupted_at} of {STEPS}" in log
    assert "rank 0 was ended by SIGKILL" in log
    assert "is intact; materialize again to resume" in log
    wait_until(lambda: not training_processes(home))

    # The third run finishes what the others began.
    again_at = last_checkpoint(directory)
    result = miniature.run(home.path, preset, "--stage", "pretraining")
    assert result.returncode == 0, result.stdout
    assert f"resuming from step {again_at} of {STEPS}" in details(home)
    assert [path.name for path in directory.parent.iterdir()] == [directory.name]
    steps = [event["step"] for event in read_history(directory) if event["event"] == "train"]
    assert steps == sorted(set(steps))
    assert steps[-1] == STEPS

    with open_instance(home) as instance:
        statuses = [run.status for run in instance.get_runs()]
        holders = instance.event_log_storage.get_concurrency_run_ids()
    assert sorted(status.value for status in statuses) == ["FAILURE", "FAILURE", "SUCCESS"]
    assert holders == set()
    assert statuses[0] == dg.DagsterRunStatus.SUCCESS


def test_interrupted_run_saves_its_training_and_is_canceled(home, preset, tmp_path):
    step = start(home, preset, tmp_path / "log")
    directory = wait_for_checkpoint(home, step)
    step.send_signal(signal.SIGTERM)
    assert step.wait(timeout=300) == 130
    assert not training_processes(home)
    (end,) = [event for event in read_history(directory) if event["event"] == "end"]
    assert end["status"] == "preempted"
    assert last_checkpoint(directory) == end["step"]


def test_hung_rank_fails_the_run_and_is_named(home, tmp_path):
    mapping = miniature.preset(phases=[PHASE], checkpoint_interval_steps=10, keep_last=2, timeout_seconds=10)
    mapping["launch"]["processes_per_node"] = 2
    preset = tmp_path / "two.yaml"
    preset.write_text(yaml.safe_dump(mapping), encoding="utf-8")
    step = start(home, preset, tmp_path / "log", miniature.STOPPED_RANKS)
    wait_for_checkpoint(home, step)
    hanging = next(pid for pid in ranks_of(home) if b"RANK=1" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    os.kill(hanging, signal.SIGSTOP)
    assert step.wait(timeout=600) == 1
    log = (tmp_path / "log").read_text(encoding="utf-8")
    assert "rank 0 lost the other ranks at step " in log
    assert f"it waited for rank 1 (process {hanging} " in log
    assert "is intact; materialize again to resume" in log
    assert not training_processes(home)


def start(
    home: BertHome, preset: Path, log: Path, environment: Mapping[str, str] = MappingProxyType({})
) -> "subprocess.Popen[bytes]":
    with open(log, "wb") as stream:
        return subprocess.Popen(
            miniature.command(preset, "--stage", "pretraining"),
            env={**miniature.environment(home.path), **environment},
            cwd=home.path.parent,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def details(home: BertHome) -> str:
    """Return what the runs wrote to their file."""
    return home.run_log(miniature.DUMP).read_text(encoding="utf-8")


def training_directory(home: BertHome) -> Path | None:
    return next(iter((home.dump_directory(miniature.DUMP) / "pretraining").glob("*")), None)


def last_checkpoint(directory: Path) -> int:
    steps = [int(path.parent.name.rpartition("-")[2]) for path in directory.glob("checkpoints/step-*/manifest.json")]
    return max(steps, default=0)


def wait_for_checkpoint(home: BertHome, process: "subprocess.Popen[bytes]") -> Path:
    wait_until(lambda: last_checkpoint(training_directory(home) or Path("nowhere")) > 0, process)
    directory = training_directory(home)
    assert directory is not None
    return directory
