"""Flink and Spark on three hosts of the network, by the scripts of deploy/, with worker pools on two of them."""

import contextlib
import json
import os
import sys
import urllib.request
from pathlib import Path
from typing import Any

from cluster import harnesses, start, wait_until
from merge_jars import merge_jars
from network import ROOT, Host, Network
from processes import Server

JOBS, POOL = 8099, 50000
QUICK = ("heartbeat.interval=2000", "heartbeat.timeout=20000", "restart-strategy.fixed-delay.delay=2 s")
"""Settings of Flink with which a test does not wait long for a lost host."""


def jars() -> Path:
    """Return the folder with Beam's jars."""
    return Path(os.environ["BEAM_ENGINES"]).resolve()


class Engine:
    """An engine's processes, not started yet: a manager, job server, and on two hosts what computes for it."""

    def __init__(self, network: Network, name: str, settings: dict[str, str], environment) -> None:
        self.manager_host = network.host(f"{name}-jobs")
        self.hosts = [network.host(f"{name}-{number}") for number in (1, 2)]
        self.settings = {"PYTHON": sys.executable, "MANAGER": self.manager_host.address, **settings, **environment}
        self.pools = [self.server(host, "workers", image=True) for host in self.hosts]

    def server(
        self, host: Host, role: str, *arguments: str, name: str = "", image: bool = False, **more: str
    ) -> Server:
        settings = self.settings | {"HOST": host.address, "TMPDIR": str(host.directory)} | more
        if image:
            del settings["TMPDIR"]
        return host.server(name or role, [str(ROOT / "deploy/engine.sh"), role, *arguments], settings, image=image)

    def options(self, parallelism: int = 2) -> list[str]:
        return [
            "--runner=PortableRunner",
            f"--job_endpoint={self.manager_host.address}:{JOBS}",
            "--environment_type=EXTERNAL",
            f"--environment_config=localhost:{POOL}",
            f"--parallelism={parallelism}",
        ]

    def start_pools(self) -> None:
        for host, pool in zip(self.hosts, self.pools):
            start(pool, host.address, POOL)

    def worker_processes(self) -> list[int]:
        return [process for host in self.hosts for process in harnesses(host)]

    def stop(self) -> None:
        for host in (*self.hosts, self.manager_host):
            host.stop()


class Flink(Engine):
    """A session cluster with a TaskManager of one slot on each host, and a second one on the first host on request."""

    REST = 8081

    def __init__(self, network: Network, environment: dict[str, str]) -> None:
        library = {"FLINK_LIB": os.environ["FLINK_LIB"], "BEAM_JAR": f"{jars()}/beam/*:{jars()}/flink/*"}
        super().__init__(network, "flink", library, environment)
        quick = [f"-D{setting}" for setting in QUICK]
        self.jobmanager = self.server(self.manager_host, "jobmanager", *quick)
        self.job_server = self.server(self.manager_host, "flink-job-server")
        self.taskmanagers = [self.server(host, "taskmanager", *quick) for host in self.hosts]
        self.second = self.server(self.hosts[0], "taskmanager", *quick, name="second-taskmanager")

    def ask(self, path: str) -> Any:
        address = f"http://{self.manager_host.address}:{self.REST}{path}"
        with urllib.request.urlopen(address, timeout=5) as response:
            return json.load(response)

    def has(self, taskmanagers: int) -> bool:
        with contextlib.suppress(OSError):
            return self.ask("/overview")["taskmanagers"] == taskmanagers
        return False

    def jobs(self, *states: str) -> dict[str, str]:
        """Return the names of the jobs that are in one of the states, by their ids."""
        return {job["jid"]: job["name"] for job in self.ask("/jobs/overview")["jobs"] if job["state"] in states}

    def is_working(self) -> bool:
        return any(
            job["tasks"]["running"] + job["tasks"]["finished"] > 0
            for job in self.ask("/jobs/overview")["jobs"]
            if job["state"] == "RUNNING"
        )

    def has_restarted(self, job: str) -> bool:
        return bool(self.ask(f"/jobs/{job}")["timestamps"]["RESTARTING"])

    def start(self) -> None:
        self.second.kill()
        start(self.jobmanager, self.manager_host.address, self.REST)
        for server in self.taskmanagers:
            if server.process is None or server.process.poll() is not None:
                server.process = None
                server.start()
        self.start_pools()
        start(self.job_server, self.manager_host.address, JOBS)
        wait_until(lambda: self.has(2), 120)

    def kill_one(self) -> None:
        """Kill a TaskManager; what watches over it starts another one."""
        self.taskmanagers[0].kill()
        self.taskmanagers[0].start()


class Spark(Engine):
    """A standalone cluster with a worker of one core on each host."""

    def __init__(self, network: Network, environment: dict[str, str], scratch: Path) -> None:
        home = Path(os.environ["SPARK_HOME"]).resolve()
        jar = scratch / "beam-and-spark.jar"
        folders = (jars() / "beam", jars() / "spark", home / "jars")
        merge_jars(jar, [path for folder in folders for path in sorted(folder.glob("*.jar"))])
        library = {"SPARK_HOME": str(home), "BEAM_JAR": str(jar)}
        super().__init__(network, "spark", library, environment)
        self.master = self.server(self.manager_host, "master")
        self.job_server = self.server(self.manager_host, "spark-job-server")
        self.workers = [self.server(host, "worker") for host in self.hosts]

    def state(self) -> Any:
        with urllib.request.urlopen(f"http://{self.manager_host.address}:8080/json/", timeout=5) as response:
            return json.load(response)

    def is_working(self) -> bool:
        return any(harnesses(host) for host in self.hosts)

    def start(self) -> None:
        start(self.master, self.manager_host.address, 8080)
        for server in self.workers:
            if server.process is None or server.process.poll() is not None:
                server.process = None
                server.start()
        self.start_pools()
        start(self.job_server, self.manager_host.address, JOBS)
        wait_until(lambda: sum(worker["state"] == "ALIVE" for worker in self.state()["workers"]) == 2, 120)

    def kill_one(self) -> None:
        """Kill the worker of a host that computes; a job with few tasks may have all of them on one host."""
        working = [worker for host, worker in zip(self.hosts, self.workers) if harnesses(host)]
        (working or self.workers)[0].kill()
