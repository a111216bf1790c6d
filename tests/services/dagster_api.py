"""Client of the webserver's GraphQL API, with the operations of the UI."""

import json
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import yaml


def _mutation(call: str, variables: str, success: str = "") -> str:
    """Return a mutation; `success` is what is asked of its result beside the name of its type, and of an error."""
    parts = ["__typename", *([success] if success else []), "... on PythonError { message }"]
    return f"mutation Do({variables}) {{ {call} {{ {' '.join(parts)} }} }}"


LAUNCH = _mutation(
    "launchRun(executionParams: $params)",
    "$params: ExecutionParams!",
    "... on LaunchRunSuccess { run { runId } } ... on RunConfigValidationInvalid { errors { message } }",
)
REEXECUTE = _mutation(
    "launchRunReexecution(reexecutionParams: $params)",
    "$params: ReexecutionParams!",
    "... on LaunchRunSuccess { run { runId } }",
)
BACKFILL = _mutation(
    "launchPartitionBackfill(backfillParams: $params)",
    "$params: LaunchBackfillParams!",
    "... on LaunchBackfillSuccess { backfillId }",
)
TERMINATE = _mutation("terminateRun(runId: $id)", "$id: String!", "... on TerminateRunFailure { message }")
START_SCHEDULE = _mutation(
    "startSchedule(scheduleSelector: $selector)",
    "$selector: ScheduleSelector!",
    "... on ScheduleStateResult { scheduleState { id status } }",
)
STOP_SCHEDULE = _mutation("stopRunningSchedule(id: $id)", "$id: String!")
RELOAD = _mutation("reloadRepositoryLocation(repositoryLocationName: $name)", "$name: String!")
DEFAULT_CONFIG = """query Defaults($selector: PipelineSelector!) {
  runConfigSchemaOrError(selector: $selector, mode: "default") { ... on RunConfigSchema { rootDefaultYaml } }
}"""
BACKFILL_STATUS = """query Backfill($id: String!) {
  partitionBackfillOrError(backfillId: $id) { __typename ... on PartitionBackfill { status } }
}"""
RUNS = """query Runs($filter: RunsFilter!) {
  runsOrError(filter: $filter) { ... on Runs { results { runId status tags { key value } } } }
}"""
EVENTS = """query Events($id: ID!) {
  logsForRun(runId: $id, limit: 1000) { ... on EventConnection { events {
    __typename ... on MessageEvent { message } ... on ExecutionStepFailureEvent { error { message } }
  } } }
}"""
MATERIALIZATIONS = """query Materializations($asset: AssetKeyInput!) {
  assetOrError(assetKey: $asset) { ... on Asset { assetMaterializations { runId partition } } }
}"""
TICKS = """query Ticks($selector: ScheduleSelector!) { scheduleOrError(scheduleSelector: $selector) {
  ... on Schedule { scheduleState { ticks(limit: 20) { status runIds skipReason error { message } } } }
} }"""

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
        body = json.dumps({"query": query, "variables": variables}).encode()
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
        return self.ask(LAUNCH, params=params)

    def launch_job(self, job: str, run_config: Mapping[str, Any]) -> str:
        """Start a job from the launchpad; returns the run's id."""
        params = {"selector": {**REPOSITORY, "jobName": job}, "runConfigData": run_config, "executionMetadata": {}}
        return self._launched(self.ask(LAUNCH, params=params))

    def execute_again(self, run_id: str, strategy: str = "ALL_STEPS") -> str:
        """Execute all steps of a run, or FROM_FAILURE those without success; returns the new run's id."""
        return self._launched(self.ask(REEXECUTE, params={"parentRunId": run_id, "strategy": strategy}))

    def _launched(self, answer: Any) -> str:
        assert answer["__typename"] == "LaunchRunSuccess", answer
        return str(answer["run"]["runId"])

    def launchpad(self, assets: Iterable[str]) -> Any:
        """Return the run config with which the launchpad opens."""
        selector = {key: value for key, value in _selector(assets).items() if key != "jobName"}
        shown = self.ask(DEFAULT_CONFIG, selector={**selector, "pipelineName": "__ASSET_JOB"})
        return yaml.safe_load(shown["rootDefaultYaml"])

    def backfill(self, assets: Iterable[str], partitions: Sequence[str]) -> str:
        """Materialize assets for many partitions; returns the backfill's id."""
        selection = [{"path": [asset]} for asset in assets]
        launched = self.ask(BACKFILL, params={"assetSelection": selection, "partitionNames": list(partitions)})
        assert launched["__typename"] == "LaunchBackfillSuccess", launched
        return str(launched["backfillId"])

    def backfill_status(self, backfill_id: str) -> str:
        return str(self.ask(BACKFILL_STATUS, id=backfill_id)["status"])

    def runs_of_backfill(self, backfill_id: str) -> dict[str, str]:
        """Run id -> status."""
        return self.runs_with({"dagster/backfill": backfill_id})

    def runs_with(self, tags: Mapping[str, str]) -> dict[str, str]:
        """Run id -> status of the runs that carry these tags."""
        wanted = [{"key": key, "value": value} for key, value in tags.items()]
        return {run["runId"]: run["status"] for run in self.ask(RUNS, filter={"tags": wanted})["results"]}

    def run(self, run_id: str) -> dict[str, Any]:
        """A run's status and tags."""
        (run,) = self.ask(RUNS, filter={"runIds": [run_id]})["results"]
        return {"status": run["status"], "tags": {tag["key"]: tag["value"] for tag in run["tags"]}}

    def unfinished_runs(self) -> list[str]:
        statuses = ["QUEUED", "NOT_STARTED", "STARTING", "STARTED", "CANCELING"]
        return [run["runId"] for run in self.ask(RUNS, filter={"statuses": statuses})["results"]]

    def messages(self, run_id: str) -> list[str]:
        """Return the messages of a run's events."""
        found = []
        for event in self.ask(EVENTS, id=run_id)["events"]:
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
        found = self.ask(MATERIALIZATIONS, asset={"path": [asset]})["assetMaterializations"]
        return [(item["partition"], item["runId"]) for item in found]

    def reload(self) -> None:
        """Load the code again."""
        answer = self.ask(RELOAD, name=REPOSITORY["repositoryLocationName"])
        assert answer["__typename"] == "WorkspaceLocationEntry", answer

    def terminate(self, run_id: str) -> None:
        answer = self.ask(TERMINATE, id=run_id)
        assert answer["__typename"] == "TerminateRunSuccess", answer

    def switch_on(self, schedule: str) -> str:
        """Start a schedule; returns the id by which it is stopped."""
        answer = self.ask(START_SCHEDULE, selector={**REPOSITORY, "scheduleName": schedule})
        assert answer["__typename"] == "ScheduleStateResult", answer
        return str(answer["scheduleState"]["id"])

    def switch_off(self, schedule_id: str) -> None:
        answer = self.ask(STOP_SCHEDULE, id=schedule_id)
        assert answer["__typename"] == "ScheduleStateResult", answer

    def ticks(self, schedule: str) -> list[dict[str, Any]]:
        """Return the status of a schedule's newest ticks."""
        found = self.ask(TICKS, selector={**REPOSITORY, "scheduleName": schedule})
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
