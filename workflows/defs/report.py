"""The report on one dump's model."""

import base64
from pathlib import Path
from typing import Any

import dagster as dg

from bert_pipeline.manifest import load_manifest
from workflows.conditions import MONTHLY, after_last_of
from workflows.defs.finetuning import finetuned_model
from workflows.defs.pretraining import OWNERS, current_model, pretrained_model
from workflows.launcher import read_metrics
from workflows.metadata import for_reading, manifest_metadata, readable_failures, table
from workflows.partitions import dump_partitions
from workflows.phases import job_tags
from workflows.previews import score_preview
from workflows.report import REPORT_NAME, SCORES_PLOT, TRAINING_PLOT, collect_results, write_report
from workflows.resources import BertHome
from workflows.versions import code_version


@dg.asset(
    deps=[pretrained_model, finetuned_model],
    group_name="report",
    kinds={"markdown", "csv", "mlflow"},
    owners=OWNERS,
    tags=job_tags("report"),
    partitions_def=dump_partitions,
    automation_condition=after_last_of("finetuned_model"),
    freshness_policy=MONTHLY,
    code_version=code_version("workflows.report.collect_results", "workflows.report.write_report"),
)
def report(context: dg.AssetExecutionContext, home: BertHome) -> dg.MaterializeResult[None]:
    """The table of all tasks and the pictures: scores with and without pre-training beside the majority baseline.

    Tasks at chance and tasks that were skipped are named. The same files are in MLflow as a run of their own.
    """
    name = context.partition_key
    with readable_failures():
        directory = current_model(home, name)
        model = load_manifest(directory, kind="pretrained_model")
        results = collect_results(home, name, model.sha256)
        events = read_metrics(directory.parent / "metrics.jsonl")
        manifest = write_report(results, events, model, home.report(name))
    scores = {f"{row['task']}/{row['metric']}": float(row["score"]) for row in results.rows}
    run_id = home.log_report(
        run_name=f"report-{name}",
        tags={"dump": name, "generated_sample": str(results.generated), "dagster_run_id": context.run.run_id},
        metrics={**scores, **{f"average/{key}": value for key, value in results.averages().items()}},
        directory=manifest.path,
    )
    context.log.info(f"{len(results.rows)} tasks, {len(results.skipped)} skipped; MLflow run {run_id}")
    metadata: dict[str, Any] = manifest_metadata(manifest) | {
        "scores": score_preview([(row["task"], row["score"], row["majority"]) for row in results.rows]),
        "report": dg.MetadataValue.md(with_pictures(manifest.path)),
        "results": table(results.shown_rows()),
        "at_chance": ", ".join(results.at_chance) or "none",
        "skipped_tasks": dg.MetadataValue.json(results.skipped),
        "generated_sample": results.generated,
        "mlflow_run": dg.MetadataValue.url(home.run_page(run_id)),
    }
    metadata |= {f"score/{row['task']}": float(row["score"]) for row in results.rows}
    return dg.MaterializeResult(metadata=for_reading(metadata), data_version=dg.DataVersion(manifest.sha256))


def with_pictures(directory: Path) -> str:
    """The Markdown report with its pictures inlined, for the UI."""
    text = (directory / REPORT_NAME).read_text(encoding="utf-8")
    for name in (SCORES_PLOT, TRAINING_PLOT):
        picture = base64.b64encode((directory / name).read_bytes()).decode()
        text = text.replace(f"({name})", f"(data:image/png;base64,{picture})")
    return text
