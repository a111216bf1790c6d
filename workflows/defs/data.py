"""Assets of the data: dump, corpus, vocabulary and instances."""

import dataclasses
import functools
import json
import math
import re
import time
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import Field

from bert_model.presets import SampleConfig
from bert_pipeline.configuration import to_mapping
from bert_pipeline.corpus.build import CorpusConfig
from bert_pipeline.errors import InputError, UsageError
from bert_pipeline.instances.pairs import InstancesConfig
from bert_pipeline.manifest import (
    Manifest,
    content_sha256,
    file_sha256,
    foreign_input,
    load_manifest,
    publishing,
    write_text_durably,
)
from bert_pipeline.vocabulary.wordpiece import VocabularyConfig
from workflows.lib.launchpad import config_class, from_launchpad, launchpad_preset
from workflows.lib.metadata import for_reading, manifest_metadata, readable_failures, shortened, table
from workflows.lib.resources import BertHome, dump_partitions, job_tags, sample_seed
from workflows.lib.retraining import dump_sites
from workflows.lib.reuse import code_version, made_or_reused, recipe

OWNERS = ["team:data"]
SOURCES_NAME = "sources.json"
PROGRESS_INTERVAL_SECONDS = 15.0
EXPORT_FILE = re.compile(r"pages-articles.*\.xml(-p\d+p\d+)?(\.bz2|\.gz)?$")
"""A dump's own file: the last ones of large dumps are called …-pages-articles1.xml-p1p41242.bz2."""

SAMPLE_CODE = code_version("bert_pipeline.sample.generate_sample")
DUMP_CODE = code_version("bert_pipeline.sample.generate_sample", "bert_pipeline.download.download_wikipedia")
CORPUS_CODE = code_version("bert_pipeline.corpus.job.build_corpus")

BEAM_OPTIONS = (
    list[str],
    Field(default=list(launchpad_preset().beam_options), description="Options of the Beam job, as after `--`."),
)

DumpLaunchpad: Any = config_class(
    SampleConfig,
    name="DumpLaunchpad",
    defaults=launchpad_preset().sample,
    extra={
        "sources": (
            list[str],
            Field(
                default=[],
                description="Local files in place of a download: PATH or wikipedia:PATH for a MediaWiki export, "
                "text:PATH, jsonl:PATH, pairs:PATH.",
            ),
        )
    },
)
CorpusLaunchpad: Any = config_class(
    CorpusConfig, name="CorpusLaunchpad", defaults=launchpad_preset().corpus, extra={"beam_options": BEAM_OPTIONS}
)


@dg.asset(
    group_name="corpus",
    kinds={"wikipedia", "bzip2"},
    owners=OWNERS,
    tags=job_tags("dump"),
    partitions_def=dump_partitions,
    code_version=DUMP_CODE,
    retry_policy=dg.RetryPolicy(max_retries=2, delay=30, backoff=dg.Backoff.EXPONENTIAL),
)
def dump(context: dg.AssetExecutionContext, config: DumpLaunchpad, home: BertHome) -> dg.MaterializeResult[None]:
    """The encyclopaedia as published: a MediaWiki export.

    `samplewiki-N` is generated from seed N and marked so wherever it is shown. Any other partition takes the files
    named in `sources`, which stay where they are and are known by name and hash, or is downloaded
    (`enwiki-20261101`).
    """
    name = context.partition_key
    with readable_failures():
        seed = sample_seed(name)
        if seed is not None and not config.sources:
            manifest = _generate(name, seed, from_launchpad(SampleConfig, config), home, context)
        elif config.sources:
            manifest = _take_local_files(config.sources, home.dump(name))
        else:
            wiki, date = published_dump(name)
            with readable_failures(allow_retries=True):
                manifest = made_or_reused(
                    home.dump(name),
                    "dump",
                    recipe(code_version=None, settings={"wiki": wiki, "date": date}, inputs={}),
                    lambda: _download(wiki, date, home.dump(name), context),
                    context.log.info,
                )
    metadata = manifest_metadata(manifest)
    metadata["sources"] = dg.MetadataValue.json(dump_sources(home.dump(name)))
    metadata["generated_sample"] = manifest.kind == "sample"
    return dg.MaterializeResult(metadata=for_reading(metadata), data_version=dg.DataVersion(manifest.sha256))


def _generate(
    name: str, seed: int, config: SampleConfig, home: BertHome, context: dg.AssetExecutionContext
) -> Manifest:
    from bert_pipeline.sample import generate_sample

    def generate() -> Manifest:
        context.log.info(f"generating {name}: {config.num_articles} invented articles and task files over them")
        return generate_sample(home.dump(name), seed=seed, num_articles=config.num_articles)

    wanted = recipe(code_version=SAMPLE_CODE, settings={"seed": seed, **to_mapping(config)}, inputs={})
    return made_or_reused(home.dump(name), "sample", wanted, generate, context.log.info)


