"""Tracking: `metrics.jsonl` first, MLflow beside it.

A `Tracker` appends every event to `metrics.jsonl` in the training's directory and returns at once. A thread copies the
file to MLflow, where there is one, and notes in `tracking.json` how far it has come. When the server is down or MLflow
is not installed, training goes on; what is missing is copied at the next chance, be it later in the same process, at a
resume, or by `Tracker.replay`. Nothing is sent twice: events carry the time of their line, by which MLflow knows them.

    with Tracker(directory, experiment="pretraining", run_name="tiny", params={...}) as tracker:
        tracker.record("train", 10, {"train/loss": 7.5})
        tracker.log_checkpoint(checkpoint, 10, {"held_out/mlm_loss": 6.9})
        tracker.log_artifact(plot)
        child = tracker.child(directory / "trial-1", run_name="trial-1")

Where a training was resumed from step N, the lines of greater steps before the `resume` event are superseded.
"""

import json
import logging
import math
import os
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from bert_model.training.metrics_log import (
    METRICS_NAME,
    STATE_NAME,
    bert_home,
    end_torn_line,
    first_line,
    flat_params,
    lineage,
    metric_key,
    read_lines,
    read_state,
    redacted,
    tracking_uri,
    weights_alone,
    without_password,
    write_state,
)

logger = logging.getLogger(__name__)

KEY_TAG = "bert.key"
"""Tag of a run that names the training's directory, so that a run is found again however its creation ended."""

HTTP_TIMEOUT_SECONDS = 10
CLOSE_TIMEOUT_SECONDS = 60.0
RETRY_SECONDS = 30.0
COPY_INTERVAL_SECONDS = 2.0
METRICS_PER_REQUEST = 1000  # MLflow's own limit

RunStatus = Literal["FINISHED", "FAILED", "KILLED"]


