"""The corpus job: a Beam graph from splits to shards.

Documents never travel between workers: a worker writes them to files in the scratch directory, and Beam carries names,
counts and one byte per document. So memory stays flat, and any runner whose workers reach the output, on a shared disk
or in a store, gives the same bytes.
"""

import dataclasses
import functools
import itertools
import logging
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from bert_pipeline.atomic import atomic_write
from bert_pipeline.beam import PipelineOptions, beam
from bert_pipeline.beam.options import num_workers, pipeline_options
from bert_pipeline.beam.results import (
    Result,
    WriteResults,
    check_results,
    check_total,
    guarded,
    load_results,
    read_results,
)
from bert_pipeline.beam.workers import ParallelFlatMap, Progress, run_pipeline
from bert_pipeline.configuration import to_mapping
from bert_pipeline.corpus.batches import DROPPED_SUFFIX, PageBatch
from bert_pipeline.corpus.duplicates import Found, compare, plan_comparisons, write_batch_list
from bert_pipeline.corpus.mixture import sum_texts
from bert_pipeline.corpus.near_duplicates import Comparison
from bert_pipeline.corpus.quality import QUALITY_COUNTS, sample_passages
from bert_pipeline.corpus.shards import Shard, collect_dropped, plan_shards, shard_name, write_shard
from bert_pipeline.corpus.splits import CorpusConfig, Split, languages_of_dumps, plan_splits, read_batches
from bert_pipeline.errors import InputError, UsageError, count_of
from bert_pipeline.failed_records import DROPPED_NAME, FAILED, check_failures
from bert_pipeline.hashes import file_sha256
from bert_pipeline.manifest import Draft, Manifest, foreign_input, load_manifest, publishing, refuse_foreign_directory
from bert_pipeline.storage import absolute, make_directory, remove_tree, to_path, without_secrets
from bert_pipeline.wikipedia.templates import load_wiki

logger = logging.getLogger(__name__)

_TOTALS = "totals.json"
"""The plan and the sums over all batches: an output of the planning, and its file."""
_WRITTEN = "written.json"
_MAX_TEMPLATES = 10
"""Templates that are named, the most frequent ones."""


def corpus_settings(config: CorpusConfig) -> dict[str, Any]:
    """Return the settings that identify a corpus: without the path of the template file, whose hash is an input.

    Languages by source are left out where there are none.
    """
    left_out = {"templates"} if config.languages else {"templates", "languages"}
    return {name: value for name, value in to_mapping(config).items() if name not in left_out}


