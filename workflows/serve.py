"""`python -m workflows.serve ui|code-server`: the Dagster and MLflow UIs of one home, or Dagster's code server."""

import argparse
import contextlib
import dataclasses
import functools
import http.client
import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import psutil

from bert_model.training.home import settle
from bert_pipeline.atomic import locked
from bert_pipeline.errors import UsageError, exit_code_of
from bert_pipeline.parent import start
from bert_pipeline.signals import handling
from workflows.lib.instance import database_errors, end_abandoned_runs, fail_runs, open_instance, unfinished_runs
from workflows.lib.processes import ROOT, holder_of_port, wait_for_left_over
from workflows.lib.resources import CODE_LOCATION, MLFLOW_ADDRESS_VARIABLE, BertHome

LOG_TAIL_LINES = 30
LAST_ANSWERS_SECONDS = 5.0
"""How long a code server may answer what it was asked before it was told to end."""
SETTLED_SECONDS = 20.0
"""A service that ends sooner is not started again."""
CODE_HOST_VARIABLE = "DAGSTER_CODE_HOST"
"""Host name of the code server, as webserver and daemon know it; see deploy/workspace.yaml."""


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until interrupted; return 0 after Ctrl-C, or the exit code of a child that ended, at least 1."""
    arguments = build_parser().parse_args(argv)
    serve = serve_ui if arguments.command == "ui" else serve_code
    return exit_code_of(functools.partial(serve, arguments), "workflows.serve")


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m workflows.serve",
        description="Serve the Dagster and MLflow UIs of one home, or run Dagster's code server.",
    )
    subparsers = parser.add_subparsers(dest="command", required=True)

    ui = subparsers.add_parser("ui", help="the UIs, on loopback", description=serve_ui.__doc__)
    ui.add_argument("--host", default="127.0.0.1", help="address to bind (default: %(default)s, this machine only)")
    ui.add_argument(
        "--without-login",
        action="store_true",
        help="serve on an address that other machines reach: all who reach it run code here",
    )
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
    """Start the Dagster and MLflow UIs of one home. What ends by itself is started again, unless it has just begun.

    With MLFLOW_TRACKING_URI set to a server, start Dagster's alone.
    """
    if not arguments.without_login and not is_loopback(arguments.host):
        raise UsageError(
            f"--host {arguments.host}: other machines reach it, and the UIs run code for all who do, without a login; "
            'see "Put it behind nginx" in docs/operations.md, or give --without-login'
        )
    home = BertHome()
    home.path.mkdir(parents=True, exist_ok=True)
    settle(home.path)  # before its lock is taken
    busy = UsageError(f"the UI of {home.path} is running already; end it first, or set another BERT_HOME")
    lock = locked(home.path / "locks" / "ui.lock", wait=0, busy=busy)
    exits = handling(signal.default_int_handler, lambda *_: sys.exit(0))
    with lock, exits, tempfile.TemporaryDirectory(prefix="bert-ui-") as folder:
        return _serve_ui(home, arguments, Path(folder))


def _serve_ui(home: BertHome, arguments: argparse.Namespace, folder: Path) -> int:
    wait_for_left_over(home.path, lambda message: print(message, flush=True))
    arguments.port = free_port(arguments.host, arguments.port, "--port")
    if not home.is_served:
        arguments.mlflow_port = free_port(arguments.host, arguments.mlflow_port, "--mlflow-port")
    with database_errors(), open_instance(home) as instance:
        end_abandoned_runs(instance)
    home.apply_environment()
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # the terminal is closed, and no `nohup` keeps this
        signal.signal(signal.SIGHUP, lambda *_: sys.exit(0))
    services = ui_services(home, arguments, folder)

    # They write a line for each request and each tick, which only a failure makes worth reading.
    log = home.path / "ui.log"
    print(f"Starting Dagster{'' if home.is_served else ' and MLflow'}; details in {log}", flush=True)
    if home.is_served:
        print(f"MLflow: {home.mlflow_address}", flush=True)
    with open(log, "w", encoding="utf-8") as output:
        try:
            _supervise(services, output)
        except KeyboardInterrupt:
            return 0
        finally:
            _stop([service.process for service in services if service.process is not None])
    ended = [service.process.returncode for service in services if service.process is not None]
    return max(1, *ended)  # a negative code is the signal sent


@dataclasses.dataclass(kw_only=True)
class Service:
    """One of the programs behind the UIs. Each is in a session of its own: Ctrl-C reaches this process only."""

    name: str
    command: list[str]
    address: str = ""
    """What a user opens; without one the service has no page."""
    socket: Path | None = None
    """Where it listens if it has no page."""
    after: "Service | None" = None
    """The service that has to answer before this one starts, and with which it is started again."""
    process: "subprocess.Popen[bytes] | None" = None
    started: float = 0.0
    answers: bool = False

    def has_ended(self) -> bool:
        """Return whether its process, or the one that a code server loads the code in, has ended."""
        if self.process is None or self.process.poll() is not None:
            return self.process is not None
        if self.socket is None or not self.answers:
            return False
        with contextlib.suppress(psutil.Error):
            children = psutil.Process(self.process.pid).children()
            return all(child.status() == psutil.STATUS_ZOMBIE for child in children)
        return False

    def end(self, number: signal.Signals) -> None:
        """Send a signal to its process and to all that this has started; those of a code server are runs."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)


