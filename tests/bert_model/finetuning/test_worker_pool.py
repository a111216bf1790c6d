"""Workers get the devices in turn, share cores and memory, and the death of a worker is an error with a reason."""

import multiprocessing
import os
import re
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bert_model.finetuning import worker_pool
from bert_model.finetuning.worker_pool import WorkerPool
from bert_pipeline.errors import UsageError, WorkerDiedError


def device_of_this_worker(meeting: Path, number: int) -> str:
    """Wait for so many workers, so that none answers twice; return this one's device."""
    (meeting / str(os.getpid())).touch()
    while len(list(meeting.iterdir())) < number:
        time.sleep(0.01)
    return str(worker_pool._worker["device"])


class Deadly:
    """A job that ends its process, as a kill for memory does."""

    def run(self, *, device, num_threads, report):
        os._exit(9)


def test_workers_get_the_devices_in_turn(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with WorkerPool(num_workers=3) as pool:
        assert pool.devices == ["cuda:0", "cuda:1"]
        answers = [pool.workers().submit(device_of_this_worker, tmp_path, 3) for _ in range(3)]
        found = sorted(answer.result(timeout=240) for answer in answers)
    assert found == ["cuda:0", "cuda:0", "cuda:1"]


class Alone:
    """A job that takes memory and fails while another one runs; returns its number of threads."""

    def __init__(self, folder: Path, size: int = 0) -> None:
        self.folder, self.size = folder, size

    def run(self, *, device, num_threads, report):
        held = b"x" * self.size
        (self.folder / "running").mkdir()
        report(len(held))
        time.sleep(0.6)
        (self.folder / "running").rmdir()
        return num_threads


def test_no_more_jobs_run_at_once_than_memory_holds(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=100_000_000))
    with WorkerPool(num_workers=2) as pool:
        assert list(pool.run([Alone(tmp_path, 300_000_000) for _ in range(3)], lambda report: None)) == [1, 1, 1]
    assert re.search(r"room for 1 trainings of 0\.\d GB at once, the cores for 2; a larger `threads`", caplog.text)


def test_no_more_jobs_run_at_once_than_cores_have_threads(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(2))
    with WorkerPool() as pool:
        pool.num_threads = 2
        assert list(pool.run([Alone(tmp_path) for _ in range(2)])) == [2, 2]


def test_trainings_that_run_at_once_share_all_cores_or_have_a_gpu_each(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(16))
    assert [WorkerPool().threads_for(number) for number in (1, 3, 12, 100)] == [16, 5, 1, 1]
    assert [WorkerPool(num_workers=number).threads_for(12) for number in (0, 2)] == [16, 8]
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    pool = WorkerPool()
    assert (pool.num_workers, pool.devices, pool.threads_for(1)) == (3, ["cuda:0", "cuda:1", "cuda:2"], 1)


def test_dead_worker_raises_and_pool_can_be_reused(tmp_path):
    with WorkerPool(num_workers=1) as pool:
        with pytest.raises(WorkerDiedError, match=r"out of memory \(1 workers\); .* lower workers, batch_sizes"):
            list(pool.run([Deadly()]))
        assert pool.workers().submit(device_of_this_worker, tmp_path, 1).result(timeout=240) == "cpu"


class Large:
    """A job that needs more memory than a GPU has."""

    def run(self, *, device, num_threads, report):
        raise torch.OutOfMemoryError("tried to allocate 20 GiB")


@pytest.mark.parametrize("workers", [0, 1])
def test_gpu_of_too_little_memory_is_an_error_with_a_remedy(workers):
    with (
        WorkerPool(num_workers=workers) as pool,
        pytest.raises(WorkerDiedError, match=r"too little memory .* gradient_accumulation=2 .*allocate 20 GiB"),
    ):
        list(pool.run([Large()]))


def test_negative_number_of_workers_is_refused():
    with pytest.raises(UsageError, match="workers: found -1, expected 0"):
        WorkerPool(num_workers=-1)


def test_worker_that_died_while_idle_is_reported_and_replaced(tmp_path):
    with WorkerPool(num_workers=1) as pool:
        executor = pool.workers()
        with pytest.raises(BrokenProcessPool):
            executor.submit(os._exit, 9).result(timeout=240)
        with pytest.raises(WorkerDiedError):
            list(pool.run([Deadly()]))
        assert pool.workers().submit(device_of_this_worker, tmp_path, 1).result(timeout=240) == "cpu"


def use_the_shared_pool(meeting: Path) -> None:
    """Work in a process that multiprocessing started, like a step of Dagster."""
    worker_pool.shared_pool(num_workers=1).workers().submit(device_of_this_worker, meeting, 1).result()


def test_child_process_exits_with_its_shared_pool(tmp_path):
    process = multiprocessing.get_context("spawn").Process(target=use_the_shared_pool, args=(tmp_path,))
    process.start()
    process.join(240)
    hangs = process.is_alive()
    process.kill()
    assert not hangs
    assert process.exitcode == 0
