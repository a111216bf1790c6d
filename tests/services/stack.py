"""The services of deploy/compose.yaml as local processes, with their own PostgreSQL."""

import contextlib
import os
import secrets
import shutil
import socket
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import compose
from database import Database, running_database
from processes import Server, free_port

PROGRAMS = Path(sys.executable).parent


class Stack:
    """The running services, their addresses and directories."""

    def __init__(self, base: Path, database: Database, settings: dict[str, str]) -> None:
        self.base = base
        self.database = database
        self.ports = {name: free_port() for name in ("mlflow", "code", "webserver")}
        self.secrets = {name: secrets.token_hex(12) for name in ("DAGSTER_DB_PASSWORD", "MLFLOW_DB_PASSWORD")}
        places = {
            "0.0.0.0": "127.0.0.1",
            "database:5432": f"127.0.0.1:{database.port}",
            "database": "127.0.0.1",
            "5432": str(database.port),
            "http://mlflow:5000": self.mlflow,
            "5000": str(self.ports["mlflow"]),
            "http://127.0.0.1:5000": self.mlflow,
            "code": "127.0.0.1",
            "4000": str(self.ports["code"]),
            "3000": str(self.ports["webserver"]),
            "http://127.0.0.1:3000": self.dagster,
            "/srv/mlflow": str(base / "mlflow"),
            "/srv/bert": str(self.home),
            "/etc/dagster": str(base / "etc"),
        }
        variables = {
            **compose.moved(compose.example_variables(), places),
            **self.secrets,
            "POSTGRES_PASSWORD": database.password,
            **settings,
        }
        self.document = compose.load(variables, places)
        for folder in ("mlflow", "home", "etc"):
            (base / folder).mkdir()
        for name in ("dagster.yaml", "workspace.yaml"):
            shutil.copy(compose.DEPLOY / name, base / "etc")
        self.servers = {
            name: Server(name, self.command(name), self.environment(name), base / f"{name}.log", directory=compose.ROOT)
            for name in ("mlflow", "code", "webserver", "daemon")
        }

    @property
    def home(self) -> Path:
        """BERT_HOME of the code server."""
        return self.base / "home"

    @property
    def mlflow(self) -> str:
        return f"http://127.0.0.1:{self.ports['mlflow']}"

    @property
    def dagster(self) -> str:
        return f"http://127.0.0.1:{self.ports['webserver']}"

    def login(self, role: str) -> dict[str, str]:
        """Return libpq's variables for the role of a service."""
        return {"PGUSER": role, "PGPASSWORD": self.secrets[f"{role.upper()}_DB_PASSWORD"]}

    def environment(self, service: str) -> dict[str, str]:
        """Return the environment of a service, with only the necessary variables of this machine."""
        kept = {key: os.environ[key] for key in ("PATH", "LANG", "TMPDIR") if key in os.environ}
        kept |= {"HOME": str(self.base), "PATH": f"{PROGRAMS}:{kept['PATH']}", "PYTHONPATH": str(compose.ROOT)}
        given = self.document["services"][service]["environment"]
        # A variable without a value is passed on if there is one.
        values = {name: os.environ.get(name) if value is None else value for name, value in given.items()}
        return {**kept, "OMP_NUM_THREADS": "1", **{name: value for name, value in values.items() if value is not None}}

    def command(self, service: str) -> list[str]:
        """Return the command line of a service."""
        return _with_program([str(word) for word in self.document["services"][service]["command"]])

    def health_check(self, service: str) -> list[str]:
        """Return the command of a service's health check."""
        kind, *command = self.document["services"][service]["healthcheck"]["test"]
        assert kind == "CMD"
        return _with_program(command)

    def start(self, *services: str) -> None:
        """Start services and wait until each answers."""
        for service in services:
            self.servers[service].start()
        for service in services:
            self.servers[service].wait(lambda service=service: self.answers(service))

    def answers(self, service: str) -> bool:
        """Return whether a service answers on its port; the daemon has none and counts as ready."""
        if service == "daemon":
            return True
        if service == "code":
            return listens(self.ports["code"])
        try:
            path = {"mlflow": "/health", "webserver": "/server_info"}[service]
            address = {"mlflow": self.mlflow, "webserver": self.dagster}[service] + path
            with urllib.request.urlopen(address, timeout=5) as response:
                return bool(response.status == 200)
        except OSError:
            return False


def _with_program(command: list[str]) -> list[str]:
    """Resolve programs in the image's PATH to those next to this Python."""
    path = PROGRAMS / command[0]
    return [str(path) if path.exists() else command[0], *command[1:]]


def listens(port: int) -> bool:
    """Return whether a server of this machine listens on a port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=2).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def running_stack(base: Path, **settings: str) -> Iterator[Stack]:
    """Start all services for the duration of the block; `settings` are variables of .env.example."""
    base.mkdir(parents=True, exist_ok=True)
    with running_database(base / "postgres.log") as database:
        stack = Stack(base, database, settings)
        database.run("psql", "--file", str(compose.DEPLOY / "databases.sql"), **stack.secrets)
        try:
            stack.start("mlflow", "code")
            stack.start("webserver", "daemon")
            yield stack
        finally:
            for name in ("daemon", "webserver", "code", "mlflow"):
                stack.servers[name].stop()
