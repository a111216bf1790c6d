"""What an operator does in the UIs of `make ui`: change a configuration, repair a failed run, compare, roll back."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import miniature
import pytest
from chromium import PATIENCE_SECONDS
from dagster_api import DagsterApi
from dagster_pages import AssetPage
from mlflow_pages import Mlflow
from playwright.sync_api import expect
from processes import Server, free_port
from user_interfaces import answers

from bert_model.registry.operations import list_models, promote
from bert_model.registry.promotion import GateConfig
from bert_pipeline.manifest import MANIFEST_NAME
from workflows.lib.resources import TASK_ASSETS, dump_task_key

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

TASK = miniature.TASKS[1]  # the other one has the champion of the pages' tests
MODEL = f"bert-tiny-{TASK}"
WAIVED = [*miniature.UNFIT, "better", "no_task_worse"]
SEED = 3


@dataclass(frozen=True)
class RepairedRun:
    """A run that failed because of a damaged file, and the run that executed the rest of it."""

    first: str
    second: str
    damaged: Path


@pytest.fixture(scope="module")
def registry(finished_home):
    """This process uses the registry of the finished run, whose version of the task is champion."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BERT_HOME", str(finished_home.path))
        patch.setenv("MLFLOW_TRACKING_URI", finished_home.tracking_uri)
        promote(MODEL, config=GateConfig(waived_gates=miniature.UNFIT))
        assert holder_of("champion") == 1
        yield


def holder_of(alias: str) -> int:
    (version,) = [version.version for version in list_models(MODEL) if alias in version.aliases]
    return version


@pytest.fixture(scope="module")
def dagster(user_interfaces):
    return DagsterApi(user_interfaces.dagster)


@pytest.fixture(scope="module")
def repaired(dagster, finished_home, registry):
    """A task is fine-tuned with a seed changed in the launchpad, while the manifest of its model is damaged."""
    config = dagster.launchpad(TASK_ASSETS)
    config["ops"]["finetuned_model"]["config"]["default"]["seeds"] = [SEED]
    config["ops"]["registered_model"]["config"]["waived_gates"] = WAIVED
    damaged = finished_home.current_model(miniature.DUMP) / MANIFEST_NAME
    whole = damaged.read_text(encoding="utf-8")
    damaged.write_text(whole[: len(whole) // 2], encoding="utf-8")
    try:
        first = dagster.launch(TASK_ASSETS, str(dump_task_key(miniature.DUMP, TASK)), config)
        assert dagster.finished(first) == "FAILURE"
    finally:
        damaged.write_text(whole, encoding="utf-8")
    second = dagster.execute_again(first, "FROM_FAILURE")
    dagster.succeeded(second)
    return RepairedRun(first, second, damaged)


def test_damaged_manifest_is_named_by_the_run_that_reads_it(dagster, repaired):
    messages = [line for line in dagster.messages(repaired.first) if "not a valid manifest" in line]
    assert messages
    assert str(repaired.damaged) in messages[0]


def test_execution_from_failure_repeats_no_finished_asset(dagster, repaired):
    for asset in ("finetuned_model", "registered_model"):
        assert repaired.second in {run for _, run in dagster.materializations(asset)}
    runs = {run for _, run in dagster.materializations("task_data")}
    assert repaired.first in runs
    assert repaired.second not in runs


def test_configuration_changed_in_the_launchpad_is_used(finished_home, repaired):
    directory = finished_home.finetuning(miniature.DUMP, TASK)
    results = json.loads((directory / "results.json").read_text(encoding="utf-8"))
    assert {len(entry["values"]) for entry in results["metrics"].values()} == {1}  # the preset has two seeds


def test_key_that_does_not_exist_is_refused_by_the_launchpad(dagster, repaired):
    config = {"ops": {"registered_model": {"config": {"marginn": 1.0}}}}
    answer = dagster.try_to_launch(["registered_model"], str(dump_task_key(miniature.DUMP, TASK)), config)
    assert answer["__typename"] == "RunConfigValidationInvalid"
    assert "marginn" in answer["errors"][0]["message"]


def test_compared_runs_are_shown_side_by_side(page, user_interfaces, repaired):
    Mlflow(page, user_interfaces.mlflow).compare_newest_runs("finetuning")
    expect(page.get_by_text("Comparing 2 Runs")).to_be_visible()
    expect(page.get_by_text("seeds", exact=True).first).to_be_visible()


def test_rollback_job_gives_the_champion_back(dagster, repaired):
    assert holder_of("champion") == 2
    run = dagster.launch_job("rollback", {"ops": {"rollback_champion": {"config": {"name": MODEL}}}})
    dagster.succeeded(run)
    assert holder_of("champion") == 1
    assert holder_of("previous") == 2


def test_decision_page_shows_outcome_tasks_and_gates(page, user_interfaces):
    decision = AssetPage(page, user_interfaces.dagster, "promotion_decision").open()
    expect(decision.metadata("outcome")).to_contain_text("bert-tiny version 1 is ")
    for task in miniature.TASKS:
        expect(decision.metadata("tasks")).to_contain_text(task)
    for gate in ("scored", "not_degenerate", "reproduces_logits"):
        expect(decision.metadata("gates")).to_contain_text(gate)


def test_mlflow_shows_the_pictures_of_the_report(page, user_interfaces):
    mlflow = Mlflow(page, user_interfaces.mlflow)
    mlflow.open_run("reports")
    mlflow.open_artifact("scores.png")
    picture = page.locator("img[src^='blob:']").first
    picture.wait_for()
    assert picture.evaluate("image => image.decode().then(() => image.naturalWidth)") > 100


def test_read_only_webserver_shows_everything_and_changes_nothing(page, finished_home, user_interfaces, tmp_path):
    port = free_port()
    command = [sys.executable, "-m", "dagster_webserver", "-w", "workspace.yaml", "--read-only", "--port", str(port)]
    environment = {**miniature.environment(finished_home.path), "DAGSTER_HOME": str(finished_home.path / "dagster")}
    server = Server("read-only webserver", command, environment, tmp_path / "log.txt", directory=miniature.ROOT)
    reader = DagsterApi(f"http://127.0.0.1:{port}")
    server.start()
    try:
        server.wait(lambda: answers(f"{reader.address}/server_info"), PATIENCE_SECONDS)
        assert reader.try_to_launch(["dump"], miniature.DUMP)["__typename"] == "UnauthorizedError"
        assert reader.materializations("dump")
        AssetPage(page, reader.address, "report").open()
        expect(page.get_by_role("button", name="Materialize").first).to_be_disabled()
    finally:
        server.stop()
