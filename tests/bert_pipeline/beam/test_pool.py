"""The pool of Python workers: ids that repeat, workers that end with their connection, and none that is left behind."""

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apache_beam as beam
import grpc
import psutil
import pytest
from apache_beam.portability.api import (
    beam_fn_api_pb2,
    beam_fn_api_pb2_grpc,
    beam_provision_api_pb2,
    beam_provision_api_pb2_grpc,
    beam_runner_api_pb2,
)
from processes import free_port
from training_processes import wait_until

pytestmark = pytest.mark.slow


class Engine(beam_fn_api_pb2_grpc.BeamFnControlServicer, beam_provision_api_pb2_grpc.ProvisionServiceServicer):
    """What a TaskManager serves to one worker: it describes the job, and keeps a connection without work for it."""

    def __init__(self, stages_files: bool = False) -> None:
        self.connected, self.closing = threading.Event(), threading.Event()
        artifact = beam_runner_api_pb2.ArtifactInformation(type_urn="beam:artifact:type:file:v1")
        self.dependencies = [artifact] if stages_files else []
        self.server = grpc.server(ThreadPoolExecutor())
        beam_fn_api_pb2_grpc.add_BeamFnControlServicer_to_server(self, self.server)
        beam_provision_api_pb2_grpc.add_ProvisionServiceServicer_to_server(self, self.server)
        self.address = f"localhost:{self.server.add_insecure_port('localhost:0')}"
        self.server.start()

    def GetProvisionInfo(self, request, context):
        info = beam_provision_api_pb2.ProvisionInfo(dependencies=self.dependencies)
        return beam_provision_api_pb2.GetProvisionInfoResponse(info=info)

    def Control(self, responses, context):
        self.connected.set()
        self.closing.wait()
        yield from ()

    def stop(self):
        self.closing.set()  # Python waits at its end for the thread of a worker's connection
        self.server.stop(0)

    def request(self, name: str):
        endpoints = {f"{kind}_endpoint": {"url": self.address} for kind in ("control", "provision")}
        return beam_fn_api_pb2.StartWorkerRequest(worker_id=name, **endpoints)


@pytest.fixture
def pool(tmp_path):
    port, log = free_port(), tmp_path / "log"
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "bert_pipeline.beam.pool", "--port", str(port)], stdout=output, stderr=output
        )
    with grpc.insecure_channel(f"localhost:{port}") as channel:
        grpc.channel_ready_future(channel).result(120)
        yield process, beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolStub(channel), log
    process.kill()
    process.wait()


def children(process: subprocess.Popen) -> set[int]:
    return {child.pid for child in psutil.Process(process.pid).children()}


def test_worker_ends_with_its_connection_and_never_by_an_id(pool):
    process, stub, log = pool
    engines = [Engine(), Engine()]
    for engine in engines:  # two jobs, which count their workers from the beginning
        assert not stub.StartWorker(engine.request("1-1")).error
    for engine in engines:
        assert engine.connected.wait(120)
    stub.StopWorker(beam_fn_api_pb2.StopWorkerRequest(worker_id="1-1"))
    engines[0].closing.set()
    wait_until(lambda: len(children(process)) == 1)
    assert "ended with 0" in log.read_text()
    assert f"Beam {beam.__version__}, {sys.executable}" in log.read_text()
    # The pool takes its workers along.
    (worker,) = children(process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    wait_until(lambda: not Path(f"/proc/{worker}").exists())
    for engine in engines:
        engine.stop()


def test_job_that_stages_files_is_refused(pool):
    process, stub, _ = pool
    engine = Engine(stages_files=True)
    error = stub.StartWorker(engine.request("1-1")).error
    assert error.startswith("the job stages files (--requirements_file")
    assert not children(process)
    engine.stop()


def test_taken_port_is_one_sentence(pool):
    process, _, log = pool
    port = log.read_text().partition("port ")[2].partition(":")[0]
    assert os.path.exists(f"/proc/{process.pid}")
    command = [sys.executable, "-m", "bert_pipeline.beam.pool", "--port", port]
    second = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (second.returncode, second.stdout) == (1, "")
    assert second.stderr.splitlines()[-1] == f"port {port} cannot be served; is another pool running here?"
