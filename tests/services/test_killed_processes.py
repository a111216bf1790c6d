"""Each process of a training that is killed: nothing is left without an owner, and the training ends as undisturbed."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import miniature
import psutil
import pytest
import yaml
from dagster_api import DagsterApi, wait_for
from processes import Server, free_port

from bert_model.presets import preset_from_mapping
from bert_model.training.metrics_log import read_history
from workflows.defs.automation import MAX_RETRIES_TAG
from workflows.lib.launchpad import asset_configs
from workflows.lib.processes import left_over
from workflows.lib.resources import BertHome
from workflows.serve import SETTLED_SECONDS

pytestmark = [pytest.mark.kills, pytest.mark.slow, pytest.mark.timeout(2400, method="signal")]

READY = "Ctrl-C ends what was started here."
# More steps than the kills leave time for, on any machine: the last test ends it
PHASE = {"max_seq_length": 32, "steps": 1_000_000, "global_batch_size": 32, "learning_rate": 1e-3, "warmup_steps": 6}
PRESET = miniature.preset(
    model={"preset": "tiny", "overrides": {"hidden_size": 128, "num_attention_heads": 2}},
    phases=[PHASE],
    checkpoint_interval_steps=20,
    evaluation_interval_steps=300,
    keep_last=2,
    upload_checkpoints=False,
)


class Training:
    """A UI of a home, and a training in it."""

    def __init__(self, home: BertHome, preset: Path, empty_store: Path) -> None:
        self.home = home
        self.folder = home.path.parent
        self.preset = preset
        self.ports = (free_port(), free_port())
        self.dagster = DagsterApi(f"http://127.0.0.1:{self.ports[0]}")
        words = ["-m", "workflows.serve", "ui", "--port", str(self.ports[0]), "--mlflow-port", str(self.ports[1])]
        environment = {**miniature.environment(home.path), "BERT_PRESET": str(preset)}
        self.ui = Server("UI", [sys.executable, *words], environment, self.folder / "ui.log", directory=miniature.ROOT)
        self.run = ""
        self.reference: subprocess.Popen[bytes] | None = None
        self.empty_store = empty_store

    def start_ui(self) -> None:
        before = self.ui.tail().count(READY)
        self.ui.start()
        self.ui.wait(lambda: self.ui.tail().count(READY) > before)

    def launch(self) -> None:
        config = asset_configs(preset_from_mapping(PRESET, name="killed"))["pretrained_model"]
        self.run = self.dagster.launch(
            ["pretrained_model"],
            miniature.DUMP,
            {"ops": {"pretrained_model": {"config": config}}},
            tags={MAX_RETRIES_TAG: "9"},
        )

    def start_reference(self) -> None:
        """Train the same, undisturbed, on the other core."""
        logs = next(iter(self.home.pretraining_logs(miniature.DUMP, "x").parent.glob("*/*/configuration.yaml")))
        home = self.folder / "reference"
        home.mkdir()
        shutil.copy(self.empty_store, home / "mlflow.db")
        words = ["--standalone", "--nproc-per-node=1", "-m", "bert_model.pretraining"]
        words += ["--config", str(logs), "--output", str(home / "training")]
        with open(home / "log", "wb") as log:
            self.reference = subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", *words],
                env=miniature.environment(home),
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def directory(self) -> Path:
        (directory,) = self.home.pretraining(miniature.DUMP, "x").parent.iterdir()
        return directory

    def step(self) -> int:
        """Return the step of the last checkpoint, 0 without one."""
        with contextlib.suppress(ValueError, OSError):
            names = [path.parent.name for path in self.directory.glob("checkpoints/step-*/manifest.json")]
            return max((int(name.rpartition("-")[2]) for name in names), default=0)
        return 0

    def processes(self) -> list[psutil.Process]:
        """Return all processes of the home but the UI."""
        assert self.ui.process is not None
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("BERT_HOME") == str(self.home.path) and process.pid != self.ui.process.pid:
                    found.append(process)
        return found

    def named(self, *words: str, child_of: str = "") -> list[int]:
        """Return the processes whose command lines contain all of these words, and those of the parents another."""
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                parent = process.parent()
                if all(word in " ".join(process.cmdline()) for word in words) and (
                    not child_of or (parent is not None and child_of in " ".join(parent.cmdline()))
                ):
                    found.append(process.pid)
        return found

    def ranks(self) -> list[int]:
        return self.named("bert_model.pretraining", str(self.directory), child_of="torch.distributed.run")

    def is_owned(self) -> bool:
        """Return whether every process of the home descends from the UI."""
        assert self.ui.process is not None
        with contextlib.suppress(psutil.Error):
            family = {child.pid for child in psutil.Process(self.ui.process.pid).children(recursive=True)}
            return {process.pid for process in self.processes()} <= family and not left_over(self.home.path)
        return False

    def answers(self) -> bool:
        """Return whether the webserver answers."""
        with contextlib.suppress(OSError):
            return bool(self.dagster.ask("{ version }"))
        return False

    def kill(self, process_id: int) -> None:
        os.kill(process_id, signal.SIGKILL)


@pytest.fixture(scope="module")
def training(tmp_path_factory, empty_store):
    folder = tmp_path_factory.mktemp("killed")
    preset = folder / "killed.yaml"
    preset.write_text(yaml.safe_dump(PRESET), encoding="utf-8")
    home = BertHome(directory=str(folder / "home"))
    home.path.mkdir()
    shutil.copy(empty_store, home.path / "mlflow.db")
    result = miniature.run(home.path, preset, "--stage", "data")
    assert result.returncode == 0, result.stdout
    training = Training(home, preset, empty_store)
    training.start_ui()
    try:
        training.launch()
        wait_for(lambda: training.step() > 0, "a checkpoint")
        training.start_reference()
        yield training
    finally:
        if training.reference is not None:
            training.reference.terminate()  # and torchrun ends its rank
            training.reference.wait()
        training.ui.stop()


def killed(training: Training, find: Callable[[], list[int]]) -> list[int]:
    """Kill the process that is found; return the ranks of before when they are gone and all others have an owner."""
    before, ranks = training.step(), training.ranks()
    assert ranks
    (process_id,) = find()
    training.kill(process_id)
    wait_for(lambda: not {*ranks, process_id} & {process.pid for process in training.processes()}, "the old processes")
    wait_for(training.is_owned, "the end of all that has lost its parent")
    assert training.step() >= before
    return ranks


def age(process_id: int) -> float:
    """Return for how many seconds a process has run; the service's own clock begins a little later."""
    return time.time() - psutil.Process(process_id).create_time()


