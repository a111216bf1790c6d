"""Pool of persistent training processes, so that many small trainings pay for their imports once.

Each worker is a fresh process (forkserver). Every job has the same number of threads, so its result does not depend on
the number of workers; as many jobs run at once as cores and memory hold. Jobs report their progress to the parent while
they run. A worker exits when the process that started the pool is gone, however that ended, and when the parent stops
waiting for it: on an interruption, or on the error of another job.
"""

import collections
import concurrent.futures
import contextlib
import functools
import logging
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

import psutil
import torch

from bert_model.training.distributed import keep_freed_memory
from bert_pipeline.errors import UsageError, WorkerDiedError
from bert_pipeline.parent import exit_with_parent

logger = logging.getLogger(__name__)

Report = Callable[[Any], None]
"""Takes what a running job reports, such as a `TrialProgress`."""

DRAIN_SECONDS = 0.25
"""Interval at which reports are handed on while a result is awaited."""
MEMORY_SHARE = 0.8
"""Share of the memory that jobs may take: their first step seldom has the longest batch, and the parent scores."""

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


class Job(Protocol[Result_co]):
    """A picklable description of work, such as a `TrialJob` or a `FeatureJob`."""

    def run(self, *, device: str, num_threads: int, report: Report) -> Result_co:
        """Do the work on a device with so many CPU threads, and report on it."""
        ...


class WorkerPool(contextlib.AbstractContextManager["WorkerPool"]):
    """Runs jobs on `num_workers` processes, or in this process if that is 0."""

    def __init__(self, *, num_workers: int | None = None) -> None:
        """By default there is a worker for each GPU, or without GPUs for each CPU that this process may use."""
        self.num_cores = len(os.sched_getaffinity(0))
        self.devices = [f"cuda:{number}" for number in range(torch.cuda.device_count())] or ["cpu"]
        if num_workers is None:
            num_workers = len(self.devices) if self.devices != ["cpu"] else self.num_cores
        if num_workers < 0:
            raise UsageError(f"workers: found {num_workers}, expected 0 (this process) or more")
        self.num_workers = num_workers
        self.num_threads = 1
        """CPU threads of each job, which a fine-tuning sets before its jobs."""
        self._executor: ProcessPoolExecutor | None = None
        self._stop: Connection | None = None  # workers exit when this end is closed
        self._permits: Any = None  # a semaphore that each running job holds
        self._reports: collections.deque[Any] = collections.deque()

    def threads_for(self, num_jobs: int) -> int:
        """Return how many threads each of so many jobs has if those that run at once use all cores; 1 on GPUs."""
        parallel = min(max(self.num_workers, 1), num_jobs)
        return max(1, self.num_cores // parallel) if self.devices == ["cpu"] else 1

    def run(self, jobs: Sequence[Job[Result]], on_report: Report | None = None) -> Iterator[Result]:
        """Yield the results of jobs in their order, each as soon as it and those before it are done.

        `on_report` gets the reports of all running jobs, in this thread, while a result is awaited. The exception of
        a job is raised here; it ends the other jobs, and so does an interruption. WorkerDiedError if a worker dies or
        its GPU has too little memory. Jobs that report start when the first has, and shown its size (`_num_in_memory`).
        """
        hand_on = on_report or (lambda report: None)
        self._reports.clear()  # those of an earlier run that was broken off concern none of these jobs
        futures: list[Future[Result]] = []
        try:
            if self.num_workers == 0:
                for job in jobs:
                    yield job.run(device=self.devices[0], num_threads=self.num_threads, report=hand_on)
                return
            executor = self.workers()
            # All jobs are submitted, so that no worker waits for a parent that is busy scoring; permits limit them.
            while self._permits.acquire(block=False):
                pass
            at_once = min(len(jobs), max(self.num_workers, self.num_cores) // self.num_threads, self.num_workers) or 1
            measures = on_report is not None and at_once > 1
            self._permit(1 if measures else at_once)
            futures += [executor.submit(_run_in_worker, job, self.num_threads) for job in jobs]
            # Results are awaited in order; meanwhile the reports of all running jobs are passed to the caller.
            for future in futures:
                is_done = False
                while not is_done:
                    is_done = bool(concurrent.futures.wait([future], DRAIN_SECONDS).done)
                    if measures and (self._reports or any(future.done() for future in futures)):
                        measures = False
                        self._permit(self._num_in_memory(at_once) - 1)
                    while self._reports:
                        hand_on(self._reports.popleft())
                yield future.result()
        except torch.OutOfMemoryError as error:
            raise WorkerDiedError(
                "a GPU has too little memory for a fine-tuning; give gradient_accumulation=2 or more, which computes "
                f"the same, or a smaller max_seq_length ({error})"
            ) from error
        except BrokenProcessPool as error:
            self.close()
            raise WorkerDiedError(
                f"a fine-tuning worker exited unexpectedly, most likely out of memory ({self.num_workers} workers); "
                "free memory, lower workers, batch_sizes or max_seq_length, or give gradient_accumulation=2 or more, "
                "which computes the same"
            ) from error
        finally:
            # After an error or an interruption: jobs that are not yet started are dropped, running ones killed.
            for future in futures:
                future.cancel()
            if not all(future.done() for future in futures):
                self.kill()

    def _permit(self, num_jobs: int) -> None:
        """Let so many more jobs run at once."""
        for _ in range(num_jobs):
            self._permits.release()

    def _num_in_memory(self, limit: int) -> int:
        """Return how many jobs, up to a limit, the memory has room for if each is as large as the largest now."""
        sizes = [1]
        with contextlib.suppress(psutil.Error):  # a process has ended
            for server in psutil.Process().children():
                sizes += [worker.memory_full_info().uss for worker in server.children()]  # what they share exists
        room = MEMORY_SHARE * (psutil.virtual_memory().available + sum(sizes))
        if (number := max(1, int(room // max(sizes)))) < limit:
            logger.warning(
                f"the memory has room for {number} trainings of {max(sizes) / 1e9:.1f} GB at once, the cores for "
                f"{limit}; a larger `threads` gives each more cores"
            )
        return min(number, limit)

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
            self._permits = context.Semaphore(0)
            threading.Thread(target=_collect, args=(reader, stopped, self._reports), daemon=True).start()
            self._executor = ProcessPoolExecutor(
                self.num_workers,
                mp_context=context,
                initializer=_start_worker,
                initargs=(devices, stopped, writer, context.Lock(), self._permits),
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
"""Within a worker process: its device, its way to report, and the semaphore that a job holds while it runs."""


def _start_worker(devices: Any, stopped: Connection, writer: Connection, lock: Any, permits: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all processes; the parent ends the workers
    exit_with_parent(stopped)  # workers outlive neither the parent nor a closed pool
    keep_freed_memory()

    # All workers write to one pipe: the lock keeps their messages apart.
    def report(message: Any) -> None:
        with lock:
            writer.send(message)

    _worker.update(device=devices.get(), report=report, permits=permits)


def _run_in_worker(job: Job[Result], num_threads: int) -> Result:
    with _worker["permits"]:
        return job.run(device=_worker["device"], num_threads=num_threads, report=_worker["report"])


def _collect(reader: Connection, stopped: Connection, reports: collections.deque[Any]) -> None:
    """Move reports from the workers' connection to a queue of this process, until the pool is closed."""
    with contextlib.suppress(EOFError):  # no process can report any more
        while stopped not in multiprocessing.connection.wait([reader, stopped]):
            reports.append(reader.recv())
