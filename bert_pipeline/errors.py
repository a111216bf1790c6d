"""The exception tree of the whole project.

Every error a user can cause is a `BertError`. The command line prints its message as one paragraph and exits with
its `exit_code`; a traceback means a bug of ours. A message says what happened, where, what was found and expected,
and what to do about it.
"""

import difflib
from collections.abc import Iterable


class BertError(Exception):
    """Anything that went wrong for a reason the user can act on."""

    exit_code = 1


class UsageError(BertError, ValueError):
    """The command or the configuration asks for something that does not exist or does not fit together."""

    exit_code = 2


class ConfigurationError(UsageError):
    """A configuration key or value is not acceptable."""


class InputError(BertError, ValueError):
    """A file given to us is not what its format promises."""


class ArtefactError(BertError):
    """One of our own directories is missing, incomplete or damaged."""


class TrainingError(BertError):
    """A training had to stop: a rank died, a loss was not finite, a directory is in use."""


class PromotionError(BertError):
    """A registry version may not be promoted, or the registry changed under our hands."""


class UnavailableError(BertError):
    """A server does not answer or refuses for now: trying the same again later may help."""


MOST_NAMES = 40
"""How many known names an error lists at most."""


def suggest(name: str, known: Iterable[str]) -> str:
    """Return " (did you mean 'x'?)" for the nearest of `known`, or the list of them when nothing is near."""
    names = sorted(str(item) for item in known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if near:
        return f" (did you mean {near[0]!r}?)"
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f" (known: {', '.join(names[:MOST_NAMES])}{more})"
