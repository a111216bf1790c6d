"""The watchdog of one rank, and ranks that work alone for a while."""

import os
import time

import pytest
import torch
from two_ranks import run_ranks

from bert_model.training.distributed import Group, LostRanksError, OtherRankError, Watchdog, process_group
from bert_pipeline.errors import UsageError


@pytest.mark.parametrize("world_size", [1, 2])
def test_watchdog_without_a_store_counts_steps_only(world_size):
    watchdog = Watchdog(Group(rank=0, world_size=world_size, device=torch.device("cpu")), 60)
    with watchdog:
        watchdog.report_step(3)
    assert watchdog.step == 3
    assert watchdog.stalled_ranks(is_lost=True) == ""


def test_watchdog_takes_no_pause_for_a_stall(caplog):
    group = Group(rank=0, world_size=1, device=torch.device("cpu"), store=torch.distributed.HashStore())
    with Watchdog(group, 0.2) as watchdog:
        watchdog.report_step(3)
        with watchdog.paused():
            before = caplog.text  # a machine that is busy may have stalled already
            time.sleep(0.4)
            assert caplog.text == before
        time.sleep(0.4)
    assert "rank 0 has been at step 3" in caplog.text


def work_longer_than_the_timeout():
    with process_group(10, "cpu") as group:

        def work():
            time.sleep(12)
            return group.rank

        assert group.call_on_main(work) == 0


def test_others_wait_for_a_rank_longer_than_the_timeout_while_it_lives():
    assert run_ranks(2, work_longer_than_the_timeout) == [0, 0]


def fail_alone():
    with process_group(30, "cpu") as group:

        def work():
            if group.rank == 1:
                raise UsageError("mine")

        with pytest.raises(UsageError if group.rank == 1 else OtherRankError) as raised:
            group.on_all_ranks(work)
        assert raised.value.exit_code == UsageError.exit_code


def test_failure_of_one_rank_ends_the_others_with_its_exit_code():
    assert run_ranks(2, fail_alone) == [0, 0]


def lose_a_rank():
    started = time.monotonic()
    with pytest.raises(LostRanksError), process_group(60, "cpu") as group:
        group.on_all_ranks(lambda: None if group.rank == 0 else os._exit(7))
    assert time.monotonic() - started < 45


def test_rank_that_dies_at_work_is_noticed_before_the_timeout():
    assert run_ranks(2, lose_a_rank) == [0, 7]


def test_rank_without_a_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(UsageError, match="found 2 GPUs, local rank 2 has none"), process_group(10, "cuda"):
        pass
