"""The code location that Dagster loads: everything under `workflows/defs`, the home, and the console's logger."""

from pathlib import Path

import dagster as dg

from bert_pipeline.parent import end_with_parent
from workflows.lib.console import progress_logger
from workflows.lib.resources import BertHome


@dg.definitions
def defs() -> dg.Definitions:
    end_with_parent()  # Dagster loads this in every process of a run and in its code server, which it starts itself
    return dg.Definitions.merge(
        dg.load_from_defs_folder(path_within_project=Path(__file__).parent),
        dg.Definitions(
            resources={"home": BertHome()},
            loggers={"console": progress_logger},
            executor=dg.in_process_executor,  # a process for each step imports torch, Beam and MLflow again
        ),
    )