def build_corpus(
    sources: Sequence[str],
    output: Path | str,
    config: CorpusConfig | None = None,
    beam_options: Sequence[str] = (),
    progress: Progress | None = None,
) -> Manifest:
    """Build a corpus directory from dumps, text, JSON lines or pairs; returns its manifest.

    `progress` is called periodically with the number of pages read so far. InputError names the file that does not
    match its format, and with `config.strict` a truncated dump. Nothing is left behind on failure.
    """
    config = config or CorpusConfig()
    options = pipeline_options(beam_options)
    refuse_foreign_directory(to_path(output), "corpus")  # before texts are read for their splits
    splits = plan_splits(sources, config)
    if config.templates:  # a file that is not understood, or not needed, is refused before the work begins
        languages = languages_of_dumps(splits)
        if not languages:
            raise UsageError(f"{config.templates}: templates are of dumps, and no source is one; leave the file out")
        for language in languages:
            load_wiki(language, config.templates)
    inputs: dict[str, dict[str, str]] = {}
    with publishing(
        output, kind="corpus", configuration=corpus_settings(config), inputs=inputs, by_workers=True
    ) as draft:
        paths = list(dict.fromkeys(split.path for split in splits))
        hashed = _foreign_inputs(paths)  # while the workers start
        scratch = draft.path / "scratch"
        make_directory(scratch)
        # Workers may run in another directory.
        splits = [dataclasses.replace(split, path=absolute(split.path)) for split in splits]
        job = config
        if config.templates:
            # A copy that every worker reaches, and that nobody edits meanwhile.
            frozen = scratch / "templates.toml"
            with atomic_write(frozen) as temporary:
                temporary.write_bytes(to_path(config.templates).read_bytes())
            name = to_path(without_secrets(config.templates)).name
            inputs["templates"] = {"name": name, "sha256": file_sha256(frozen)}
            job = dataclasses.replace(config, templates=absolute(str(frozen)))
        _run(splits, job, draft, scratch.absolute(), options, progress)

        # Collect the workers' results: what was read, and the shards that were planned from it.
        written = load_results(scratch / _WRITTEN)
        (totals,) = read_results(scratch / _TOTALS, {_TOTALS: None})
        shards = check_results(written, totals["plan"])
        counts = {**totals["counts"], **_sum_counts(shard["counts"] for shard in shards)}
        for problem in totals["problems"]:
            read, kept = counts.get("pages_read", 0), counts["documents"]
            logger.warning("%s; of %s read, %s kept", problem, count_of(read, "pages"), count_of(kept, "documents"))
        if totals["warning"]:
            logger.warning("%s (%s lists them)", totals["warning"], DROPPED_NAME)
        if counts["lost_templates"]:
            logger.warning(
                "%s lost to templates that are in no file, and sentences shortened or dropped: %s; --templates FILE "
                "says what they show (docs/templates.md)",
                count_of(counts["dropped_elements"]["word of an unknown template"], "words"),
                ", ".join(f"{name} {number}" for name, number in counts["lost_templates"].items()),
            )  # fmt: skip
        same_id = counts["dropped"].get("same id", 0)
        if same_id and any(split.kind != "wikipedia" for split in splits):
            logger.warning(
                "%s with the id of another one dropped (%s names them); unless they are the same, give each source a "
                "name, as in books=jsonl:PATH",
                count_of(same_id, "documents"), DROPPED_NAME,
            )  # fmt: skip
        if config.held_out_per_mille and counts["documents"] and not counts["documents_held_out"]:
            reason = "there is only one" if counts["documents"] == 1 else "all are similar to each other"
            logger.warning("no document is held out: %s; add other text for evaluation", reason)
        lists = [scratch / name for name in (*totals["dropped_lists"], *(shard["dropped_list"] for shard in shards))]
        counts["articles_without_text"] = collect_dropped(lists, draft.path / DROPPED_NAME)
        remove_tree(scratch)

        # Describe the corpus in its manifest.
        draft.files_without_rows = {DROPPED_NAME}
        for shard in shards:
            draft.rows[shard["name"]] = shard["rows"]
            draft.known_sha256[shard["name"]] = shard["sha256"]
        inputs |= {f"source-{i}": file for i, file in enumerate(hashed.result())}
        published = [(draft.path / shard["name"], shard["rows"], shard["sha256"]) for shard in shards]
        counts["texts"] = sum_texts(text for shard in shards for text in shard["texts"])
        draft.counts = {**counts, "passages_sample": sample_passages(published)}
        draft.provenance = {"sources": [without_secrets(source) for source in sources], "workers": num_workers(options)}
        if not counts["documents"]:
            reasons = ", ".join(f"{count} {reason}" for reason, count in counts["dropped"].items())
            named = ", ".join(map(without_secrets, sources))
            raise InputError(f"{named}: no document is left ({reasons or 'nothing was read'})")
    return load_manifest(output, kind="corpus")


def _foreign_inputs(paths: Sequence[str]) -> "Future[list[dict[str, str]]]":
    """Hash files in a thread that ends with the process: one of an executor would keep a failed job alive."""
    future: Future[list[dict[str, str]]] = Future()

    def run() -> None:
        try:
            future.set_result([foreign_input(path) for path in paths])
        except BaseException as error:  # raised where the result is asked for
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def _run(
    splits: list[Split],
    config: CorpusConfig,
    draft: Draft,
    scratch: Path,
    options: PipelineOptions,
    progress: Progress | None,
) -> None:
    read = functools.partial(_read_batches, config=config, scratch=scratch)
    comparisons = functools.partial(_plan_comparisons, scratch=scratch)
    find = functools.partial(_find, scratch=scratch)
    plan = functools.partial(_plan_shards, config=config, scratch=scratch, num_splits=len(splits))
    write = functools.partial(_write_shard, scratch=scratch, output=draft.path.absolute())
    with run_pipeline(options, preload=__name__, draft=draft, progress=progress) as pipeline:
        batches = (
            pipeline
            | "Splits" >> beam.Create(splits, reshuffle=False)  # the next step reshuffles
            | "Spread splits" >> beam.Reshuffle()
            | "Read batches" >> beam.ParDo(ParallelFlatMap(read, lambda batch: batch.counts["pages_read"]))
            | "All batches" >> beam.combiners.ToList()
        )
        duplicates = (
            batches
            | "Plan comparisons" >> beam.FlatMap(lambda batches: guarded(comparisons, batches))
            | "Spread comparisons" >> beam.Reshuffle()
            | "Compare" >> beam.ParDo(ParallelFlatMap(find))
        )
        plans = batches | "Plan shards" >> beam.FlatMap(
            lambda batches, found: guarded(plan, batches, found), beam.pvalue.AsList(duplicates)
        ).with_outputs(_TOTALS, main="shards")
        _ = plans[_TOTALS] | "Totals" >> WriteResults(scratch / _TOTALS)
        _ = (
            plans["shards"]
            | "Spread shards" >> beam.Reshuffle()
            | "Write shards" >> beam.ParDo(ParallelFlatMap(write))
            | "Results" >> WriteResults(scratch / _WRITTEN)
        )


