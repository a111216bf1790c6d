"""`python -m workflows.run`: the whole asset graph over one dump, by one command.

It materializes the same assets as the UI does, in the same Dagster instance, so the UI shows the runs afterwards. One
process runs all stages and partitions: importing Dagster, torch and MLflow for each takes longer than a small stage.
"""

import argparse
import dataclasses
import functools
import shlex
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteRepositoryOrigin

from bert_model.presets import load_preset, preset_names
from bert_pipeline.configuration import SettingsAction, print_settings
from bert_pipeline.errors import ArtifactError, InputError, UsageError, exit_code_of, suggest
from bert_pipeline.signals import term_as_interrupt
from workflows.lib.console import TIME_LEFT, log_of_libraries
from workflows.lib.instance import database_errors, end_abandoned_runs, open_instance, wait_for_pools
from workflows.lib.launchpad import DEFAULT_PRESET, PRESET_VARIABLE, asset_configs
from workflows.lib.lineage import files_of_sources, registered_name
from workflows.lib.processes import PROCESS_TAG, run_mark
from workflows.lib.resources import (
    CODE_LOCATION,
    DEFAULT_DUMP,
    JOBS,
    PUBLISHED_DUMP,
    STAGE_ASSETS,
    STAGES,
    TASK_NAMES,
    TASKS_VARIABLE,
    BertHome,
    checked_dump_name,
    checked_tasks,
    dump_partitions,
    dump_task_key,
    read_own_tasks,
    sample_seed,
)

