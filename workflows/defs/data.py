"""Assets of the data: its observable sources, dump, corpus, vocabulary, instances and exam."""

import dataclasses
import json
import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import dagster as dg

from bert_model.presets import SampleConfig
from bert_model.registry.resolve import resolve_model
from bert_pipeline.atomic import write_text_durably
from bert_pipeline.configuration import to_mapping
from bert_pipeline.corpus.parquet import DOCUMENT_SCHEMA
from bert_pipeline.corpus.splits import CorpusConfig
from bert_pipeline.download import SITES, download_wikipedia, newest_finished_dump
from bert_pipeline.errors import ConfigurationError, InputError, UsageError
from bert_pipeline.exam.pairs import ExamConfig, read_pairs, sample_pairs
from bert_pipeline.hashes import content_sha256, file_sha256
from bert_pipeline.instances.directory import open_shard, shard_paths
from bert_pipeline.instances.pairs import InstancesConfig
from bert_pipeline.instances.parquet import INSTANCE_SCHEMA, MASKED_INSTANCE_SCHEMA
from bert_pipeline.manifest import MANIFEST_NAME, Manifest, foreign_input, load_manifest, publishing
from bert_pipeline.progress import Progress
from bert_pipeline.sample import generate_sample
from bert_pipeline.step import COPYING, STEPS, make
from bert_pipeline.storage import local_copy, remove_tree, size_of, without_secrets
from bert_pipeline.vocabulary.quality import describe_scripts
from bert_pipeline.vocabulary.tokenizer import Tokenizer
from bert_pipeline.vocabulary.wordpiece import VocabularyConfig
from workflows.lib.lineage import SOURCES_NAME, content_key, dump_sources, files_of_sources
from workflows.lib.metadata import (
    as_dagster_failures,
    columns_metadata,
    manifest_metadata,
    materialization,
    shortened,
    table,
)
from workflows.lib.resources import PUBLISHED_DUMP, BertHome, Made, sample_seed, source_of, step_asset

BeamOptions: TypeAlias = Annotated[list[str], "Options of the Beam job, as after `--`."]

# --- sources, outside of any home ---

SITES_VARIABLE = "BERT_DUMP_SITES"
WIKI_VARIABLE = "BERT_WIKI"
WIKI = re.compile(r"[a-z][a-z0-9_]{0,89}")
PUBLISHED_DUMPS, OFFICIAL_FILES = "published_dumps", "official_files"
SOURCES = {
    PUBLISHED_DUMPS: "The newest finished dump of the wiki in BERT_WIKI, on the sites in BERT_DUMP_SITES.",
    OFFICIAL_FILES: "The task files and the descriptions of own tasks in BERT_TASKS, by their hashes.",
}


def observe_sources(context: dg.AssetExecutionContext) -> Iterator[dg.ObserveResult]:
    """Hash the task files, and ask the dump site; what was made of an older version is shown as stale."""
    chosen = {key.to_user_string() for key in context.selected_asset_keys}
    with as_dagster_failures():
        if OFFICIAL_FILES in chosen:
            folder = context.resources.home.tasks
            files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder else []
            version = content_sha256({path.relative_to(folder).as_posix(): file_sha256(path) for path in files})
            size = sum(path.stat().st_size for path in files)
            place = str(folder or "BERT_TASKS is not set")
            metadata = {"artifact/path": place, "size/files": len(files), "size/bytes": size}
            yield dg.ObserveResult(OFFICIAL_FILES, data_version=dg.DataVersion(version), metadata=metadata)
        if PUBLISHED_DUMPS in chosen:
            newest = f"{wiki_name()}-{newest_finished_dump(wiki_name(), sites=dump_sites())}"
            metadata = {"name": newest, "sites": ", ".join(dump_sites())}
            yield dg.ObserveResult(PUBLISHED_DUMPS, data_version=dg.DataVersion(newest), metadata=metadata)


