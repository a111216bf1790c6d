"""Pre-training instances: sentence pairs in the lengths that the phases of pre-training need."""

import dataclasses
import functools
import math
from typing import Any

import dagster as dg
from pydantic import Field

from bert_pipeline.configuration import to_mapping
from bert_pipeline.instances.pairs import InstancesConfig
from bert_pipeline.manifest import Manifest, content_sha256, load_manifest
from workflows.configuration import config_class, from_launchpad, launchpad_preset
from workflows.defs.corpus import BEAM_OPTIONS, OWNERS
from workflows.defs.vocabulary import vocabulary
from workflows.metadata import for_reading, manifest_metadata, readable_failures, shortened, table
from workflows.partitions import dump_partitions
from workflows.phases import job_tags
from workflows.resources import BertHome
from workflows.reuse import made_or_reused, recipe
from workflows.versions import code_version

INSTANCES_CODE = code_version("bert_pipeline.instances.job.build_instances")

InstancesLaunchpad: Any = config_class(
    InstancesConfig,
    name="InstancesLaunchpad",
    defaults=launchpad_preset().instances,
    without=("max_seq_length",),
    extra={
        "max_seq_lengths": (
            list[int],
            Field(
                default=list(launchpad_preset().sequence_lengths),
                description="One directory of instances for each length, in tokens.",
            ),
        ),
        "beam_options": BEAM_OPTIONS,
    },
)


@dg.asset(
    deps=["corpus", vocabulary],
    group_name="instances",
    kinds={"beam", "parquet"},
    owners=OWNERS,
    tags=job_tags("instances"),
    partitions_def=dump_partitions,
    code_version=INSTANCES_CODE,
)
def instances(
    context: dg.AssetExecutionContext, config: InstancesLaunchpad, home: BertHome
) -> dg.MaterializeResult[None]:
    """Sentence pairs for masked-LM and next-sentence prediction, unpadded, one directory for each sequence length."""
    from bert_pipeline.instances.job import build_instances

    name = context.partition_key
    metadata: dict[str, Any] = {}
    versions: dict[str, str] = {}
    with readable_failures():
        inputs = {
            "corpus": load_manifest(home.corpus(name), kind="corpus").sha256,
            "vocabulary": load_manifest(home.vocabulary(name), kind="vocabulary").sha256,
        }
        for length in config.max_seq_lengths:
            settings = instances_for_length(from_launchpad(InstancesConfig, config), length)
            manifest = made_or_reused(
                home.instances(name, length),
                "instances",
                recipe(code_version=INSTANCES_CODE, settings=to_mapping(settings), inputs=inputs),
                functools.partial(
                    build_instances,
                    home.corpus(name),
                    home.vocabulary(name),
                    home.instances(name, length),
                    settings,
                    tuple(config.beam_options),
                ),
                context.log.info,
            )
            context.log.info(f"{manifest.counts.get('instances', 0):,} instances of up to {length} tokens")
            metadata |= {f"{length}/{key}": value for key, value in manifest_metadata(manifest).items()}
            metadata[f"{length}/instances_sample"] = table(sample_instances(manifest))
            versions[str(length)] = manifest.sha256
    total = sum(value for key, value in metadata.items() if key.endswith("/dagster/row_count"))
    metadata = {key: value for key, value in metadata.items() if not key.endswith("/dagster/row_count")}
    if total:
        metadata["dagster/row_count"] = total
    return dg.MaterializeResult(metadata=for_reading(metadata), data_version=dg.DataVersion(content_sha256(versions)))


def instances_for_length(settings: InstancesConfig, length: int) -> InstancesConfig:
    """The settings for one sequence length; static masks get room for their share of it (20 at 128, 77 at 512)."""
    if not settings.has_static_masks or length == settings.max_seq_length:
        return dataclasses.replace(settings, max_seq_length=length)
    return dataclasses.replace(
        settings, max_seq_length=length, max_predictions_per_seq=math.ceil(length * settings.masked_lm_prob)
    )


def sample_instances(manifest: Manifest, count: int = 5) -> list[dict[str, Any]]:
    """The first training instances as text."""
    from bert_pipeline.instances.directory import open_shard, shard_paths
    from bert_pipeline.vocabulary.tokenizer import Tokenizer

    paths = shard_paths(manifest, "train")
    if not paths:
        return []
    tokenizer = Tokenizer.from_directory(manifest.path)
    with open_shard(paths[0]) as shard:
        columns = shard.read_row_group(0)
    rows = []
    for index in range(min(count, len(columns.is_random_next))):
        ids = columns.input_ids[columns.offsets[index] : columns.offsets[index + 1]]
        rows.append(
            {
                "tokens": len(ids),
                "segment_b_start": int(columns.segment_b_start[index]),
                "is_random_next": bool(columns.is_random_next[index]),
                "text": shortened(" ".join(tokenizer.tokens[token] for token in ids), 240),
            }
        )
    return rows