def _take_local_files(sources: list[str], directory: Path) -> Manifest:
    """Publish a note of where the files are, and their hashes."""
    entries: list[dict[str, Any]] = []
    for source in sources:
        prefix, path = split_source(source)
        if not path.is_file():
            raise InputError(f"{path}: no such file; give the dump's path")
        entries.append({"format": prefix, "path": str(path.resolve()), "bytes": path.stat().st_size})
    inputs = {f"{index:02d}": foreign_input(entry["path"]) for index, entry in enumerate(entries)}
    with publishing(directory, kind="dump", configuration={}, inputs=inputs) as draft:
        draft.counts = {"sources": len(entries), "source_bytes": sum(entry["bytes"] for entry in entries)}
        write_text_durably(draft.path / SOURCES_NAME, json.dumps(entries, indent=1) + "\n")
    return load_manifest(directory, kind="dump")


def published_dump(name: str) -> tuple[str, str]:
    """Split "enwiki-20261101" into wiki and date; UsageError when it is not the name of a published dump."""
    match = re.fullmatch(r"([a-z][a-z0-9_]*)-(\d{8}|latest)", name)
    if match is None:
        raise UsageError(
            f"dump {name!r}: no local file is given, and the name is not that of a published dump such as "
            "enwiki-20261101; name a file in `sources`"
        )
    return match[1], match[2]


def _download(wiki: str, date: str, directory: Path, context: dg.AssetExecutionContext) -> Manifest:
    from bert_pipeline.download import download_wikipedia

    context.log.info(f"downloading {wiki} of {date}")
    said = time.monotonic()

    def progress(size: int) -> None:
        nonlocal said
        if time.monotonic() - said > PROGRESS_INTERVAL_SECONDS:
            said = time.monotonic()
            context.log.info(f"{size / 1e6:,.0f} MB")

    return download_wikipedia(wiki, date, directory, sites=dump_sites(), progress=progress)


def split_source(source: str) -> tuple[str, Path]:
    """Split "text:PATH" into its format and path; a bare path is a MediaWiki export."""
    prefix, separator, rest = source.partition(":")
    if separator and prefix in ("wikipedia", "text", "jsonl", "pairs"):
        return prefix, Path(rest)
    return "wikipedia", Path(source)


def dump_sources(directory: Path) -> list[str]:
    """The sources of a corpus, in the command line's form, that a materialized dump stands for."""
    manifest = load_manifest(directory)
    if SOURCES_NAME in manifest.files:
        entries = json.loads((directory / SOURCES_NAME).read_text(encoding="utf-8"))
        return [f"{entry['format']}:{entry['path']}" for entry in entries]
    names = [name for name in manifest.files if EXPORT_FILE.search(name)]
    return [f"wikipedia:{directory / name}" for name in names]


@dg.asset(
    deps=[dump],
    group_name="corpus",
    kinds={"beam", "parquet"},
    owners=OWNERS,
    tags=job_tags("corpus"),
    partitions_def=dump_partitions,
    code_version=CORPUS_CODE,
)
def corpus(context: dg.AssetExecutionContext, config: CorpusLaunchpad, home: BertHome) -> dg.MaterializeResult[None]:
    """Text passages of articles, as sentences in documents.

    Lists, tables, headings, references and boxes are left out, as in the paper; documents keep their order of
    sentences. Duplicates are dropped, and a share of the documents, chosen by hash, is held out.
    """
    from bert_pipeline.corpus.job import build_corpus

    name = context.partition_key
    settings = from_launchpad(CorpusConfig, config)
    with readable_failures():
        sources = dump_sources(home.dump(name))
        if not settings.name and load_manifest(home.dump(name)).kind != "sample":
            settings = dataclasses.replace(settings, name=name.partition("-")[0])
        context.log.info(f"reading {', '.join(sources)}")
        manifest = made_or_reused(
            home.corpus(name),
            "corpus",
            recipe(
                code_version=CORPUS_CODE,
                settings=to_mapping(settings),
                inputs={"dump": load_manifest(home.dump(name)).sha256},
            ),
            lambda: build_corpus(sources, home.corpus(name), settings, tuple(config.beam_options)),
            context.log.info,
        )
    counts = manifest.counts
    context.log.info(f"{counts.get('documents', 0):,} documents, {counts.get('sentences', 0):,} sentences")
    metadata = manifest_metadata(manifest)
    metadata["passages_sample"] = table(counts.get("passages_sample", []))
    return dg.MaterializeResult(metadata=for_reading(metadata), data_version=dg.DataVersion(manifest.sha256))


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
