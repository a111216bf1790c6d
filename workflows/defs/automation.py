"""When assets are materialized without being asked: conditions, jobs, schedule, sensors.

Schedule and sensors are off until switched on in the UI, except the one that ends abandoned runs. The environment
configures retraining: which wiki, from which sites, from which weights.
"""

import datetime
import http.client
import json
import os
import re
import stat
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import dagster as dg
from dagster import AutomationCondition

from bert_model.training.metrics_log import without_password
from bert_pipeline.download import newest_finished_dump, why_unfinished
from bert_pipeline.errors import ConfigurationError, InputError, UsageError
from workflows.defs.data import dump_sites, wiki_name
from workflows.lib.console import failure_sentence
from workflows.lib.instance import end_abandoned_runs
from workflows.lib.launchpad import asset_configs, launchpad_preset
from workflows.lib.lineage import name_of_preset
from workflows.lib.resources import (
    DUMP_ASSETS,
    JOBS,
    PARTITION_TAG,
    BertHome,
    checked_dump_name,
    dump_partitions,
    read_own_tasks,
    task_partitions,
)

# --- conditions and freshness ---

AFTER_INPUTS = AutomationCondition.eager()
"""As soon as every input exists and one of them is new."""

AFTER_CANDIDATE = AFTER_INPUTS.replace(
    "any_deps_updated", AutomationCondition.any_deps_updated().ignore(dg.AssetSelection.assets("pretrained_model"))
)
"""AFTER_INPUTS, but a pre-trained model counts once it is registered: until then its blocking checks may refuse it."""

MONTHLY = dg.FreshnessPolicy.time_window(
    fail_window=datetime.timedelta(days=45), warn_window=datetime.timedelta(days=35)
)
"""Dumps appear each month: without a newer model after 45 days, retraining has stopped."""


def after_last_of(*assets: str) -> AutomationCondition[Any]:
    """Return the condition "once after a round of new partitions of `assets`": one is new, no input is in progress.

    Inputs may lack partitions (tasks without files), for which `eager` would wait forever.
    """
    new = AutomationCondition.any_deps_match(AutomationCondition.newly_updated()).allow(
        dg.AssetSelection.assets(*assets)
    )
    busy = AutomationCondition.any_deps_match(
        AutomationCondition.in_progress() | AutomationCondition.will_be_requested()
    )
    condition = new.since_last_handled() & ~busy & ~AutomationCondition.in_progress()
    return condition.with_label(f"after the last new {' or '.join(assets)}")


# --- jobs ---

PRETRAINING_JOB, FINETUNING_JOB, REPORT_JOB, PREDICTION_JOB = JOBS
MAX_RUNTIME_TAG = "dagster/max_runtime"
MAX_RETRIES_TAG = "dagster/max_retries"
RETRY_TAG = "dagster/will_retry"
"""Tag that Dagster gives a failed run."""
SECONDS_PER_HOUR = 3600
MAX_QUEUED_SECONDS = 14 * 24 * SECONDS_PER_HOUR
"""Limit of runs that wait for the training pool: Dagster counts the wait, which may be a whole pre-training."""


def define_job(name: str, description: str, *, max_seconds: int, retries: bool = True) -> Any:
    """Return the job over the assets of JOBS; with `retries`, a run whose process died is started again twice."""
    return dg.define_asset_job(
        name,
        selection=dg.AssetSelection.assets(*JOBS[name]),
        description=description,
        tags={MAX_RUNTIME_TAG: str(max_seconds), **({MAX_RETRIES_TAG: "2"} if retries else {})},
    )


retrain = define_job(PRETRAINING_JOB, "From a dump to a registered pre-trained model.", max_seconds=MAX_QUEUED_SECONDS)
evaluate_tasks = define_job(
    FINETUNING_JOB,
    "Fine-tune one task on one dump's model, register it, and promote it if the gates let it pass.",
    max_seconds=MAX_QUEUED_SECONDS,
)
write_report = define_job(
    REPORT_JOB,
    "Write one dump's results and decide whether its pre-trained model becomes champion.",
    max_seconds=2 * SECONDS_PER_HOUR,
    retries=False,
)
predict = define_job(
    PREDICTION_JOB,
    "The champion's answers to the files in BERT_HOME/inputs/<task>, or to those named in the launchpad.",
    max_seconds=48 * SECONDS_PER_HOUR,
)

