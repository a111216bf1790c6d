"""From trained models to a champion: registration, report, promotion decision, champion, the jobs of the registry."""

import base64
import functools
import json
from typing import Annotated, Any, TypeAlias

import dagster as dg

from bert_model.finetuning.caveats import describe
from bert_model.registry.model_card import stated_license, write_readme
from bert_model.registry.promotion import Decision, GateConfig
from bert_model.training.metrics_log import read_history
from bert_pipeline.errors import ArtifactError, BertError
from bert_pipeline.hashes import content_sha256
from bert_pipeline.manifest import load_manifest
from workflows.defs.automation import AFTER_INPUTS, MONTHLY, after_last_of
from workflows.defs.finetuning import finetuned_model
from workflows.defs.pretraining import pretrained_model, training_picture
from workflows.lib.launchpad import launchpad_defaults, launchpad_preset
from workflows.lib.lineage import check_origin, lineage_tags, registered_name, text_license
from workflows.lib.metadata import manifest_metadata, materialization, table
from workflows.lib.report import REPORT_NAME, collect_results, log_report, write_report
from workflows.lib.resources import BertHome, Made, dump_and_task, op_job, step_asset

# --- registration ---

REGISTRY_RETRIES = dg.RetryPolicy(max_retries=3, delay=20, backoff=dg.Backoff.EXPONENTIAL)
"""For a registry that does not answer; a promotion that is refused is not tried again."""

License: TypeAlias = Annotated[
    str, "License of the weights. Empty: that of the text, where it is known (Wikipedia, the generated sample)."
]
Promote: TypeAlias = Annotated[
    bool, "Move the alias where every gate passes; off: print the decision and move nothing."
]
GATES = launchpad_defaults()["promotion_decision"]
AUTOMATIC = {**GATES, "margin": launchpad_preset().promotion.retraining_margin}
"""The gates of runs that nobody configures: those that automation starts after a retraining."""

registry_asset = functools.partial(step_asset, kinds={"mlflow"}, retry_policy=REGISTRY_RETRIES)
"""`step_asset` with the options that all assets of the registry share."""


@registry_asset(deps=[pretrained_model])
def candidate_model(context: dg.AssetExecutionContext, home: BertHome, license: License = "") -> Made:
    """The pre-trained model in the registry: a version of `bert-<size>`, with card and lineage, as `candidate`.

    Whether it becomes champion is decided after its fine-tunings, in `promotion_decision`.
    """
    version = _register(context, license, home, context.partition_key)
    return materialization(version.content_sha256, _version_metadata(home, version))


@registry_asset(deps=[finetuned_model], automation_condition=AFTER_INPUTS, defaults=AUTOMATIC)
def registered_model(
    context: dg.AssetExecutionContext,
    home: BertHome,
    settings: GateConfig,
    promote: Promote = True,
    license: License = "",
) -> Made:
    """The fine-tuned model in the registry: a version of `bert-<size>-<task>`.

    It becomes `champion` when its score beats the champion's on the same dev examples; otherwise the gate that
    refuses is named and the champion stays. `bert predict TASK --model models:/bert-<size>-<task>@champion`
    answers from it.
    """
    name, task = dump_and_task(context.partition_key)
    version = _register(context, license, home, name, task)
    decision = _decide(context, settings, promote, version)
    return materialization(version.content_sha256, _version_metadata(home, version) | decision_metadata(decision))


def _register(
    context: dg.AssetExecutionContext, license: str, home: BertHome, dump: str, task: str | None = None
) -> Any:
    """Register the pre-trained model of a dump, or with `task` its fine-tuned one, and write its README.md."""
    from bert_model.registry.operations import register

    pretrained = home.current_model(dump)
    directory = home.finetuning(dump, task) if task else pretrained
    if task:
        check_origin(directory, pretrained)
    tags = lineage_tags(dump, pretrained, run_id=context.run.run_id)
    # Later runs, such as the automatic ones, know what an earlier one was told; that of the text is only assumed.
    is_named = bool(license)
    license = license or stated_license(directory) or stated_license(pretrained)
    if license := license or text_license(home.corpus(dump), dump, tags.get("corpus_sha256", "")):
        tags["license"] = license

    # The curves are those of the pre-training; the card of a fine-tuned model has the table of its runs.
    curves = None if task else training_picture(pretrained, dump)
    name = registered_name(pretrained, task)
    write_readme(directory, tags)
    version = register(directory, name, tags=tags, curves=curves, replaces_license=is_named)
    context.log.info(f"{version.name} version {version.version}: {', '.join(version.aliases) or 'no alias'}")
    return version


