"""How a run looks on a terminal: one line for each thing that an asset says, without Dagster's own event stream."""

import logging
import time
from typing import Any

import dagster as dg

from workflows.phases import asset_of_step


def failure_sentence(event: Any) -> str:
    """Why a step failed: what the asset says where it says it, else the last error of the chain."""
    data = getattr(event, "event_specific_data", None)
    told = getattr(getattr(data, "user_failure_data", None), "description", None)
    if told:
        return str(told)
    error: Any = getattr(data, "error", None)
    while getattr(error, "cause", None) is not None:
        error = error.cause
    return " ".join(str(getattr(error, "message", "")).split())


class ProgressFormatter(logging.Formatter):
    """Clock, asset and message; a level only where it is a warning or worse."""

    def format(self, record: logging.LogRecord) -> str:
        meta = getattr(record, "dagster_meta", None) or {}
        message = meta.get("orig_message") or record.getMessage()
        event = meta.get("dagster_event")
        if event is not None and event.event_type_value == "STEP_FAILURE":
            message = failure_sentence(event) or message
        asset = asset_of_step(meta.get("step_key") or "")
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        return f"{clock}  {asset:<28}  {level}{message}"


@dg.logger(
    config_schema=dg.Field(str, default_value="INFO", is_required=False),
    description="One line for each message of an asset: clock, asset, message.",
)
def progress_logger(context: dg.InitLoggerContext) -> logging.Logger:
    """The console logger of `python -m workflows.run`."""
    level = str(context.logger_config or "INFO")
    made = logging.Logger("bert", level=logging.getLevelName(level))
    handler = logging.StreamHandler()
    handler.addFilter(_is_worth_a_line)
    handler.setFormatter(ProgressFormatter())
    made.addHandler(handler)
    return made


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """Leave out what follows from a failure that was just told."""
    meta = getattr(record, "dagster_meta", None) or {}
    return not str(meta.get("orig_message", "")).startswith(("Dependencies for step", "Skipping step"))
