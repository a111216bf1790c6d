"""Beam's local runner with quiet worker processes.

Beam starts its workers at a log level of its own, lets them print every step of their start, and repeats what they log
as protocol messages. The workers of this runner say what is worth saying, warnings and errors, themselves.
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

_REPEATER = "apache_beam.runners.portability.local_job_service"


class LocalRunner(FnApiRunner):
    """FnApiRunner whose worker processes are started by `bert_pipeline.jobs.worker`."""

    def run_pipeline(self, pipeline: Pipeline, options: PipelineOptions) -> RunnerResult:
        logging.getLogger(_REPEATER).setLevel(logging.CRITICAL)
        beam = logging.getLogger("apache_beam")
        if beam.level == logging.NOTSET:  # whatever level the program has for its own messages
            beam.setLevel(logging.WARNING)
        return super().run_pipeline(pipeline, options)

    def run_via_runner_api(
        self, pipeline_proto: beam_runner_api_pb2.Pipeline, options: PipelineOptions
    ) -> RunnerResult:
        command = f"exec {shlex.quote(sys.executable)} -m bert_pipeline.jobs.worker"
        for environment in pipeline_proto.components.environments.values():
            if environment.urn == python_urns.SUBPROCESS_SDK:
                environment.payload = command.encode()
        return super().run_via_runner_api(pipeline_proto, options)
