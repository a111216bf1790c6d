"""Console logging of a run: one line per step with the time left; the details are in a file."""

import contextlib
import logging
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg

from bert_pipeline.progress import RateLimit, time_text
from workflows.lib.resources import BertHome, asset_of_step

UNREPORTED_ASSETS = ("task_data", "registered_model")
"""Steps without a line of their own: the line of a task is that of its fine-tuning."""


class TimeLeft:
    """Estimate of the remaining time of a stage, from the share of its work that is done."""

    def __init__(self) -> None:
        self.enter("")

    def enter(self, stage: str) -> None:
        """Begin a stage."""
        self._stage, self._first, self._done, self._started = stage, 0.0, 0.0, time.monotonic()

    def reach(self, share: float, *, is_resumed: bool = False) -> None:
        """Set the share of the current stage that is done, with `is_resumed` by an earlier run, in unknown time."""
        self._done = min(share, 1.0)
        if is_resumed:
            self._first, self._started = self._done, time.monotonic()

    def __str__(self) -> str:
        """Return "about 3 min of pretraining left"; "" when nothing is known yet."""
        if self._done <= self._first:
            return ""
        # The rest is assumed to take as long, for its share, as what is done.
        seconds = (time.monotonic() - self._started) * (1 - self._done) / (self._done - self._first)
        return f"about {time_text(max(10, round(seconds, -1)))} of {self._stage} left"


TIME_LEFT = TimeLeft()
"""The estimate for this process's run: updated by `workflows.run`, shown on every line."""


def failure_sentence(event: Any) -> str:
    """Return why a step failed: the description of its failure, else the message of the original error."""
    data = getattr(event, "event_specific_data", None)
    if description := getattr(getattr(data, "user_failure_data", None), "description", None):
        return str(description)

    # Dagster wraps an exception in its own: the innermost is the cause.
    error: Any = getattr(data, "error", None)
    while getattr(error, "cause", None) is not None:
        error = error.cause
    return " ".join(str(getattr(error, "message", "")).split())


class ProgressFormatter(logging.Formatter):
    """Time, asset and message; the level only for warnings and errors."""

    def format(self, record: logging.LogRecord) -> str:
        message = _message_of(record)
        event = _meta_of(record).get("dagster_event")
        if event is not None and event.event_type_value == "STEP_FAILURE":
            message = failure_sentence(event) or message
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        return f"{clock}  {_asset_of(record):<28}  {level}{message}"


class StepConsole(logging.Handler):
    """Print the last message of each step when it ends, of a long step now and then, what is reused, every warning."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, logging.LogRecord] = {}
        self._is_due = RateLimit()
        self._shown: logging.LogRecord | None = None

    def emit(self, record: logging.LogRecord) -> None:
        asset, event = _asset_of(record), _meta_of(record).get("dagster_event")

        # Warnings at once; of the rest, when the step ends, its last message, the result.
        if record.levelno >= logging.WARNING:
            self._print(record)
        elif event is not None:
            if event.event_type_value == "STEP_SUCCESS" and asset in self._last:
                last = self._last.pop(asset)
                if asset not in UNREPORTED_ASSETS and last is not self._shown:
                    self._print(last)
        elif record.levelno >= logging.INFO and not _message_of(record).startswith("check "):
            # The training's own lines tell how far the stage has come.
            if step := re.match(r"(resuming from )?step (\d+)(?:/| of )(\d+)", _message_of(record)):
                TIME_LEFT.reach(int(step[2]) / int(step[3]), is_resumed=step[1] is not None)
            self._last[asset] = record
            # Whether finished work counts is said at once: what follows it may take hours.
            if self._is_due() or re.search(" is (made again: |reused$)", _message_of(record)):
                self._print(record)

    def _print(self, record: logging.LogRecord) -> None:
        self._shown = record
        left = "" if record.levelno >= logging.WARNING else str(TIME_LEFT)
        print(self.format(record).splitlines()[0] + (f"  ({left})" if left else ""), file=sys.stderr, flush=True)


@dg.logger(
    config_schema={"details": dg.Field(str, default_value="", is_required=False)},
    description="Time, asset and message of each log entry; with `details`, one line per step, and all of it in that "
    "file.",
)
def progress_logger(context: dg.InitLoggerContext) -> logging.Logger:
    """The console logger of `python -m workflows.run`."""
    # Not from `getLogger`: this one belongs to the run, without the handlers of former runs.
    logger = logging.Logger("bert", level=logging.DEBUG)
    details: str = (context.logger_config or {}).get("details", "")
    file = BertHome().path / details
    file.parent.mkdir(parents=True, exist_ok=True)  # a restored home has no logs
    full: logging.Handler = logging.FileHandler(file, encoding="utf-8") if details else logging.StreamHandler()
    full.setLevel(logging.INFO)
    for handler in (full, *([StepConsole()] if details else [])):
        # Without the consequences of a failure that was just logged.
        handler.addFilter(lambda record: not _message_of(record).startswith(("Dependencies for step", "Skipping step")))
        handler.setFormatter(ProgressFormatter())
        logger.addHandler(handler)
    return logger


@contextlib.contextmanager
def log_of_libraries(details: Path) -> Iterator[None]:
    """Append what Dagster itself and other libraries log in the block to a file: Python would print their warnings."""
    handler = logging.FileHandler(details, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s  %(name)-28s  %(levelname)s: %(message)s", datefmt="%H:%M:%S"))
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()


def _meta_of(record: logging.LogRecord) -> dict[str, Any]:
    return getattr(record, "dagster_meta", None) or {}


def _message_of(record: logging.LogRecord) -> str:
    return str(_meta_of(record).get("orig_message") or record.getMessage())


def _asset_of(record: logging.LogRecord) -> str:
    return asset_of_step(_meta_of(record).get("step_key") or "")