# --- retraining ---

CRON_VARIABLE = "BERT_RETRAIN_CRON"
DEFAULT_CRON = "0 3 5-28 * *"
"""Daily from the fifth, in UTC. A dump that is finished after the 28th is found in the next month."""
START_VARIABLE = "BERT_RETRAIN_FROM"
STARTS = ("scratch", "champion")

DUMP_FILE = re.compile(
    r"(?P<wiki>[a-z][a-z0-9_]*)-(?P<date>\d{8}|latest)-pages-articles(?P<multistream>-multistream)?(?P<number>\d*)"
    r"\.xml(-p(?P<first>\d+)p(?P<last>\d+))?(\.bz2|\.gz)?"
)
SETTLING_SECONDS = 30.0
"""A file that was modified more recently may still be being copied."""
PARTS_SETTLING_SECONDS = 600.0
"""The same for a dump in parts, whose last part cannot be told by its name: another one may follow."""
MAX_ATTEMPTS = 3
RETRY_SECONDS = 6 * SECONDS_PER_HOUR
"""From the end of a failed retraining to the next attempt."""


def retraining_cron() -> str:
    """Return when the schedule looks for a dump: BERT_RETRAIN_CRON; ConfigurationError if it is no cron expression."""
    expression = os.environ.get(CRON_VARIABLE) or DEFAULT_CRON
    try:
        dg.ScheduleDefinition(cron_schedule=expression, job=retrain)
    except dg.DagsterInvalidDefinitionError:
        raise ConfigurationError(
            f"{CRON_VARIABLE}: found {expression!r}, expected a cron expression such as {DEFAULT_CRON!r}"
        ) from None
    return expression


def starting_model(home: BertHome) -> str:
    """Return the model that a retraining continues from, pinned to its version; "" for random weights.

    BERT_RETRAIN_FROM is "champion" or, by default, "scratch". The first training of a preset has no champion and starts
    from scratch.
    """
    start = os.environ.get(START_VARIABLE) or STARTS[0]
    if start not in STARTS:
        raise ConfigurationError(f"{START_VARIABLE}: found {start!r}, expected {' or '.join(STARTS)}")
    if start == "scratch":
        return ""
    from bert_model.registry.operations import champions

    # By version: the alias may move before the run starts.
    home.apply_environment()
    name = name_of_preset(launchpad_preset())
    version = champions().get(name)
    return f"models:/{name}/{version}" if version else ""


def retraining_run(dump: str, sources: list[str] | None = None, *, start: str = "", failed: int = 0) -> dg.RunRequest:
    """Return the request for one run from a new dump (its files, or the dump site) to a registered model.

    With `start` the run keeps that model's vocabulary and continues from its weights. `failed` counts earlier attempts.
    """
    configs = asset_configs(launchpad_preset(), sources=sources or [])
    if start:
        configs["vocabulary"] |= {"from_model": start}
        configs["pretrained_model"] |= {"initial_model": start}

    # A sensor starts one run for a key, so each attempt has its own. A schedule starts one for a key and a tick: there
    # only why_not_requested keeps a dump from being trained on twice.
    return dg.RunRequest(
        run_key=f"retrain:{dump}:{failed + 1}" if failed else f"retrain:{dump}",
        partition_key=dump,
        run_config={"ops": {name: {"config": configs[name]} for name in DUMP_ASSETS if name in configs}},
        tags={"bert/preset": launchpad_preset().name, "bert/start": start or "scratch"},
    )


def retraining_records(instance: dg.DagsterInstance, dump: str) -> list[dg.RunRecord]:
    """Return the runs of a dump that lead to a registered model, however started; the newest first.

    A run that repeats another one, as Dagster starts after a killed process, is listed too.
    """
    goal = dg.AssetKey(DUMP_ASSETS[-1])
    return [
        record
        for record in instance.get_run_records(dg.RunsFilter(tags={PARTITION_TAG: dump}))
        if goal in (record.dagster_run.asset_selection or ())
        or (record.dagster_run.asset_selection is None and record.dagster_run.job_name == PRETRAINING_JOB)
    ]


