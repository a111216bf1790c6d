"""Files of a training's log: `metrics.jsonl`, and `tracking.json` with how far MLflow has followed it.

Nothing here needs MLflow. What reaches MLflow, a log or an error message passes the redaction at the end of the file.
"""

import contextlib
import itertools
import json
import os
import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

from bert_model.training.home import tracking_uri
from bert_pipeline.errors import BertError, TrainingError
from bert_pipeline.manifest import Manifest

METRICS_NAME = "metrics.jsonl"
STATE_NAME = "tracking.json"
LOG_DIRECTORY = "log_directory"
"""Entry of a model's provenance: where its log is, if not in the directory above it; relative to that."""

CODE_VERSION_VARIABLE = "BERT_CODE_VERSION"
"""Environment variable with the code version of a training, set by the workflow; the log's first line records it."""

MAX_PARAM_LENGTH, MAX_KEY_LENGTH = 6000, 250  # MLflow's own limits

RunStatus = Literal["FINISHED", "FAILED", "KILLED"]


def check_not_removed(path: Path, descriptor: int | None = None) -> None:
    """Raise TrainingError if `path` was removed, or replaced since `descriptor` was opened, while a training ran."""
    with contextlib.suppress(FileNotFoundError):
        status = os.stat(path)
        if descriptor is None or os.path.samestat(status, os.fstat(descriptor)):
            return
    raise TrainingError(
        f"{path}: was removed or moved while the training was writing there, so its results would be lost; restore "
        "the directory and resume, or start again"
    )


def end_torn_line(path: Path) -> None:
    """End a last line that a killed process left without its newline."""
    if path.is_file() and path.stat().st_size:
        with open(path, "rb+") as stream:
            stream.seek(-1, os.SEEK_END)
            if stream.read(1) != b"\n":
                stream.write(b"\n")


class LogReader:
    """Reads `metrics.jsonl` of a directory, which another process may be writing, from line to line."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / METRICS_NAME
        self._offset = 0

    def new_lines(self) -> list[dict[str, Any]]:
        """Return the complete lines since the last call; a line that is no JSON object, such as a torn one, is {}."""
        if not self.path.is_file():
            return []
        with open(self.path, "rb") as stream:
            stream.seek(self._offset)
            block = stream.read()
        # A line without its newline is still being written; a later call reads it.
        texts = block.split(b"\n")[:-1]
        self._offset += sum(len(text) + 1 for text in texts)
        return [_event(text) for text in texts]


def _event(text: bytes) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        event = json.loads(text)
        if isinstance(event, dict):
            return event
    return {}


def read_lines(directory: Path) -> list[dict[str, Any]]:
    """Return the complete lines of `metrics.jsonl`, as `LogReader` does."""
    return LogReader(directory).new_lines()


def read_history(directory: Path) -> list[dict[str, Any]]:
    """Return the events of `metrics.jsonl`, oldest first, without those that a later start or resume supersedes."""
    events: list[dict[str, Any]] = []
    for event in read_lines(directory):
        if not event:
            continue
        if event.get("event") in ("start", "resume"):
            events = [earlier for earlier in events if int(earlier.get("step", 0)) <= int(event.get("step", 0))]
        events.append(event)
    return events


def set_log_aside(directory: Path) -> None:
    """Rename `metrics.jsonl` to `metrics-N.jsonl`; a new MLflow run follows the next one."""
    (directory / STATE_NAME).unlink(missing_ok=True)
    names = (directory / f"metrics-{number}.jsonl" for number in itertools.count(1))
    with contextlib.suppress(FileNotFoundError):
        (directory / METRICS_NAME).rename(next(name for name in names if not name.exists()))


class DataInput(TypedDict):
    """A data set that a run reads, as MLflow lists it."""

    name: str
    kind: str
    sha256: str
    context: str  # what for: "training", "evaluation", "source" of other data, or "pre-training"
    num_rows: NotRequired[int]


class SyncState(TypedDict, total=False):
    """Content of `tracking.json`: what the MLflow run is to look like, and how much of it MLflow has."""

    key: str  # names the directory in a tag of the run
    experiment: str
    run_name: str
    tags: dict[str, str]
    params: dict[str, str]
    inputs: list[DataInput]
    note: str
    is_child: bool  # of the log in the directory above
    upload_checkpoints: bool
    status: RunStatus | None  # final status, once the log is closed
    tracking_uri: str  # the server that has what follows
    run_id: str | None
    copied_lines: int
    models: dict[str, str]  # step -> id of the checkpoint's logged model
    status_sent: RunStatus | None


def read_state(path: Path) -> SyncState:
    """Read `tracking.json`; empty if there is none."""
    try:
        state: SyncState = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise BertError(f"{path}: not a tracking record ({error}); remove it to start a new MLflow run") from error
    return state


def mlflow_run_id(manifest: Manifest) -> str | None:
    """Return the MLflow run that a model was trained in; None if this tracking store does not have it."""
    if recorded := manifest.provenance.get("mlflow_run_id"):
        return str(recorded)
    with contextlib.suppress(BertError):
        state = read_state(manifest.path.parent / manifest.provenance.get(LOG_DIRECTORY, "") / STATE_NAME)
        if state.get("tracking_uri") == without_password(tracking_uri()):
            return state.get("run_id")
    return None


SECRET_NAMES = re.compile(r"password|passwd|secret|token$|api_?key|credential", re.IGNORECASE)


def flat_params(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Flatten nested values into MLflow params: dotted keys, text values, secrets redacted."""
    flat: dict[str, str] = {}  # redacted before it is cut: a URL that is cut may have lost its "@"
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= flat_params(value, f"{name}.")
        # A list of mappings, such as the phases, gets numbered keys; a list of plain values stays one text.
        elif isinstance(value, (list, tuple)) and any(isinstance(item, (Mapping, list, tuple)) for item in value):
            flat |= flat_params({str(index): item for index, item in enumerate(value)}, f"{name}.")
        else:
            flat[name] = redacted({name: value})[name][:MAX_PARAM_LENGTH]
    return flat


def redacted(values: Mapping[str, Any]) -> dict[str, str]:
    """Return values as text, without passwords in URLs and without the values of keys that name a secret."""
    return {
        key: "(redacted)" if SECRET_NAMES.search(key) else without_password(str(value)) for key, value in values.items()
    }


def without_password(text: str) -> str:
    """Redact user and password of the URLs in a text.

    A password may hold "/" and "@", so a URL with a colon loses all up to its last "@", rather too much than a part.
    """
    return re.sub(r"(\w+://)(?:[^/:@\s]*:\S*|[^/\s]*)@", r"\1(redacted)@", text)


def first_line(error: Exception) -> str:
    """Return type and first line of an error, redacted."""
    lines = str(error).splitlines()
    return without_password(f"{type(error).__name__}: {lines[0] if lines else ''}")[:300]


def metric_key(key: str) -> str:
    """Replace what MLflow refuses in a metric's key: characters, paths such as "exam/" and "a//b", and much length."""
    key = re.sub(r"[^\w./ :-]", "_", key)[:MAX_KEY_LENGTH]
    is_path = posixpath.normpath(key) == key and not key.startswith(("/", ".."))
    return key if is_path else key.replace("/", "_")
