"""The UI's own way: a webserver over workspace.yaml serves the graph, and a run launched by GraphQL succeeds."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import miniature
import pytest

from bert_pipeline.manifest import load_manifest
from workflows.instance import open_instance
from workflows.phases import ASSETS
from workflows.resources import BertHome

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LAUNCH = """
mutation Launch($params: ExecutionParams!) {
  launchRun(executionParams: $params) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on PythonError { message }
    ... on RunConfigValidationInvalid { errors { message } }
  }
}
"""
STATUS = "query Status($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"
GRAPH = "{ assetNodes { assetKey { path } groupName description repository { name location { name } } } }"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Webserver and daemon of a fresh home whose launchpad defaults are the miniature preset; yields its address."""
    home = tmp_path / "home"
    environment = {
        **miniature.environment(home),
        "BERT_PRESET": str(miniature.write_preset(tmp_path)),
        "DAGSTER_HOME": str(home / "dagster"),
    }
    monkeypatch.setenv("DAGSTER_HOME", environment["DAGSTER_HOME"])
    open_instance(BertHome(directory=str(home))).dispose()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with open(tmp_path / "webserver.log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "dagster", "dev", "-w", str(miniature.ROOT / "workspace.yaml"), "-p", str(port)],
            cwd=miniature.ROOT,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    address = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: answers(address), process)
        yield address
    finally:
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


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


def wait_until(condition, process: "subprocess.Popen[bytes]", seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, f"the webserver ended with {process.returncode}"
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.3)


def test_ui_serves_the_graph_and_a_run_launched_without_configuration_succeeds(server, tmp_path):
    nodes = ask(server, GRAPH)["assetNodes"]
    assert {node["assetKey"]["path"][-1] for node in nodes} == set(ASSETS)
    assert all(node["description"] for node in nodes)
    repository = nodes[0]["repository"]
    params = {
        "selector": {
            "repositoryLocationName": repository["location"]["name"],
            "repositoryName": repository["name"],
            "jobName": "__ASSET_JOB",
            "assetSelection": [{"path": [name]} for name in ("dump", "corpus")],
        },
        "executionMetadata": {"tags": [{"key": "dagster/partition", "value": miniature.DUMP}]},
    }
    launched = ask(server, LAUNCH, {"params": params})["launchRun"]
    assert launched["__typename"] == "LaunchRunSuccess", launched
    run_id = launched["run"]["runId"]
    deadline = time.monotonic() + 240
    status = ""
    while status not in ("SUCCESS", "FAILURE", "CANCELED"):
        assert time.monotonic() < deadline, status
        time.sleep(0.5)
        status = ask(server, STATUS, {"id": run_id})["runOrError"]["status"]
    assert status == "SUCCESS"
    corpus = load_manifest(BertHome(directory=str(tmp_path / "home")).corpus(miniature.DUMP), kind="corpus")
    assert corpus.counts["documents"] > 100
