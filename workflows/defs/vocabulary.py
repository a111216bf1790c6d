"""The WordPiece vocabulary of a corpus."""

from typing import Any

import dagster as dg

from bert_pipeline.configuration import to_mapping
from bert_pipeline.manifest import load_manifest
from bert_pipeline.vocabulary import VocabularyConfig
from workflows.configuration import config_class, from_launchpad, launchpad_preset
from workflows.defs.corpus import BEAM_OPTIONS, OWNERS, corpus
from workflows.metadata import manifest_metadata, readable_failures, table
from workflows.partitions import dump_partitions
from workflows.resources import BertHome
from workflows.reuse import made_or_reused, recipe
from workflows.versions import source_version

VOCABULARY_CODE = source_version(
    "bert_pipeline/vocabulary.py", "bert_pipeline/tokenization.py", "bert_pipeline/jobs/vocabulary.py"
)

VocabularyLaunchpad: Any = config_class(
    VocabularyConfig,
    name="VocabularyLaunchpad",
    defaults=launchpad_preset().vocabulary,
    extra={"beam_options": BEAM_OPTIONS},
)


@dg.asset(
    deps=[corpus],
    group_name="vocabulary",
    kinds={"beam", "tokenizers"},
    owners=OWNERS,
    partitions_def=dump_partitions,
    code_version=VOCABULARY_CODE,
)
def vocabulary(
    context: dg.AssetExecutionContext, config: VocabularyLaunchpad, home: BertHome
) -> dg.MaterializeResult[None]:
    """`vocab.txt` in BERT's layout, trained on the word counts of the corpus's training documents."""
    from bert_pipeline.jobs.vocabulary import build_vocabulary
    from bert_pipeline.tokenization import Tokenizer

    name = context.partition_key
    settings = from_launchpad(VocabularyConfig, config)
    with readable_failures():
        manifest = made_or_reused(
            home.vocabulary(name),
            "vocabulary",
            recipe(
                code_version=VOCABULARY_CODE,
                settings=to_mapping(settings),
                inputs={"corpus": load_manifest(home.corpus(name), kind="corpus").sha256},
            ),
            lambda: build_vocabulary(home.corpus(name), home.vocabulary(name), settings, tuple(config.beam_options)),
            context.log.info,
        )
        tokenizer = Tokenizer.from_directory(manifest.path)
    context.log.info(f"{tokenizer.vocab_size:,} WordPiece tokens")
    metadata = manifest_metadata(manifest)
    metadata["vocab_size"] = tokenizer.vocab_size
    metadata["tokens_sample"] = table(_sample_tokens(tokenizer.tokens))
    return dg.MaterializeResult(metadata=metadata, data_version=dg.DataVersion(manifest.sha256))


def _sample_tokens(tokens: tuple[str, ...], count: int = 20) -> list[dict[str, Any]]:
    """Tokens at even distances, the special ones and the last ones included."""
    stride = max(1, len(tokens) // count)
    return [{"id": index, "token": tokens[index]} for index in range(0, len(tokens), stride)]
