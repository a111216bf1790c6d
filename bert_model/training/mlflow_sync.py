"""Tracking: `metrics.jsonl` first, MLflow second.

A `Tracker` appends every event to `metrics.jsonl` in the run's directory and returns at once. A thread copies the file
to MLflow and records in `tracking.json` how far it has come. Training continues when the server is down or MLflow is
not installed; missing lines are copied later in the same process, on resume, or by `Tracker.replay`. Nothing is sent
twice: every request can be repeated, because MLflow identifies a metric by key, step, value and time, and the time is
that of the line.

    with Tracker(directory, experiment="pretraining", run_name="tiny", params={...}) as tracker:
        tracker.record("train", 10, {"train/loss": 7.5})
        tracker.log_checkpoint(checkpoint, 10, {"held_out/mlm_loss": 6.9})
        tracker.log_artifact(plot)

If a run is resumed from step N, the lines of later steps before the `resume` event are superseded.
"""

import contextlib
import logging
import math
import os
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from bert_model.training.home import tracking_uri
from bert_model.training.metrics_log import (
    METRICS_NAME,
    STATE_NAME,
    DataInput,
    MetricsLog,
    RunStatus,
    SyncState,
    first_line,
    flat_params,
    metric_key,
    read_lines,
    read_state,
    redacted,
    without_password,
    write_state,
)
from bert_model.training.mlflow_store import (
    HTTP_TIMEOUT_SECONDS,
    NOTE_TAG,
    dataset_input,
    experiment_id,
    has_run,
    open_client,
)
from bert_pipeline.errors import ArtifactError
from bert_pipeline.manifest import MANIFEST_NAME, load_manifest, write_part

if TYPE_CHECKING:
    from mlflow import MlflowClient

logger = logging.getLogger(__name__)

KEY_TAG = "bert.key"
"""Tag with a run's key, by which the run is found again if the answer to its creation was lost."""

UPLOAD_KIND = "checkpoint_weights"
"""Kind of the manifest of an uploaded checkpoint, which lacks the training state."""

CLOSE_TIMEOUT_SECONDS = 60.0
RETRY_SECONDS = 30.0
COPY_INTERVAL_SECONDS = 2.0
METRICS_PER_REQUEST = 1000  # MLflow's own limit


