"""Client of the webserver's GraphQL API, with the operations of the UI."""

import json
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

OPERATIONS = Path(__file__).with_name("operations.graphql").read_text(encoding="utf-8")
REPOSITORY = {"repositoryLocationName": "bert", "repositoryName": "__repository__"}
PATIENCE_SECONDS = 900.0
"""How long to wait for what should happen. A busy machine is slow, and what comes early is not waited for."""
FINISHED = ("SUCCESS", "FAILURE", "CANCELED")


class DagsterApi:
    """A webserver's GraphQL."""

    def __init__(self, address: str) -> None:
        self.address = address

    def ask(self, query: str, **variables: Any) -> Any:
        """Return the answer to a query; AssertionError with the errors."""
        return self._answer({"query": query, "variables": variables})

    def do(self, operation: str, **variables: Any) -> Any:
        """Return the answer to an operation of `operations.graphql`."""
        return self._answer({"query": OPERATIONS, "operationName": operation, "variables": variables})

    def _answer(self, request: Mapping[str, Any]) -> Any:
        body = json.dumps(request).encode()
        headers = {"Content-Type": "application/json"}
        with urllib.request.urlopen(
            urllib.request.Request(f"{self.address}/graphql", data=body, headers=headers), timeout=60
        ) as response:
            answer = json.load(response)
        assert "errors" not in answer, answer["errors"]
        (value,) = answer["data"].values()
        return value

    def launch(self, *arguments: Any, **named: Any) -> str:
        """Materialize assets for a partition, as `try_to_launch`; returns the run's id."""
        return self._launched(self.try_to_launch(*arguments, **named))

    def try_to_launch(
        self,
        assets: Iterable[str],
        partition: str,
        run_config: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> Any:
        """Return the answer to the request to materialize assets."""
        all_tags = {"dagster/partition": partition, **(tags or {})}
        params = {
            "selector": _selector(assets),
            "runConfigData": run_config or {},
            "executionMetadata": {"tags": [{"key": key, "value": value} for key, value in all_tags.items()]},
        }
        return self.do("Launch", params=params)

    def launch_job(self, job: str, run_config: Mapping[str, Any]) -> str:
        """Start a job from the launchpad; returns the run's id."""
        params = {"selector": {**REPOSITORY, "jobName": job}, "runConfigData": run_config, "executionMetadata": {}}
        return self._launched(self.do("Launch", params=params))

    def execute_again(self, run_id: str, strategy: str = "ALL_STEPS") -> str:
        """Execute all steps of a run, or FROM_FAILURE those without success; returns the new run's id."""
        return self._launched(self.do("Reexecute", params={"parentRunId": run_id, "strategy": strategy}))

    def _launched(self, answer: Any) -> str:
        assert answer["__typename"] == "LaunchRunSuccess", answer
        return str(answer["run"]["runId"])

    def launchpad(self, assets: Iterable[str]) -> Any:
        """Return the run config with which the launchpad opens."""
        selector = {key: value for key, value in _selector(assets).items() if key != "jobName"}
        shown = self.do("DefaultConfig", selector={**selector, "pipelineName": "__ASSET_JOB"})
        return yaml.safe_load(shown["rootDefaultYaml"])

    def backfill(self, assets: Iterable[str], partitions: Sequence[str]) -> str:
        """Materialize assets for many partitions; returns the backfill's id."""
        selection = [{"path": [asset]} for asset in assets]
        launched = self.do("Backfill", params={"assetSelection": selection, "partitionNames": list(partitions)})
        assert launched["__typename"] == "LaunchBackfillSuccess", launched
        return str(launched["backfillId"])

    def backfill_status(self, backfill_id: str) -> str:
        return str(self.do("BackfillStatus", id=backfill_id)["status"])

    def runs_of_backfill(self, backfill_id: str) -> dict[str, str]:
        """Run id -> status."""
        return self.runs_with({"dagster/backfill": backfill_id})

    def runs_with(self, tags: Mapping[str, str]) -> dict[str, str]:
        """Run id -> status of the runs that carry these tags."""
        wanted = [{"key": key, "value": value} for key, value in tags.items()]
        return {run["runId"]: run["status"] for run in self.do("Runs", filter={"tags": wanted})["results"]}

    def run(self, run_id: str) -> dict[str, Any]:
        """A run's status and tags."""
        (run,) = self.do("Runs", filter={"runIds": [run_id]})["results"]
        return {"status": run["status"], "tags": {tag["key"]: tag["value"] for tag in run["tags"]}}

    def unfinished_runs(self) -> list[str]:
        statuses = ["QUEUED", "NOT_STARTED", "STARTING", "STARTED", "CANCELING"]
        return [run["runId"] for run in self.do("Runs", filter={"statuses": statuses})["results"]]

    def messages(self, run_id: str) -> list[str]:
        """Return the messages of a run's events."""
        found = []
        for event in self.do("Events", id=run_id)["events"]:
            error = event.get("error") or {}
            found.append(f"{event.get('message', event['__typename'])} {error.get('message', '')}".strip())
        return found

    def finished(self, run_id: str) -> str:
        """Wait for the end of a run; return its status."""
        wait_for(lambda: self.run(run_id)["status"] in FINISHED, f"the end of run {run_id}", every=0.5)
        return str(self.run(run_id)["status"])

    def succeeded(self, run_id: str) -> None:
        """Wait for the end of a run; AssertionError with its last messages if it fails."""
        status = self.finished(run_id)
        assert status == "SUCCESS", "\n".join([status, *self.messages(run_id)[-15:]])

    def materializations(self, asset: str) -> list[tuple[str, str]]:
        """(partition, run id) of each materialization of an asset, newest first."""
        found = self.do("Materializations", asset={"path": [asset]})["assetMaterializations"]
        return [(item["partition"], item["runId"]) for item in found]

    def reload(self) -> None:
        """Load the code again."""
        answer = self.do("Reload", name=REPOSITORY["repositoryLocationName"])
        assert answer["__typename"] == "WorkspaceLocationEntry", answer

    def terminate(self, run_id: str) -> None:
        answer = self.do("Terminate", id=run_id)
        assert answer["__typename"] == "TerminateRunSuccess", answer

    def switch_on(self, schedule: str) -> str:
        """Start a schedule; returns the id by which it is stopped."""
        answer = self.do("StartSchedule", selector={**REPOSITORY, "scheduleName": schedule})
        assert answer["__typename"] == "ScheduleStateResult", answer
        return str(answer["scheduleState"]["id"])

    def switch_off(self, schedule_id: str) -> None:
        answer = self.do("StopSchedule", id=schedule_id)
        assert answer["__typename"] == "ScheduleStateResult", answer

    def ticks(self, schedule: str) -> list[dict[str, Any]]:
        """Return the status of a schedule's newest ticks."""
        found = self.do("Ticks", selector={**REPOSITORY, "scheduleName": schedule})
        ticks: list[dict[str, Any]] = found["scheduleState"]["ticks"]
        return ticks


def _selector(assets: Iterable[str]) -> dict[str, Any]:
    return {**REPOSITORY, "jobName": "__ASSET_JOB", "assetSelection": [{"path": [asset]} for asset in assets]}


def wait_for(condition: Callable[[], Any], what: str, *, every: float = 0.2) -> Any:
    """Wait until a condition returns a true value, and return it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {PATIENCE_SECONDS:.0f} s in vain for {what}"
        time.sleep(every)
    return value
