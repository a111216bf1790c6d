"""Two hosts on this machine: network namespaces joined by a cable that can be pulled. Needs root and iproute2."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from processes import Server

INTERFACE = "bert0"


@dataclass(frozen=True)
class Host:
    """A network namespace with one interface besides loopback."""

    name: str
    address: str

    def set_link(self, state: str) -> None:
        """Connect ("up") or disconnect ("down") the host: packets are lost, no connection is closed."""
        ip("-netns", self.name, "link", "set", INTERFACE, state)

    def server(self, command: list[str], environment: dict[str, str], log: Path) -> Server:
        """Return a process on this host, to be started."""
        environment = environment | {"GLOO_SOCKET_IFNAME": INTERFACE}
        return Server(self.name, [_ip(), "netns", "exec", self.name, *command], environment, log)


def ip(*arguments: str) -> None:
    """Run iproute2's `ip`."""
    result = subprocess.run([_ip(), *arguments], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, f"ip {' '.join(arguments)}: {result.stderr}"


def _ip() -> str:
    found = shutil.which("ip", path=f"{os.environ['PATH']}:/usr/sbin")
    assert found, "iproute2 is not installed: apt-get install iproute2"
    return found


@contextlib.contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Make two hosts that reach each other, and nothing else, for the duration of the block."""
    first, second = (Host(f"bert-{os.getpid()}-{number}", f"10.77.0.{number}") for number in (1, 2))
    with contextlib.ExitStack() as stack:
        for host in (first, second):
            ip("netns", "add", host.name)
            stack.callback(ip, "netns", "delete", host.name)
        peer = ["peer", "name", INTERFACE, "netns", second.name]
        ip("link", "add", INTERFACE, "netns", first.name, "type", "veth", *peer)
        for host in (first, second):
            ip("-netns", host.name, "address", "add", f"{host.address}/24", "dev", INTERFACE)
            ip("-netns", host.name, "link", "set", "lo", "up")
            host.set_link("up")
        yield first, second


def torchrun(hosts: tuple[Host, ...], rank: int, port: int, *arguments: str) -> list[str]:
    """Return the command that starts this rank on its host, one of a rank each, as deploy/kubernetes.yaml does."""
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        f"--nnodes={len(hosts)}",
        f"--node-rank={rank}",
        "--nproc-per-node=1",
        "--max-restarts=0",
        f"--master-addr={hosts[0].address}",
        f"--master-port={port}",
        "-m",
        "bert_model.pretraining",
        *arguments,
    ]
