"""MLflow on PostgreSQL with proxied artifacts: concurrent clients, unknown hosts, and outages."""

import contextlib
import math
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import miniature
import pytest
import tiny_tasks
from dagster_api import wait_for
from processes import process_ids
from stack import Stack

from bert_model.presets import preset_from_mapping
from bert_model.registry import operations
from bert_model.training.metrics_log import METRICS_NAME, metric_key, read_lines, read_state
from bert_model.training.mlflow_store import open_client
from workflows.lib.launchpad import asset_configs
from workflows.lib.resources import BertHome

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(2400, method="signal")]

STEPS = 400
PHASE = {"max_seq_length": 32, "steps": STEPS, "global_batch_size": 16, "learning_rate": 2e-3, "warmup_steps": 6}


def test_requests_for_unknown_hosts_are_refused(stack):
    assert status_for(stack, "mlflow:" + str(stack.ports["mlflow"])) == 200
    assert status_for(stack, f"127.0.0.1:{stack.ports['mlflow']}") == 200
    assert status_for(stack, "elsewhere.example") == 403


def status_for(stack: Stack, host: str) -> int:
    address = f"{stack.mlflow}/api/2.0/mlflow/experiments/search?max_results=1"
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers={"Host": host}), timeout=20) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.fixture(scope="module")
def registered(stack, tmp_path_factory):
    """Name of a model with a weak version 1 and a strong version 2."""
    root = tmp_path_factory.mktemp("models")
    base = tiny_tasks.make_model(root / "tiny")
    name = "bert-tiny-contested"  # the backfill registers a bert-tiny-stsb of its own
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BERT_HOME", str(root / "home"))
        patch.setenv("MLFLOW_TRACKING_URI", stack.mlflow)
        for kind, epochs in (("weak", 1.0), ("strong", 8.0)):
            tiny_tasks.tune("stsb", base, root / kind, epochs=[epochs])
            operations.register(root / kind, name, tags={"license": "Apache-2.0"})
        yield name


PROMOTE = """
import sys
from bert_model.registry.operations import promote
name, version = sys.argv[1], int(sys.argv[2])
promote(name, version, dry_run=True)
print("ready", flush=True)
sys.stdin.readline()
print("promoted" if promote(name, version).promoted else "refused", flush=True)
"""


def test_concurrent_promotions_keep_the_better_version(stack, registered):
    clients = [
        subprocess.Popen(
            [sys.executable, "-c", PROMOTE, registered, version],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(miniature.ROOT)},
        )
        for version in ("1", "2")
    ]
    try:
        assert [client.stdout.readline() for client in clients] == ["ready\n"] * 2
        for client in clients:
            client.stdin.write("go\n")
            client.stdin.flush()
        first, second = (client.communicate(timeout=120)[0].strip() for client in clients)
    finally:
        for client in clients:
            client.kill()
            client.wait()
    held = {alias: version.version for version in operations.list_models(registered) for alias in version.aliases}
    # Either version 1 was champion for a moment and is the former one, or it met a better champion and was refused.
    assert second == "promoted"
    assert held == {"candidate": 2, "champion": 2} | ({"previous": 1} if first == "promoted" else {})
    outcomes = [version.tags["promotion"] for version in operations.list_models(registered)]
    assert [outcome == "passed" for outcome in outcomes] == [first == "promoted", True]


def test_artifacts_go_through_the_server_to_its_own_folder(stack, registered, tmp_path, monkeypatch):
    monkeypatch.setenv("BERT_HOME", str(tmp_path / "another-machine"))
    fetched = operations.download(f"models:/{registered}/2")
    weights = (fetched / "model.safetensors").read_bytes()
    stored = [path.read_bytes() for path in (stack.base / "mlflow" / "artifacts").rglob("model.safetensors")]
    assert weights in stored
    assert not (tmp_path / "another-machine" / "artifacts").exists()


def test_metrics_are_complete_after_an_mlflow_outage(dagster, stack, trained):
    home = BertHome(directory=str(stack.home))
    before = set(home.pretraining(miniature.DUMP, "x").parent.iterdir())
    preset = preset_from_mapping(miniature.preset(phases=[PHASE], checkpoint_interval_steps=200), name="longer")
    config = {"ops": {"pretrained_model": {"config": asset_configs(preset)["pretrained_model"]}}}
    run_id = dagster.launch(["pretrained_model"], miniature.DUMP, config)

    def training() -> Path | None:
        new = set(home.pretraining(miniature.DUMP, "x").parent.iterdir()) - before
        return next((path for path in new if sent(path)), None)

    directory = wait_for(training, "metrics of the training in MLflow")
    with paused(directory):  # whatever this machine's speed, the training is in its midst
        stack.servers["mlflow"].stop()
    alone = line_count(directory)
    wait_for(lambda: line_count(directory) > alone + 3, "metrics that the server misses")
    with paused(directory):
        assert line_count(directory) > sent(directory)
        stack.start("mlflow")
    dagster.succeeded(run_id)

    state = read_state(directory / "tracking.json")
    assert state["copied_lines"] == line_count(directory)
    client = open_client(stack.mlflow)
    run = client.get_run(state["run_id"])
    assert run.info.status == "FINISHED"
    written: dict[str, dict[int, float]] = defaultdict(dict)
    checkpoints = []
    for line in read_lines(directory):
        for key, value in line.get("metrics", {}).items():
            if isinstance(value, (int, float)) and math.isfinite(value):
                written[metric_key(key)].setdefault(line["step"], value)
        if line["event"] == "checkpoint":
            checkpoints.append(line["step"])
    assert len(written["train/loss"]) >= STEPS // 5
    assert set(run.data.metrics) >= set(written)
    for key, values in written.items():
        stored = [(metric.step, metric.value) for metric in client.get_metric_history(state["run_id"], key)]
        assert sorted(stored) == sorted(values.items()), key
    found = client.search_logged_models([run.info.experiment_id], f"source_run_id = '{state['run_id']}'")
    assert sorted(int(model.tags["step"]) for model in found) == checkpoints
    assert len(client.search_runs([run.info.experiment_id], f"tags.`bert.key` = '{state['key']}'")) == 1


def line_count(directory: Path) -> int:
    return sum(1 for _ in read_lines(directory))


def sent(directory: Path) -> int:
    """Return how many lines of a training's metrics MLflow has."""
    if not (directory / METRICS_NAME).is_file() or not (directory / "tracking.json").is_file():
        return 0
    return int(read_state(directory / "tracking.json").get("copied_lines", 0))


@contextlib.contextmanager
def paused(directory: Path) -> Iterator[None]:
    """Pause the ranks of a training for the duration of the block."""
    ranks = process_ids("bert_model.pretraining", str(directory))
    assert ranks, "the training has ended"
    for rank in ranks:
        os.kill(rank, signal.SIGSTOP)
    try:
        yield
    finally:
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank, signal.SIGCONT)
