"""When assets are made without being asked for, in which order, and when they count as too old."""

import datetime
from typing import Any

import dagster as dg
from dagster import AutomationCondition

AFTER_INPUTS = AutomationCondition.eager()
"""As soon as every input is there and one of them is new."""

AFTER_CANDIDATE = AFTER_INPUTS.replace(
    "any_deps_updated", AutomationCondition.any_deps_updated().ignore(dg.AssetSelection.assets("pretrained_model"))
)
"""The same, but a pre-trained model counts when it is registered: until then its blocking checks may refuse it."""


def after_last_of(asset: str) -> AutomationCondition[Any]:
    """Once after a round of new partitions of `asset`: one of them is new, and no input is being made or about to be.

    Inputs may lack partitions (tasks whose files are absent), which `eager` would wait for for ever.
    """
    new = AutomationCondition.any_deps_match(AutomationCondition.newly_updated()).allow(dg.AssetSelection.assets(asset))
    busy = AutomationCondition.any_deps_match(
        AutomationCondition.in_progress() | AutomationCondition.will_be_requested()
    )
    condition = new.since_last_handled() & ~busy & ~AutomationCondition.in_progress()
    return condition.with_label(f"after the last new {asset}")


MONTHLY = dg.FreshnessPolicy.time_window(
    fail_window=datetime.timedelta(days=45), warn_window=datetime.timedelta(days=35)
)
"""Dumps appear each month: a model without a newer one after 45 days says that retraining has stopped."""
