"""What a check of an asset returns, and the list of all checks.

A check reopens the artifact of a partition and trusts nothing that its asset reported.
"""

import dataclasses
import functools
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeAlias

import dagster as dg

from bert_pipeline.errors import BertError
from bert_pipeline.storage import store_errors
from workflows.lib.resources import BertHome, partitions_of


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

CHECKS: list[dg.AssetChecksDefinition] = []
"""The checks of all assets, whose modules are imported."""


def check_of(asset: str, *, warns: bool = False, blocks: bool = True) -> Callable[[Check], Check]:
    """Register a check: name and docstring of the function are its name and description in the UI.

    A missing or damaged artifact fails it. A failure stops what would build on the artifact, unless it only `warns`: it
    may be a property of the text, of the task or of a short training.
    """

    def register(function: Check) -> Check:
        name, judge = function.__name__, fails_if_unreadable(function)

        def check(context: dg.AssetCheckExecutionContext, home: BertHome) -> dg.AssetCheckResult:
            verdict = judge(home, context.partition_key)
            # Logged as well, so that a failure is also a warning on the console.
            log = context.log.info if verdict.passed else context.log.warning
            log(f"check {name} {'passed' if verdict.passed else 'FAILED'}: {verdict.description}")
            return dg.AssetCheckResult(
                passed=verdict.passed,
                severity=dg.AssetCheckSeverity.WARN if warns or verdict.is_warning else dg.AssetCheckSeverity.ERROR,
                description=verdict.description,
                metadata=verdict.metadata,
            )

        with warnings.catch_warnings(action="ignore", category=dg.PreviewWarning):
            declare = dg.asset_check(
                asset=asset,
                name=name,
                description=function.__doc__,
                blocking=blocks and not warns,
                partitions_def=partitions_of(asset),
            )
            CHECKS.append(declare(check))
        return judge

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
