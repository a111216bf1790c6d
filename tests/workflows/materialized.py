"""Assets materialized in this process, configured by a preset."""

import inspect
from collections.abc import Sequence
from typing import Any

import dagster as dg

from bert_model.presets import preset_from_mapping
from workflows.definitions import defs
from workflows.lib.launchpad import asset_configs
from workflows.lib.resources import BertHome


def materialize(
    instance: dg.DagsterInstance,
    partition: str,
    assets: Sequence[str],
    preset: dict[str, Any],
    **changes: dict[str, Any],
) -> dg.ExecuteInProcessResult:
    """Materialize assets and run their checks; `changes` updates the config of an asset."""
    configs = asset_configs(preset_from_mapping(preset, name="miniature"))
    ops = {name: {"config": configs[name] | changes.get(name, {})} for name in assets if name in configs}
    job = defs().resolve_implicit_global_asset_job_def()
    return job.execute_in_process(
        instance=instance,
        partition_key=partition,
        asset_selection=[dg.AssetKey(name) for name in assets],
        run_config={"ops": ops},
        raise_on_error=False,
    )


def call(asset: dg.AssetsDefinition, partition: str, home: BertHome, **launchpad: Any) -> Any:
    """Call the function of an asset as Dagster does, with some values of its launchpad."""
    compute: Any = asset.op.compute_fn
    config = inspect.signature(compute.decorated_fn).parameters["config"].annotation(**launchpad)
    return asset(dg.build_asset_context(partition_key=partition), home, config)