def open_client(uri: str = "") -> Any:
    """Return an MlflowClient with bounded waiting. ImportError when MLflow is not installed."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", str(HTTP_TIMEOUT_SECONDS))
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    import mlflow

    uri = uri or tracking_uri()
    if uri.startswith("sqlite:///"):
        Path(uri.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
    return mlflow.MlflowClient(tracking_uri=uri)


def experiment_id(client: Any, name: str) -> str:
    """Return the id of an experiment, made where it is missing; with SQLite its artefacts lie under BERT_HOME."""
    found = client.get_experiment_by_name(name)
    if found is not None:
        return found.experiment_id
    location = (bert_home() / "artifacts").as_uri() if tracking_uri().startswith("sqlite:") else None
    try:
        return client.create_experiment(name, artifact_location=location)
    except Exception:  # another process was faster
        found = client.get_experiment_by_name(name)
        if found is None:
            raise
        return found.experiment_id


class Tracker:
    """The record of one training, task or workflow step: a file, and an MLflow run that follows it."""

    def __init__(
        self,
        directory: Path | str,
        *,
        experiment: str,
        run_name: str,
        tags: Mapping[str, str] | None = None,
        params: Mapping[str, Any] | None = None,
        parent_run_id: str | None = None,
        upload_checkpoints: bool = True,
    ) -> None:
        """Open the record in `directory`; a record that stands there is continued, with the same MLflow run.

        With an empty `experiment` there is the file alone. `params` may be nested; they are logged once, with dots in
        the keys. Without `upload_checkpoints` MLflow gets path and hash of a checkpoint in place of its files.
        """
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.experiment = experiment
        self._path = self.directory / METRICS_NAME
        end_torn_line(self._path)
        self._stream = open(self._path, "a", encoding="utf-8")  # noqa: SIM115 (held as long as the tracker)
        self._lock = threading.Lock()
        state = read_state(self.directory / STATE_NAME)
        state.update(
            experiment=experiment,
            run_name=run_name,
            tags={**state.get("tags", {}), **redacted(tags or {})},
            params={**flat_params(params or {}), **state.get("params", {})},
            parent_run_id=parent_run_id or state.get("parent_run_id"),
            upload_checkpoints=upload_checkpoints,
            described=False,
        )
        self._mirror = _Mirror(self.directory, state)
        if experiment:
            self._mirror.start()

    def record(self, event: str, step: int, metrics: Mapping[str, float] | None = None, **fields: Any) -> None:
        """Append an event such as "train" with its metrics; `fields` stay in the file alone."""
        line = {"event": event, "step": step, "time": time.time(), **fields, "metrics": dict(metrics or {})}
        text = json.dumps(line)
        with self._lock:
            self._stream.write(text + "\n")
            self._stream.flush()
        self._mirror.wake()

    def log_metrics(self, metrics: Mapping[str, float], step: int = 0) -> None:
        """Append metrics that belong to no particular event."""
        self.record("metrics", step, metrics)

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Add params; one that was logged before keeps its first value."""
        self._mirror.add("params", flat_params(params))

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Add tags to the run."""
        self._mirror.add("tags", redacted(tags))

    def log_artifact(self, path: Path | str, artifact_path: str = "") -> None:
        """Hand a file or directory to MLflow; it must stay where it is until the tracker is closed."""
        self.record("artifact", 0, path=str(path), artifact_path=artifact_path)

    def log_checkpoint(
        self, directory: Path | str, step: int, metrics: Mapping[str, float] | None = None, **fields: Any
    ) -> None:
        """Record a checkpoint. In MLflow it becomes a logged model with its step and metrics: weights, not state."""
        self.record("checkpoint", step, metrics, path=str(directory), **fields)

    def child(self, directory: Path | str, *, run_name: str, **settings: Any) -> "Tracker":
        """Open a tracker whose run lies under this one's."""
        return Tracker(directory, experiment=self.experiment, run_name=run_name, parent_run_id=self.run_id, **settings)

    @property
    def run_id(self) -> str | None:
        """The MLflow run's id; waits for it while it is being made. None when there is no MLflow to ask."""
        return self._mirror.wait_for_run(HTTP_TIMEOUT_SECONDS * 3)

    @property
    def model_ids(self) -> dict[int, str]:
        """MLflow's logged models of the checkpoints sent so far: step -> model id."""
        return {int(step): model for step, model in self._mirror.state.get("models", {}).items()}

    def flush(self, timeout_seconds: float = CLOSE_TIMEOUT_SECONDS) -> bool:
        """Wait until MLflow has everything; False when it has not within the time or cannot be reached."""
        return self._mirror.flush(timeout_seconds)

    def close(self, status: RunStatus = "FINISHED", timeout_seconds: float = CLOSE_TIMEOUT_SECONDS) -> None:
        """End the run and wait, within bounds, for MLflow to have it; what it lacks is copied at the next chance."""
        if self._stream.closed:
            return
        self._stream.close()
        self._mirror.end(status, timeout_seconds)

    def __enter__(self) -> "Tracker":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close("FINISHED" if kind is None else "FAILED")

    @staticmethod
    def replay(directory: Path | str, *, timeout_seconds: float = CLOSE_TIMEOUT_SECONDS) -> bool:
        """Copy what MLflow still lacks of a record that is closed; True when it has everything then."""
        state = read_state(Path(directory) / STATE_NAME)
        if not state.get("experiment"):
            return True
        mirror = _Mirror(Path(directory), state)
        if mirror.is_complete:
            return True
        mirror.start()
        return mirror.end(state.get("status", "FINISHED"), timeout_seconds)


