"""The exception tree of the whole project.

Every error that a user can cause is a `BertError`. The command line prints its message as one paragraph and exits with
its `exit_code`; a traceback means a bug. A message states what happened, where, what was found, what was expected, and
what to do about it.
"""

import difflib
import os
import re
import sys
from collections.abc import Callable, Iterable


class BertError(Exception):
    """An error that the user can act on."""

    exit_code = 1


class UsageError(BertError, ValueError):
    """The command or the configuration names something that does not exist, or options that exclude each other."""

    exit_code = 2


class ConfigurationError(UsageError):
    """A configuration key or value is not acceptable."""


class InputError(BertError, ValueError):
    """An input file does not match its format."""


class ArtifactError(BertError):
    """An artifact directory is missing, incomplete or damaged."""


class DiskFullError(ArtifactError):
    """The disk or the quota is full."""


class TrainingError(BertError):
    """A training had to stop: a rank died, the loss was not finite, or the directory is in use."""


class WorkerDiedError(BertError):
    """A worker process exited without an exception, or its GPU has too little memory; what others finished is valid."""


class PromotionError(BertError):
    """A registry version may not be promoted, or the registry was modified concurrently."""


class UnavailableError(BertError):
    """A server does not answer or refuses for now; the same call may succeed later."""


def exit_code_of(program: Callable[[], int | None], name: str, *, debug: bool = False) -> int:
    """Run a program and return its exit code; print an expected error as one paragraph, or raise it with `debug`."""
    try:
        return program() or 0
    except BrokenPipeError:  # the reader of the output has gone, as after `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        message, code = "interrupted; run the same command again to continue", 130
    except (BertError, OSError) as error:
        if debug:
            raise
        code = error.exit_code if isinstance(error, BertError) else 1
        message = str(error)
        if isinstance(error, OSError) and error.strerror:  # a full disk, a missing permission
            message = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    print(f"{name}: {' '.join(message.split())}", file=sys.stderr)
    return code


def count_of(number: int, nouns: str) -> str:
    """Return "1 document", "2,000 documents"."""
    return f"{number:,} " + (re.sub(r"s\b", "", nouns, count=1) if number == 1 else nouns)


MAX_SUGGESTIONS = 40
"""Maximum number of known names that an error lists."""


def suggest(name: str, known: Iterable[str]) -> str:
    """Return " (did you mean 'x'?)" for the nearest of `known`, or a list of them if none is similar."""
    names = sorted(str(item) for item in known)
    if near := difflib.get_close_matches(name, names, n=1, cutoff=0.6):
        return f" (did you mean {near[0]!r}?)"
    more = f" and {len(names) - MAX_SUGGESTIONS} more" if len(names) > MAX_SUGGESTIONS else ""
    return f" (known: {', '.join(names[:MAX_SUGGESTIONS])}{more})"
