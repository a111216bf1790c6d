"""Beam's local runner with quiet worker processes that take their work piece by piece.

Beam starts its workers at a log level of its own, lets them print every step of their start, and repeats what they log
as protocol messages. The workers of this runner say what is worth saying, warnings and errors, themselves.

Beam deals a stage's elements out among the workers before the first one is worked on. With few elements, or cores of
unequal speed, all then wait for the slowest worker; here a worker that is done takes the next piece.
"""

import copy
import itertools
import logging
import queue
import shlex
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from apache_beam import Pipeline
from apache_beam.metrics import monitoring_infos
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability import python_urns
from apache_beam.portability.api import beam_fn_api_pb2, beam_runner_api_pb2
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.portability.fn_api_runner.execution import BundleContextManager, PartitionableBuffer
from apache_beam.runners.portability.fn_api_runner.fn_runner import BundleManager, ParallelBundleManager, RunnerResult
from apache_beam.runners.portability.fn_api_runner.worker_handlers import WorkerHandler

_WORKER = "bert_pipeline.beam.worker"
_REPEATER = "apache_beam.runners.portability.local_job_service"
_PARTS_PER_WORKER = 64
"""The last part may leave the other workers idle for as long as it takes."""


class LocalRunner(FnApiRunner):
    """FnApiRunner whose worker processes are started by `bert_pipeline.beam.worker` and share the work as it comes."""

    def run_pipeline(self, pipeline: Pipeline, options: PipelineOptions) -> RunnerResult:
        logging.getLogger(_REPEATER).setLevel(logging.CRITICAL)
        beam = logging.getLogger("apache_beam")
        if beam.level == logging.NOTSET:  # whatever level the program has for its own messages
            beam.setLevel(logging.WARNING)
        return super().run_pipeline(pipeline, options)

    def run_via_runner_api(
        self, pipeline_proto: beam_runner_api_pb2.Pipeline, options: PipelineOptions
    ) -> RunnerResult:
        command = f"exec {shlex.quote(sys.executable)} -m {_WORKER}"
        for environment in pipeline_proto.components.environments.values():
            if environment.urn == python_urns.SUBPROCESS_SDK:
                environment.payload = command.encode()
        return super().run_via_runner_api(pipeline_proto, options)

    def _get_bundle_manager(self, bundle_context_manager: BundleContextManager) -> BundleManager:
        manager = super()._get_bundle_manager(bundle_context_manager)
        if not isinstance(manager, ParallelBundleManager):
            return manager
        tokens = FnApiRunner.get_cache_token_generator(static=False)
        return _PieceByPiece(bundle_context_manager, self._progress_frequency, cache_token_generator=tokens)


class _PieceByPiece(ParallelBundleManager):
    """Gives each worker one piece of a stage's input at a time."""

    def process_bundle(
        self,
        inputs: Mapping[str, PartitionableBuffer],
        expected_outputs: Any,
        fired_timers: Mapping[Any, PartitionableBuffer],
        expected_output_timers: Any,
        dry_run: bool = False,
    ) -> tuple[beam_fn_api_pb2.InstructionResponse, list[beam_fn_api_pb2.ProcessBundleSplitResponse]]:
        idle: queue.SimpleQueue[WorkerHandler] = queue.SimpleQueue()  # who waits longest is next
        for worker in self.bundle_context_manager.worker_handlers:
            idle.put(worker)

        def execute(piece: Mapping[str, Any], timers: Mapping[Any, PartitionableBuffer]) -> Any:
            worker = idle.get()
            try:
                context = copy.copy(self.bundle_context_manager)
                context._worker_handlers = [worker]
                manager = BundleManager(
                    context, self._progress_frequency, cache_token_generator=self._cache_token_generator
                )
                return manager.process_bundle(piece, expected_outputs, timers, expected_output_timers, dry_run)
            finally:
                idle.put(worker)

        pieces = self._pieces(inputs)
        timers = [fired_timers, *({} for _ in pieces[1:])]
        with ThreadPoolExecutor(self._num_workers) as executor:
            responses, splits = zip(*executor.map(execute, pieces, timers))
        infos = itertools.chain.from_iterable(response.process_bundle.monitoring_infos for response in responses)
        merged = beam_fn_api_pb2.InstructionResponse(
            process_bundle=beam_fn_api_pb2.ProcessBundleResponse(
                monitoring_infos=monitoring_infos.consolidate(infos),
            )
        )
        return merged, list(itertools.chain.from_iterable(splits))

    def _pieces(self, inputs: Mapping[str, PartitionableBuffer]) -> list[dict[str, list[bytes]]]:
        """The input in pieces, the first ones larger, since each costs some 20 ms; smaller ones even out the end.

        A worker tells by its first piece that it has started: there is one for each, if need be an empty one.
        """
        number = self._num_workers * _PARTS_PER_WORKER
        columns = [buffer.partition(number) for buffer in inputs.values()]
        parts = [row for row in zip(*columns) if any(map(any, row))]
        pieces: list[dict[str, list[bytes]]] = []
        while parts or len(pieces) < self._num_workers:
            size = max(1, 2 * len(parts) // (3 * self._num_workers))
            some, parts = parts[:size], parts[size:]
            pieces.append({name: [data for part in some for data in part[i]] for i, name in enumerate(inputs)})
        return pieces
