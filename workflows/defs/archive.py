"""The job `archive_partitions`: old dumps and unusable names leave Dagster's lists; no file is deleted."""

import datetime
import json
from collections.abc import Callable, Sequence
from typing import Annotated

import dagster as dg
from pydantic import NonNegativeInt

from bert_pipeline.atomic import replace_text
from bert_pipeline.errors import UsageError
from bert_pipeline.manifest import MANIFEST_NAME
from bert_pipeline.storage import is_file, without_secrets
from workflows.lib.instance import UNFINISHED
from workflows.lib.resources import (
    DEFAULT_DUMP,
    PARTITION_TAG,
    BertHome,
    checked_dump_name,
    checked_task_name,
    dump_partitions,
    op_job,
    task_partitions,
)

WAITING = [dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.QUEUED]
BACKFILL_IN_PROGRESS = ("REQUESTED", "CANCELING", "FAILING")
RANGE_TAG = "dagster/asset_partition_range_start"
"""Tag of a run that materializes a range of partitions at once."""


@op_job(
    "archive_partitions",
    "Remove old dumps, and names that no asset accepts, from the lists of partitions; all files stay, and "
    "BERT_HOME/archive/<dump>.json says where. Adding the partition again brings it back.",
)
def remove_partitions(
    context: dg.OpExecutionContext,
    home: BertHome,
    dumps: Annotated[list[str], "Dumps to archive, such as enwiki-20251101."] = [],  # noqa: B006
    keep: Annotated[NonNegativeInt, "Archive all but this many dumps, those added last; 0 archives only `dumps`."] = 0,
    dry_run: Annotated[bool, "Log what would be removed and change nothing."] = True,
) -> None:
    """Record where the files of old dumps are, and delete the partitions of these dumps and those of unusable names."""
    instance = context.instance
    archived = dumps_to_archive(instance, dumps, keep)
    unusable = {
        dump_partitions: refused(instance, dump_partitions, checked_dump_name),
        task_partitions: refused(instance, task_partitions, checked_task_name),
    }
    verb = "would remove" if dry_run else "removed"
    for dump in archived:
        if not dry_run:
            archive(instance, home, dump)
        places = dict.fromkeys(
            without_secrets(str(path)) for path in (home.dump_directory(dump), home.data_directory(dump))
        )
        context.log.info(f"{verb} the partition {dump}; its files stay in {' and '.join(places)}")
    for definition, names in unusable.items():
        for name in names:
            if not dry_run:
                instance.delete_dynamic_partition(str(definition.name), name)
            context.log.info(f"{verb} the {definition.name} partition {name!r}: no asset accepts this name")
    if not archived and not any(unusable.values()):
        context.log.info("nothing to remove")


def dumps_to_archive(instance: dg.DagsterInstance, named: Sequence[str], keep: int) -> list[str]:
    """Return the named dumps and all but the last `keep`.

    UsageError for one that is unknown or has an unfinished run, and during a backfill or a run of a range. The
    generated sample stays, because every start of the UI adds it.
    """
    dumps = [dump for dump in instance.get_dynamic_partitions(str(dump_partitions.name)) if dump != DEFAULT_DUMP]
    unknown = [dump for dump in named if dump not in dumps]
    if unknown:
        raise UsageError(f"dumps: {unknown[0]!r} is no partition that can be archived; expected names of {dumps}")
    refusals = refused(instance, dump_partitions, checked_dump_name)
    usable = [dump for dump in dumps if dump not in refusals]
    old = usable[:-keep] if keep else []
    chosen = [dump for dump in usable if dump in named or dump in old]

    # A run in progress would publish into a dump that has just been recorded, and a backfill starts such runs.
    for run in instance.get_runs(filters=dg.RunsFilter(statuses=[*UNFINISHED, *WAITING])):
        busy = [dump for dump in chosen if RANGE_TAG in run.tags or dump in run.tags.get(PARTITION_TAG, "").split("|")]
        if busy:
            raise UsageError(f"dump {busy[0]!r}: run {run.run_id} is not finished; wait for its end, or terminate it")
    for backfill in instance.get_backfills() if chosen else ():
        if backfill.status.value in BACKFILL_IN_PROGRESS:
            raise UsageError(f"backfill {backfill.backfill_id} is in progress; wait for its end, or cancel it")
    return chosen


def refused(
    instance: dg.DagsterInstance, definition: dg.DynamicPartitionsDefinition, check: Callable[[str], str]
) -> list[str]:
    """Return the partitions whose names `check` refuses; the UI's dialog adds any name."""
    names = []
    for name in instance.get_dynamic_partitions(str(definition.name)):
        try:
            check(name)
        except UsageError:
            names.append(name)
    return names


def archive(instance: dg.DagsterInstance, home: BertHome, dump: str) -> None:
    """Write the record of a dump's files, if it has files or runs, and then delete its partition."""
    directory = home.dump_directory(dump)
    record = {
        "dump": dump,
        "archived": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "directory": str(directory),
        "data_directory": without_secrets(str(home.data_directory(dump))),
    }
    # A dump without either has nothing to find again: requested once more, it is trained.
    has_files = any(directory.rglob(MANIFEST_NAME)) or is_file(home.corpus(dump) / MANIFEST_NAME)
    if has_files or instance.get_run_ids(dg.RunsFilter(tags={PARTITION_TAG: dump}), limit=1):
        path = home.archive_record(dump)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, json.dumps(record, indent=1) + "\n")
    instance.delete_dynamic_partition(str(dump_partitions.name), dump)
