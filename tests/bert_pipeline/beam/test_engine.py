"""Jobs on engines, with a stand-in of Flink's REST: names, lines, warnings, cancellation, explained failures."""

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from loopback import Handler, serving

from bert_pipeline.beam.engine import Job, explain, job_name
from bert_pipeline.beam.options import pipeline_options


@pytest.mark.parametrize(
    ("stage", "directory", "name"),
    [
        ("corpus", "s3:/bert/data/enwiki-20261101/corpus", "bert-corpus-enwiki-20261101"),
        ("instances", "s3:/bert/data/enwiki-20261101/instances/128", "bert-instances-enwiki-20261101-128"),
        ("vocabulary", "/data/Meine Texte", "bert-vocabulary-meine-texte"),
        ("corpus", "/corpus", "bert-corpus"),
    ],
)
def test_job_is_named_after_what_it_makes(stage, directory, name):
    assert job_name(stage, Path(directory)) == name


class Rest:
    """A stand-in of Flink's REST server, with one job."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {
            "/overview": {"taskmanagers": 2, "slots-total": 2, "slots-available": 0, "jobs-running": 1}
        }
        self.patched: list[str] = []
        self.show([])

    def show(self, jobs: list[tuple[str, str, dict[str, int]]]) -> None:
        found = [{"jid": jid, "name": "bert-corpus-a", "state": state, "tasks": tasks} for jid, state, tasks in jobs]
        self.answers["/jobs/overview"] = {"jobs": found}


@pytest.fixture
def rest():
    served = Rest()

    class Served(Handler):
        def do_GET(self):
            self.answer(200, json.dumps(served.answers[self.path]).encode())

        def do_PATCH(self):
            served.patched.append(self.path)
            self.answer(202, b"{}")

        def answer(self, status, content):
            self.send_response(status)
            self.end_headers()
            self.wfile.write(content)

    with serving(Served) as url:
        served.address = url.removeprefix("http://")
        yield served


def job(rest: Rest, files: Path, *more: str) -> Job:
    options = pipeline_options(
        [
            "--runner=FlinkRunner", f"--flink_master={rest.address}", "--job_name=bert-corpus-a", "--parallelism=2",
            "--environment_type=EXTERNAL", "--environment_config=localhost:50000", *more,
        ]
    )  # fmt: skip
    return Job(options, files)


def test_job_is_reported_with_its_state_and_what_its_workers_wrote(rest, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    here = job(rest, tmp_path)
    rest.show([("f1", "RUNNING", {"total": 9, "running": 2, "finished": 3, "failed": 0})])
    (tmp_path / "shard").touch()
    here.report(None)
    rest.show([("f1", "RESTARTING", {})])
    here.report(None)
    first, second = caplog.records
    assert first.getMessage() == (
        "bert-corpus-a: RUNNING (2 running, 3 finished of 9 tasks) for 0 s, 1 files written by the workers"
    )
    assert second.levelno == logging.WARNING  # which Dagster shows too
    assert second.getMessage().startswith("bert-corpus-a: RESTARTING for 0 s")


@pytest.mark.parametrize(
    ("overview", "expected"),
    [
        (
            {"slots-total": 1},
            r"most likely task slots: Flink at \S+ has 1, --parallelism=2 needs 2; start TaskManagers \(deploy/",
        ),
        ({"jobs-running": 2}, r"most likely task slots: other jobs at \S+ take them, 0 of 2 are free"),
        (
            {},
            r"unless one takes that long, workers: a pool has to answer at localhost:50000 beside each TaskManager or",
        ),
    ],
)
def test_without_a_result_what_is_missing_is_named_once(overview, expected, rest, tmp_path, caplog):
    caplog.set_level(logging.WARNING, logger="bert_pipeline.beam.engine")  # lines of progress are another test's
    rest.answers["/overview"] |= overview
    here = job(rest, tmp_path)
    rest.show([("f1", "RUNNING", {"total": 9, "scheduled": 9})])
    here.report(None)
    assert not caplog.records
    here.report(None, patience=0.0)
    here.report(None, patience=0.0)
    (record,) = caplog.records
    assert re.search(f"bert-corpus-a: no result after 0 s; {expected}", record.getMessage())


def test_job_of_a_killed_program_is_named_with_how_to_end_it(rest, tmp_path, caplog):
    rest.show([("f0", "RUNNING", {})])
    job(rest, tmp_path).warn()
    (record,) = caplog.records
    assert f"end it on Flink: curl -X PATCH http://{rest.address}/jobs/f0" in record.getMessage()


@pytest.mark.parametrize(
    ("slots", "more", "warned"), [(4, (), True), (4, ("--sdk_worker_parallelism=4",), False), (2, (), False)]
)
def test_slots_that_share_one_process_are_warned_of(slots, more, warned, rest, tmp_path, caplog):
    rest.answers["/overview"]["slots-total"] = slots
    job(rest, tmp_path, *more).warn()
    assert ["share one Python process" in record.getMessage() for record in caplog.records] == [True] * warned


def test_interrupted_job_is_cancelled_and_an_earlier_one_is_not(rest, tmp_path):
    rest.show([("f0", "RUNNING", {})])
    here = job(rest, tmp_path)
    rest.show([("f0", "RUNNING", {}), ("f1", "RUNNING", {})])
    called: list[str] = []

    class Result:
        state = "RUNNING"  # the job server is gone: it does not end the job
        cancel = staticmethod(lambda: called.append("cancel"))

    here.cancel(Result, patience=0.5)
    assert called == ["cancel"]
    assert rest.patched == ["/jobs/f1"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "java.net.ConnectException: finishConnect(..) failed: Connection refused",
            "no worker pool answers at localhost:50000",
        ),
        ("java.net.ConnectException: Connection refused", "the JobManager or Spark master does not answer at"),
        ("java.lang.OutOfMemoryError: Java heap space", ""),
    ],
)
def test_failure_names_who_did_not_answer(text, expected):
    options = ("--runner=PortableRunner", "--job_endpoint=host:8099", "--environment_type=EXTERNAL")
    found = explain(RuntimeError(text), pipeline_options((*options, "--environment_config=localhost:50000")))
    assert found.startswith(expected)
    assert bool(found) == bool(expected)