def failed_attempts(instance: dg.DagsterInstance, dump: str) -> int:
    """Return how many retrainings of a dump ended without success; runs that repeat one do not count again."""
    runs = [record.dagster_run for record in retraining_records(instance, dump)]
    return len({run.root_run_id or run.run_id for run in runs if run.is_finished and not run.is_success})


def why_not_requested(instance: dg.DagsterInstance, home: BertHome, dump: str) -> str:
    """Return why the training of a dump needs no request: archived, trained, underway, or failed for now; else "".

    A partition alone does not count: the daemon may have ended between adding it and starting its run.
    """
    if (archive := home.archive_record(dump)).is_file():
        return f"was archived ({archive})"
    if not instance.has_dynamic_partition(str(dump_partitions.name), dump):
        return ""
    records = retraining_records(instance, dump)
    for run in (record.dagster_run for record in records):
        if run.is_success or not run.is_finished:
            return f"has a run already ({run.run_id}, {run.status.value.lower()})"
    if not records:
        return ""
    last, attempts = records[0].dagster_run, failed_attempts(instance, dump)
    ended = f"its run {last.run_id} {'was canceled' if last.status is dg.DagsterRunStatus.CANCELED else 'failed'}"
    if attempts >= MAX_ATTEMPTS:
        return f"was tried {attempts} times, {ended}: start `{PRETRAINING_JOB}` by hand once its cause is removed"
    if time.time() < (records[0].end_time or 0.0) + RETRY_SECONDS:
        return f"is tried again after {RETRY_SECONDS // SECONDS_PER_HOUR} hours: {ended}"
    return ""


def request_runs(instance: dg.DagsterInstance, home: BertHome, dumps: dict[str, list[str]]) -> dg.SensorResult:
    """Add each dump (name -> files) as a partition and request its training."""
    start = starting_model(home)
    return dg.SensorResult(
        run_requests=[
            retraining_run(name, files, start=start, failed=failed_attempts(instance, name))
            for name, files in dumps.items()
        ],
        dynamic_partitions_requests=[dump_partitions.build_add_request(list(dumps))],
    )


@dg.schedule(
    cron_schedule=retraining_cron(),
    execution_timezone="UTC",
    job=retrain,
    default_status=dg.DefaultScheduleStatus.STOPPED,
    description="Once a month: looks each day from the fifth on (or when BERT_RETRAIN_CRON says) whether the dump of "
    "the first of that month (of the wiki in BERT_WIKI) is finished, or else last month's, if that was not trained on; "
    "then it becomes a partition and is trained on.",
)
def monthly_retraining(context: dg.ScheduleEvaluationContext, home: BertHome) -> dg.RunRequest | dg.SkipReason:
    wiki, month = wiki_name(), context.scheduled_execution_time.replace(day=1)
    reasons = []
    # A dump may be finished, or its training fail, after the last tick of its month.
    for first in (month, (month - datetime.timedelta(days=1)).replace(day=1)):
        date = f"{first:%Y%m%d}"
        name = f"{wiki}-{date}"
        refusal = why_not_requested(context.instance, home, name)
        reason = f"{name} {refusal}" if refusal else why_unfinished(wiki, date, sites=dump_sites())
        if not reason:
            request = retraining_run(name, start=starting_model(home), failed=failed_attempts(context.instance, name))
            context.instance.add_dynamic_partitions(str(dump_partitions.name), [name])
            return request
        reasons.append(reason)
        if refusal:
            break
    return dg.SkipReason("; ".join(reasons))


