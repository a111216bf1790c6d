"""Servers bind to loopback by default: in the programs, and in every command of the docs."""

import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from processes import Server, free_port

from bert_pipeline.atomic import locked
from workflows import serve
from workflows.lib.resources import BertHome

ROOT = Path(__file__).resolve().parent.parent.parent
PORTS = ["ui", "--port", "0", "--mlflow-port", "0"]  # free ones
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.fixture
def started(clean_environment, monkeypatch) -> list[list[str]]:
    """The first commands of `python -m workflows.serve ui`, recorded instead of run: each ends at once."""
    commands: list[list[str]] = []

    class Ended:
        returncode = 0

        def __init__(self, command: list[str], **_: object) -> None:
            commands.append(command)

        def poll(self) -> int:
            return 0

        def wait(self, _: float = 0.0) -> int:
            return 0

    monkeypatch.setattr(serve.subprocess, "Popen", Ended)
    monkeypatch.setattr(serve.signal, "signal", lambda *_: None)
    monkeypatch.setenv("BERT_MLFLOW_ADDRESS", "http://127.0.0.1:5000")
    return commands


def hosts(command: list[str]) -> list[str]:
    return [following for word, following in zip(command, command[1:]) if word == "--host"]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "gpu.example.org"])
def test_address_that_others_reach_is_refused_without_a_word(started, capsys, host):
    assert serve.main([*PORTS, "--host", host]) == 2
    assert "without a login" in capsys.readouterr().err
    assert not started


def test_mlflow_answers_other_machines_by_the_name_of_this_one(clean_environment, tmp_path, empty_store, monkeypatch):
    monkeypatch.delenv("MLFLOW_DISABLE_TELEMETRY", raising=False)  # set by clients, such as that of the empty store
    clean_environment.mkdir()
    shutil.copy(empty_store, clean_environment / "mlflow.db")
    arguments = serve.build_parser().parse_args(["ui", "--host", "0.0.0.0", "--mlflow-port", str(free_port())])
    service = next(item for item in serve.ui_services(BertHome(), arguments, tmp_path) if item.name == "MLflow")
    assert service.address.split(":")[1] not in ("//0.0.0.0", "//127.0.0.1")
    assert os.environ["BERT_MLFLOW_ADDRESS"] == service.address  # where Dagster's links lead
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    server = Server("MLflow", service.command, dict(os.environ), tmp_path / "log.txt")
    server.start()
    try:
        server.wait(lambda: serve._answers(service))
        search = f"{service.address}/ajax-api/2.0/mlflow/experiments/search"
        request = urllib.request.Request(search, data=b'{"max_results": 1}', headers={"Origin": service.address})
        request.add_header("Content-Type", "application/json")
        assert urllib.request.urlopen(request, timeout=60).status == 200
        request.add_header("Origin", "http://elsewhere.example.org")
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(request, timeout=60)
    finally:
        server.stop()


def commands_of_services(folder: Path, *words: str) -> dict[str, list[str]]:
    arguments = serve.build_parser().parse_args([*PORTS, *words])
    return {service.name: service.command for service in serve.ui_services(BertHome(), arguments, folder)}


@pytest.mark.parametrize(("words", "host"), [([], "127.0.0.1"), (["--host", "192.0.2.1"], "192.0.2.1")])
def test_both_uis_bind_to_loopback_or_the_given_host(clean_environment, tmp_path, words, host):
    commands = commands_of_services(tmp_path, *words)
    bound = {name: hosts(command) for name, command in commands.items() if "--port" in command}
    assert bound == {"Dagster": [host], "MLflow": [host]}
    assert set(commands) - set(bound) == {"code server", "daemon"}
    assert "--socket" in commands["code server"]


def test_mlflow_database_is_in_no_command_line(started, monkeypatch, tmp_path):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql+psycopg2://mlflow:s3cret@127.0.0.1/mlflow")
    serve.main(PORTS)
    assert len(started) == 2
    assert "s3cret" not in f"{started} {commands_of_services(tmp_path)}"
    assert serve.os.environ["MLFLOW_BACKEND_STORE_URI"].endswith("s3cret@127.0.0.1/mlflow")


