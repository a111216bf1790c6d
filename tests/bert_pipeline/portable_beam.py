"""Beam's portable mode as on a cluster: job server and worker pool in separate processes."""

import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from processes import Server, free_port

_JOB_SERVER = "apache_beam.runners.portability.local_job_service_main"
_WORKER_POOL = "apache_beam.runners.worker.worker_pool_main"


@contextlib.contextmanager
def portable_beam(directory: Path) -> Iterator[list[str]]:
    """Start both, yield the Beam options of a job on them, and kill both process groups."""
    job_port, pool_port = directory / "job-port", free_port()
    # The pool starts its workers as `python`: it has to be ours.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    server, pool = (
        Server(
            module.rpartition(".")[2],
            [sys.executable, "-m", module, option],
            {**os.environ, "PATH": path},
            directory / f"{module.rpartition('.')[2]}.log",
            directory=directory,
        )
        for module, option in ((_JOB_SERVER, f"--port_file={job_port}"), (_WORKER_POOL, f"--service_port={pool_port}"))
    )
    with contextlib.ExitStack() as stack:
        for program in (server, pool):
            stack.callback(program.kill)
            program.start()
        server.wait(job_port.exists)
        pool.wait(lambda: _answers(pool_port))
        yield [
            "--runner=PortableRunner",
            f"--job_endpoint=localhost:{job_port.read_text()}",
            "--environment_type=EXTERNAL",
            f"--environment_config=localhost:{pool_port}",
        ]


def _answers(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("localhost", port)) == 0
