"""Two gloo ranks: gradients summed during the backward pass equal those summed after it."""

from pathlib import Path

import pytest
import torch
from torch import nn
from two_ranks import run_ranks

from bert_model.training import distributed
from bert_model.training.distributed import GradientBuffer, Group, Watchdog, process_group


def reduce_gradients(output: Path, overlaps: bool) -> None:
    """Accumulate the gradients of two micro-batches on each rank, sum them, and store the sums."""
    distributed.BUCKET_BYTES = 256  # several buckets
    with process_group(60, "cpu") as group:
        model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
        with torch.no_grad():
            for index, parameter in enumerate(model.parameters()):
                parameter.fill_(0.1 * (index + 1))
        buffer = GradientBuffer(model.parameters(), group, num_numbers=2)
        assert len(buffer._buckets) > 1
        if overlaps:  # as on GPUs
            buffer._overlaps = True
            buffer._install_hooks()
        for step in range(2):
            buffer.zero()
            for micro_batch in range(2):
                if micro_batch == 1:
                    buffer.expect_last_backward()
                inputs = torch.linspace(-1, 1 + group.rank + micro_batch + step, 20).view(4, 5)
                buffer.numbers += torch.tensor([1.0, group.rank])
                model(inputs).square().sum().backward()
            buffer.all_reduce()
        assert buffer.numbers.tolist() == [4.0, 2.0]
        torch.save(buffer.flat, output / f"{overlaps}-{group.rank}.pt")


def reduce_missing_gradients(output: Path) -> None:
    """Sum the gradients of a model of which each rank's loss uses another part, in three steps."""
    distributed.BUCKET_BYTES = 64  # one bucket for each layer
    with process_group(60, "cpu") as group:
        layers = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(4))
        buffer = GradientBuffer(layers.parameters(), group, num_numbers=1)
        buffer._overlaps = True
        buffer._install_hooks()
        used = [(0, 1, 3), (0, 2, 3)][group.rank]
        for _ in range(3):
            buffer.zero()
            buffer.expect_last_backward()
            torch.stack([layers[index](torch.ones(4)).sum() for index in used]).sum().backward()
            buffer.all_reduce()
        torch.save([layer.weight.grad for layer in layers], output / f"{group.rank}.pt")


def test_parameters_without_a_gradient_are_summed(tmp_path: Path) -> None:
    assert run_ranks(2, reduce_missing_gradients, tmp_path, timeout_seconds=60) == [0, 0]
    for rank in (0, 1):
        found = torch.load(tmp_path / f"{rank}.pt")
        assert [gradient.unique().tolist() for gradient in found] == [[2.0], [1.0], [1.0], [2.0]]


def test_overlapping_all_reduce_equals_one_at_the_end(tmp_path: Path) -> None:
    for overlaps in (False, True):
        assert run_ranks(2, reduce_gradients, tmp_path, overlaps) == [0, 0]
    paths = [tmp_path / f"{overlaps}-{rank}.pt" for overlaps in (False, True) for rank in (0, 1)]
    expected, *others = (torch.load(path) for path in paths)
    assert expected.count_nonzero() > 50
    assert all(torch.equal(expected, other) for other in others)


@pytest.mark.parametrize("world_size", [1, 2])
def test_watchdog_without_a_store_counts_steps_only(world_size: int) -> None:
    watchdog = Watchdog(Group(rank=0, world_size=world_size, device=torch.device("cpu")), 60)
    with watchdog:
        watchdog.report_step(3)
    assert watchdog.step == 3
    assert watchdog.stalled_ranks(is_lost=True) == ""
