"""A Beam cluster that shares nothing but a bucket: a job server, and workers on hosts of their own."""

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from network import Host, Network
from processes import Server

HERE = Path(__file__).parent
JOB_PORT, POOL_PORT, WORKER_PORT = 8099, 8100, 8101


class Cluster:
    """Job server and worker pools, each on its own host."""

    def __init__(self, network: Network, environment: Mapping[str, str], workers: int = 2) -> None:
        self.manager = network.host("jobs")
        self.workers = [network.host(f"worker-{number}") for number in range(workers)]
        self.pools = {host: self._pool(host, environment) for host in self.workers}
        pools = ",".join(f"{host.address}:{WORKER_PORT}" for host in self.workers)
        self.job_server = self.manager.server(
            "job-server",
            [
                sys.executable, str(HERE / "job_server.py"), f"--address={self.manager.address}",
                f"--port={JOB_PORT}", f"--pool-port={POOL_PORT}", f"--pools={pools}",
            ],
            environment,
        )  # fmt: skip

    def _pool(self, host: Host, environment: Mapping[str, str]) -> Server:
        command = [sys.executable, "-m", "bert_pipeline.beam.pool", f"--port={WORKER_PORT}"]
        return host.server("pool", command, environment)

    @property
    def endpoint(self) -> str:
        return f"{self.manager.address}:{JOB_PORT}"

    def options(self, workers: int | None = None) -> list[str]:
        """Return the Beam options of a job on this cluster."""
        return [
            "--runner=PortableRunner",
            f"--job_endpoint={self.endpoint}",
            "--environment_type=EXTERNAL",
            f"--environment_config={self.manager.address}:{POOL_PORT}",
            f"--direct_num_workers={workers or len(self.workers)}",
        ]

    def start(self) -> None:
        """Start what does not run; wait until it answers."""
        for host, pool in self.pools.items():
            start(pool, host.address, WORKER_PORT)
        start(self.job_server, self.manager.address, JOB_PORT)

    def signal_worker(self, host: Host, number: signal.Signals) -> int:
        """Send a signal to all harnesses of a host; return how many there were."""
        found = harnesses(host)
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)
        return len(found)


def harnesses(host: Host) -> list[int]:
    """Return the processes on a host that run a job's code."""
    return [process for process in host.processes() if b"import work" in command_line(process)]


def start(server: Server, address: str, port: int) -> None:
    if server.process is None or server.process.poll() is not None:
        server.process = None
        server.start()
    server.wait(lambda: is_open(address, port), 60)


def is_open(address: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=1):
        return True
    return False


def command_line(process: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes()
    return b""


def wait_until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


@contextlib.contextmanager
def once(condition: Callable[[], object], action: Callable[[], object]) -> Iterator[None]:
    """During the block, call `action` when `condition` is first true; AssertionError if it never was."""
    ended = threading.Event()
    acted: list[object] = []

    def watch() -> None:
        while not ended.wait(0.05):
            if condition():
                acted.append(action())
                return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    assert acted, "the block ended before the condition was true"
