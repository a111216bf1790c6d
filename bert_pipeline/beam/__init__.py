"""Apache Beam graphs around the pure functions of this package; Beam is imported here and nowhere else."""

import logging


def _import_beam_quietly() -> None:
    """Importing Beam logs a warning about a client library that we do not use, and so installs a log handler."""
    silent = logging.NullHandler()
    root = logging.getLogger()
    root.addHandler(silent)
    root.addFilter(_is_not_about_apitools)
    try:
        import apache_beam  # noqa: F401
    finally:
        root.removeHandler(silent)
        root.removeFilter(_is_not_about_apitools)


def _is_not_about_apitools(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("apitools")


_import_beam_quietly()