def ui_services(home: BertHome, arguments: argparse.Namespace, folder: Path) -> list[Service]:
    """Return the services of the UIs, MLflow's only if no server holds runs and registry."""
    names = names_of(arguments.host)
    # A code server of its own, as `dagster dev` has, loads the code again in another process when the UI asks for it.
    server = folder / "code.socket"
    workspace = folder / "workspace.yaml"
    location = {"grpc_server": {"socket": str(server), "location_name": CODE_LOCATION}}
    workspace.write_text(json.dumps({"load_from": [location]}), encoding="utf-8")
    code_words = ["--module-name", "workflows.definitions", "--working-directory", str(ROOT)]
    code_words += ["--location-name", CODE_LOCATION]
    code = Service(
        name="code server",
        command=_module("dagster", "code-server", "start", "--socket", str(server), *code_words),
        socket=server,
    )
    page = ["--host", arguments.host, "--port", str(arguments.port), "--live-data-poll-rate", "2000"]
    services = [
        code,
        Service(
            name="Dagster",
            command=_module("dagster_webserver", "--workspace", str(workspace), *page),
            address=f"http://{names[0]}:{arguments.port}",
            after=code,
        ),
        Service(name="daemon", command=_module("dagster._daemon", "run", "--workspace", str(workspace)), after=code),
    ]
    if not home.is_served:
        address = f"http://{names[0]}:{arguments.mlflow_port}"
        os.environ.setdefault(MLFLOW_ADDRESS_VARIABLE, address)
        os.environ.setdefault("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        # Every user of the machine can read a command line, and the URI of a database may hold a password.
        os.environ["MLFLOW_BACKEND_STORE_URI"] = home.tracking_uri
        words = ["--workers", "1", "--default-artifact-root", home.artifacts.as_uri()]
        page = ["--host", arguments.host, "--port", str(arguments.mlflow_port)]
        if not is_loopback(arguments.host):  # of other names MLflow answers neither Host nor Origin
            at = [f"{name}:{arguments.mlflow_port}" for name in names]
            page += ["--allowed-hosts", ",".join(at)]
            page += ["--cors-allowed-origins", ",".join(f"http://{name}" for name in at)]
        services.append(Service(name="MLflow", command=_module("mlflow", "server", *words, *page), address=address))
    return services


def _module(*words: str) -> list[str]:
    """Return the command line of a Python module."""
    return [sys.executable, "-m", *words]


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def names_of(host: str) -> list[str]:
    """Return the names, as in URLs, by which browsers reach a server bound to an address; the best one first."""
    names = [host]
    if host in ("0.0.0.0", "::"):
        families = (socket.AF_INET, socket.AF_INET6)
        addresses = [item for items in psutil.net_if_addrs().values() for item in items if item.family in families]
        names = sorted((item.address.partition("%")[0] for item in addresses), key=is_loopback)
        with contextlib.suppress(OSError):
            socket.getaddrinfo(socket.gethostname(), None)
            names = [socket.gethostname(), *names, "localhost"]
    return [f"[{name}]" if ":" in name else name for name in names]


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
    holder = holder_of_port(port)
    holder = f", held by {holder}" if holder else ""
    raise UsageError(f"port {port} of {host}: {problem}{holder}; free it, or give another with {option}")


def _supervise(services: Sequence[Service], log: TextIO) -> None:
    """Print each address as soon as it answers; start again what ends by itself.

    If a service ends that has hardly begun, starting it again would not help: print the end of the log and return.
    """
    while True:
        for service in services:
            if service.process is None:
                if service.after is None or service.after.answers:
                    service.process = start(service.command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
                    service.started = time.monotonic()
            elif service.has_ended():
                code = service.process.poll()
                ended = f"{service.name} ended" if code is None else f"{service.name} ended with {code}"
                if time.monotonic() < service.started + SETTLED_SECONDS:
                    lines = Path(log.name).read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_TAIL_LINES:]
                    tail = "\n".join(lines)
                    print(f"{tail}\n{ended}; the lines above are the end of {log.name}", file=sys.stderr)
                    return
                print(f"{ended}, and is started again; details in {log.name}", file=sys.stderr, flush=True)
                # The daemon goes first: it would give up the runs that fail while there is no code server.
                for other in services:
                    if other.after is service:
                        other.end(signal.SIGKILL)
                        other.process, other.answers = None, False
                # Runs save and end; they are tried again by the new daemon, or say how to continue.
                if service.socket is not None:
                    service.process.kill()
                service.end(signal.SIGKILL if service.socket is None else signal.SIGTERM)
                service.process.wait()
                service.process, service.answers = None, False
            elif not service.answers and _answers(service):
                service.answers = True
                if service.address:
                    print(f"{service.name}: {service.address}", flush=True)
                if all(other.answers for other in services):
                    print("Ctrl-C ends what was started here.", flush=True)
        time.sleep(0.5)


def _answers(service: Service) -> bool:
    if service.socket is not None:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(service.socket))
            return True
        return False
    if not service.address:
        return True
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy does not know this machine's ports
    try:
        with direct.open(service.address, timeout=5):
            return True
    except urllib.error.HTTPError:
        return True
    except (OSError, http.client.HTTPException):
        return False


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
        left = unfinished_runs(instance, (os.environ.get(CODE_HOST_VARIABLE) or "localhost", arguments.port))
    home.apply_environment()
    words = ["--host", arguments.host, "--port", str(arguments.port), "--location-name", CODE_LOCATION]
    command = _module("dagster", "api", "grpc", "--module-name", "workflows.definitions", *words)

    # A signal is passed on to the server. It waits for its runs, and these save and end only once it is gone.
    server = start(command, start_new_session=False)

    def end(received: int, _: object) -> None:
        server.send_signal(received)
        killing = threading.Timer(LAST_ANSWERS_SECONDS, server.kill)
        killing.daemon = True
        killing.start()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)

    # Not before the daemon has seen the new server: it could not start the runs again.
    if left and _has_settled(server, arguments.host, arguments.port, arguments.settling_seconds):
        with database_errors(), open_instance(home) as instance:
            for run_id in fail_runs(instance, left, "the code server that executed this run was ended"):
                print(f"run {run_id} had ended with the code server that executed it: marked as failed", flush=True)
    code = server.wait()
    wait_for_left_over(home.path, lambda message: print(message, flush=True))  # a container ends with this process
    return code


def _stop(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Interrupt each process group, and kill what remains after the grace period."""
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
    # One grace period for all processes together.
    deadline = time.monotonic() + 15.0
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
