"""Jobs, the monthly retraining, and the sensors that notice new dumps: real, and off until switched on in the UI."""

import json
import os
import re
import urllib.request

import dagster as dg

from bert_model.training.metrics_log import without_password
from workflows.lib import retraining
from workflows.lib.resources import JOBS, BertHome, dump_partitions
from workflows.lib.retraining import MAX_RETRIES_TAG, MAX_RUNTIME_TAG, SECONDS_PER_HOUR, known_dumps, retraining_run

PRETRAINING_JOB, FINETUNING_JOB, REPORT_JOB, PREDICTION_JOB = JOBS
RETRAINING_SCHEDULE = "monthly_retraining"
SITE_SENSOR = "new_dump_on_site"
FOLDER_SENSOR = "new_dump_in_folder"
AUTOMATION_SENSOR = "tasks_after_pretraining"

DUMP_FILE = re.compile(r"(?P<wiki>[a-z][a-z_]*)-(?P<date>\d{8}|latest)-pages-articles.*\.xml(-p\d+p\d+)?(\.bz2|\.gz)?")
SETTLING_SECONDS = 30.0

retrain = dg.define_asset_job(
    PRETRAINING_JOB,
    selection=dg.AssetSelection.assets(*JOBS[PRETRAINING_JOB]),
    description="From a dump to a registered pre-trained model.",
    tags={MAX_RUNTIME_TAG: str(14 * 24 * SECONDS_PER_HOUR), MAX_RETRIES_TAG: "2"},
)
evaluate_tasks = dg.define_asset_job(
    FINETUNING_JOB,
    selection=dg.AssetSelection.assets(*JOBS[FINETUNING_JOB]),
    description="Fine-tune one task on one dump's model, register it, and promote it if the gates let it pass.",
    tags={MAX_RUNTIME_TAG: str(2 * 24 * SECONDS_PER_HOUR), MAX_RETRIES_TAG: "2"},
)
write_report = dg.define_asset_job(
    REPORT_JOB,
    selection=dg.AssetSelection.assets(*JOBS[REPORT_JOB]),
    description="Write one dump's results and decide whether its pre-trained model becomes champion.",
    tags={MAX_RUNTIME_TAG: str(2 * SECONDS_PER_HOUR)},
)
predict = dg.define_asset_job(
    PREDICTION_JOB,
    selection=dg.AssetSelection.assets(*JOBS[PREDICTION_JOB]),
    description="The champion's answers to the files in BERT_HOME/inputs/<task>, or to those named in the launchpad.",
    tags={MAX_RUNTIME_TAG: str(2 * 24 * SECONDS_PER_HOUR), MAX_RETRIES_TAG: "2"},
)


@dg.schedule(
    name=RETRAINING_SCHEDULE,
    cron_schedule=retraining.cron(),
    execution_timezone="UTC",
    job=retrain,
    default_status=dg.DefaultScheduleStatus.STOPPED,
    description="Once a month: looks each day from the fifth on (or when BERT_RETRAIN_CRON says) whether the dump of "
    "the first of that month (of the wiki in BERT_WIKI) is finished; then it becomes a partition and is trained on.",
)
def monthly_retraining(context: dg.ScheduleEvaluationContext, home: BertHome) -> dg.RunRequest | dg.SkipReason:
    from bert_pipeline.download import why_unfinished

    wiki, date = retraining.wiki(), f"{context.scheduled_execution_time:%Y%m}01"
    name = f"{wiki}-{date}"
    if name in known_dumps(context.instance):
        return dg.SkipReason(f"{name} is a partition already: this month's retraining was started")
    reason = why_unfinished(wiki, date, sites=retraining.dump_sites())
    if reason:
        return dg.SkipReason(reason)
    request = retraining_run(name, start=retraining.starting_model(home))
    context.instance.add_dynamic_partitions(str(dump_partitions.name), [name])
    return request


@dg.sensor(
    name=SITE_SENSOR,
    job=retrain,
    minimum_interval_seconds=6 * SECONDS_PER_HOUR,
    default_status=dg.DefaultSensorStatus.STOPPED,
    description="Asks the dump site every six hours for the newest finished dump of the wiki in BERT_WIKI: one that is "
    "no partition yet becomes one and is trained on.",
)
def new_dump_on_site(context: dg.SensorEvaluationContext, home: BertHome) -> dg.SensorResult | dg.SkipReason:
    from bert_pipeline.download import newest_finished_dump
    from bert_pipeline.errors import InputError

    try:
        date = newest_finished_dump(retraining.wiki(), sites=retraining.dump_sites())
    except InputError as error:
        return dg.SkipReason(str(error))
    name = f"{retraining.wiki()}-{date}"
    if name in known_dumps(context.instance):
        return dg.SkipReason(f"{name}, the newest finished dump, is a partition already")
    return _start(home, {name: []})


