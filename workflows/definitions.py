"""The code location that Dagster loads: everything under `workflows/defs`, the home, and the console's logger."""

from pathlib import Path

import dagster as dg

from workflows.console import progress_logger
from workflows.resources import BertHome


@dg.definitions
def defs() -> dg.Definitions:
    return dg.Definitions.merge(
        dg.load_from_defs_folder(path_within_project=Path(__file__).parent),
        dg.Definitions(resources={"home": BertHome()}, loggers={"console": progress_logger}),
    )
