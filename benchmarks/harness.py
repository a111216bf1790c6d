"""Shared parts of the benchmark programs: timed commands, alternating rounds, the result table, peer environments."""

import argparse
import contextlib
import cProfile
import dataclasses
import datetime
import functools
import importlib.metadata
import io
import os
import platform
import pstats
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ParamSpec

from bert_model.tables import format_table
from bert_pipeline.errors import BertError, exit_code_of

BUSY_LOAD = 0.5
"""Load average above which other programs use part of the machine, so that rates are too low."""
INSTALL_TIMEOUT_SECONDS = 600
NOT_AVAILABLE = "not available"

P = ParamSpec("P")


# ----------------------------------------------------------------------------------------------------------------------
# Programs


def program(name: str, description: str | None, *, rounds: int = 0, quick: str = "") -> argparse.ArgumentParser:
    """Return the argument parser of `python -m benchmarks.<name>`.

    A benchmark in rounds gets the options `--rounds` with that default, and `--quick`, which `quick` describes.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)
    if rounds:
        parser.add_argument(
            "--rounds", type=int, default=rounds, help="rounds; medians are printed (default: %(default)s)"
        )
        parser.add_argument("--quick", action="store_true", help=quick)
    return parser


def errors_as_exit_codes(main: Callable[P, int]) -> Callable[P, int]:
    """Decorate a program's `main`: print an error of the user's as one line and return its exit code."""

    @functools.wraps(main)
    def run(*args: P.args, **kwargs: P.kwargs) -> int:
        return exit_code_of(lambda: main(*args, **kwargs), "error")

    return run


def working_directory(name: str = "") -> Path:
    """Return a benchmark's directory below BERT_HOME (default `./.bert`), which may be removed at any time."""
    path = Path(os.environ.get("BERT_HOME", ".bert")).resolve() / "benchmarks" / name
    path.mkdir(parents=True, exist_ok=True)
    return path


def fresh_directory(path: Path) -> Path:
    """Return a directory, emptied."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    return path


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe_machine(packages: Iterable[str], device: str = "") -> str:
    """Return two lines: date, cores, processor and load; then the versions of Python and `packages`."""
    load = os.getloadavg()[0]
    busy = f"; BUSY (load {load:.1f}), figures are too low" if load > BUSY_LOAD else f"; load {load:.1f}"
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    versions = [f"Python {platform.python_version()}", *(f"{name} {_version(name)}" for name in packages)]
    where = f"{num_cores()} cores of {_processor()}{f', {device}' if device else ', no GPU'}"
    return f"{now}; {where}{busy}\n{', '.join(versions)}"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return " ".join(line.partition(":")[2].split())
    except OSError:
        pass
    return platform.processor() or platform.machine()


def profile(parts: Mapping[str, Callable[[], object]], limit: int) -> str:
    """Run each part under cProfile and return the `limit` most expensive functions of each."""
    text = io.StringIO()
    for title, part in parts.items():
        with cProfile.Profile() as profiler:
            part()
        text.write(f"{title}\n")
        pstats.Stats(profiler, stream=text).strip_dirs().sort_stats("tottime").print_stats(limit)
    return text.getvalue()


# ----------------------------------------------------------------------------------------------------------------------
# Rounds and tables

Contestant = Callable[[], float]
"""Runs once and returns its rate."""


def medians(contestants: Mapping[str, Contestant], rounds: int, title: str = "") -> dict[str, float]:
    """Run every contestant once per round and return the median rate of each.

    The order is reversed in every second round, so that a temporary slowdown of the machine affects all contestants.
    """
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds):
        names = list(contestants)
        for name in names if number % 2 == 0 else reversed(names):
            rate = contestants[name]()
            rates[name].append(rate)
            label = f"{title}: " if title else ""
            print(f"{label}round {number + 1} of {rounds}, {name}: {_number(rate)}", file=sys.stderr, flush=True)
    return {name: statistics.median(values) for name, values in rates.items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement: our rate and the peer's; higher is better."""

    what: str
    unit: str
    ours: float | None
    peer: str = ""
    """The peer, with its version where that matters; empty for a measurement without one."""
    theirs: float | None = None
    note: str = ""
    target: float | None = None
    """Target for our figure: a minimum, or with `less_is_better` a maximum."""
    less_is_better: bool = False
    target_ratio: float | None = None
    """Target for the ratio, instead of `target`."""

    @property
    def ratio(self) -> float | None:
        """Our rate divided by the peer's."""
        return self.ours / self.theirs if self.ours and self.theirs else None

    @property
    def verdict(self) -> str:
        """The target and whether it is met; "" without a target."""
        if self.target_ratio is not None and self.ratio is not None:
            return f"RATIO ≥ {_number(self.target_ratio)} {'met' if self.ratio >= self.target_ratio else 'MISSED'}"
        if self.target is None or self.ours is None:
            return ""
        met = self.ours <= self.target if self.less_is_better else self.ours >= self.target
        return f"{'≤' if self.less_is_better else '≥'} {_number(self.target)} {'met' if met else 'MISSED'}"


