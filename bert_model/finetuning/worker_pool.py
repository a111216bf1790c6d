"""Pool of persistent training processes, so that many small trainings pay for their imports once.

Each worker is a fresh process (forkserver) with a fixed number of threads, so a result does not depend on the number of
workers. A worker exits when the process that started the pool is gone, however that ended.
"""

import multiprocessing
import multiprocessing.util
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from typing import Any, Protocol, TypeVar

import torch

from bert_model.training.distributed import keep_freed_memory
from bert_pipeline.errors import TrainingError

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


class Job(Protocol[Result_co]):
    """A picklable description of work, such as a `TrialJob` or a `FeatureJob`."""

    def run(self, *, device: str, num_threads: int) -> Result_co:
        """Do the work on a device with so many CPU threads."""
        ...


class WorkerDiedError(TrainingError):
    """A worker process exited without an exception: the outputs of finished jobs remain valid."""


class WorkerPool:
    """Runs jobs on `num_workers` processes, or in this process if that is 0."""

    def __init__(self, *, num_workers: int | None = None, threads_per_worker: int = 1) -> None:
        """By default there is a worker for each GPU, or without GPUs for each CPU that this process may use."""
        self.devices = [f"cuda:{number}" for number in range(torch.cuda.device_count())] or ["cpu"]
        if num_workers is None:
            num_workers = len(self.devices) if self.devices != ["cpu"] else len(os.sched_getaffinity(0))
        self.num_workers = num_workers
        self.threads_per_worker = threads_per_worker
        self._executor: ProcessPoolExecutor | None = None

    def run(self, jobs: Sequence[Job[Result]]) -> Iterator[Result]:
        """Yield the results of jobs in their order, each as soon as it and those before it are done.

        The exception of a job is raised here and cancels the jobs behind it. WorkerDiedError if a worker dies.
        """
        if self.num_workers == 0:
            for job in jobs:
                yield job.run(device=self.devices[0], num_threads=self.threads_per_worker)
            return
        futures: list[Future[Result]] = [self.workers().submit(_run_in_worker, job) for job in jobs]
        try:
            for future in futures:
                yield future.result()
        except BrokenProcessPool as error:
            self.close()
            raise WorkerDiedError(
                "a fine-tuning worker exited unexpectedly, most likely out of memory; free memory, or give fewer "
                "workers or a smaller batch"
            ) from error
        finally:
            for future in futures:
                future.cancel()

    def workers(self) -> ProcessPoolExecutor:
        """Return the processes, started on first use; the devices are assigned to them in turn."""
        if self._executor is None:
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(["bert_model.finetuning.trial"])
            devices = context.SimpleQueue()
            for number in range(self.num_workers):
                devices.put(self.devices[number % len(self.devices)])
            self._executor = ProcessPoolExecutor(
                self.num_workers,
                mp_context=context,
                initializer=_start_worker,
                initargs=(devices, self.threads_per_worker),
            )
        return self._executor

    def close(self) -> None:
        """End the workers. A closed pool starts new ones when it is used again."""
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)
            self._executor = None

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_shared: dict[tuple[int | None, int], WorkerPool] = {}


def shared_pool(*, num_workers: int | None = None, threads_per_worker: int = 1) -> WorkerPool:
    """Return this process's pool of that size, which lives until the process ends."""
    key = (num_workers, threads_per_worker)
    if key not in _shared:
        _shared[key] = WorkerPool(num_workers=num_workers, threads_per_worker=threads_per_worker)
        # Not by atexit: a process that multiprocessing started, like a step of Dagster, waits for its children first.
        multiprocessing.util.Finalize(None, _shared[key].close, exitpriority=100)  # before its queues
    return _shared[key]


_worker: dict[str, Any] = {}
"""Within a worker process: its device and its number of threads."""


def _start_worker(devices: Any, num_threads: int) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker is started by a pool"
    threading.Thread(target=_exit_with, args=(parent.sentinel,), daemon=True).start()
    keep_freed_memory()
    _worker.update(device=devices.get(), num_threads=num_threads)


def _exit_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


def _run_in_worker(job: Job[Result]) -> Result:
    return job.run(**_worker)
