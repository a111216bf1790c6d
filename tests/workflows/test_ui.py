"""A webserver over workspace.yaml serves the graph and runs assets launched by GraphQL, as the UI does."""

import json
import os
import shutil
import signal
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import miniature
import pytest
from launch_query import LAUNCH
from processes import Server, free_port
from training_processes import ranks_of, training_processes, wait_until

from bert_pipeline.manifest import load_manifest
from workflows.lib.instance import open_instance
from workflows.lib.resources import ASSETS, BertHome

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

STATUS = "query Status($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"
STALE = """
query Stale($path: [String!]!, $partition: String!) {
  assetNodeOrError(assetKey: {path: $path}) {
    ... on AssetNode { staleStatus(partition: $partition) staleCauses(partition: $partition) { reason } }
  }
}
"""
GRAPH = "{ assetNodes { assetKey { path } groupName description repository { name location { name } } } }"


TERMINATE = """
mutation Terminate($id: String!) {
  terminateRun(runId: $id) { __typename ... on TerminateRunFailure { message } ... on PythonError { message } }
}
"""


@pytest.fixture(scope="module")
def home(empty_store: Path, tmp_path_factory: pytest.TempPathFactory) -> BertHome:
    """The server's home."""
    home = BertHome(directory=str(tmp_path_factory.mktemp("ui") / "home"))
    home.path.mkdir()
    shutil.copy(empty_store, home.path / "mlflow.db")
    return home


@pytest.fixture(scope="module")
def server(home: BertHome) -> Iterator[str]:
    """Webserver and daemon of a fresh home whose launchpad defaults are the miniature preset; yields its address."""
    tmp_path = home.path.parent
    environment = {
        **miniature.environment(home.path),
        "BERT_PRESET": str(miniature.write_preset(tmp_path)),
        "DAGSTER_HOME": str(home.path / "dagster"),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name in ("DAGSTER_HOME", "BERT_HOME"):
            patch.setenv(name, environment[name])
        open_instance(home).dispose()
    port = free_port()
    command = [sys.executable, "-m", "dagster", "dev", "-w", str(miniature.ROOT / "workspace.yaml"), "-p", str(port)]
    server = Server("webserver", command, environment, tmp_path / "webserver.log", directory=miniature.ROOT)
    address = f"http://127.0.0.1:{port}"
    server.start()
    try:
        server.wait(lambda: answers(address))
        yield address
    finally:
        server.stop(signal.SIGINT)


def ask(address: str, query: str, variables: dict[str, Any] | None = None) -> Any:
    body = json.dumps({"query": query, "variables": variables or {}}).encode()
    request = urllib.request.Request(f"{address}/graphql", data=body, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        answer = json.load(response)
    assert "errors" not in answer, answer["errors"]
    return answer["data"]


def answers(address: str) -> bool:
    try:
        return bool(ask(address, "{ version }"))
    except OSError:
        return False


def launch(address: str, *assets: str) -> str:
    """Launch a run of assets on the sample, as the UI does; return its id."""
    repository = ask(address, GRAPH)["assetNodes"][0]["repository"]
    params = {
        "selector": {
            "repositoryLocationName": repository["location"]["name"],
            "repositoryName": repository["name"],
            "jobName": "__ASSET_JOB",
            "assetSelection": [{"path": [name]} for name in assets],
        },
        "executionMetadata": {"tags": [{"key": "dagster/partition", "value": miniature.DUMP}]},
    }
    launched = ask(address, LAUNCH, {"params": params})["launchRun"]
    assert launched["__typename"] == "LaunchRunSuccess", launched
    return str(launched["run"]["runId"])


def status_at_end(address: str, run_id: str, seconds: float = 900.0) -> str:
    deadline = time.monotonic() + seconds
    status = ""
    while status not in ("SUCCESS", "FAILURE", "CANCELED"):
        assert time.monotonic() < deadline, status
        time.sleep(0.5)
        status = ask(address, STATUS, {"id": run_id})["runOrError"]["status"]
    return status


def test_ui_serves_the_graph_and_runs_with_default_configuration(server, home, monkeypatch):
    nodes = ask(server, GRAPH)["assetNodes"]
    assert {node["assetKey"]["path"][-1] for node in nodes} == set(ASSETS)
    assert all(node["description"] for node in nodes)
    assert status_at_end(server, launch(server, "dump", "corpus")) == "SUCCESS"
    corpus = load_manifest(home.corpus(miniature.DUMP), kind="corpus")
    assert corpus.counts["documents"] > 100

    asked = {"path": ["corpus"], "partition": miniature.DUMP}
    assert ask(server, STALE, asked)["assetNodeOrError"] == {"staleStatus": "FRESH", "staleCauses": []}
    monkeypatch.setenv("BERT_HOME", str(home.path))
    monkeypatch.setenv("DAGSTER_HOME", str(home.path / "dagster"))
    other = dg.AssetMaterialization("dump", partition=miniature.DUMP, tags={"dagster/data_version": "another dump"})
    with open_instance(home) as instance:
        instance.report_runless_asset_event(other)
    shown = ask(server, STALE, asked)["assetNodeOrError"]  # what depends on an input that has changed
    assert shown["staleStatus"] == "STALE"
    assert "data version" in shown["staleCauses"][0]["reason"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are found through /proc")
def test_terminated_run_is_canceled_and_kills_stopped_ranks(server, home, finished_home):
    for name in ("dump", "corpus", "vocabulary", "instances"):
        shutil.copytree(
            finished_home.of_dump(miniature.DUMP) / name, home.of_dump(miniature.DUMP) / name, dirs_exist_ok=True
        )
    run_id = launch(server, "pretrained_model")
    wait_until(lambda: ranks_of(home))
    for rank in ranks_of(home):
        os.kill(rank, signal.SIGSTOP)  # it can neither save, nor stop, nor ignore: it hangs
    try:
        answer = ask(server, TERMINATE, {"id": run_id})["terminateRun"]
        assert answer["__typename"] == "TerminateRunSuccess", answer
        assert status_at_end(server, run_id) == "CANCELED"
        wait_until(lambda: not training_processes(home))
    finally:
        for process_id, _ in training_processes(home):
            os.kill(process_id, signal.SIGKILL)
