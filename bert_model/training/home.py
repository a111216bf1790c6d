"""Addresses of the state: BERT_HOME, and the MLflow store that trainings log to."""

import os
import re
import urllib.parse
from pathlib import Path

from bert_pipeline.errors import UsageError
from bert_pipeline.storage import local_directory


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
