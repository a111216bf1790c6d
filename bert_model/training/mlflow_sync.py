"""Tracking: `metrics.jsonl` first, MLflow second.

A `Tracker` appends every event to `metrics.jsonl` in the run's directory and returns at once. A thread copies the file
to MLflow by a timer and when the log is closed, and records in `tracking.json` how far it has come. Training continues
when the server is down or MLflow is not installed; missing lines are copied later in the same process, on resume, or by
`sync`. Nothing is sent twice: every request can be repeated, because MLflow identifies a metric by key, step, value and
time, and the time is that of the line.

    with Tracker(directory, experiment="pretraining", run_name="tiny", params={...}) as tracker:
        tracker.record("train", 10, {"train/loss": 7.5})
        tracker.log_checkpoint(checkpoint, 10, {"held_out/mlm_loss": 6.9})
        tracker.log_artifact(plot)

If a run is resumed from step N, the lines of later steps before the `resume` event are superseded.
"""

import contextlib
import json
import logging
import math
import os
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from bert_model.training.home import tracking_uri
from bert_model.training.metrics_log import (
    METRICS_NAME,
    STATE_NAME,
    DataInput,
    LogReader,
    RunStatus,
    SyncState,
    check_not_removed,
    end_torn_line,
    first_line,
    flat_params,
    metric_key,
    read_lines,
    read_state,
    redacted,
    without_password,
)
from bert_model.training.mlflow_store import (
    HTTP_TIMEOUT_SECONDS,
    NOTE_TAG,
    current_user,
    dataset_input,
    experiment_id,
    has_run,
    moving_files,
    open_client,
)
from bert_pipeline.atomic import disk_errors, replace_text
from bert_pipeline.errors import ArtifactError
from bert_pipeline.manifest import MANIFEST_NAME, load_manifest, write_part

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel, Metric, Run

logger = logging.getLogger(__name__)

KEY_TAG = "bert.key"
"""Tag with a run's key, by which the run is found again if the answer to its creation was lost."""

UPLOAD_KIND = "checkpoint_weights"
"""Kind of the manifest of an uploaded checkpoint, which lacks the training state."""

CLOSE_TIMEOUT_SECONDS = 60.0
RETRY_SECONDS = 30.0
COPY_INTERVAL_SECONDS = 2.0  # bundles the lines of several steps into one request
METRICS_PER_REQUEST = 1000  # MLflow's own limit
NOTHING_COPIED: SyncState = {"run_id": None, "copied_lines": 0, "models": {}, "status_sent": None}
"""The part of a log's state that tells what MLflow has, for a store that has nothing."""


