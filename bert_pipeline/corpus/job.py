"""The corpus job: a Beam graph around the steps of `bert_pipeline.corpus`.

Documents never travel between workers: a unit's documents go to a file below the output directory, and what Beam
carries are names, counts and one byte a document. So memory stays flat, and any runner that shares a file system with
this process gives the same bytes.
"""

import contextlib
import dataclasses
import json
import logging
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apache_beam as beam

from bert_pipeline.beam.options import num_workers, pipeline_options
from bert_pipeline.configuration import to_mapping
from bert_pipeline.corpus.batches import Unit
from bert_pipeline.corpus.build import (
    CorpusConfig,
    Shard,
    Split,
    WrittenShard,
    collect_dropped,
    plan_shards,
    plan_splits,
    read_units,
    write_shard,
)
from bert_pipeline.corpus.quality import sample_passages
from bert_pipeline.errors import BertError, InputError
from bert_pipeline.manifest import Manifest, foreign_input, load_manifest, publishing

__all__ = ["DROPPED_NAME", "CorpusConfig", "build_corpus"]

DROPPED_NAME = "dropped.tsv"
"""Beside the shards: every article without output, with the reason."""

logger = logging.getLogger(__name__)

_UNITS = "units"
_FAILURE = "failure.json"
_RESULT = "result.json"
_POLL_SECONDS = 1.0


def build_corpus(
    sources: Sequence[str],
    output: Path | str,
    config: CorpusConfig | None = None,
    beam_options: Sequence[str] = (),
    progress: Callable[[int], None] | None = None,
) -> Manifest:
    """Make a corpus directory from dumps, text, JSON lines or pairs; returns its manifest.

    `progress` is called now and then with the number of pages read so far. InputError names the file that is not what
    it should be; with `config.strict` a dump that breaks off is one too. Nothing is left behind on failure.
    """
    config = config or CorpusConfig()
    options = pipeline_options(beam_options)
    splits = plan_splits(sources, config)
    inputs: dict[str, dict[str, str]] = {}
    with (
        publishing(Path(output), kind="corpus", configuration=to_mapping(config), inputs=inputs) as draft,
        _in_background() as hashing,  # while the workers start
    ):
        hashed = hashing.map(foreign_input, dict.fromkeys(split.path for split in splits))
        units = draft.path / _UNITS
        units.mkdir()
        # A worker may stand in another directory than we do.
        anywhere = [dataclasses.replace(split, path=os.path.abspath(split.path)) for split in splits]
        with _reporting(units, progress):
            _run(anywhere, config, draft.path.absolute(), options)
        result = json.loads((units / _RESULT).read_text(encoding="utf-8"))
        num_listed = collect_dropped(units, draft.path / DROPPED_NAME)
        shutil.rmtree(units)
        for leftover in draft.path.glob("*.tmp"):  # of workers that were killed
            leftover.unlink()
        read, kept = result["counts"].get("pages_read", 0), result["counts"]["documents"]
        for problem in result["problems"]:
            logger.warning("%s; of %s pages read, %s documents were kept", problem, f"{read:,}", f"{kept:,}")
        for shard in result["shards"]:
            draft.rows[shard["name"]] = shard["rows"]
            draft.known_sha256[shard["name"]] = shard["sha256"]
        inputs |= {f"source-{i}": file for i, file in enumerate(hashed)}
        shards = [(draft.path / shard["name"], shard["rows"], shard["sha256"]) for shard in result["shards"]]
        draft.counts = {
            **result["counts"],
            "articles_without_text": num_listed,
            "passages_sample": sample_passages(shards),
        }
        draft.provenance = {"sources": list(sources), "workers": num_workers(options)}
        if not draft.counts["documents"]:
            reasons = ", ".join(f"{count} {reason}" for reason, count in draft.counts["dropped"].items())
            raise InputError(f"{', '.join(sources)}: no document is left ({reasons or 'nothing was read'})")
    return load_manifest(output, kind="corpus")


@contextlib.contextmanager
def _in_background() -> Iterator[ThreadPoolExecutor]:
    """A thread whose waiting work is given up when the job fails."""
    executor = ThreadPoolExecutor(1)
    try:
        yield executor
    finally:
        executor.shutdown(wait=False, cancel_futures=True)


def _run(splits: list[Split], config: CorpusConfig, directory: Path, options: Any) -> None:
    """Run the graph; what it finds is in `units/result.json`."""
    units = directory / _UNITS
    try:
        with beam.Pipeline(options=options) as pipeline:
            _ = (
                pipeline
                | "Splits" >> beam.Create(splits, reshuffle=False)  # once is enough
                | "Spread splits" >> beam.Reshuffle()
                | "Read units" >> beam.ParDo(_ReadUnits(config, str(units)))
                | "All units" >> beam.combiners.ToList()
                | "Plan shards" >> beam.ParDo(_PlanShards(config, str(units)))
                | "Spread shards" >> beam.Reshuffle()
                | "Write shards" >> beam.ParDo(_WriteShards(str(units), str(directory)))
                | "All shards" >> beam.combiners.ToList()
                | "Result" >> beam.ParDo(_WriteResult(str(units)))
            )
    except Exception:
        _raise_failure(units)
        raise
    _raise_failure(units)


