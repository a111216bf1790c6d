"""`python -m workflows.serve ui|code-server`: the Dagster and MLflow UIs of one home, or Dagster's code server."""

import argparse
import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from bert_pipeline.errors import BertError, UsageError
from workflows.lib.instance import (
    database_errors,
    end_abandoned_runs,
    fail_runs,
    open_instance,
    unfinished_runs_of,
)
from workflows.lib.resources import MLFLOW_ADDRESS_VARIABLE, BertHome
from workflows.lib.torchrun import ending_with_parent

LOG_TAIL_LINES = 30
ROOT = Path(__file__).resolve().parent.parent
CODE_HOST_VARIABLE = "DAGSTER_CODE_HOST"
"""Host name of the code server, as webserver and daemon know it; see deploy/workspace.yaml."""


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until interrupted; return 0 after Ctrl-C, or the exit code of a child that ended, at least 1."""
    arguments = build_parser().parse_args(argv)
    try:
        return serve_ui(arguments) if arguments.command == "ui" else serve_code(arguments)
    except BertError as error:
        print(f"workflows.serve: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:  # a full disk, a lock of another user
        print(f"workflows.serve: {error}", file=sys.stderr)
        return 1


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m workflows.serve",
        description="Serve the Dagster and MLflow UIs of one home, or run Dagster's code server.",
    )
    subparsers = parser.add_subparsers(dest="command", required=True)

    ui = subparsers.add_parser("ui", help="the UIs, on loopback", description=serve_ui.__doc__)
    ui.add_argument("--host", default="127.0.0.1", help="address to bind (default: %(default)s, this machine only)")
    ui.add_argument("--port", type=int, default=3000, help="port of the Dagster UI (default: %(default)s)")
    ui.add_argument("--mlflow-port", type=int, default=5000, help="port of the MLflow UI (default: %(default)s)")

    code = subparsers.add_parser("code-server", help="Dagster's code server", description=serve_code.__doc__)
    code.add_argument("--host", default="127.0.0.1", help="address to bind (default: %(default)s, this machine only)")
    code.add_argument("--port", type=int, default=4000, help="port (default: %(default)s)")
    code.add_argument(
        "--settling-seconds",
        type=float,
        default=75.0,
        help="how long after its start the runs of the former server are marked as failed: the daemon, which may try "
        "them again, looks for a server that was away once a minute (default: %(default)s)",
    )
    return parser


def serve_ui(arguments: argparse.Namespace) -> int:
    """Start the Dagster and MLflow UIs of one home; if either ends, the other is ended too.

    With MLFLOW_TRACKING_URI set to a server, start Dagster's alone.
    """
    home = BertHome()
    locks = home.path / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(locks / "ui.lock", blocking=False):
            return _serve_ui(home, arguments)
    except Timeout:
        raise UsageError(f"the UI of {home.path} is running already; end it first, or set another BERT_HOME") from None


def _serve_ui(home: BertHome, arguments: argparse.Namespace) -> int:
    arguments.port = free_port(arguments.host, arguments.port, "--port")
    if not home.is_served:
        arguments.mlflow_port = free_port(arguments.host, arguments.mlflow_port, "--mlflow-port")
    with database_errors(), open_instance(home) as instance:
        end_abandoned_runs(instance)
    home.apply_environment()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # the terminal is closed, and no `nohup` keeps this
        signal.signal(signal.SIGHUP, lambda *_: sys.exit(0))
    # A shell's background job ignores SIGINT and its children inherit that: Dagster could not be stopped then.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
    services = {"Dagster": (f"http://{host}:{arguments.port}", dagster_command(arguments))}
    if not home.is_served:
        address = f"http://{host}:{arguments.mlflow_port}"
        os.environ.setdefault(MLFLOW_ADDRESS_VARIABLE, address)
        os.environ.setdefault("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")
        # Every user of the machine can read a command line, and the URI of a database may hold a password.
        os.environ["MLFLOW_BACKEND_STORE_URI"] = home.tracking_uri
        services["MLflow"] = (address, mlflow_command(home, arguments))

    # Both write a line for each request and each tick, which only a failure makes worth reading.
    log = home.path / "ui.log"
    print(f"Starting {' and '.join(services)}; details in {log}", flush=True)
    if home.is_served:
        print(f"MLflow: {home.mlflow_address}", flush=True)
    with open(log, "w", encoding="utf-8") as output:
        # Each in a session of its own: Ctrl-C reaches this process only, which stops them in order.
        processes = {
            name: subprocess.Popen(command, cwd=ROOT, start_new_session=True, stdout=output, stderr=subprocess.STDOUT)
            for name, (_, command) in services.items()
        }
        try:
            _supervise(processes, {name: address for name, (address, _) in services.items()}, log)
        except KeyboardInterrupt:
            return 0
        finally:
            _stop(list(processes.values()))
    return max(1, *(process.returncode for process in processes.values()))  # a negative code is the signal sent


def free_port(host: str, port: int, option: str) -> int:
    """Return the port, or any free one for 0; UsageError if it is taken, with the process that holds it if known."""
    if not 0 <= port < 1 << 16:
        raise UsageError(f"{option} {port}: expected a port from 0, for any free one, to 65535")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a server that was ended may be bound for a minute
        try:
            probe.bind((host, port))
            return int(probe.getsockname()[1])
        except OSError as error:
            problem = error.strerror
    holder = ""
    with contextlib.suppress(psutil.Error):  # of another user, or on macOS
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                holder = f", held by process {connection.pid} ({psutil.Process(connection.pid).name()})"
    raise UsageError(f"port {port} of {host}: {problem}{holder}; free it, or give another with {option}")


def _supervise(processes: Mapping[str, "subprocess.Popen[bytes]"], addresses: Mapping[str, str], log: Path) -> None:
    """Print each address as soon as it answers; when a process ends by itself, print the end of the log and return.

    Dagster ends, with 0, if its webserver or its daemon was killed.
    """
    waiting = dict(addresses)
    while all(process.poll() is None for process in processes.values()):
        for name, address in list(waiting.items()):
            if _answers(address):
                del waiting[name]
                print(f"{name}: {address}", flush=True)
                if not waiting:
                    print("Ctrl-C ends what was started here.", flush=True)
        time.sleep(0.5)
    tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_TAIL_LINES:])
    ended = [f"{name} ended with {code}" for name, process in processes.items() if (code := process.poll()) is not None]
    print(f"{tail}\n{', '.join(ended)}; the lines above are the end of {log}", file=sys.stderr)


def _answers(address: str) -> bool:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy does not know this machine's ports
    try:
        with direct.open(address, timeout=5):
            return True
    except urllib.error.HTTPError:
        return True
    except (OSError, http.client.HTTPException):
        return False


def dagster_command(arguments: argparse.Namespace) -> list[str]:
    """Return the command line of Dagster's webserver and daemon: `dagster dev` starts both."""
    return [
        *(sys.executable, "-W", "ignore::UserWarning", "-m", "dagster", "dev"),
        *("-w", str(ROOT / "workspace.yaml"), "--host", arguments.host, "--port", str(arguments.port)),
    ]


