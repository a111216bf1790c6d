"""Options of the Beam jobs: the local runner on all cores unless the user names something else."""

import argparse
import os
from collections.abc import Sequence

from apache_beam.options.pipeline_options import (
    DirectOptions,
    PipelineOptions,
    StandardOptions,
    WorkerOptions,
    _BeamArgumentParser,
)

from bert_pipeline.errors import UsageError, suggest

LOCAL_RUNNER = "bert_pipeline.beam.local.LocalRunner"
"""Named outright: `DirectRunner` would first try to download another runner."""

_LOCAL_RUNNERS = frozenset(
    {"LocalRunner", "FnApiRunner", "DirectRunner", "BundleBasedDirectRunner", "SwitchingDirectRunner"}
)


def pipeline_options(beam_options: Sequence[str] = ()) -> PipelineOptions:
    """Return Beam's options from what stood after `--` on the command line.

    Without `--runner` the job runs on the local FnApiRunner, with as many worker processes as there are cores to use;
    `--workers N` says how many (1: inside this process, which starts two seconds sooner). Any other runner is used
    with its own options as they are. UsageError for an option that would be ignored.
    """
    arguments, workers = _take_workers(list(beam_options))
    named = _option(arguments, "runner")
    if named is not None and named.rpartition(".")[2] not in _LOCAL_RUNNERS:
        if workers is not None:
            raise UsageError(f"--workers is for the local runner; give {named}'s own option for parallelism instead")
        return PipelineOptions(arguments)
    _refuse_unknown(arguments)
    options = PipelineOptions(arguments, runner=LOCAL_RUNNER)
    options.view_as(StandardOptions).runner = LOCAL_RUNNER
    direct = options.view_as(DirectOptions)
    if workers is None and _option(arguments, "direct_num_workers") is not None:
        workers = direct.direct_num_workers or None
    direct.direct_num_workers = available_cores() if workers is None else workers
    if _option(arguments, "direct_running_mode") is None:
        direct.direct_running_mode = "in_memory" if direct.direct_num_workers == 1 else "multi_processing"
    if _option(arguments, "default_sdk_harness_log_level") is None:
        options.view_as(WorkerOptions).default_sdk_harness_log_level = "WARNING"
    return options


def available_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def num_workers(options: PipelineOptions) -> int | None:
    """The number of local workers; None where a distributed runner decides."""
    runner = (options.view_as(StandardOptions).runner or "").rpartition(".")[2]
    return options.view_as(DirectOptions).direct_num_workers if runner in _LOCAL_RUNNERS else None


def _take_workers(arguments: list[str]) -> tuple[list[str], int | None]:
    """Split our own `--workers` off Beam's arguments."""
    text = _option(arguments, "workers")
    if text is None:
        return arguments, None
    if not text.isdigit() or int(text) < 1:
        raise UsageError(f"--workers: found {text!r}, expected a number of processes, 1 or more")
    rest: list[str] = []
    skip = False
    for argument in arguments:
        if skip:
            skip = False
        elif argument == "--workers":
            skip = True
        elif not argument.startswith("--workers="):
            rest.append(argument)
    return rest, int(text)


def _option(arguments: Sequence[str], name: str) -> str | None:
    """The value of `--name VALUE` or `--name=VALUE`, the last one given."""
    found = None
    for index, argument in enumerate(arguments):
        if argument == f"--{name}":
            if index + 1 == len(arguments):
                raise UsageError(f"--{name}: expected a value after it")
            found = arguments[index + 1]
        elif argument.startswith(f"--{name}="):
            found = argument.partition("=")[2]
    return found


def _refuse_unknown(arguments: Sequence[str]) -> None:
    """Beam ignores options that it does not know: on the local runner, where all are known, that is an error."""
    parser = _BeamArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for options_class in PipelineOptions.__subclasses__():
        options_class._add_argparse_args(parser)
    try:
        _, unknown = parser.parse_known_args(list(arguments))
    except argparse.ArgumentError as error:
        raise UsageError(f"Beam option: {error}") from error
    if unknown:
        known = [text for action in parser._actions for text in action.option_strings]
        name = unknown[0].partition("=")[0]
        hint = suggest(name, known) if name.startswith("--") else ""
        raise UsageError(f"Beam option {unknown[0]!r} is not known{hint if 'did you mean' in hint else ''}")
