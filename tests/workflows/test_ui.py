"""A webserver over workspace.yaml serves the graph and runs assets launched by GraphQL, as the UI does."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import miniature
import pytest
from dagster_api import DagsterApi
from processes import Server, free_port
from training_processes import empty_job, ranks_of, training_processes, wait_until

from bert_pipeline.manifest import load_manifest
from workflows.defs.pretraining import TRAINING_POOL
from workflows.lib.instance import open_instance
from workflows.lib.processes import PROCESS_TAG, process_mark
from workflows.lib.resources import ASSETS, BertHome

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

STALE = """
query Stale($path: [String!]!, $partition: String!) {
  assetNodeOrError(assetKey: {path: $path}) {
    ... on AssetNode { staleStatus(partition: $partition) staleCauses(partition: $partition) { reason } }
  }
}
"""
GRAPH = "{ assetNodes { assetKey { path } description } }"


@pytest.fixture(scope="module")
def home(empty_store: Path, tmp_path_factory: pytest.TempPathFactory) -> BertHome:
    """The server's home."""
    home = BertHome(directory=str(tmp_path_factory.mktemp("ui") / "home"))
    home.path.mkdir()
    shutil.copy(empty_store, home.path / "mlflow.db")
    return home


@pytest.fixture(scope="module")
def killed_run(server: DagsterApi, home: BertHome) -> str:
    """A run that holds a slot and whose process was killed while the server runs."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    run_id = str(uuid.uuid4())
    with in_home(home), open_instance(home) as instance:
        tags = {PROCESS_TAG: f"{process_mark(process.pid)}:{run_id}"}
        instance.create_run_for_job(empty_job, run_id=run_id, tags=tags, status=dg.DagsterRunStatus.STARTED)
        instance.event_log_storage.set_concurrency_slots(TRAINING_POOL, 1)
        instance.event_log_storage.claim_concurrency_slot(TRAINING_POOL, run_id, "step")
    process.kill()
    process.wait()
    return run_id


@contextlib.contextmanager
def in_home(home: BertHome) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BERT_HOME", str(home.path))
        patch.setenv("DAGSTER_HOME", str(home.path / "dagster"))
        yield


@pytest.fixture(scope="module")
def server(home: BertHome) -> Iterator[DagsterApi]:
    """Webserver and daemon of a fresh home whose launchpad defaults are the miniature preset."""
    tmp_path = home.path.parent
    environment = {
        **miniature.environment(home.path),
        **miniature.STOPPED_RANKS,
        "BERT_PRESET": str(miniature.write_preset(tmp_path)),
        "DAGSTER_HOME": str(home.path / "dagster"),
    }
    with in_home(home):
        open_instance(home).dispose()
    port = free_port()
    command = [sys.executable, "-m", "dagster", "dev", "-w", str(miniature.ROOT / "workspace.yaml"), "-p", str(port)]
    server = Server("webserver", command, environment, tmp_path / "webserver.log", directory=miniature.ROOT)
    api = DagsterApi(f"http://127.0.0.1:{port}")
    server.start()
    try:
        server.wait(lambda: answers(api))
        yield api
    finally:
        server.stop(signal.SIGINT)


def answers(api: DagsterApi) -> bool:
    try:
        return bool(api.ask("{ version }"))
    except OSError:
        return False


def test_ui_serves_the_graph_and_runs_with_default_configuration(server, home, killed_run):
    nodes = server.ask(GRAPH)
    observed = {"champion", "official_files", "published_dumps"}
    assert {node["assetKey"]["path"][-1] for node in nodes} == {*ASSETS, *observed}
    assert all(node["description"] for node in nodes)
    server.succeeded(server.launch(["dump"], miniature.DUMP))
    run = server.launch(["corpus", "vocabulary"], miniature.DUMP)
    server.succeeded(run)
    assert sum("Executing steps in process" in message for message in server.messages(run)) == 1
    corpus = load_manifest(home.corpus(miniature.DUMP), kind="corpus")
    assert corpus.counts["documents"] > 100

    asked = {"path": ["corpus"], "partition": miniature.DUMP}
    assert server.ask(STALE, **asked) == {"staleStatus": "FRESH", "staleCauses": []}
    other = dg.AssetMaterialization("dump", partition=miniature.DUMP, tags={"dagster/data_version": "another dump"})
    with in_home(home), open_instance(home) as instance:
        instance.report_runless_asset_event(other)
    shown = server.ask(STALE, **asked)  # what depends on an input that has changed
    assert shown["staleStatus"] == "STALE"
    assert "data version" in shown["staleCauses"][0]["reason"]


def test_run_of_a_killed_process_frees_its_slot_while_the_ui_is_open(server, home, killed_run):
    wait_until(lambda: server.run(killed_run)["status"] == "FAILURE")
    with in_home(home), open_instance(home) as instance:
        wait_until(lambda: killed_run not in instance.event_log_storage.get_concurrency_run_ids())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are found through /proc")
def test_terminated_run_is_canceled_and_kills_stopped_ranks(server, home, finished_home):
    for name in ("dump", "corpus", "vocabulary", "instances"):
        shutil.copytree(
            finished_home.dump_directory(miniature.DUMP) / name,
            home.dump_directory(miniature.DUMP) / name,
            dirs_exist_ok=True,
        )
    run_id = server.launch(["pretrained_model"], miniature.DUMP)
    wait_until(lambda: ranks_of(home))
    for rank in ranks_of(home):
        os.kill(rank, signal.SIGSTOP)  # it can neither save, nor stop, nor ignore: it hangs
    try:
        # Trainings that wait do so in the queue, where a rollback does not.
        waiting = [server.launch(["pretrained_model"], miniature.DUMP) for _ in range(2)]
        config = {"ops": {"rollback_champion": {"config": {"name": "bert-nothing"}}}}
        assert server.finished(server.launch_job("rollback", config)) == "FAILURE"
        assert [server.run(queued)["status"] for queued in waiting] == ["QUEUED"] * 2
        for run in (*waiting, run_id):
            server.terminate(run)
        assert server.finished(run_id) == "CANCELED"
        wait_until(lambda: not training_processes(home))
    finally:
        for process_id, _ in training_processes(home):
            os.kill(process_id, signal.SIGKILL)
