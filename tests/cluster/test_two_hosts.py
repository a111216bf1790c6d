"""A pre-training on two hosts, one of which is cut off from the network in the middle of a step."""

import json
import sys
import time
from typing import Any

import fsspec
import pytest
from dagster_api import wait_for
from network import INTERFACE, Host
from processes import Server
from small_training import configuration, read_events, train_events, write_data
from two_ranks import run_pretraining

from bert_model.training.metrics_log import METRICS_NAME
from bert_pipeline import storage
from bert_pipeline.manifest import load_manifest

TIMEOUT_SECONDS = 10
PORT = 29500

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600, method="signal")]


@pytest.mark.parametrize("kind", ["buffer", "ddp"])
def test_cut_off_host_ends_both_and_both_resume_bit_for_bit(tmp_path, network, kind):
    if not network.separate:
        pytest.skip("hosts without network namespaces cannot be cut off: run as root")
    config = configuration(write_data(tmp_path), data_parallel=kind, timeout_seconds=TIMEOUT_SECONDS)
    config["phases"][0]["steps"] = 120
    config["checkpoint_interval_steps"] = 10
    whole, output = tmp_path / "whole", tmp_path / "training"
    codes, reports, _ = run_pretraining(config, whole)
    assert codes == [0, 0], reports

    hosts = [network.host(f"{kind}-{number}") for number in range(2)]
    ranks = start(hosts, config, str(output))
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
    ranks = start(hosts, config, str(output))
    assert [wait(rank, time.monotonic() + 300) for rank in ranks] == [0, 0], ranks[0].tail()
    (resumed,) = [event["step"] for event in read_events(output) if event["event"] == "resume"]
    assert resumed >= 10
    assert train_events(output) == train_events(whole)
    assert load_manifest(output / "model").sha256 == load_manifest(whole / "model").sha256


def test_replaced_host_resumes_from_the_store(tmp_path, network, store_environment, folder):
    if not network.separate:
        pytest.skip("hosts without network namespaces cannot be cut off: run as root")
    data = write_data(tmp_path)
    config = configuration(
        data, data_parallel="fsdp", timeout_seconds=3 * TIMEOUT_SECONDS, checkpoint_interval_steps=10
    )
    config["phases"][0]["steps"] = 120
    whole, output = tmp_path / "whole", f"{folder}/training"
    codes, reports, _ = run_pretraining(config, whole)
    assert codes == [0, 0], reports

    # Data and checkpoints are in the store; a host sees nothing else, and has a disk of its own.
    for name, directory in data.items():
        fsspec.filesystem("s3").put(f"{directory}/", f"{folder}/{name}/", recursive=True)
    for phase, name in zip(config["phases"], data):
        phase["instances"] = f"{folder}/{name}"
    hosts = [network.host(f"store-{number}") for number in range(3)]
    ranks = start(hosts[:2], config, output, environment=store_environment, image=True)
    checkpoint = f"{output}/checkpoints/step-00000010/manifest.json"
    ranks[0].wait(lambda: storage.is_file(checkpoint))
    # The host of rank 0 vanishes, with the checkpoints on its disk.
    hosts[0].cut()
    assert wait(ranks[1], time.monotonic() + 20 * TIMEOUT_SECONDS) == 1
    assert f"the checkpoints are in {output}; start again with --resume" in ranks[1].log.read_text(encoding="utf-8")
    hosts[0].stop()

    # Another one takes its place.
    ranks = start(hosts[1:], config, output, environment=store_environment, image=True)
    assert [wait(rank, time.monotonic() + 300) for rank in ranks] == [0, 0], ranks[0].tail()
    copy = tmp_path / "copy"
    fsspec.filesystem("s3").get(f"{output}/", f"{copy}/", recursive=True)
    (resumed,) = [event["step"] for event in read_events(copy) if event["event"] == "resume"]
    assert resumed >= 10
    assert train_events(copy) == train_events(whole)
    assert load_manifest(copy / "model", verify="sha256").sha256 == load_manifest(whole / "model").sha256


SCRIPT = 'export BERT_HOME="$TMPDIR/home"; printf %s "$CONFIGURATION" > "$TMPDIR/config.yaml"; exec "$@"'


def start(
    hosts: list[Host],
    config: dict[str, Any],
    output: str,
    *,
    environment: dict[str, str] | None = None,
    image: bool = False,
) -> list[Server]:
    """Start torchrun with one rank on each host; without `image` the hosts share this machine's disk."""
    ranks = []
    for rank, host in enumerate(hosts):
        settings = f"{'/tmp' if image else host.directory}/config.yaml"
        arguments = ["--config", settings, "--output", output, "--resume", "--experiment", "", "--device=cpu"]
        meeting = [f"--nnodes={len(hosts)}", f"--node-rank={rank}", "--nproc-per-node=1", "--max-restarts=0"]
        meeting += [f"--master-addr={hosts[0].address}", f"--master-port={PORT}"]
        command = [sys.executable, "-m", "torch.distributed.run", *meeting, "-m", "bert_model.pretraining", *arguments]
        variables = {"GLOO_SOCKET_IFNAME": INTERFACE, "CONFIGURATION": json.dumps(config), **(environment or {})}
        ranks.append(host.server(f"rank-{rank}", ["sh", "-c", SCRIPT, "sh", *command], variables, image=image))
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
