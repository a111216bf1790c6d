"""`torchrun … -m bert_model.pretraining`: run `pretrain` from the command line, with exit codes."""

import argparse
import contextlib
import functools
import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from bert_model.presets import pretraining_configuration
from bert_model.pretraining.config import add_arguments
from bert_model.pretraining.plan import plan
from bert_model.pretraining.run import pretrain
from bert_model.registry.model_card import README_NAME, readme_problem, write_readme
from bert_model.registry.resolve import resolve_model
from bert_model.training.distributed import LostRanksError, OtherRankError, keep_freed_memory
from bert_pipeline.configuration import print_settings
from bert_pipeline.errors import BertError, UsageError
from bert_pipeline.parent import end_with_parent
from bert_pipeline.storage import is_remote, upload

CAUSE_SECONDS = 5
"""Longest time from the failure of one rank to the errors of the others."""

EXIT_PREEMPTED = 75
"""Exit code of a run that was stopped by a signal and saved its state (EX_TEMPFAIL: try again later)."""


def run(arguments: argparse.Namespace) -> int:
    """Run a parsed command and return the exit code."""
    keep_freed_memory()
    of_training = arguments.output is not None, arguments.resume or arguments.allow_changes
    if any(of_training) if arguments.plan else not of_training[0]:
        raise UsageError("give --output DIR, the training's directory, or --plan alone, which writes nothing")
    config = pretraining_configuration(arguments)
    resolve = functools.partial(resolve_model, cased=arguments.cased)
    if arguments.plan:
        table = plan(config, device=arguments.device, resolve=resolve)
        if os.environ.get("RANK", "0") == "0":
            print(table)
        return 0
    result = pretrain(
        config,
        arguments.output,
        resume=arguments.resume,
        allow_changes=arguments.allow_changes,
        experiment=arguments.experiment,
        device=arguments.device,
        resolve=resolve,
    )

    # One JSON line on standard output, from rank 0 only, so that scripts find status and model.
    if os.environ.get("RANK", "0") == "0":
        if result.model is not None and readme_problem(result.model):
            write_readme(result.model)
            if is_remote(arguments.output):
                upload(result.model / README_NAME, arguments.output / "model" / README_NAME)
        model = result.model and (arguments.output / "model" if is_remote(arguments.output) else result.model)
        where = model or f"preempted at step {result.step}; continue with --resume"
        print(json.dumps({"status": result.status, "step": result.step, "model": str(where), **result.metrics}))
    return EXIT_PREEMPTED if result.status == "preempted" else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and pre-train; print an error as one paragraph on standard error."""
    parser = argparse.ArgumentParser(prog="bert_model.pretraining", description="Pre-train BERT.")
    add_arguments(parser)
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    parsed = parser.parse_intermixed_args(arguments)
    end_with_parent()
    # Progress is logged by rank 0 alone, warnings by every rank.
    rank = int(os.environ.get("RANK", "0"))
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(message)s", stream=sys.stderr)
    try:
        if parsed.settings:
            print_settings(pretraining_configuration(parsed))
            return 0
        return run(parsed)
    except OtherRankError as error:
        # Rank 0 has printed the reason.
        return error.exit_code
    except BertError as error:
        if parsed.debug:
            raise
        print(f"error: {error}", file=sys.stderr, flush=True)
        _tell_torchrun(error)
        return error.exit_code


def _tell_torchrun(error: BertError) -> None:
    """Write the error file that torchrun reads for the report at the end of its output."""
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        # torchrun reports the earliest failure as the cause: a rank that only lost the others is dated later.
        when = int(time.time()) + (CAUSE_SECONDS if isinstance(error, LostRanksError) else 0)
        document = {"message": {"message": str(error), "extraInfo": {"timestamp": str(when)}}}
        with contextlib.suppress(OSError):
            Path(path).write_text(json.dumps(document), encoding="utf-8")


def _end(code: int) -> NoReturn:
    """End the process; if its work is done, without the interpreter's own end.

    gloo's threads may then still hold tensors, whose release aborts a process that has no interpreter any more, and
    torchrun calls a finished training failed (github.com/pytorch/pytorch/pull/179291).
    """
    if code in (0, EXIT_PREEMPTED):  # after an error the thread of the checkpoints may have one to write
        logging.shutdown()
        sys.stdout.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    _end(main())
