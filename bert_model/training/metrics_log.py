"""The files of a training's record: `metrics.jsonl`, and `tracking.json` with how far MLflow has followed it.

Nothing here needs MLflow.
"""

import contextlib
import json
import os
import re
import tempfile
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bert_pipeline.errors import BertError
from bert_pipeline.manifest import MANIFEST_NAME, Manifest

METRICS_NAME = "metrics.jsonl"
STATE_NAME = "tracking.json"

CODE_VERSION_VARIABLE = "BERT_CODE_VERSION"
"""Environment variable by which whoever starts a training says which code it is; the record's first line keeps it."""

PARAM_LENGTH = 6000  # MLflow's own limit
SECRET_NAMES = re.compile(r"password|passwd|secret|token$|api_?key|credential", re.IGNORECASE)

SERVER_WITH_CREDENTIALS = re.compile(
    r"(?P<scheme>https?://)(?P<user>[^/@:]*)(?::(?P<password>[^/@]*))?@(?P<rest>.*)", re.DOTALL
)


def tracking_uri() -> str:
    """Return where MLflow's runs and models are: MLFLOW_TRACKING_URI, or SQLite under BERT_HOME (./.bert).

    A server's address comes back without user and password: `credentials_apart` says where they go.
    """
    return credentials_apart(os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{bert_home() / 'mlflow.db'}")


def credentials_apart(uri: str) -> str:
    """Take user and password out of a server's address, into the two variables from which MLflow reads them.

    What MLflow says of a server, in errors, links and logs, repeats its address.
    """
    match = SERVER_WITH_CREDENTIALS.fullmatch(uri)
    if match is None:
        return uri
    os.environ.setdefault("MLFLOW_TRACKING_USERNAME", urllib.parse.unquote(match["user"]))
    os.environ.setdefault("MLFLOW_TRACKING_PASSWORD", urllib.parse.unquote(match["password"] or ""))
    return match["scheme"] + match["rest"]


def bert_home() -> Path:
    """Return the directory of all state."""
    return Path(os.environ.get("BERT_HOME") or ".bert").resolve()


def read_lines(directory: Path, start: int = 0, stop: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield the whole lines of `metrics.jsonl` from number `start` on; one that is not JSON counts and is empty."""
    path = directory / METRICS_NAME
    if not path.is_file():
        return
    with open(path, encoding="utf-8") as stream:
        for number, text in enumerate(stream):
            if number < start:
                continue
            if not text.endswith("\n") or (stop is not None and number >= stop):
                return
            try:
                yield json.loads(text)
            except ValueError:
                yield {}


@contextlib.contextmanager
def weights_alone(directory: Path) -> Iterator[Path]:
    """Make a directory of links to a checkpoint's own files, without the training's state below it."""
    with tempfile.TemporaryDirectory(prefix=".upload-", dir=directory.parent) as temporary:
        for path in directory.iterdir():
            if path.is_file():
                os.link(path, Path(temporary) / path.name)
        yield Path(temporary)


def lineage(directory: Path) -> dict[str, str]:
    """Return the hashes that a checkpoint's manifest names: its own and its inputs'."""
    try:
        document = json.loads((directory / MANIFEST_NAME).read_text(encoding="utf-8"))
        inputs = document["content"]["inputs"]
        hashes = {
            f"input.{name}": str(entry.get("content_sha256", entry.get("sha256"))) for name, entry in inputs.items()
        }
        return {"sha256": str(document["content_sha256"]), **hashes}
    except (OSError, ValueError, KeyError, AttributeError):
        return {}


def read_state(path: Path) -> dict[str, Any]:
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise BertError(f"{path}: not a tracking record ({error}); remove it to start a new MLflow run") from error
    return state


def mlflow_run_id(manifest: Manifest) -> str | None:
    """Return the MLflow run that a model was trained in, as far as this tracking store has it."""
    noted = manifest.provenance.get("mlflow_run_id")
    if noted:
        return str(noted)
    with contextlib.suppress(BertError):
        state = read_state(manifest.path.parent / STATE_NAME)
        if state.get("tracking_uri") == without_password(tracking_uri()):
            return state.get("run_id")
    return None


def end_torn_line(path: Path) -> None:
    """End a last line that a killed process has left without its newline."""
    if path.is_file() and path.stat().st_size:
        with open(path, "rb+") as stream:
            stream.seek(-1, os.SEEK_END)
            if stream.read(1) != b"\n":
                stream.write(b"\n")


def flat_params(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Turn nested values into MLflow params: dotted keys, text values, secrets redacted."""
    flat: dict[str, str] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= flat_params(value, f"{name}.")
        elif isinstance(value, (list, tuple)) and any(isinstance(item, (Mapping, list, tuple)) for item in value):
            flat |= flat_params({str(index): item for index, item in enumerate(value)}, f"{name}.")
        else:
            flat[name] = str(value)[:PARAM_LENGTH]
    return redacted(flat)


def redacted(values: Mapping[str, Any]) -> dict[str, str]:
    return {
        key: "(redacted)" if SECRET_NAMES.search(key) else without_password(str(value)) for key, value in values.items()
    }


def without_password(text: str) -> str:
    """Take user and password out of a URL."""
    return re.sub(r"(\w+://)[^/@\s]*@", r"\1(redacted)@", text)


def metric_key(key: str) -> str:
    return re.sub(r"[^\w./ :-]", "_", key)


def first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return without_password(f"{type(error).__name__}: {lines[0] if lines else ''}"[:300])


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write `tracking.json` in place of the one before."""
    temporary = path.with_suffix(f".partial-{os.getpid()}")
    temporary.write_text(json.dumps(state, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    os.replace(temporary, path)
