"""deploy/pretrain.slurm on a real Slurm: a training on two nodes that is stopped twice and finishes."""

import sys
from pathlib import Path

import pytest
import yaml
from compose import DEPLOY, ROOT
from dagster_api import wait_for
from processes import free_port
from slurm import NODES, Cluster, running_cluster
from small_training import configuration, write_data

from bert_model.training.metrics_log import METRICS_NAME, read_lines
from bert_pipeline.manifest import load_manifest

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(1200, method="signal")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with running_cluster(tmp_path_factory.mktemp("slurm")) as running:
        yield running


def test_stopped_training_saves_is_requeued_and_finishes(cluster, tmp_path):
    settings, output = tmp_path / "run.yaml", tmp_path / "training"
    values = configuration(write_data(tmp_path), checkpoint_interval_steps=100_000, evaluation_max_instances=2)
    values["phases"][0]["steps"] = 120
    settings.write_text(yaml.safe_dump(values), encoding="utf-8")
    job = submit(cluster, settings, output)

    # A job of a partition with priority takes the nodes: Slurm signals the ranks.
    wait_for(lambda: len(steps_of(output, "train")) > 3, "training steps")
    cluster.run("sbatch", "--partition=urgent", f"--nodes={len(NODES)}", "--output=/dev/null", "--wrap=sleep 1")
    wait_for(lambda: is_requeued(cluster, job, 1), "the requeue of the preempted job")

    # The time limit is near: Slurm signals the script, as it asks for with --signal=B:TERM.
    steps = len(steps_of(output, "train"))
    wait_for(lambda: len(steps_of(output, "train")) > steps + 3, "more training steps")
    cluster.run("scancel", "--signal=TERM", "--batch", job)
    wait_for(lambda: is_requeued(cluster, job, 2), "the requeue of the stopped job")

    wait_for(lambda: cluster.job(job)["JobState"] not in ("PENDING", "RUNNING", "COMPLETING"), "the end of the job")
    assert cluster.job(job)["JobState"] == "COMPLETED", output.with_suffix(".log").read_text(encoding="utf-8")
    first, second = steps_of(output, "resume")
    assert 0 < first < second
    assert steps_of(output, "train") == list(range(1, 127))  # none was lost or repeated
    assert load_manifest(output / "model", kind="pretrained_model").counts["steps"] == 126


def test_canceled_training_is_not_requeued(cluster, tmp_path):
    (tmp_path / "run.yaml").touch()
    job = submit(cluster, tmp_path / "run.yaml", tmp_path / "training")
    wait_for(lambda: f"StepId={job}.0" in cluster.run("scontrol", "show", "step"), "the start of the ranks")
    cluster.run("scancel", job)
    wait_for(lambda: cluster.job(job)["JobState"] not in ("RUNNING", "COMPLETING"), "the end of the job")
    assert cluster.job(job)["JobState"] == "CANCELLED"


def submit(cluster: Cluster, settings: Path, output: Path) -> str:
    """Submit a training without MLflow on all nodes; return the id of the job."""
    variables = {
        "PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "MASTER_PORT": str(free_port()),
        "BERT_HOME": str(output.parent / "home"),
    }
    options = ["--parsable", f"--nodes={len(NODES)}", f"--output={output.with_suffix('.log')}"]
    arguments = [str(settings), str(output), "--experiment", ""]
    return cluster.run("sbatch", *options, str(DEPLOY / "pretrain.slurm"), *arguments, **variables)


def is_requeued(cluster: Cluster, job: str, times: int) -> bool:
    fields = cluster.job(job)
    assert fields["JobState"] not in ("FAILED", "COMPLETED"), Path(fields["StdOut"]).read_text(encoding="utf-8")
    return fields["Restarts"] == str(times)


def steps_of(output: Path, kind: str) -> list[int]:
    """Return the step of every event of a kind in a training's log."""
    if not (output / METRICS_NAME).exists():
        return []
    return [line["step"] for line in read_lines(output) if line["event"] == kind]
