"""The data jobs on Flink and Spark as deploy/ starts them: equal hashes, and what is lost, killed or missing.

BEAM_ENGINES names a folder with Beam's jars: beam/, flink/ and spark/ below it; FLINK_LIB and SPARK_HOME the engines.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import data_jobs
import pytest
import yaml
from cluster import once, wait_until
from dagster_api import DagsterApi
from engines import JOBS, Engine, Flink, Spark
from network import ROOT, Network
from processes import Server, free_port
from test_graph import DUMP, check_data_assets, preset_on
from test_ui import answers

from bert_pipeline.storage import upload
from workflows.lib.instance import open_instance
from workflows.lib.resources import BertHome

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900, method="signal")]


@pytest.fixture(scope="module")
def flinks(network: Network, store_environment: dict[str, str], bucket: str) -> Iterator[Flink]:
    _require(network)
    engine = Flink(network, store_environment)
    yield engine
    engine.stop()


@pytest.fixture(scope="module")
def sparks(
    network: Network, store_environment: dict[str, str], bucket: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Spark]:
    _require(network)
    engine = Spark(network, store_environment, tmp_path_factory.mktemp("jars"))
    yield engine
    engine.stop()


def _require(network: Network) -> None:
    if not os.environ.get("BEAM_ENGINES"):
        pytest.skip("BEAM_ENGINES is not set: it names the folder with Beam's jars for Flink and Spark")
    if not network.separate:
        pytest.skip("hosts with one set of ports each need network namespaces: run as root")


@pytest.fixture
def flink(flinks: Flink) -> Flink:
    flinks.start()
    return flinks


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Engine:
    found = request.getfixturevalue(f"{request.param}s")
    found.start()
    return found


@pytest.fixture(scope="session")
def local(bucket: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Hashes of the three jobs on this machine, which leave their artifacts in the bucket: the inputs of later jobs."""
    dump = data_jobs.write_dump(tmp_path_factory.mktemp("engines") / "wiki.xml.bz2")
    upload(dump, f"{bucket}/engines/{dump.name}")
    return data_jobs.build_all(f"{bucket}/engines/{dump.name}", f"{bucket}/engines", data_jobs.LOCAL)


@pytest.mark.parametrize("stage", data_jobs.STAGES)
@pytest.mark.parametrize("engine", ["flink", "spark"], indirect=True)
def test_a_job_survives_a_killed_host(engine: Flink | Spark, stage: str, local: dict[str, str], bucket: str) -> None:
    with once(engine.is_working, engine.kill_one):
        made = data_jobs.build(stage, f"{bucket}/engines/wiki.xml.bz2", f"{bucket}/engines", engine.options())
    assert made.sha256 == local[stage]


class Command:
    """`bert vocab`, or another job, on an engine in a process of its own, whose output is kept."""

    def __init__(
        self, engine: Engine, bucket: str, output: Path, *beam: str, name: str, job: Sequence[str] = ()
    ) -> None:
        job = job or ("vocab", f"{bucket}/engines/corpus", "--vocab-size=250", "--pad-with-unused")
        words = [*job, "--output", f"{bucket}/{name}/vocabulary", "--", *engine.options(), *beam]
        self.output = output
        with open(output, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "bert_model.cli", *words],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def text(self) -> str:
        return self.output.read_text(encoding="utf-8")

    def end(self, number: signal.Signals, *, at_a_terminal: bool = False) -> float:
        """Send a signal, or let a terminal send it to the whole session; return the seconds until the process ended."""
        began = time.monotonic()
        (os.killpg if at_a_terminal else os.kill)(self.process.pid, number)
        self.process.wait(60)
        return time.monotonic() - began


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_program_cancels_its_job(
    number: signal.Signals, flink: Flink, local: dict[str, str], bucket: str, tmp_path: Path
) -> None:
    before = flink.jobs("CANCELED")
    command = Command(flink, bucket, tmp_path / "log", name="interrupted")
    wait_until(flink.is_working, 120)
    assert "bert-vocabulary-interrupted" in flink.jobs("RUNNING").values()  # what an operator sees in Flink's page
    assert command.end(number) < 15
    assert flink.jobs("RUNNING", "RESTARTING") == {}
    wait_until(lambda: flink.jobs("CANCELED").keys() - before.keys(), 60)
    assert command.process.returncode == (130 if number == signal.SIGINT else 143)


