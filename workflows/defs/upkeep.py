"""Upkeep of a home: backups, with job and schedule, the check and job `doctor`, and the job `archive_partitions`.

The order of the copies keeps a backup consistent: Dagster's events refer to registered versions, and these to
artifacts. So what is written last is copied first; a copy may hold new artifacts without a row, but no row without its
artifacts.
"""

import contextlib
import datetime
import json
import os
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import dagster as dg
from pydantic import Field, NonNegativeInt, PositiveInt

from bert_model.registry.model_card import CARD_NAME
from bert_model.training.home import relocate
from bert_pipeline.atomic import atomic_directory, is_abandoned, replace_text
from bert_pipeline.errors import ArtifactError, UsageError
from bert_pipeline.manifest import MANIFEST_NAME, Manifest, load_manifest, publishing
from bert_pipeline.storage import is_file, remove_tree, without_secrets
from bert_pipeline.tasks.catalogue import NAME_PATTERN
from workflows.lib.doctor import BACKUPS_VARIABLE, LAST_BACKUP, examine, page_of, repair
from workflows.lib.instance import (
    UNFINISHED,
    dagster_directory,
    end_abandoned_runs,
    fail_runs,
    open_instance,
    unfinished_runs,
)
from workflows.lib.resources import (
    DEFAULT_DUMP,
    DUMP_NAME,
    PARTITION_TAG,
    BertHome,
    dump_partitions,
    op_job,
    task_partitions,
)

# --- backups ---

BACKUP_KIND, BACKUP_PREFIX = "backup", "bert-"
DAGSTER, MLFLOW, ARTIFACTS = "dagster", "mlflow.db", "artifacts"
FOLDERS = ("archive", "predictions", "inputs")
"""Records of archived dumps, answers of `predictions` and what it answered: nothing can make these again."""
DAGSTER_DATABASE, MLFLOW_DATABASE = "Dagster's database", "MLflow's database"
SQLITE_HEADER = b"SQLite format 3\0"
SQLITE_COMPANIONS = ("-wal", "-shm", "-journal")


def create_backup(home: BertHome, directory: Path) -> Manifest:
    """Copy the home to a new directory: Dagster's storage, MLflow's database, the artifacts, then FOLDERS.

    Services may run meanwhile: each database is copied as a snapshot by SQLite. ArtifactError when `directory` exists
    or there is nothing to copy.
    """
    if directory.exists():
        raise ArtifactError(f"{directory}: exists; give a new directory for each backup")
    dagster_home = dagster_directory(home)
    parts = [part for part in (dagster_home, home.path / MLFLOW, home.artifacts) if part.exists()]
    if not parts:
        raise ArtifactError(f"{home.path}: holds neither runs nor models; set BERT_HOME")
    with publishing(directory, kind=BACKUP_KIND, configuration={}, inputs={}) as draft:
        # In this order, what is copied later has all that the earlier copies refer to.
        copy_tree(dagster_home, draft.path / DAGSTER)
        copy_file(home.path / MLFLOW, draft.path / MLFLOW)
        # Decisions rewrite cards, whose hashes are in the database: they are not copied as late as the last weights.
        for card in home.artifacts.rglob(CARD_NAME):
            copy_file(card, draft.path / card.relative_to(home.path))
        for part in (ARTIFACTS, *FOLDERS):
            copy_tree(home.path / part, draft.path / part)
        draft.counts = {"parts": len(parts)}
        draft.provenance = {"home": str(home.path)}
    manifest = load_manifest(directory, kind=BACKUP_KIND)
    record = {"directory": str(directory.resolve()), "created": manifest.provenance["created"]}
    with contextlib.suppress(ArtifactError, OSError):  # of a home that may only be read
        replace_text(home.path / LAST_BACKUP, json.dumps(record) + "\n")
    return manifest