with warnings.catch_warnings(action="ignore", category=dg.BetaWarning):
    shared: Any = {"group_name": "data", "owners": ["team:data"], "metadata": source_of(observe_sources)}
    sources = dg.multi_observable_source_asset(
        name="sources",
        specs=[dg.AssetSpec(name, description=description, **shared) for name, description in SOURCES.items()],
        can_subset=True,
        required_resource_keys={"home"},
    )(observe_sources)


def wiki_name() -> str:
    """Return the wiki whose dumps are trained on: BERT_WIKI; ConfigurationError if it cannot name a partition."""
    wiki = os.environ.get(WIKI_VARIABLE) or "simplewiki"
    if not WIKI.fullmatch(wiki):
        raise ConfigurationError(f"{WIKI_VARIABLE}: found {wiki!r}, expected a name such as enwiki or zh_yuewiki")
    return wiki


def dump_sites() -> tuple[str, ...]:
    """Return the sites that dumps are downloaded from: BERT_DUMP_SITES, comma-separated, or the public ones."""
    sites = tuple(site.strip() for site in os.environ.get(SITES_VARIABLE, "").split(",") if site.strip())
    if wrong := [site for site in sites if not site.startswith(("http://", "https://"))]:
        raise ConfigurationError(f"{SITES_VARIABLE}: found {wrong[0]!r}, expected addresses such as {SITES[0]}")
    return sites or SITES


# --- dump ---


@step_asset(
    deps=[PUBLISHED_DUMPS],
    kinds={"wikipedia", "bzip2"},
    retry_policy=dg.RetryPolicy(max_retries=2, delay=30, backoff=dg.Backoff.EXPONENTIAL),
)
def dump(
    context: dg.AssetExecutionContext,
    home: BertHome,
    settings: SampleConfig,
    sources: Annotated[
        list[str],
        "Files in place of a download: PATH or wikipedia:PATH for a MediaWiki export, parquet:PATH, jsonl:PATH, "
        "lines:PATH, book:PATH, text:PATH, pairs:PATH. PATH may be a directory or a URL.",
    ],
) -> Made:
    """The encyclopedia as published: a MediaWiki export.

    `samplewiki-N` is generated from seed N and marked so wherever it is shown. Any other partition takes the files
    named in `sources`, now or the last time, which are not copied but known by name and hash, or is downloaded
    (`enwiki-20261101`).
    """
    name = context.partition_key
    directory = home.dump(name)
    seed = sample_seed(name)
    # Named files take precedence; a sample is generated, and everything else downloaded. What is named after a sample
    # counts as one everywhere.
    if sources and seed is not None:
        raise UsageError(
            f"sources: {name} names a generated sample; give them to a partition of another name, such as enwiki-1"
        )
    # Those of an earlier materialization stay, so that no download takes their place.
    if not sources and (directory / SOURCES_NAME).is_file():
        sources = dump_sources(directory)
        context.log.info(f"the files of the last time: {', '.join(map(without_secrets, sources))}")
    if sources:
        manifest = _publish_sources(sources, directory)
    elif seed is not None:
        manifest = _generate(seed, settings, directory, context)
    else:
        if (published := PUBLISHED_DUMP.fullmatch(name)) is None:
            raise UsageError(
                f"dump {name!r}: no local file is given, and the name is not that of a published dump such as "
                "enwiki-20261101; name a file in `sources`"
            )
        # A download may fail by chance, so only here every error is retried.
        with as_dagster_failures(allow_retries=True):
            manifest = _download(published[1], published[2], directory, context)
    metadata = manifest_metadata(manifest, rates=False) | {
        "sources": dg.MetadataValue.json([without_secrets(source) for source in dump_sources(directory)]),
        "generated_sample": manifest.kind == "sample",
    }
    return materialization(manifest.sha256, metadata)


