"""A job on an engine, as the program that starts it sees it: its name, a line every ten seconds, its cancellation.

The job server knows little of a running job, no counters among it. So what the workers have written is counted, and
Flink is asked itself where it answers: at `--flink_master`, or port 8081 of the job server's host.
"""

import concurrent.futures
import contextlib
import json
import logging
import os
import re
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
from apache_beam.options.pipeline_options import (
    FlinkRunnerOptions,
    GoogleCloudOptions,
    JobServerOptions,
    PipelineOptions,
    PortableOptions,
    StandardOptions,
)
from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc
from apache_beam.runners import create_runner

from bert_pipeline import storage
from bert_pipeline.beam import beam
from bert_pipeline.beam.progress import in_background
from bert_pipeline.errors import BertError

logger = logging.getLogger(__name__)

_REPORT_SECONDS = 10.0
_FIRST_RESULT_SECONDS = 60.0
_CANCEL_SECONDS = 8.0
_ANSWER_SECONDS = 3.0
_RUNNING = ("STARTING", "RUNNING", "CREATED", "INITIALIZING", "RESTARTING", "FAILING")
_OWN_SESSION = "import os, sys; os.setsid(); os.execvp(sys.argv[1], sys.argv[1:])"


def job_name(stage: str, directory: Path) -> str:
    """Return a name such as bert-corpus-enwiki-20261101: what is made, and the folder that tells the results apart."""
    found: list[str] = []
    for part in (part for part in reversed(directory.parts) if part.strip("/")):
        if part != stage:
            found.insert(0, part)
        if part != stage and not part.isdigit():
            break
    return re.sub(r"[^a-z0-9]+", "-", "-".join(["bert", stage, *found]).lower()).strip("-")


@contextlib.contextmanager
def engine_pipeline(options: PipelineOptions, name: str, files: Path) -> Iterator[Any]:
    """Yield a pipeline, and run the graph that the block adds to it on the engine that the options name.

    `files` is the folder that the workers write to. The job is cancelled if the program is interrupted.
    """
    cloud = options.view_as(GoogleCloudOptions)
    cloud.job_name = cloud.job_name or name
    runner = create_runner(options.view_as(StandardOptions).runner)
    with contextlib.ExitStack() as at_end:
        if hasattr(runner, "default_job_server"):
            _detach(runner, options, at_end.callback)
        pipeline = beam.Pipeline(runner, options)
        yield pipeline
        pipeline.result = None  # Beam sets it when the job has been sent
        job = _Job(options, files)
        job.name_earlier()
        job.name_shared_process()
        ended = in_background(lambda: _run(pipeline))
        try:
            while not concurrent.futures.wait([ended], _REPORT_SECONDS).done:
                job.report(pipeline.result)
            ended.result()
        except Exception:
            raise
        except BaseException:  # Ctrl-C, SIGTERM, the end of a run in Dagster
            job.cancel(pipeline, ended)
            raise


def _run(pipeline: Any) -> None:
    with pipeline:
        pass


def _detach(runner: Any, options: PipelineOptions, at_end: Callable[[Callable[[], None]], object]) -> None:
    """Keep a job server that Beam starts for this job alive after Ctrl-C, when it has to cancel the job."""
    default = runner.default_job_server

    def start(options: PipelineOptions) -> Any:
        server = default(options)
        server = getattr(server, "_job_server", server)  # without the handler of SIGINT around it
        at_end(server.stop)
        return server

    runner.default_job_server = start
    # A terminal sends Ctrl-C to all processes of its session.
    java = options.view_as(JobServerOptions)
    if java.job_server_java_launcher != sys.executable:
        java.job_server_jvm_properties = [
            "-c",
            _OWN_SESSION,
            java.job_server_java_launcher,
            *java.job_server_jvm_properties,
        ]
        java.job_server_java_launcher = sys.executable