def remove_old_backups(home: BertHome, folder: Path, keep: int) -> list[Path]:
    """Remove all but the newest `keep` backups of a home, and what killed jobs left; return the directories."""
    backups = []
    for path in folder.glob(f"{BACKUP_PREFIX}*/{MANIFEST_NAME}"):
        with contextlib.suppress(ArtifactError):  # it is none
            provenance = load_manifest(path.parent, kind=BACKUP_KIND).provenance
            if provenance["home"] == str(home.path):
                backups.append((provenance["created"], path.parent))
    old = [path for _, path in sorted(backups)[:-keep]]
    old += filter(is_abandoned, folder.glob(f".{BACKUP_PREFIX}*.partial-*"))
    for path in old:
        remove_tree(path)
    return old


def restore_backup(directory: Path, home: BertHome) -> Manifest:
    """Restore a backup to an empty home, which may have another path; return the backup's manifest.

    Every file is verified first. Rows of the databases, which hold absolute paths, are updated to the new path.
    ArtifactError when the backup is damaged or the home is not empty.
    """
    manifest = load_manifest(directory, kind=BACKUP_KIND, verify="sha256")
    target = home.path
    home.tasks  # noqa: B018 - a wrong BERT_TASKS is refused before anything is written
    if target.exists() and any(target.iterdir()):
        raise ArtifactError(f"{target}: not empty; set BERT_HOME to a new directory, or move it away")
    if dagster_directory(home) != target / DAGSTER or MLFLOW_DATABASE in parts_elsewhere(home):
        raise UsageError("DAGSTER_HOME or MLFLOW_TRACKING_URI leads out of BERT_HOME; unset them to restore it")

    # The home appears when it is complete, with the paths of its new place.
    with atomic_directory(target) as temporary:
        for name in manifest.files:
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(directory / name, temporary / name)
        relocate(temporary, Path(manifest.provenance["home"]), target)

    # Runs that were going on when the backup was made have no process here. Those that a server keeps may be going on.
    if DAGSTER_DATABASE not in parts_elsewhere(home):
        with open_instance(home) as instance:
            fail_runs(instance, unfinished_runs(instance), "this home was restored from a backup made during the run")
            end_abandoned_runs(instance)
    return manifest


def parts_elsewhere(home: BertHome) -> dict[str, str]:
    """Return a sentence for each part that a backup lacks, because a server stores it."""
    parts = {}
    if home.tracking_uri != f"sqlite:///{home.path / MLFLOW}":
        parts[MLFLOW_DATABASE] = "what MLFLOW_TRACKING_URI names"
    settings = dagster_directory(home) / "dagster.yaml"
    lines = settings.read_text(encoding="utf-8").splitlines() if settings.is_file() else []
    if any(line.startswith("storage:") for line in lines):
        parts[DAGSTER_DATABASE] = f"what {settings} names under `storage`"
    return {part: f"{part} is kept elsewhere, by {place}: back it up there" for part, place in parts.items()}


def copy_tree(source: Path, target: Path) -> None:
    """Copy a directory that is in use, but not what is there; files that are deleted meanwhile are left out."""
    for path in sorted(source.rglob("*")):
        copy = target / path.relative_to(source)
        if path.is_file() and not path.is_symlink() and not copy.exists():
            copy_file(path, copy)


def copy_file(source: Path, target: Path) -> None:
    """Copy one file if it exists; copy a database as a snapshot between two transactions."""
    # A snapshot contains what SQLite's companion files hold; copied next to it, they would damage it.
    if source.name.endswith(SQLITE_COMPANIONS) or not source.is_file():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        with open(source, "rb") as stream:
            is_database = stream.read(len(SQLITE_HEADER)) == SQLITE_HEADER
        if not is_database:
            shutil.copy2(source, target)
            return
        with contextlib.closing(sqlite3.connect(source)) as live, contextlib.closing(sqlite3.connect(target)) as copy:
            live.backup(copy)


# --- jobs ---


class DoctorLaunchpad(dg.Config):
    """Whether the doctor changes anything."""

    repair: bool = Field(default=False, description="Repair what is safe to repair.")


