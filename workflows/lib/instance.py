"""Dagster's instance below BERT_HOME: its settings, its partitions, and runs that lost their process."""

import contextlib
import json
import os
import re
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import dagster as dg

from bert_model.training.home import settle
from bert_pipeline.atomic import disk_errors, replace_text
from bert_pipeline.errors import UnavailableError
from workflows.lib.processes import GRPC_TAG, process_mark, process_of
from workflows.lib.resources import (
    DEFAULT_DUMP,
    HOME_VARIABLE,
    BertHome,
    checked_dump_name,
    dump_partitions,
    task_partitions,
)

DAGSTER_HOME_VARIABLE = "DAGSTER_HOME"
UNFINISHED = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]

DAGSTER_YAML = Path(__file__).with_name("dagster.yaml").read_text(encoding="utf-8")
"""The settings of a new instance."""


def dagster_directory(home: BertHome) -> Path:
    """Return DAGSTER_HOME, or `dagster` below the home."""
    return Path(os.environ.get(DAGSTER_HOME_VARIABLE) or home.path / "dagster").resolve()


def open_instance(home: BertHome | None = None, *, dumps: tuple[str, ...] = (DEFAULT_DUMP,)) -> dg.DagsterInstance:
    """Open the persistent instance of a home, created if missing, with partitions for `dumps` and for every task."""
    home = home or BertHome()
    dagster_home = dagster_directory(home)
    for directory in (home.path, dagster_home):
        directory.mkdir(parents=True, exist_ok=True)
    settle(home.path)
    # Dagster takes its directory from the environment, and so do the processes of its runs.
    os.environ[HOME_VARIABLE] = str(home.path)
    os.environ[DAGSTER_HOME_VARIABLE] = str(dagster_home)
    settings = dagster_home / "dagster.yaml"
    if not settings.exists():
        replace_text(settings, DAGSTER_YAML)
    instance = dg.DagsterInstance.get()
    instance.add_dynamic_partitions(str(dump_partitions.name), [*dict.fromkeys(map(checked_dump_name, dumps))])
    instance.add_dynamic_partitions(str(task_partitions.name), home.task_names)
    return instance


@contextlib.contextmanager
def database_errors() -> Iterator[None]:
    """Turn what Dagster's database raises in the block, such as a lock of over five seconds, into one sentence.

    DiskFullError if its disk has no room for another megabyte, UnavailableError otherwise.
    """
    import sqlalchemy.exc

    try:
        yield
    except sqlalchemy.exc.OperationalError as error:
        place = os.environ.get(DAGSTER_HOME_VARIABLE, "")
        # SQLite says "disk I/O error" where there is no room for its journal.
        if "locked" not in str(error.orig) and Path(place).is_dir():
            with disk_errors(Path(place)), tempfile.TemporaryFile(dir=place) as probe:
                probe.write(bytes(1 << 20))
        raise UnavailableError(
            f"Dagster's database, of {place}: {error.orig}; `fuser {place}/history/*.db` names the processes that use "
            "one of SQLite; run the same command to continue"
        ) from error


def end_abandoned_runs(instance: dg.DagsterInstance) -> list[str]:
    """Mark runs of this machine whose process was killed as failed, and free the pool slots of finished runs.

    Without it they would count as running, and the next run would wait for a slot that is never released. A run without
    a mark, because it has no process yet, is left to Dagster's time limit for starts. Return the ids of the runs.
    """
    abandoned = abandoned_runs(instance)
    # A killed process has not released its slots either.
    failed = fail_runs(
        instance, abandoned, "the process that executed this run was killed (SIGKILL), most likely for lack of memory"
    )
    for run_id in instance.event_log_storage.get_concurrency_run_ids():
        holder = instance.get_run_by_id(run_id)
        if holder is None or holder.is_finished:
            instance.event_log_storage.free_concurrency_slots_for_run(run_id)
    return failed


def abandoned_runs(instance: dg.DagsterInstance) -> list[dg.DagsterRun]:
    """Return the unfinished runs of this machine whose process was killed."""
    marks = [(run, process_of(run)) for run in unfinished_runs(instance)]
    here = re.compile(rf"{re.escape(socket.gethostname())}:(\d+):.*")
    return [run for run, mark in marks if (match := here.fullmatch(mark)) and process_mark(int(match[1])) != mark]


def unfinished_runs(instance: dg.DagsterInstance, server: tuple[str, int] | None = None) -> list[dg.DagsterRun]:
    """Return the runs that have begun and not ended: all, or those of the code server at an address (host, port).

    The processes of a former server at that address are assumed to have ended with it, as those of a container or of a
    systemd unit do.
    """
    runs = instance.get_runs(filters=dg.RunsFilter(statuses=UNFINISHED))
    addresses = [json.loads(run.tags.get(GRPC_TAG, "{}")) for run in runs]
    return [run for run, at in zip(runs, addresses) if server is None or (at.get("host"), at.get("port")) == server]


def wait_for_pools(instance: dg.DagsterInstance, pools: Iterable[str], log: Callable[[str], None]) -> None:
    """Wait until the runs that have begun leave room in the pools of a run that is not in the UI's queue."""
    for pool in pools:
        is_told = False
        while True:
            end_abandoned_runs(instance)
            others = [(other, other.run_op_concurrency) for other in unfinished_runs(instance)]
            holders = [other for other, held in others if held and pool in (held.all_pools or ())]
            limits = {limit.name: limit.limit for limit in instance.event_log_storage.get_pool_limits()}
            if len(holders) < limits.get(pool, 1):
                break
            if not is_told:  # of which host: one whose host has another name by now does not end by itself
                runs = (f"{other.run_id} of {process_of(other).partition(':')[0] or 'the UI'}" for other in holders)
                log(f'waiting for the pool "{pool}", which is held by run {", ".join(runs)}')
            is_told = True
            time.sleep(1)


def fail_runs(instance: dg.DagsterInstance, runs: Sequence[dg.DagsterRun], reason: str) -> list[str]:
    """Mark those of the runs that are still unfinished as failed; return their ids."""
    unfinished = {run.run_id for run in unfinished_runs(instance)} if runs else set()
    failed = [run for run in runs if run.run_id in unfinished]
    for run in failed:
        instance.report_run_failed(run, reason)
    return [run.run_id for run in failed]
