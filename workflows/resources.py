"""Where everything lives: one directory for data, Dagster's storage, MLflow's database and its artefacts."""

import os
from collections.abc import Mapping
from pathlib import Path

import dagster as dg

from bert_model.training.metrics_log import credentials_apart
from bert_pipeline.errors import UsageError
from workflows.partitions import TASK_NAMES, checked_dump_name

HOME_VARIABLE = "BERT_HOME"
TRACKING_VARIABLE = "MLFLOW_TRACKING_URI"
TASKS_VARIABLE = "BERT_TASKS"
MLFLOW_ADDRESS_VARIABLE = "BERT_MLFLOW_ADDRESS"
DEFAULT_MLFLOW_ADDRESS = "http://127.0.0.1:5000"
DEFAULT_HOME = ".bert"
EXPERIMENT = "reports"


def default_home() -> Path:
    """BERT_HOME, or `.bert` in the working directory."""
    return Path(os.environ.get(HOME_VARIABLE) or DEFAULT_HOME).resolve()


class BertHome(dg.ConfigurableResource):
    """The directory that holds all state. Assets exchange paths below it and the manifests found there."""

    directory: str = ""
    """Empty: the environment variable BERT_HOME, or `.bert` in the working directory."""
    mlflow_tracking_uri: str = ""
    """Empty: the environment variable MLFLOW_TRACKING_URI, or SQLite in the directory."""

    @property
    def path(self) -> Path:
        """The directory, absolute."""
        return Path(self.directory).resolve() if self.directory else default_home()

    @property
    def tracking_uri(self) -> str:
        """Where MLflow keeps runs and the registry; a server's address without user and password."""
        given = self.mlflow_tracking_uri or os.environ.get(TRACKING_VARIABLE)
        return credentials_apart(given) if given else f"sqlite:///{self.path / 'mlflow.db'}"

    @property
    def is_served(self) -> bool:
        """Whether runs and registry are a server's, and not a database that is opened here."""
        return self.tracking_uri.startswith(("http:", "https:"))

    @property
    def mlflow_address(self) -> str:
        """Where people open MLflow: BERT_MLFLOW_ADDRESS, the tracking server, or where `make ui` puts it."""
        server = self.tracking_uri if self.is_served else DEFAULT_MLFLOW_ADDRESS
        return (os.environ.get(MLFLOW_ADDRESS_VARIABLE) or server).rstrip("/")

    def run_page(self, run_id: str) -> str:
        """The page of a run in MLflow's UI."""
        return f"{self.mlflow_address}/#/runs/{run_id}"

    def version_page(self, name: str, version: int) -> str:
        """The page of a registered version in MLflow's UI."""
        return f"{self.mlflow_address}/#/models/{name}/versions/{version}"

    @property
    def artifacts(self) -> Path:
        """Where MLflow keeps artefacts when it has no server that does."""
        return self.path / "artifacts"

    @property
    def tasks(self) -> Path | None:
        """The folder with the task files (glue/, squad/, swag/, ner/) where none is given: BERT_TASKS."""
        given = os.environ.get(TASKS_VARIABLE)
        return Path(given).resolve() if given else None

    @property
    def dumps(self) -> Path:
        """The folder that is watched for new dumps."""
        return self.path / "dumps"

    def environment(self) -> dict[str, str]:
        """Variables that training processes need to find the same home and tracking store."""
        return {HOME_VARIABLE: str(self.path), TRACKING_VARIABLE: self.tracking_uri}

    def apply_environment(self) -> None:
        """Point this process's own MLflow and lower floors at this home."""
        self.path.mkdir(parents=True, exist_ok=True)
        os.environ.update(self.environment())

    def of_dump(self, dump: str) -> Path:
        """All data of one dump."""
        return self.path / "data" / checked_dump_name(dump)

    def dump(self, dump: str) -> Path:
        return self.of_dump(dump) / "dump"

    def corpus(self, dump: str) -> Path:
        return self.of_dump(dump) / "corpus"

    def vocabulary(self, dump: str) -> Path:
        return self.of_dump(dump) / "vocabulary"

    def instances(self, dump: str, max_seq_length: int) -> Path:
        return self.of_dump(dump) / "instances" / str(max_seq_length)

    def pretraining(self, dump: str, training_id: str) -> Path:
        return self.of_dump(dump) / "pretraining" / training_id

    def pretraining_logs(self, dump: str, training_id: str) -> Path:
        return self.of_dump(dump) / "pretraining-logs" / training_id

    def current_training(self, dump: str) -> Path:
        """Names the training that `pretrained_model` was last materialized from."""
        return self.of_dump(dump) / "pretrained_model.json"

    def task_data(self, dump: str, task: str) -> Path:
        return self.of_dump(dump) / "task_data" / _checked_task(task)

    def finetuning(self, dump: str, task: str) -> Path:
        return self.of_dump(dump) / "finetuning" / _checked_task(task)

    def run_log(self, dump: str) -> Path:
        """The file that `workflows.run` writes every message to."""
        return self.path / "logs" / f"{checked_dump_name(dump)}.log"

    def report(self, dump: str) -> Path:
        return self.of_dump(dump) / "report"

    def prediction_inputs(self, task: str) -> Path:
        """The folder whose files `predictions` answers where none are named."""
        return self.path / "inputs" / _checked_task(task)

    def predictions(self, task: str) -> Path:
        return self.path / "predictions" / _checked_task(task)

    def log_report(
        self, *, run_name: str, tags: Mapping[str, str], metrics: Mapping[str, float], directory: Path
    ) -> str:
        """Log a report directory as an MLflow run of its own; returns the run's id."""
        from bert_model.training.mlflow_sync import experiment_id, open_client

        self.apply_environment()
        client = open_client(self.tracking_uri)
        run = client.create_run(experiment_id(client, EXPERIMENT), run_name=run_name, tags=dict(tags))
        run_id: str = run.info.run_id
        for key, value in metrics.items():
            client.log_metric(run_id, key, value)
        client.log_artifacts(run_id, str(directory))
        client.set_terminated(run_id)
        return run_id


def _checked_task(task: str) -> str:
    if task not in TASK_NAMES:
        raise UsageError(f"task {task!r} is not known (known: {', '.join(TASK_NAMES)})")
    return task
