"""The whole jobs as users run them, each a process of its own: rates, what a second worker brings, and memory."""

import json
import shutil
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.instance_inputs import InstanceInputs
from benchmarks.instance_parts import REFERENCE
from benchmarks.table import Row, medians
from benchmarks.timed_process import Timing, run_timed
from bert_pipeline.manifest import Manifest

MANY = 2
"""Workers beside one."""

JOB_TARGET = 20_000
SPEEDUP_TARGET = 1.8
MEMORY_TARGETS = {"worker": 700.0, "parent": 1000.0}
GROWTH = 10
FLATNESS_TARGET = 1.1
"""A corpus ten times as large may take this much more memory: what is called flat."""


class InstanceJobs:
    """The instance and the vocabulary job over the inputs."""

    def __init__(self, inputs: InstanceInputs, rounds: int, reference: Callable[[], float]) -> None:
        self.inputs = inputs
        self.rounds = rounds
        self.reference = reference
        self.timings: dict[int, list[Timing]] = {1: [], MANY: []}
        self.peaks = {"worker": 0.0, "parent": 0.0}

    def speed_rows(self) -> list[Row]:
        """Reading, tokenizing, pairs, masks, writing, Beam: everything but the start, which is printed apart."""
        few, corpus = self.inputs.few, self.inputs.corpus
        start = {n: min(self._job("instances", few, n)[0].seconds for _ in range(2)) for n in self.timings}

        def rate(file_format: str, workers: int) -> float:
            timing, result = self._job("instances", corpus, workers, "--format", file_format)
            if file_format == "parquet":
                self.timings[workers].append(timing)
            if workers == MANY:
                for who, peak in self.peaks.items():
                    self.peaks[who] = max(peak, result[f"{who}_bytes"] / 1e6)
            return float(result["made"]) / max(timing.seconds - start[workers], 1e-3) / workers

        one, many, tfrecord = "Parquet, 1 worker", f"Parquet, {MANY} workers", f"TFRecord, {MANY} workers"
        contestants = {
            one: lambda: rate("parquet", 1),
            tfrecord: lambda: rate("tfrecord", MANY),
            many: lambda: rate("parquet", MANY),
            REFERENCE: self.reference,
        }
        rates = medians(contestants, self.rounds, "whole job")
        note = f"{self.inputs.megabytes_of(corpus):.0f} MB of text"
        seconds = {workers: min(timing.seconds for timing in timings) for workers, timings in self.timings.items()}
        return [
            *(
                Row(what=f"whole job, {name}", unit="instances/s and core", ours=rates[name], peer=REFERENCE,
                    theirs=rates[REFERENCE], note=note, target=JOB_TARGET)
                for name in (one, many, tfrecord)
            ),
            Row(what=f"whole job, {MANY} workers over one", unit="times", ours=rates[many] * MANY / rates[one],
                note=f"{seconds[1] / seconds[MANY]:.2f} times with the start", target=SPEEDUP_TARGET),
            *(
                Row(what=f"processor time of the whole job, {name}", unit="s",
                    ours=min(timing.cpu_seconds for timing in self.timings[workers]),
                    note="less is better; all processes, start included")
                for workers, name in ((1, one), (MANY, many))
            ),
            Row(what="start of the job", unit="s", ours=start[MANY], note="less is better; left out above"),
            *(_memory_row("whole job", who, peak, note) for who, peak in self.peaks.items()),
        ]  # fmt: skip

    def memory_rows(self) -> list[Row]:
        """Peak memory on the corpus and on one ten times as large; instances in one pass, as ten only take longer."""
        corpora = (self.inputs.corpus, self.inputs.repeated(self.inputs.megabytes * GROWTH))
        less, more = (f"{self.inputs.megabytes_of(corpus):,.0f} MB" for corpus in corpora)
        rows = []
        for job, title, options in (
            ("instances", "instances in one pass", ("--dupe-factor", "1")),
            ("vocabulary", "vocabulary", ()),
        ):
            results = [self._job(job, corpus, MANY, *options)[1] for corpus in corpora]
            print(f"memory: {title}: {results}", file=sys.stderr, flush=True)
            for who in ("worker", "parent"):
                few, many = (result[f"{who}_bytes"] / 1e6 for result in results)
                rows.append(_memory_row(title, who, many, f"{more} of text; {few:.0f} MB on {less}"))
                what = f"memory, {title}, {who}, {GROWTH} times the text"
                rows.append(Row(what=what, unit="times", ours=many / few, target=FLATNESS_TARGET, less_is_better=True))
        self._fresh_output()
        return rows

    def _job(self, job: str, corpus: Manifest, workers: int, *options: str) -> tuple[Timing, dict[str, Any]]:
        output = self._fresh_output()
        command = [sys.executable, "-m", "benchmarks.measured_job", job, str(corpus.path), output]
        command += ["--workers", str(workers), "--vocab", str(self.inputs.vocabulary), *options]
        timing = run_timed(command, one_core=False)
        return timing, json.loads(timing.output.splitlines()[-1])

    def _fresh_output(self) -> str:
        directory = self.inputs.directory / "output"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        return str(directory / "result")


def _memory_row(what: str, who: str, megabytes: float, note: str) -> Row:
    return Row(
        what=f"peak memory, {what}, {who}",
        unit="MB",
        ours=megabytes,
        note=note,
        target=MEMORY_TARGETS[who],
        less_is_better=True,
    )
