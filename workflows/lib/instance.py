"""Dagster's own storage below BERT_HOME: made when missing, with the sample as its first partition."""

import os
import socket
from pathlib import Path

import dagster as dg

from workflows.lib.resources import (
    DEFAULT_DUMP,
    HOME_VARIABLE,
    BertHome,
    checked_dump_name,
    default_home,
    dump_partitions,
)

DAGSTER_HOME_VARIABLE = "DAGSTER_HOME"
PROCESS_TAG = "bert/process"
"""Tag of a run that was executed in the process of `workflows.run`: host, process id and its start."""

_DAGSTER_YAML = """\
# Written once; edit at will. Storage is SQLite in this directory unless a `storage:` section says otherwise.
telemetry:
  enabled: false
nux:
  enabled: false  # no invitation to newsletters at the first visit
concurrency:
  runs:
    max_concurrent_runs: 2
  pools:
    # The pool `training` keeps one training per machine: each takes every GPU that it sees. On a machine whose GPUs are
    # shared out by CUDA_VISIBLE_DEVICES: dagster instance concurrency set training N
    default_limit: 1
run_monitoring:
  enabled: true
  start_timeout_seconds: 300
  max_runtime_seconds: 1209600  # 14 days; jobs have shorter limits of their own
  free_slots_after_run_end_seconds: 60
run_retries:
  enabled: true
  max_retries: 0  # jobs say how often: a run whose process was killed is tried again, and resumes
  retry_on_asset_or_op_failure: false  # an error that names its cause would only come again
freshness:
  enabled: true
"""


def dagster_directory(home: BertHome) -> Path:
    """DAGSTER_HOME, or `dagster` below the home."""
    return Path(os.environ.get(DAGSTER_HOME_VARIABLE) or home.path / "dagster").resolve()


def prepare_home(home: BertHome | None = None) -> Path:
    """Make BERT_HOME and DAGSTER_HOME where missing, name them in the environment, and return DAGSTER_HOME."""
    directory = home.path if home else default_home()
    directory.mkdir(parents=True, exist_ok=True)
    os.environ[HOME_VARIABLE] = str(directory)
    dagster_home = dagster_directory(home or BertHome())
    dagster_home.mkdir(parents=True, exist_ok=True)
    os.environ[DAGSTER_HOME_VARIABLE] = str(dagster_home)
    settings = dagster_home / "dagster.yaml"
    if not settings.exists():
        settings.write_text(_DAGSTER_YAML, encoding="utf-8")
    return dagster_home


def open_instance(home: BertHome | None = None, *, dumps: tuple[str, ...] = (DEFAULT_DUMP,)) -> dg.DagsterInstance:
    """Open the persistent instance of this home, with each of `dumps` as a partition."""
    prepare_home(home)
    instance = dg.DagsterInstance.get()
    add_dumps(instance, dumps)
    return instance


def add_dumps(instance: dg.DagsterInstance, dumps: tuple[str, ...]) -> None:
    """Add dump partitions that are not there yet."""
    name = str(dump_partitions.name)
    missing = [
        dump for dump in dict.fromkeys(dumps) if not instance.has_dynamic_partition(name, checked_dump_name(dump))
    ]
    if missing:
        instance.add_dynamic_partitions(name, missing)


def process_mark(process_id: int | None = None) -> str:
    """Name a process so that a later one with the same id is not taken for it; "" when it is gone."""
    process_id = os.getpid() if process_id is None else process_id
    try:
        started = Path(f"/proc/{process_id}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except OSError:
        alive = process_id == os.getpid()
        started = "0" if alive else ""
    return f"{socket.gethostname()}:{process_id}:{started}" if started else ""


def end_abandoned_runs(instance: dg.DagsterInstance) -> list[str]:
    """Mark runs of `workflows.run` whose process was killed as failed, and free the pool slots of ended runs.

    Without it the next run would wait for ever for a slot that nobody gives back. Returns the ids of the runs.
    """
    ended = []
    unfinished = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
    for run in instance.get_runs(filters=dg.RunsFilter(statuses=unfinished)):
        host, _, rest = run.tags.get(PROCESS_TAG, "").partition(":")
        process_id = rest.partition(":")[0]
        if host != socket.gethostname() or not process_id.isdigit():
            continue
        if process_mark(int(process_id)) != run.tags[PROCESS_TAG]:
            instance.report_run_failed(run, "the process that executed this run was killed")
            ended.append(run.run_id)
    for run_id in instance.event_log_storage.get_concurrency_run_ids():
        holder = instance.get_run_by_id(run_id)
        if holder is None or holder.is_finished:
            instance.event_log_storage.free_concurrency_slots_for_run(run_id)
    return ended