@dg.sensor(
    job=retrain,
    minimum_interval_seconds=6 * SECONDS_PER_HOUR,
    default_status=dg.DefaultSensorStatus.STOPPED,
    description="Asks the dump site every six hours for the newest finished dump of the wiki in BERT_WIKI: one that is "
    "no partition yet becomes one and is trained on.",
)
def new_dump_on_site(context: dg.SensorEvaluationContext, home: BertHome) -> dg.SensorResult | dg.SkipReason:
    try:
        date = newest_finished_dump(wiki_name(), sites=dump_sites())
    except InputError as error:
        return dg.SkipReason(str(error))
    name = f"{wiki_name()}-{date}"
    if refusal := why_not_requested(context.instance, home, name):
        return dg.SkipReason(f"{name}, the newest finished dump, {refusal}")
    return request_runs(context.instance, home, {name: []})


class DumpPart(NamedTuple):
    """What the name of a file tells about its part of a dump; zeros for what it does not."""

    number: int
    first: int
    last: int
    """Ids of the first and the last page."""


def why_incomplete(parts: Sequence[DumpPart]) -> str:
    """Return which part the files of one edition of a dump lack, as far as names show it; "" for none."""
    if not any(parts[0]):
        return ""
    if len(parts) == 1:
        return "found a single part"
    if all(part.last for part in parts):
        page = 1
        for part in sorted(parts, key=lambda part: part.first):
            if part.first != page:
                return f"found a part from page {part.first}, expected one from page {page} before it"
            page = part.last + 1
        return ""
    missing = {*range(1, max(part.number for part in parts) + 1)} - {part.number for part in parts}
    return f"part {min(missing)} is missing" if missing else ""


@dg.sensor(
    job=retrain,
    minimum_interval_seconds=60,
    default_status=dg.DefaultSensorStatus.STOPPED,
    description="Watches the folder `dumps` of BERT_HOME: a file named as Wikimedia names its dumps "
    "(enwiki-20261101-pages-articles.xml.bz2), or all parts of one, become a partition and are trained on.",
)
def new_dump_in_folder(context: dg.SensorEvaluationContext, home: BertHome) -> dg.SensorResult | dg.SkipReason:
    folder = home.dumps
    # Each edition of a dump has all pages: one file or many, as one stream or as several.
    editions_of: dict[str, dict[tuple[bool, bool], dict[DumpPart, Path]]] = {}
    ages: dict[str, float] = {}
    for path in sorted(folder.glob("*")) if folder.is_dir() else []:
        match = DUMP_FILE.fullmatch(path.name)
        if match is None:
            continue
        try:
            name = checked_dump_name(f"{match['wiki']}-{match['date']}")
            status = path.stat()
        except (UsageError, OSError) as error:  # a link to nothing, or a file that was just renamed
            context.log.warning(f"{path}: {error}")
            continue
        if not stat.S_ISREG(status.st_mode):
            continue
        part = DumpPart(*(int(match[group] or 0) for group in ("number", "first", "last")))
        edition = (any(part), bool(match["multistream"]))
        # The compressed file, which comes later in the order, has a checksum that its unpacked copy lacks.
        editions_of.setdefault(name, {}).setdefault(edition, {})[part] = path
        # Absolute: the clock of a file server may be ahead, by seconds as well as by hours.
        ages[name] = min(ages.get(name, PARTS_SETTLING_SECONDS), abs(time.time() - status.st_mtime))

    new: dict[str, list[str]] = {}
    notes = []
    for name, editions in editions_of.items():
        if refusal := why_not_requested(context.instance, home, name):
            # Dumps that were trained on stay in the folder; a tick names those that need somebody.
            if refusal.startswith(("was tried", "is tried")):
                notes.append(f"{name} {refusal}")
            elif name.endswith("-latest"):
                notes.append(f"{name} {refusal}: a newer dump needs its date in the names of its files")
            continue
        gaps = {edition: why_incomplete(list(parts)) for edition, parts in editions.items()}
        edition = min(editions, key=lambda edition: (bool(gaps[edition]), edition))
        # One file that is still being copied holds back the whole dump.
        settling = PARTS_SETTLING_SECONDS if edition[0] else SETTLING_SECONDS
        if ages[name] < settling:
            notes.append(f"files of {name} changed within the last {settling:.0f} seconds")
        elif gaps[edition]:
            notes.append(f"{name} is not complete: {gaps[edition]}")
        else:
            new[name] = [str(path) for _, path in sorted(editions[edition].items())]
    if not new:
        return dg.SkipReason("; ".join([f"no new dump in {folder}", *notes]))
    return request_runs(context.instance, home, new)


