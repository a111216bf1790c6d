"""Pipeline options of the Beam jobs: in this process with one worker process per core, unless a runner is named."""

import argparse
import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, StandardOptions

from bert_pipeline.errors import UsageError, suggest

_LOCAL_RUNNERS = ("", "direct", "fnapi", "bundlebaseddirect", "switchingdirect")
_WRONG_RUNNERS = {"dask": "computes only what its last step depends on and mixes tagged outputs, without an error"}
"""Runners of Beam 2.77 that lose elements in silence (docs/decisions/0022)."""
_OF_ENGINES = ("--experiments=disable_logging_submission_environment", "--environment_cache_millis=10000")
"""Options that a user's come after. Beam would stage a list of this environment's packages, which workers in containers
fetch at their start: from the disk of Flink's job server, which a TaskManager on another host does not have. Engines
would start the Python processes anew for each step, several seconds every time."""
CONTAINER_LIMIT = Path("/sys/fs/cgroup/cpu.max")
"""Microseconds of processor time and the period in which a container may use them: `docker --cpus`, `limits.cpu`."""


class LocalOptions(PipelineOptions):
    """Our own option, for jobs on this machine."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:  # Beam's way to declare options
        parser.add_argument("--workers", help="worker processes; 1: in this process (default: one per core)")


def pipeline_options(beam_options: Sequence[str] = ()) -> PipelineOptions:
    """Return Beam's options from the arguments after `--` on the command line.

    By default Beam runs in this process and spreads the expensive steps over one worker process per core, or over
    `--workers N`. A runner that is named, or an option of the direct runner, is passed to Beam unchanged. UsageError
    for an option that would be ignored, and for a runner that loses elements.
    """
    arguments = list(beam_options)
    runner = _runner(PipelineOptions(arguments))
    if runner in _WRONG_RUNNERS:
        raise UsageError(
            f"--runner: Beam's {runner.capitalize()}Runner {_WRONG_RUNNERS[runner]}; give another runner, such as "
            "FlinkRunner, or none for this machine"
        )
    # A foreign runner may declare options that only its own package knows.
    if runner in _LOCAL_RUNNERS:
        _refuse_unknown(arguments)
    options = PipelineOptions(arguments)
    local, standard = options.view_as(LocalOptions), options.view_as(StandardOptions)
    text = local.workers
    if text is not None and (not text.isdigit() or int(text) < 1):
        raise UsageError(f"--workers: found {text!r}, expected a number of processes, 1 or more")

    # A named runner brings its own workers: `local.workers` stays unset, which disables the pool.
    if runner or any(argument.startswith("--direct_") for argument in arguments):
        if text is not None:
            name = standard.runner or "the direct runner"
            raise UsageError(f"--workers is for the default local runner; give {name}'s own option for parallelism")
        return PipelineOptions([*_OF_ENGINES, *arguments])
    local.workers = available_cores() if text is None else int(text)
    standard.runner = "FnApiRunner"  # what DirectRunner takes for our graphs, after it tried to download Prism
    return options


def is_engine(beam_options: Sequence[str]) -> bool:
    """Tell whether the options name a runner whose workers may be on other machines."""
    return _runner(PipelineOptions(list(beam_options))) not in _LOCAL_RUNNERS


def available_cores(container_limit: Path = CONTAINER_LIMIT) -> int:
    """Return the number of cores that this process may use, at most what its container is limited to."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):  # no container, or one without a limit: "max 100000"
        quota, period = map(int, container_limit.read_text().split())
        cores = min(cores, max(1, quota // period))
    return cores


def num_processes(options: PipelineOptions) -> int:
    """Return the number of our own worker processes; 0 where the runner has its own workers."""
    return int(options.view_as(LocalOptions).workers or 0)


def num_workers(options: PipelineOptions) -> int | None:
    """Return the number of workers on this machine; None where a distributed runner decides."""
    if processes := num_processes(options):
        return processes
    return options.view_as(DirectOptions).direct_num_workers if _runner(options) in _LOCAL_RUNNERS else None


def _runner(options: PipelineOptions) -> str:
    """Return the runner's name as Beam compares it: "direct" for DirectRunner; "" if none is named."""
    name = options.view_as(StandardOptions).runner or ""
    return name.rpartition(".")[2].lower().removesuffix("runner")


def _refuse_unknown(arguments: Sequence[str]) -> None:
    """Raise UsageError for an option that Beam does not know: it would ignore it with a warning."""
    unknown: list[str] = []

    def parse(parser: argparse.ArgumentParser) -> None:  # called with all options of Beam declared
        parser.exit_on_error = False
        unknown.extend(parser.parse_known_args(list(arguments))[1])

    try:
        # Beam adds the options of all its classes to a parser of its own, which is passed to `parse` before it is used.
        declared = PipelineOptions([]).get_all_options(add_extra_args_fn=parse)
    except argparse.ArgumentError as error:
        raise UsageError(f"Beam option: {error}") from error
    if unknown:
        name = unknown[0].partition("=")[0]
        hint = suggest(name, [f"--{option}" for option in declared]) if name.startswith("--") else ""
        raise UsageError(f"Beam option {unknown[0]!r} is not known{hint if 'did you mean' in hint else ''}")
