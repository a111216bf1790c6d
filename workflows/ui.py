"""`python -m workflows.ui`: the Dagster and the MLflow UI of one home, on loopback, until interrupted."""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from workflows.lib.instance import open_instance
from workflows.lib.resources import MLFLOW_ADDRESS_VARIABLE, BertHome

ROOT = Path(__file__).resolve().parent.parent


def main(argv: Sequence[str] | None = None) -> int:
    """Start both UIs and wait; the end of either ends the other. Where MLflow is a server's, Dagster's alone."""
    parser = argparse.ArgumentParser(prog="python -m workflows.ui", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="address to bind (default: %(default)s, this machine only)")
    parser.add_argument("--port", type=int, default=3000, help="port of the Dagster UI (default: %(default)s)")
    parser.add_argument("--mlflow-port", type=int, default=5000, help="port of the MLflow UI (default: %(default)s)")
    arguments = parser.parse_args(argv)
    home = BertHome()
    open_instance(home).dispose()
    home.apply_environment()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    # A shell's background job ignores SIGINT and passes that on: Dagster could not be stopped then.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    commands = [dagster_command(arguments)]
    if not home.is_served:  # otherwise MLflow is a server's already
        os.environ.setdefault(MLFLOW_ADDRESS_VARIABLE, f"http://{arguments.host}:{arguments.mlflow_port}")
        os.environ.setdefault("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")
        os.environ["MLFLOW_BACKEND_STORE_URI"] = home.tracking_uri  # a command line is everyone's to read
        commands.append(mlflow_command(home, arguments))
    processes = [subprocess.Popen(command, cwd=ROOT, start_new_session=True) for command in commands]
    print(f"Dagster: http://{arguments.host}:{arguments.port}   MLflow: {home.mlflow_address}")
    print("Ctrl-C ends what was started here.", flush=True)
    try:
        while all(process.poll() is None for process in processes):
            time.sleep(0.5)
    except KeyboardInterrupt:
        pass
    finally:
        _end(processes)
    return max((process.returncode or 0) for process in processes) if _failed(processes) else 0


def dagster_command(arguments: argparse.Namespace) -> list[str]:
    """The command line of webserver and daemon: `dagster dev` starts both."""
    return [
        *(sys.executable, "-W", "ignore::UserWarning", "-m", "dagster", "dev"),
        *("-w", str(ROOT / "workspace.yaml"), "--host", arguments.host, "--port", str(arguments.port)),
    ]


def mlflow_command(home: BertHome, arguments: argparse.Namespace) -> list[str]:
    """The command line of MLflow's server, whose database stands in the environment."""
    return [
        *(sys.executable, "-m", "mlflow", "server", "--workers", "1"),
        *("--default-artifact-root", home.artifacts.as_uri()),
        *("--host", arguments.host, "--port", str(arguments.mlflow_port)),
    ]


def _failed(processes: Sequence["subprocess.Popen[bytes]"]) -> bool:
    return any((process.returncode or 0) > 0 for process in processes)


def _end(processes: Sequence["subprocess.Popen[bytes]"], grace_seconds: float = 15.0) -> None:
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
    deadline = time.monotonic() + grace_seconds
    for process in processes:
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
