"""A pre-training on two hosts, one of which is cut off from the network in the middle of a step."""

import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from dagster_api import wait_for
from network import INTERFACE, Host, Network
from processes import Server
from small_training import configuration, read_events, train_events, write_data
from two_ranks import run_pretraining

from bert_model.training.metrics_log import METRICS_NAME
from bert_pipeline.manifest import load_manifest

TIMEOUT_SECONDS = 10
PORT = 29500

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600, method="signal")]


@pytest.mark.parametrize("kind", ["buffer", "ddp"])
def test_cut_off_host_ends_both_and_both_resume_bit_for_bit(tmp_path: Path, network: Network, kind: str) -> None:
    if not network.separate:
        pytest.skip("hosts without network namespaces cannot be cut off: run as root")
    config = configuration(write_data(tmp_path), data_parallel=kind, timeout_seconds=TIMEOUT_SECONDS)
    config["phases"][0]["steps"] = 120
    config["checkpoint_interval_steps"] = 10
    whole, output = tmp_path / "whole", tmp_path / "training"
    codes, reports, _ = run_pretraining(config, whole)
    assert codes == [0, 0], reports

    hosts = [network.host(f"{kind}-{number}") for number in range(2)]
    ranks = start(hosts, config, output)
    wait_for(lambda: (output / METRICS_NAME).exists() and len(train_events(output)) > 12, "training steps")
    hosts[1].cut()
    # Both end, without the other's help: neither connection is closed.
    deadline = time.monotonic() + 12 * TIMEOUT_SECONDS
    assert [wait(rank, deadline) for rank in ranks] == [1, 1]
    first, second = (rank.log.read_text(encoding="utf-8") for rank in ranks)
    assert "rank 0 lost the other ranks at step" in first
    assert "start again with --resume" in first
    assert "rank 1 lost the other ranks at step" in second
    assert f"it waited for the machine of rank 0 ({hosts[0].address}), which does not answer" in second

    # The cable is back: both start again, from the last checkpoint.
    hosts[1].reconnect()
    ranks = start(hosts, config, output)
    assert [wait(rank, time.monotonic() + 300) for rank in ranks] == [0, 0], ranks[0].tail()
    (resumed,) = [event["step"] for event in read_events(output) if event["event"] == "resume"]
    assert resumed >= 10
    assert train_events(output) == train_events(whole)
    assert load_manifest(output / "model").sha256 == load_manifest(whole / "model").sha256


def start(hosts: list[Host], config: dict[str, Any], output: Path) -> list[Server]:
    """Start torchrun with one rank on each host; the hosts share this machine's disk."""
    settings = output.with_suffix(".yaml")
    settings.write_text(yaml.safe_dump(config), encoding="utf-8")
    arguments = ["--config", str(settings), "--output", str(output), "--resume", "--experiment", "", "--device=cpu"]
    ranks = []
    for rank, host in enumerate(hosts):
        meeting = [f"--nnodes={len(hosts)}", f"--node-rank={rank}", "--nproc-per-node=1", "--max-restarts=0"]
        meeting += [f"--master-addr={hosts[0].address}", f"--master-port={PORT}"]
        command = [sys.executable, "-m", "torch.distributed.run", *meeting, "-m", "bert_model.pretraining", *arguments]
        environment = {"GLOO_SOCKET_IFNAME": INTERFACE, "BERT_HOME": str(output / "home")}
        ranks.append(host.server(f"rank-{rank}", command, environment, image=False))
        ranks[-1].log.unlink(missing_ok=True)
        ranks[-1].start()
    return ranks


def wait(rank: Server, deadline: float) -> int:
    """Return the exit code of a host's torchrun; TimeoutExpired if it does not end in time."""
    assert rank.process is not None
    try:
        return rank.process.wait(max(1.0, deadline - time.monotonic()))
    finally:
        rank.stop()
