"""The corpus job: a Beam graph from splits to shards.

Documents never travel between workers: a worker writes them to files in the scratch directory, and Beam carries names,
counts and one byte per document. So memory stays flat, and any runner that shares a file system with this process
gives the same bytes.
"""

import contextlib
import dataclasses
import functools
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bert_pipeline.beam import PipelineOptions, beam
from bert_pipeline.beam.failures import has_failed, raise_failure, record_failure
from bert_pipeline.beam.options import num_workers, pipeline_options
from bert_pipeline.beam.progress import call_periodically
from bert_pipeline.beam.results import Result, WriteResults, check_total, read_results
from bert_pipeline.beam.workers import ParallelFlatMap, worker_processes
from bert_pipeline.configuration import to_mapping
from bert_pipeline.corpus.batches import DROPPED_SUFFIX, PageBatch
from bert_pipeline.corpus.mixture import TEXTS_SCHEMA, sum_texts
from bert_pipeline.corpus.near_duplicates import BandTask, find_pairs, plan_band_tasks
from bert_pipeline.corpus.quality import QUALITY_COUNTS, sample_passages
from bert_pipeline.corpus.shards import Shard, collect_dropped, plan_shards, shard_name, write_shard
from bert_pipeline.corpus.splits import CorpusConfig, Split, plan_splits, read_batches
from bert_pipeline.errors import InputError
from bert_pipeline.manifest import Manifest, atomic_write, foreign_input, load_manifest, publishing
from bert_pipeline.storage import absolute, make_directory, remove_tree, to_path
from bert_pipeline.wikipedia.templates import load_wiki

DROPPED_NAME = "dropped.tsv"
"""File next to the shards that lists every article without output, with the reason."""

logger = logging.getLogger(__name__)

_TOTALS = "totals.json"
_WRITTEN = "written.json"


def recorded_settings(config: CorpusConfig) -> dict[str, Any]:
    """Return the settings that identify a corpus: without the path of the template file, whose hash is an input."""
    return {name: value for name, value in to_mapping(config).items() if name != "templates"}


def build_corpus(
    sources: Sequence[str],
    output: Path | str,
    config: CorpusConfig | None = None,
    beam_options: Sequence[str] = (),
    progress: Callable[[int], None] | None = None,
) -> Manifest:
    """Build a corpus directory from dumps, text, JSON lines or pairs; returns its manifest.

    `progress` is called periodically with the number of pages read so far. InputError names the file that does not
    match its format, and with `config.strict` a truncated dump. Nothing is left behind on failure.
    """
    config = config or CorpusConfig()
    options = pipeline_options(beam_options)
    if config.templates:
        load_wiki("", config.templates)  # a file that is not understood is refused before the work begins
    splits = plan_splits(sources, config)
    inputs: dict[str, dict[str, str]] = {}
    with (
        publishing(
            output, kind="corpus", configuration=recorded_settings(config), inputs=inputs, by_workers=True
        ) as draft,
        _background_thread() as hashing,  # while the workers start
    ):
        hashed = hashing.map(foreign_input, dict.fromkeys(split.path for split in splits))
        scratch = draft.path / "scratch"
        make_directory(scratch)
        # Workers may run in another directory.
        splits = [dataclasses.replace(split, path=absolute(split.path)) for split in splits]
        job = dataclasses.replace(config, templates=absolute(config.templates) if config.templates else "")
        with raise_failure(scratch), _report_pages(scratch, progress):
            _run(splits, job, draft.path.absolute(), scratch.absolute(), options)

        # Collect the workers' results: what was read, and the shards that were planned from it.
        totals = json.loads((scratch / _TOTALS).read_text(encoding="utf-8"))
        shards = read_results(scratch / _WRITTEN, totals["plan"])
        counts = {**totals["counts"], **_sum_counts(shard["counts"] for shard in shards)}
        for problem in totals["problems"]:
            read, kept = counts.get("pages_read", 0), counts["documents"]
            logger.warning("%s; of %s pages read, %s documents were kept", problem, f"{read:,}", f"{kept:,}")
        same_id = counts["dropped"].get("same id", 0)
        if same_id and any(split.kind != "wikipedia" for split in splits):
            logger.warning(
                "%s documents have the id of another one and are dropped (%s names them); unless they are the same, "
                "give each source a name, as in books=jsonl:PATH",
                f"{same_id:,}", DROPPED_NAME,
            )  # fmt: skip
        if config.held_out_per_mille and counts["documents"] and not counts["documents_held_out"]:
            logger.warning("no document is held out: all are similar to each other; add other text for evaluation")
        lists = [scratch / name for name in (*totals["dropped_lists"], *(shard["dropped_list"] for shard in shards))]
        counts["articles_without_text"] = collect_dropped(lists, draft.path / DROPPED_NAME)
        remove_tree(scratch)
        for leftover in draft.path.glob("*.tmp"):  # of killed workers
            leftover.unlink()

        # Describe the corpus in its manifest.
        for shard in shards:
            draft.rows[shard["name"]] = shard["rows"]
            draft.known_sha256[shard["name"]] = shard["sha256"]
        inputs |= {f"source-{i}": file for i, file in enumerate(hashed)}
        if config.templates:
            inputs["templates"] = foreign_input(config.templates)
        written = [(draft.path / shard["name"], shard["rows"], shard["sha256"]) for shard in shards]
        counts["texts"] = sum_texts(pa.Table.from_pylist(shard["texts"], TEXTS_SCHEMA) for shard in shards).to_pylist()
        draft.counts = {**counts, "passages_sample": sample_passages(written)}
        draft.provenance = {"sources": list(sources), "workers": num_workers(options)}
        if not counts["documents"]:
            reasons = ", ".join(f"{count} {reason}" for reason, count in counts["dropped"].items())
            raise InputError(f"{', '.join(sources)}: no document is left ({reasons or 'nothing was read'})")
    return load_manifest(output, kind="corpus")