def test_ctrl_c_cancels_a_job_whose_job_server_it_ends_too(
    flink: Flink, local: dict[str, str], bucket: str, tmp_path: Path
) -> None:
    java = tmp_path / "java"  # Beam gives it -jar JAR, where we have a classpath
    driver = "org.apache.beam.runners.flink.FlinkJobServerDriver"
    java.write_text(f"#!/bin/bash\nexec java -classpath '{flink.settings['BEAM_JAR']}' {driver} \"${{@:3}}\"\n")
    java.chmod(0o755)
    master = f"--flink_master={flink.manager_host.address}:{flink.REST}"
    server = ["--job_endpoint=", f"--flink_job_server_jar={java}", f"--job_server_java_launcher={java}"]
    command = Command(flink, bucket, tmp_path / "log", "--runner=FlinkRunner", master, *server, name="terminal")
    wait_until(flink.is_working, 120)
    (job,) = flink.jobs("RUNNING")
    assert command.end(signal.SIGINT, at_a_terminal=True) < 15
    assert command.process.returncode == 130
    wait_until(lambda: job in flink.jobs("CANCELED"), 60)


def test_after_kill_9_the_next_start_names_the_job_and_how_to_end_it(
    flink: Flink, local: dict[str, str], bucket: str, tmp_path: Path
) -> None:
    command = Command(flink, bucket, tmp_path / "first", name="killed")
    wait_until(flink.is_working, 120)
    flink.pools[0].kill()  # so that the job goes on until the second start
    flink.pools[1].kill()
    command.end(signal.SIGKILL)
    (job,) = flink.jobs("RUNNING", "RESTARTING")
    again = Command(flink, bucket, tmp_path / "second", name="killed")
    end = f"curl -X PATCH http://{flink.manager_host.address}:8081/jobs/{job}"
    wait_until(lambda: end in again.text(), 60)
    again.end(signal.SIGINT)
    subprocess.run(end.split(), check=True)
    wait_until(lambda: not flink.jobs("RUNNING", "RESTARTING", "CANCELLING"), 60)


def test_missing_slots_are_named_after_a_minute(
    flink: Flink, local: dict[str, str], bucket: str, tmp_path: Path
) -> None:
    command = Command(flink, bucket, tmp_path / "log", "--parallelism=8", name="slots")
    wait_until(lambda: "most likely" in command.text(), 150)
    command.end(signal.SIGINT)
    assert len(re.findall(r"bert-vocabulary-slots: \S+ .*for \d+ s, 0 files written", command.text())) >= 5
    assert re.search(r"most likely task slots: Flink at http\S+ has 2, --parallelism=8 needs 8; start", command.text())


def test_a_pool_or_jobmanager_that_is_gone_is_one_sentence(
    flink: Flink, local: dict[str, str], bucket: str, tmp_path: Path
) -> None:
    command = Command(flink, bucket, tmp_path / "pool", "--environment_config=localhost:50009", name="pool")
    assert command.process.wait(300) == 1
    sentence = command.text().strip().splitlines()[-1]
    assert "no worker pool answers at localhost:50009, asked from a TaskManager" in sentence
    assert "start one beside each: deploy/engine.sh workers" in sentence
    flink.jobmanager.kill()
    command = Command(flink, bucket, tmp_path / "jobmanager", name="jobmanager")
    assert command.process.wait(300) == 1
    sentence = command.text().strip().splitlines()[-1]
    assert "the JobManager or Spark master does not answer" in sentence
    assert f"asked from the job server at {flink.manager_host.address}:{JOBS}; start it: deploy/engine.sh" in sentence


