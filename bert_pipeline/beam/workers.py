"""Worker processes for the expensive steps of a Beam job on one machine.

Beam runs in this process; `ParallelFlatMap` hands the elements of a step to a pool of processes, in which each worker
takes the next element when it is done. Beam's own `--direct_running_mode=multi_processing` deals out all elements in
advance, keeps waiting for a worker that was killed, and repeats every log record of its workers (docs/decisions/0015).
"""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from typing import Any, TypeVar

from apache_beam import DoFn
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from bert_pipeline.beam.options import num_processes
from bert_pipeline.errors import BertError

Element = TypeVar("Element")
Result = TypeVar("Result")

_pool: ProcessPoolExecutor | None = None
"""The pool of the running job; None where Beam's workers compute themselves."""


@contextlib.contextmanager
def worker_processes(options: PipelineOptions, *, preload: str) -> Iterator[None]:
    """Around a pipeline: run the pool for its `ParallelFlatMap` steps. BertError if a worker is killed.

    `preload` is the module of the steps' functions: it is imported once, and the workers are forked from there.
    """
    global _pool
    executor = None
    if num_processes(options) > 1:
        # The fork server has no threads; a fork of this process could inherit a lock that a thread of Beam holds.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([preload])
        executor = ProcessPoolExecutor(num_processes(options), mp_context=context, initializer=_start_worker)

    # Module state, because Beam pickles its steps and a pool cannot be pickled.
    _pool = executor
    try:
        yield
    except Exception as error:
        # Beam turns an exception of a step into another one, with the step's name in its message.
        causes = {type(cause) for cause in _causes(error)}
        if KeyboardInterrupt in causes:
            raise KeyboardInterrupt from error
        if BrokenProcessPool in causes:
            raise BertError(
                "a worker process of the job exited unexpectedly, most likely out of memory; free memory or give fewer "
                "workers"
            ) from error
        raise
    finally:
        _pool = None
        if executor is not None:
            executor.shutdown(cancel_futures=True)


class ParallelFlatMap(DoFn):
    """Yield the results that `function` returns for each element, computed by the pool if there is one."""

    def __init__(self, function: Callable[[Element], Iterable[Result]]) -> None:
        self._function = function

    def start_bundle(self) -> None:
        self._futures: list[Future[list[Any]]] = []

    def process(self, element: Any) -> Iterator[Any]:
        if _pool is None:
            yield from self._function(element)
        else:
            # Results are yielded in `finish_bundle`: waiting here would leave all workers but one idle.
            self._futures.append(_pool.submit(_call, self._function, element))

    def finish_bundle(self) -> Iterator[WindowedValue]:
        for future in self._futures:
            for result in future.result():
                yield GlobalWindows.windowed_value(result)


def _call(function: Callable[[Any], Iterable[Any]], element: Any) -> list[Any]:
    return list(function(element))


def _start_worker() -> None:
    """Make the worker exit without a traceback on Ctrl-C, and with the process that started it, however that ends."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_exit_after, args=(parent.sentinel,), daemon=True).start()


def _exit_after(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
