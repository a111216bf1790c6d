"""A model behind MLflow's own server on loopback, and clients that ask it."""

import contextlib
import dataclasses
import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_pipeline.errors import BertError

START_SECONDS = 180.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelServer:
    """Where a model answers."""

    port: int

    def connect(self) -> http.client.HTTPConnection:
        """A connection that is kept open."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)


@contextlib.contextmanager
def serving(model_uri: str, log: Path, environment: Mapping[str, str]) -> Iterator[ModelServer]:
    """Run `mlflow models serve` until the block ends; BertError with its last words when it does not start."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", model_uri, "--env-manager", "local"]
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])  # MLflow calls uvicorn
    with open(log, "wb") as stream:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            env={**os.environ, **environment, "PATH": programs},
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        server = ModelServer(port=port)
        deadline = time.monotonic() + START_SECONDS
        while not _answers(server):
            if process.poll() is not None or time.monotonic() > deadline:
                words = log.read_text(encoding="utf-8", errors="replace")[-600:]
                raise BertError(f"{model_uri}: the server did not start: {words}")
            time.sleep(0.2)
        yield server
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _answers(server: ModelServer) -> bool:
    with contextlib.closing(server.connect()) as connection:
        try:
            connection.request("GET", "/ping")
            return connection.getresponse().status == 200
        except OSError:
            return False


def ask(connection: http.client.HTTPConnection, body: bytes) -> Any:
    """Send one request and return the predictions."""
    connection.request("POST", "/invocations", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = response.read()
    if response.status != 200:
        raise BertError(f"the server answered {response.status}: {answer[:300].decode(errors='replace')}")
    return json.loads(answer)["predictions"]


@dataclasses.dataclass(kw_only=True)
class Load:
    """What clients saw: the seconds of each request, over all rounds."""

    seconds: list[float] = dataclasses.field(default_factory=list)

    def percentile(self, share: float) -> float:
        """Milliseconds that this share of the requests stayed below."""
        ordered = sorted(self.seconds)
        return 1000.0 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    def __str__(self) -> str:
        median = 1000.0 * statistics.median(self.seconds)
        return f"p50 {median:.1f} ms, p99 {self.percentile(0.99):.1f} ms"


def measure_clients(server: ModelServer, bodies: Sequence[bytes], clients: int, seconds: float, load: Load) -> float:
    """Let clients ask one request after another for a while; returns requests a second, all clients together."""
    found: list[list[float]] = [[] for _ in range(clients)]
    problems: list[BaseException] = []
    started = time.perf_counter()

    def client(number: int) -> None:
        try:
            with contextlib.closing(server.connect()) as connection:
                index = number
                while not found[number] or time.perf_counter() - started < seconds:
                    before = time.perf_counter()
                    ask(connection, bodies[index % len(bodies)])
                    found[number].append(time.perf_counter() - before)
                    index += clients
        except (OSError, BertError) as error:
            problems.append(error)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise BertError(f"a client failed: {problems[0]}")
    taken = time.perf_counter() - started
    load.seconds += [value for values in found for value in values]
    return sum(map(len, found)) / taken