def test_short_jobs_beside_a_long_one_restart_nothing(
    flink: Flink, local: dict[str, str], bucket: str, tmp_path: Path
) -> None:
    flink.second.start()
    wait_until(lambda: flink.has(3), 120)
    words = ["instances", f"{bucket}/engines/corpus", "--vocab", f"{bucket}/engines/vocabulary", "--dupe-factor=100000"]
    long = Command(flink, bucket, tmp_path / "long", "--parallelism=1", name="long", job=words)
    wait_until(flink.worker_processes, 120)
    (job,) = flink.jobs("RUNNING")
    for number in range(3):
        short = Command(flink, bucket, tmp_path / f"short-{number}", "--parallelism=1", name=f"short-{number}")
        assert short.process.wait(300) == 0, short.text()
    assert flink.jobs("RUNNING").keys() == {job}
    assert not flink.has_restarted(job)
    assert long.end(signal.SIGTERM) < 15
    assert "RESTARTING" not in long.text()
    flink.second.stop()
    wait_until(lambda: not flink.worker_processes(), 30)  # the long one's too, in the middle of its element


def test_two_taskmanagers_share_one_pool(flink: Flink, local: dict[str, str], bucket: str, tmp_path: Path) -> None:
    flink.taskmanagers[1].kill()
    flink.second.start()
    wait_until(lambda: flink.has(2), 120)
    command = Command(flink, bucket, tmp_path / "log", name="shared")
    assert command.process.wait(300) == 0, command.text()
    flink.second.stop()
    wait_until(lambda: not flink.worker_processes(), 60)  # none is left behind


def test_data_assets_on_flink_make_what_this_machine_makes(
    flink: Flink, store_environment: dict[str, str], folder: str, tmp_path: Path
) -> None:
    check_data_assets(flink.options(), store_environment, folder, tmp_path)


def test_a_run_that_is_ended_in_the_ui_leaves_nothing_on_flink(
    flink: Flink, local: dict[str, str], bucket: str, folder: str, tmp_path: Path
) -> None:
    home = BertHome(directory=str(tmp_path / "home"))
    (tmp_path / "preset.yaml").write_text(yaml.safe_dump(preset_on(flink.options())), encoding="utf-8")
    environment = os.environ | {
        "BERT_HOME": str(home.path), "BERT_PRESET": str(tmp_path / "preset.yaml"), "BERT_DATA": f"{folder}/data",
        "DAGSTER_HOME": str(home.path / "dagster"),
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        for name in ("DAGSTER_HOME", "BERT_HOME"):
            patch.setenv(name, environment[name])
        open_instance(home).dispose()
    port = free_port()
    command = [sys.executable, "-m", "dagster", "dev", "-w", str(ROOT / "workspace.yaml"), "-p", str(port)]
    server = Server("webserver", command, environment, tmp_path / "webserver.log", directory=ROOT)
    server.start()
    try:
        ui = DagsterApi(f"http://127.0.0.1:{port}")
        server.wait(lambda: answers(ui))
        ui.add_dump(DUMP)
        dump = {"sources": [f"{bucket}/engines/wiki.xml.bz2"]}
        run = ui.launch(["dump", "corpus"], DUMP, {"ops": {"dump": {"config": dump}}})
        wait_until(lambda: f"bert-corpus-{DUMP}" in flink.jobs("RUNNING").values(), 300)
        ui.terminate(run)
        assert ui.finished(run) == "CANCELED"
        wait_until(lambda: not flink.jobs("RUNNING", "RESTARTING", "CANCELLING"), 30)
    finally:
        server.stop(signal.SIGINT)


def test_a_killed_taskmanager_is_noticed_and_a_new_one_joins(flink: Flink) -> None:
    wait_until(lambda: flink.ask("/overview")["slots-available"] == 2)
    flink.taskmanagers[0].kill()
    wait_until(lambda: flink.has(1), 90)
    flink.start()
    wait_until(lambda: flink.ask("/overview")["slots-available"] == 2)


def test_sigterm_ends_a_taskmanager_in_order(flink: Flink) -> None:
    server = flink.taskmanagers[1]
    assert server.process is not None
    os.kill(server.process.pid, signal.SIGTERM)
    server.process.wait(30)
    wait_until(lambda: flink.has(1), 10)  # it said goodbye: no heartbeat has to be missed
    server.kill()