@dg.sensor(
    name=FOLDER_SENSOR,
    job=retrain,
    minimum_interval_seconds=60,
    default_status=dg.DefaultSensorStatus.STOPPED,
    description="Watches the folder `dumps` of BERT_HOME: each file named as Wikimedia names its dumps "
    "(enwiki-20261101-pages-articles.xml.bz2) becomes a partition and is trained on.",
)
def new_dump_in_folder(context: dg.SensorEvaluationContext, home: BertHome) -> dg.SensorResult | dg.SkipReason:
    folder = home.dumps
    found: dict[str, list[str]] = {}
    arriving: set[str] = set()
    for path in sorted(folder.glob("*")) if folder.is_dir() else []:
        match = DUMP_FILE.fullmatch(path.name)
        if match is None:
            continue
        name = f"{match['wiki']}-{match['date']}"
        found.setdefault(name, []).append(str(path))
        if path.stat().st_mtime > retraining.now() - SETTLING_SECONDS:  # still being copied, perhaps
            arriving.add(name)
    known = known_dumps(context.instance)
    new = {name: files for name, files in found.items() if name not in known and name not in arriving}
    if not new:
        waiting = ", ".join(sorted(arriving - known))
        note = f"; files of {waiting} changed within the last {SETTLING_SECONDS:.0f} seconds" if waiting else ""
        return dg.SkipReason(f"no new dump in {folder}{note}")
    return _start(home, new)


tasks_after_pretraining = dg.AutomationConditionSensorDefinition(
    name=AUTOMATION_SENSOR,
    target=dg.AssetSelection.assets(*JOBS[FINETUNING_JOB], *JOBS[REPORT_JOB]),
    default_status=dg.DefaultSensorStatus.STOPPED,
    run_tags={MAX_RUNTIME_TAG: str(2 * 24 * SECONDS_PER_HOUR), MAX_RETRIES_TAG: "2"},
    description="A new pre-trained model leads to its fine-tunings, their registration, the report, and the decision "
    "on its promotion.",
)


def _start(home: BertHome, dumps: dict[str, list[str]]) -> dg.SensorResult:
    start = retraining.starting_model(home)
    return dg.SensorResult(
        run_requests=[retraining_run(name, files, start=start) for name, files in dumps.items()],
        dynamic_partitions_requests=[dump_partitions.build_add_request(list(dumps))],
    )


FAILURE_SENSOR = "failed_runs"
WEBHOOK_VARIABLE = "BERT_FAILURE_WEBHOOK"
"""An address that takes a POST of {"text": …}, as the chat services do. It is a secret, and is never logged."""
TIMEOUT_SECONDS = 10.0
MOST_CHARACTERS = 2000


@dg.run_failure_sensor(
    name=FAILURE_SENSOR,
    default_status=dg.DefaultSensorStatus.STOPPED,
    description="Logs each failed run with its cause, and posts the same sentence to the webhook in "
    "BERT_FAILURE_WEBHOOK.",
)
def failed_runs(context: dg.RunFailureSensorContext) -> None:
    message = failure_message(context)
    context.log.error(message)
    webhook = os.environ.get(WEBHOOK_VARIABLE)
    if webhook:
        problem = post(webhook, message)
        if problem:
            context.log.warning(f"the webhook in {WEBHOOK_VARIABLE} was not reached ({problem})")


def failure_message(context: dg.RunFailureSensorContext) -> str:
    """Job, partition, run and cause in a paragraph: the failed step's own words where there are any."""
    run = context.dagster_run
    partition = run.tags.get("dagster/partition")
    causes = []
    for event in context.get_step_failure_events():
        error = event.step_failure_data.error
        deepest = error
        while deepest is not None and deepest.cause is not None:
            deepest = deepest.cause
        given = event.step_failure_data.user_failure_data
        words = given.description if given and given.description else (deepest.message if deepest else "")
        causes.append(f"{event.step_key}: {words.strip()}")
    cause = "; ".join(causes) or context.failure_event.message or "no cause is recorded"
    where = f" of {partition}" if partition else ""
    return f"{run.job_name}{where} failed (run {run.run_id}): {without_password(cause)}"[:MOST_CHARACTERS]


def post(webhook: str, message: str) -> str:
    """Send a message; returns why that failed, without the address, or ""."""
    try:
        body = json.dumps({"text": message}).encode()
        request = urllib.request.Request(webhook, data=body, headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS):
            return ""
    except (OSError, ValueError) as error:
        return type(error).__name__
