"""Beam's local runner with quiet worker processes.

Beam starts its workers at a log level of its own and lets them print every step of their start. The workers of this
runner say what is worth saying, warnings and errors, and nothing else.
"""

import logging
import shlex
import sys

from apache_beam import Pipeline
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability import python_urns
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.portability.fn_api_runner.fn_runner import RunnerResult

_WORKER_LOGGERS = ("apache_beam.runners.portability.local_job_service", "apache_beam.runners.worker")


class LocalRunner(FnApiRunner):
    """FnApiRunner whose worker processes are started by `bert_pipeline.jobs.worker`."""

    def run_pipeline(self, pipeline: Pipeline, options: PipelineOptions) -> RunnerResult:
        for name in _WORKER_LOGGERS:
            logging.getLogger(name).setLevel(logging.ERROR)
        return super().run_pipeline(pipeline, options)

    def run_via_runner_api(
        self, pipeline_proto: beam_runner_api_pb2.Pipeline, options: PipelineOptions
    ) -> RunnerResult:
        command = f"exec {shlex.quote(sys.executable)} -m bert_pipeline.jobs.worker"
        for environment in pipeline_proto.components.environments.values():
            if environment.urn == python_urns.SUBPROCESS_SDK:
                environment.payload = command.encode()
        return super().run_via_runner_api(pipeline_proto, options)
