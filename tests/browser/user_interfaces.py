"""`python -m workflows.serve ui` over a home on free ports."""

import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "services"))
sys.path.insert(0, str(Path(__file__).parent.parent / "workflows"))

import miniature
from processes import Server, free_port


@dataclass(frozen=True, kw_only=True)
class UserInterfaces:
    """Addresses of the two UIs."""

    dagster: str
    mlflow: str


@contextmanager
def running_user_interfaces(
    home: Path, log: Path, settings: Mapping[str, str] | None = None
) -> Iterator[UserInterfaces]:
    """Run Dagster and MLflow over `home` for the duration of the block; wait until both answer."""
    dagster_port, mlflow_port = free_port(), free_port()
    server = Server(
        "workflows.serve",
        [sys.executable, "-m", "workflows.serve", "ui", "--port", str(dagster_port), "--mlflow-port", str(mlflow_port)],
        {**miniature.environment(home), **(settings or {})},
        log,
        directory=miniature.ROOT,
    )
    addresses = UserInterfaces(dagster=f"http://127.0.0.1:{dagster_port}", mlflow=f"http://127.0.0.1:{mlflow_port}")
    server.start()
    try:
        server.wait(lambda: answers(f"{addresses.dagster}/server_info") and answers(f"{addresses.mlflow}/health"), 240)
        yield addresses
    finally:
        server.stop()


def answers(address: str) -> bool:
    """Return whether an address answers with status 200."""
    try:
        with urllib.request.urlopen(address, timeout=10) as response:
            return bool(response.status == 200)
    except OSError:
        return False