def _version_metadata(home: BertHome, version: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "name": version.name,
        "version": version.version,
        "uri": f"models:/{version.name}/{version.version}",
        "license": version.license,
        "mlflow_version": home.mlflow_version(version.name, version.version),
        "card": dg.MetadataValue.md(version.card_text),
        "lineage": dg.MetadataValue.json(version.document.lineage),
    }
    if score := version.document.score:
        metadata |= {"metric": score.metric, "score": score.mean}
        metadata |= {"known": describe(score.known)} if score.task else {}
    return metadata


# --- report ---


@step_asset(
    deps=[pretrained_model, finetuned_model],
    kinds={"markdown", "csv", "mlflow"},
    retry_policy=REGISTRY_RETRIES,
    automation_condition=after_last_of("finetuned_model"),
    freshness_policy=MONTHLY,
)
def report(context: dg.AssetExecutionContext, home: BertHome) -> Made:
    """The table of all tasks, the exam, and pictures: scores with and without pre-training, and of the majority class.

    Tasks at chance and tasks that were skipped are named. The same files are in MLflow as a run of their own.
    """
    name = context.partition_key
    directory = home.current_model(name)
    model = load_manifest(directory, kind="pretrained_model")
    results = collect_results(home, name, model)
    events = read_history(directory.parent)
    manifest = write_report(results, events, model, home.report(name))
    # The report is an MLflow run of its own: there the scores of several dumps compare.
    run_id = log_report(results, manifest, dagster_run_id=context.run.run_id)
    context.log.info(f"{len(results.rows)} tasks, {len(results.skipped)} skipped; MLflow run {run_id}")
    text = (manifest.path / REPORT_NAME).read_text(encoding="utf-8")
    for path in manifest.path.glob("*.png"):  # the UI shows pictures only within the text
        picture = base64.b64encode(path.read_bytes()).decode()
        text = text.replace(f"({path.name})", f"(data:image/png;base64,{picture})")
    metadata: dict[str, Any] = manifest_metadata(manifest) | {
        "report": dg.MetadataValue.md(text),
        "results": table(results.shown_rows()),
        **{f"exam/{key}": value for key, value in results.exam_scores().items()},
        "at_chance": ", ".join(results.at_chance) or "none",
        "skipped_tasks": dg.MetadataValue.json(results.skipped),
        "generated_sample": results.generated,
        "mlflow_run": home.mlflow_run(run_id),
    }
    metadata |= {f"score/{row['task']}": float(row["score"]) for row in results.rows}
    return materialization(manifest.sha256, metadata)


# --- promotion ---


@registry_asset(
    deps=[candidate_model, registered_model, report],
    automation_condition=after_last_of("report", "registered_model"),  # one that is repeated adds a task
    freshness_policy=MONTHLY,
    defaults=AUTOMATIC,
)
def promotion_decision(
    context: dg.AssetExecutionContext, home: BertHome, settings: GateConfig, promote: Promote = True
) -> Made:
    """Whether this dump's pre-trained model becomes champion, judged by its fine-tunings against the champion's.

    The table of tasks and gates is printed and stored with the version; where every gate passes the alias moves and
    the former champion stays as `previous`. The job `rollback` undoes it.
    """
    from bert_model.registry.operations import list_models

    directory = home.current_model(context.partition_key)
    name = registered_name(directory, None)
    # Found by content: the newest version may be that of another dump.
    content = load_manifest(directory, kind="pretrained_model").sha256
    version = next((v for v in reversed(list_models(name)) if v.content_sha256 == content), None)
    if version is None:
        raise ArtifactError(
            f"{name}: {directory} is not registered; materialize pretrained_model and "
            "candidate_model together, so that its checks decide"
        )
    decision = _decide(context, settings, promote, version)
    metadata = {
        "name": name,
        "version": version.version,
        "mlflow_version": home.mlflow_version(version.name, version.version),
        **decision_metadata(decision),
    }
    return materialization(content_sha256({"decision": decision.to_json()}), metadata)