def mlflow_command(home: BertHome, arguments: argparse.Namespace) -> list[str]:
    """Return the command line of MLflow's server; the environment names its database."""
    return [
        *(sys.executable, "-m", "mlflow", "server", "--workers", "1"),
        *("--default-artifact-root", home.artifacts.as_uri()),
        *("--host", arguments.host, "--port", str(arguments.mlflow_port)),
    ]


def serve_code(arguments: argparse.Namespace) -> int:
    """Run Dagster's code server, for an instance whose webserver and daemon run elsewhere.

    Runs are processes of the code server and end with it, for example when its container restarts. Dagster would show
    them as running, and keep their slot of the pool, until their time limit. The next server marks them as failed;
    jobs with retries start them again.
    """
    home = BertHome()
    arguments.port = free_port(arguments.host, arguments.port, "--port")
    # Listed before the start: afterwards the runs of the new server have the same address.
    with database_errors(), open_instance(home) as instance:
        left = unfinished_runs_of(instance, os.environ.get(CODE_HOST_VARIABLE) or "localhost", arguments.port)
    home.apply_environment()
    command = [
        *(sys.executable, "-m", "dagster", "api", "grpc", "--module-name", "workflows.definitions"),
        *("--host", arguments.host, "--port", str(arguments.port), "--location-name", "bert"),
    ]

    # A signal is passed on to the server, and this process waits for its end.
    server = subprocess.Popen(ending_with_parent(command))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, _: server.send_signal(received))

    # Not before the daemon has seen the new server: it could not start the runs again.
    if left and _has_settled(server, arguments.host, arguments.port, arguments.settling_seconds):
        with database_errors(), open_instance(home) as instance:
            for run_id in fail_runs(instance, left, "the code server that executed this run was ended"):
                print(f"run {run_id} had ended with the code server that executed it: marked as failed", flush=True)
    return server.wait()


def _stop(processes: Sequence["subprocess.Popen[bytes]"], grace_seconds: float = 15.0) -> None:
    """Interrupt each process group, and kill what remains after the grace period."""
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
    # One grace period for all processes together.
    deadline = time.monotonic() + grace_seconds
    for process in processes:
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _has_settled(server: "subprocess.Popen[bytes]", host: str, port: int, seconds: float) -> bool:
    """Wait until the server has listened for `seconds`; return False if it ends first."""
    address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # of all addresses one
    since = None
    while server.poll() is None:
        # The time counts from the first connection that succeeds.
        if since is None:
            with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=5):
                since = time.monotonic()
        elif time.monotonic() > since + seconds:
            return True
        time.sleep(0.5)
    return False


if __name__ == "__main__":
    sys.exit(main())
