"""Addresses of the state: BERT_HOME, the MLflow store that trainings log to, and what a home that was moved needs."""

import contextlib
import json
import logging
import os
import re
import sqlite3
import urllib.parse
from collections.abc import Callable
from pathlib import Path

from bert_pipeline.atomic import locked, replace_text
from bert_pipeline.errors import ArtifactError, UsageError
from bert_pipeline.storage import local_directory

logger = logging.getLogger(__name__)

LOCATION_NAME = "location"
"""File of a home with its path: a home that is elsewhere was moved or copied."""
DATABASES = ("mlflow.db", "dagster/**/*.db")
"""Databases of a home. Their rows hold absolute paths, as MLflow and Dagster want them."""
RECORDS = (
    *("last_backup.json", "archive/*.json", "data/*/**/tracking.json", "trainings/*/tracking.json"),
    "data/*/pretraining/*/configuration.json",
)
"""Small files of a home that hold absolute paths."""


def bert_home() -> Path:
    """Return the directory of all state: BERT_HOME, or ./.bert."""
    return local_directory(os.environ.get("BERT_HOME") or ".bert", "BERT_HOME")


def artifact_cache() -> Path:
    """Return the directory with copies of artifacts that are in stores; it may be removed at any time."""
    return bert_home() / "cache" / "artifacts"


def tracking_uri() -> str:
    """Return the address of MLflow's store: MLFLOW_TRACKING_URI, or SQLite under BERT_HOME; without credentials."""
    return credentials_apart(os.environ.get("MLFLOW_TRACKING_URI") or sqlite_uri(bert_home()))


def sqlite_uri(home: Path) -> str:
    """Return the address of MLflow's database in a home; UsageError if it would be that of another file."""
    if any(character in str(home) for character in "?%"):
        raise UsageError(
            f"BERT_HOME: found {home}, expected a path without '?' and '%', which have a meaning in the address of "
            "MLflow's database; choose another directory, or set MLFLOW_TRACKING_URI"
        )
    return f"sqlite:///{home / 'mlflow.db'}"


SERVER_WITH_CREDENTIALS = re.compile(
    r"(?P<scheme>https?://)(?P<user>[^/@:]*)(?::(?P<password>[^/]*|(?!\d+/).*))?@(?P<rest>.*)", re.DOTALL
)


def credentials_apart(uri: str) -> str:
    """Move user and password of a server's address to the two variables from which MLflow reads them.

    MLflow repeats the address in errors, links and logs.
    """
    match = SERVER_WITH_CREDENTIALS.fullmatch(uri)
    if match is None:
        return uri
    credentials = {"MLFLOW_TRACKING_USERNAME": match["user"], "MLFLOW_TRACKING_PASSWORD": match["password"] or ""}
    for name, value in credentials.items():
        if not os.environ.get(name):  # env files often set an empty one
            os.environ[name] = urllib.parse.unquote(value)
    return match["scheme"] + match["rest"]


def settle(home: Path) -> None:
    """Let the records of a home that was moved or copied name the place where it is, and say so.

    Of a copy, they would name the artifacts of the original. UsageError while a UI runs that was started before the
    move; ArtifactError if a database cannot be written.
    """
    old = _location(home) if home.is_dir() else home
    if old == home or (old is None and not os.access(home, os.W_OK)):
        return
    try:
        with locked(home / "locks" / "location.lock"):
            old = _location(home)
            if old is None:
                replace_text(home / LOCATION_NAME, f"{home}\n")
            elif old != home and not (old.exists() and old.samefile(home)):  # neither done by another, nor a link
                busy = UsageError(f"{home}: was moved from {old} while its UI runs; end the UI first")
                with locked(home / "locks" / "ui.lock", wait=0, busy=busy):
                    relocate(home, old, home)
                logger.warning("%s was moved or copied from %s: its runs and models are now read here", home, old)
    except (OSError, sqlite3.Error) as error:
        raise ArtifactError(
            f"{home}: was moved or copied from {old}, whose paths its records hold, and these could not be changed "
            f"({error}); end what uses them, free space, and run the command again"
        ) from error


def relocate(home: Path, old: Path, new: Path) -> None:
    """Replace the path `old` of a home by `new` in all that it has stored."""
    for database in sorted(path for pattern in DATABASES for path in home.glob(pattern)):
        _relocate_database(database, old, new)
    for record in sorted(path for pattern in RECORDS for path in home.glob(pattern)):
        replace_text(record, _replacement(old, new)(record.read_text(encoding="utf-8")))
    replace_text(home / LOCATION_NAME, f"{new}\n")


def _location(home: Path) -> Path | None:
    """Return where a home was at its last use; None if nothing in it says so."""
    with contextlib.suppress(FileNotFoundError):
        return Path((home / LOCATION_NAME).read_text(encoding="utf-8").rstrip("\n"))
    return None


def _replaced_paths(old: Path, new: Path) -> dict[str, str]:
    """Return what a path is replaced by in a text, where it may be a URI or part of a JSON string."""
    # With a slash at the end, /srv/bert does not match /srv/bert2.
    places = {f"{old.as_uri()}/": f"{new.as_uri()}/", f"{old}/": f"{new}/"}
    return places | {json.dumps(before)[1:-1]: json.dumps(after)[1:-1] for before, after in places.items()}


def _replacement(old: Path, new: Path) -> Callable[[str], str]:
    """Return the function that replaces a path in a text."""
    places = _replaced_paths(old, new)
    words = "|".join(map(re.escape, places))
    # Of a home that was moved into itself, what was replaced before an interruption is not replaced again.
    inner = f"(?!{re.escape(new.relative_to(old).as_posix())}/)" if new.is_relative_to(old) else ""
    pattern = re.compile(rf"(?<![\w.-])(?:{words}){inner}")  # nor does it match below another directory
    # In one pass: the new path may contain the old one.
    return lambda text: pattern.sub(lambda match: places[match[0]], text)


def _relocate_database(database: Path, old: Path, new: Path) -> None:
    """Replace a path in all text columns of an SQLite database."""
    words = list(_replaced_paths(old, new))
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        connection.create_function("relocated", 1, _replacement(old, new))
        tables = [name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")]
        for table in tables:
            for _, column, kind, *_ in connection.execute(f'pragma table_info("{table}")').fetchall():
                if "CHAR" in kind.upper() or "TEXT" in kind.upper():
                    holds = " or ".join(f'instr("{column}", ?) > 0' for _ in words)
                    connection.execute(
                        f'update "{table}" set "{column}" = relocated("{column}") '
                        f"where typeof(\"{column}\") = 'text' and ({holds})",
                        words,
                    )
