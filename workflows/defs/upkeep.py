"""The job `archive_partitions`: old dumps and unusable names leave Dagster's lists; no file is deleted."""

import datetime
import json
from collections.abc import Callable, Sequence

import dagster as dg
from pydantic import Field

from bert_pipeline.errors import BertError, UsageError
from bert_pipeline.manifest import load_manifest, write_text_durably
from workflows.lib.instance import UNFINISHED
from workflows.lib.metadata import as_dagster_failures
from workflows.lib.resources import (
    DEFAULT_DUMP,
    PARTITION_TAG,
    BertHome,
    checked_dump_name,
    checked_task_name,
    dump_and_task,
    dump_partitions,
    task_partitions,
)


class ArchiveLaunchpad(dg.Config):
    """Which partitions leave the lists."""

    dumps: list[str] = Field(default=[], description="Dumps to archive, such as enwiki-20251101.")
    keep: int = Field(
        default=0, ge=0, description="Archive all but this many dumps, those added last; 0 archives only `dumps`."
    )
    dry_run: bool = Field(default=True, description="Log what would be removed and change nothing.")


@dg.op
def remove_partitions(context: dg.OpExecutionContext, config: ArchiveLaunchpad, home: BertHome) -> None:
    """Record where the files of old dumps are, and delete the partitions of these dumps and those of unusable names."""
    instance = context.instance
    with as_dagster_failures():
        archived = dumps_to_archive(instance, config.dumps, config.keep)
        unusable = {
            dump_partitions: refused(instance, dump_partitions, checked_dump_name),
            task_partitions: refused(instance, task_partitions, checked_task_name),
        }
        verb = "would remove" if config.dry_run else "removed"
        for dump in archived:
            if not config.dry_run:
                archive(instance, home, dump)
            context.log.info(f"{verb} the partition {dump}; its files stay in {home.of_dump(dump)}")
        for definition, names in unusable.items():
            for name in names:
                if not config.dry_run:
                    instance.delete_dynamic_partition(str(definition.name), name)
                context.log.info(f"{verb} the {definition.name} partition {name!r}: no asset accepts this name")
    if not archived and not any(unusable.values()):
        context.log.info("nothing to remove")


def dumps_to_archive(instance: dg.DagsterInstance, named: Sequence[str], keep: int) -> list[str]:
    """Return the named dumps and all but the last `keep`; UsageError for one that is unknown or has an unfinished run.

    The generated sample stays, because every start of the UI adds it.
    """
    known = [dump for dump in instance.get_dynamic_partitions(str(dump_partitions.name)) if dump != DEFAULT_DUMP]
    unknown = [dump for dump in named if dump not in known]
    if unknown:
        raise UsageError(f"dumps: {unknown[0]!r} is no partition that can be archived; expected names of {known}")
    refusals = refused(instance, dump_partitions, checked_dump_name)
    usable = [dump for dump in known if dump not in refusals]
    old = usable[:-keep] if keep else []
    chosen = [dump for dump in usable if dump in named or dump in old]

    # A run in progress would publish into a dump that has just been recorded.
    for run in instance.get_runs(filters=dg.RunsFilter(statuses=[*UNFINISHED, dg.DagsterRunStatus.QUEUED])):
        partition = run.tags.get(PARTITION_TAG, "")
        dump = dump_and_task(partition)[0] if "|" in partition else partition
        if dump in chosen:
            raise UsageError(f"dump {dump!r}: run {run.run_id} is not finished; wait for its end, or terminate it")
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
    """Write the record of a dump's files, if it has any, and then delete its partition."""
    directory = home.of_dump(dump)
    artifacts: dict[str, str | None] = {}
    for path in sorted(directory.rglob("manifest.json")):
        try:
            artifacts[path.parent.relative_to(directory).as_posix()] = load_manifest(path.parent).sha256
        except BertError:  # damaged: named without a hash
            artifacts[path.parent.relative_to(directory).as_posix()] = None
    record = {
        "dump": dump,
        "archived": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "directory": str(directory),
        "artifacts": artifacts,
    }
    # A dump without files has nothing to find again: requested once more, it is trained.
    if artifacts:
        path = home.archive_record(dump)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text_durably(path, json.dumps(record, indent=1) + "\n")
    instance.delete_dynamic_partition(str(dump_partitions.name), dump)


@dg.job(
    name="archive_partitions",
    description="Remove old dumps, and names that no asset accepts, from the lists of partitions; all files stay, and "
    "BERT_HOME/archive/<dump>.json says where. Adding the partition again brings it back.",
)
def archive_partitions() -> None:
    remove_partitions()
