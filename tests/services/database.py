"""A PostgreSQL server from Debian's package, in a temporary directory, on a free port of loopback."""

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from processes import Server, free_port

SERVER_USER = "postgres"
"""Who runs the server where the tests are root's: PostgreSQL refuses root. Debian's package makes the user."""


class Database:
    """Address, superuser password and programs of the server."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self.password = secrets.token_hex(12)

    def environment(self) -> dict[str, str]:
        """libpq's variables for the superuser."""
        return {
            "PATH": os.environ["PATH"],
            "PGHOST": "127.0.0.1",
            "PGPORT": str(self.port),
            "PGUSER": "postgres",
            "PGPASSWORD": self.password,
        }

    def run(self, program: str, *arguments: str, given: bytes | None = None, **variables: str) -> bytes:
        """Run one of PostgreSQL's programs, by default as the superuser; return its output."""
        result = subprocess.run(
            [str(programs() / program), *arguments],
            env=self.environment() | variables,
            input=given,
            capture_output=True,
            timeout=300,
        )
        assert result.returncode == 0, f"{program}: {result.stderr.decode()}"
        return result.stdout

    def is_ready(self) -> bool:
        return subprocess.run([str(programs() / "pg_isready"), "--quiet"], env=self.environment()).returncode == 0


def programs() -> Path:
    """Return the folder of PostgreSQL's programs; Debian keeps those of the server out of PATH."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[4]))
    found = debian[-1] if debian else shutil.which("initdb")
    assert found, "PostgreSQL is not installed: apt-get install postgresql"
    return Path(found).parent


@contextlib.contextmanager
def running_database(log: Path) -> Iterator[Database]:
    """Create a cluster, run it for the duration of the block, and remove it."""
    other = os.getuid() == 0
    # setpriv sets the parent-death signal again: the kernel forgets it when the user changes.
    as_user = ["setpriv", f"--reuid={SERVER_USER}", f"--regid={SERVER_USER}", "--init-groups", "--pdeathsig=INT", "--"]
    prefix = as_user if other else []
    with tempfile.TemporaryDirectory(prefix="bert-database-") as name:
        directory = Path(name)
        database = Database(directory)
        secret = directory / "password"
        secret.write_text(database.password, encoding="utf-8")
        if other:
            for path in (directory, secret):
                shutil.chown(path, SERVER_USER, SERVER_USER)
        subprocess.run(
            [
                *(*prefix, str(programs() / "initdb"), "--pgdata", str(directory / "data"), "--username", "postgres"),
                *("--auth", "scram-sha-256", "--pwfile", str(secret), "--encoding", "UTF8", "--locale", "C.UTF-8"),
                *("--no-sync",),
            ],
            check=True,
            capture_output=True,
            text=True,
            cwd=directory,
        )
        secret.unlink()
        settings = {"listen_addresses": "127.0.0.1", "port": str(database.port), "unix_socket_directories": ""}
        settings |= {"fsync": "off", "max_connections": "200"}
        command = [*prefix, str(programs() / "postgres"), "-D", str(directory / "data")]
        for key, value in settings.items():
            command += ["-c", f"{key}={value}"]
        server = Server("postgres", command, database.environment(), log, directory=directory)
        server.start()
        try:
            server.wait(database.is_ready)
            yield database
        finally:
            server.stop(signal.SIGINT)  # fast: sessions that are open are ended