SUITES = {
    "glue": "the nine GLUE tasks",
    "squad": "SQuAD's JSON files",
    "swag": "SWAG's CSV files",
    "ner": "the CoNLL-2003 files",
}
"""Options for the folders of the official task files."""
OPTIONS = {
    "data": {"dump_file"},
    "pretraining": {"license"},
    "finetuning": {*SUITES, "dev_fraction", "license", "tasks"},
    "report": set[str](),
}
"""The options that a stage reads, beside those of all stages."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the requested stages; return 0, 1 when a run or a blocking check failed, 2 for bad usage."""
    arguments = build_parser().parse_args(argv)
    stages = STAGES if arguments.stage == "all" else (arguments.stage,)
    if arguments.settings:
        return exit_code_of(lambda: print_settings(load_preset(arguments.preset)), "workflows.run")
    with term_as_interrupt():
        return exit_code_of(lambda: run_stages(plan_of(arguments), stages), "workflows.run")


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m workflows.run", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument(
        "--preset", default=DEFAULT_PRESET, metavar="NAME|FILE", help="what to run (default: %(default)s)"
    )
    parser.add_argument("--dump", default=DEFAULT_DUMP, metavar="NAME", help="the partition (default: %(default)s)")
    parser.add_argument(
        "--dump-file", action="append", default=[], metavar="[[NAME=]KIND:]PATH", help="files as for `bert corpus`"
    )
    for suite, what in SUITES.items():
        parser.add_argument(f"--{suite}", default="", metavar="DIR", help=f"folder with {what}")
    parser.add_argument(
        "--dev-fraction",
        type=float,
        metavar="SHARE",
        help="where a task has one file only, cut this share off it as dev set; results then say 'own split'",
    )
    every = f"all of {' '.join(TASK_NAMES)}, and those of {TASKS_VARIABLE}"
    parser.add_argument(
        "--license",
        default="",
        metavar="ID",
        help="license of the weights (default: that of the text, where it is known: Wikipedia, the generated sample)",
    )
    parser.add_argument("--tasks", default="", metavar="A,B", help=f"default: {every}")
    parser.add_argument("--settings", action=SettingsAction)
    parser.add_argument("--stage", choices=[*STAGES, "all"], default="all", help="default: %(default)s")
    return parser


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What is run on a dump."""

    preset: str
    """Name of the preset."""
    preset_reference: str
    """Its name, or the absolute path of its file."""
    dump: str
    configs: dict[str, dict[str, Any]]
    """The run config of each asset, for the preset and the files that are given."""
    tasks: tuple[str, ...]


def plan_of(arguments: argparse.Namespace) -> Plan:
    """Check everything that can be checked before anything runs; InputError or UsageError names the option."""
    preset = load_preset(arguments.preset)
    dump = checked_dump_name(arguments.dump)
    if arguments.dump_file and sample_seed(dump) is not None:
        raise UsageError(
            f"--dump {dump} names a generated sample; give --dump-file another name, such as --dump enwiki-1"
        )
    # Paths become absolute: the UI's runs have another directory.
    files = files_of_sources(arguments.dump_file)
    sources = [f"{name}={kind}:{place}".removeprefix("=") for name, kind, place in files]
    suites = {}
    for suite in SUITES:
        folder = getattr(arguments, suite)
        if folder and not Path(folder).exists():
            raise InputError(f"--{suite} {folder}: no such folder")
        suites[suite] = str(Path(folder).resolve()) if folder else ""

    # An option that would be ignored is refused.
    if arguments.stage != "all":
        options = {name for name in set().union(*OPTIONS.values()) if getattr(arguments, name) not in (None, "", [])}
        if others := sorted(options - OPTIONS[arguments.stage]):
            option = f"--{others[0].replace('_', '-')}"
            raise UsageError(f"{option} has no effect on stage {arguments.stage}; remove it or choose another --stage")
    if arguments.tasks and not arguments.tasks.strip(","):
        raise UsageError(f"--tasks {arguments.tasks}: names no task; give some, or leave it out for all")

    # Without --tasks all of them; without --dev-fraction the share of the preset, which 0 overrides.
    home = BertHome()
    for problem in read_own_tasks(home.tasks).problems.values():
        print(f"workflows.run: {problem}; this task is left out", file=sys.stderr)
    tasks = home.task_names
    if arguments.tasks:
        tasks = checked_tasks([name for name in arguments.tasks.split(",") if name], tasks)
    dev_fraction = arguments.dev_fraction
    if dev_fraction is not None and not 0 <= dev_fraction < 1:
        raise UsageError(f"--dev-fraction {dev_fraction}: expected a number from 0 to below 1")
    check_dump_is_known(dump, arguments)
    is_named = arguments.preset in preset_names()
    return Plan(
        preset=preset.name,
        preset_reference=arguments.preset if is_named else str(Path(arguments.preset).resolve()),
        dump=dump,
        configs=asset_configs(
            preset, sources=sources, suites=suites, dev_fraction=dev_fraction, license=arguments.license
        ),
        tasks=tasks,
    )


def check_dump_is_known(dump: str, arguments: argparse.Namespace) -> None:
    """Raise UsageError for a dump that neither exists nor can be made: its partition would stay for good."""
    home = BertHome()
    if home.dump_directory(dump).is_dir():
        return
    problem = "has no data yet; run the stage data first"
    if arguments.stage in ("data", "all"):
        if arguments.dump_file or sample_seed(dump) is not None or PUBLISHED_DUMP.fullmatch(dump):
            return
        problem = "is no known, generated or published dump, such as enwiki-20261101; give --dump-file for another"
    dumps = {DEFAULT_DUMP, *(folder.name for folder in home.dump_directory(dump).parent.glob("*/"))} - {dump}
    raise UsageError(f"--dump {dump}: {problem}{suggest(dump, dumps) if dumps else ''}")


def run_stages(plan: Plan, stages: Sequence[str]) -> int:
    """Run stages one after the other, up to the first that fails, and print the outcome."""
    seconds: dict[str, float] = {}
    home = BertHome()
    details = home.run_log(plan.dump)
    details.parent.mkdir(parents=True, exist_ok=True)
    print(f"{plan.dump} with the preset {plan.preset}: {', '.join(stages)}; details in {details}", flush=True)

    is_new = not home.dump_directory(plan.dump).is_dir()
    with database_errors(), log_of_libraries(details), open_instance(home, dumps=(DEFAULT_DUMP, plan.dump)) as instance:
        home.apply_environment()
        # A killed run holds its slot of a pool, for which this one would wait.
        end_abandoned_runs(instance)
        for stage in stages:
            TIME_LEFT.enter(stage)
            started = time.monotonic()
            failed = run_stage(plan, stage, instance)
            seconds[stage] = time.monotonic() - started
            for partition in failed:
                print(f"workflows.run: {stage} of {partition} failed; the cause is above", file=sys.stderr)
            if failed:
                if is_new and not home.dump(plan.dump).is_dir():  # such as a download under a misspelt name
                    instance.delete_dynamic_partition(str(dump_partitions.name), plan.dump)
                return 1
    if "report" in stages:
        print_outcome(plan, seconds)
    return 0


def run_stage(plan: Plan, stage: str, instance: Any) -> list[str]:
    """Materialize the assets of one stage, partition by partition; return the partitions that failed."""
    from workflows.definitions import defs  # here, where an error of the variables that it reads becomes a sentence

    assets = STAGE_ASSETS[stage]
    job = defs().resolve_job_def(next(job for job, members in JOBS.items() if set(assets) <= set(members)))

    # One partition for each task in fine-tuning, one for the dump in every other stage.
    partitions: list[Any] = [plan.dump]
    if stage == "finetuning":
        partitions = [dump_task_key(plan.dump, task) for task in plan.tasks]
    failed: list[str] = []
    for number, partition in enumerate(partitions, start=1):
        tags = {"bert/preset": plan.preset, "bert/stage": stage}
        run = execute_assets(instance, job, assets, partition, run_config(plan, stage), tags)
        if not run.is_success:
            # Dagster ends an interrupted run in order and returns; `main` still has to learn of it.
            ended = instance.get_run_by_id(run.run_id)
            if ended.status.value == "CANCELED" or ended.tags.get("dagster/failure_reason") == "UNEXPECTED_TERMINATION":
                raise KeyboardInterrupt
            # The other tasks are fine-tuned nevertheless.
            failed.append(str(partition))
        TIME_LEFT.reach(number / len(partitions))
    return failed


def execute_assets(
    instance: Any, job: Any, assets: Sequence[str], partition: Any, config: Mapping[str, Any], tags: Mapping[str, str]
) -> Any:
    """Execute assets of a job in this process; return the run, which is listed where the UI lists those of the job.

    `execute_in_process` creates runs without an origin, which timeline and pages of jobs leave out, and which cannot be
    executed again.
    """
    # Before the run is created: one that has not begun is ended by nobody, and would keep its dump from retraining.
    pools = set[str]().union(*(job.get_node_named(asset).definition.pools for asset in assets))
    wait_for_pools(instance, pools, functools.partial(print, file=sys.stderr, flush=True))
    origin = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin(CODE_LOCATION), "__repository__")
    run_id = str(uuid.uuid4())
    run = instance.create_run_for_job(
        job,
        run_id=run_id,
        run_config=config,
        tags={**tags, **job.partitions_def.get_tags_for_partition_key(partition), PROCESS_TAG: run_mark(run_id)},
        asset_selection=frozenset(dg.AssetKey(asset) for asset in assets),
        remote_job_origin=origin.get_job_origin(job.name),
    )
    return execute_run(InMemoryJob(job), run, instance).dagster_run


def run_config(plan: Plan, stage: str) -> dict[str, Any]:
    """Return the run config of a stage for the plan's preset and files, as it would be entered in the launchpad."""
    home, configs = BertHome(), plan.configs
    return {
        "ops": {name: {"config": configs[name]} for name in STAGE_ASSETS[stage] if name in configs},
        # Relative to the home, so that a run that is executed again after a move writes into the new place.
        "loggers": {"console": {"config": {"details": str(home.run_log(plan.dump).relative_to(home.path))}}},
    }


