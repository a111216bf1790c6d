"""Jobs, the monthly retraining, and the sensors that notice new dumps: real, and off until switched on in the UI."""

import datetime
import os
import re
from typing import Any

import dagster as dg

from workflows.configuration import asset_configs, launchpad_preset
from workflows.partitions import dump_partitions
from workflows.phases import DUMP_ASSETS, TASK_ASSETS
from workflows.resources import BertHome

PRETRAINING_JOB = "retrain"
FINETUNING_JOB = "evaluate_tasks"
REPORT_JOB = "write_report"
RETRAINING_SCHEDULE = "monthly_retraining"
NEW_DUMP_SENSOR = "new_dump_in_folder"
AUTOMATION_SENSOR = "tasks_after_pretraining"

WIKI_VARIABLE = "BERT_WIKI"
DEFAULT_WIKI = "simplewiki"
DUMP_FILE = re.compile(r"(?P<wiki>[a-z][a-z_]*)-(?P<date>\d{8}|latest)-pages-articles.*\.xml(-p\d+p\d+)?(\.bz2|\.gz)?")

retrain = dg.define_asset_job(
    PRETRAINING_JOB,
    selection=dg.AssetSelection.assets(*DUMP_ASSETS),
    description="From a dump to a registered pre-trained model.",
    tags={"dagster/max_runtime": str(14 * 24 * 3600)},
)
evaluate_tasks = dg.define_asset_job(
    FINETUNING_JOB,
    selection=dg.AssetSelection.assets(*TASK_ASSETS),
    description="Fine-tune one task on one dump's model, register it, and promote it if the gates let it pass.",
    tags={"dagster/max_runtime": str(2 * 24 * 3600)},
)
write_report = dg.define_asset_job(
    REPORT_JOB,
    selection=dg.AssetSelection.assets("report"),
    description="Write the table and the pictures of one dump's results.",
)


def retraining_run(dump: str, sources: list[str] | None = None) -> dg.RunRequest:
    """The run that takes a new dump from its files (or the dump site) to a registered model, once for each dump."""
    configs = asset_configs(launchpad_preset(), sources=sources or [])
    return dg.RunRequest(
        run_key=f"retrain:{dump}",
        partition_key=dump,
        run_config={"ops": {name: {"config": configs[name]} for name in DUMP_ASSETS if name in configs}},
        tags={"bert/preset": launchpad_preset().name},
    )


@dg.schedule(
    name=RETRAINING_SCHEDULE,
    cron_schedule="0 3 5 * *",
    execution_timezone="UTC",
    job=retrain,
    default_status=dg.DefaultScheduleStatus.STOPPED,
    description="On the fifth of each month: the dump of the first of that month (of the wiki in BERT_WIKI) "
    "becomes a partition and is trained on.",
)
def monthly_retraining(context: dg.ScheduleEvaluationContext) -> Any:
    wiki = os.environ.get(WIKI_VARIABLE) or DEFAULT_WIKI
    name = f"{wiki}-{context.scheduled_execution_time:%Y%m}01"
    _add_partition(context.instance, name)
    yield retraining_run(name)


@dg.sensor(
    name=NEW_DUMP_SENSOR,
    job=retrain,
    minimum_interval_seconds=60,
    default_status=dg.DefaultSensorStatus.STOPPED,
    description="Watches the folder `dumps` of BERT_HOME: each file named as Wikimedia names its dumps "
    "(enwiki-20261101-pages-articles.xml.bz2) becomes a partition and is trained on.",
)
def new_dump_in_folder(context: dg.SensorEvaluationContext, home: BertHome) -> dg.SensorResult | dg.SkipReason:
    folder = home.dumps
    found: dict[str, list[str]] = {}
    settled = datetime.datetime.now().timestamp() - 30
    waiting = 0
    for path in sorted(folder.glob("*")) if folder.is_dir() else []:
        match = DUMP_FILE.fullmatch(path.name)
        if match is None:
            continue
        if path.stat().st_mtime > settled:  # still being copied, perhaps
            waiting += 1
            continue
        found.setdefault(f"{match['wiki']}-{match['date']}", []).append(str(path))
    known = set(context.instance.get_dynamic_partitions(str(dump_partitions.name)))
    new = {name: files for name, files in found.items() if name not in known}
    if not new:
        note = f"; {waiting} file(s) changed within the last 30 seconds" if waiting else ""
        return dg.SkipReason(f"no new dump in {folder}{note}")
    return dg.SensorResult(
        run_requests=[retraining_run(name, files) for name, files in new.items()],
        dynamic_partitions_requests=[dump_partitions.build_add_request(list(new))],
    )


tasks_after_pretraining = dg.AutomationConditionSensorDefinition(
    name=AUTOMATION_SENSOR,
    target=dg.AssetSelection.assets(*TASK_ASSETS, "report"),
    default_status=dg.DefaultSensorStatus.STOPPED,
    description="A new pre-trained model leads to its fine-tunings, their registration, and the report.",
)


def _add_partition(instance: dg.DagsterInstance, name: str) -> None:
    if not instance.has_dynamic_partition(str(dump_partitions.name), name):
        instance.add_dynamic_partitions(str(dump_partitions.name), [name])
