"""Dump and corpus: what is read, and the documents that come out of it."""

import dataclasses
import json
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
from bert_pipeline.manifest import Manifest, foreign_input, load_manifest, publishing, write_text_durably
from workflows.configuration import config_class, from_launchpad, launchpad_preset
from workflows.metadata import for_reading, manifest_metadata, readable_failures, table
from workflows.partitions import dump_partitions, sample_seed
from workflows.phases import job_tags
from workflows.resources import BertHome
from workflows.retraining import dump_sites
from workflows.reuse import made_or_reused, recipe
from workflows.versions import code_version

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
