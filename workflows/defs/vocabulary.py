"""The WordPiece vocabulary of a corpus."""

from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import Field

from bert_pipeline.configuration import to_mapping
from bert_pipeline.manifest import Manifest, file_sha256, load_manifest, publishing
from bert_pipeline.vocabulary.wordpiece import VocabularyConfig
from workflows.configuration import config_class, from_launchpad, launchpad_preset
from workflows.defs.corpus import BEAM_OPTIONS, OWNERS, corpus
from workflows.metadata import for_reading, manifest_metadata, readable_failures, table
from workflows.partitions import dump_partitions
from workflows.phases import job_tags
from workflows.resources import BertHome
from workflows.reuse import made_or_reused, recipe
from workflows.versions import code_version

VOCABULARY_CODE = code_version("bert_pipeline.vocabulary.job.build_vocabulary")

VocabularyLaunchpad: Any = config_class(
    VocabularyConfig,
    name="VocabularyLaunchpad",
    defaults=launchpad_preset().vocabulary,
    extra={
        "beam_options": BEAM_OPTIONS,
        "from_model": (
            str,
            Field(
                default="",
                description="Take this model's vocabulary over (directory, models:/ URI, hub id) to train it further.",
            ),
        ),
        "compare": (str, Field(default="", description="A vocab.txt that is measured on the same held-out documents.")),
    },
)


@dg.asset(
    deps=[corpus],
    group_name="vocabulary",
    kinds={"beam", "tokenizers"},
    owners=OWNERS,
    tags=job_tags("vocabulary"),
    partitions_def=dump_partitions,
    code_version=VOCABULARY_CODE,
)
def vocabulary(
    context: dg.AssetExecutionContext, config: VocabularyLaunchpad, home: BertHome
) -> dg.MaterializeResult[None]:
    """`vocab.txt` in BERT's layout, trained on the word counts of the corpus's training documents.

    With `from_model` it is that model's: weights can be trained further with their own vocabulary alone.
    """
    from bert_pipeline.vocabulary.job import build_vocabulary

    name = context.partition_key
    settings = from_launchpad(VocabularyConfig, config)
    with readable_failures():
        if config.from_model:
            home.apply_environment()
            return _taken_over(context, config.from_model, home.vocabulary(name))
        inputs = {"corpus": load_manifest(home.corpus(name), kind="corpus").sha256}
        if config.compare:
            inputs["compare"] = file_sha256(Path(config.compare))
        manifest = made_or_reused(
            home.vocabulary(name),
            "vocabulary",
            recipe(code_version=VOCABULARY_CODE, settings=to_mapping(settings), inputs=inputs),
            lambda: build_vocabulary(
                home.corpus(name),
                home.vocabulary(name),
                settings,
                tuple(config.beam_options),
                compare_vocabulary=config.compare or None,
            ),
            context.log.info,
        )
    return _described(context, manifest)


def _taken_over(context: dg.AssetExecutionContext, model: str, directory: Path) -> dg.MaterializeResult[None]:
    """Publish the vocabulary of a model as this dump's."""
    from bert_model.registry.resolve import resolve_model
    from bert_pipeline.vocabulary.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_directory(resolve_model(model))
    configuration = {"vocab_size": tokenizer.vocab_size, "do_lower_case": tokenizer.do_lower_case}
    inputs = {"model": {"name": "vocab.txt", "sha256": tokenizer.sha256}}

    def publish() -> Manifest:
        with publishing(directory, kind="vocabulary", configuration=configuration, inputs=inputs) as draft:
            tokenizer.save(draft.path)
            draft.counts = {"vocab_size": tokenizer.vocab_size}
            draft.provenance = {"from_model": model}
        return load_manifest(directory, kind="vocabulary")

    context.log.info(f"the vocabulary of {model} is taken over")
    wanted = recipe(code_version=None, settings=configuration, inputs={"vocabulary": tokenizer.sha256})
    return _described(context, made_or_reused(directory, "vocabulary", wanted, publish, context.log.info))


def _described(context: dg.AssetExecutionContext, manifest: Manifest) -> dg.MaterializeResult[None]:
    from bert_pipeline.vocabulary.tokenizer import Tokenizer

    with readable_failures():
        tokenizer = Tokenizer.from_directory(manifest.path)
    context.log.info(f"{tokenizer.vocab_size:,} WordPiece tokens")
    metadata = manifest_metadata(manifest)
    metadata["vocab_size"] = tokenizer.vocab_size
    metadata["quality_report"] = table(_quality_rows(manifest))
    metadata["tokens_sample"] = table(_sample_tokens(tokenizer.tokens))
    return dg.MaterializeResult(metadata=for_reading(metadata), data_version=dg.DataVersion(manifest.sha256))


def _quality_rows(manifest: Manifest) -> list[dict[str, Any]]:
    """How well the vocabulary, and the one it is compared with, fit the documents named in the first column."""
    reports = {"this vocabulary": "quality", "the reference": "reference_quality"}
    return [
        {"on": str(manifest.counts["quality_on"]), "vocabulary": title}
        | {key: ", ".join(value) if isinstance(value, list) else value for key, value in manifest.counts[name].items()}
        for title, name in reports.items()
        if name in manifest.counts
    ]


def _sample_tokens(tokens: tuple[str, ...], count: int = 20) -> list[dict[str, Any]]:
    """Tokens at even distances, the special ones and the last ones included."""
    stride = max(1, len(tokens) // count)
    return [{"id": index, "token": tokens[index]} for index in range(0, len(tokens), stride)]
