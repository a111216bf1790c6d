"""Extraction of a Wikipedia dump: megabytes of XML per second, compared with wikiextractor and mwparserfromhell.

Every figure is a whole command from dump to written output, including the start of the interpreter. "One core" pins the
command and its helper processes to one core; ours is then the plain function without Beam. "All cores" is the job as
users run it; Beam's start is excluded and has a row of its own.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import (
    Contestant,
    PeerEnvironment,
    Row,
    describe_machine,
    errors_as_exit_codes,
    fresh_directory,
    medians,
    num_cores,
    profile,
    program,
    render,
    run_timed,
    working_directory,
)
from benchmarks.inputs import repeat_dump, sample_dump, source_name
from benchmarks.jobs import extract_dump

WIKIEXTRACTOR = "wikiextractor"
MWPARSERFROMHELL = "mwparserfromhell"
SLOW_PEER_SHARE = 6
"""mwparserfromhell reads a sixth of the input: it is several times slower, and its rate does not depend on size."""


class CorpusBenchmark:
    """Inputs, peers and output directory of one run."""

    def __init__(self, dump: Path | None, megabytes: float, rounds: int, *, cpu_time: bool = False) -> None:
        self.directory = working_directory("corpus")
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
            contestants: dict[str, Contestant] = {"ours": lambda path=path: self._extract(path)}  # type: ignore[misc]
            contestants |= self._wikiextractor(path, one_core=True)
            if kind == "XML" and not self.peers.problem:
                contestants[MWPARSERFROMHELL] = self._strip_code
            what = f"{kind}, one core"
            rates = medians(contestants, self.rounds, what)
            rows.append(self._row(what, rates, WIKIEXTRACTOR, "sentences and Parquet included in ours"))
            if kind == "XML":
                note = f"strip_code on {self.small_xml.stat().st_size / 1e6:.0f} MB, text only"
                rows.append(self._row(what, rates, MWPARSERFROMHELL, note))
        start = min(self._job_seconds(self.one_page) for _ in range(2))
        for path, kind in ((self.xml, "XML"), (self.bz2, "bz2")):
            contestants = {
                "ours": lambda path=path: self._rate(path, self._job_seconds(path) - start),  # type: ignore[misc]
                **self._wikiextractor(path, one_core=False),
            }
            rates = medians(contestants, self.rounds, f"{kind}, all cores")
            note = "ours by the Beam job, without its start"
            rows.append(self._row(f"{kind}, {num_cores()} cores", rates, WIKIEXTRACTOR, note))
        rows.append(Row(what="start of the Beam job", unit="s", ours=start, note="less is better; a dump of one page"))
        return rows + [row for path in (self.small_xml, self.xml) for row in self._memory_rows(path)]

    def _memory_rows(self, path: Path) -> list[Row]:
        """Measure the peak resident memory of the Beam job on all cores, which must not grow with the dump."""
        peaks = json.loads(run_timed(self._job("corpus", path, "--workers", str(num_cores())), one_core=False).output)
        note = f"less is better; {path.stat().st_size / 1e6:.0f} MB of XML"
        return [
            Row(what=f"peak memory, {name}", unit="MB", ours=peaks[f"{key}_bytes"] / 1e6, note=note)
            for name, key in (("parent", "parent"), ("largest worker", "worker"))
        ]

    def _row(self, what: str, rates: dict[str, float], peer: str, note: str) -> Row:
        title = f"{peer} {self.peers.versions.get(peer, '')}".strip()
        return Row(what=what, unit="MB of XML/s", ours=rates["ours"], peer=title, theirs=rates.get(peer), note=note)

    def _rate(self, path: Path, seconds: float) -> float:
        """Return megabytes of uncompressed XML per second."""
        xml = self.xml if path == self.bz2 else path
        return xml.stat().st_size / 1e6 / max(seconds, 1e-3)

    def _fresh_output(self) -> Path:
        return fresh_directory(self.directory / "output") / "result"

    def _job(self, job: str, path: Path, *options: str) -> list[str]:
        return [sys.executable, "-m", "benchmarks.jobs", job, str(path), str(self._fresh_output()), *options]

    def _timed_rate(self, path: Path, command: Sequence[str], *, one_core: bool) -> float:
        timing = run_timed(command, one_core=one_core)
        return self._rate(path, timing.cpu_seconds if one_core and self.cpu_time else timing.seconds)

    def _extract(self, path: Path) -> float:
        return self._timed_rate(path, self._job("extract", path), one_core=True)

    def _job_seconds(self, path: Path) -> float:
        return run_timed(self._job("corpus", path), one_core=False).seconds

    def _wikiextractor(self, path: Path, *, one_core: bool) -> dict[str, Contestant]:
        """Run it at its fastest settings: no template expansion, no reports, large output files."""
        if self.peers.problem:
            return {}

        def run() -> float:
            command = [str(self.peers.python), "-m", "wikiextractor.WikiExtractor", str(path)]
            command += ["-o", str(self._fresh_output()), "--no-templates", "-q", "-b", "64M"]
            command += ["--processes", str(1 if one_core else num_cores())]
            return self._timed_rate(path, command, one_core=one_core)

        return {WIKIEXTRACTOR: run}

    def _strip_code(self) -> float:
        script = Path(__file__).with_name("strip_code.py")
        command = [str(self.peers.python), str(script), str(self.small_xml), str(self._fresh_output())]
        return self._timed_rate(self.small_xml, command, one_core=True)

    def profile(self) -> str:
        """Return a profile of the extraction in one process, by function."""
        return profile({"extraction": lambda: extract_dump(self.small_xml, self._fresh_output())}, limit=25)


@errors_as_exit_codes
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table."""
    parser = program("corpus", __doc__, rounds=5, quick="3 MB and one round: shows that it runs, not how fast")
    parser.add_argument("--dump", type=Path, help="a dump to repeat (default: the generated encyclopedia)")
    parser.add_argument("--megabytes", type=float, default=60.0, help="size of the input, in MB of XML")
    parser.add_argument(
        "--cpu-time", action="store_true", help="one core: divide by processor time, on a machine that is not quiet"
    )
    parser.add_argument("--profile", action="store_true", help="print where one process spends its time, and stop")
    args = parser.parse_args(arguments)
    if args.quick:
        args.megabytes, args.rounds = min(args.megabytes, 3.0), 1
    benchmark = CorpusBenchmark(args.dump, args.megabytes, args.rounds, cpu_time=args.cpu_time)
    if args.profile:
        print(benchmark.profile())
        return 0
    head = describe_machine(("apache-beam", "pyarrow", "sentencex"))
    rows = benchmark.rows()
    source = args.dump.name if args.dump else "the generated encyclopedia"
    clock = "; one core: by processor time" if args.cpu_time else ""
    print(f"{head}\n{args.megabytes:g} MB of XML: {source}, repeated; medians of {args.rounds} rounds{clock}\n")
    if benchmark.peers.problem:
        print(f"The peers could not be installed: {benchmark.peers.problem}\n")
    print(render(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
