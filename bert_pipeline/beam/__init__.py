"""Parts of all Beam jobs: options, workers, results, failures, progress. Importing Beam from here keeps it quiet."""

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

__all__ = ["PipelineOptions", "beam"]


@contextlib.contextmanager
def _quiet_import() -> Iterator[None]:
    """Suppress the warning about a client library that we do not use, and the log handler that it would install."""
    # `logging.warning`, which the import calls, installs a handler only on a root logger without one.
    silent = logging.NullHandler()
    root = logging.getLogger()
    root.addHandler(silent)
    root.addFilter(_is_not_about_apitools)
    try:
        yield
    finally:
        root.removeHandler(silent)
        root.removeFilter(_is_not_about_apitools)


def _is_not_about_apitools(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("apitools")


with _quiet_import():
    import apache_beam
    from apache_beam.options.pipeline_options import PipelineOptions

beam: Any = apache_beam  # its functions have no types

if (_logger := logging.getLogger("apache_beam")).level == logging.NOTSET:
    _logger.setLevel(logging.WARNING)  # whatever level the program has for its own messages
logging.getLogger("apache_beam.runners.common").setLevel(logging.CRITICAL)  # logs each error that it raises, too
