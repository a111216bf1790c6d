"""Asset checks: each reopens the artifact that it judges. Blocking ones stop what would waste a training."""

import warnings

import dagster as dg

from workflows.lib import data_checks, model_checks
from workflows.lib.checks import CHECKS, Registered
from workflows.lib.resources import BertHome, partitions_of


def build_check(registered: Registered) -> dg.AssetChecksDefinition:
    """Build the Dagster check that runs a function on the partition of the run."""
    function, name = registered.check, registered.check.__name__

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.PreviewWarning)

        @dg.asset_check(
            asset=registered.asset,
            name=name,
            description=function.__doc__,
            blocking=registered.blocks,
            partitions_def=partitions_of(registered.asset),
        )
        def check(context: dg.AssetCheckExecutionContext, home: BertHome) -> dg.AssetCheckResult:
            verdict = function(home, context.partition_key)
            is_warning = registered.warns or verdict.is_warning
            # Logged as well, so that a failure is also a warning on the console.
            log = context.log.info if verdict.passed else context.log.warning
            log(f"check {name} {'passed' if verdict.passed else 'FAILED'}: {verdict.description}")
            return dg.AssetCheckResult(
                passed=verdict.passed,
                severity=dg.AssetCheckSeverity.WARN if is_warning else dg.AssetCheckSeverity.ERROR,
                description=verdict.description,
                metadata=verdict.metadata,
            )

    return check


assert data_checks, model_checks  # imported for what they register
checks = [build_check(registered) for registered in CHECKS]
