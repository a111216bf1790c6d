"""A Slurm cluster of two nodes on this machine, from Debian's packages, in a temporary directory."""

import contextlib
import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from processes import Server, free_port

NODES = ("127.0.0.1", "127.0.0.2")
"""Names of the nodes: the script passes a node's name to torchrun, and these need no entry in /etc/hosts."""

# A requeued job waits until the credentials of its last start have expired, by default two minutes.
CONFIGURATION = Path(__file__).with_name("slurm.conf").read_text(encoding="utf-8")


class Cluster:
    """Commands on the running cluster."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)

    def run(self, program: str, *arguments: str, **variables: str) -> str:
        """Run one of Slurm's programs; return its output."""
        result = subprocess.run(
            [program, *arguments], env=self.environment | variables, capture_output=True, text=True, timeout=60
        )
        assert result.returncode == 0, f"{program} {arguments}: {result.stderr}"
        return result.stdout.strip()

    def job(self, job_id: str) -> dict[str, str]:
        """Return the fields of a job that `scontrol show job` prints."""
        words = self.run("scontrol", "show", "job", job_id).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def is_ready(self) -> bool:
        result = subprocess.run(
            ["sinfo", "--noheader", "--Node", "--partition=main", "--format=%T"],
            env=self.environment,
            capture_output=True,
            text=True,
        )
        return result.stdout.split() == ["idle"] * len(NODES)


def daemon(name: str) -> str:
    """Return the path of a daemon; Debian keeps them in a folder that only root has in its PATH."""
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
    assert found, "Slurm is not installed: apt-get install slurm-wlm munge"
    return found


@contextlib.contextmanager
def running_cluster(logs: Path) -> Iterator[Cluster]:
    """Start the authentication service, the controller and two nodes of 16 processors for the duration of the block."""
    with tempfile.TemporaryDirectory(prefix="bert-slurm-") as name:  # the path of a socket is limited to 107 characters
        directory = Path(name)
        key = directory / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        host = socket.gethostname()
        values = {"host": host, "user": pwd.getpwuid(os.getuid()).pw_name, "directory": name, "port": free_port()}
        lines = [
            f"NodeName={node} NodeAddr={node} NodeHostname={host} Port={free_port()} CPUs=16 State=UNKNOWN"
            for node in NODES
        ]
        configuration = directory / "slurm.conf"
        configuration.write_text(CONFIGURATION.format(**values) + "\n".join(lines) + "\n", encoding="utf-8")
        for folder in ("state", *(f"spool-{node}" for node in NODES)):
            (directory / folder).mkdir()

        environment = os.environ | {"SLURM_CONF": str(configuration)}
        files = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munged.pid", "seed-file": "munge.seed"}
        munge = [f"--{option}={directory / file}" for option, file in files.items()]
        commands = {
            "munged": [daemon("munged"), "--foreground", "--force", *munge],
            "slurmctld": [daemon("slurmctld"), "-D"],
            **{f"slurmd-{node}": [daemon("slurmd"), "-D", "-N", node] for node in NODES},
        }
        servers = {
            name: Server(name, command, environment, logs / f"{name}.log", directory=directory)
            for name, command in commands.items()
        }
        cluster = Cluster(environment)
        try:
            for name, server in servers.items():
                server.start()
                if name == "munged":
                    server.wait((directory / "munge.socket").is_socket, 60)
            servers["slurmctld"].wait(cluster.is_ready, 60)
            yield cluster
        finally:
            with contextlib.suppress(
                AssertionError, subprocess.TimeoutExpired
            ):  # jobs outlive the daemons of the nodes
                cluster.run("scancel", "--user", values["user"])
                servers["slurmctld"].wait(cluster.is_ready, 60)
            for server in reversed(servers.values()):
                server.stop()
