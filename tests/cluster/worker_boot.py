#!/usr/bin/env python
"""Start one SDK harness, as the `boot` program of Beam's containers does: the program of the worker pools.

python -m apache_beam.runners.worker.worker_pool_main --service_port 50000 --container_executable worker_boot.py
"""

import argparse
import os
import sys

import grpc
from apache_beam.portability.api import (
    beam_provision_api_pb2,
    beam_provision_api_pb2_grpc,
    endpoints_pb2,
)
from google.protobuf import json_format, text_format

parser = argparse.ArgumentParser()
for name in ("id", "logging_endpoint", "artifact_endpoint", "provision_endpoint", "control_endpoint"):
    parser.add_argument(f"--{name}", required=True)
arguments = parser.parse_args()

with grpc.insecure_channel(arguments.provision_endpoint) as channel:
    stub = beam_provision_api_pb2_grpc.ProvisionServiceStub(channel)
    info = stub.GetProvisionInfo(
        beam_provision_api_pb2.GetProvisionInfoRequest(), metadata=[("worker_id", arguments.id)], timeout=30
    ).info


def descriptor(url: str) -> str:
    return text_format.MessageToString(endpoints_pb2.ApiServiceDescriptor(url=url))


os.environ |= {
    "WORKER_ID": arguments.id,
    "PIPELINE_OPTIONS": json_format.MessageToJson(info.pipeline_options),
    "LOGGING_API_SERVICE_DESCRIPTOR": descriptor(arguments.logging_endpoint),
    "CONTROL_API_SERVICE_DESCRIPTOR": descriptor(arguments.control_endpoint),
    "RUNNER_CAPABILITIES": " ".join(info.runner_capabilities),
    "SEMI_PERSISTENT_DIRECTORY": os.environ.get("TMPDIR", "/tmp"),
}
os.execv(sys.executable, [sys.executable, "-m", "apache_beam.runners.worker.sdk_worker_main"])
