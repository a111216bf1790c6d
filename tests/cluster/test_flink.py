"""deploy/flink/start.sh: a session cluster of one JobManager and two TaskManagers, each on its own host.

Where Beam's job server can be had (BEAM_FLINK_JAR, or Maven Central), the three jobs run on the cluster, and a
TaskManager is killed in each.
"""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import data_jobs
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.flink_runner import FlinkJarJobServer
from apache_beam.utils.subprocess_server import JavaJarServer
from cluster import once, start, wait_until
from network import ROOT, Network

from bert_pipeline.storage import upload

START = ROOT / "deploy" / "flink" / "start.sh"
REST, JOBS = 8081, 8099

pytestmark = [pytest.mark.flink, pytest.mark.timeout(900, method="signal")]


class FlinkCluster:
    """Flink's processes on three hosts, not started yet, and a worker pool beside each TaskManager."""

    def __init__(self, network: Network, environment: dict[str, str], job_server_jar: str) -> None:
        self.manager = network.host("flink-jobs")
        self.workers = [network.host(f"flink-{number}") for number in (1, 2)]
        settings = {
            "FLINK_LIB": os.environ["FLINK_LIB"],
            "BEAM_JAR": job_server_jar,
            "JOBMANAGER": self.manager.address,
            "PYTHON": sys.executable,
            **environment,
        }
        self.jobmanager, self.job_server = (
            self.manager.server(role, [str(START), role], {**settings, "HOST": self.manager.address}, image=False)
            for role in ("jobmanager", "job-server")
        )
        # The slots of config.yaml on one host, others on the other one.
        self.taskmanagers = [
            host.server(
                "taskmanager", [str(START), "taskmanager"], settings | {"HOST": host.address} | slots, image=False
            )
            for host, slots in zip(self.workers, ({}, {"SLOTS": "3"}))
        ]
        self.pools = [host.server("workers", [str(START), "workers"], settings) for host in self.workers]

    def overview(self) -> dict[str, int]:
        with urllib.request.urlopen(f"http://{self.manager.address}:{REST}/overview", timeout=5) as response:
            return json.load(response)

    def has_taskmanagers(self, number: int) -> bool:
        try:
            return self.overview()["taskmanagers"] == number
        except OSError:
            return False

    def start(self) -> None:
        start(self.jobmanager, self.manager.address, REST)
        for server in self.taskmanagers:
            if server.process is None:
                server.start()
        for host, pool in zip(self.workers, self.pools):
            start(pool, host.address, 50000)
        wait_until(lambda: self.has_taskmanagers(2), 120)

    def options(self) -> list[str]:
        return [
            "--runner=PortableRunner",
            f"--job_endpoint={self.manager.address}:{JOBS}",
            "--environment_type=EXTERNAL",
            "--environment_config=localhost:50000",
            "--parallelism=2",
        ]


@pytest.fixture(scope="module")
def job_server_jar() -> str:
    """The path of Beam's job server, "" where it cannot be had."""
    if given := os.environ.get("BEAM_FLINK_JAR"):
        return given
    try:
        return JavaJarServer.local_jar(FlinkJarJobServer(PipelineOptions()).path_to_jar())
    except Exception as error:  # what a client of HTTP raises
        print(f"no jar of Beam's job server: {error}", file=sys.stderr)
        return ""


@pytest.fixture(scope="module")
def running_flink(
    network: Network, store_environment: dict[str, str], bucket: str, job_server_jar: str
) -> Iterator[FlinkCluster]:
    if not network.separate:
        pytest.skip("two TaskManagers with one set of ports need network namespaces: run as root")
    cluster = FlinkCluster(network, store_environment, job_server_jar)
    yield cluster
    for server in (cluster.job_server, *cluster.taskmanagers, cluster.jobmanager):
        server.stop()


@pytest.fixture
def flink(running_flink: FlinkCluster) -> FlinkCluster:
    running_flink.start()
    return running_flink


def test_a_killed_taskmanager_is_noticed_and_a_new_one_joins(flink: FlinkCluster) -> None:
    wait_until(lambda: flink.overview()["slots-available"] == 2 + 3)
    flink.taskmanagers[0].kill()
    wait_until(lambda: flink.has_taskmanagers(1), 90)
    flink.start()
    wait_until(lambda: flink.overview()["slots-available"] == 2 + 3)


def test_the_job_server_without_its_jar_is_one_sentence() -> None:
    result = subprocess.run(
        [str(START), "job-server"], env={"PATH": os.environ["PATH"]}, capture_output=True, text=True
    )
    assert result.returncode == 2
    assert "BEAM_JAR= is no file; give the jar of Beam's job server for Flink 2.2" in result.stderr
    assert result.stderr.count("\n") == 1


def test_sigterm_ends_a_taskmanager_in_order(flink: FlinkCluster) -> None:
    server = flink.taskmanagers[1]
    assert server.process is not None
    os.kill(server.process.pid, signal.SIGTERM)
    server.process.wait(30)
    wait_until(lambda: flink.has_taskmanagers(1), 10)  # it said goodbye: no heartbeat has to be missed
    server.kill()


@pytest.mark.parametrize("stage", data_jobs.STAGES)
def test_jobs_on_flink_survive_a_killed_taskmanager(
    stage: str, flink: FlinkCluster, job_server_jar: str, tmp_path: Path, folder: str
) -> None:
    if not job_server_jar:
        pytest.skip("Beam's job server for Flink is not here, and Maven Central is not reached: give BEAM_FLINK_JAR")
    dump = data_jobs.write_dump(tmp_path / "wiki.xml.bz2")
    upload(dump, f"{folder}/{dump.name}")
    expected = data_jobs.build_all(str(dump), str(tmp_path), data_jobs.LOCAL)
    data_jobs.build_all(f"{folder}/{dump.name}", folder, data_jobs.LOCAL)
    start(flink.job_server, flink.manager.address, JOBS)

    def running_jobs() -> bool:
        return flink.overview()["jobs-running"] > 0

    with once(running_jobs, flink.taskmanagers[0].kill):
        made = data_jobs.build(stage, f"{folder}/{dump.name}", folder, flink.options())
    assert made.sha256 == expected[stage]
