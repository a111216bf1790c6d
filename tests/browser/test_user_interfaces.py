"""Dagster's and MLflow's UIs as a person sees them, in Chromium."""

import contextlib
import re

import miniature
import pytest
from dagster_api import DagsterApi
from dagster_pages import AssetGraph, AssetPage
from mlflow_pages import Mlflow
from playwright.sync_api import expect

from workflows.defs.data import OFFICIAL_FILES, PUBLISHED_DUMPS
from workflows.lib.instance import open_instance
from workflows.lib.processes import process_of
from workflows.lib.resources import ASSETS, STAGES

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]


def test_asset_graph_shows_every_group_and_asset(page, user_interfaces):
    graph = AssetGraph(page, user_interfaces.dagster).open()
    assert sorted(graph.assets()) == sorted([*ASSETS, "champion", OFFICIAL_FILES, PUBLISHED_DUMPS])
    for group in STAGES:
        expect(graph.group(group)).to_be_visible()


def test_first_page_shows_the_runs_of_the_command(page, user_interfaces, finished_home):
    page.goto(user_interfaces.dagster)
    for job in ("retrain", "evaluate_tasks", "write_report"):
        expect(page.locator(f"a[href$='/jobs/{job}']")).to_be_visible()
    page.goto(f"{user_interfaces.dagster}/locations/bert/jobs/retrain/runs")
    for stage in ("data", "pretraining"):
        expect(page.get_by_text(f"bert/stage: {stage}").first).to_be_visible()


def test_run_of_the_command_is_executed_again(user_interfaces):
    dagster = DagsterApi(user_interfaces.dagster)
    (run,) = dagster.runs_with({"bert/stage": "data"})
    dagster.succeeded(dagster.execute_again(run))


def test_first_visit_shows_no_dialog(page, user_interfaces):
    AssetPage(page, user_interfaces.dagster, "corpus").open()
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_materialization_started_by_clicking_succeeds(page, user_interfaces, finished_home, monkeypatch):
    run = AssetPage(page, user_interfaces.dagster, "dump").open().materialize(miniature.DUMP)
    run.expect_success()
    for name in ("BERT_HOME", "DAGSTER_HOME"):
        monkeypatch.setenv(name, str(finished_home.path / ("dagster" if name == "DAGSTER_HOME" else "")))
    with open_instance(finished_home) as instance:
        stored = instance.get_run_by_id(run.run_id)
    assert stored is not None
    assert stored.is_success
    assert stored.tags["dagster/partition"] == miniature.DUMP
    assert process_of(stored)  # by which it would be recognized if it were killed


def test_report_shows_pictures_on_click(page, user_interfaces):
    report = AssetPage(page, user_interfaces.dagster, "report").open()
    pictures = report.show_markdown("report").locator("img")
    expect(pictures).to_have_count(2)
    for picture in pictures.all():
        assert natural_width(picture) > 0


def test_pretrained_model_shows_curves_on_click(page, user_interfaces):
    model = AssetPage(page, user_interfaces.dagster, "pretrained_model").open()
    assert natural_width(model.show_markdown("curves").locator("img")) > 0
    assert model.metadata("held_out/mlm_loss").inner_text()


def test_columns_of_the_corpus_and_of_the_instances_made_of_it_are_shown(page, user_interfaces):
    for asset, columns in (("corpus", ("document_id", "sentences")), ("instances", ("input_ids", "segment_b_start"))):
        page.goto(f"{user_interfaces.dagster}/assets/{asset}")
        for column in columns:
            expect(page.get_by_text(column, exact=True).first).to_be_visible()


def test_task_files_are_observed_by_their_button(page, user_interfaces):
    page.goto(f"{user_interfaces.dagster}/assets/{OFFICIAL_FILES}")
    page.get_by_role("button", name="Observe").first.click()
    page.get_by_text(re.compile("Launched run")).first.wait_for()
    observation = page.get_by_text("BERT_TASKS is not set").first
    for _ in range(12):  # a page that was opened before does not show it
        page.goto(f"{user_interfaces.dagster}/assets/{OFFICIAL_FILES}")
        with contextlib.suppress(AssertionError):
            expect(observation).to_be_visible(timeout=5_000)
            break
    expect(observation).to_be_visible()


@pytest.mark.parametrize(
    ("asset", "key", "shown"),
    [
        ("pretrained_model", "mlflow_run", f"tiny on {miniature.DUMP}, miniature"),
        ("candidate_model", "mlflow_version", "bert-tiny"),
        ("report", "mlflow", "finetuning"),  # the list of experiments
    ],
)
def test_asset_links_to_its_page_in_mlflow_in_the_mode_for_trained_models(page, user_interfaces, asset, key, shown):
    link = AssetPage(page, user_interfaces.dagster, asset).open().metadata(key).get_by_role("link").first
    path = str(link.get_attribute("href")).partition("#")[2]  # the run of the command knew another address
    page.goto(f"{user_interfaces.mlflow}/#{path}")
    expect(page.get_by_text(shown, exact=True).first).to_be_visible()
    expect(page.get_by_role("link", name="Model registry")).to_be_visible()


def test_mlflow_shows_the_training_with_its_metrics_and_curves(page, user_interfaces):
    mlflow = Mlflow(page, user_interfaces.mlflow)
    mlflow.open_run("pretraining")
    expect(page.get_by_text("Finished", exact=True)).to_be_visible()
    expect(mlflow.metric("held_out/mlm_loss")).to_be_visible()
    mlflow.open_charts("held_out/mlm_loss")
    page.get_by_role("tab", name="System metrics").click()
    expect(page.get_by_text("cpu_utilization_percentage").first).to_be_visible()


def test_champion_is_an_asset_with_its_last_move(page, user_interfaces, champion):
    # The sensor looks once a minute, and observes all that moved since: another model may be the last. A page that was
    # opened before does not show it.
    move = page.get_by_text(re.compile(rf"{champion.rpartition('-')[0]}-\w+ version 1 is champion")).first
    for _ in range(12):
        page.goto(f"{user_interfaces.dagster}/assets/champion")
        with contextlib.suppress(AssertionError):
            expect(move).to_be_visible(timeout=15_000)
            break
    expect(move).to_be_visible()


def test_mlflow_lists_the_champion_as_registered(page, user_interfaces, champion):
    Mlflow(page, user_interfaces.mlflow).open_models("finetuning")
    # The column "Registered models": without its tag, MLflow's store knows no version of a model.
    expect(page.locator(f"a[href$='/models/{champion}/versions/1']").first).to_be_visible()
    page.get_by_role("link", name=champion, exact=True).first.click()
    expect(page.get_by_role("heading").filter(has_text=champion).first).to_be_visible()
    expect(page.get_by_text("Not registered")).to_have_count(0)


def test_mlflow_shows_which_version_is_champion(page, user_interfaces, champion):
    mlflow = Mlflow(page, user_interfaces.mlflow)
    mlflow.open_model(champion)
    expect(mlflow.version(1)).to_contain_text("champion")
    expect(mlflow.version(1)).to_contain_text("candidate")
    mlflow.open_version(champion, 1)
    expect(page.get_by_text("champion").first).to_be_visible()


def natural_width(picture) -> int:
    """Return the width of a decoded picture in pixels; 0 if it was not decoded."""
    picture.wait_for()
    return int(picture.evaluate("image => image.decode().then(() => image.naturalWidth, () => 0)"))
