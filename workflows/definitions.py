"""The code location that Dagster loads: everything under `workflows/defs`, the home, and the console's logger."""

import warnings
from pathlib import Path

import dagster as dg

from bert_pipeline.parent import end_with_parent
from workflows.lib.console import progress_logger
from workflows.lib.resources import BertHome


@dg.definitions
def defs() -> dg.Definitions:
    end_with_parent()  # Dagster loads this in every process of a run and in its code server, which it starts itself
    # An asset that another module imports is found there too: the same object, until it gets a reference to its source.
    loaded = dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)
        assets = dg.with_source_code_references(list({id(asset): asset for asset in loaded.assets or []}.values()))
    return dg.Definitions(
        assets=assets,
        asset_checks=loaded.asset_checks,
        jobs=loaded.jobs,
        schedules=loaded.schedules,
        sensors=loaded.sensors,
        resources={"home": BertHome()},
        loggers={"console": progress_logger},
        executor=dg.in_process_executor,  # a process for each step imports torch, Beam and MLflow again
    )
