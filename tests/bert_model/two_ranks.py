"""Run a function as several gloo ranks on this machine, with injected faults."""

import functools
import json
import logging
import math
import multiprocessing
import os
import signal
import time
from multiprocessing import forkserver
from pathlib import Path

import torch

from benchmarks.training import rank_environments
from bert_model.pretraining import checkpoint
from bert_model.pretraining.run import pretrain
from bert_model.pretraining.trainer import Trainer
from bert_pipeline.configuration import from_mapping
from bert_pipeline.errors import BertError

_CONTEXT = multiprocessing.get_context("forkserver")
_IMPORTED = ["bert_model.pretraining.run", "pyarrow.compute", "pandas", "torch.distributed.fsdp", "torch._dynamo"]


@functools.cache
def _start_fork_server():
    """Start the server that ranks are forked from, with torch and what the first read of instances imports.

    Other code may have started one without, and each rank would import them for seconds.
    """
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    _CONTEXT.set_forkserver_preload(_IMPORTED)
    forkserver.ensure_running()


def run_ranks(world_size, function, *arguments, timeout_seconds=240):
    """Run `function(*arguments)` on every rank as under torchrun; return the exit codes, negative for signals."""
    _start_fork_server()
    processes = []
    for environment in rank_environments(world_size):
        process = _CONTEXT.Process(target=_rank, args=(environment, function, arguments))
        process.start()
        processes.append(process)
    deadline = time.monotonic() + timeout_seconds
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
    hung = [process for process in processes if process.exitcode is None]
    for process in hung:
        process.kill()
        process.join()
    assert not hung, f"{len(hung)} ranks did not end within {timeout_seconds} s"
    return [process.exitcode for process in processes]  # type: ignore[misc]


def _rank(environment, function, arguments):
    os.environ.update(environment)
    torch.set_num_threads(1)
    function(*arguments)


def fail_at(rank, step, action, others):
    """Return an `after_step` that injects a fault into one rank after one step.

    "kill" (SIGKILL), "terminate" (SIGTERM), "hang" (until the file `others` appears), "poison" (its next loss is
    NaN), "kill in save" (SIGKILL in the middle of the next checkpoint).
    """

    def after_step(finished):
        if finished != step or int(os.environ.get("RANK", "0")) != rank:
            return
        if action == "hang":
            deadline = time.monotonic() + 120
            while not others.exists() and time.monotonic() < deadline:
                time.sleep(0.1)
        elif action == "poison":
            original = Trainer._accumulate
            Trainer._accumulate = lambda trainer, batch, *_: original(trainer, batch, math.nan, math.nan)  # type: ignore
        elif action == "kill in save":
            checkpoint.save_tensors = _write_half_and_die  # type: ignore[assignment]
        else:
            os.kill(os.getpid(), signal.SIGKILL if action == "kill" else signal.SIGTERM)

    return after_step


def _write_half_and_die(_, path):
    path.write_bytes(b"half a file")
    os.kill(os.getpid(), signal.SIGKILL)


def pretrain_rank(configuration, output, options):
    """Run one rank of a pre-training and write a report; `options` may contain `fail` = (rank, step, action)."""
    from bert_model.pretraining.config import PretrainingConfig

    options = dict(options)
    fail = options.pop("fail", None)
    config = from_mapping(PretrainingConfig, configuration)
    report, others = (
        Path(output).parent / f"{Path(output).name}-rank-{rank}.json"
        for rank in (os.environ["RANK"], "1" if os.environ["RANK"] == "0" else "0")
    )
    logging.basicConfig(level=logging.WARNING, filename=report.with_suffix(".log"), force=True)
    try:
        result = pretrain(
            config,
            output,
            experiment="",
            device="cpu",
            after_step=fail_at(*fail, others) if fail else None,
            **options,
        )
    except BertError as error:
        report.write_text(json.dumps({"error": str(error), "type": type(error).__name__}))
        raise SystemExit(error.exit_code) from None
    report.write_text(json.dumps({"status": result.status, "step": result.step}))


def run_pretraining(configuration, output, *, world_size=2, **options):
    """Pre-train on several ranks; return exit codes, each rank's report ({} if it was killed), and the warnings."""
    reports = [output.parent / f"{output.name}-rank-{rank}.json" for rank in range(world_size)]
    for report in reports:
        report.unlink(missing_ok=True)
        report.with_suffix(".log").unlink(missing_ok=True)
    codes = run_ranks(world_size, pretrain_rank, configuration, str(output), options)
    texts = [json.loads(report.read_text()) if report.is_file() else {} for report in reports]
    logs = "".join(report.with_suffix(".log").read_text() for report in reports if report.with_suffix(".log").is_file())
    return codes, texts, logs
