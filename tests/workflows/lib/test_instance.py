"""Dagster's storage below the home: created if missing, and cleaned up after killed processes and servers."""

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from types import SimpleNamespace
from unittest import mock

import dagster as dg
import pytest
from training_processes import empty_job, wait_until

from bert_pipeline.signals import handling
from workflows.defs import automation
from workflows.defs.pretraining import TRAINING_POOL
from workflows.lib import processes
from workflows.lib.instance import (
    end_abandoned_runs,
    fail_runs,
    open_instance,
    unfinished_runs,
    wait_for_pools,
)
from workflows.lib.processes import GRPC_TAG, PROCESS_TAG, left_over, process_mark, process_of, run_mark
from workflows.lib.resources import BertHome, dump_partitions
from workflows.run import execute_assets


def test_new_home_has_the_sample_as_partition(clean_environment):
    with open_instance() as made:
        assert (clean_environment / "dagster" / "dagster.yaml").is_file()
        assert made.get_dynamic_partitions(str(dump_partitions.name)) == ["samplewiki-1"]
        assert made.is_persistent


def test_edited_settings_are_kept(clean_environment, instance):
    settings = clean_environment / "dagster" / "dagster.yaml"
    settings.write_text("telemetry:\n  enabled: false\n", encoding="utf-8")
    open_instance().dispose()
    assert settings.read_text(encoding="utf-8") == "telemetry:\n  enabled: false\n"


def test_instance_limits_trainings_and_runs_and_retries_only_crashes(instance):
    assert instance.global_op_concurrency_default_limit == 1
    assert instance.run_monitoring_max_runtime_seconds > 0
    assert instance.run_retries_enabled
    assert instance.run_retries_max_retries == 0  # jobs say how often
    assert not instance.run_retries_retry_on_asset_or_op_failure
    assert instance.freshness_enabled


@dg.asset(pool=TRAINING_POOL, partitions_def=dg.StaticPartitionsDefinition(["samplewiki-1"]))
def trained() -> None: ...


def test_run_of_the_command_waits_for_the_run_that_holds_its_pool(instance):
    job = dg.Definitions([trained]).resolve_implicit_global_asset_job_def()
    run_id = str(uuid.uuid4())
    mark = {PROCESS_TAG: run_mark(run_id)}
    other = instance.create_run_for_job(job, run_id=run_id, tags=mark, status=dg.DagsterRunStatus.STARTED)
    said = []

    def end_the_other(message: str) -> None:
        said.append(message)
        instance.report_run_failed(other, "ended")

    instance.event_log_storage.set_concurrency_slots(TRAINING_POOL, 2)  # `dagster instance concurrency set training 2`
    wait_for_pools(instance, {TRAINING_POOL}, end_the_other)
    assert not said
    instance.event_log_storage.set_concurrency_slots(TRAINING_POOL, 1)
    wait_for_pools(instance, {TRAINING_POOL}, end_the_other)
    assert said == [f'waiting for the pool "training", which is held by run {run_id} of {socket.gethostname()}']


def test_command_that_is_interrupted_while_it_waits_leaves_no_run(instance, monkeypatch):
    job = dg.Definitions([trained]).resolve_implicit_global_asset_job_def()
    run_id = str(uuid.uuid4())
    mark = {PROCESS_TAG: run_mark(run_id)}
    instance.create_run_for_job(job, run_id=run_id, tags=mark, status=dg.DagsterRunStatus.STARTED)

    class Interrupting(io.StringIO):
        def write(self, text: str) -> int:
            raise KeyboardInterrupt

    monkeypatch.setattr("sys.stderr", Interrupting())
    with pytest.raises(KeyboardInterrupt):
        execute_assets(instance, job, ["trained"], "samplewiki-1", {}, {})
    assert [run.run_id for run in instance.get_runs()] == [run_id]


