"""The UIs shared with others: behind deploy/nginx.conf, and MLflow with accounts of its own."""

import base64
import json
import os
import pwd
import re
import shutil
import ssl
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import compose
import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.server import get_app_client
from processes import Server, free_port
from stack import Stack, listens
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from bert_model.training.mlflow_sync import open_client

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(2400, method="signal")]

NAME, PASSWORD = "operator", "correct horse"
LOGIN = {"Authorization": "Basic " + base64.b64encode(f"{NAME}:{PASSWORD}".encode()).decode()}
SUBSCRIPTION = """
subscription Log($id: ID!) {
  pipelineRunLogs(runId: $id) { __typename ... on PipelineRunLogsSubscriptionFailure { message } }
}
"""


class Proxy:
    """nginx with the UIs of a stack behind it."""

    def __init__(self, stack: Stack, base: Path) -> None:
        self.base = base
        self.host = f"127.0.0.1:{free_port()}"
        self.certificate = base / "bert.pem"
        make_certificate(self.certificate, base / "bert.key")
        hashed = subprocess.run(
            ["openssl", "passwd", "-apr1", "-stdin"], input=PASSWORD, capture_output=True, text=True, check=True
        ).stdout
        (base / "bert.htpasswd").write_text(f"{NAME}:{hashed}", encoding="utf-8")
        places = {
            "443 ssl": f"{self.host} ssl",
            "/etc/nginx": str(base),
            "http://127.0.0.1:3000": stack.dagster,
            "http://127.0.0.1:5000": stack.mlflow,
            "bert.example.org": "127.0.0.1",
        }
        site = compose.moved((compose.DEPLOY / "nginx.conf").read_text(encoding="utf-8"), places)
        (base / "site.conf").write_text(site, encoding="utf-8")
        # As root, nginx would read the files as a user who may not enter the tests' folder.
        user = f"user {pwd.getpwuid(os.getuid()).pw_name};" if os.getuid() == 0 else ""
        (base / "nginx.conf").write_text(
            f"{user} daemon off; pid nginx.pid; error_log stderr; events {{}}\n"
            "http { access_log off; client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi;\n"
            "uwsgi_temp_path uwsgi; scgi_temp_path scgi; include site.conf; }\n",
            encoding="utf-8",
        )
        program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
        assert program, "nginx is not installed: apt-get install nginx"
        command = [program, "-p", str(base), "-c", str(base / "nginx.conf"), "-e", "stderr"]
        self.server = Server("nginx", command, {"PATH": os.environ["PATH"]}, base / "nginx.log")

    @property
    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.certificate))

    def request(self, path: str, body: object = None, **headers: str) -> tuple[int, bytes]:
        """Return status and content; the body is sent as JSON."""
        data = None if body is None else json.dumps(body).encode()
        kind = {} if body is None else {"Content-Type": "application/json"}
        request = urllib.request.Request(f"https://{self.host}{path}", data=data, headers=kind | headers)
        try:
            with urllib.request.urlopen(request, timeout=60, context=self.context) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def is_ready(self) -> bool:
        try:
            return self.request("/")[0] == 401
        except OSError:
            return False


def make_certificate(certificate: Path, key: Path) -> None:
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )


@pytest.fixture(scope="module")
def proxy(stack, tmp_path_factory):
    running = Proxy(stack, tmp_path_factory.mktemp("nginx"))
    running.server.start()
    try:
        running.server.wait(running.is_ready, 60)
        yield running
    finally:
        running.server.stop()


QUERY = {"query": "{ version }"}
SEARCH = {"max_results": 1}


@pytest.mark.parametrize(
    ("path", "body"),
    [("/", None), ("/graphql", QUERY), ("/mlflow/", None), ("/mlflow/api/2.0/mlflow/experiments/search", SEARCH)],
)
def test_everything_requires_the_password(proxy, path, body):
    wrong = {"Authorization": "Basic " + base64.b64encode(f"{NAME}:wrong".encode()).decode()}
    assert proxy.request(path, body)[0] == 401
    assert proxy.request(path, body, **wrong)[0] == 401
    assert proxy.request(path, body, **LOGIN)[0] == 200


