"""The registry: versions of pre-trained and fine-tuned models, and the alias `champion` behind its gates."""

from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import Field

from bert_model.promotion import GateConfig
from bert_pipeline.manifest import load_manifest
from workflows.configuration import config_class, from_launchpad
from workflows.defs.finetuning import finetuned_model
from workflows.defs.pretraining import OWNERS, current_model, pretrained_model
from workflows.metadata import readable_failures, table
from workflows.partitions import dump_and_task, dump_partitions, dump_task_partitions, sample_seed
from workflows.resources import BertHome
from workflows.versions import source_version

REGISTRY_POOL = "registry"
"""Promotions one after the other: aliases are last-writer-wins."""

PROMOTE = (
    bool,
    Field(default=True, description="Hold the version against the gates; off: register it as candidate only."),
)
PromotionLaunchpad: Any = config_class(GateConfig, name="PromotionLaunchpad", extra={"promote": PROMOTE})


@dg.asset(
    deps=[pretrained_model],
    group_name="registry",
    kinds={"mlflow"},
    owners=OWNERS,
    partitions_def=dump_partitions,
    pool=REGISTRY_POOL,
    code_version=source_version("bert_model/registry.py", "bert_model/promotion.py"),
)
def registered_pretrained_model(
    context: dg.AssetExecutionContext, config: PromotionLaunchpad, home: BertHome
) -> dg.MaterializeResult[None]:
    """A version of `bert-<preset>` in the MLflow registry.

    It becomes `champion` when its held-out loss beats the champion's on the same data; otherwise the gate that
    refuses is named and the champion stays.
    """
    name = context.partition_key
    with readable_failures():
        directory = current_model(home, name)
        return _register(context, config, home, directory, directory, dump=name, task=None)


@dg.asset(
    deps=[finetuned_model],
    group_name="registry",
    kinds={"mlflow"},
    owners=OWNERS,
    partitions_def=dump_task_partitions,
    pool=REGISTRY_POOL,
    automation_condition=dg.AutomationCondition.eager(),
    code_version=source_version("bert_model/registry.py", "bert_model/promotion.py"),
)
def registered_task_model(
    context: dg.AssetExecutionContext, config: PromotionLaunchpad, home: BertHome
) -> dg.MaterializeResult[None]:
    """A version of `bert-<preset>-<task>` in the MLflow registry.

    It becomes `champion` when its score beats the champion's on the same dev examples; otherwise the gate that
    refuses is named and the champion stays. `bert predict TASK --model models:/bert-<preset>-<task>@champion`
    answers from it.
    """
    name, task = dump_and_task(context.partition_key)
    with readable_failures():
        return _register(
            context, config, home, home.finetuning(name, task), current_model(home, name), dump=name, task=task
        )


def registered_name(pretrained: Path, task: str | None) -> str:
    """The registry's name for a model: by the size that its pre-training was configured with."""
    from bert_model.registry import model_name

    preset = load_manifest(pretrained, kind="pretrained_model").configuration["model"]["preset"]
    return model_name(preset, task)


def _register(
    context: dg.AssetExecutionContext,
    config: Any,
    home: BertHome,
    directory: Path,
    pretrained: Path,
    *,
    dump: str,
    task: str | None,
) -> dg.MaterializeResult[None]:
    from bert_model.registry import get_version, promote, register

    home.apply_environment()
    name = registered_name(pretrained, task)
    version = register(directory, name, tags=lineage_tags(context, home, dump))
    metadata: dict[str, Any] = {
        "name": name,
        "version": version.version,
        "uri": f"models:/{name}/{version.version}",
        "mlflow": dg.MetadataValue.text(home.tracking_uri),
    }
    if version.facts.score is not None:
        metadata |= {"metric": version.facts.metric, "score": version.facts.score}
    if config.promote:
        already = "champion" in version.aliases
        decision = promote(name, version.version, dry_run=already, config=from_launchpad(GateConfig, config))
        if already:
            context.log.info(f"{name} version {version.version} is champion already")
        elif decision.promoted:
            context.log.info(f"{name} version {version.version} is champion now")
        else:
            context.log.info(f"{name} version {version.version} is not promoted: {', '.join(decision.refused_by)}")
        metadata |= {
            "promoted": decision.promoted,
            "refused_by": ", ".join(() if already else decision.refused_by) or "none",
            "gates": table(
                [{"gate": gate.name, "passed": gate.passed, "found": gate.detail} for gate in decision.gates]
            ),
        }
        version = get_version(f"models:/{name}/{version.version}")
    metadata["aliases"] = ", ".join(version.aliases) or "none"
    return dg.MaterializeResult(
        metadata=metadata, data_version=dg.DataVersion(version.facts.content_sha256 or str(version.version))
    )


def lineage_tags(context: dg.AssetExecutionContext, home: BertHome, dump: str) -> dict[str, str]:
    """Where a version comes from: the dump, the hashes of what was made of it, and the Dagster run."""
    tags = {
        "dump": dump,
        "generated_sample": str(sample_seed(dump) is not None).lower(),
        "dagster_run_id": context.run_id,
        "code_version": source_version("bert_pipeline", "bert_model"),
    }
    for artefact, directory in (("corpus", home.corpus(dump)), ("vocabulary", home.vocabulary(dump))):
        if (directory / "manifest.json").is_file():
            tags[f"{artefact}_sha256"] = load_manifest(directory, kind=artefact).sha256
    return tags