class _ReadUnits(beam.DoFn):
    """Split -> its units."""

    def __init__(self, config: CorpusConfig, units: str) -> None:
        self._config = config
        self._units = units

    def process(self, split: Split) -> Iterator[Unit]:
        directory = Path(self._units)
        if not (directory / _FAILURE).exists():  # else the job is lost: do not read on for hours
            yield from self._read(split, directory)

    def _read(self, split: Split, directory: Path) -> Iterator[Unit]:
        try:
            for unit in read_units(split, self._config, directory):
                if unit.problems and self._config.strict:
                    raise InputError(f"{unit.problems[0]}; fetch the file again, or leave out strict to keep the rest")
                _write_pages(directory / f"{unit.stem}.pages", unit.counts.get("pages_read", 0))
                yield unit
        except BertError as error:
            _write_failure(directory, split.index, error)


class _PlanShards(beam.DoFn):
    """All units -> the shards, and the counts of all beside them."""

    def __init__(self, config: CorpusConfig, units: str) -> None:
        self._config = config
        self._units = units

    def process(self, units: list[Unit]) -> Iterator[Shard]:
        directory = Path(self._units)
        if not (directory / _FAILURE).exists():
            yield from self._plan(units, directory)

    def _plan(self, units: list[Unit], directory: Path) -> list[Shard]:
        shards, duplicates = plan_shards(units, self._config, directory)
        counts: Counter[str] = Counter()
        dropped: Counter[str] = Counter(duplicates)
        elements: Counter[str] = Counter()
        problems: list[str] = []
        for unit in sorted(units, key=lambda unit: (unit.split, unit.number)):
            counts.update(unit.counts)
            dropped.update(unit.dropped)
            elements.update(unit.dropped_elements)
            problems += unit.problems
        totals = {
            **counts,
            "dropped": {reason: dropped[reason] for reason in sorted(dropped) if dropped[reason]},
            "dropped_elements": {kind: elements[kind] for kind in sorted(elements) if elements[kind]},
            "broken_files": len(problems),
        }
        _write_json(directory / "totals.json", {"counts": totals, "problems": problems})
        return shards


class _WriteShards(beam.DoFn):
    """Shard -> what was written."""

    def __init__(self, units: str, output: str) -> None:
        self._units = units
        self._output = output

    def process(self, shard: Shard) -> Iterator[WrittenShard]:
        yield write_shard(shard, Path(self._units), Path(self._output))


class _WriteResult(beam.DoFn):
    """All written shards -> the result file."""

    def __init__(self, units: str) -> None:
        self._units = units

    def process(self, shards: list[WrittenShard]) -> None:
        directory = Path(self._units)
        if (directory / _FAILURE).exists():
            return
        totals = json.loads((directory / "totals.json").read_text(encoding="utf-8"))
        counts: Counter[str] = Counter()
        for shard in shards:
            counts.update(shard.counts)
        names = ("documents", "documents_train", "documents_held_out", "passages", "sentences", "characters_out")
        found: dict[str, float] = {name: counts[name] for name in (*names, "residue", "scars")}
        for name in ("residue", "scars"):
            found[f"{name}_per_million_characters"] = round(found[name] * 1e6 / max(1, counts["characters_out"]), 2)
        result = {
            "counts": {**totals["counts"], **found},
            "problems": totals["problems"],
            "shards": [
                {"name": shard.name, "rows": shard.rows, "sha256": shard.sha256}
                for shard in sorted(shards, key=lambda shard: shard.name)
            ],
        }
        _write_json(directory / _RESULT, result)


def _write_pages(path: Path, num_pages: int) -> None:
    """For the progress report: whole or not there."""
    temporary = path.with_suffix(".pages-tmp")
    temporary.write_text(str(num_pages))
    temporary.replace(path)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


def _write_failure(directory: Path, split: int, error: BertError) -> None:
    """Leave word for the other workers and the caller; the failure of the earliest split is the one reported."""
    _write_json(directory / f"{split:06d}.{_FAILURE}", str(error))
    (directory / _FAILURE).touch()


def _raise_failure(directory: Path) -> None:
    failures = sorted(directory.glob(f"*.{_FAILURE}"))
    if failures:
        raise InputError(json.loads(failures[0].read_text(encoding="utf-8")))


@contextlib.contextmanager
def _reporting(units: Path, progress: Callable[[int], None] | None) -> Iterator[None]:
    """Call `progress` from a thread of its own with the pages of the units finished so far."""
    if progress is None:
        yield
        return
    stop = threading.Event()
    pages: dict[str, int] = {}

    def report() -> None:
        for path in units.glob("*.pages"):
            if path.name not in pages:
                pages[path.name] = int(path.read_text() or 0)
        progress(sum(pages.values()))

    def poll() -> None:
        while not stop.wait(_POLL_SECONDS):
            report()

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        report()
