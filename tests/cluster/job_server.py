"""Beam's Python job server, which notices lost workers and starts a job again, as those of Flink and Spark do.

Beam's own serves loopback only, and waits forever for a worker that died. Here every attempt of a job is a process,
asks each worker for a sign of life every second, and ends with its first lost worker; SDK harnesses end with it.

    python job_server.py --address 10.83.0.2 --port 8099 --pool-port 8100 --pools 10.83.0.3:50000,10.83.0.4:50000

The pool port passes the requests for a worker to the pools in turn.
"""

import argparse
import concurrent.futures
import contextlib
import itertools
import logging
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import grpc
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions
from apache_beam.portability.api import (
    beam_fn_api_pb2,
    beam_fn_api_pb2_grpc,
    beam_job_api_pb2,
    beam_provision_api_pb2,
    beam_runner_api_pb2,
)
from apache_beam.runners.portability import local_job_service
from apache_beam.runners.portability.fn_api_runner import fn_runner, worker_handlers
from apache_beam.runners.runner import PipelineState

HEARTBEAT_SECONDS = 1.0
LOST_AFTER_SECONDS = 10.0
START_SECONDS = 25.0


class JobServer(local_job_service.LocalJobServicer):
    """Beam's job service under an address of the network."""

    def __init__(self, address: str) -> None:
        self._address = address
        super().__init__(beam_job_type=Job)

    def get_service_address(self) -> str:
        return self._address


class Job(local_job_service.BeamJob):
    """A job whose attempts are processes; it fails when the last one did."""

    address = ""
    attempts = 2

    def _invoke_runner(self) -> Any:
        self.set_state(beam_job_api_pb2.JobState.RUNNING)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "pipeline").write_bytes(self._pipeline_proto.SerializeToString())
            (folder / "provision").write_bytes(self._provision_info.provision_info.SerializeToString())
            known = {
                "options": self.pipeline_options().get_all_options(drop_default=True),
                "job_name": self._provision_info.job_name,
            }
            known["staging_dir"] = self._provision_info.artifact_staging_dir
            (folder / "options").write_bytes(pickle.dumps(known))
            command = [sys.executable, __file__, "--address", self.address, "--attempt", name]
            for attempt in range(1, self.attempts + 1):
                result = subprocess.run(command, stdout=subprocess.PIPE, text=True)
                if result.returncode == 0:
                    return Finished((folder / "metrics").read_bytes())
                logging.warning("attempt %d of %d failed: %s", attempt, self.attempts, result.stdout[-2000:])
            raise RuntimeError(f"{self.attempts} attempts failed; the last one: {result.stdout}")


class Finished:
    """Result of a successful attempt."""

    state = PipelineState.DONE

    def __init__(self, metrics: bytes) -> None:
        self._metrics = metrics

    def wait_until_finish(self) -> None:
        pass

    def monitoring_infos(self) -> Any:
        return beam_job_api_pb2.MetricResults.FromString(self._metrics).committed


def run_attempt(address: str, folder: Path) -> None:
    """Run a pipeline; write its metrics, or print why it failed."""
    worker_handlers.ExternalWorkerHandler.host_from_worker = lambda self: address
    worker_handlers.ControlConnection = WatchedConnection
    pipeline = beam_runner_api_pb2.Pipeline.FromString((folder / "pipeline").read_bytes())
    provision = beam_provision_api_pb2.ProvisionInfo.FromString((folder / "provision").read_bytes())
    known = pickle.loads((folder / "options").read_bytes())
    info = fn_runner.ExtendedProvisionInfo(provision, known["staging_dir"], known["job_name"])
    options = PipelineOptions(**known["options"])
    try:
        runner = fn_runner.FnApiRunner(provision_info=info)
        runner._num_workers = int(options.view_as(DirectOptions).direct_num_workers)  # only `run_pipeline` sets it
        result = runner.run_via_runner_api(pipeline, options)
        result.wait_until_finish()
        assert result.state == PipelineState.DONE, result.state
    except Exception as error:
        print(error, flush=True)
        os._exit(1)
    metrics = beam_job_api_pb2.MetricResults(committed=result.monitoring_infos())
    (folder / "metrics").write_bytes(metrics.SerializeToString())
    os._exit(0)  # SDK harnesses may keep threads of the servers busy


class WatchedConnection(worker_handlers.ControlConnection):
    """The connection to a worker, which ends this process when it breaks or when the worker gives no sign of life."""

    def __init__(self) -> None:
        super().__init__()
        self._closing = False
        threading.Thread(target=self._watch, daemon=True).start()

    def close(self) -> None:
        self._closing = True
        super().close()

    def _read(self) -> None:
        with contextlib.suppress(grpc.RpcError):
            super()._read()
        if not self._closing:
            _lost("its connection ended")

    def _watch(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while self._input is None and not self._closing:
            if time.monotonic() > deadline:
                _lost(f"it did not start within {START_SECONDS:g} seconds")
            time.sleep(HEARTBEAT_SECONDS)
        sign = beam_fn_api_pb2.HarnessMonitoringInfosRequest()
        while not self._closing:
            future = self.push(beam_fn_api_pb2.InstructionRequest(harness_monitoring_infos=sign))
            with contextlib.suppress(AssertionError):  # no answer in time
                future.get(LOST_AFTER_SECONDS)
            if not future.is_done() and not self._closing:
                _lost(f"no sign of life for {LOST_AFTER_SECONDS:g} seconds")
            time.sleep(HEARTBEAT_SECONDS)


def _lost(reason: str) -> None:
    print(f"a worker is lost: {reason}", flush=True)
    os._exit(75)


class PoolOfPools(beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolServicer):
    """Pass each request for a worker to the next pool that answers."""

    def __init__(self, pools: list[str]) -> None:
        self._pools = itertools.cycle(pools)
        self._count = len(pools)

    def StartWorker(self, request: Any, context: Any) -> Any:
        problems = []
        for _ in range(self._count):
            pool = next(self._pools)
            try:
                with grpc.insecure_channel(pool) as channel:
                    stub = beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolStub(channel)
                    return stub.StartWorker(request, timeout=5)
            except grpc.RpcError as error:
                problems.append(f"{pool}: {error.code().name}")
        return beam_fn_api_pb2.StartWorkerResponse(error="no worker pool answers: " + ", ".join(problems))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", required=True)
    parser.add_argument("--port", type=int)
    parser.add_argument("--pool-port", type=int)
    parser.add_argument("--pools", type=lambda text: text.split(","))
    parser.add_argument("--attempts", type=int, default=2)
    parser.add_argument("--attempt", type=Path, help="run one attempt of the job in this folder")
    arguments = parser.parse_args()
    del sys.argv[1:]  # Beam would take them for options of a pipeline
    logging.basicConfig(level=logging.WARNING)
    if arguments.attempt:
        run_attempt(arguments.address, arguments.attempt)
    Job.address, Job.attempts = arguments.address, arguments.attempts
    pools = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
    beam_fn_api_pb2_grpc.add_BeamFnExternalWorkerPoolServicer_to_server(PoolOfPools(arguments.pools), pools)
    pools.add_insecure_port(f"{arguments.address}:{arguments.pool_port}")
    pools.start()
    JobServer(arguments.address).start_grpc_server(arguments.port)
    threading.Event().wait()


if __name__ == "__main__":
    main()
