"""Faults during pre-training: killed and hung ranks, non-finite losses, lost machines."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from instances_fixture import write_instances
from processes import free_port
from small_training import configuration, train_events
from two_ranks import run_pretraining, run_ranks

from benchmarks.training import rank_environments
from bert_model.pretraining.data import InstanceReader, InstanceSplit, rank_rows
from bert_model.training.distributed import LostRanksError, process_group
from bert_pipeline.errors import TrainingError
from bert_pipeline.manifest import load_manifest, publishing
from bert_pipeline.parquet_io import footer_sha256


def test_rank_killed_during_a_save_leaves_the_previous_checkpoint(data, undisturbed, tmp_path):
    output = tmp_path / "training"
    codes, reports, _ = run_pretraining(configuration(data), output, fail=(0, 5, "kill in save"))
    assert codes[0] == -signal.SIGKILL
    assert codes[1] == 1
    assert sorted(path.name for path in (output / "checkpoints").glob("step-*")) == ["step-00000003"]
    assert list((output / "checkpoints").glob(".step-00000006.partial-*"))
    assert "step-00000003" in reports[1]["error"]
    codes, reports, _ = run_pretraining(configuration(data), output, resume=True)
    assert codes == [0, 0], reports
    assert not list((output / "checkpoints").glob(".step-*"))
    assert train_events(output) == train_events(undisturbed)
    assert load_manifest(output / "model").sha256 == load_manifest(undisturbed / "model").sha256


def test_hung_rank_is_reported_within_the_timeout(data, tmp_path):
    settings = configuration(data, timeout_seconds=6)
    codes, reports, warnings = run_pretraining(settings, tmp_path / "training", fail=(1, 5, "hang"))
    assert codes[0] == 1
    assert "rank 0 lost the other ranks at step 5" in reports[0]["error"]
    assert "it waited for rank 1 (process " in reports[0]["error"]
    assert "last seen at step 4)" in reports[0]["error"]
    assert "step-00000003; start again with --resume" in reports[0]["error"]
    assert "rank 0 has been at step 5" in warnings
    assert "rank 1 has been at step 4" in warnings
    assert "no other rank is behind it" in warnings


def test_non_finite_loss_on_one_rank_stops_all_and_the_update_is_not_saved(data, tmp_path):
    settings = configuration(data, checkpoint_interval_steps=4)
    codes, reports, _ = run_pretraining(settings, tmp_path / "training", fail=(1, 5, "poison"))
    assert codes == [1, 1]
    for report in reports:
        assert "step 5: loss nan (MLM), nan (NSP)" in report["error"]
        assert "so the update is not saved; the batch is samples 80 to 95 of" in report["error"]
    # Rank 0 finishes its checkpoint first; the other rank may report before that.
    assert "step-00000004" in reports[0]["error"]
    split = InstanceSplit(data["short"], "train")
    rows = InstanceReader(split, seed=12345, groups_per_window=2).take(80, 16).sample_indices
    assert f": rows {', '.join(map(str, sorted(rows.tolist())))};" in reports[0]["error"]
    assert max(train_events(tmp_path / "training")) == 5


def test_rendezvous_without_other_ranks_times_out(monkeypatch):
    for name, value in rank_environments(2)[0].items():
        monkeypatch.setenv(name, value)
    with pytest.raises(TrainingError, match="did not find each other within 1 s"), process_group(1, "cpu"):
        pass


def leave_before_the_first_collective(report):
    """Run one of two ranks, of which the second ends before their first collective."""
    is_connected = report.with_name("connected")
    try:
        with process_group(60, "cpu") as group:
            if group.rank == 1:
                while not is_connected.exists():  # ending earlier is another error, of the rendezvous
                    time.sleep(0.01)
                os._exit(3)
            is_connected.touch()
            group.all_reduce_numbers(1.0)
    except LostRanksError as error:
        report.write_text(str(error))


def test_rank_ending_before_training_is_an_error_of_the_others(tmp_path):
    assert run_ranks(2, leave_before_the_first_collective, tmp_path / "report") == [0, 3]
    assert (tmp_path / "report").read_text().startswith("rank 0 lost the other ranks (")


@pytest.mark.parametrize("sizes", [(2, 1), (1, 2), (2, 4, 1)])
def test_every_sample_is_seen_once_when_the_number_of_ranks_changes(data, sizes):
    split = InstanceSplit(data["short"], "train")
    batch, seen = 16, []
    for step in range(10):  # two epochs of 80
        world_size = sizes[min(step // 3, len(sizes) - 1)]
        for rank in range(world_size):  # each with a new reader, as after a resume
            samples = InstanceReader(split, seed=7, groups_per_window=2).take(step * batch, batch)
            mine = samples.select(rank_rows(samples.lengths, rank=rank, world_size=world_size))
            seen += list(zip(mine.epochs.tolist(), mine.sample_indices.tolist()))
    assert sorted(seen) == [(epoch, row) for epoch in (0, 1) for row in range(80)]


@pytest.mark.slow
def test_reader_memory_does_not_grow_with_the_number_of_shards(tmp_path):
    one = write_instances(tmp_path / "one", max_seq_length=512, shards=(4096,), held_out=8, rows_per_write=4096).path
    code = (
        "import sys\n"
        "import torch\n"
        "from bert_model.pretraining.data import InstanceReader, InstanceSplit\n"
        "from bert_model.training.throughput import peak_memory\n"
        "split = InstanceSplit(sys.argv[1], 'train')\n"
        "reader = InstanceReader(split, seed=1, groups_per_window=8)\n"
        "for position in range(0, split.num_instances, 4096):\n"
        "    reader.take(position, 256)\n"
        "print(split.num_instances, peak_memory(torch.device('cpu')))\n"
    )
    peaks, footer = {}, footer_sha256(one / "train" / "instances-00000.parquet")
    for count in (1, 50):
        with publishing(tmp_path / f"of-{count}", kind="instances", configuration={}, inputs={}) as draft:
            (draft.path / "train").mkdir()
            for index in range(count):
                name = f"train/instances-{index:05d}.parquet"
                os.link(one / "train" / "instances-00000.parquet", draft.path / name)
                draft.rows[name] = 4096
                draft.footer_sha256[name] = footer
        command = [sys.executable, "-c", code, str(tmp_path / f"of-{count}")]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        instances, peaks[count] = map(int, printed.split())
        assert instances == count * 4096
    assert peaks[50] - peaks[1] < 8 * 4096 * 512 * 4 * 3, peaks  # the eight row groups of a window, and copies of them


def agent(settings, output, *, nodes, ranks, port):
    """Start a torchrun agent with its ranks, in its own session, as a scheduler does on one machine."""
    command = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={nodes}", f"--nproc-per-node={ranks}"]
    command += ["--max-restarts=0", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=test"]
    command += ["-m", "bert_model.pretraining", "--config", str(settings), "--output", str(output)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(
        [*command, "--experiment", "", "--resume"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def process_tree(root):
    """Return the ids of a process and its descendants."""
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(status.parent.name))
    found = [root]
    for process in found:
        found += children.get(process, [])
    return found


def ranks_of(machine):
    """Return the ranks of an agent, from the environment of its processes."""
    found = set()
    for process in process_tree(machine.pid):
        variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        found |= {item[5:].decode() for item in variables if item.startswith(b"RANK=")}
    return found


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["0", "1"])
def test_lost_machine_is_reported_and_the_other_resumes_alone(data, tmp_path, lost):
    settings, output = tmp_path / "run.yaml", tmp_path / "training"
    values = configuration(data, checkpoint_interval_steps=10, evaluation_max_instances=2)
    values["phases"][0]["steps"] = 60
    settings.write_text(yaml.safe_dump(values))
    metrics, port = output / "metrics.jsonl", free_port()
    machines = [agent(settings, output, nodes=2, ranks=1, port=port) for _ in range(2)]
    try:
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline and max(losses(metrics), default=0) < 13:
            time.sleep(0.05)
        dead, alive = sorted(machines, key=lambda machine: ranks_of(machine) != {lost})
        for process in process_tree(dead.pid):
            os.kill(process, signal.SIGKILL)
        said, _ = alive.communicate(timeout=240)
        assert alive.returncode not in (0, None), said
        report = said.rpartition("Root Cause")[2]  # torchrun's final report
        assert f"rank {1 - int(lost)} lost the other ranks at step " in report, said
        assert ("it waited for the machine of rank 0 (" if lost == "0" else "it waited for rank 1 (process ") in report
        assert f"the last checkpoint is {output / 'checkpoints' / 'step-'}" in report
        assert "start again with --resume" in report
        assert not (output / "model").exists()
        machines.append(agent(settings, output, nodes=1, ranks=2, port=free_port()))
        said, _ = machines[2].communicate(timeout=240)
        assert machines[2].returncode == 0, said
    finally:
        for machine in machines:
            if machine.poll() is None:
                for process in process_tree(machine.pid):
                    os.kill(process, signal.SIGKILL)
            machine.wait()
    events = [json.loads(line) for line in metrics.read_text().splitlines()]
    resumed = [event["step"] for event in events if event["event"] == "resume"]
    assert len(resumed) == 1
    assert resumed[0] >= 10
    assert resumed[0] % 10 == 0
    found = losses(metrics)
    assert sorted(found) == list(range(1, 67))
    repeated = {step: values for step, values in found.items() if len(values) > 1}
    assert all(step > resumed[0] for step in repeated)
    assert all(len(set(values)) == 1 for values in repeated.values())  # on one machine the same bits as on two
    assert load_manifest(output / "model").counts["steps"] == 66


def losses(metrics):
    """Return step -> every loss that was logged for it."""
    found: dict[int, list[float]] = {}
    for line in metrics.read_text().splitlines() if metrics.is_file() else ():
        event = json.loads(line)
        if event["event"] == "train":
            found.setdefault(event["step"], []).append(event["metrics"]["train/loss"])
    return found
