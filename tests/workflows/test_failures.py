"""A failed run is reported with its cause and without secrets."""

import json
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest
from loopback import Handler, serving
from training_processes import empty_job

from bert_model.training import mlflow_store
from bert_pipeline.errors import PromotionError, TrainingError, UnavailableError
from bert_pipeline.manifest import load_manifest, publishing
from workflows.defs import automation
from workflows.lib.instance import end_abandoned_runs
from workflows.lib.metadata import as_dagster_failures
from workflows.lib.processes import PROCESS_TAG, process_mark
from workflows.lib.report import Results, log_report


@dg.op
def stopping() -> None:
    with as_dagster_failures():
        raise TrainingError("rank 1 was ended by SIGKILL; step-00000200 is intact")


@dg.job
def failing_job() -> None:
    stopping()


@pytest.fixture
def failed(caplog) -> Iterator[dg.RunFailureSensorContext]:
    """Return the sensor context of a run that has failed."""
    with dg.DagsterInstance.ephemeral() as instance:
        result = failing_job.execute_in_process(
            instance=instance, raise_on_error=False, tags={"dagster/partition": "enwiki-20261101"}
        )
        with dg.build_run_status_sensor_context(
            sensor_name="failed_runs",
            dagster_instance=instance,
            dagster_run=result.dagster_run,
            dagster_event=result.get_run_failure_event(),
        ) as context:
            yield context.for_run_failure()


@pytest.fixture
def webhook(monkeypatch) -> Iterator[list[dict[str, Any]]]:
    """Messages posted to a webhook on loopback."""
    posted: list[dict[str, Any]] = []

    class Webhook(Handler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

    with serving(Webhook) as address:
        monkeypatch.setenv(automation.WEBHOOK_VARIABLE, f"{address}/services/s3cret")
        yield posted


def test_failure_is_posted_with_job_partition_step_and_cause(failed, webhook):
    automation.failed_runs(failed)
    (message,) = webhook
    assert message["text"].startswith("failing_job of enwiki-20261101 failed (run ")
    assert message["text"].endswith("stopping: rank 1 was ended by SIGKILL; step-00000200 is intact")
    failed.instance.add_run_tags(failed.dagster_run.run_id, {automation.RETRY_TAG: "true"})  # as Dagster does
    automation.failed_runs(failed)
    assert "; it is tried again: " in webhook[1]["text"]


def test_failure_of_a_killed_run_names_the_signal_and_that_a_retry_follows(instance, webhook):
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    run_id = str(uuid.uuid4())
    tags = {PROCESS_TAG: f"{process_mark(process.pid)}:{run_id}", automation.MAX_RETRIES_TAG: "2"}
    instance.create_run_for_job(empty_job, run_id=run_id, tags=tags, status=dg.DagsterRunStatus.STARTED)
    process.kill()
    process.wait()
    assert end_abandoned_runs(instance) == [run_id]
    (record,) = instance.all_logs(run_id, of_type=dg.DagsterEventType.RUN_FAILURE)
    with dg.build_run_status_sensor_context(
        sensor_name="failed_runs",
        dagster_instance=instance,
        dagster_run=instance.get_run_by_id(run_id),
        dagster_event=record.dagster_event,
    ) as context:
        automation.failed_runs(context.for_run_failure())
    (message,) = webhook
    assert "; it is tried again: the process that executed this run was killed (SIGKILL)" in message["text"]


def test_failure_is_logged_without_a_webhook(failed, capfd):
    automation.failed_runs(failed)
    assert "rank 1 was ended by SIGKILL" in capfd.readouterr().err


class NoHttp(Handler):
    def do_POST(self) -> None:
        self.wfile.write(b"220 mail.example.org ESMTP\r\n")
        self.close_connection = True


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("http://127.0.0.1:9/services/s3cret", "URLError"),
        ("http://127.0.0.1:9/services/s3cret and more", "InvalidURL"),
        ("{no_http}/services/s3cret", "BadStatusLine"),
    ],
)
def test_webhook_that_fails_is_a_warning_without_its_address(failed, monkeypatch, capfd, address, reason):
    with serving(NoHttp) as no_http:
        monkeypatch.setenv(automation.WEBHOOK_VARIABLE, address.format(no_http=no_http))
        automation.failed_runs(failed)
    said = capfd.readouterr().err
    assert f"was not reached ({reason})" in said
    assert "s3cret" not in said


@pytest.mark.parametrize(
    ("error", "retried"),
    [(UnavailableError("no answer"), True), (PromotionError("it changed"), True), (TrainingError("nan"), False)],
)
def test_only_unavailable_server_and_moved_champion_allow_retries(error, retried):
    with pytest.raises(dg.Failure) as failure, as_dagster_failures():
        raise error
    assert failure.value.allow_retries is retried


def test_retried_report_continues_its_run(empty_store, tmp_path, clean_environment, monkeypatch):
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.setenv("BERT_HOME", str(tmp_path))
    with publishing(tmp_path / "report", kind="report", configuration={}, inputs={}) as draft:
        (draft.path / "report.md").write_text("a report", encoding="utf-8")
    row = {"task": "sst2", "metric": "accuracy", "score": 90.0, "random": None, "random_longer": None, "majority": 50.0}
    results = Results(dump="x", rows=(row,), skipped={}, inputs={})

    def refuse(*arguments: Any) -> None:
        raise ConnectionError("connection refused")

    client = mlflow_store.open_client()
    with monkeypatch.context() as patched:
        patched.setattr(type(client), "log_artifacts", refuse)
        with pytest.raises(UnavailableError, match=r"connection refused\); materialize report again"):
            log_report(results, load_manifest(tmp_path / "report"), dagster_run_id="1")
    run_id = log_report(results, load_manifest(tmp_path / "report"), dagster_run_id="1")
    (run,) = client.search_runs([client.get_run(run_id).info.experiment_id])
    assert (run.info.run_id, run.info.status) == (run_id, "FINISHED")
    assert run.data.tags["generated_sample"] == "false"  # as other tags are written
    assert run.data.metrics == {"sst2/accuracy": 90.0, "average/score": 90.0, "average/majority": 50.0}
    assert [item.path for item in client.list_artifacts(run_id)] == ["manifest.json", "report.md"]