@dg.sensor(
    minimum_interval_seconds=60,
    default_status=dg.DefaultSensorStatus.STOPPED,
    description="Watches BERT_TASKS: a YAML file that describes a task makes it a partition, which "
    "`tasks_after_pretraining` then fine-tunes on every dump that has a pre-trained model.",
)
def new_task_in_folder(context: dg.SensorEvaluationContext, home: BertHome) -> dg.SensorResult | dg.SkipReason:
    partitions = context.instance.get_dynamic_partitions(str(task_partitions.name))
    new = [task for task in home.task_names if task not in partitions]
    if not new:
        problems = "".join(f"; {problem}" for problem in read_own_tasks(home.tasks).problems.values())
        return dg.SkipReason(f"no new task in {home.tasks or 'BERT_TASKS, which is not set'}{problems}")
    return dg.SensorResult(dynamic_partitions_requests=[task_partitions.build_add_request(new)])


tasks_after_pretraining = dg.AutomationConditionSensorDefinition(
    name="tasks_after_pretraining",
    target=dg.AssetSelection.assets(*JOBS[FINETUNING_JOB], *JOBS[REPORT_JOB]),
    default_status=dg.DefaultSensorStatus.STOPPED,
    run_tags={MAX_RUNTIME_TAG: str(MAX_QUEUED_SECONDS), MAX_RETRIES_TAG: "2"},
    description="A new pre-trained model leads to its fine-tunings, their registration, the report, and the decision "
    "on its promotion.",
)


# --- failed and abandoned runs ---


@dg.sensor(
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Marks runs whose process was killed as failed, which frees their place in the queue and in the pools. "
    "It is always on.",
)
def abandoned_runs(context: dg.SensorEvaluationContext) -> dg.SkipReason:
    ended = end_abandoned_runs(context.instance)
    for run_id in ended:
        context.log.warning(f"run {run_id} had lost its process: marked as failed")
    return dg.SkipReason(f"{len(ended)} runs had lost their process")


WEBHOOK_VARIABLE = "BERT_FAILURE_WEBHOOK"
"""An address that takes a POST of {"text": …}, as chat services do. It is a secret and never logged."""
TIMEOUT_SECONDS = 10.0
MAX_CHARACTERS = 2000


@dg.run_failure_sensor(
    default_status=dg.DefaultSensorStatus.STOPPED,
    description="Logs each failed run with its cause, and posts the same sentence to the webhook in "
    "BERT_FAILURE_WEBHOOK.",
)
def failed_runs(context: dg.RunFailureSensorContext) -> None:
    message = failure_message(context)
    context.log.error(message)
    if (webhook := os.environ.get(WEBHOOK_VARIABLE)) and (problem := post(webhook, message)):
        context.log.warning(f"the webhook in {WEBHOOK_VARIABLE} was not reached ({problem})")


def failure_message(context: dg.RunFailureSensorContext) -> str:
    """Return job, partition, run and cause in one paragraph."""
    run = context.dagster_run
    partition = run.tags.get("dagster/partition")
    # The causes of the failed steps; a run that failed outside of a step has its own message.
    causes = [f"{event.step_key}: {failure_sentence(event)}" for event in context.get_step_failure_events()]
    cause = "; ".join(causes) or context.failure_event.message or "no cause is recorded"
    where = f" of {partition}" if partition else ""
    failed = context.instance.get_run_by_id(run.run_id)
    retry = "; it is tried again" if failed is not None and failed.tags.get(RETRY_TAG) == "true" else ""
    return f"{run.job_name}{where} failed (run {run.run_id}){retry}: {without_password(cause)}"[:MAX_CHARACTERS]


def post(webhook: str, message: str) -> str:
    """Send a message; return "" or why that failed, without the address."""
    try:
        body = json.dumps({"text": message}).encode()
        request = urllib.request.Request(webhook, data=body, headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS):
            return ""
    except (OSError, ValueError, http.client.HTTPException) as error:
        return type(error).__name__