def resumed(training: Training) -> None:
    """Wait until another rank has continued the training."""
    before = training.step()
    wait_for(lambda: training.step() > before and training.ranks(), "a checkpoint of the resumed training")


def follow_retry(training: Training) -> None:
    """Wait for the run that tries a lost one again."""
    first = training.run
    wait_for(training.answers, "the webserver")
    wait_for(lambda: training.dagster.run(first)["status"] == "FAILURE", "the mark of the run that was lost")
    (training.run,) = wait_for(lambda: training.dagster.runs_with({"dagster/parent_run_id": first}), "the next try")


def test_viewer_and_daemon_start_again_while_the_training_goes_on(training):
    ranks = training.ranks()
    training.dagster.reload()  # nor does this end it: the old code server stays for it
    assert len(training.named("dagster api grpc")) == 2
    old = training.named("mlflow server") + training.named("dagster._daemon")
    for process_id in old:
        wait_for(lambda pid=process_id: age(pid) > SETTLED_SECONDS + 2, "the age at which a service is started again")
        training.kill(process_id)
    wait_for(lambda: training.ui.tail().count("and is started again") == len(old) == 2, "the next processes")
    wait_for(lambda: training.ui.tail().count(READY) == 2, "their answers")
    wait_for(training.is_owned, "the end of MLflow's workers")
    assert training.ranks() == ranks
    assert training.ui.process.poll() is None
    assert training.dagster.run(training.run)["status"] == "STARTED"


def test_killed_run_worker_ends_its_training_and_is_retried(training):
    killed(training, lambda: training.named("multiprocessing.spawn", child_of="dagster api grpc"))
    follow_retry(training)
    resumed(training)


@pytest.mark.parametrize(
    "find",
    [Training.ranks, lambda training: training.named("bert_pipeline.parent -m torch.distributed")],
    ids=["rank", "torchrun"],
)
def test_killed_rank_or_torchrun_fails_the_run_with_a_remedy(training, find):
    killed(training, lambda: find(training))
    assert training.dagster.finished(training.run) == "FAILURE"
    expected = "is intact; materialize again to resume from it"
    assert any(expected in message for message in training.dagster.messages(training.run))
    training.launch()
    resumed(training)


@pytest.mark.parametrize("name", ["code-server start", "api grpc"])
def test_killed_code_server_restarts_and_its_run_is_retried(training, name):
    (server,) = training.named("dagster code-server")
    wait_for(lambda: age(server) > SETTLED_SECONDS + 2, "the age at which it is started again")
    killed(training, lambda: training.named(f"dagster {name}"))
    follow_retry(training)
    resumed(training)


def test_killed_ui_ends_its_processes_and_the_next_one_retries(training):
    assert training.ui.process is not None
    training.kill(training.ui.process.pid)
    training.ui.process.wait()
    training.start_ui()  # at once: it waits for what is left
    assert len(training.named("dagster._daemon")) == 1
    assert training.is_owned()
    follow_retry(training)
    resumed(training)


def test_numbers_are_those_of_an_undisturbed_training(training):
    training.dagster.terminate(training.run)
    training.dagster.finished(training.run)
    numbers = losses(training.directory)
    reference = training.folder / "reference" / "training"
    wait_for(lambda: len(losses(reference)) >= len(numbers), "the same step of the undisturbed training")
    assert numbers
    assert losses(reference)[: len(numbers)] == numbers


def losses(directory: Path) -> list[tuple[int, float]]:
    """Return the losses of a training by their steps."""
    events = [event for event in read_history(directory) if event["event"] == "train"]
    return [(event["step"], event["metrics"]["train/mlm_loss"]) for event in events]
