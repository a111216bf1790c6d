"""MLflow's store: the client, the experiments with their descriptions, and the data sets that runs read."""

import contextlib
import getpass
import json
import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from bert_model.training.home import bert_home, settle, tracking_uri
from bert_model.training.metrics_log import DataInput
from bert_pipeline.errors import ArtifactError

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput

NOTE_TAG = "mlflow.note.content"
"""Tag that MLflow's UI shows as the description, in Markdown, of an experiment or a run."""

EXPERIMENT_NOTES = {
    "pretraining": "Pre-trainings on masked words and next sentences, one run each. Compare `held_out/mlm_loss` only "
    "between runs on the same instances (column *Dataset*). The checkpoints are under *Models*.",
    "finetuning": "One run for each search over a task's learning rates, batch sizes and seeds, with a child run for "
    "each trial. A run's score is the mean over seeds; its artifact `results.md` is the table. Registered versions, "
    "with their scores by data set, are under *Models*.",
    "reports": "One run for each report: the scores of all tasks on one pre-trained model. Select several to compare "
    "models.",
    "bert": "Registered models that were trained without this MLflow store.",
}
"""Experiment -> its description. Experiments of other names are the user's own."""

HTTP_TIMEOUT_SECONDS = 10
FILE_TIMEOUT_SECONDS = 900
"""The same for a file: a server that passes files on answers only once its store has all of one."""
DIGEST_LENGTH = 36  # MLflow's own limit

_TIMEOUT_VARIABLE = "MLFLOW_HTTP_REQUEST_TIMEOUT"
_moving_files = threading.RLock()


def open_client(uri: str = "") -> "MlflowClient":
    """Return an MlflowClient with bounded waiting. ImportError if MLflow is not installed."""
    # Set before the import, during which MLflow reads some of them; values that the user has set are kept.
    os.environ.setdefault(_TIMEOUT_VARIABLE, str(HTTP_TIMEOUT_SECONDS))
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    import mlflow

    uri = uri or tracking_uri()
    if uri.startswith("sqlite:///"):
        database = Path(uri.removeprefix("sqlite:///").partition("?")[0])
        database.parent.mkdir(parents=True, exist_ok=True)
        if database.parent == bert_home():
            settle(bert_home())
        if not database.exists():
            # Made whole, as MLflow can neither use nor complete one whose creation was interrupted. It makes it itself
            # where nothing can be linked; where another process has made one meanwhile, that stays.
            parent = database.parent
            with contextlib.suppress(OSError), tempfile.TemporaryDirectory(prefix=".mlflow-", dir=parent) as folder:
                mlflow.MlflowClient(f"sqlite:///{folder}/{database.name}").search_experiments()
                os.link(f"{folder}/{database.name}", database)
    return mlflow.MlflowClient(tracking_uri=uri)


@contextlib.contextmanager
def moving_files() -> Iterator[None]:
    """Wait FILE_TIMEOUT_SECONDS for each request, for one thread at a time: MLflow reads a variable at each request."""
    with _moving_files:
        seconds = os.environ[_TIMEOUT_VARIABLE]
        os.environ[_TIMEOUT_VARIABLE] = str(max(int(seconds), FILE_TIMEOUT_SECONDS))
        try:
            yield
        finally:
            os.environ[_TIMEOUT_VARIABLE] = seconds


def current_user() -> str:
    """Return the user and host of this process; not MLflow's user, which may be that of a login."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # of a container, whose user has no name
        return socket.gethostname()


def experiment_id(client: "MlflowClient", name: str) -> str:
    """Return the id of an experiment, created with its description if missing; ArtifactError if it was deleted.

    Those of a database without a server have their artifacts under BERT_HOME: MLflow takes ./mlruns for them.
    """
    note = EXPERIMENT_NOTES.get(name, "")
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        is_database = tracking_uri().startswith(("sqlite", "postgresql", "mysql", "mssql"))
        location = (bert_home() / "artifacts").as_uri() if is_database else None
        with ignoring("RESOURCE_ALREADY_EXISTS"):
            created = client.create_experiment(name, location, {NOTE_TAG: note} if note else {})
            _delete_empty_default(client)
            return created
        experiment = client.get_experiment_by_name(name)  # another process created it in the meantime
        assert experiment is not None, name
    if experiment.lifecycle_stage != "active":  # its name stays taken, so that another one cannot replace it
        raise ArtifactError(
            f"the experiment {name} was deleted, so nothing can be logged there; restore it with `mlflow experiments "
            f"restore --experiment-id {experiment.experiment_id}` and this store as MLFLOW_TRACKING_URI"
        )
    return experiment.experiment_id


@contextlib.contextmanager
def ignoring(error_code: str) -> Iterator[None]:
    """Suppress MLflow's error of one code."""
    from mlflow import MlflowException

    try:
        yield
    except MlflowException as error:
        if error.error_code != error_code:
            raise


def has_run(client: "MlflowClient", run_id: str) -> bool:
    """Return False if a run was deleted, or never was in this store."""
    with ignoring("RESOURCE_DOES_NOT_EXIST"):
        return bool(client.get_run(run_id).info.lifecycle_stage == "active")
    return False


def _delete_empty_default(client: "MlflowClient") -> None:
    """Delete the experiment "Default" of the home's own database while it is empty; MLflow can restore it.

    Once: one that was restored stays, since several experiments exist by then.
    """
    from mlflow import MlflowException
    from mlflow.entities import ViewType

    if tracking_uri() != f"sqlite:///{bert_home() / 'mlflow.db'}" or len(client.search_experiments()) > 2:
        return
    # Another process may delete it at the same time.
    with contextlib.suppress(MlflowException):
        default = client.get_experiment_by_name("Default")
        ids = [default.experiment_id] if default and default.lifecycle_stage == "active" else []
        if ids and not (
            client.search_runs(ids, run_view_type=ViewType.ALL, max_results=1)
            or client.search_logged_models(ids, max_results=1)
            or client.search_traces(locations=ids, max_results=1)
        ):
            client.delete_experiment(ids[0])


def dataset_input(item: DataInput) -> "DatasetInput":
    """Return a data set as MLflow's input of a run. The digest is the hash's beginning; the source has all of it."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    source = json.dumps({"kind": item["kind"], "sha256": item["sha256"]})
    profile = json.dumps({"num_rows": item["num_rows"]}) if item.get("num_rows") else None
    dataset = Dataset(item["name"], item["sha256"][:DIGEST_LENGTH], "artifact", source, profile=profile)
    return DatasetInput(dataset, [InputTag("mlflow.data.context", item["context"])])
