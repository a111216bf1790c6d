"""The home directory with its MLflow store, and the partitions, stages and jobs of the asset graph."""

import contextlib
import functools
import inspect
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import dagster as dg

from bert_model.training.home import bert_home, credentials_apart, sqlite_uri
from bert_model.training.mlflow_store import open_client
from bert_pipeline.errors import ArtifactError, BertError, InputError, UsageError, suggest
from bert_pipeline.manifest import MANIFEST_NAME
from bert_pipeline.step import STEPS
from bert_pipeline.storage import absolute, local_directory, store_errors, to_path
from bert_pipeline.tasks.catalogue import NAME_PATTERN, TASKS, Task, get_task
from workflows.lib.launchpad import configured, launchpad_defaults
from workflows.lib.processes import code_commit, mark_run, repeat_lost_interrupt, wait_for_left_over

# --- partitions ---

TASK_NAMES = tuple(TASKS)
"""Every task of the paper, in the order of its tables. Tasks of YAML files in BERT_TASKS follow them by name."""

DEFAULT_DUMP = "samplewiki-1"
"""The generated sample encyclopedia: the partition that needs no file and no network."""

PUBLISHED_DUMP = re.compile(r"([a-z][a-z0-9_]*)-(\d{8}|latest)")
"""Wiki and date of the dumps that the asset `dump` downloads, such as enwiki-20261101."""
SAMPLE_DUMP = re.compile(r"samplewiki-(\d{1,9})")
DUMP_NAME = re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

PARTITION_TAG = "dagster/partition"
"""The tag of a run that holds its partition."""

dump_partitions = dg.DynamicPartitionsDefinition(name="dump")
task_partitions = dg.DynamicPartitionsDefinition(name="task")
dump_task_partitions = dg.MultiPartitionsDefinition({"dump": dump_partitions, "task": task_partitions})


def checked_dump_name(name: str) -> str:
    """Return `name` if it can name a partition and a directory; UsageError otherwise."""
    if not DUMP_NAME.fullmatch(name):
        raise UsageError(
            f"dump {name!r}: expected letters, digits, dots, dashes and underscores, such as enwiki-20261101"
        )
    return name


def sample_seed(dump: str) -> int | None:
    """Return the seed of the generated sample that `dump` names; None for a real dump."""
    match = SAMPLE_DUMP.fullmatch(dump)
    return int(match[1]) if match else None


def dump_label(dump: str) -> str:
    """Return the name of a dump for titles, where a generated sample is marked as such."""
    return dump if sample_seed(dump) is None else f"{dump} (generated sample)"


def dump_task_key(dump: str, task: str) -> dg.MultiPartitionKey:
    """Return the partition key of one task on one dump."""
    return dg.MultiPartitionKey({"dump": dump, "task": task})


def dump_and_task(partition_key: str) -> tuple[str, str]:
    """Split a key of `dump_task_partitions` into dump and task."""
    dimensions = dump_task_partitions.get_partition_key_from_str(str(partition_key)).keys_by_dimension
    return dimensions["dump"], dimensions["task"]


def checked_tasks(names: Sequence[str], known: Sequence[str] = TASK_NAMES) -> tuple[str, ...]:
    """Return the task names in the order of the known ones; UsageError for an unknown one."""
    for name in names:
        if name not in known:
            raise UsageError(f"task {name!r} is not known{suggest(name, known)}")
    return tuple(name for name in known if name in names)


def checked_task_name(name: str) -> str:
    """Return `name` if it can name a task, and so a directory; UsageError otherwise."""
    if not NAME_PATTERN.fullmatch(name):
        raise UsageError(
            f"task {name!r} is not known: expected small letters and digits, with single underscores between"
        )
    return name


class OwnTasks(NamedTuple):
    """The tasks that the YAML files of a folder describe."""

    tasks: dict[str, Task]
    """Task name -> task."""
    problems: dict[str, str]
    """Name of a file that describes no task -> why."""


def read_own_tasks(folder: Path | None) -> OwnTasks:
    """Read the tasks of a folder's YAML files. A file that describes none does not keep the others from being read."""
    tasks: dict[str, Task] = {}
    problems: dict[str, str] = {}
    for path in sorted(folder.glob("*.y*ml")) if folder is not None else []:
        try:
            task = get_task(str(path))
            if task.name in TASK_NAMES or task.name in tasks:
                raise UsageError(f"{path}: the name {task.name!r} is taken by another task; give it one of its own")
            tasks[task.name] = task
        except BertError as error:
            problems[path.name] = str(error)
    return OwnTasks(tasks, problems)


# --- stages and jobs ---