def print_outcome(plan: Plan, seconds: Mapping[str, float]) -> None:
    """Print the results table, the paths of plots and report, the time, and how to open the UIs."""
    home = BertHome()
    directory = home.report(plan.dump)
    print("", (directory / "results.txt").read_text(encoding="utf-8"), sep="\n")
    for path in sorted(directory.glob("*.png")):
        print(f"plot: {path}")
    print(f"report: {directory / 'report.md'}")
    if lines := without_champion(home, plan):
        more = ", as in the preset demo-full," if plan.preset == DEFAULT_PRESET else ""
        lines.append(f"more pre-training{more} or more examples of a task may make champions")
    for line in lines:
        print(line)
    parts = ", ".join(f"{stage} {spent:.0f} s" for stage, spent in seconds.items())
    print(f"{sum(seconds.values()) / 60:.1f} minutes ({parts}); data, runs and registry are in {home.path}")
    # The launchpad and automatic runs have the values of the preset that the UI was started with.
    reference = plan.preset_reference
    command = "make ui" if reference == DEFAULT_PRESET else f"{PRESET_VARIABLE}={shlex.quote(reference)} make ui"
    print(f"{command}    opens Dagster on http://127.0.0.1:3000 and MLflow on http://127.0.0.1:5000")


def without_champion(home: BertHome, plan: Plan) -> list[str]:
    """Return a line for each model of a run that has no champion, with the reason."""
    from bert_model.registry.operations import why_no_champion

    try:
        model = home.current_model(plan.dump)
    except ArtifactError:  # none was pre-trained
        return []
    # A task without files was skipped, and has no model.
    done = [task for task in plan.tasks if (home.finetuning(plan.dump, task) / "manifest.json").is_file()]
    reasons = {name: why_no_champion(name) for name in (registered_name(model, task) for task in (None, *done))}
    return [f"no champion: {name} {reason}" for name, reason in reasons.items() if reason]


if __name__ == "__main__":
    sys.exit(main())
