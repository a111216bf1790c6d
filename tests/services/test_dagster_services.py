"""Webserver, daemon and code server on PostgreSQL, started from deploy/: runs and ticks."""

import miniature
import pytest
from dagster_api import wait_for

from bert_pipeline.manifest import load_manifest
from workflows.defs.automation import monthly_retraining
from workflows.lib.resources import DUMP_ASSETS, BertHome

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(2400, method="signal")]


def test_whole_chain_is_materialized_by_graphql(dagster, stack, trained):
    for asset in DUMP_ASSETS:
        assert (miniature.DUMP, trained) in dagster.materializations(asset)
    home = BertHome(directory=str(stack.home))
    assert load_manifest(home.corpus(miniature.DUMP), kind="corpus").counts["documents"] > 100
    (count,) = stack.database.run(
        *("psql", "--dbname=mlflow", "--tuples-only", "--no-align"), "--command=select count(*) from model_versions"
    ).split()
    assert count == b"1"


def test_due_schedule_tick_starts_one_run_on_the_new_dump(dagster, stack, dump_site):
    schedule = dagster.switch_on(monthly_retraining.name)

    def started() -> list[str]:
        return [run for tick in dagster.ticks(monthly_retraining.name) for run in tick["runIds"]]

    runs = wait_for(started, "a tick that starts a run", every=1.0)
    dagster.switch_off(schedule)
    assert len(runs) == 1
    run = dagster.run(runs[0])
    assert run["tags"]["dagster/partition"] == dump_site.dump
    assert run["tags"]["dagster/schedule_name"] == monthly_retraining.name
    wait_for(lambda: (dump_site.dump, runs[0]) in dagster.materializations("corpus"), "the corpus of the dump")
    dagster.terminate(runs[0])
    wait_for(lambda: dagster.run(runs[0])["status"] == "CANCELED", "the run's cancellation")
    home = BertHome(directory=str(stack.home))
    assert load_manifest(home.dump(dump_site.dump), kind="dump").provenance
