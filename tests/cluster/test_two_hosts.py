"""A pre-training on two hosts, one of which is cut off from the network in the middle of a step."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from dagster_api import wait_for
from hosts import Host, torchrun, two_hosts
from processes import Server, free_port
from small_training import configuration, read_events, train_events, write_data
from two_ranks import run_pretraining

from bert_model.training.metrics_log import METRICS_NAME
from bert_pipeline.manifest import load_manifest

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_SECONDS = 10

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600, method="signal")]


@pytest.mark.parametrize("kind", ["buffer", "ddp"])
def test_cut_off_host_ends_both_and_both_resume_bit_for_bit(tmp_path: Path, kind: str) -> None:
    config = configuration(write_data(tmp_path), data_parallel=kind, timeout_seconds=TIMEOUT_SECONDS)
    config["phases"][0]["steps"] = 120
    config["checkpoint_interval_steps"] = 10
    whole, output = tmp_path / "whole", tmp_path / "training"
    codes, reports, _ = run_pretraining(config, whole)
    assert codes == [0, 0], reports

    with two_hosts() as hosts:
        ranks = start(hosts, config, output)
        wait_for(lambda: (output / METRICS_NAME).exists() and len(train_events(output)) > 12, "training steps")
        hosts[1].set_link("down")
        # Both end, without the other's help: neither connection is closed.
        deadline = time.monotonic() + 12 * TIMEOUT_SECONDS
        codes = [wait(rank, deadline) for rank in ranks]
        texts = [rank.log.read_text(encoding="utf-8") for rank in ranks]
        print(codes, time.monotonic() - deadline + 12 * TIMEOUT_SECONDS, *texts, sep="\n-----\n")
        assert codes == [1, 1]
        assert "rank 0 lost the other ranks at step" in texts[0]
        assert "start again with --resume" in texts[0]
        assert "rank 1 lost the other ranks at step" in texts[1]
        assert f"it waited for the machine of rank 0 ({hosts[0].address}), which does not answer" in texts[1]

        # The cable is back: both start again, from the last checkpoint.
        hosts[1].set_link("up")
        ranks = start(hosts, config, output)
        assert [wait(rank, time.monotonic() + 300) for rank in ranks] == [0, 0], ranks[0].tail()
    (resumed,) = [event["step"] for event in read_events(output) if event["event"] == "resume"]
    assert resumed >= 10
    assert train_events(output) == train_events(whole)
    assert load_manifest(output / "model").sha256 == load_manifest(whole / "model").sha256


def start(hosts: tuple[Host, Host], config: dict[str, Any], output: Path) -> list[Server]:
    """Start a rank on each host."""
    settings = output.with_suffix(".yaml")
    settings.write_text(yaml.safe_dump(config), encoding="utf-8")
    port = free_port()
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "BERT_HOME": str(output / "home")}
    ranks = []
    for rank, host in enumerate(hosts):
        arguments = ["--config", str(settings), "--output", str(output), "--resume", "--experiment", "", "--device=cpu"]
        log = output.with_name(f"{host.name}-{time.monotonic_ns()}.log")
        ranks.append(host.server(torchrun(hosts, rank, port, *arguments), dict(environment), log))
        ranks[-1].start()
    return ranks


def wait(rank: Server, deadline: float) -> int:
    """Return the exit code of a host's torchrun; AssertionError if it does not end in time."""
    assert rank.process is not None
    try:
        return rank.process.wait(max(1.0, deadline - time.monotonic()))
    finally:
        rank.stop()
