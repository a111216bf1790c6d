"""A failed run is told to people: in the log, and to a webhook where one is configured."""

import json
import os
import urllib.request

import dagster as dg

from bert_model.training.metrics_log import without_password

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
