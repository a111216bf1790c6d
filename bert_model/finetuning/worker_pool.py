"""A persistent pool of training processes, so that many small trainings pay for their imports once.

Each worker is a fresh process (forkserver) with a fixed number of threads, so a trial's result does not depend on how
many workers there are. A worker ends by itself when the process that started the pool is gone, however that ended.
"""

import multiprocessing
import multiprocessing.util
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from typing import Any

from bert_model.finetuning.frozen_features import Extraction, run_extraction
from bert_model.finetuning.trial import Trial, TrialOutput, run_trial
from bert_model.training.distributed import keep_freed_memory
from bert_pipeline.errors import TrainingError

Job = Trial | Extraction


class WorkerDied(TrainingError):
    """A worker process ended without an exception: what the others finished is still good."""


class TrialPool:
    """Runs trials on `num_workers` processes, or in this process when that is 0."""

    def __init__(self, *, num_workers: int | None = None, threads_per_worker: int = 1) -> None:
        """Without a number there are as many workers as CPUs that this process may use, or one for each GPU."""
        self.devices = _devices()
        if num_workers is None:
            num_workers = len(self.devices) if self.devices != ["cpu"] else len(os.sched_getaffinity(0))
        self.num_workers = num_workers
        self.threads_per_worker = threads_per_worker
        self._executor: ProcessPoolExecutor | None = None

    def run(self, trials: Sequence[Trial]) -> Iterator[tuple[int, TrialOutput]]:
        """Yield (index, output) of the trials in their order, each as soon as it and those before it are done.

        The exception of a trial is raised here; the trials behind it are cancelled. WorkerDied when a worker dies.
        """
        if self.num_workers == 0:
            for index, trial in enumerate(trials):
                yield index, _run_job(trial, self.devices[0], self.threads_per_worker)
            return
        yield from self._run_on_workers(trials)

    def extract(self, extractions: Sequence[Extraction]) -> None:
        """Compute activations, several extractions at a time."""
        if self.num_workers == 0:
            for extraction in extractions:
                _run_job(extraction, self.devices[0], self.threads_per_worker)
            return
        for _ in self._run_on_workers(extractions):
            pass

    def _run_on_workers(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Any]]:
        futures: list[Future[Any]] = [self.workers().submit(_run_in_worker, job) for job in jobs]
        try:
            for index, future in enumerate(futures):
                yield index, future.result()
        except BrokenProcessPool as error:
            self.close()
            raise WorkerDied(
                "a fine-tuning worker died without a word, most likely killed for memory; free some, or give fewer "
                "workers or a smaller batch"
            ) from error
        finally:
            for future in futures:
                future.cancel()

    def close(self) -> None:
        """End the workers. The pool may be used again and starts new ones then."""
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)
            self._executor = None

    def __enter__(self) -> "TrialPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def workers(self) -> ProcessPoolExecutor:
        """The processes, started where they are not there yet, each with a device: one after the other, in turn."""
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


_shared: dict[tuple[int | None, int], TrialPool] = {}


def shared_pool(*, num_workers: int | None = None, threads_per_worker: int = 1) -> TrialPool:
    """Return this process's pool of that shape, which lives until the process ends."""
    key = (num_workers, threads_per_worker)
    if key not in _shared:
        _shared[key] = TrialPool(num_workers=num_workers, threads_per_worker=threads_per_worker)
        # Not by atexit: a process that multiprocessing started, like a step of Dagster, waits for its children first.
        multiprocessing.util.Finalize(None, _shared[key].close, exitpriority=100)  # before its queues
    return _shared[key]


def _devices() -> list[str]:
    import torch

    count = torch.cuda.device_count()
    return [f"cuda:{number}" for number in range(count)] or ["cpu"]


_worker: dict[str, Any] = {}


def _start_worker(devices: Any, threads: int) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker is started by a pool"
    threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    keep_freed_memory()
    _worker.update(device=devices.get(), threads=threads)


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


def _run_in_worker(job: Job) -> Any:
    return _run_job(job, _worker["device"], _worker["threads"])


def _run_job(job: Job, device: str, num_threads: int) -> Any:
    if isinstance(job, Extraction):
        return run_extraction(job, device=device, num_threads=num_threads)
    return run_trial(job, device=device, num_threads=num_threads)
