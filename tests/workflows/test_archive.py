"""The job that takes old dumps and unusable names out of the lists of partitions, and keeps their files."""

import json
from typing import Any

import dagster as dg
import pytest
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill

from bert_pipeline.manifest import load_manifest, publishing
from workflows.defs.automation import why_not_requested
from workflows.defs.upkeep import remove_partitions
from workflows.lib.instance import open_instance
from workflows.lib.resources import DEFAULT_DUMP, BertHome, dump_partitions, task_partitions

DUMPS = [f"enwiki-2026{month:02d}01" for month in range(1, 5)]


@pytest.fixture
def home(clean_environment, instance) -> BertHome:
    """Home with four dumps, of which the first has a corpus."""
    home = BertHome(directory=str(clean_environment))
    instance.add_dynamic_partitions(str(dump_partitions.name), DUMPS)
    with publishing(home.corpus(DUMPS[0]), kind="corpus", configuration={}, inputs={}) as draft:
        (draft.path / "text").write_text("A text.\n", encoding="utf-8")
    return home


def run(instance: dg.DagsterInstance, home: BertHome, **config: Any) -> dg.ExecuteInProcessResult:
    return remove_partitions.execute_in_process(
        instance=instance,
        resources={"home": home},
        run_config={"ops": {"remove_partitions": {"config": config}}},
        raise_on_error=False,
    )


def dumps(instance: dg.DagsterInstance) -> list[str]:
    return list(instance.get_dynamic_partitions(str(dump_partitions.name)))


def failure(result: dg.ExecuteInProcessResult) -> str:
    (event,) = [event for event in result.all_events if event.is_step_failure]
    return str(event.step_failure_data.user_failure_data.description)


def test_dry_run_changes_nothing(instance, home):
    instance.add_dynamic_partitions(str(dump_partitions.name), ["a name"])
    before = dumps(instance)
    assert run(instance, home, keep=1).success
    assert dumps(instance) == before
    assert not home.archive_record(DUMPS[0]).exists()


def test_archived_dumps_leave_the_list_and_their_files_stay(instance, home):
    assert run(instance, home, dumps=[DUMPS[2]], keep=3, dry_run=False).success
    assert dumps(instance) == [DEFAULT_DUMP, DUMPS[1], DUMPS[3]]
    record = json.loads(home.archive_record(DUMPS[0]).read_text(encoding="utf-8"))
    assert record["dump"] == DUMPS[0]
    assert record["directory"] == str(home.dump_directory(DUMPS[0]))
    assert load_manifest(home.corpus(DUMPS[0]), kind="corpus", verify="sha256").files


def test_archived_dump_is_not_requested_again_and_can_be_brought_back(instance, home):
    assert not why_not_requested(instance, home, DUMPS[0])
    assert run(instance, home, dumps=[DUMPS[0]], dry_run=False).success
    assert why_not_requested(instance, home, DUMPS[0]) == f"was archived ({home.archive_record(DUMPS[0])})"
    with open_instance(home, dumps=(DUMPS[0],)) as opened:
        assert DUMPS[0] in dumps(opened)


def test_archived_dump_without_files_is_requested_when_it_comes_back(instance, home):
    assert run(instance, home, dumps=[DUMPS[2]], dry_run=False).success
    assert DUMPS[2] not in dumps(instance)
    assert not home.archive_record(DUMPS[2]).exists()
    assert not why_not_requested(instance, home, DUMPS[2])


def add_run(instance: dg.DagsterInstance, status: dg.DagsterRunStatus, **tags: str) -> str:
    run_id = "11111111-2222-3333-4444-555555555555"
    tags = {f"dagster/{key}": value for key, value in tags.items()}
    instance.add_run(dg.DagsterRun(job_name="evaluate_tasks", run_id=run_id, status=status, tags=tags))
    return run_id


def test_archived_dump_with_a_run_and_no_files_is_not_requested_again(instance, home):
    add_run(instance, dg.DagsterRunStatus.FAILURE, partition=DUMPS[2])
    assert run(instance, home, dumps=[DUMPS[2]], dry_run=False).success
    assert "was archived" in why_not_requested(instance, home, DUMPS[2])


def test_nothing_is_archived_during_a_run_of_a_range(instance, home):
    ends = {"asset_partition_range_start": DUMPS[0], "asset_partition_range_end": DUMPS[2]}
    run_id = add_run(instance, dg.DagsterRunStatus.STARTED, **ends)
    result = run(instance, home, dumps=[DUMPS[1]], dry_run=False)
    assert failure(result).startswith(f"dump '{DUMPS[1]}': run {run_id} is not finished")


def test_nothing_is_archived_during_a_backfill(instance, home):
    backfill = PartitionBackfill(
        "abcdefgh", BulkActionStatus.REQUESTED, from_failure=False, tags={}, backfill_timestamp=0.0
    )
    instance.add_backfill(backfill)
    assert failure(run(instance, home, dumps=[DUMPS[1]], dry_run=False)).startswith("backfill abcdefgh is in progress")
    assert set(DUMPS) <= set(dumps(instance))
    instance.update_backfill(backfill.with_status(BulkActionStatus.COMPLETED_SUCCESS))
    assert run(instance, home, dumps=[DUMPS[1]], dry_run=False).success


@pytest.mark.parametrize("status", [dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.NOT_STARTED])
def test_dump_with_an_unfinished_run_is_refused_and_nothing_is_removed(instance, home, status):
    run_id = add_run(instance, status, partition=f"{DUMPS[1]}|sst2")
    result = run(instance, home, dumps=DUMPS[:2], dry_run=False)
    assert failure(result).startswith(f"dump '{DUMPS[1]}': run {run_id} is not finished")
    assert set(DUMPS) <= set(dumps(instance))


def test_unknown_dump_and_the_generated_sample_are_refused(instance, home):
    for name in ("enwiki-20990101", DEFAULT_DUMP):
        assert f"dumps: '{name}' is no partition" in failure(run(instance, home, dumps=[name], dry_run=False))


def test_names_that_no_asset_accepts_are_removed(instance, home):
    instance.add_dynamic_partitions(str(dump_partitions.name), ["../enwiki", "a name"])
    instance.add_dynamic_partitions(str(task_partitions.name), ["My Task"])
    tasks = [task for task in instance.get_dynamic_partitions(str(task_partitions.name)) if task != "My Task"]
    assert run(instance, home, dry_run=False).success
    assert dumps(instance) == [DEFAULT_DUMP, *DUMPS]
    assert instance.get_dynamic_partitions(str(task_partitions.name)) == tasks
