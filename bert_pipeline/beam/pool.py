"""Serve Python workers to an engine that runs beside: `python -m bert_pipeline.beam.pool --port 50000`.

Jobs ask for it by `--environment_type=EXTERNAL`. Beam's own pool keeps its workers under the runner's ids, which every
job and every TaskManager counts from the beginning, so that the end of one job stops the workers of another. Here a
worker ends with its connection to the engine, or with the pool, and what it prints is the pool's output.
"""

import argparse
import contextlib
import importlib.metadata
import logging
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from apache_beam.portability.api import beam_fn_api_pb2, beam_fn_api_pb2_grpc
from apache_beam.portability.api import beam_provision_api_pb2 as provision
from apache_beam.portability.api import beam_provision_api_pb2_grpc as provision_grpc
from google.protobuf import json_format

from bert_pipeline import parent
from bert_pipeline.beam import beam

logger = logging.getLogger(__name__)

_WORK = [sys.executable, "-c", "from bert_pipeline.beam.pool import work; work()"]
_PROVISION_SECONDS = 10.0


class Pool(beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolServicer):
    """Workers as processes of this interpreter."""

    def StartWorker(self, request: Any, context: Any) -> Any:
        try:
            worker = parent.start(_WORK, env=os.environ | _environment(request))
        except (grpc.RpcError, OSError, ValueError) as error:
            logger.error("worker %s: %s", request.worker_id, error)
            return beam_fn_api_pb2.StartWorkerResponse(error=str(error))
        name = f"worker {request.worker_id} (process {worker.pid})"
        logger.info("%s started", name)
        threading.Thread(target=lambda: logger.info("%s ended with %d", name, worker.wait()), daemon=True).start()
        return beam_fn_api_pb2.StartWorkerResponse()

    def StopWorker(self, request: Any, context: Any) -> Any:
        return beam_fn_api_pb2.StopWorkerResponse()  # the id may be another job's: a worker ends by itself


def _environment(request: Any) -> dict[str, str]:
    """Return a worker's environment, as the program `boot` of Beam's images makes it of what the engine provides.

    ValueError if the job stages files, which `boot` would install.
    """
    with grpc.insecure_channel(request.provision_endpoint.url) as channel:
        ask = provision_grpc.ProvisionServiceStub(channel).GetProvisionInfo
        identity = [("worker_id", request.worker_id)]
        info = ask(provision.GetProvisionInfoRequest(), metadata=identity, timeout=_PROVISION_SECONDS).info
    if info.dependencies:
        raise ValueError(
            "the job stages files (--requirements_file, --extra_package, --setup_file, --save_main_session), which "
            "this pool does not fetch; leave the option out, and install packages where the pool runs"
        )
    endpoints = {"LOGGING": request.logging_endpoint, "CONTROL": request.control_endpoint}
    endpoints["STATUS"] = info.status_endpoint
    return {
        "WORKER_ID": request.worker_id,
        "PIPELINE_OPTIONS": json_format.MessageToJson(info.pipeline_options),
        "RUNNER_CAPABILITIES": " ".join(info.runner_capabilities),
        **{f"{name}_API_SERVICE_DESCRIPTOR": str(where) for name, where in endpoints.items() if where.url},
    }


def work() -> None:
    """Work for the engine that the environment describes, until it closes the connection."""
    from apache_beam.runners.worker import sdk_worker_main

    _, harness, _ = sdk_worker_main.create_harness(os.environ)
    # It would wait for the bundles in work, which are of no use once the connection is closed.
    harness._worker_thread_pool.shutdown = lambda: os._exit(0)
    with contextlib.suppress(grpc.RpcError):  # the engine's process has ended without a goodbye
        harness.run()
    os._exit(0)


def main() -> None:
    """Serve until SIGTERM or Ctrl-C; the workers end then, too."""
    parser = argparse.ArgumentParser(description="Python workers for Beam's engines")
    parser.add_argument("--port", type=int, default=50000, help="of all interfaces (default: %(default)s)")
    port = parser.parse_args().port
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    logger.setLevel(logging.INFO)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))

    server = grpc.server(ThreadPoolExecutor(), options=[("grpc.so_reuseport", 0)])
    beam_fn_api_pb2_grpc.add_BeamFnExternalWorkerPoolServicer_to_server(Pool(), server)
    try:
        server.add_insecure_port(f"[::]:{port}")
    except RuntimeError:
        sys.exit(f"port {port} cannot be served; is another pool running here?")
    server.start()
    version = importlib.metadata.version("bert-workflow")
    logger.info("workers at port %d: bert-workflow %s, Beam %s, %s", port, version, beam.__version__, sys.executable)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
