"""Hosts on one machine: network namespaces joined by a bridge, each with its own empty disk.

Without the rights for it, a host is an address of loopback and a directory: `Network.separate` is False, and links
cannot be cut.
"""

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from processes import Server

ROOT = Path(__file__).parents[2]
ISOLATE = Path(__file__).with_name("isolate.sh")
INTERFACE = "eth0"
"""A host's end of its cable."""


class Host:
    """A host: processes that are started on it share its address and nothing else with other hosts."""

    def __init__(self, network: "Network", name: str, address: str) -> None:
        self.network = network
        self.name = name
        self.address = address
        self.namespace = f"{network.prefix}-{name}"
        self.link = f"{network.prefix}{address.rpartition('.')[2]}"
        """Our end of its cable: pulled by `cut`."""
        self.directory = network.directory / name
        self.directory.mkdir()
        self._servers: list[Server] = []

    def server(
        self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None, *, image: bool = True
    ) -> Server:
        """Return a server that runs on this host, not started yet.

        With `image` it sees the checkout and the interpreter read-only, and an empty /tmp; without, the disk of this
        machine.
        """
        home = "/tmp" if self.network.separate and image else str(self.directory)
        variables = {
            "PATH": f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin",
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "HOME": home,
            "TMPDIR": home,
            "GRPC_ENABLE_FORK_SUPPORT": "0",
            **(environment or {}),
        }
        words = list(command)
        if self.network.separate:
            if image:
                images = {str(ROOT), str(ROOT.resolve()), sys.prefix, os.path.realpath(sys.prefix), sys.base_prefix}
                words = [
                    "unshare",
                    "--mount",
                    "--pid",
                    "--fork",
                    "--kill-child",
                    str(ISOLATE),
                    *sorted(images),
                    "--",
                    *words,
                ]
            words = ["ip", "netns", "exec", self.namespace, *words]
        server = Server(
            f"{name} on {self.name}", words, variables, self.network.logs / f"{self.name}-{name}.log", directory=ROOT
        )
        self._servers.append(server)
        return server

    def cut(self) -> None:
        """Pull the cable: packets get lost in silence, and no process ends."""
        _run("ip", "link", "set", self.link, "down")

    def reconnect(self) -> None:
        _run("ip", "link", "set", self.link, "up")

    def processes(self) -> list[int]:
        """Return the ids of all processes on this host."""
        text = _run("ip", "netns", "pids", self.namespace)
        return [int(word) for word in text.split()]

    def stop(self) -> None:
        for server in self._servers:
            server.kill()
        if self.network.separate:
            with contextlib.suppress(subprocess.CalledProcessError):  # the namespace is gone
                for process in self.processes():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)


class Network:
    """A bridge with hosts. The tests' own process is the gateway: every host reaches it, and nothing beyond."""

    def __init__(self, directory: Path, logs: Path, *, separate: bool, subnet: str, prefix: str) -> None:
        self.directory = directory
        self.logs = logs
        self.separate = separate
        self.prefix = prefix
        self.bridge = f"{prefix}br"
        self._subnet = subnet
        self._numbers = itertools.count(2)
        self.hosts: list[Host] = []

    @property
    def gateway(self) -> str:
        """The address of this process on the network."""
        return f"{self._subnet}.1"

    def host(self, name: str) -> Host:
        """Add a host; its namespace is removed with the network."""
        host = Host(self, name, f"{self._subnet}.{next(self._numbers)}")
        self.hosts.append(host)
        if self.separate:
            namespace, inner = host.namespace, f"{host.link}i"
            _run("ip", "netns", "add", namespace)
            _run("ip", "link", "add", host.link, "type", "veth", "peer", "name", inner)
            _run("ip", "link", "set", inner, "netns", namespace, "name", INTERFACE)
            _run("ip", "link", "set", host.link, "master", self.bridge, "up")
            inside = ["ip", "-netns", namespace]
            _run(*inside, "address", "add", f"{host.address}/24", "dev", INTERFACE)
            _run(*inside, "link", "set", INTERFACE, "up")
            _run(*inside, "link", "set", "lo", "up")
        return host

    def close(self) -> None:
        for host in self.hosts:
            host.stop()
        if self.separate:
            for host in self.hosts:
                subprocess.run(["ip", "link", "delete", host.link], capture_output=True)
                subprocess.run(["ip", "netns", "delete", host.namespace], capture_output=True)
            subprocess.run(["ip", "link", "delete", self.bridge], capture_output=True)


@contextlib.contextmanager
def running_network(logs: Path) -> Iterator[Network]:
    """Set up a network without hosts; hosts, their processes and their disks go with the block."""
    with tempfile.TemporaryDirectory(prefix="bert-net-") as name:
        prefix = f"bt{os.getpid() % 1_000_000}"  # names of links have at most 15 characters
        network = Network(Path(name), logs, separate=False, subnet="127.83.0", prefix=prefix)
        if subnet := _create_bridge(network.bridge):
            network = Network(Path(name), logs, separate=True, subnet=subnet, prefix=prefix)
        try:
            yield network
        finally:
            network.close()


def _create_bridge(name: str) -> str:
    """Create a bridge with an address in a free subnet; return the subnet, "" if this process may not."""
    if not shutil.which("ip") or not shutil.which("unshare") or os.geteuid() != 0:
        return ""
    taken = _run("ip", "-4", "address") + _run("ip", "-4", "route")
    numbers = ((os.getpid() + number) % 256 for number in range(256))  # two test processes ask at the same time
    subnet = next(found for number in numbers if f"{(found := f'10.83.{number}')}." not in taken)
    try:
        _run("ip", "link", "add", name, "type", "bridge")
        _run("ip", "address", "add", f"{subnet}.1/24", "dev", name)
        _run("ip", "link", "set", name, "up")
        _run("ip", "netns", "add", f"{name}-probe")
        _run("ip", "netns", "delete", f"{name}-probe")
        _run("unshare", "--mount", "--pid", "--fork", "true")
    except subprocess.CalledProcessError:
        subprocess.run(["ip", "link", "delete", name], capture_output=True)
        return ""
    return subnet


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