@pytest.mark.parametrize("path", ["/", "/mlflow/"])
def test_pages_and_their_scripts_are_served(proxy, path):
    page = proxy.request(path, **LOGIN)[1].decode()
    script = urllib.parse.urljoin(path, re.findall(r'<script [^>]*src="([^"]+)"', page)[0])
    assert script.startswith(path)
    status, content = proxy.request(script, **LOGIN)
    assert status == 200
    assert len(content) > 1000


def test_requests_of_other_sites_pages_are_refused(proxy):
    for path, body in (("/graphql", QUERY), ("/mlflow/ajax-api/2.0/mlflow/experiments/search", SEARCH)):
        assert proxy.request(path, body, Origin=f"https://{proxy.host}", **LOGIN)[0] == 200
        for origin in ("https://elsewhere.example", f"http://{proxy.host}", "null"):
            assert proxy.request(path, body, Origin=origin, **LOGIN)[0] == 403


def test_graphql_subscription_passes_with_the_password_only(proxy):
    def open_socket(**headers: str):
        address = f"wss://{proxy.host}/graphql"
        return connect(address, ssl=proxy.context, subprotocols=["graphql-ws"], additional_headers=headers)

    for headers, status in (({}, 401), (LOGIN | {"Origin": "https://elsewhere.example"}, 403)):
        with pytest.raises(InvalidStatus) as refusal:
            open_socket(**headers)
        assert refusal.value.response.status_code == status
    with open_socket(Origin=f"https://{proxy.host}", **LOGIN) as socket:
        socket.send(json.dumps({"type": "connection_init", "payload": {}}))
        variables = {"id": "00000000-0000-0000-0000-000000000000"}
        socket.send(
            json.dumps({"id": "1", "type": "start", "payload": {"query": SUBSCRIPTION, "variables": variables}})
        )
        answers = [json.loads(socket.recv(timeout=60)) for _ in range(2)]
    assert answers[0]["type"] == "connection_ack"
    assert "Could not load run" in answers[1]["payload"]["data"]["pipelineRunLogs"]["message"]


def test_mlflow_client_reaches_the_server_through_the_proxy(proxy, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", NAME)
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", PASSWORD)
    monkeypatch.setenv("MLFLOW_TRACKING_SERVER_CERT_PATH", str(proxy.certificate))
    client = open_client(f"https://{proxy.host}/mlflow")
    run = client.create_run(client.create_experiment("proxied")).info
    large = tmp_path / "weights.bin"
    large.write_bytes(os.urandom(3_000_000))  # above nginx's default limit
    client.log_artifact(run.run_id, str(large))
    fetched = client.download_artifacts(run.run_id, large.name, str(tmp_path / "fetched"))
    assert Path(fetched).read_bytes() == large.read_bytes()


def test_accounts_of_mlflow_read_everything_and_change_their_own(tmp_path, monkeypatch):
    port = free_port()
    variables = {
        "MLFLOW_FLASK_SERVER_SECRET_KEY": "0123456789abcdef",
        "MLFLOW_AUTH_ADMIN_PASSWORD": "correct horse battery",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    command = [sys.executable, "-m", "mlflow", "server", "--app-name", "basic-auth", "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{tmp_path}/mlflow.db", "--port", str(port)]
    server = Server("mlflow", command, os.environ | variables, tmp_path / "log", directory=tmp_path)
    address = f"http://127.0.0.1:{port}"

    def client_of(name: str, password: str) -> MlflowClient:
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", name)
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", password)
        return open_client(address)

    server.start()
    try:
        server.wait(lambda: listens(port), 120)
        with pytest.raises(MlflowException, match="not authenticated"):
            client_of("admin", "wrong").search_experiments()
        administrator = client_of("admin", "correct horse battery")
        experiment = administrator.create_experiment("theirs")
        get_app_client("basic-auth", address).create_user("reader", "another password")
        reader = client_of("reader", "another password")
        assert reader.get_experiment(experiment).name == "theirs"
        with pytest.raises(MlflowException, match="Permission denied"):
            reader.delete_experiment(experiment)
        assert reader.create_run(reader.create_experiment("own")).info.run_id
    finally:
        server.stop()
