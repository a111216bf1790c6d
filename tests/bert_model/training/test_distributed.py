"""The watchdog of one rank."""

import pytest
import torch

from bert_model.training.distributed import Group, Watchdog


@pytest.mark.parametrize("world_size", [1, 2])
def test_watchdog_without_a_store_counts_steps_only(world_size: int) -> None:
    watchdog = Watchdog(Group(rank=0, world_size=world_size, device=torch.device("cpu")), 60)
    with watchdog:
        watchdog.report_step(3)
    assert watchdog.step == 3
    assert watchdog.stalled_ranks(is_lost=True) == ""
