"""Extraction of a Wikipedia dump: megabytes of XML a second, beside wikiextractor and mwparserfromhell.

Every figure is a whole command from dump to written output, the interpreter's start included. "One core" pins the
command and its helper processes to one core; ours is then the plain function without Beam. "All cores" is the job as
users run it, Beam's start left out and printed apart.
"""

import argparse
import cProfile
import io
import json
import pstats
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.extraction import extract_dump
from benchmarks.machine import describe, num_cores
from benchmarks.peer_environment import PeerEnvironment
from benchmarks.repeated_dump import repeat_dump, sample_dump, source_name
from benchmarks.table import Contestant, Row, medians, render
from benchmarks.timed_process import run_timed
from benchmarks.working_directory import working_directory
from bert_pipeline.errors import BertError

WIKIEXTRACTOR = "wikiextractor"
MWPARSERFROMHELL = "mwparserfromhell"
SLOW_PEER_SHARE = 6
"""mwparserfromhell reads a sixth of the input: it is several times slower, and its rate does not depend on size."""


class CorpusBenchmark:
    """Inputs, peers and output directory of one run."""

    def __init__(self, dump: Path | None, megabytes: float, rounds: int, *, cpu_time: bool = False) -> None:
        self.directory = working_directory("corpus")
        self.output = self.directory / "output"
        source = dump or sample_dump(self.directory)
        self.rounds = rounds
        self.cpu_time = cpu_time
        name = source_name(source)
        self.xml = repeat_dump(source, self.directory / f"{name}-{megabytes:g}mb.xml", megabytes)
        small = megabytes / SLOW_PEER_SHARE
        self.small_xml = repeat_dump(source, self.directory / f"{name}-{small:g}mb.xml", small)
        self.one_page = repeat_dump(source, self.directory / f"{name}-start.xml", 0.01)
        self.bz2 = repeat_dump(source, self.directory / f"{name}-{megabytes:g}mb.xml.bz2", megabytes)
        self.peers = PeerEnvironment(self.directory / "environment", (WIKIEXTRACTOR, MWPARSERFROMHELL))

    def rows(self) -> list[Row]:
        """Measure everything."""
        rows = []
        for path, kind in ((self.xml, "XML"), (self.bz2, "bz2")):
            strip_code = self._strip_code() if kind == "XML" else {}
            contestants = {"ours": self._ours(path), **self._wikiextractor(path, one_core=True), **strip_code}
            rates = medians(contestants, self.rounds, f"{kind}, one core")
            what = f"{kind}, one core"
            rows.append(self._row(what, rates, WIKIEXTRACTOR, "sentences and Parquet included in ours"))
            if kind == "XML":
                note = f"strip_code on {self.small_xml.stat().st_size / 1e6:.0f} MB, text only"
                rows.append(self._row(what, rates, MWPARSERFROMHELL, note))
        start = min(self._job_seconds(self.one_page) for _ in range(2))
        for path, kind in ((self.xml, "XML"), (self.bz2, "bz2")):
            rates = medians(
                {
                    "ours": lambda path=path: self._rate(path, self._job_seconds(path) - start),  # type: ignore[misc]
                    **self._wikiextractor(path, one_core=False),
                },
                self.rounds,
                f"{kind}, all cores",
            )
            rows.append(self._row(f"{kind}, {num_cores()} cores", rates, WIKIEXTRACTOR, "ours by the Beam job"))
        rows.append(Row(what="start of the Beam job", unit="s", ours=start, note="less is better; a dump of one page"))
        return rows + [row for path in (self.small_xml, self.xml) for row in self._memory_rows(path)]

    def _memory_rows(self, path: Path) -> list[Row]:
        """Peak resident memory of the Beam job on all cores: it must not grow with the dump."""
        module = [sys.executable, "-m", "benchmarks.measured_job", "corpus", str(path), str(self._fresh_output())]
        peaks = json.loads(run_timed([*module, "--workers", str(num_cores())], one_core=False).output)
        size = f"{path.stat().st_size / 1e6:.0f} MB of XML"
        return [
            Row(
                what=f"peak memory, {name}", unit="MB", ours=peaks[f"{key}_bytes"] / 1e6, note=f"less is better; {size}"
            )
            for name, key in (("parent", "parent"), ("largest worker", "worker"))
        ]

    def _row(self, what: str, rates: dict[str, float], peer: str, note: str) -> Row:
        version = self.peers.versions.get(peer, "")
        return Row(
            what=what, unit="MB of XML/s", ours=rates["ours"], peer=f"{peer} {version}".strip(),
            theirs=rates.get(peer), note=note,
        )  # fmt: skip

    def _rate(self, path: Path, seconds: float) -> float:
        """Megabytes of plain XML a second, whatever the compression."""
        xml = self.xml if path == self.bz2 else path
        return xml.stat().st_size / 1e6 / max(seconds, 1e-3)

    def _fresh_output(self) -> Path:
        shutil.rmtree(self.output, ignore_errors=True)
        self.output.mkdir()
        return self.output / "result"

    def _timed(self, path: Path, *command: str, one_core: bool) -> float:
        timing = run_timed([*command], one_core=one_core)
        return self._rate(path, timing.cpu_seconds if one_core and self.cpu_time else timing.seconds)

    def _ours(self, path: Path) -> Contestant:
        def run() -> float:
            output = str(self._fresh_output())
            return self._timed(path, sys.executable, "-m", "benchmarks.extraction", str(path), output, one_core=True)

        return run

    def _job_seconds(self, path: Path) -> float:
        command = [sys.executable, "-m", "benchmarks.extraction", str(path), str(self._fresh_output()), "--beam"]
        return run_timed(command, one_core=False).seconds

    def _wikiextractor(self, path: Path, *, one_core: bool) -> dict[str, Contestant]:
        """At its fastest settings: no template expansion, no reports, large output files, all cores where allowed."""
        if self.peers.problem:
            return {}

        def run() -> float:
            output = str(self._fresh_output())
            settings = ["--no-templates", "-q", "-b", "64M", "--processes", str(1 if one_core else num_cores())]
            module = ["-m", "wikiextractor.WikiExtractor", str(path), "-o", output]
            return self._timed(path, str(self.peers.python), *module, *settings, one_core=one_core)

        return {WIKIEXTRACTOR: run}

    def _strip_code(self) -> dict[str, Contestant]:
        if self.peers.problem:
            return {}
        script = Path(__file__).with_name("strip_code.py")

        def run() -> float:
            output = str(self._fresh_output())
            command = [str(self.peers.python), str(script), str(self.small_xml), output]
            return self._timed(self.small_xml, *command, one_core=True)

        return {MWPARSERFROMHELL: run}

    def profile(self) -> str:
        """Return where one process spends its time, by function."""
        with cProfile.Profile() as profiler:
            extract_dump(self.small_xml, self._fresh_output())
        text = io.StringIO()
        pstats.Stats(profiler, stream=text).strip_dirs().sort_stats("tottime").print_stats(25)
        return text.getvalue()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.corpus", description=__doc__)
    parser.add_argument("--dump", type=Path, help="a dump to repeat (default: the generated encyclopaedia)")
    parser.add_argument("--megabytes", type=float, default=60.0, help="size of the input, in MB of XML")
    parser.add_argument("--rounds", type=int, default=5, help="rounds; medians are printed")
    parser.add_argument("--quick", action="store_true", help="3 MB and one round: shows that it runs, not how fast")
    parser.add_argument(
        "--cpu-time", action="store_true", help="one core: divide by processor time, on a machine that is not quiet"
    )
    parser.add_argument("--profile", action="store_true", help="print where one process spends its time, and stop")
    args = parser.parse_args(arguments)
    if args.quick:
        args.megabytes, args.rounds = min(args.megabytes, 3.0), 1
    try:
        benchmark = CorpusBenchmark(args.dump, args.megabytes, args.rounds, cpu_time=args.cpu_time)
        if args.profile:
            print(benchmark.profile())
            return 0
        head = describe(("apache-beam", "pyarrow", "sentencex"))
        rows = benchmark.rows()
    except BertError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    source = args.dump.name if args.dump else "the generated encyclopaedia"
    clock = "; one core: by processor time" if args.cpu_time else ""
    print(f"{head}\n{args.megabytes:g} MB of XML: {source}, repeated; medians of {args.rounds} rounds{clock}\n")
    if benchmark.peers.problem:
        print(f"The peers could not be installed: {benchmark.peers.problem}\n")
    print(render(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
