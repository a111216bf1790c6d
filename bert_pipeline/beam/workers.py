"""Running the Beam jobs: their pipelines, and worker processes for the expensive steps on one machine.

On one machine Beam runs in this process; `ParallelFlatMap` hands the elements of a step to a pool of processes, in
which each worker takes the next element when it is done. Beam's own `--direct_running_mode=multi_processing` deals out
all elements in advance, keeps waiting for a worker that was killed, and repeats every log record of its workers
(docs/decisions/0015).
"""

import contextlib
import functools
import logging
import multiprocessing
import os
import re
import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from apache_beam import DoFn
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from bert_pipeline import errors
from bert_pipeline.beam import beam
from bert_pipeline.beam.engine import call_periodically, explain, watched
from bert_pipeline.beam.options import num_processes, num_workers
from bert_pipeline.beam.results import Failure, Result, failures_in, guarded
from bert_pipeline.errors import BertError, UnavailableError, WorkerDiedError
from bert_pipeline.hashes import checked_copy
from bert_pipeline.manifest import Draft, Manifest
from bert_pipeline.parent import exit_with_parent

logger = logging.getLogger(__name__)

Progress = Callable[..., None]
"""Called periodically with what the steps have counted so far, and with the number of all where that is known."""

_pool: ProcessPoolExecutor | None = None
"""The pool of the running job; None where Beam's workers compute themselves."""
_has_failed = False
"""Whether a step of the running job has yielded a `Failure`."""
_progress = 0
"""Progress of the steps that run in this process."""
_STEP = r"(?: \[while running .*)?$"
_OUR_ERROR = re.compile(rf"bert_pipeline\.errors\.(\w+): (.+?){_STEP}", re.MULTILINE)


@contextlib.contextmanager
def run_pipeline(
    options: PipelineOptions,
    *,
    preload: str,
    draft: Draft | None = None,
    progress: Progress | None = None,
    total: int | None = None,
) -> Iterator[Any]:
    """Yield a pipeline, and run the graph that the block adds to it.

    `preload` is the module of the steps' functions: it is imported once, and the workers of the local pool are forked
    from there. `progress` is called periodically with the sum of what the steps count, and with the `total` of it.
    WorkerDiedError if a local worker is killed, BertError if a cluster gives the job up. On an engine the job is named
    after `draft`, where its results are counted.
    """
    global _progress
    _progress = 0
    with _runner_errors(options), _worker_pool(options, preload):
        pipeline = beam.Pipeline(options=options)
        watch: Any = contextlib.nullcontext()
        if draft is not None and num_workers(options) is None:
            watch = watched(pipeline, draft)
        elif progress is not None:
            of_total = () if total is None else (total,)
            watch = call_periodically(lambda: progress(_progress, *of_total))
        with watch, pipeline:
            yield pipeline


@contextlib.contextmanager
def _worker_pool(options: PipelineOptions, preload: str) -> Iterator[None]:
    """Run the pool of the `ParallelFlatMap` steps; stop it in its work if the block raises or a step has failed."""
    global _pool, _has_failed
    executor = None
    if num_processes(options) > 1:
        # The fork server has no threads; a fork of this process could inherit a lock that a thread of Beam holds.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([preload])
        running, end = context.Pipe(duplex=False)
        # Workers that are stopped do not remove their copies of files in stores.
        scratch = tempfile.TemporaryDirectory(prefix="bert-workers-", ignore_cleanup_errors=True)
        executor = ProcessPoolExecutor(
            num_processes(options), mp_context=context, initializer=_start_worker, initargs=(running, scratch.name)
        )

    # Module state, because Beam pickles its steps and a pool cannot be pickled.
    _pool, _has_failed = executor, False
    is_finished = False
    try:
        yield
        is_finished = not _has_failed
    finally:
        _pool = None
        if executor is not None:
            if not is_finished:
                end.close()
            executor.shutdown(cancel_futures=True)
            end.close()
            running.close()
            scratch.cleanup()


