"""The state of a home on one page: what was left behind, settings, versions, disk, backup, ports; and its repair."""

import contextlib
import datetime
import importlib.metadata
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import dagster as dg
import yaml

from bert_model.training.metrics_log import without_password
from bert_pipeline.atomic import is_abandoned, locked, remove_abandoned_drafts, replace_text
from bert_pipeline.errors import UnavailableError
from bert_pipeline.storage import is_remote
from workflows.lib.instance import abandoned_runs, dagster_directory, end_abandoned_runs
from workflows.lib.processes import ROOT, holder_of_port, left_over, wait_for_left_over
from workflows.lib.resources import DATA_VARIABLE, BertHome

BACKUPS_VARIABLE = "BERT_BACKUPS"
LAST_BACKUP = "last_backup.json"
"""File of a home that names its last backup."""
MAX_BACKUP_DAYS = 7
MIN_FREE_BYTES = 2_000_000_000
"""A checkpoint of BERT-base with the state of its optimizer has 1.3 GB."""
DRAFT = re.compile(r"\.(?P<name>.+)\.(partial-[0-9a-f]{32}(-old)?|[0-9a-f]{32}\.tmp)")
"""Names of what `bert_pipeline.atomic` writes to: a directory, or a file."""
POOLS = re.compile(r"^ +pools:[^\S\n]*\n(?:\s*#.*\n)*(?P<indent> +)", re.MULTILINE)
"""The section of Dagster's settings, up to the indent of its first entry."""


class Finding(NamedTuple):
    """A line of the page."""

    topic: str
    text: str
    is_problem: bool = False


def examine(home: BertHome, instance: dg.DagsterInstance) -> list[Finding]:
    """Return the page of a home, which is only read."""
    data = Path(os.environ.get(DATA_VARIABLE) or home.path)
    disks = {path.stat().st_dev: path for path in (data, dagster_directory(home), home.path) if path.is_dir()}
    runs = [run.run_id for run in abandoned_runs(instance)]
    return [
        Finding("home", f"{home.path}, MLflow's store {without_password(home.tracking_uri)}"),
        Finding("locks", ", ".join(_held_locks(home)) or "none held"),  # they end with their process
        _left("processes", left_over(home.path), "of a killed run or UI: they save, and end within a minute"),
        _left("runs", runs, "without a process; --repair marks them as failed"),
        _left("files", abandoned_drafts(home), "half-written; --repair removes them"),
        _pools(home),
        _versions(),
        *[
            Finding("disk", f"{free / 1e9:,.1f} of {total / 1e9:,.1f} GB free at {path}", free < MIN_FREE_BYTES)
            for path in disks.values()
            for total, _, free in [shutil.disk_usage(path)]
        ],
        _backup(home),
        *[Finding("port", f"{port}: {holder_of_port(port) or 'free'}") for port in (3000, 5000)],
    ]


def page_of(findings: Sequence[Finding]) -> str:
    """Return the page as text; an exclamation mark is before each problem."""
    return "\n".join(f"{'!' if item.is_problem else ' '} {item.topic:<10}{item.text}" for item in findings)


def repair(home: BertHome, instance: dg.DagsterInstance, log: Callable[[str], None]) -> None:
    """Wait for what killed processes left, fail their runs, remove their drafts, and let runs wait for pools."""
    wait_for_left_over(home.path, log)
    for run_id in end_abandoned_runs(instance):
        log(f"run {run_id} had lost its process: marked as failed")
    for draft in abandoned_drafts(home):
        if (name := DRAFT.fullmatch(draft.name)) and draft.is_dir():
            with locked(draft.parent, directory=True):
                remove_abandoned_drafts(draft.with_name(name["name"]))
        else:
            draft.unlink(missing_ok=True)
        log(f"{draft}: removed, or put back in its place")
    settings = dagster_directory(home) / "dagster.yaml"
    if _pools(home).is_problem and (section := POOLS.search(text := settings.read_text(encoding="utf-8"))):
        start = section.start("indent")
        replace_text(settings, f"{text[:start]}{section['indent']}granularity: run\n{text[start:]}")
        log(f"{settings}: granularity of pools set to run, from the next start of the UI on")


def abandoned_drafts(home: BertHome) -> list[Path]:
    """Return the half-written directories and files of killed writers below the home and BERT_DATA."""
    data = os.environ.get(DATA_VARIABLE, "")
    abandoned = set()
    for root in (home.path,) if not data or is_remote(data) else (home.path, Path(data)):
        for folder, directories, files in os.walk(root):
            for draft in (Path(folder, name) for name in (*directories, *files) if DRAFT.fullmatch(name)):
                with contextlib.suppress(OSError):  # finished meanwhile, or not to be read
                    if is_abandoned(draft):
                        abandoned.add(draft)
            directories[:] = [name for name in directories if not DRAFT.fullmatch(name)]
    return sorted(abandoned)


def _left(topic: str, items: Sequence[object], what: str) -> Finding:
    return Finding(topic, f"{', '.join(map(str, items))}: {what}" if items else "none left behind", bool(items))


def _held_locks(home: BertHome) -> Iterator[str]:
    """Yield the locks of a home that are held, such as "ui (held by process 12 on host)"."""
    for path in sorted((home.path / "locks").glob("*.lock")):
        try:
            with locked(path, wait=0, busy=UnavailableError(path.stem)):
                pass
        except UnavailableError as error:
            yield str(error)


def _pools(home: BertHome) -> Finding:
    path = dagster_directory(home) / "dagster.yaml"
    settings = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    pools = (settings.get("concurrency") or {}).get("pools") or {}
    if pools.get("granularity") == "run":
        return Finding("pools", "a run that waits takes no place of the queue")
    return Finding(
        "pools", f"a run that waits takes a place of the queue: {path} lacks `granularity: run`; --repair", True
    )


def _versions() -> Finding:
    constraints = ROOT / "constraints.txt"
    lines = constraints.read_text(encoding="utf-8").splitlines() if constraints.is_file() else []
    differences = []
    for name, _, expected in (line.partition("==") for line in lines if "==" in line):
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # of an extra
            continue
        if version.partition("+")[0] != expected.partition("+")[0]:
            differences.append(f"{name} {version}, expected {expected}")
    text = f"{'; '.join(differences)}: `make install` installs those that were tested"
    return Finding("versions", text if differences else "those of constraints.txt", bool(differences))


def _backup(home: BertHome) -> Finding:
    path = home.path / LAST_BACKUP
    if not path.is_file():  # not everyone wants one
        return Finding(
            "backup", f"none yet: python -m workflows.backup create DIR, or {BACKUPS_VARIABLE} and a schedule"
        )
    record = json.loads(path.read_text(encoding="utf-8"))
    days = (datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(record["created"])).days
    is_gone = not Path(record["directory"]).is_dir()
    text = f"{record['directory']}, {days} days old{', and gone' if is_gone else ''}"
    return Finding("backup", text, is_gone or days > MAX_BACKUP_DAYS)
