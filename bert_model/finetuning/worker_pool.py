"""Pool of persistent training processes, so that many small trainings pay for their imports once.

Each worker is a fresh process (forkserver) with a fixed number of threads, so a result does not depend on the number of
workers. Jobs report their progress to the parent while they run. A worker exits when the process that started the pool
is gone, however that ended, and when the parent stops waiting for it: on an interruption, or on the error of another
job.
"""

import collections
import concurrent.futures
import contextlib
import functools
import multiprocessing
import multiprocessing.connection
import multiprocessing.util
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from typing import Any, Protocol, TypeVar

import torch

from bert_model.training.distributed import keep_freed_memory
from bert_pipeline.errors import UsageError, WorkerDiedError
from bert_pipeline.parent import exit_with_parent

Report = Callable[[Any], None]
"""Takes what a running job reports, such as a `TrialProgress`."""

DRAIN_SECONDS = 0.25
"""Interval at which reports are handed on while a result is awaited."""

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


class Job(Protocol[Result_co]):
    """A picklable description of work, such as a `TrialJob` or a `FeatureJob`."""

    def run(self, *, device: str, num_threads: int, report: Report) -> Result_co:
        """Do the work on a device with so many CPU threads, and report on it."""
        ...


class WorkerPool:
    """Runs jobs on `num_workers` processes, or in this process if that is 0."""

    def __init__(self, *, num_workers: int | None = None, threads_per_worker: int = 1) -> None:
        """By default there is a worker for each GPU, or without GPUs for each CPU that this process may use."""
        self.devices = [f"cuda:{number}" for number in range(torch.cuda.device_count())] or ["cpu"]
        if num_workers is None:
            num_workers = len(self.devices) if self.devices != ["cpu"] else len(os.sched_getaffinity(0))
        if num_workers < 0:
            raise UsageError(f"workers: found {num_workers}, expected 0 (this process) or more")
        self.num_workers = num_workers
        self.threads_per_worker = threads_per_worker
        self._executor: ProcessPoolExecutor | None = None
        self._stop: Connection | None = None  # workers exit when this end is closed
        self._reports: collections.deque[Any] = collections.deque()

    def run(self, jobs: Sequence[Job[Result]], on_report: Report | None = None) -> Iterator[Result]:
        """Yield the results of jobs in their order, each as soon as it and those before it are done.

        `on_report` gets the reports of all running jobs, in this thread, while a result is awaited. The exception of
        a job is raised here; it ends the other jobs, and so does an interruption. WorkerDiedError if a worker dies or
        its GPU has too little memory.
        """
        try:
            yield from self._run(jobs, on_report or _ignore)
        except torch.OutOfMemoryError as error:
            raise WorkerDiedError(
                "a GPU has too little memory for a fine-tuning; give gradient_accumulation=2 or more, which computes "
                f"the same, or a smaller max_seq_length ({error})"
            ) from error

    def _run(self, jobs: Sequence[Job[Result]], hand_on: Report) -> Iterator[Result]:
        if self.num_workers == 0:
            for job in jobs:
                yield job.run(device=self.devices[0], num_threads=self.threads_per_worker, report=hand_on)
            return

        # Reports of an earlier run that was broken off concern none of these jobs.
        self._reports.clear()
        futures: list[Future[Result]] = []
        try:
            futures += [self.workers().submit(_run_in_worker, job) for job in jobs]
            # Results are awaited in order; meanwhile the reports of all running jobs are passed to the caller.
            for future in futures:
                is_done = False
                while not is_done:
                    is_done = bool(concurrent.futures.wait([future], DRAIN_SECONDS).done)
                    while self._reports:
                        hand_on(self._reports.popleft())
                yield future.result()
        except BrokenProcessPool as error:
            self.close()
            raise WorkerDiedError(
                "a fine-tuning worker exited unexpectedly, most likely out of memory; free memory, or give fewer "
                "workers or a smaller batch"
            ) from error
        finally:
            # After an error or an interruption: jobs that are not yet started are dropped, running ones killed.
            for future in futures:
                future.cancel()
            if not all(future.done() for future in futures):
                self.kill()

    def workers(self) -> ProcessPoolExecutor:
        """Return the processes, started on first use; the devices are assigned to them in turn."""
        if self._executor is None:
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(["bert_model.finetuning.trial"])
            # Each worker takes one device from the queue when it starts.
            devices = context.SimpleQueue()
            for number in range(self.num_workers):
                devices.put(self.devices[number % len(self.devices)])
            # Closing this end of the pipe, in `kill` or by the end of this process, ends all workers.
            stopped, self._stop = context.Pipe(duplex=False)
            # A thread reads reports at once: a worker must not wait for a parent that is busy scoring.
            reader, writer = context.Pipe(duplex=False)
            threading.Thread(target=_collect, args=(reader, stopped, self._reports), daemon=True).start()
            self._executor = ProcessPoolExecutor(
                self.num_workers,
                mp_context=context,
                initializer=_start_worker,
                initargs=(devices, self.threads_per_worker, stopped, writer, context.Lock()),
            )
        return self._executor

    def close(self) -> None:
        """End the workers when they have finished their jobs. A closed pool starts new ones when it is used again."""
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)
            self._executor = None
        if self._stop is not None:
            self._stop.close()
            self._stop = None

    def kill(self) -> None:
        """End the workers at once, in the middle of their jobs."""
        if self._stop is not None:
            self._stop.close()
        self.close()

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@functools.cache
def shared_pool(*, num_workers: int | None = None) -> WorkerPool:
    """Return this process's pool of that size, which lives until the process ends."""
    pool = WorkerPool(num_workers=num_workers)
    # Not by atexit: a process that multiprocessing started, like a run of Dagster, waits for its children first.
    multiprocessing.util.Finalize(None, pool.close, exitpriority=100)  # before its queues
    return pool


_worker: dict[str, Any] = {}
"""Within a worker process: its device, its number of threads and its way to report."""


def _start_worker(devices: Any, num_threads: int, stopped: Connection, writer: Connection, lock: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all processes; the parent ends the workers
    exit_with_parent(stopped)  # workers outlive neither the parent nor a closed pool
    keep_freed_memory()

    # All workers write to one pipe: the lock keeps their messages apart.
    def report(message: Any) -> None:
        with lock:
            writer.send(message)

    _worker.update(device=devices.get(), num_threads=num_threads, report=report)


def _run_in_worker(job: Job[Result]) -> Result:
    return job.run(**_worker)


def _collect(reader: Connection, stopped: Connection, reports: collections.deque[Any]) -> None:
    """Move reports from the workers' connection to a queue of this process, until the pool is closed."""
    with contextlib.suppress(EOFError):  # no process can report any more
        while stopped not in multiprocessing.connection.wait([reader, stopped]):
            reports.append(reader.recv())


def _ignore(report: Any) -> None:
    """Discard a report."""
