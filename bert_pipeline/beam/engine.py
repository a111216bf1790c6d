"""A job on an engine, as the program that starts it sees it: its name, a line every ten seconds, its cancellation.

The job server knows little of a running job, no counters among it. So what the workers have written is counted, and
Flink is asked itself where it answers: at `--flink_master`, or port 8081 of the job server's host.
"""

import contextlib
import json
import logging
import os
import re
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
from apache_beam.options import pipeline_options as beam_options
from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc
from apache_beam.runners.runner import PipelineState

from bert_pipeline import storage
from bert_pipeline.beam import PipelineOptions
from bert_pipeline.errors import BertError
from bert_pipeline.manifest import Draft

logger = logging.getLogger(__name__)

_REPORT_SECONDS = 10.0
_ANSWER_SECONDS = 3.0
_ENDED = ("FINISHED", "FAILED", "CANCELED")


def job_name(stage: str, directory: Path) -> str:
    """Return a name such as bert-corpus-enwiki-20261101: what is made, and the folder that tells the results apart."""
    parts = [part for part in directory.parts if part.strip("/") and part != stage]
    start = next((at for at in reversed(range(len(parts))) if not parts[at].isdigit()), 0)
    return re.sub(r"[^a-z0-9]+", "-", "-".join(["bert", stage, *parts[start:]]).lower()).strip("-")


@contextlib.contextmanager
def call_periodically(function: Callable[[], None], seconds: float = 0.5) -> Iterator[None]:
    """Call `function` every few `seconds` from a background thread, and once more when the block ends."""
    stop = threading.Event()

    def poll() -> None:
        while not stop.wait(seconds):
            function()

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield
    finally:
        # Join before the last call, so that `function` never runs twice at once.
        stop.set()
        thread.join()
        function()


@contextlib.contextmanager
def watched(pipeline: Any, draft: Draft) -> Iterator[None]:
    """Name the job that the block runs after its draft, report it, and cancel it if the block is interrupted."""
    options = pipeline.options.view_as(beam_options.GoogleCloudOptions)
    options.job_name = options.job_name or job_name(draft.kind, draft.directory)
    job = Job(options, draft.path)
    job.warn()
    with call_periodically(lambda: job.report(getattr(pipeline, "result", None)), _REPORT_SECONDS):
        try:
            yield
        except BaseException as error:
            if not isinstance(error, Exception):  # Ctrl-C, SIGTERM, the end of a run in Dagster
                job.cancel(getattr(pipeline, "result", None))
            raise


