"""The home directory, the MLflow resource, and the partitions and stages of the graph."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import dagster as dg

from bert_model.training.metrics_log import credentials_apart
from bert_pipeline.errors import UsageError

TASK_NAMES = (
    "cola",
    "sst2",
    "mrpc",
    "stsb",
    "qqp",
    "mnli",
    "qnli",
    "rte",
    "wnli",
    "squad1",
    "squad2",
    "swag",
    "ner",
    "ner_features",
)
"""Every task of the paper, in the order of its tables."""

DEFAULT_DUMP = "samplewiki-1"
"""The generated sample encyclopaedia: the partition that needs no file and no network."""

SAMPLE_DUMP = re.compile(r"samplewiki-(\d{1,9})")
_DUMP_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

dump_partitions = dg.DynamicPartitionsDefinition(name="dump")
task_partitions = dg.StaticPartitionsDefinition(list(TASK_NAMES))
dump_task_partitions = dg.MultiPartitionsDefinition({"dump": dump_partitions, "task": task_partitions})


def checked_dump_name(name: str) -> str:
    """Return `name` if it can name a partition and a directory; UsageError otherwise."""
    if not _DUMP_NAME.fullmatch(name) or ".." in name:
        raise UsageError(
            f"dump {name!r}: expected letters, digits, dots, dashes and underscores, such as enwiki-20261101"
        )
    return name


def sample_seed(dump: str) -> int | None:
    """The seed of the generated sample that `dump` names; None for a real dump."""
    match = SAMPLE_DUMP.fullmatch(dump)
    return int(match[1]) if match else None


def dump_task_key(dump: str, task: str) -> dg.MultiPartitionKey:
    """The partition of one task over one dump."""
    return dg.MultiPartitionKey({"dump": dump, "task": task})


def dump_and_task(partition_key: str) -> tuple[str, str]:
    """Take a partition of `dump_task_partitions` apart."""
    dimensions = dump_task_partitions.get_partition_key_from_str(str(partition_key)).keys_by_dimension
    return dimensions["dump"], dimensions["task"]


def checked_tasks(names: Sequence[str]) -> tuple[str, ...]:
    """Return the task names in the tables' order; UsageError for an unknown one."""
    from bert_pipeline.errors import suggest

    for name in names:
        if name not in TASK_NAMES:
            raise UsageError(f"task {name!r} is not known{suggest(name, TASK_NAMES)}")
    return tuple(name for name in TASK_NAMES if name in names)


PHASES = ("data", "pretraining", "finetuning", "report")
PHASE_ASSETS = {
    "data": ("dump", "corpus", "vocabulary", "instances"),
    "pretraining": ("pretrained_model", "registered_pretrained_model"),
    "finetuning": ("task_data", "finetuned_model", "registered_task_model"),
    "report": ("report", "promotion_decision"),
}
DUMP_ASSETS = PHASE_ASSETS["data"] + PHASE_ASSETS["pretraining"]
"""From a dump to a registered pre-trained model: all on the partition `dump`."""
TASK_ASSETS = PHASE_ASSETS["finetuning"]
"""On the partitions `dump` × `task`."""
ON_REQUEST = ("predictions",)
"""Made from files of the user's own, for a task, with whichever version is champion: no phase of a run."""
ASSETS = (*DUMP_ASSETS, *TASK_ASSETS, *PHASE_ASSETS["report"], *ON_REQUEST)

JOB_TAG = "job"
JOBS = {
    "retrain": DUMP_ASSETS,
    "evaluate_tasks": TASK_ASSETS,
    "write_report": PHASE_ASSETS["report"],
    "predict": ON_REQUEST,
}
"""The jobs in the UI, and the assets that each makes."""


def job_tags(asset: str) -> dict[str, str]:
    """The tag of an asset that names its job, to select by in the UI: `tag:job=retrain`."""
    return {JOB_TAG: next(job for job, assets in JOBS.items() if asset in assets)}


def asset_of_step(step: str) -> str:
    """The asset that a step makes or checks: a check's step is called asset_check."""
    return next((name for name in ASSETS if step == name or step.startswith(f"{name}_")), step)


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