STAGE_ASSETS = {
    "data": ("dump", "corpus", "vocabulary", "instances", "exam"),
    "pretraining": ("pretrained_model", "candidate_model"),
    "finetuning": ("task_data", "finetuned_model", "registered_model"),
    "report": ("report", "promotion_decision"),
}
"""The stages of `python -m workflows.run --stage`, and the assets of each."""
STAGES = tuple(STAGE_ASSETS)
DUMP_ASSETS = STAGE_ASSETS["data"] + STAGE_ASSETS["pretraining"]
"""From a dump to a registered pre-trained model: partitioned by dump."""
TASK_ASSETS = STAGE_ASSETS["finetuning"]
"""Partitioned by dump and task."""
ON_REQUEST = ("predictions",)
"""Built from the user's own files with the champion of a task; not part of any stage."""
ASSETS = (*DUMP_ASSETS, *TASK_ASSETS, *STAGE_ASSETS["report"], *ON_REQUEST)

CODE_LOCATION = "bert"
"""Name of the code location, in workspace.yaml too: the UI lists runs by it."""
JOB_TAG = "job"
JOBS = {
    "retrain": DUMP_ASSETS,
    "evaluate_tasks": TASK_ASSETS,
    "write_report": STAGE_ASSETS["report"],
    "predict": ON_REQUEST,
}
"""The jobs in the UI, and the assets that each materializes."""


def partitions_of(asset: str) -> dg.PartitionsDefinition[Any]:
    """Return the partitions of an asset."""
    if asset in ON_REQUEST:
        return task_partitions
    return dump_task_partitions if asset in TASK_ASSETS else dump_partitions


Made: TypeAlias = dg.MaterializeResult[None]


def step_asset(*, defaults: Mapping[str, Any] | None = None, **options: Any) -> Callable[..., dg.AssetsDefinition]:
    """Return `dg.asset` with what follows from the name of the asset, of its step, stage and job, and its signature.

    The launchpad has the parameters after context and home, with `defaults` in place of those of the preset. `options`
    are those of this asset alone; with `output_required=False` a function that returns None has materialized nothing.
    The UI selects by the tag of the job: `tag:job=retrain`. The link to MLflow has its address when Dagster loads the
    code, those of materializations the address of their run.
    """

    def declare(function: Callable[..., Made | None]) -> dg.AssetsDefinition:
        name = function.__name__
        stage = next((stage for stage, assets in STAGE_ASSETS.items() if name in assets), "finetuning")
        is_data = stage == "data" or name == "task_data"
        compute = configured(function, launchpad_defaults().get(name, {}) if defaults is None else defaults)

        @functools.wraps(compute)
        def made_or_not(*arguments: Any, **named: Any) -> Iterator[Made]:
            if made := compute(*arguments, **named):
                yield made

        asset: dg.AssetsDefinition = dg.asset(
            group_name=stage,
            owners=["team:data" if is_data else "team:modelling"],
            tags={JOB_TAG: next(job for job, assets in JOBS.items() if name in assets)},
            partitions_def=partitions_of(name),
            metadata=source_of(function) | ({} if is_data else {"mlflow": BertHome().mlflow_page("experiments")}),
            code_version=STEPS[name].code_version,
            **options,
        )(compute if options.get("output_required", True) else made_or_not)
        return asset

    return declare


