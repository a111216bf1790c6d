"""What a check of an asset returns, and the list of all checks.

A check reopens the artifact of a partition and trusts nothing that its asset reported.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeAlias

from bert_pipeline.errors import BertError
from bert_pipeline.storage import store_errors
from workflows.lib.resources import BertHome


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The result of a check."""

    passed: bool
    description: str
    metadata: dict[str, Any] = dataclasses.field(default_factory=dict)
    is_warning: bool = False
    """A failure is shown as a warning and does not block."""


Check: TypeAlias = Callable[[BertHome, str], Verdict]
"""Home, partition -> verdict."""
Parameters = ParamSpec("Parameters")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Registered:
    """A check of an asset."""

    asset: str
    check: Check
    warns: bool
    """A failure is a warning: it may be a property of the text, of the task or of a short training."""
    blocks: bool
    """A failure stops what would build on the artifact."""


CHECKS: list[Registered] = []
"""The checks of all assets, whose modules are imported."""


def check_of(asset: str, *, warns: bool = False, blocks: bool = True) -> Callable[[Check], Check]:
    """Register a check: name and docstring of the function are its name and description in the UI.

    A missing or damaged artifact fails it.
    """

    def register(function: Check) -> Check:
        check = fails_if_unreadable(function)
        CHECKS.append(Registered(asset=asset, check=check, warns=warns, blocks=blocks and not warns))
        return check

    return register


def failed(description: str, metadata: dict[str, Any] | None = None) -> Verdict:
    """Return the verdict of a check that did not pass."""
    return Verdict(False, description, metadata or {})


def fails_if_unreadable(check: Callable[Parameters, Verdict]) -> Callable[Parameters, Verdict]:
    """Return the check with errors of a missing or damaged artifact as failed verdicts."""

    @functools.wraps(check)
    def checked(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Verdict:
        try:
            with store_errors():
                return check(*args, **kwargs)
        except BertError as error:
            return failed(str(error))
        except (OSError, ValueError, KeyError) as error:
            return failed(f"{type(error).__name__}: {error}")

    return checked
