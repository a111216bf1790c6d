"""Trials spread over the devices, a worker to each, and a worker that dies is an error with a reason."""

import multiprocessing
import os
import time
from pathlib import Path

import pytest

from bert_model.finetuning import worker_pool
from bert_model.finetuning.worker_pool import TrialPool, WorkerDied


def device_of_this_worker(meeting: Path, number: int) -> tuple[str, int]:
    """Wait until so many workers have come to the meeting, so that none answers twice."""
    (meeting / str(os.getpid())).touch()
    while len(list(meeting.iterdir())) < number:
        time.sleep(0.01)
    return worker_pool._worker["device"], worker_pool._worker["threads"]


class Deadly:
    """A job that ends its process, as a kill for memory does."""

    @property
    def onednn(self):
        os._exit(9)


def test_every_worker_has_a_device_of_its_own_in_turn(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with TrialPool(num_workers=3, threads_per_worker=2) as pool:
        assert pool.devices == ["cuda:0", "cuda:1"]
        answers = [pool.workers().submit(device_of_this_worker, tmp_path, 3) for _ in range(3)]
        found = sorted(answer.result(timeout=240) for answer in answers)
    assert found == [("cuda:0", 2), ("cuda:0", 2), ("cuda:1", 2)]


def test_worker_that_dies_is_an_error_and_the_pool_may_be_used_again(tmp_path):
    with TrialPool(num_workers=1) as pool:
        with pytest.raises(WorkerDied, match="most likely killed for memory"):
            list(pool.run([Deadly()]))
        assert pool.workers().submit(device_of_this_worker, tmp_path, 1).result(timeout=240) == ("cpu", 1)


def use_the_shared_pool(meeting: Path) -> None:
    """What a step of Dagster's is: the work of a process that multiprocessing started."""
    worker_pool.shared_pool(num_workers=1).workers().submit(device_of_this_worker, meeting, 1).result()


def test_process_that_multiprocessing_started_ends_with_its_shared_pool(tmp_path):
    process = multiprocessing.get_context("spawn").Process(target=use_the_shared_pool, args=(tmp_path,))
    process.start()
    process.join(240)
    hangs = process.is_alive()
    process.kill()
    assert not hangs
    assert process.exitcode == 0