def render(rows: Sequence[Row]) -> str:
    """Format the rows as a Markdown table with aligned columns; the target column is omitted if no row has a target."""
    header = ("measurement", "unit", "ours", "peer", "which peer", "RATIO", "note")
    cells = [header, *(_cells(row) for row in rows)]
    if any(row.verdict for row in rows):
        cells = [(*line, last) for line, last in zip(cells, ["target", *(row.verdict for row in rows)])]
    return format_table(cells[0], cells[1:], "pipe", numbers=(2, 3, 5))


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], rule: Sequence[str] = ()) -> str:
    """Format a plain Markdown table; `rule` defaults to dashes of the header's widths."""
    rule = rule or ["-" * len(name) for name in header]
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *rows))


def _cells(row: Row) -> tuple[str, ...]:
    theirs = _number(row.theirs) if row.theirs is not None else NOT_AVAILABLE if row.peer else ""
    ours = _number(row.ours) if row.ours is not None else NOT_AVAILABLE
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    return row.what, row.unit, ours, theirs, row.peer, ratio, row.note


def _number(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 1 else f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


# ----------------------------------------------------------------------------------------------------------------------
# Processes


class CommandError(BertError):
    """A measured command failed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
    """Time and output of a finished command."""

    seconds: float
    """Wall time, including the start of the interpreter."""
    cpu_seconds: float
    """Processor time of the process and of the children that it waited for."""
    output: str


@contextlib.contextmanager
def on_one_core() -> Iterator[None]:
    """Restrict this process, its threads and the processes that it starts to one core."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def children_cpu_seconds() -> float:
    """Return the processor time of all processes that this one has waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run_timed(command: Sequence[str], *, one_core: bool) -> Timing:
    """Run a command. Raise CommandError with the last line of its standard error if it fails.

    With `one_core` the process and its children share one core, so that helpers of a "single process" count too.
    """
    # Modules are compiled once, on both sides: pip has compiled the peers'.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with (
        tempfile.TemporaryFile("w+") as output,
        tempfile.TemporaryFile("w+") as errors,
        on_one_core() if one_core else contextlib.nullcontext(),
    ):
        before, started = children_cpu_seconds(), time.perf_counter()
        code = subprocess.run(command, stdout=output, stderr=errors, env=environment).returncode
        seconds, cpu_seconds = time.perf_counter() - started, children_cpu_seconds() - before
        output.seek(0)
        errors.seek(0)
        if code:
            lines = errors.read().strip().splitlines() or ["no error output"]
            raise CommandError(f"{' '.join(command)}: exit code {code}: {lines[-1]}")
        return Timing(seconds=seconds, cpu_seconds=cpu_seconds, output=output.read())


class PeerEnvironment:
    """A virtual environment with packages that the project itself does not need, or the reason why there is none."""

    def __init__(self, directory: Path, packages: Sequence[str]) -> None:
        """Create the environment if it is missing. Never raises: `problem` holds the reason of a failure."""
        self.python = directory / "bin" / "python"
        self.problem = ""
        self.versions: dict[str, str] = {}
        try:
            if not self.python.exists():
                print(f"installing {' and '.join(packages)} into {directory}", file=sys.stderr, flush=True)
                venv.create(directory, with_pip=True)
            if missing := [name for name in packages if self._version(name) is None]:
                pip = [str(self.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *missing]
                subprocess.run(pip, check=True, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_SECONDS)
            self.versions = {name: self._version(name) or "" for name in packages}
        except (OSError, subprocess.SubprocessError) as error:
            # The last line of pip's output is the cause.
            lines = str(getattr(error, "stderr", "") or "").strip().splitlines()
            self.problem = lines[-1] if lines else str(error)

    def _version(self, package: str) -> str | None:
        code = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"
        result = subprocess.run([self.python, "-c", code, package], capture_output=True, text=True)
        return result.stdout.strip() if result.returncode == 0 else None