@contextlib.contextmanager
def _background_thread() -> Iterator[ThreadPoolExecutor]:
    """Yield an executor with one thread; its queued work is canceled when the block ends."""
    executor = ThreadPoolExecutor(1)
    try:
        yield executor
    finally:
        executor.shutdown(wait=False, cancel_futures=True)


@contextlib.contextmanager
def _report_pages(scratch: Path, progress: Callable[[int], None] | None) -> Iterator[None]:
    """Around a pipeline: report the sum of the page counts that workers write to `*.pages` files."""
    if progress is None:
        yield
        return
    pages: dict[str, int] = {}

    def report() -> None:
        # A worker writes each file once, so that it need not be read again.
        for path in scratch.glob("*.pages"):
            if path.name not in pages:
                pages[path.name] = int(path.read_text())
        progress(sum(pages.values()))

    with call_periodically(report):
        yield


def _run(splits: list[Split], config: CorpusConfig, output: Path, scratch: Path, options: PipelineOptions) -> None:
    read = functools.partial(_read_batches, config=config, scratch=str(scratch))
    bands = functools.partial(_plan_bands, scratch=str(scratch))
    compare = functools.partial(_find_pairs, scratch=str(scratch))
    write = functools.partial(_write_shard, scratch=str(scratch), output=str(output))
    with worker_processes(options, preload=__name__), beam.Pipeline(options=options) as pipeline:
        batches = (
            pipeline
            | "Splits" >> beam.Create(splits, reshuffle=False)  # the next step reshuffles
            | "Spread splits" >> beam.Reshuffle()
            | "Read batches" >> beam.ParDo(ParallelFlatMap(read))
            | "All batches" >> beam.combiners.ToList()
        )
        pairs = (
            batches
            | "Plan bands" >> beam.FlatMap(bands)
            | "Spread bands" >> beam.Reshuffle()
            | "Near texts" >> beam.ParDo(ParallelFlatMap(compare))
        )
        _ = (
            batches
            | "Plan shards"
            >> beam.FlatMap(
                _plan_shards,
                pairs=beam.pvalue.AsList(pairs),
                config=config,
                scratch=str(scratch),
                num_splits=len(splits),
            )
            | "Spread shards" >> beam.Reshuffle()
            | "Write shards" >> beam.ParDo(ParallelFlatMap(write))
            | "Results" >> WriteResults(scratch / _WRITTEN)
        )


