"""Ceph's S3 server from Debian's packages, with one monitor and one disk, in a temporary directory."""

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from processes import Server, free_port

BUCKET = "bert-test"

CONFIGURATION = Path(__file__).with_name("ceph.conf").read_text(encoding="utf-8")

# Name of a daemon, and what it may do in monitor and disk.
CAPABILITIES = {
    "mon.": ("allow *", ""),
    "client.admin": ("allow *", "allow *"),
    "client.rgw": ("allow *", "allow *"),
    "osd.0": ("allow profile osd", "allow *"),
}


@dataclass(frozen=True)
class ObjectStore:
    """Address and credentials of a running server, and its administration."""

    address: str
    key: str
    secret: str
    configuration: Path

    def admin(self, *arguments: str) -> str:
        """Run radosgw-admin; return its output."""
        return run(self.configuration, "radosgw-admin", *arguments)

    def new_credentials(self) -> tuple[str, str]:
        """Return a further key and secret of the user; `revoke` makes them invalid."""
        key, secret = secrets.token_hex(8), secrets.token_hex(16)
        self.admin("key", "create", "--uid", "bert", "--access-key", key, "--secret", secret)
        return key, secret

    def revoke(self, key: str) -> None:
        self.admin("key", "rm", "--uid", "bert", "--access-key", key)

    def objects(self) -> int:
        """Return the number of objects in the bucket, uploads that were not completed included."""
        usage = json.loads(self.admin("bucket", "stats", "--bucket", BUCKET))["usage"]
        return sum(category["num_objects"] for category in usage.values())


def run(configuration: Path, program: str, *arguments: str) -> str:
    found = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin")
    assert found, "Ceph is not installed: apt-get install ceph-mon ceph-osd ceph-common radosgw"
    result = subprocess.run(
        [found, *arguments],
        env=os.environ | {"CEPH_CONF": str(configuration)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, f"{program} {arguments}: {result.stderr}"
    return result.stdout


@contextlib.contextmanager
def running_store(logs: Path) -> Iterator[ObjectStore]:
    """Start monitor, disk and S3 gateway on loopback for the duration of the block."""
    with tempfile.TemporaryDirectory(prefix="bert-ceph-") as name:  # the path of a socket is limited to 107 characters
        directory = Path(name)
        fsid, disk = str(uuid.uuid4()), str(uuid.uuid4())
        monitor, gateway = free_port(), free_port()
        configuration = directory / "ceph.conf"
        text = CONFIGURATION.format(directory=directory, fsid=fsid, monitor=monitor, gateway=gateway)
        configuration.write_text(text, encoding="utf-8")
        for folder in ("mon", "osd"):
            (directory / folder).mkdir()

        # The monitor, with the keys of all daemons.
        keyring = str(directory / "keyring")
        (directory / "keyring").touch(mode=0o600)
        for daemon, (in_monitor, on_disk) in CAPABILITIES.items():
            rights = ["--cap", "mon", in_monitor, *(["--cap", "osd", on_disk] if on_disk else [])]
            run(configuration, "ceph-authtool", keyring, "--gen-key", "-n", daemon, *rights)
        map_file = str(directory / "monmap")
        addresses = ["--addv", "a", f"[v2:127.0.0.1:{monitor}/0]"]
        run(configuration, "monmaptool", "--create", "--fsid", fsid, *addresses, map_file)
        run(configuration, "ceph-mon", "--mkfs", "-i", "a", "--monmap", map_file, "--keyring", keyring)

        environment = os.environ | {"CEPH_CONF": str(configuration)}
        commands = {
            "monitor": ["ceph-mon", "-f", "-i", "a"],
            "disk": ["ceph-osd", "-f", "-i", "0"],
            "gateway": ["radosgw", "-f", "-n", "client.rgw"],
        }
        servers = {
            name: Server(name, command, environment, logs / f"ceph-{name}.log") for name, command in commands.items()
        }
        address = f"http://127.0.0.1:{gateway}"
        try:
            servers["monitor"].start()
            run(configuration, "ceph", "--connect-timeout", "30", "osd", "new", disk, "0")
            run(configuration, "ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", disk)
            servers["disk"].start()
            servers["gateway"].start()
            servers["gateway"].wait(lambda: answers(address), 120)
            key, secret = secrets.token_hex(8), secrets.token_hex(16)
            store = ObjectStore(address, key, secret, configuration)
            who = ["--uid", "bert", "--display-name", "BERT"]
            store.admin("user", "create", *who, "--access-key", key, "--secret", secret)
            yield store
        finally:
            for server in reversed(servers.values()):
                server.stop(seconds=5)


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5):
            return True
    except OSError:
        return False