def test_ui_starts_dagster_alone_with_an_mlflow_server(started, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5055")
    monkeypatch.delenv("BERT_MLFLOW_ADDRESS")
    serve.main(PORTS)
    assert set(commands_of_services(tmp_path)) == {"code server", "Dagster", "daemon"}
    (command,) = started
    assert "dagster" in command
    assert "MLflow: http://127.0.0.1:5055" in capsys.readouterr().out


SERVER = """
import http.server, sys
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), http.server.SimpleHTTPRequestHandler)
server.handle_request()
server.server_close()
sys.exit("the server failed")
"""


def test_addresses_are_printed_when_they_answer_and_a_failure_with_its_log(clean_environment, monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5055")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # where nobody answers
    port = free_port()
    command = [sys.executable, "-c", SERVER, str(port)]
    service = serve.Service(name="Dagster", command=command, address=f"http://127.0.0.1:{port}")
    monkeypatch.setattr(serve, "ui_services", lambda *_: [service])
    assert serve.main(["ui", "--port", str(port)]) == 1
    output, errors = capsys.readouterr()
    lines = output.splitlines()
    assert lines[0].startswith("Starting Dagster; details in ")
    assert f"Dagster: http://127.0.0.1:{port}" in lines
    assert '"GET / HTTP' not in output  # a request's line is in the log only
    assert '"GET / HTTP' in errors
    assert "the server failed\nDagster ended with 1" in errors


def test_ui_whose_daemon_cannot_start_ends_with_a_sentence(clean_environment, monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5055")
    shut_down = "print('no daemon can run here', flush=True); raise SystemExit(0)"
    service = serve.Service(name="daemon", command=[sys.executable, "-c", shut_down])
    monkeypatch.setattr(serve, "ui_services", lambda *_: [service])
    assert serve.main(PORTS) == 1
    errors = capsys.readouterr().err
    assert errors.startswith("no daemon can run here\ndaemon ended with 0; the lines above are")


@pytest.mark.parametrize(
    ("words", "option"),
    [("ui --port", "--port"), ("ui --mlflow-port", "--mlflow-port"), ("code-server --port", "--port")],
)
def test_number_that_is_no_port_is_refused(started, capsys, words, option):
    assert serve.main([*words.split(), "70000"]) == 2
    assert capsys.readouterr().err.startswith(f"workflows.serve: {option} 70000: expected a port from 0")
    assert started == []


@pytest.mark.parametrize("words", [["ui", "--port", "0", "--mlflow-port"], ["code-server", "--port"]])
def test_busy_port_is_named_before_anything_starts(started, capsys, words):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert serve.main([*words, str(port)]) == 2
    expected = f"port {port} of 127.0.0.1: Address already in use, held by process {os.getpid()} ("
    message = capsys.readouterr().err
    assert expected in message
    assert f"give another with {words[-1]}\n" in message
    assert not started


def test_second_ui_of_a_home_ends_with_a_sentence(started, clean_environment, capsys):
    (clean_environment / "locks").mkdir(parents=True)
    with locked(clean_environment / "locks" / "ui.lock"):
        assert serve.main(["ui", "--port", "0", "--mlflow-port", "0"]) == 2
    assert "is running already" in capsys.readouterr().err
    assert not started


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_command_of_the_docs_binds_to_every_address(page):
    blocks = re.findall(r"```\w*\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert not [line for block in blocks for line in block.splitlines() if "0.0.0.0" in line or "--host ::" in line]


def test_code_server_settles_on_the_address_that_it_is_bound_to():
    with (
        socket.create_server(("127.0.0.2", 0)) as listening,
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as server,
    ):
        try:
            assert serve._has_settled(server, "127.0.0.2", listening.getsockname()[1], 0.1)
        finally:
            server.kill()