def _decide(context: dg.AssetExecutionContext, gates: GateConfig, is_moved: bool, version: Any) -> Decision:
    """Evaluate the promotion gates for a version, and promote it if they pass and it is not champion already."""
    from bert_model.registry.operations import promote

    # The gates are evaluated in any case, for the metadata.
    decision = promote(version.name, version.version, dry_run=not is_moved, config=gates)
    context.log.info(f"{decision.outcome()}\n{decision.table()}")
    return decision


def decision_metadata(decision: Decision) -> dict[str, Any]:
    """Return the outcome, the tasks and the gates of a decision."""
    metadata: dict[str, Any] = {
        "outcome": dg.MetadataValue.md(decision.outcome()),
        "promoted": decision.promoted,
        "refused_by": ", ".join(decision.refused_by) or "none",
        "tasks": table(decision.task_rows()),
        "gates": table(decision.gate_rows()),
    }
    if averages := decision.averages():
        metadata |= {"average": averages[0], "average_of_champion": averages[1]}
    if decision.interval:
        metadata |= {"gain_low": decision.interval[0], "gain_high": decision.interval[1]}
    return metadata


# --- champion ---

champion = dg.AssetSpec(
    "champion",
    description="The versions in use: of each registered model the one with the alias `champion`. Each move, by any "
    "program, is an observation: the version, the former one, the gain with its interval, and the user who moved it by "
    "a decision, `bert promote` or `bert rollback`.",
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
        moved = [name for name in former | current if former.get(name) != current.get(name)]
        metadata = [describe_move(home, name, current.get(name, 0), former.get(name, 0)) for name in moved]
    except BertError as error:
        return dg.SkipReason(str(error))
    if current == former:
        return dg.SkipReason("no champion has moved")
    # What depends on it is stale after each move.
    tags = {"dagster/data_version": content_sha256(current)}
    events = [dg.AssetObservation(champion.key, metadata=entries, tags=tags) for entries in metadata]
    return dg.SensorResult(asset_events=events, cursor=json.dumps(current))


def describe_move(home: BertHome, name: str, version: int, former: int) -> dict[str, Any]:
    """Return the metadata of a move: what the version is, which one it replaced, by how much it was better, by whom.

    0 stands for no version: the alias, or its version, was deleted.
    """
    from bert_model.registry import operations

    metadata: dict[str, Any] = {"name": name, "version": version, "former_version": former}
    if not version:
        return metadata | {"outcome": f"{name} has no champion any more"}
    moved_by, decision = operations.describe_move(name, version)
    metadata |= {
        "outcome": f"{name} version {version} is champion",
        "moved_by": moved_by or "unknown",
        "mlflow_version": home.mlflow_version(name, version),
    }
    # After a rollback the stored decision is that on an earlier move, against another version.
    if decision and decision.champion == former and decision.interval and (averages := decision.averages()):
        metadata["gain"] = averages[0] - averages[1]
        metadata |= dict(zip(("gain_low", "gain_high"), decision.interval))
    return metadata


# --- jobs ---

ModelName: TypeAlias = Annotated[str, "Registered model, such as bert-tiny or bert-tiny-sst2."]


@op_job("promote", GATES)
def evaluate_promotion(
    context: dg.OpExecutionContext,
    home: BertHome,
    settings: GateConfig,
    name: ModelName,
    version: Annotated[int, "Version to promote; 0 takes the newest."] = 0,
    dry_run: Annotated[bool, "Print the decision and change nothing."] = True,
) -> None:
    """Print the decision on a version; promote it if dry_run is off."""
    from bert_model.registry.operations import promote

    decision = promote(name, version or None, dry_run, config=settings)
    context.log.info(f"\n{decision.table()}")
    if not dry_run:
        decision.require()


@op_job("rollback")
def rollback_champion(context: dg.OpExecutionContext, home: BertHome, name: ModelName) -> None:
    """Give the alias champion back to its former holder."""
    from bert_model.registry.operations import rollback

    version = rollback(name)
    context.log.info(f"{version.name} version {version.version} is champion again")
