"""`python -m workflows.code_server`: Dagster's code server, for an instance whose webserver and daemon run elsewhere.

Runs are processes of the code server and end with it, as when its container is restarted. Dagster would show them as
running, and keep their pool's slot, until their time limit: the next server marks them as failed, and those whose job
asks for retries go on by themselves.
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

import dagster as dg

from workflows.lib.instance import open_instance
from workflows.lib.resources import BertHome
from workflows.lib.torchrun import ending_with_parent

HOST_VARIABLE = "DAGSTER_CODE_HOST"
"""The name by which webserver and daemon know the code server; see deploy/workspace.yaml."""
GRPC_TAG = ".dagster/grpc_info"
"""Tag in which Dagster keeps the address of the code server that executes a run."""
UNFINISHED = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]


def main(argv: Sequence[str] | None = None) -> int:
    """Run Dagster's server until it ends; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m workflows.code_server", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="address to bind (default: %(default)s, this machine only)")
    parser.add_argument("--port", type=int, default=4000, help="port (default: %(default)s)")
    parser.add_argument(
        "--settling-seconds",
        type=float,
        default=75.0,
        help="how long after its start the runs of the former server are marked as failed: the daemon, which may try "
        "them again, looks for a server that was away once a minute (default: %(default)s)",
    )
    arguments = parser.parse_args(argv)
    home = BertHome()
    with open_instance(home) as instance:
        left = runs_of_server(instance, os.environ.get(HOST_VARIABLE) or "localhost", arguments.port)
    home.apply_environment()
    command = [
        *(sys.executable, "-m", "dagster", "api", "grpc", "--module-name", "workflows.definitions"),
        *("--host", arguments.host, "--port", str(arguments.port), "--location-name", "bert"),
    ]
    server = subprocess.Popen(ending_with_parent(command))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, _: server.send_signal(received))
    if left and _has_settled(server, arguments.port, arguments.settling_seconds):
        with open_instance(home) as instance:
            for run_id in end_runs(instance, left):
                print(f"run {run_id} had ended with the code server that executed it: marked as failed", flush=True)
    return server.wait()


def runs_of_server(instance: dg.DagsterInstance, host: str, port: int) -> list[str]:
    """The unfinished runs of the code server that had this address.

    Its processes have to be gone with it: a container's are, and those of a systemd unit.
    """
    found = []
    for run in instance.get_runs(filters=dg.RunsFilter(statuses=UNFINISHED)):
        server = json.loads(run.tags.get(GRPC_TAG, "{}"))
        if (server.get("host"), server.get("port")) == (host, port):
            found.append(run.run_id)
    return found


def end_runs(instance: dg.DagsterInstance, run_ids: Sequence[str]) -> list[str]:
    """Mark those of the runs that have not ended otherwise as failed; returns their ids."""
    ended = []
    for run in instance.get_runs(filters=dg.RunsFilter(run_ids=run_ids, statuses=UNFINISHED)):
        instance.report_run_failed(run, "the code server that executed this run was ended")
        ended.append(run.run_id)
    return ended


def _has_settled(server: "subprocess.Popen[bytes]", port: int, seconds: float) -> bool:
    """Wait until the server has listened for so long; False when it ends before."""
    since = None
    while server.poll() is None:
        if since is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
                since = time.monotonic()
        elif time.monotonic() > since + seconds:
            return True
        time.sleep(0.5)
    return False


if __name__ == "__main__":
    sys.exit(main())