@op_job("backup")
def back_up(
    context: dg.OpExecutionContext,
    home: BertHome,
    folder: Annotated[str, "Empty: the folder that BERT_BACKUPS names."] = "",
    keep: Annotated[PositiveInt, "Of this home's backups in the folder, the newest ones that stay."] = 7,
) -> None:
    """Back up the home as `workflows.backup` does; keep the newest backups only."""
    if not (name := folder or os.environ.get(BACKUPS_VARIABLE)):
        raise UsageError(f"folder: no folder is given, and {BACKUPS_VARIABLE} is not set; name one on another disk")
    backups = Path(name).absolute()
    manifest = create_backup(home, backups / f"{BACKUP_PREFIX}{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%S}")
    for sentence in parts_elsewhere(home).values():
        context.log.warning(sentence)
    context.log.info(f"{manifest.path}: {len(manifest.files):,} files")
    for path in remove_old_backups(home, backups, keep):
        context.log.info(f"{path}: removed, an older or unfinished backup")


@dg.multi_asset_check(
    name="champion_doctor",
    specs=[dg.AssetCheckSpec("doctor", asset="champion", description="The page of `python -m workflows.doctor`.")],
)
def home_doctor(
    context: dg.AssetCheckExecutionContext, config: DoctorLaunchpad, home: BertHome
) -> Iterator[dg.AssetCheckResult]:
    """Examine the home, or repair it first; a problem fails the check, and the run too, since runs are what alerts."""
    if config.repair:
        repair(home, context.instance, context.log.info)
    findings = examine(home, context.instance)
    page, problems = page_of(findings), page_of([finding for finding in findings if finding.is_problem])
    context.log.log("ERROR" if problems else "INFO", f"\n{page}")
    metadata = {"page": dg.MetadataValue.md(f"```text\n{page}\n```")}
    yield dg.AssetCheckResult(passed=not problems, description=problems or "no problem", metadata=metadata)
    if problems:
        raise dg.Failure(problems)


doctor = dg.define_asset_job(
    "doctor",
    dg.AssetSelection.checks(home_doctor),
    description="What was left behind, versions, disk, backup and ports on one page.",
    tags={"dagster/priority": "10"},
)
nightly_backup = dg.ScheduleDefinition(
    name="nightly_backup",
    job=back_up,
    cron_schedule="0 2 * * *",
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.STOPPED,
    description="Each night a backup in the folder that BERT_BACKUPS names.",
)


# --- archive ---

WAITING = [dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.QUEUED]
BACKFILL_IN_PROGRESS = ("REQUESTED", "CANCELING", "FAILING")
RANGE_TAG = "dagster/asset_partition_range_start"
"""Tag of a run that materializes a range of partitions at once."""


@op_job("archive_partitions")
def remove_partitions(
    context: dg.OpExecutionContext,
    home: BertHome,
    dumps: Annotated[list[str], "Dumps to archive, such as enwiki-20251101."] = [],  # noqa: B006
    keep: Annotated[NonNegativeInt, "Archive all but this many dumps, those added last; 0 archives only `dumps`."] = 0,
    dry_run: Annotated[bool, "Log what would be removed and change nothing."] = True,
) -> None:
    """Remove old dumps, and names that no asset accepts, from the lists of partitions.

    All files stay, and BERT_HOME/archive/<dump>.json says where. Adding the partition again brings it back.
    """
    instance = context.instance
    # The UI's dialog adds any name.
    unusable = {
        definition: [name for name in instance.get_dynamic_partitions(str(definition.name)) if not usable(name)]
        for definition, usable in ((dump_partitions, DUMP_NAME.fullmatch), (task_partitions, NAME_PATTERN.fullmatch))
    }
    archived = dumps_to_archive(instance, dumps, keep)
    verb = "would remove" if dry_run else "removed"
    for dump in archived:
        if not dry_run:
            archive(instance, home, dump)
        places = dict.fromkeys(str(path) for path in (home.dump_directory(dump), home.data_directory(dump)))
        context.log.info(f"{verb} the partition {dump}; its files stay in {' and '.join(map(without_secrets, places))}")
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
    if unknown := [dump for dump in named if dump not in dumps]:
        raise UsageError(f"dumps: {unknown[0]!r} is no partition that can be archived; expected names of {dumps}")
    usable = [dump for dump in dumps if DUMP_NAME.fullmatch(dump)]
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
