"""Beam's portable mode as on a cluster: job server and worker pool in separate processes."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_JOB_SERVER = "apache_beam.runners.portability.local_job_service_main"
_WORKER_POOL = "apache_beam.runners.worker.worker_pool_main"
_START_SECONDS = 240


@contextlib.contextmanager
def portable_beam(directory: Path) -> Iterator[list[str]]:
    """Start both, yield the Beam options of a job on them, and kill both process groups."""
    job_port, pool_port = directory / "job-port", _free_port()
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(_running(directory, _JOB_SERVER, f"--port_file={job_port}"))
        pool = stack.enter_context(_running(directory, _WORKER_POOL, f"--service_port={pool_port}"))
        _wait_for(job_port.exists, server, directory)
        _wait_for(lambda: _answers(pool_port), pool, directory)
        yield [
            "--runner=PortableRunner",
            f"--job_endpoint=localhost:{job_port.read_text()}",
            "--environment_type=EXTERNAL",
            f"--environment_config=localhost:{pool_port}",
        ]


@contextlib.contextmanager
def _running(directory: Path, module: str, option: str) -> Iterator[subprocess.Popen[bytes]]:
    # The pool starts its workers as `python`: it has to be ours.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    with open(directory / f"{module.rpartition('.')[2]}.log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", module, option],
            cwd=directory,
            env={**os.environ, "PATH": path},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return int(listener.getsockname()[1])


def _answers(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("localhost", port)) == 0


def _wait_for(ready, process: subprocess.Popen[bytes], directory: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline:
            said = "\n".join(path.read_text()[-2000:] for path in sorted(directory.glob("*.log")))
            raise RuntimeError(f"{process.args} did not start: {said}")
        time.sleep(0.1)