class Tracker:
    """Log of one training, search or workflow step: a file, and an MLflow run that follows it."""

    def __init__(
        self,
        directory: Path | str,
        *,
        experiment: str,
        run_name: str,
        tags: Mapping[str, str] | None = None,
        params: Mapping[str, Any] | None = None,
        inputs: Sequence[DataInput] = (),
        note: str = "",
        parent_run_id: str | None = None,
        upload_checkpoints: bool = True,
        follow: bool = True,
    ) -> None:
        """Open the log in `directory`; an existing one is continued, with the same MLflow run.

        With an empty `experiment` only the file is written. `params` may be nested; they are logged once, with dotted
        keys. `inputs` are the data sets that the run reads, `note` is its description. Without `upload_checkpoints`
        MLflow gets a checkpoint's path and hash in place of its files, and without `follow` nothing before `replay`.
        """
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.experiment = experiment
        self._log = MetricsLog(self.directory)

        # Keep what an earlier process of this run has logged: its tags, its params and its parent.
        state = read_state(self.directory / STATE_NAME)
        state |= {
            "experiment": experiment,
            "run_name": run_name,
            "tags": {**state.get("tags", {}), **redacted(tags or {})},
            "params": {**flat_params(params or {}), **state.get("params", {})},  # MLflow refuses to change a param
            "inputs": list(inputs) or state.get("inputs", []),
            "note": note or state.get("note", ""),
            "parent_run_id": parent_run_id or state.get("parent_run_id"),
            "upload_checkpoints": upload_checkpoints,
            "described": False,
        }
        self._sync = _MlflowSync(self.directory, state)
        if experiment and follow:
            self._sync.start()

    def record(self, event: str, step: int, metrics: Mapping[str, float] | None = None, **fields: Any) -> None:
        """Append an event such as "train" with its metrics; `fields` are written to the file only."""
        self._log.append({"event": event, "step": step, "time": time.time(), **fields, "metrics": dict(metrics or {})})
        self._sync.request()

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Add tags to the run."""
        self._sync.add_tags(redacted(tags))

    def log_artifact(self, path: Path | str, artifact_path: str = "") -> None:
        """Upload a file or directory to MLflow; it must stay in place until the tracker is closed."""
        self.record("artifact", 0, path=str(path), artifact_path=artifact_path)

    def log_checkpoint(
        self, directory: Path | str, step: int, metrics: Mapping[str, float] | None = None, **fields: Any
    ) -> None:
        """Record a checkpoint. In MLflow it becomes a logged model: its weights, step and metrics, not its state.

        A field `data`, with name and hash of one of the run's inputs, names what the metrics were measured on.
        """
        self.record("checkpoint", step, metrics, path=str(directory), **fields)

    @property
    def run_id(self) -> str | None:
        """Id of the MLflow run; waits until it is created. None if MLflow cannot be reached."""
        return self._sync.wait_for_run(HTTP_TIMEOUT_SECONDS * 3)

    def flush(self, timeout_seconds: float = CLOSE_TIMEOUT_SECONDS) -> bool:
        """Wait until MLflow has everything; False after the timeout or if MLflow cannot be reached."""
        return self._sync.flush(timeout_seconds)

    def close(self, status: RunStatus = "FINISHED", timeout_seconds: float = CLOSE_TIMEOUT_SECONDS) -> None:
        """End the run and wait, up to the timeout, until MLflow has it."""
        if self._log.closed:
            return
        self._log.close()
        self._sync.close(status, timeout_seconds)

    def __enter__(self) -> "Tracker":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close("FINISHED" if kind is None else "FAILED")

    @staticmethod
    def replay(directory: Path | str, *, parent_run_id: str | None = None) -> bool:
        """Copy to MLflow what it lacks of a closed log; True if it then has everything.

        `parent_run_id` is of a parent that had no run yet when the log was written.
        """
        state = read_state(Path(directory) / STATE_NAME)
        if not state.get("experiment"):
            return True
        if parent_run_id:
            state["parent_run_id"] = parent_run_id
        sync = _MlflowSync(Path(directory), state)
        if sync.is_complete:
            return True
        sync.start()
        return sync.close(state.get("status", "FINISHED"), CLOSE_TIMEOUT_SECONDS)


class _Value(NamedTuple):
    """A metric as MLflow stores it."""

    key: str
    value: float
    milliseconds: int
    step: int
    model_id: str | None = None
    data_name: str | None = None
    data_digest: str | None = None


class _MlflowSync:
    """The thread that copies a log to MLflow.

    Callers increase `_requested`; the thread copies the file's new lines and sets `_answered` to the last request that
    the copy covers, and `_outcome`. One copy answers all earlier requests. A failed copy answers those made meanwhile
    too, so that nobody waits for a server that is down; it is repeated after RETRY_SECONDS.
    """

    def __init__(self, directory: Path, state: SyncState) -> None:
        self.directory = directory
        self.state = state
        self._uri = tracking_uri()
        state.setdefault("key", uuid.uuid4().hex)
        shown_uri = without_password(self._uri)
        if state.get("tracking_uri") != shown_uri:  # another server has nothing of what the former one has
            state |= {"tracking_uri": shown_uri, **_nothing_copied()}

        # Guards the counters below and the state, which callers and the thread change.
        self._changed = threading.Condition()
        self._requested = 1
        self._answered = 0
        self._outcome: Literal["", "copied", "failed", "unavailable"] = "" if state["experiment"] else "unavailable"
        self._failure = ""
        self._closing = False
        self._sent: dict[tuple[str, int], tuple[int, float]] = {}  # (key, step) -> time and value of the first line
        self._superseded: set[tuple[str, int]] = set()  # those of `_sent` that a resumed training computes again
        self._client: MlflowClient | None = None
        self._experiment_id = ""
        self._run_is_known = False  # the store has been asked for the run since the start or the last failure

        # The key is on disk before the run is created: a process that dies in between finds the run again.
        self._save()
        self._restore_sent()
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def request(self) -> None:
        """Ask for a copy of the lines written so far."""
        with self._changed:
            self._requested += 1
            self._changed.notify_all()

    def add_tags(self, tags: Mapping[str, str]) -> None:
        with self._changed:
            self.state["tags"] = {**self.state["tags"], **tags}
            self.state["described"] = False
        self.request()

    @property
    def is_complete(self) -> bool:
        """True if MLflow has every line and the final status."""
        num_lines = len(read_lines(self.directory))
        return self.state["copied_lines"] >= num_lines and self.state.get("status_sent") == self.state.get("status")

    def wait_for_run(self, timeout_seconds: float) -> str | None:
        with self._changed:
            self._changed.wait_for(
                lambda: self._run_is_known or self._answered > 0 or self._outcome == "unavailable",
                timeout_seconds,
            )
            return self.state.get("run_id")

    def flush(self, timeout_seconds: float) -> bool:
        with self._changed:
            self.request()
            target = self._requested
            self._changed.wait_for(lambda: self._answered >= target or self._outcome == "unavailable", timeout_seconds)
            return self._answered >= target and self._outcome == "copied"

    def close(self, status: RunStatus, timeout_seconds: float) -> bool:
        """Copy a last time and end the run; False, with a warning, if MLflow does not have everything in time."""
        with self._changed:
            self.state["status"] = status
            self._closing = True
            self.request()

        # A log that is not followed has no running thread; training does not wait longer than the timeout.
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)
        self._save()
        in_time = not self._thread.is_alive()
        if in_time and self._outcome != "failed":
            return self._outcome == "copied"
        logger.warning(
            "MLflow at %s does not have everything of %s yet (%s); it is copied when the command or asset runs again",
            self.state["tracking_uri"],
            self.directory,
            self._failure if in_time else f"it did not answer within {timeout_seconds:.0f} s",
        )
        return False

    def _work(self) -> None:
        """Copy on request until the log is closed."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._requested > self._answered or self._outcome == "failed")
                closing, target = self._closing, self._requested
            outcome, failure = self._try_to_copy(closing)
            with self._changed:
                self._outcome, self._failure = outcome, failure
                # A failure also answers the requests made meanwhile; a copy answers only those before it.
                self._answered = self._requested if outcome == "failed" else target
                self._changed.notify_all()
                if closing or outcome == "unavailable":
                    return
                # The pause bundles the lines of several steps into one request.
                pause = RETRY_SECONDS if outcome == "failed" else COPY_INTERVAL_SECONDS
                self._changed.wait_for(lambda: self._closing, pause)

    def _try_to_copy(self, closing: bool) -> tuple[Literal["copied", "failed", "unavailable"], str]:
        """Copy, and return the outcome with the reason of a failure."""
        try:
            self._copy(closing)
        except ImportError:  # MLflow is not installed
            return "unavailable", ""
        except Exception as error:  # any error of a server, a database or a network
            if not self._failure:
                logger.warning(
                    "MLflow at %s: %s; training continues and the metrics are in %s",
                    self.state["tracking_uri"],
                    first_line(error),
                    self.directory / METRICS_NAME,
                )
            self._restore_sent()
            self._experiment_id, self._run_is_known = "", False  # either may have been deleted
            return "failed", first_line(error)
        return "copied", ""

    def _copy(self, closing: bool) -> None:
        """Send the lines that MLflow lacks, and the final status when the log is closed."""
        client, run_id = self._connect(closing)
        if not self.state.get("described"):
            self._describe(client, run_id)

        # Counted as copied only once they are sent: an interruption repeats lines and never loses one.
        num_lines = self.state["copied_lines"]
        pending: list[_Value] = []
        for line in read_lines(self.directory, num_lines):
            num_lines += 1
            # A checkpoint's metrics belong to its logged model, so the lines in front of it are sent first.
            if line.get("event") == "checkpoint":
                self._send(client, run_id, pending, num_lines - 1)
                pending = []
                self._copy_checkpoint(client, run_id, line)
                self._send(client, run_id, [], num_lines)
                continue
            if line.get("event") == "artifact":
                _copy_artifact(client, run_id, line)
            pending += self._values(line)
            if len(pending) >= METRICS_PER_REQUEST:
                self._send(client, run_id, pending, num_lines)
                pending = []
        self._send(client, run_id, pending, num_lines)

        # The final status comes last: a run that MLflow shows as ended is complete.
        status = self.state.get("status")
        if closing and status != self.state.get("status_sent"):
            client.set_terminated(run_id, status=status)
            self.state["status_sent"] = status
            self._save()

    def _connect(self, closing: bool) -> tuple["MlflowClient", str]:
        """Return a client and the id of the run, which is found by its key or created."""
        if self._client is None:
            self._client = open_client(self._uri)
        client = self._client
        if not self._experiment_id:
            self._experiment_id = experiment_id(client, self.state["experiment"])

        # A run that was deleted, or that a new database lacks, is replaced by another one with all lines.
        run_id = self.state.get("run_id")
        if run_id and not self._run_is_known and not has_run(client, run_id):
            logger.warning(
                "MLflow at %s has no run %s any more; the whole log of %s is copied to a new run",
                self.state["tracking_uri"],
                run_id,
                self.directory,
            )
            run_id = None
            with self._changed:
                self.state |= _nothing_copied()
            self._restore_sent()

        # The answer to an earlier creation may have been lost, so the run is looked up by its key first.
        if not run_id:
            condition = f"tags.`{KEY_TAG}` = '{self.state['key']}'"
            found = client.search_runs([self._experiment_id], filter_string=condition, max_results=1)
            tags = {KEY_TAG: self.state["key"]}
            if parent_run_id := self.state.get("parent_run_id"):
                tags["mlflow.parentRunId"] = parent_run_id
            run = next(iter(found), None) or client.create_run(
                self._experiment_id, run_name=self.state["run_name"], tags=tags
            )
            run_id = str(run.info.run_id)
            with self._changed:
                self.state |= {"run_id": run_id, "described": False}  # it has neither params nor tags yet
            self._save()
        with self._changed:  # wake `wait_for_run`
            self._run_is_known = True
            self._changed.notify_all()

        if self.state.get("status_sent") and not closing:  # the run had ended and is resumed
            client.update_run(run_id, status="RUNNING")
            self.state["status_sent"] = None
        return client, run_id

    def _describe(self, client: "MlflowClient", run_id: str) -> None:
        """Send params, tags and data sets; params and the description that the run has keep their value."""
        from mlflow.entities import Param, RunTag

        run = client.get_run(run_id)
        # The flag is set before sending: tags that are added meanwhile clear it again.
        with self._changed:
            params, tags = dict(self.state["params"]), dict(self.state["tags"])
            if (note := self.state.get("note")) and NOTE_TAG not in run.data.tags:  # an edited one is kept
                tags[NOTE_TAG] = note
            self.state["described"] = True
        new = [Param(key, value) for key, value in sorted(params.items()) if key not in run.data.params]
        inputs = [dataset_input(item) for item in self.state.get("inputs", [])]
        try:
            client.log_batch(run_id, params=new, tags=[RunTag(key, value) for key, value in tags.items()])
            if inputs:
                client.log_inputs(run_id, datasets=inputs)
        except Exception:
            self.state["described"] = False  # the next copy sends them again
            raise
        self._save()

    def _send(self, client: "MlflowClient", run_id: str, values: list[_Value], copied_lines: int) -> None:
        """Send metrics, and record that MLflow has the log up to a line."""
        from mlflow.entities import Metric

        # Metrics first, position second: what an interruption repeats, MLflow stores once.
        client.log_batch(run_id, metrics=[Metric(*value) for value in values])
        self.state["copied_lines"] = copied_lines
        self._save()

    def _values(self, line: Mapping[str, Any], *, repeat: bool = False) -> list[_Value]:
        """Return a line's finite metrics; without `repeat` only those whose key and step no earlier line has.

        Where a resumed training computes another value than before, that counts as the first: MLflow then has both at
        the step, and takes the later for the run's last value.
        """
        step, milliseconds = int(line.get("step", 0)), int(line.get("time", 0) * 1000)
        if line.get("event") in ("start", "resume"):
            self._superseded |= {sent for sent in self._sent if sent[1] > step}
        values = []
        for key, value in line.get("metrics", {}).items():
            if not isinstance(value, (int, float)):
                continue
            place = (key, step)
            if place in self._superseded:
                self._superseded.remove(place)
                if self._sent[place][1] != value:
                    del self._sent[place]
            if place in self._sent and not repeat:
                continue
            # The time of the first line is sent every time, so that MLflow recognizes a repeated metric.
            first, _ = self._sent.setdefault(place, (milliseconds, value))
            if math.isfinite(value):
                values.append(_Value(metric_key(key), float(value), first, step))
        return values

    def _restore_sent(self) -> None:
        """Recompute `_sent` from the copied lines, without what a failed request did not bring."""
        self._sent.clear()
        self._superseded.clear()
        for line in read_lines(self.directory, stop=self.state["copied_lines"]):
            self._values(line)

    def _copy_checkpoint(self, client: "MlflowClient", run_id: str, line: Mapping[str, Any]) -> None:
        """Make a checkpoint a logged model, which is found by its name if an earlier attempt created it."""
        step, directory = int(line["step"]), Path(line["path"])
        models = self.state["models"]
        if str(step) in models:
            return
        name = f"step-{step:08d}"
        condition = f"source_run_id = '{run_id}' AND name = '{name}'"
        found = client.search_logged_models([self._experiment_id], filter_string=condition)
        model = next(iter(found), None)
        if model is not None and model.status == "READY":  # finalized by an attempt that could not note it
            models[str(step)] = model.model_id
            return
        model = model or client.create_logged_model(
            self._experiment_id,
            name=name,
            source_run_id=run_id,
            tags={"step": str(step), "path": str(directory), **self.state["tags"], **_hash_tag(directory)},
            params={"step": str(step)},
            model_type="checkpoint",
        )

        # Pruning may have removed the directory meanwhile: step and metrics are logged nevertheless, but nobody should
        # try to load the model.
        is_lost = self.state["upload_checkpoints"] and not directory.is_dir()
        if is_lost:
            client.set_logged_model_tags(model.model_id, {"files": "removed before the upload"})
        elif self.state["upload_checkpoints"]:
            with _weights_only(directory) as folder:
                client.log_model_artifacts(model.model_id, str(folder))
        # The model repeats metrics of the run's evaluation; with the same time MLflow stores them once.
        data = dataset_input(line["data"]).dataset if line.get("data") else None
        source = (data.name, data.digest) if data else (None, None)
        values = [_Value(*value[:4], model.model_id, *source) for value in self._values(line, repeat=True)]
        self._send(client, run_id, values, self.state["copied_lines"])
        client.finalize_logged_model(model.model_id, "FAILED" if is_lost else "READY")
        # Noted last, so that an interrupted attempt is repeated.
        models[str(step)] = model.model_id

    def _save(self) -> None:
        with self._changed:
            write_state(self.directory / STATE_NAME, self.state)


