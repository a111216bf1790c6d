"""`python -m workflows.backup`: Dagster's and MLflow's databases, artifacts and predictions, while they are in use.

The order of the copies keeps them consistent: Dagster's events refer to registered versions, and these to artifacts. So
what is written last is copied first; a copy may hold new artifacts without a row, but no row without its artifacts.
"""

import argparse
import contextlib
import functools
import shutil
import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path

from bert_model.training.home import relocate
from bert_pipeline.atomic import atomic_directory
from bert_pipeline.errors import ArtifactError, BertError, UsageError, exit_code_of
from bert_pipeline.manifest import Manifest, load_manifest, publishing
from workflows.lib.instance import dagster_directory, end_abandoned_runs, fail_runs, open_instance, unfinished_runs
from workflows.lib.resources import BertHome

BACKUP_KIND = "backup"
DAGSTER, MLFLOW, ARTIFACTS = "dagster", "mlflow.db", "artifacts"
FOLDERS = ("archive", "predictions", "inputs")
"""Records of archived dumps, answers of `predictions` and what it answered: nothing can make these again."""
DAGSTER_DATABASE, MLFLOW_DATABASE = "Dagster's database", "MLflow's database"
SQLITE_HEADER = b"SQLite format 3\0"
SQLITE_COMPANIONS = ("-wal", "-shm", "-journal")


def main(argv: Sequence[str] | None = None) -> int:
    """Create or restore a backup; return 0, or the exit code of the error that is printed."""
    parser = argparse.ArgumentParser(prog="python -m workflows.backup", description=(__doc__ or "").partition(": ")[2])
    subparsers = parser.add_subparsers(dest="command", required=True)
    for name, words in (
        ("create", "write a backup of BERT_HOME into a new directory"),
        ("restore", "make BERT_HOME, which must not hold anything yet, from a backup"),
    ):
        subparser = subparsers.add_parser(name, help=words, description=words)
        subparser.add_argument("directory", type=Path, help="the backup")
    arguments = parser.parse_args(argv)
    return exit_code_of(functools.partial(_run, arguments), "workflows.backup")


def _run(arguments: argparse.Namespace) -> int:
    home = BertHome()
    try:
        if arguments.command == "create":
            manifest = create_backup(home, arguments.directory)
            # The backup is not complete by itself where a database is on a server.
            for part, path in outside_home(home).items():
                print(f"{part} is kept elsewhere, by {path}: back it up there", file=sys.stderr)
        else:
            manifest = restore_backup(arguments.directory, home)
    except sqlite3.Error as error:
        raise BertError(str(error)) from error
    written = arguments.directory if arguments.command == "create" else home.path
    size = sum(entry["bytes"] for entry in manifest.files.values())
    print(f"{written}: {len(manifest.files):,} files, {size:,} bytes, of {manifest.provenance['home']}")
    return 0


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
        for part in (ARTIFACTS, *FOLDERS):
            copy_tree(home.path / part, draft.path / part)
        draft.counts = {"parts": len(parts)}
        draft.provenance = {"home": str(home.path)}
    return load_manifest(directory, kind=BACKUP_KIND)


def restore_backup(directory: Path, home: BertHome) -> Manifest:
    """Restore a backup to an empty home, which may have another path; return the backup's manifest.

    Every file is verified first. Rows of the databases, which hold absolute paths, are updated to the new path.
    ArtifactError when the backup is damaged or the home is not empty.
    """
    manifest = load_manifest(directory, kind=BACKUP_KIND, verify="sha256")
    target = home.path
    if target.exists() and any(target.iterdir()):
        raise ArtifactError(f"{target}: not empty; set BERT_HOME to a new directory, or move it away")
    if dagster_directory(home) != target / DAGSTER or MLFLOW_DATABASE in outside_home(home):
        raise UsageError("DAGSTER_HOME or MLFLOW_TRACKING_URI leads out of BERT_HOME; unset them to restore it")

    # The home appears when it is complete, with the paths of its new place.
    with atomic_directory(target) as temporary:
        for name in manifest.files:
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(directory / name, temporary / name)
        relocate(temporary, Path(manifest.provenance["home"]), target)

    # Runs that were going on when the backup was made have no process here. Those that a server keeps may be going on.
    if DAGSTER_DATABASE not in outside_home(home):
        with open_instance(home) as instance:
            fail_runs(instance, unfinished_runs(instance), "this home was restored from a backup made during the run")
            end_abandoned_runs(instance)
    return manifest


def outside_home(home: BertHome) -> dict[str, str]:
    """Return the parts that are not stored in the home, and what stores them."""
    parts = {}
    if home.tracking_uri != f"sqlite:///{home.path / MLFLOW}":
        parts[MLFLOW_DATABASE] = "what MLFLOW_TRACKING_URI names"
    settings = dagster_directory(home) / "dagster.yaml"
    lines = settings.read_text(encoding="utf-8").splitlines() if settings.is_file() else []
    if any(line.startswith("storage:") for line in lines):
        parts[DAGSTER_DATABASE] = f"what {settings} names under `storage`"
    return parts


def copy_tree(source: Path, target: Path) -> None:
    """Copy a directory that is in use; files that are deleted meanwhile are left out."""
    for path in sorted(source.rglob("*")):
        if path.is_file() and not path.is_symlink():
            copy_file(path, target / path.relative_to(source))


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


if __name__ == "__main__":
    sys.exit(main())