def source_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the metadata by which the UI leads to the source of an asset."""
    file, line = inspect.getsourcefile(function), inspect.getsourcelines(function)[1]
    with warnings.catch_warnings(action="ignore", category=dg.BetaWarning):
        reference = dg.LocalFileCodeReference(file_path=str(file), line_number=line)
        return {"dagster/code_references": dg.CodeReferencesMetadataValue(code_references=[reference])}


def op_job(
    name: str, defaults: Mapping[str, Any] = MappingProxyType({})
) -> Callable[[Callable[..., None]], dg.JobDefinition]:
    """Return the decorator that makes a function a job of one op, with the launchpad of `configured`.

    Its docstring is the job's description in the UI. Such a job is short: it does not wait behind the queued trainings.
    """

    def declare(function: Callable[..., None]) -> dg.JobDefinition:
        graph = dg.GraphDefinition(name=name, node_defs=[dg.op(configured(function, defaults))])
        return graph.to_job(description=inspect.getdoc(function), tags={"dagster/priority": "10"})

    return declare


def asset_of_step(step: str) -> str:
    """Return the asset that a step materializes or checks; the step of a check is named asset_check."""
    return next((name for name in (*ASSETS, "champion") if step == name or step.startswith(f"{name}_")), step)


# --- the home ---

HOME_VARIABLE = "BERT_HOME"
DATA_VARIABLE = "BERT_DATA"
TRACKING_VARIABLE = "MLFLOW_TRACKING_URI"
TASKS_VARIABLE = "BERT_TASKS"
MLFLOW_ADDRESS_VARIABLE = "BERT_MLFLOW_ADDRESS"
DEFAULT_MLFLOW_ADDRESS = "http://127.0.0.1:5000"


class BertHome(dg.ConfigurableResource[Any]):
    """The directory that holds all state: data, models, runs and the registry. Assets exchange paths below it."""

    directory: str = ""
    """Empty: the environment variable BERT_HOME, or `.bert` in the working directory."""

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Mark the run with its process, by which a killed one is recognized, and wait for what such a one has left."""
        self.apply_environment()
        if context.run is not None and context.instance is not None:
            # The tags of the MLflow runs that this process, or one that it starts, creates from now on.
            tags = {
                "dump": context.run.tags.get(PARTITION_TAG, "").partition("|")[0],
                "preset": context.run.tags.get("bert/preset", ""),
                "dagster_run_id": context.run.run_id,
                "mlflow.source.name": context.run.job_name,
                "mlflow.source.type": "JOB",
                "mlflow.source.git.commit": code_commit(),
            }
            os.environ["MLFLOW_RUN_CONTEXT"] = json.dumps({key: value for key, value in tags.items() if value})
            mark_run(context.instance, context.run)
            sys.unraisablehook = repeat_lost_interrupt
            if context.log is not None:
                wait_for_left_over(self.path, context.log.info)

    @property
    def path(self) -> Path:
        """The directory, absolute."""
        return local_directory(self.directory, HOME_VARIABLE) if self.directory else bert_home()

    @property
    def tracking_uri(self) -> str:
        """MLFLOW_TRACKING_URI, without user and password; by default SQLite in the directory."""
        return credentials_apart(os.environ.get(TRACKING_VARIABLE) or sqlite_uri(self.path))

    @property
    def is_served(self) -> bool:
        """Whether an MLflow server holds runs and registry, instead of a database opened by this process."""
        return self.tracking_uri.startswith(("http:", "https:"))

    @property
    def mlflow_address(self) -> str:
        """Address of MLflow's UI: BERT_MLFLOW_ADDRESS, the tracking server, or the default of `make ui`."""
        server = self.tracking_uri if self.is_served else DEFAULT_MLFLOW_ADDRESS
        return (os.environ.get(MLFLOW_ADDRESS_VARIABLE) or server).rstrip("/")

    def mlflow_page(self, path: str) -> dg.MetadataValue[Any]:
        """Return the link to a page of MLflow's UI, such as "models", in the mode for trained models."""
        return dg.MetadataValue.url(f"{self.mlflow_address}/#/{path}?workflowType=machine_learning")

    def mlflow_run(self, run_id: str) -> dg.MetadataValue[Any]:
        """Return the link to a run. From a path without the experiment MLflow leads on to its mode for LLMs."""
        experiment = ""
        with contextlib.suppress(Exception):  # any error of a server, a database or a network
            experiment = f"experiments/{open_client(self.tracking_uri).get_run(run_id).info.experiment_id}/"
        return self.mlflow_page(f"{experiment}runs/{run_id}")

    def mlflow_version(self, name: str, version: int) -> dg.MetadataValue[Any]:
        """Return the link to a registered version."""
        return self.mlflow_page(f"models/{name}/versions/{version}")

    @property
    def artifacts(self) -> Path:
        """MLflow's artifact store, when no server has one."""
        return self.path / "artifacts"

    @property
    def tasks(self) -> Path | None:
        """BERT_TASKS: default folder of task files (glue/, squad/, swag/, conll2003/) and of own tasks' YAML files."""
        folder = os.environ.get(TASKS_VARIABLE)
        # Without its folder, such as one that is not mounted, every task would be skipped, and no run fail.
        if folder and not Path(folder).is_dir():
            raise InputError(f"{TASKS_VARIABLE}: {folder}: no such folder; correct the variable, or mount the folder")
        return Path(folder).resolve() if folder else None

    @property
    def task_names(self) -> tuple[str, ...]:
        """The tasks of the paper and those of BERT_TASKS."""
        return (*TASK_NAMES, *sorted(read_own_tasks(self.tasks).tasks))

    def task(self, name: str) -> Task:
        """Return a task of the paper or of BERT_TASKS; UsageError names the file that would describe it."""
        if name in TASK_NAMES:
            return get_task(name)
        own = read_own_tasks(self.tasks)
        if name not in own.tasks:
            where = f"in {self.tasks} describes it" if self.tasks else f"describes it, for {TASKS_VARIABLE} is not set"
            raise UsageError("; ".join([f"task {name!r}: no YAML file {where}", *own.problems.values()]))
        return own.tasks[name]

    def tasks_of(self, dump: str) -> tuple[str, ...]:
        """Return the tasks of the paper and, by name, all others that exist or have results on a dump."""
        folders = (folder for folder in self.task_data(dump, TASK_NAMES[0]).parent.glob("*") if folder.is_dir())
        others = {folder.name for folder in folders if NAME_PATTERN.fullmatch(folder.name)} | {*self.task_names}
        return (*TASK_NAMES, *sorted(others - {*TASK_NAMES}))

    @property
    def dumps(self) -> Path:
        """Folder that the sensor `new_dump_in_folder` watches."""
        return self.path / "dumps"

    def environment(self) -> dict[str, str]:
        """Return the variables by which other processes find the same home and tracking store."""
        return {HOME_VARIABLE: str(self.path), TRACKING_VARIABLE: self.tracking_uri}

    def apply_environment(self) -> None:
        """Point MLflow and the other packages in this process to this home."""
        self.path.mkdir(parents=True, exist_ok=True)
        os.environ.update(self.environment())

    def dump_directory(self, dump: str) -> Path:
        """Return the directory of all artifacts of one dump, but for those of `data_directory`."""
        return self.path / "data" / checked_dump_name(dump)

    def data_directory(self, dump: str) -> Path:
        """Return the directory of a dump's corpus, vocabulary and instances, in BERT_DATA, which may be in a store."""
        data = os.environ.get(DATA_VARIABLE)
        return to_path(absolute(data)) / checked_dump_name(dump) if data else self.dump_directory(dump)

    def dump(self, dump: str) -> Path:
        return self.dump_directory(dump) / "dump"

    def corpus(self, dump: str) -> Path:
        return self.data_directory(dump) / "corpus"

    def vocabulary(self, dump: str) -> Path:
        return self.data_directory(dump) / "vocabulary"

    def instances(self, dump: str, max_seq_length: int) -> Path:
        return self.data_directory(dump) / "instances" / str(max_seq_length)

    def all_instances(self, dump: str) -> list[Path]:
        """Return the directories of a dump's instances, by their length."""
        folder = self.data_directory(dump) / "instances"
        with store_errors(folder), contextlib.suppress(FileNotFoundError):  # of a store
            directories = [path.parent for path in folder.glob(f"*/{MANIFEST_NAME}")]
            return sorted(directories, key=lambda path: path.name.zfill(9))
        return []

    def exam(self, dump: str) -> Path:
        return self.dump_directory(dump) / "exam"

    def pretraining(self, dump: str, training_id: str) -> Path:
        return self.dump_directory(dump) / "pretraining" / training_id

    def pretraining_logs(self, dump: str, training_id: str) -> Path:
        return self.dump_directory(dump) / "pretraining-logs" / training_id

    def current_training(self, dump: str) -> Path:
        """Return the file that names the training last materialized as `pretrained_model`."""
        return self.dump_directory(dump) / "pretrained_model.json"

    def current_model(self, dump: str) -> Path:
        """Return the directory of a dump's pre-trained model; ArtifactError when there is none."""
        pointer = self.current_training(dump)
        try:
            training = json.loads(pointer.read_text(encoding="utf-8"))["training"]
        except (OSError, ValueError, KeyError):
            message = f"{pointer}: no pre-trained model of {dump} yet; materialize pretrained_model"
            raise ArtifactError(message) from None
        return self.pretraining(dump, training) / "model"

    def task_data(self, dump: str, task: str) -> Path:
        return self.dump_directory(dump) / "task_data" / checked_task_name(task)

    def finetuning(self, dump: str, task: str) -> Path:
        return self.dump_directory(dump) / "finetuning" / checked_task_name(task)

    def run_log(self, dump: str) -> Path:
        """Return the file that `workflows.run` writes every message to."""
        return self.path / "logs" / f"{checked_dump_name(dump)}.log"

    def archive_record(self, dump: str) -> Path:
        """Return the file that the job `archive_partitions` writes: where the files of a dump are."""
        return self.path / "archive" / f"{checked_dump_name(dump)}.json"

    def report(self, dump: str) -> Path:
        return self.dump_directory(dump) / "report"

    def prediction_inputs(self, task: str) -> Path:
        """Return the folder of the default inputs of `predictions`."""
        return self.path / "inputs" / checked_task_name(task)

    def predictions(self, task: str) -> Path:
        return self.path / "predictions" / checked_task_name(task)