class Job:
    """A job that has not ended, or not begun."""

    def __init__(self, options: PipelineOptions, files: Path) -> None:
        portable = options.view_as(beam_options.PortableOptions)
        flink = options.view_as(beam_options.FlinkRunnerOptions)
        self.name, self.files = options.view_as(beam_options.GoogleCloudOptions).job_name, files
        self.endpoint, self.processes = portable.job_endpoint or "", int(portable.sdk_worker_parallelism)
        self.pool = portable.environment_config if portable.environment_type == "EXTERNAL" else ""
        self.slots = max(1, flink.parallelism)
        master = flink.flink_master.removeprefix("http://")
        if master.startswith("["):
            master = f"{self.endpoint.rpartition(':')[0]}:8081" if self.endpoint else ""
        self.flink, self.earlier = f"http://{master}", dict[str, Any]()
        self.earlier = self._jobs()
        self.started, self.before, self.has_result = time.monotonic(), self._count(), False

    def _ask(self, path: str, method: str = "GET") -> Any:
        """Return what Flink answers; {} if it does not."""
        with contextlib.suppress(OSError, ValueError):
            request = urllib.request.Request(f"{self.flink}{path}", method=method)
            with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS) as response:
                return json.load(response)
        return {}

    def _jobs(self) -> dict[str, Any]:
        """Return Flink's jobs of this name that have not ended, but for earlier ones."""
        jobs = {job["jid"]: job for job in self._ask("/jobs/overview").get("jobs", []) if job["name"] == self.name}
        return {jid: job for jid, job in jobs.items() if job["state"] not in _ENDED and jid not in self.earlier}

    def _served(self) -> list[str]:
        """Return what a job server has running under this name."""
        running = (beam_job_api_pb2.JobState.STARTING, beam_job_api_pb2.JobState.RUNNING)
        with contextlib.suppress(grpc.RpcError), grpc.insecure_channel(self.endpoint or "localhost:1") as channel:
            service = beam_job_api_pb2_grpc.JobServiceStub(channel)
            jobs = service.GetJobs(beam_job_api_pb2.GetJobsRequest(), timeout=_ANSWER_SECONDS).job_info
            return [job.job_id for job in jobs if job.job_id.startswith(f"{self.name}_") and job.state in running]
        return []

    def _count(self) -> int:
        """Return the number of files that the job has written; 0 where they cannot be counted."""
        with contextlib.suppress(BertError, OSError):
            if storage.is_remote(self.files):
                return len(storage.sizes_below(self.files))
            return sum(len(names) for _, _, names in os.walk(self.files))
        return 0

    def warn(self) -> None:
        """Warn of jobs of this name that run already, and of slots that share a process."""
        ways = [f"on Flink: curl -X PATCH {self.flink}/jobs/{job}" for job in self.earlier]
        for way in ways or [f"by a restart of the job server at {self.endpoint} ({job})" for job in self._served()]:
            logger.warning("%s: a job of this name runs already; if its start was killed, end it %s", self.name, way)
        cluster = self._ask("/overview")
        if self.processes == 1 and self.slots > 1 and cluster.get("slots-total", 0) > cluster.get("taskmanagers", 0):
            logger.warning(
                "%s: all slots of a TaskManager share one Python process; start TaskManagers of one slot, or give "
                "--sdk_worker_parallelism=N, twice the slots of each",
                self.name,
            )

    def report(self, result: Any, patience: float = 60.0) -> None:
        """Log a line with the job's state, and once, what is likely missing if no file is written within `patience`."""
        seconds, files = time.monotonic() - self.started, max(0, self._count() - self.before)
        job = next(iter(self._jobs().values()), dict[str, Any]())
        tasks = {name: number for name, number in job.get("tasks", {}).items() if number}
        state = job.get("state") or getattr(result, "_state", None) or "being sent"
        level = logging.WARNING if state in ("RESTARTING", "FAILING") else logging.INFO
        if total := tasks.pop("total", 0):
            state += f" ({', '.join(f'{number} {name}' for name, number in tasks.items())} of {total} tasks)"
        logger.log(level, "%s: %s for %.0f s, %d files written by the workers", self.name, state, seconds, files)
        if not (self.has_result or files) and seconds > patience:
            logger.warning("%s: no result after %.0f s; %s", self.name, seconds, self._missing(tasks))
            files = 1  # said once
        self.has_result |= files > 0

    def _missing(self, tasks: dict[str, int]) -> str:
        cluster, needed = self._ask("/overview"), self.slots
        if (total := cluster.get("slots-total", needed)) < needed:
            return (
                f"most likely task slots: Flink at {self.flink} has {total}, --parallelism={needed} needs {needed}; "
                "start TaskManagers (deploy/engine.sh taskmanager)"
            )
        if cluster.get("jobs-running", 0) > 1 and not tasks.keys() & {"running", "finished"}:
            free = cluster["slots-available"]
            return f"most likely task slots: other jobs at {self.flink} take them, {free} of {total} are free"
        where = f"a pool has to answer at {self.pool} beside each TaskManager or Spark worker " if self.pool else ""
        return (
            f"unless one takes that long, workers: {where}(deploy/engine.sh workers), whose output says why one ended"
        )

    def cancel(self, result: Any, patience: float = 8.0) -> None:
        """End the job on the engine; where that is not confirmed within `patience` seconds, log a warning."""
        deadline, has_ended = time.monotonic() + patience, result is None
        with contextlib.suppress(Exception):  # the job has not been sent yet, or the job server is gone
            result.cancel()
            while not (has_ended := PipelineState.is_terminal(result.state)) and time.monotonic() < deadline:
                time.sleep(0.2)
        for job in (running := self._jobs()):
            self._ask(f"/jobs/{job}", "PATCH")
        if not (has_ended or running):
            logger.warning("%s: the engine has not confirmed the end of the job; see its page", self.name)


def explain(error: Exception, options: PipelineOptions) -> str:
    """Return who did not answer, by the failure of a job; "" for another reason."""
    portable, text = options.view_as(beam_options.PortableOptions), str(error)
    if type(error).__module__.startswith("grpc") and hasattr(error, "details"):
        return f"the job server does not answer ({error.details()}); check --job_endpoint and the server"
    if not re.search(r"Connection refused|[Cc]onnection timed out|No route to host|UnknownHostException", text):
        return ""
    if "finishConnect" in text and portable.environment_type == "EXTERNAL":
        return (
            f"no worker pool answers at {portable.environment_config}, asked from a TaskManager or Spark worker; start "
            "one beside each: deploy/engine.sh workers"
        )
    master = options.view_as(beam_options.FlinkRunnerOptions).flink_master
    address = "the address that it was started with" if master.startswith("[") else master
    asker = f"the job server at {portable.job_endpoint}" if portable.job_endpoint else "this command's job server"
    return (
        f"the JobManager or Spark master does not answer at {address}, asked from {asker}; start it: deploy/engine.sh "
        "jobmanager or master"
    )