def _read_batches(split: Split, *, config: CorpusConfig, scratch: str) -> Iterator[PageBatch]:
    directory = to_path(scratch)
    if has_failed(directory):
        return
    with record_failure(directory, split.index):
        for batch in read_batches(split, config, directory):
            if batch.problems and config.strict:
                raise InputError(f"{batch.problems[0]}; fetch the file again, or leave out strict to keep the rest")
            # The parent polls these files for its progress.
            with atomic_write(directory / f"{batch.stem}.pages") as path:
                path.write_text(str(batch.counts.get("pages_read", 0)))
            yield batch


def _plan_bands(batches: list[PageBatch], *, scratch: str) -> list[BandTask]:
    directory = to_path(scratch)
    if has_failed(directory):
        return []
    ordered = sorted(batches, key=lambda batch: (batch.split, batch.number))
    return plan_band_tasks([batch.stem for batch in ordered], directory)


def _find_pairs(task: BandTask, *, scratch: str) -> Sequence[np.ndarray]:
    directory = to_path(scratch)
    return () if has_failed(directory) else (find_pairs(task, directory),)


def _plan_shards(
    batches: list[PageBatch], pairs: Sequence[np.ndarray], *, config: CorpusConfig, scratch: str, num_splits: int
) -> list[Shard]:
    """Plan the shards, and write the plan and the counts of all batches to `totals.json`."""
    directory = to_path(scratch)
    if has_failed(directory):
        return []
    batches = sorted(batches, key=lambda batch: (batch.split, batch.number))
    # Every split yields a batch, even if it holds no page.
    with record_failure(directory, 0):
        check_total("parts of the sources that were read", len({batch.split for batch in batches}), num_splits)
    if has_failed(directory):
        return []
    shards, decisions = plan_shards(batches, config, directory, pairs)
    counts: Counter[str] = Counter()
    dropped: Counter[str] = Counter(decisions.dropped)
    elements: Counter[str] = Counter()
    problems: list[str] = []
    for batch in batches:
        counts.update(batch.counts)
        dropped.update(batch.dropped)
        elements.update(batch.dropped_elements)
        problems += batch.problems
    # Only reasons that occurred, by name: people read them in the manifest.
    totals = {
        **counts,
        "dropped": {reason: dropped[reason] for reason in sorted(dropped) if dropped[reason]},
        "dropped_elements": {kind: elements[kind] for kind in sorted(elements) if elements[kind]},
        "broken_files": len(problems),
        "near_duplicates": decisions.near_duplicates,
    }
    plan = {shard_name(shard.index): shard.counts["documents"] for shard in shards}
    lists = [f"{batch.stem}{DROPPED_SUFFIX}" for batch in batches]
    with atomic_write(directory / _TOTALS) as path:
        document = {"counts": totals, "problems": problems, "plan": plan, "dropped_lists": lists}
        path.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    return shards


def _write_shard(shard: Shard, *, scratch: str, output: str) -> Sequence[Result]:
    directory = to_path(scratch)
    if has_failed(directory):
        return []
    with record_failure(directory, shard.index):
        return [dataclasses.asdict(write_shard(shard, directory, to_path(output)))]
    return []


def _sum_counts(shards: Iterable[dict[str, int]]) -> dict[str, float]:
    """Sum the counts of all shards, and relate leftover markup and broken text to the number of characters."""
    counts: Counter[str] = Counter()
    for shard in shards:
        counts.update(shard)
    names = ("documents", "documents_train", "documents_held_out", "passages", "sentences", "words", "characters_out")
    found: dict[str, float] = {name: counts[name] for name in (*names, *QUALITY_COUNTS)}
    for name in QUALITY_COUNTS:
        found[f"{name}_per_million_characters"] = round(found[name] * 1e6 / max(1, counts["characters_out"]), 2)
    return found