def _nothing_copied() -> SyncState:
    """Return the part of the state that tells what MLflow has, for a store that has nothing."""
    return {"run_id": None, "copied_lines": 0, "models": {}, "status_sent": None}


def _copy_artifact(client: "MlflowClient", run_id: str, line: Mapping[str, Any]) -> None:
    path, target = Path(line["path"]), line.get("artifact_path") or None
    if path.is_dir():
        client.log_artifacts(run_id, str(path), target)
    elif path.is_file():
        client.log_artifact(run_id, str(path), target)
    else:
        logger.warning("%s: removed before it could be uploaded to MLflow", path)


@contextlib.contextmanager
def _weights_only(checkpoint: Path) -> Iterator[Path]:
    """Link a checkpoint's model files into a temporary directory, without the training state below it.

    The manifest is one of these files alone, of another kind: a copy of the upload is a model, but no checkpoint that a
    training can resume from.
    """
    with tempfile.TemporaryDirectory(prefix=".upload-", dir=checkpoint.parent) as temporary:
        folder = Path(temporary)
        for path in checkpoint.iterdir():
            if path.is_file() and path.name != MANIFEST_NAME:
                try:
                    os.link(path, folder / path.name)
                except FileNotFoundError:  # deleted meanwhile
                    raise
                except OSError:  # a file system without links
                    shutil.copyfile(path, folder / path.name)
        with contextlib.suppress(ArtifactError):
            write_part(load_manifest(checkpoint), folder, kind=UPLOAD_KIND)
        yield folder


def _hash_tag(checkpoint: Path) -> dict[str, str]:
    """Return the hash in a checkpoint's manifest as a tag; {} if it cannot be read."""
    with contextlib.suppress(ArtifactError):
        return {"sha256": load_manifest(checkpoint).sha256}
    return {}