def _publish_sources(sources: list[str], directory: Path) -> Manifest:
    """Publish paths or URLs and hashes of files, which stay where they are."""
    entries: list[dict[str, Any]] = []
    for name, kind, place in files_of_sources(sources):
        if Path(place).is_relative_to(directory.resolve()):
            raise UsageError(f"{place}: belongs to this dump already; leave `sources` empty to keep it")
        entries.append({"name": name, "format": kind, "path": place, "bytes": size_of(place)})
    inputs = {f"{index:02d}": foreign_input(entry["path"]) for index, entry in enumerate(entries)}
    kinds = [[entry["name"], entry["format"]] for entry in entries]
    with publishing(directory, kind="dump", configuration={"sources": kinds}, inputs=inputs) as draft:
        draft.counts = {"sources": len(entries), "source_bytes": sum(entry["bytes"] for entry in entries)}
        write_text_durably(draft.path / SOURCES_NAME, json.dumps(entries, indent=1) + "\n")
    return load_manifest(directory, kind="dump")


def _generate(seed: int, config: SampleConfig, directory: Path, context: dg.AssetExecutionContext) -> Manifest:
    def build() -> Manifest:
        what = f"{config.num_articles} invented articles and task files over them"
        context.log.info(f"generating {context.partition_key}: {what}")
        return generate_sample(directory, seed=seed, num_articles=config.num_articles)

    return STEPS["dump"].make(directory, build, settings={"seed": seed, **to_mapping(config)}, log=context.log.info)


def _download(wiki: str, date: str, directory: Path, context: dg.AssetExecutionContext) -> Manifest:
    # Resolved now, so that the artifact is that of a date, and next month's another one.
    if date == "latest":
        try:
            date = newest_finished_dump(wiki, sites=dump_sites())
        except InputError as error:
            configuration = load_manifest(directory).configuration if (directory / MANIFEST_NAME).is_file() else {}
            if "date" not in configuration:
                raise
            date = configuration["date"]
            context.log.warning(f"{error}; the dump of {date} is kept")
    progress = Progress("MB", context.log.info).show

    def build() -> Manifest:
        context.log.info(f"downloading {wiki} of {date}")
        return download_wikipedia(wiki, date, directory, sites=dump_sites(), progress=progress)

    return COPYING.make(directory, build, settings={"wiki": wiki, "date": date}, log=context.log.info)


# --- corpus ---


@step_asset(deps=[dump], kinds={"beam", "parquet"})
def corpus(
    context: dg.AssetExecutionContext, home: BertHome, settings: CorpusConfig, beam_options: BeamOptions
) -> Made:
    """The text passages of the articles: documents of sentences.

    Lists, tables, headings, references and boxes are left out, as in the paper; documents keep their order of
    sentences. Duplicates are dropped, and a share of the documents, chosen by hash, is held out.
    """
    from bert_pipeline.corpus.job import build_corpus

    name = context.partition_key
    source = load_manifest(home.dump(name))
    # Document ids begin with the wiki where the dump does not name it.
    if not settings.name and source.kind != "sample":
        settings = dataclasses.replace(settings, name=name.partition("-")[0])
    templates = {"templates": file_sha256(settings.templates)} if settings.templates else {}
    sources = dump_sources(home.dump(name))
    context.log.info(f"reading {', '.join(map(without_secrets, sources))}")
    progress = Progress("pages", context.log.info).show
    manifest = STEPS["corpus"].make(
        home.corpus(name),
        lambda: build_corpus(sources, home.corpus(name), settings, tuple(beam_options), progress),
        settings=dataclasses.replace(settings, templates=""),  # its hash counts, wherever it is
        inputs={"dump": content_key(source)} | templates,
        log=context.log.info,
    )
    counts = manifest.counts
    context.log.info(f"{counts.get('documents', 0):,} documents, {counts.get('sentences', 0):,} sentences")
    metadata = manifest_metadata(manifest) | {"passages_sample": table(counts.get("passages_sample", []))}
    return materialization(manifest.sha256, metadata | columns_metadata(DOCUMENT_SCHEMA))


# --- vocabulary ---