def test_partition_is_added_once(instance):
    for dumps in (("enwiki-1", "enwiki-1", "samplewiki-1"), ("enwiki-1",)):
        with open_instance(dumps=dumps) as opened:
            assert sorted(opened.get_dynamic_partitions(str(dump_partitions.name))) == ["enwiki-1", "samplewiki-1"]


def started_run(instance: dg.DagsterInstance, mark: str) -> str:
    run_id = str(uuid.uuid4())
    tags = {PROCESS_TAG: f"{mark}:{run_id}"}
    instance.create_run_for_job(empty_job, run_id=run_id, tags=tags, status=dg.DagsterRunStatus.STARTED)
    instance.event_log_storage.set_concurrency_slots("training", 1)
    instance.event_log_storage.claim_concurrency_slot("training", run_id, "step")
    return run_id


def test_run_of_killed_process_is_failed_and_frees_its_slot(instance):
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    run_id = started_run(instance, process_mark(process.pid))
    assert end_abandoned_runs(instance) == []
    process.kill()
    process.wait()
    assert end_abandoned_runs(instance) == [run_id]
    run = instance.get_run_by_id(run_id)
    assert run is not None
    assert run.status == dg.DagsterRunStatus.FAILURE
    assert instance.event_log_storage.get_concurrency_run_ids() == set()


def test_what_a_killed_step_has_left_is_waited_for(instance, tmp_path):
    inner = (
        "import os, pathlib, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); time.sleep(600)"
    )
    program = (
        "import sys, time; from bert_pipeline.parent import start; "
        f"start([sys.executable, '-c', {inner!r}, sys.argv[1]]); time.sleep(600)"
    )
    home = BertHome().path
    step = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "pid")])
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    saving = int((tmp_path / "pid").read_text())
    try:
        assert left_over(home) == []
        step.kill()
        step.wait()
        assert left_over(home) == [saving]
        assert left_over(home / "another") == []
        said: list[str] = []
        log = SimpleNamespace(info=said.append)
        run = instance.create_run_for_job(empty_job)
        threading.Timer(1.0, os.kill, (saving, signal.SIGKILL)).start()
        next_step = SimpleNamespace(instance=instance, run=run, log=log)
        BertHome().setup_for_execution(next_step)
        assert left_over(home) == []
        assert said == ["waiting for 1 processes of a run or UI that was killed: they end within a minute"]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(saving, signal.SIGKILL)


def run_of_the_ui(instance: dg.DagsterInstance, process_id: int) -> str:
    """A run that a code server of `dagster dev` executes, which tags the run with its socket."""
    run_id = run_on(instance, dg.DagsterRunStatus.STARTED, host="localhost", socket="/tmp/of-the-code-server")
    execute_in(process_id, instance, instance.get_run_by_id(run_id))
    return run_id


def execute_in(process_id: int, instance: dg.DagsterInstance, run: dg.DagsterRun) -> None:
    """Set up the home as the run's first step does, in the process that executes the run."""
    with mock.patch("os.getpid", return_value=process_id):
        BertHome().setup_for_execution(SimpleNamespace(instance=instance, run=run, log=None))


def test_killed_run_of_the_ui_is_failed_by_the_sensor(instance):
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    killed, alive = run_of_the_ui(instance, process.pid), run_of_the_ui(instance, os.getpid())
    without_process = run_on(instance, dg.DagsterRunStatus.STARTING, host="localhost", socket="/tmp/x")
    context = dg.build_sensor_context(instance=instance)
    assert str(automation.abandoned_runs(context)) == "SkipReason(skip_message='0 runs had lost their process')"
    process.kill()
    process.wait()
    automation.abandoned_runs(context)
    statuses = {run.run_id: run.status for run in instance.get_runs()}
    assert statuses.pop(killed) == dg.DagsterRunStatus.FAILURE
    assert statuses == {alive: dg.DagsterRunStatus.STARTED, without_process: dg.DagsterRunStatus.STARTING}


