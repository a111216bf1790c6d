"""What a local worker process runs: Beam's harness, without its chatter on standard error."""

import logging
import os
import sys
from collections.abc import Sequence

_START = "apache_beam.runners.worker.sdk_worker_main"
_HARNESS = "apache_beam.runners."


def main(argv: Sequence[str]) -> None:
    """Run Beam's worker, and end the process; its connection to the job stands in the environment."""
    # A handler must be there before Beam is imported: it logs while it is, and would install one that prints all.
    logging.getLogger().addHandler(_handler())
    from apache_beam.runners.worker import sdk_worker_main

    sdk_worker_main.main(argv)
    # The job waits for its workers one after the other: each would take a third of a second to tidy up its memory.
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)


def _handler() -> logging.Handler:
    """Warnings and errors, as plain sentences, on the standard error that all workers share with their parent."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.WARNING)
    handler.setFormatter(logging.Formatter("%(message)s"))
    handler.addFilter(_is_news)
    return handler


def _is_news(record: logging.LogRecord) -> bool:
    """Not what Beam says of every start, nor the failure of a bundle: the parent gets its traceback and raises it."""
    text = str(record.msg)
    is_start = (record.name == _START and record.levelno < logging.ERROR) or text.startswith("apitools")
    is_raised_later = record.exc_info is not None or text.startswith("Error processing instruction")
    return not (is_start or (is_raised_later and record.name.startswith(_HARNESS)))


if __name__ == "__main__":
    main(sys.argv)