@contextlib.contextmanager
def _runner_errors(options: PipelineOptions) -> Iterator[None]:
    """Turn what a runner raises into one sentence: it adds the step to a worker's exception, or returns it as text."""
    try:
        yield
    except Exception as error:
        # Beam turns an exception of a step into another one, with the step's name in its message.
        text, causes = str(error), list(_causes(error))
        for cause in causes:
            if isinstance(cause, KeyboardInterrupt | SystemExit):
                raise type(cause)(*cause.args) from error
            if isinstance(cause, BrokenProcessPool | MemoryError):  # the latter where memory has a limit, as by ulimit
                raise WorkerDiedError(
                    "a worker process of the job exited unexpectedly, most likely out of memory; free memory or give "
                    "fewer workers"
                ) from error
        if isinstance(error, BertError):
            raise type(error)(re.sub(_STEP, "", text)) from error
        if num_workers(options) is not None:
            for cause in causes[:2]:
                if isinstance(cause, OSError) and cause.strerror:  # such as a full disk
                    raise OSError(cause.errno, cause.strerror, cause.filename) from error
            raise
        logger.info("%s", text)
        if ours := _OUR_ERROR.search(text):
            raise getattr(errors, ours[1], BertError)(ours[2]) from error
        runner = options.view_as(StandardOptions).runner
        if reason := explain(error, options):
            raise UnavailableError(f"{runner}: {reason}; nothing was published, run the command again") from error
        reason = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), type(error).__name__)
        raise BertError(
            f"{runner}: the job failed ({reason[:500]}); nothing was published, see the logs of its workers"
        ) from error


class ParallelFlatMap(DoFn):
    """Yield the results that `function` returns for each element, computed by the pool if there is one.

    In place of a `BertError` a `Failure` is yielded, and the elements of the bundle that are left are skipped.
    `progress` says for how much a result counts.
    """

    def __init__(self, function: Callable[[Any], Iterable[Any]], progress: Callable[[Any], int] | None = None) -> None:
        self._function = function
        self._progress = progress

    def start_bundle(self) -> None:
        self._has_failed = False
        self._futures: list[Future[list[Any]]] = []

    def process(self, element: Any) -> Iterator[Any]:
        if _pool is None or failures_in(element):  # failures do not wait for the workers
            if not self._has_failed:
                for result in guarded(self._function, element):
                    yield self._counted(result)
        elif not _has_failed:
            # Results are yielded in `finish_bundle`: waiting here would leave all workers but one idle.
            self._futures.append(_pool.submit(_call, self._function, element))

    def finish_bundle(self) -> Iterator[WindowedValue]:
        # In order of completion, so that a failure is handed on before longer elements end; the pool is ended then.
        if self._has_failed:
            return
        for future in as_completed(self._futures):
            for result in future.result():
                yield GlobalWindows.windowed_value(self._counted(result))
            if self._has_failed:
                return

    def _counted(self, result: Any) -> Any:
        global _has_failed, _progress
        if isinstance(result, Failure):
            self._has_failed = _has_failed = True
        elif self._progress is not None:
            _progress += self._progress(result)
        return result


def shard_rows(corpus: Manifest) -> dict[str, int | None]:
    """Return the shards of a corpus with their rows: the plan of a job that has a result for each."""
    return {name: entry.get("rows") for name, entry in corpus.files.items() if name.startswith("documents-")}


@beam.ptransform_fn  # type: ignore[untyped-decorator]
def ForEachShard(pipeline: Any, function: Callable[[int, Path], Sequence[Result]], corpus: Manifest) -> Any:
    """Yield the results of `function(index, path)` for each shard of a corpus, of which `path` is a local file."""
    shards = [
        (index, (corpus.path / name).resolve(), corpus.files[name]["sha256"])
        for index, name in enumerate(shard_rows(corpus))
    ]
    of_shard = functools.partial(_of_shard, function=function)
    step = ParallelFlatMap(of_shard, lambda result: 1)
    return pipeline | beam.Create(shards, reshuffle=False) | beam.Reshuffle() | beam.ParDo(step)


def _of_shard(shard: tuple[int, Path, str], *, function: Callable[[int, Path], Sequence[Result]]) -> Sequence[Result]:
    index, path, sha256 = shard
    with checked_copy(path, sha256) as local:
        return function(index, local)


def _call(function: Callable[[Any], Iterable[Any]], element: Any) -> list[Any]:
    return list(guarded(function, element))


def _start_worker(running: Connection, scratch: str) -> None:
    """Make the worker exit without a traceback on Ctrl-C, and when the other end of `running` is closed.

    The worker also exits when its parent process ends. Its temporary files are in `scratch`.
    """
    tempfile.tempdir = scratch
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    exit_with_parent(running)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