def test_run_executed_again_is_not_judged_by_the_process_of_the_first(instance):
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    first = run_of_the_ui(instance, process.pid)
    process.kill()
    process.wait()
    assert end_abandoned_runs(instance) == [first]
    tags = instance.get_run_by_id(first).tags  # Dagster copies them: those of a retry, and those of the launchpad
    again = instance.create_run_for_job(empty_job, tags=tags, status=dg.DagsterRunStatus.STARTED)
    assert end_abandoned_runs(instance) == []
    execute_in(os.getpid(), instance, again)
    assert end_abandoned_runs(instance) == []
    assert process_of(instance.get_run_by_id(again.run_id)) == process_mark()


def test_later_process_with_the_same_id_does_not_keep_a_run(instance):
    host, process_id, started = process_mark().split(":")
    run_id = started_run(instance, f"{host}:{process_id}:{int(started) - 1}")
    assert end_abandoned_runs(instance) == [run_id]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere the start is known by the clock only")
def test_mark_does_not_depend_on_the_clock(monkeypatch):
    before = process_mark()
    monkeypatch.setattr("psutil.boot_time", lambda: 0.0)
    monkeypatch.setattr("psutil.Process.create_time", lambda process: 0.0)
    assert process_mark() == before


class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)


def test_interrupt_that_arrives_in_a_finalizer_reaches_the_run(instance, clean_environment, monkeypatch):
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)  # the run replaces it

    @dg.op
    def canceled(home: BertHome) -> None:
        Finalized()
        time.sleep(20)

    @dg.job(resource_defs={"home": BertHome()})
    def job():
        canceled()

    with (
        handling(signal.default_int_handler, signal.default_int_handler),
        pytest.raises(dg.DagsterExecutionInterruptedError),
    ):
        job.execute_in_process(instance=instance)


def test_run_of_another_machine_is_left_alone(instance):
    run_id = started_run(instance, "elsewhere:1:1")
    assert end_abandoned_runs(instance) == []
    assert instance.event_log_storage.get_concurrency_run_ids() == {run_id}


def test_commit_of_the_code_is_named_in_full_and_says_whether_files_differ(tmp_path, monkeypatch):
    def git(*words: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.strip()

    monkeypatch.setattr(processes, "ROOT", tmp_path)
    commit = processes.code_commit.__wrapped__  # without its cache
    assert commit() == ""
    (tmp_path / "file").write_text("a")
    for words in (["init"], ["add", "file"], ["commit", "--message=a"], ["tag", "--annotate", "--message=a", "v1"]):
        git(*words)
    assert commit() == git("rev-parse", "HEAD")
    (tmp_path / "file").write_text("b")
    assert commit() == f"{git('rev-parse', 'HEAD')}+changes"


def run_on(instance: dg.DagsterInstance, status: dg.DagsterRunStatus, **server: object) -> str:
    tags = {GRPC_TAG: json.dumps(server)} if server else {}
    return instance.create_run_for_job(empty_job, tags=tags, status=status).run_id


def test_unfinished_runs_of_a_former_code_server_are_failed(instance):
    started = run_on(instance, dg.DagsterRunStatus.STARTED, host="code", port=4000)
    others = [
        run_on(instance, dg.DagsterRunStatus.STARTED, host="elsewhere", port=4000),
        run_on(instance, dg.DagsterRunStatus.STARTED, host="code", port=4001),
        run_on(instance, dg.DagsterRunStatus.STARTED),
        run_on(instance, dg.DagsterRunStatus.NOT_STARTED, host="code", port=4000),
        run_on(instance, dg.DagsterRunStatus.SUCCESS, host="code", port=4000),
    ]
    before = [instance.get_run_by_id(run).status for run in others]
    left = unfinished_runs(instance, ("code", 4000))
    assert [run.run_id for run in left] == [started]
    assert fail_runs(instance, left, "its code server was ended") == [started]
    assert instance.get_run_by_id(started).status == dg.DagsterRunStatus.FAILURE
    assert [instance.get_run_by_id(run).status for run in others] == before
    assert unfinished_runs(instance, ("code", 4000)) == []
    assert fail_runs(instance, left, "its code server was ended") == []