class _Job:
    """A job that has not ended, or not begun."""

    def __init__(self, options: PipelineOptions, files: Path) -> None:
        portable, flink = options.view_as(PortableOptions), options.view_as(FlinkRunnerOptions)
        self.name = options.view_as(GoogleCloudOptions).job_name
        self.files = files
        self.endpoint = portable.job_endpoint or ""
        self.pool = portable.environment_config if portable.environment_type == "EXTERNAL" else ""
        self.slots = max(1, flink.parallelism)
        self.processes = int(portable.sdk_worker_parallelism)
        master = flink.flink_master.removeprefix("http://")
        if master.startswith("[") and self.endpoint:
            master = f"{self.endpoint.rpartition(':')[0]}:8081"
        self.flink = "" if master.startswith("[") else f"http://{master}"
        self.earlier = {job["jid"] for job in self._jobs()}
        self.started = time.monotonic()
        self.before = self._count()
        self.is_hint_due = True

    def _ask(self, path: str, method: str = "GET") -> Any:
        """Return what Flink answers; {} if it does not."""
        with contextlib.suppress(OSError, ValueError):
            request = urllib.request.Request(f"{self.flink}{path}", method=method)
            with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS) as response:
                return json.load(response)
        return {}

    def _jobs(self) -> list[dict[str, Any]]:
        """Return Flink's jobs of this name that have not ended."""
        found = self._ask("/jobs/overview").get("jobs", []) if self.flink else []
        return [job for job in found if job["name"] == self.name and job["state"] in _RUNNING]

    def _count(self) -> int:
        """Return the number of files that the job has written; 0 where they cannot be counted."""
        with contextlib.suppress(BertError, OSError):
            if storage.is_remote(self.files):
                return len(storage.sizes_below(self.files))
            return sum(len(names) for _, _, names in os.walk(self.files))
        return 0

    def name_earlier(self) -> None:
        """Warn of jobs of the same name that run already: of a program that was killed."""
        known = {f"Flink: curl -X PATCH {self.flink}/jobs/{job}" for job in self.earlier}
        for way in known or {f"the job server at {self.endpoint}: restart it ({job})" for job in self._served()}:
            logger.warning(
                "%s: a job of this name runs already; if an earlier start was killed, end it on %s", self.name, way
            )

    def name_shared_process(self) -> None:
        """Warn if all slots of a TaskManager share one Python process, and with it one core."""
        cluster = self._ask("/overview") if self.flink else {}
        if self.processes == 1 and self.slots > 1 and cluster.get("slots-total", 0) > cluster.get("taskmanagers", 0):
            logger.warning(
                "%s: Flink's TaskManagers have several slots, which share one Python process; start TaskManagers of one "
                "slot, or give --sdk_worker_parallelism=N, about twice the slots of a TaskManager", self.name,
            )  # fmt: skip

    def _served(self) -> list[str]:
        """Return what the job server, if one is named, has running under this name."""
        running = (beam_job_api_pb2.JobState.STARTING, beam_job_api_pb2.JobState.RUNNING)
        if self.endpoint:
            with contextlib.suppress(grpc.RpcError), grpc.insecure_channel(self.endpoint) as channel:
                service = beam_job_api_pb2_grpc.JobServiceStub(channel)
                found = service.GetJobs(beam_job_api_pb2.GetJobsRequest(), timeout=_ANSWER_SECONDS).job_info
                return [job.job_id for job in found if job.job_id.startswith(self.name) and job.state in running]
        return []

    def report(self, result: Any) -> None:
        """Log a line with the job's state, and once, what is likely missing if no file has been written in time."""
        seconds, files = time.monotonic() - self.started, self._count() - self.before
        job = next((job for job in self._jobs() if job["jid"] not in self.earlier), None)
        tasks = {name: number for name, number in (job or {}).get("tasks", {}).items() if number}
        state = job["state"] if job else getattr(result, "_state", None) or "being sent"
        if total := tasks.pop("total", 0):
            state += f" ({', '.join(f'{number} {name}' for name, number in tasks.items())} of {total} tasks)"
        is_calm = state.split()[0] not in ("RESTARTING", "FAILING")
        logger.log(
            logging.INFO if is_calm else logging.WARNING,
            "%s: %s for %.0f s, %s files written by the workers", self.name, state, seconds, f"{max(0, files):,}",
        )  # fmt: skip
        if files > 0:
            self.is_hint_due = False
        elif self.is_hint_due and seconds > _FIRST_RESULT_SECONDS:
            self.is_hint_due = False
            logger.warning("%s: no result after %.0f s; most likely %s", self.name, seconds, self._missing(tasks))

    def _missing(self, tasks: dict[str, int]) -> str:
        cluster = self._ask("/overview") if self.flink else {}
        total, needed = cluster.get("slots-total", self.slots), self.slots
        if total < needed:
            return (
                f"task slots: Flink at {self.flink} has {total}, --parallelism={needed} needs {needed}; start "
                "TaskManagers (deploy/flink/start.sh taskmanager)"
            )
        if cluster.get("jobs-running", 0) > 1 and not tasks.keys() & {"running", "finished"}:
            return f"task slots: other jobs at {self.flink} take them, {cluster['slots-available']} of {total} are free"
        if self.pool:
            return (
                f"workers: a pool has to answer at {self.pool} beside each TaskManager or Spark worker "
                "(deploy/flink/start.sh workers), and its output says why a worker ended"
            )
        return "the engine's workers; see its page and their logs"

    def cancel(self, pipeline: Any, ended: "concurrent.futures.Future[None]") -> None:
        """End the job on the engine; where that fails, say how to."""
        deadline = time.monotonic() + _CANCEL_SECONDS
        # A job that is being sent cannot be cancelled yet.
        while pipeline.result is None and not ended.done() and time.monotonic() < deadline:
            time.sleep(0.1)
        if pipeline.result is not None:
            cancelled = in_background(pipeline.result.cancel)
            concurrent.futures.wait([cancelled, ended], deadline - time.monotonic())
            concurrent.futures.wait([ended], max(0.0, deadline - time.monotonic()))
        for job in {job["jid"] for job in self._jobs()} - self.earlier:
            self._ask(f"/jobs/{job}", "PATCH")
            return
        if not ended.done():
            where = f"the job server at {self.endpoint}" if self.endpoint else "the engine"
            logger.warning("%s: %s has not confirmed the end of the job; see the engine's page", self.name, where)


def explain(text: str, options: PipelineOptions) -> str:
    """Return who did not answer, by the text of a job's failure; "" for another reason."""
    portable, flink = options.view_as(PortableOptions), options.view_as(FlinkRunnerOptions)
    refused = re.search(r"Connection refused|[Cc]onnection timed out|No route to host|UnknownHostException", text)
    if refused and "finishConnect" in text and portable.environment_type == "EXTERNAL":
        return (
            f"no worker pool answers at {portable.environment_config}, asked from a TaskManager or Spark worker; start "
            "one beside each: deploy/flink/start.sh workers"
        )
    if refused:
        given = flink.flink_master if flink.flink_master[:1] != "[" else "the address that it was started with"
        asker = f"the job server at {portable.job_endpoint}" if portable.job_endpoint else "this command's job server"
        return (
            f"the JobManager or Spark master does not answer at {given}, asked from {asker}; start it: "
            "deploy/flink/start.sh jobmanager or deploy/spark/start.sh master"
        )
    return ""
