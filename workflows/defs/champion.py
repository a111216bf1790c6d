"""The asset `champion`: which registered versions are in use, observed at each move of an alias."""

import json
from typing import Any

import dagster as dg

from bert_pipeline.errors import BertError
from bert_pipeline.hashes import content_sha256
from workflows.lib.resources import BertHome

DATA_VERSION_TAG = "dagster/data_version"

champion = dg.AssetSpec(
    "champion",
    description="The versions in use: of each registered model the one with the alias `champion`. Each move, by any "
    "program, is an observation: the version, the former one, the interval of the gain, and the last user who moved it "
    "by a decision, `bert promote` or `bert rollback`.",
    group_name="report",
    owners=["team:modelling"],
    kinds={"mlflow"},
    metadata={"mlflow": BertHome().mlflow_page("models")},
)


@dg.sensor(
    minimum_interval_seconds=60,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Reads the aliases of the registry and observes `champion` where one has moved. It is always on.",
)
def champion_moves(context: dg.SensorEvaluationContext, home: BertHome) -> dg.SensorResult | dg.SkipReason:
    from bert_model.registry.operations import champions

    former: dict[str, int] = json.loads(context.cursor or "{}")
    try:
        current = champions()
        moves = {name: version for name, version in current.items() if former.get(name) != version}
        metadata = [describe(home, name, version, former.get(name)) for name, version in moves.items()]
    except (BertError, ValueError) as error:  # such as a decision that was cut off
        return dg.SkipReason(str(error))
    if current == former:
        return dg.SkipReason("no champion has moved")
    # What depends on it is stale after each move.
    tags = {DATA_VERSION_TAG: content_sha256(current)}
    events = [dg.AssetObservation(champion.key, metadata=entries, tags=tags) for entries in metadata]
    return dg.SensorResult(asset_events=events, cursor=json.dumps(current))


def describe(home: BertHome, name: str, version: int, former: int | None) -> dict[str, Any]:
    """Return the metadata of a move: what the version is, which one it replaced, by how much it was better, by whom."""
    from bert_model.registry.operations import describe_move

    moved_by, decision = describe_move(name, version)
    metadata = {
        "outcome": f"{name} version {version} is champion",
        "name": name,
        "version": version,
        "former_version": former or 0,
        "moved_by": moved_by or "unknown",
        "mlflow_version": home.mlflow_page(f"models/{name}/versions/{version}"),
    }
    # After a rollback the stored decision is that on an earlier move, against another version.
    if decision.get("champion") == former and decision.get("interval"):
        metadata |= dict(zip(("gain_low", "gain_high"), decision["interval"]))
    return metadata