class _Mirror:
    """The thread that copies a record to MLflow, and the state of the copying."""

    def __init__(self, directory: Path, state: dict[str, Any]) -> None:
        self.directory = directory
        self.state = state
        state.setdefault("key", uuid.uuid4().hex)
        self.uri = tracking_uri()
        shown = without_password(self.uri)
        if state.get("tracking_uri") != shown:  # another server knows nothing of what the first one has
            state.update(tracking_uri=shown, run_id=None, copied_lines=0, models={}, status_sent=None)
        self._seen: set[tuple[str, int]] = set()
        self._times: dict[tuple[str, int], int] = {}
        self._changed = threading.Condition()
        self._wanted = 1
        self._copied = 0
        """The number of wishes, and how many of them have been met: a copy meets all that came before it."""
        self._closing = False
        self._attempts = 0
        self._down: str | None = None
        self._absent = not state["experiment"]
        self._client: Any = None
        self._experiment_id = ""
        self._save()
        self._remember()
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        with self._changed:
            self._wanted += 1
            self._changed.notify_all()

    def add(self, what: Literal["params", "tags"], values: Mapping[str, str]) -> None:
        with self._changed:
            known = self.state[what]
            self.state[what] = {**values, **known} if what == "params" else {**known, **values}
            self.state["described"] = False
        self.wake()

    @property
    def is_complete(self) -> bool:
        """True when MLflow has every line and the final status."""
        total = sum(1 for _ in read_lines(self.directory))
        return self.state["copied_lines"] >= total and self.state.get("status_sent") == self.state.get("status")

    def wait_for_run(self, timeout_seconds: float) -> str | None:
        with self._changed:
            self._changed.wait_for(
                lambda: self.state.get("run_id") or self._absent or self._attempts > 0, timeout=timeout_seconds
            )
        return self.state.get("run_id")

    def flush(self, timeout_seconds: float) -> bool:
        self.wake()
        with self._changed:
            target, attempts = self._wanted, self._attempts
            self._changed.wait_for(
                lambda: self._copied >= target or self._absent or (self._down and self._attempts > attempts),
                timeout_seconds,
            )
            return self._copied >= target

    def end(self, status: RunStatus, timeout_seconds: float) -> bool:
        with self._changed:
            self.state["status"] = status
            self._closing = True
            self._wanted += 1
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)
        self._save()
        complete = not self._thread.is_alive() and self._down is None
        if not complete and not self._absent:
            reason = self._down or f"it did not answer within {timeout_seconds:.0f} s"
            logger.warning(
                "MLflow at %s does not have everything of %s yet (%s); it is copied when the training is resumed",
                self.state["tracking_uri"],
                self.directory,
                reason,
            )
        return complete

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted > self._copied)
                closing, target = self._closing, self._wanted
            try:
                self._copy(closing)
                self._down = None
            except ImportError:
                self._absent = True
            except Exception as error:  # whatever a server, a database or a network can raise
                if self._down is None:
                    logger.warning(
                        "MLflow at %s: %s; training goes on and the metrics are in %s",
                        self.state["tracking_uri"],
                        first_line(error),
                        self.directory / METRICS_NAME,
                    )
                self._down = first_line(error)
                self._remember()
            with self._changed:
                self._attempts += 1
                if not self._down:
                    self._copied = target
                self._changed.notify_all()
                if self._absent or closing:
                    return
                pause = RETRY_SECONDS if self._down else COPY_INTERVAL_SECONDS
                self._changed.wait_for(lambda: self._closing, timeout=pause)

    def _copy(self, closing: bool) -> None:
        """Bring MLflow up to the file's last line, and end the run when the tracker is being closed."""
        self._connect(closing)
        number = self.state["copied_lines"]
        pending: list[Any] = []
        for line in read_lines(self.directory, number):
            number += 1
            if line.get("event") == "checkpoint":
                self._send(pending, number - 1)
                self._copy_checkpoint(line)
                self._send([], number)
                continue
            if line.get("event") == "artifact":
                self._copy_artifact(line)
            pending += self._metrics_of(line, None)
            if len(pending) >= METRICS_PER_REQUEST:
                self._send(pending, number)
        self._send(pending, number)
        status = self.state.get("status")
        if closing and status != self.state.get("status_sent"):
            self._client.set_terminated(self.state["run_id"], status=status)
            self.state["status_sent"] = status
            self._save()

    def _remember(self) -> None:
        """Take for sent what stands in the lines that were copied, and nothing that a failed request was to bring."""
        self._seen.clear()
        for line in read_lines(self.directory, stop=self.state["copied_lines"]):
            self._metrics_of(line, None)

    def _connect(self, closing: bool) -> None:
        """Find or make the run and describe it."""
        if self._client is None:
            self._client = open_client(self.uri)
        if not self._experiment_id:
            self._experiment_id = experiment_id(self._client, self.state["experiment"])
        if not self.state.get("run_id"):
            found = self._client.search_runs(
                [self._experiment_id], filter_string=f"tags.`{KEY_TAG}` = '{self.state['key']}'", max_results=1
            )
            tags = {KEY_TAG: self.state["key"]}
            if self.state.get("parent_run_id"):
                tags["mlflow.parentRunId"] = self.state["parent_run_id"]
            make = self._client.create_run
            run = found[0] if found else make(self._experiment_id, run_name=self.state["run_name"], tags=tags)
            self.state.update(run_id=run.info.run_id, described=False)
            self._save()
            with self._changed:
                self._changed.notify_all()
        if self.state.get("status_sent") and not closing:
            self._client.update_run(self.state["run_id"], status="RUNNING")
            self.state["status_sent"] = None
        if not self.state.get("described"):
            self._describe()

    def _describe(self) -> None:
        from mlflow.entities import Param, RunTag

        run = self._client.get_run(self.state["run_id"])
        with self._changed:
            params, tags = dict(self.state["params"]), dict(self.state["tags"])
            self.state["described"] = True
        new = [Param(key, value) for key, value in sorted(params.items()) if key not in run.data.params]
        for start in range(0, len(new), 100):  # MLflow's own limit
            self._client.log_batch(self.state["run_id"], params=new[start : start + 100])
        if tags:
            self._client.log_batch(self.state["run_id"], tags=[RunTag(key, value) for key, value in tags.items()])
        self._save()

    def _send(self, pending: list[Any], lines: int) -> None:
        for start in range(0, len(pending), METRICS_PER_REQUEST):
            self._client.log_batch(self.state["run_id"], metrics=pending[start : start + METRICS_PER_REQUEST])
        pending.clear()
        self.state["copied_lines"] = lines
        self._save()

    def _metrics_of(self, line: Mapping[str, Any], model_id: str | None) -> list[Any]:
        """Return a line's metrics as MLflow's, without those of a (key, step) that came before."""
        if self._client is not None:
            from mlflow.entities import Metric
        step, milliseconds = int(line.get("step", 0)), int(line.get("time", 0) * 1000)
        found = []
        for key, value in line.get("metrics", {}).items():
            if not isinstance(value, (int, float)) or (key, step) in self._seen and model_id is None:
                continue
            self._seen.add((key, step))
            stamp = self._times.setdefault((key, step), milliseconds)
            if self._client is not None and math.isfinite(value):
                found.append(Metric(metric_key(key), float(value), stamp, step, model_id=model_id))
        return found

    def _copy_checkpoint(self, line: Mapping[str, Any]) -> None:
        """Make a checkpoint a logged model: its files without the training's state, its step, its metrics."""
        step, directory = int(line["step"]), Path(line["path"])
        models = self.state["models"]
        if str(step) in models:
            return
        name = f"step-{step:08d}"
        known = f"source_run_id = '{self.state['run_id']}' AND name = '{name}'"
        found = self._client.search_logged_models([self._experiment_id], filter_string=known)
        tags = {"step": str(step), "path": str(directory), **self.state["tags"], **lineage(directory)}
        model = next(iter(found), None) or self._client.create_logged_model(
            self._experiment_id,
            name=name,
            source_run_id=self.state["run_id"],
            tags=tags,
            params={"step": str(step)},
            model_type="checkpoint",
        )
        if self.state["upload_checkpoints"] and directory.is_dir():
            with weights_alone(directory) as folder:
                self._client.log_model_artifacts(model.model_id, str(folder))
        metrics = self._metrics_of(line, model.model_id)
        self._send(metrics, self.state["copied_lines"])
        self._client.finalize_logged_model(model.model_id, "READY")
        models[str(step)] = model.model_id

    def _copy_artifact(self, line: Mapping[str, Any]) -> None:
        path = Path(line["path"])
        target = line.get("artifact_path") or None
        if path.is_dir():
            self._client.log_artifacts(self.state["run_id"], str(path), target)
        elif path.is_file():
            self._client.log_artifact(self.state["run_id"], str(path), target)
        else:
            logger.warning("%s: gone before it could be handed to MLflow", path)

    def _save(self) -> None:
        with self._changed:
            write_state(self.directory / STATE_NAME, self.state)