@step_asset(deps=[corpus], kinds={"beam", "tokenizers"})
def vocabulary(
    context: dg.AssetExecutionContext,
    home: BertHome,
    settings: VocabularyConfig,
    beam_options: BeamOptions,
    from_model: Annotated[
        str, "Take this model's vocabulary over (directory, models:/ URI, hub id) to train it further."
    ],
) -> Made:
    """The vocabulary of the corpus, WordPiece or byte-level BPE, trained on word counts of the training documents.

    With `from_model` it is that model's: weights can be trained further with their own vocabulary alone.
    """
    from bert_pipeline.vocabulary.job import build_vocabulary

    name = context.partition_key
    if from_model:
        manifest = _copy_vocabulary(context, from_model, home.vocabulary(name))
    else:
        inputs, directory = {"corpus": home.corpus(name)}, home.vocabulary(name)
        options = {"beam_options": beam_options, "progress": Progress("shards", context.log.info).show}
        manifest = make("vocabulary", build_vocabulary, directory, settings, inputs, context.log.info, **options)
    tokens = Tokenizer.from_directory(manifest.path).tokens
    context.log.info(f"{len(tokens):,} tokens")
    # Tokens at even distances show the special tokens, the alphabet, frequent words and rare pieces.
    stride = max(1, len(tokens) // 20)
    sample = [{"id": index, "token": tokens[index]} for index in range(0, len(tokens), stride)]
    metadata = manifest_metadata(manifest) | {
        "quality_report": table(_quality_rows(manifest)),
        "tokens_sample": table(sample),
    }
    return materialization(manifest.sha256, metadata)


def _copy_vocabulary(context: dg.AssetExecutionContext, model: str, directory: Path) -> Manifest:
    """Publish the vocabulary of a model as this dump's."""
    tokenizer = Tokenizer.from_directory(resolve_model(model))
    configuration = {"vocab_size": tokenizer.vocab_size, "do_lower_case": tokenizer.do_lower_case}
    inputs = {"model": {"name": tokenizer.vocabulary_name, "sha256": tokenizer.sha256}}

    def build() -> Manifest:
        with publishing(directory, kind="vocabulary", configuration=configuration, inputs=inputs) as draft:
            tokenizer.save(draft.path)
            draft.counts = {"vocab_size": tokenizer.vocab_size}
            draft.provenance = {"from_model": without_secrets(model)}
        return load_manifest(directory, kind="vocabulary")

    context.log.info(f"the vocabulary of {without_secrets(model)} is taken over")
    return COPYING.make(
        directory, build, settings=configuration, inputs={"vocabulary": tokenizer.sha256}, log=context.log.info
    )


def _quality_rows(manifest: Manifest) -> list[dict[str, Any]]:
    """Return how well the vocabulary fits the documents named in the first column; [] for that of a model."""
    if (report := manifest.counts.get("quality")) is None:
        return []
    shown = {key: ", ".join(value) if isinstance(value, list) else value for key, value in report.items()}
    return [{"on": manifest.counts["quality_on"], **shown, "scripts": describe_scripts(report)}]


# --- instances ---


@step_asset(deps=[corpus, vocabulary], kinds={"beam", "parquet"})
def instances(
    context: dg.AssetExecutionContext,
    home: BertHome,
    settings: InstancesConfig,
    max_seq_lengths: Annotated[list[int], "One directory of instances for each length, in tokens."],
    beam_options: BeamOptions,
) -> Made:
    """Sentence pairs for masked-LM and next-sentence prediction, unpadded, one directory for each sequence length."""
    from bert_pipeline.instances.job import build_instances

    name = context.partition_key
    metadata: dict[str, Any] = {}
    versions: dict[str, str] = {}
    total = 0
    if others := [path.name for path in home.all_instances(name) if path.name not in map(str, max_seq_lengths)]:
        context.log.info(f"instances of {', '.join(others)} tokens stay as they were; delete what no training reads")
    inputs = {"corpus": home.corpus(name), "vocabulary": home.vocabulary(name)}
    # Each length is an artifact of its own: adding one leaves the others unchanged.
    for length in max_seq_lengths:
        of_length = dataclasses.replace(settings, max_seq_length=length)
        directory = home.instances(name, length)
        options = {"beam_options": beam_options, "progress": Progress("shards", context.log.info).show}
        manifest = make("instances", build_instances, directory, of_length, inputs, context.log.info, **options)
        context.log.info(f"{manifest.counts.get('instances', 0):,} instances of up to {length} tokens")
        # All lengths share the asset's metadata, so each has its prefix.
        description = manifest_metadata(manifest)
        total += description.pop("dagster/row_count", 0)  # Dagster knows one row count for an asset
        metadata |= {f"{length}/{key}": value for key, value in description.items()}
        metadata[f"{length}/instances_sample"] = table(sample_instances(manifest))
        versions[str(length)] = manifest.sha256
    if total:
        metadata["dagster/row_count"] = total
    if settings.format == "parquet":
        schema = MASKED_INSTANCE_SCHEMA if settings.has_static_masks else INSTANCE_SCHEMA
        # A row is a function of the sentences and, by its random choices, of the documents' ids.
        metadata |= columns_metadata(schema, {"corpus": ("sentences", "document_id")})
    return materialization(content_sha256(versions), metadata)


def sample_instances(manifest: Manifest) -> Iterator[dict[str, Any]]:
    """Yield the first five training instances as text."""
    paths = shard_paths(manifest, "train")
    if not paths:
        return

    # The first row group of the first shard is enough for a few rows.
    tokenizer = Tokenizer.from_directory(manifest.path)
    with local_copy(paths[0]) as path, open_shard(path) as shard:
        columns = shard.read_row_group(0)
    for index in range(min(5, len(columns.is_random_next))):
        ids = columns.input_ids[columns.offsets[index] : columns.offsets[index + 1]]
        yield {
            "tokens": len(ids),
            "segment_b_start": int(columns.segment_b_start[index]),
            "is_random_next": bool(columns.is_random_next[index]),
            "text": shortened(" ".join(tokenizer.tokens[token] for token in ids), 240),
        }


# --- exam ---


@step_asset(deps=[corpus], kinds={"beam"})
def exam(
    context: dg.AssetExecutionContext,
    home: BertHome,
    settings: ExamConfig,
    enabled: Annotated[bool, "Make the pairs; without them a training is examined on the file that it names, if any."],
    beam_options: BeamOptions,
) -> Made:
    """Minimal pairs made from the held-out documents, on which pre-trained models are examined without fine-tuning.

    Beside them are the trigrams of the training documents, which a model should beat.
    """
    from bert_pipeline.beam.options import is_engine
    from bert_pipeline.exam.job import NoPairsError, build_exam

    name = context.partition_key
    directory = home.exam(name)
    if not enabled:
        remove_tree(directory)
        context.log.info("no pairs are made: the preset has no section `exam`")
        return materialization(content_sha256({}), {"exam/pairs": 0})
    # The exam stays in the home, which an engine's workers do not see.
    options = () if is_engine(beam_options) else tuple(beam_options)
    inputs = {"corpus": home.corpus(name)}
    try:
        manifest = make("exam", build_exam, directory, settings, inputs, context.log.info, beam_options=options)
    except NoPairsError as error:
        remove_tree(directory)
        context.log.warning(f"{error}; trainings are not examined")
        return materialization(content_sha256({}), {"exam/pairs": 0})
    context.log.info(", ".join(f"{count:,} pairs {kind}" for kind, count in manifest.counts["pairs"].items()))
    sample = []
    for pair in sample_pairs(read_pairs(directory), 2):
        good, bad = (shortened(" / ".join(text), 240) for text in (pair.good, pair.bad))
        sample.append({"kind": pair.kind, "part": pair.part, "good": good, "bad": bad})
    return materialization(manifest.sha256, manifest_metadata(manifest) | {"pairs_sample": table(sample)})