def _read_batches(split: Split, *, config: CorpusConfig, scratch: Path) -> Iterator[PageBatch]:
    for batch in read_batches(split, config, scratch):
        if batch.problems and config.strict:
            raise InputError(f"{batch.problems[0]}; fetch the file again, or leave out strict to keep the rest")
        yield batch


def _ordered(batches: list[PageBatch]) -> list[PageBatch]:
    return sorted(batches, key=lambda batch: (batch.split, batch.number))


def _plan_comparisons(batches: list[PageBatch], *, scratch: Path) -> list[Comparison]:
    write_batch_list(_ordered(batches), scratch)
    return plan_comparisons(batches)


def _find(task: Comparison, *, scratch: Path) -> Sequence[Found]:
    return [compare(task, scratch)]


def _plan_shards(
    batches: list[PageBatch], found: Sequence[Found], *, config: CorpusConfig, scratch: Path, num_splits: int
) -> Iterator[Any]:
    """Yield the shards and, as another output, their plan and the counts of all batches."""
    batches = _ordered(batches)
    # Every split yields a batch, even if it holds no page, and numbers its batches.
    check_total("parts of the sources that were read", len({batch.split for batch in batches}), num_splits)
    num_batches = sum(batch.number + 1 for batch in batches if batch.is_last)
    check_total("batches of documents that were read", len(batches), num_batches)
    check_total("comparisons", len(found), len(plan_comparisons(batches)))
    shards, decisions = plan_shards(batches, found, config, scratch)
    counts: Counter[str] = Counter()
    dropped: Counter[str] = Counter(decisions.dropped)
    elements: Counter[str] = Counter()
    lost: Counter[str] = Counter()
    problems: dict[str, str] = {}  # of each file the first: where a dump breaks off, its end is missing too
    for batch in batches:
        counts.update(batch.counts)
        dropped.update(batch.dropped)
        elements.update(batch.dropped_elements)
        lost.update(batch.lost_templates)
        for problem in batch.problems:
            problems.setdefault(problem.partition(": ")[0], problem)
    # Only reasons that occurred, by name: people read them in the manifest.
    totals = {
        **counts,
        "dropped": {reason: dropped[reason] for reason in sorted(dropped) if dropped[reason]},
        "dropped_elements": {kind: elements[kind] for kind in sorted(elements) if elements[kind]},
        "lost_templates": dict(lost.most_common(_MAX_TEMPLATES)),
        "broken_files": len(problems),
        "near_duplicates": decisions.near_duplicates,
    }
    failures = itertools.chain.from_iterable(batch.failures for batch in batches)
    warning = check_failures("pages", dropped[FAILED], counts["pages_read"], list(failures))
    plan = {shard_name(shard.index): shard.counts["documents"] for shard in shards}
    lists = [f"{batch.stem}{DROPPED_SUFFIX}" for batch in batches]
    result = {
        "name": _TOTALS,
        "counts": totals,
        "problems": list(problems.values()),
        "warning": warning,
        "plan": plan,
        "dropped_lists": lists,
    }
    yield beam.pvalue.TaggedOutput(_TOTALS, result)
    yield from shards


def _write_shard(shard: Shard, *, scratch: Path, output: Path) -> Sequence[Result]:
    return [write_shard(shard, scratch, output)]


def _sum_counts(shards: Iterable[dict[str, int]]) -> dict[str, float]:
    """Sum the counts of all shards, and relate leftover markup and broken text to the number of characters."""
    counts: Counter[str] = Counter()
    for shard in shards:
        counts.update(shard)
    names = ("documents", "documents_train", "documents_held_out", "passages", "sentences", "words", "characters_out")
    sums: dict[str, float] = {name: counts[name] for name in (*names, *QUALITY_COUNTS)}
    for name in QUALITY_COUNTS:
        sums[f"{name}_per_million_characters"] = round(sums[name] * 1e6 / max(1, counts["characters_out"]), 2)
    return sums