class Tracker(contextlib.AbstractContextManager["Tracker"]):
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
        is_child: bool = False,
        upload_checkpoints: bool = True,
    ) -> None:
        """Open the log in `directory`; an existing one is continued, with the same MLflow run.

        With an empty `experiment` only the file is written. `params` may be nested; they are logged once, with dotted
        keys. `inputs` are the data sets that the run reads, `note` is its description. The run of the log in the
        directory above is the parent of a child's. Without `upload_checkpoints` MLflow gets a checkpoint's path and
        hash in place of its files.
        """
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.experiment = experiment
        self._path = self.directory / METRICS_NAME
        end_torn_line(self._path)
        self._stream = open(self._path, "a", encoding="utf-8")  # noqa: SIM115 (closed by close())
        self._lock = threading.Lock()

        # Keep what an earlier process of this run has logged: its tags and its params.
        state = read_state(self.directory / STATE_NAME)
        state |= {
            "experiment": experiment,
            "run_name": run_name,
            "tags": {**state.get("tags", {}), **redacted(tags or {})},
            "params": {**flat_params(params or {}), **state.get("params", {})},  # MLflow refuses to change a param
            "inputs": list(inputs) or state.get("inputs", []),
            "note": note or state.get("note", ""),
            "is_child": is_child,
            "upload_checkpoints": upload_checkpoints,
            "status": None,
        }
        self._follower = _Follower(self.directory, state)
        if experiment:
            self._follower.start()

    def record(self, event: str, step: int, metrics: Mapping[str, float] | None = None, **fields: Any) -> None:
        """Append an event such as "train" with its metrics, from any thread; `fields` are written to the file only.

        TrainingError if the file was removed or replaced meanwhile, DiskFullError if the disk is full.
        """
        line = {"event": event, "step": step, "time": time.time(), **fields, "metrics": dict(metrics or {})}
        text = json.dumps(line)
        with self._lock:
            # The open file would take the line all the same, and the system drop it in the end.
            check_not_removed(self._path, self._stream.fileno())
            with disk_errors(self._path):
                self._stream.write(text + "\n")
                self._stream.flush()

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Add tags to the run."""
        self._follower.update(tags={**self._follower.state["tags"], **redacted(tags)})

    def log_artifact(self, path: Path | str, artifact_path: str = "") -> None:
        """Upload a file or directory to MLflow; it must stay in place until the tracker is closed."""
        self.record("artifact", 0, path=self._logged(path), artifact_path=artifact_path)

    def log_checkpoint(
        self, directory: Path | str, step: int, metrics: Mapping[str, float] | None = None, **fields: Any
    ) -> None:
        """Record a checkpoint. In MLflow it becomes a logged model: its weights, step and metrics, not its state.

        A field `data`, with name and hash of one of the run's inputs, names what the metrics were measured on.
        """
        self.record("checkpoint", step, metrics, path=self._logged(directory), **fields)

    def _logged(self, path: Path | str) -> str:
        """Return a path as the log has it: one in its directory from there, as that may be moved before it is read."""
        path = Path(path)
        return str(path.relative_to(self.directory) if path.is_relative_to(self.directory) else path.absolute())

    @property
    def run_id(self) -> str | None:
        """Id of the MLflow run; waits until it is created. None if MLflow cannot be reached."""
        if self.experiment:
            self._follower.answered.wait(HTTP_TIMEOUT_SECONDS * 3)
        return self._follower.state.get("run_id")

    @property
    def failure(self) -> str:
        """Why MLflow lacks something; "" if it was reached and answered."""
        return self._follower.failure

    def close(self, status: RunStatus = "FINISHED", timeout_seconds: float = CLOSE_TIMEOUT_SECONDS) -> None:
        """End the run and wait, up to the timeout, until MLflow has it."""
        if self._stream.closed:
            return
        self._stream.close()
        self._follower.close(status, timeout_seconds)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close("FINISHED" if kind is None else "FAILED")


def sync(directory: Path | str) -> bool:
    """Copy to MLflow what it lacks of a closed log and of its children; True if it then has everything."""
    directory = Path(directory)
    state = read_state(directory / STATE_NAME)
    if not state.get("experiment"):
        return True
    follower, status = _Follower(directory, state), state.get("status") or "FINISHED"
    if state["copied_lines"] < len(read_lines(directory)) or state["status_sent"] != status:
        follower.start()
        if not follower.close(status, 60 * CLOSE_TIMEOUT_SECONDS):  # the files of a checkpoint may take minutes
            return False
    # The children come last: their runs name the parent's.
    return all(sync(path.parent) for path in sorted(directory.glob(f"*/{STATE_NAME}")))


class _Follower(threading.Thread):
    """Copies a log to MLflow by a timer, and a last time when the log is closed.

    Any step may fail and be repeated: connect again, and send.
    """

    def __init__(self, directory: Path, state: SyncState) -> None:
        super().__init__(name="mlflow", daemon=True)
        self.directory, self.state = directory, state
        self.answered = threading.Event()
        """Set once the run is known, or MLflow cannot be reached."""
        self.failure = ""
        self._closing, self._is_copied = threading.Event(), False
        self._lock = threading.RLock()
        self._uri = tracking_uri()
        state.setdefault("key", uuid.uuid4().hex)
        shown_uri = without_password(self._uri)
        if state.get("tracking_uri") != shown_uri:  # another server has nothing of what the former one has
            state |= {"tracking_uri": shown_uri, **NOTHING_COPIED}
        # The key is on disk before the run is created: a process that dies in between finds the run again.
        self.update()
        self.disconnect()

    def run(self) -> None:
        """Copy until the log is closed."""
        is_last = False
        while not is_last:
            is_last = self._closing.is_set()
            try:
                self._is_copied = self.connect()
                self.answered.set()
                if self._is_copied:
                    self.send()
                self.failure = ""
            except ImportError:  # MLflow is not installed
                return
            except Exception as error:  # any error of a server, a database or a network
                if not self.failure:
                    logger.warning(
                        f"MLflow at {self.state['tracking_uri']}: {first_line(error)}; training continues and "
                        f"the metrics are in {self.directory / METRICS_NAME}"
                    )
                self._is_copied, self.failure = False, first_line(error)
                self.disconnect()
            finally:
                self.answered.set()
            if not is_last:
                self._closing.wait(RETRY_SECONDS if self.failure else COPY_INTERVAL_SECONDS)

    def close(self, status: RunStatus, timeout_seconds: float) -> bool:
        """Copy a last time and end the run; False, with a warning, if MLflow does not have everything in time."""
        self.update(status=status)
        self._closing.set()
        # Without an experiment no thread runs; training does not wait longer than the timeout.
        if self.ident is not None:
            self.join(timeout_seconds)
        if self.is_alive():
            self.failure = f"it did not answer within {timeout_seconds:.0f} s"
        if self.failure:
            logger.warning(
                f"MLflow at {self.state['tracking_uri']} does not have everything of {self.directory} yet "
                f"({self.failure}); it is copied when the command or asset runs again"
            )
        return self._is_copied and not self.failure

    def update(self, **changes: Any) -> None:
        """Change the state, and write it; other threads may do so at any time."""
        with self._lock:
            self.state |= changes  # type: ignore[typeddict-item]
            replace_text(self.directory / STATE_NAME, json.dumps(self.state, indent=1, sort_keys=True) + "\n")

    def disconnect(self) -> None:
        """Begin again with the first line, and ask for experiment and run again: either may have been deleted."""
        self._run_id = ""
        self._described: dict[str, str] | None = None  # the tags that were sent, with params, data sets and note
        self._reader, self._position = LogReader(self.directory), 0
        self._sent: dict[tuple[str, int], Metric] = {}  # of the present course: (key, step) -> what was sent
        self._superseded: dict[tuple[str, int], Metric] = {}  # the same of steps that a resumed training repeats

    def connect(self) -> bool:
        """Open a client, and find the run by its key or create it; False if its parent has none yet.

        ImportError if MLflow is not installed.
        """
        if self._run_id:
            return True
        parent_run_id = None
        if self.state.get("is_child"):
            # Asked for first: a server that does not answer is waited for by the parent alone.
            parent_run_id = read_state(self.directory.parent / STATE_NAME).get("run_id")
            if parent_run_id is None:
                return False
        self._client = client = open_client(self._uri)

        # A run that was deleted, or that a new database lacks, is replaced by another one with all lines. The answer to
        # an earlier creation may have been lost, so the run is looked up by its key first.
        run_id = self.state.get("run_id")
        if not run_id or not has_run(client, run_id):
            self._experiment_id = experiment_id(client, self.state["experiment"])
            if run_id:
                logger.warning(
                    f"MLflow at {self.state['tracking_uri']} has no run {run_id} any more; the whole log of "
                    f"{self.directory} is copied to a new run"
                )
            condition = f"tags.`{KEY_TAG}` = '{self.state['key']}'"
            runs = client.search_runs([self._experiment_id], filter_string=condition, max_results=1)
            run_id = str((next(iter(runs), None) or self._create_run(parent_run_id)).info.run_id)
            self.update(**{**NOTHING_COPIED, "run_id": run_id})
        if self.state.get("status_sent") and not self.state.get("status"):  # the run had ended and is resumed
            client.update_run(run_id, status="RUNNING")
            self.update(status_sent=None)
        # That of the run, under whatever name by now: its models are beside it.
        self._experiment_id = client.get_run(run_id).info.experiment_id
        self._run_id = run_id
        return True

    def _create_run(self, parent_run_id: str | None) -> "Run":
        """Create the run, tagged with its origin as MLflow knows it: user, program, commit, MLFLOW_RUN_CONTEXT."""
        from mlflow.tracking.context.registry import resolve_tags

        tags = redacted(resolve_tags()) | {"mlflow.user": current_user(), KEY_TAG: self.state["key"]}
        name = self.state["run_name"]
        if parent_run_id:
            tags["mlflow.parentRunId"] = parent_run_id
        elif dump := tags.get("dump"):
            name = ", ".join(filter(None, (f"{name} on {dump}", tags.get("preset"))))
        return self._client.create_run(self._experiment_id, run_name=name, tags=tags)

    def send(self) -> None:
        """Send the lines that MLflow lacks, and the final status when the log is closed."""
        status = self.state.get("status")
        if self._described != (tags := self.state["tags"]):
            self._describe(tags)
            self._described = tags

        # Counted as copied only once they are sent: an interruption repeats lines and never loses one.
        pending: list[Metric] = []
        for line in self._reader.new_lines():
            self._position += 1
            values = self._values(line)
            if self._position <= self.state["copied_lines"]:
                continue
            # A checkpoint's metrics belong to its logged model, so the lines in front of it are sent first.
            if line.get("event") == "checkpoint":
                self._log_metrics(pending, self._position - 1)
                self._log_checkpoint(line, values)
                pending = []
                continue
            if line.get("event") == "artifact":
                self._log_artifact(line)
            pending += values
            if len(pending) >= METRICS_PER_REQUEST:
                self._log_metrics(pending, self._position)
                pending = []
        self._log_metrics(pending, self._position)

        # The final status comes last: a run that MLflow shows as ended is complete.
        if status and status != self.state.get("status_sent"):
            self._client.set_terminated(self._run_id, status=status)
            self.update(status_sent=status)

    def _describe(self, tags: Mapping[str, str]) -> None:
        """Send params, tags and data sets; params and the description that the run has keep their value."""
        from mlflow.entities import Param, RunTag

        stored = self._client.get_run(self._run_id).data
        params = [Param(key, value) for key, value in self.state["params"].items() if key not in stored.params]
        note = {NOTE_TAG: self.state.get("note", "")}
        tags = {**tags, **(note if note[NOTE_TAG] and NOTE_TAG not in stored.tags else {})}
        self._client.log_batch(self._run_id, params=params, tags=[RunTag(*tag) for tag in tags.items()])
        if inputs := [dataset_input(item) for item in self.state.get("inputs", [])]:
            self._client.log_inputs(self._run_id, datasets=inputs)

    def _log_metrics(self, values: "list[Metric]", copied_lines: int) -> None:
        """Send metrics, and record that MLflow has the log up to a line."""
        # Metrics first, position second: what an interruption repeats, MLflow stores once.
        if values:
            self._client.log_batch(self._run_id, metrics=values)
        if copied_lines > self.state["copied_lines"]:
            self.update(copied_lines=copied_lines)

    def _values(self, line: Mapping[str, Any]) -> "list[Metric]":
        """Return a line's finite metrics whose key and step no earlier line has; those of a checkpoint in any case.

        Where a resumed training computes another value than before, that counts as the first: MLflow then has both at
        the step, and takes the later for the run's last value.
        """
        from mlflow.entities import Metric

        event, step, milliseconds = line.get("event"), int(line.get("step", 0)), int(line.get("time", 0) * 1000)
        if event in ("start", "resume"):
            self._superseded |= {key: self._sent.pop(key) for key in list(self._sent) if key[1] > step}
        values = []
        for key, value in line.get("metrics", {}).items():
            if not isinstance(value, (int, float)):
                continue
            # The first line's metric is sent every time, so that MLflow recognizes a repeated one by its time.
            metric = self._sent.get((key, step)) or self._superseded.get((key, step))
            if metric is None or (metric.value != value and (key, step) not in self._sent):
                metric = Metric(metric_key(key), float(value), milliseconds, step)
            elif event != "checkpoint":
                continue
            self._sent[key, step] = metric
            if math.isfinite(value):
                values.append(metric)
        return values

    def _log_checkpoint(self, line: Mapping[str, Any], values: "list[Metric]") -> None:
        """Make a checkpoint a logged model, which is found by its name if an earlier attempt created it."""
        from mlflow.entities import Metric

        client, step, directory = self._client, int(line["step"]), self.directory / line["path"]
        if str(step) in self.state["models"]:
            return
        name = f"step-{step:08d}"
        condition = f"source_run_id = '{self._run_id}' AND name = '{name}'"
        models = client.search_logged_models([self._experiment_id], filter_string=condition)
        model: LoggedModel | None = next(iter(models), None)
        if model is None or model.status != "READY":  # else finalized by an attempt that could not note it
            tags = {"step": str(step), "path": str(directory), **self.state["tags"]}
            with contextlib.suppress(ArtifactError):
                tags["sha256"] = load_manifest(directory).sha256
            model = model or client.create_logged_model(
                self._experiment_id,
                name=name,
                source_run_id=self._run_id,
                tags=tags,
                params={"step": str(step)},
                model_type="checkpoint",
            )

            # Pruning may have removed the directory meanwhile: step and metrics are logged nevertheless, but nobody
            # should try to load the model.
            is_lost = self.state["upload_checkpoints"] and not directory.is_dir()
            if is_lost:
                client.set_logged_model_tags(model.model_id, {"files": "removed before the upload"})
            elif self.state["upload_checkpoints"]:
                self._upload(directory, model.model_id)
            # The model repeats metrics of the run's evaluation; with the same time MLflow stores them once.
            data = dataset_input(line["data"]).dataset if line.get("data") else None
            source = (data.name, data.digest) if data else (None, None)
            metrics = [Metric(m.key, m.value, m.timestamp, m.step, model.model_id, *source) for m in values]
            self._log_metrics(metrics, 0)
            client.finalize_logged_model(model.model_id, "FAILED" if is_lost else "READY")
        # Noted last, so that an interrupted attempt is repeated.
        self.update(models=self.state["models"] | {str(step): model.model_id})

    @moving_files()
    def _upload(self, checkpoint: Path, model_id: str) -> None:
        """Upload a checkpoint's model files, without the training state below it.

        The manifest is one of these files alone, of another kind: a copy of the upload is a model, but no checkpoint
        that a training can resume from.
        """
        with tempfile.TemporaryDirectory(prefix=".upload-", dir=checkpoint.parent) as folder:
            # Linked first, because the training removes its old checkpoints while an upload takes its time.
            files = [path for path in checkpoint.iterdir() if path.is_file() and path.name != MANIFEST_NAME]
            for path in files:
                try:
                    os.link(path, Path(folder) / path.name)
                except OSError:  # a file system without links
                    shutil.copyfile(path, Path(folder) / path.name)
            with contextlib.suppress(ArtifactError):
                write_part(load_manifest(checkpoint), Path(folder), [path.name for path in files], kind=UPLOAD_KIND)
            self._client.log_model_artifacts(model_id, folder)

    @moving_files()
    def _log_artifact(self, line: Mapping[str, Any]) -> None:
        path, target = self.directory / line["path"], line.get("artifact_path") or None
        if path.is_dir():
            self._client.log_artifacts(self._run_id, str(path), target)
        elif path.is_file():
            self._client.log_artifact(self._run_id, str(path), target)
        else:
            logger.warning("%s: removed before it could be uploaded to MLflow", path)
