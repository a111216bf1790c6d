"""The `bert` command: one subcommand per step, the same functions that the Dagster assets call.

Exit code 0, 1 for failure, 2 for bad usage. Errors are one readable paragraph on standard error; `--debug` adds the
traceback. Heavy libraries are imported by the command that needs them, so `bert --help` answers at once.
"""

import argparse
import json
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_model.pretraining.config import add_arguments
from bert_pipeline import cli as pipeline_cli
from bert_pipeline.cli import Subparsers, add_command
from bert_pipeline.configuration import from_mapping, override
from bert_pipeline.errors import BertError, PromotionError, UsageError
from bert_pipeline.tasks.catalogue import TASKS

DEV_FRACTION_HELP = "where the task has one file only: the share of it that becomes the dev set (own split)"
MODEL_HELP = "a local directory, a Hugging Face id, or an MLflow URI such as models:/bert-tiny-sst2@champion"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words, beam_options = split_beam_options(sys.argv[1:] if argv is None else list(argv))
    parser = build_parser()
    arguments = parse(parser, words)
    if hasattr(arguments, "beam_options"):
        arguments.beam_options = beam_options
    elif beam_options:
        parser.error(f"bert {arguments.command} takes no Beam options after '--'")
    log_to_stderr()
    try:
        return arguments.run(arguments) or 0
    except BertError as error:
        if arguments.debug:
            raise
        print(f"bert {arguments.command}: {' '.join(str(error).split())}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"bert {arguments.command}: interrupted; nothing half-written was left behind", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whoever read our output has gone
        return 1


def log_to_stderr() -> None:
    """Show our own progress, and from libraries only what is wrong."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("apache_beam").setLevel(logging.ERROR)  # it warns of Google services that nobody asked for
    for floor in ("bert_pipeline", "bert_model"):
        logging.getLogger(floor).setLevel(logging.INFO)


def split_beam_options(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Cut a command line at its first `--`: what follows belongs to Beam."""
    words = list(words)
    if "--" not in words:
        return words, []
    cut = words.index("--")
    return words[:cut], words[cut + 1 :]


def parse(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """Parse a command line in which key=value may stand anywhere, which argparse alone does not allow."""
    words = list(words)
    for index, word in enumerate(words[:-1]):
        if word == "--layers":  # argparse takes -1,-2 for an option unless it is joined
            words[index : index + 2] = [f"{word}={words[index + 1]}"]
            break
    arguments, rest = parser.parse_known_args(words)
    assignments = [word for word in rest if "=" in word and not word.startswith("-")]
    if hasattr(arguments, "assignments"):
        arguments.assignments = [*arguments.assignments, *assignments]
        rest = [word for word in rest if word not in assignments]
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return arguments


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command."""
    parser = argparse.ArgumentParser(
        prog="bert",
        description="BERT from a Wikipedia dump to a promoted model, a step per command.",
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    pipeline_cli.add_commands(subparsers)
    _add_pretrain(subparsers)
    _add_finetune(subparsers)
    _add_predict(subparsers)
    _add_score(subparsers)
    _add_submission(subparsers)
    _add_features(subparsers)
    _add_attention(subparsers)
    _add_models(subparsers)
    return parser


def _add_pretrain(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "pretrain",
        "Pre-train a BERT on instances. One process; for several use torchrun -m bert_model.pretraining "
        "with the same arguments.",
    )
    add_arguments(parser)
    parser.set_defaults(run=_run_pretrain)


def _run_pretrain(arguments: argparse.Namespace) -> int:
    from bert_model.pretraining.__main__ import run

    return run(arguments)


def _add_finetune(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "finetune",
        "Fine-tune a model on a task and score it on the task's dev set. The best of a grid of learning rates and "
        "seeds is kept.",
    )
    parser.add_argument("task", metavar="TASK", help=" ".join(TASKS))
    parser.add_argument("assignments", nargs="*", metavar="key=value", help="override, such as epochs=3")
    parser.add_argument(
        "--data", required=True, type=Path, metavar="PATH", help="the task's files in the official layout"
    )
    parser.add_argument("--model", required=True, metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("--output", required=True, type=Path, metavar="DIR")
    parser.add_argument("--dev-fraction", type=float, default=0.0, metavar="SHARE", help=DEV_FRACTION_HELP)
    parser.add_argument("--workers", type=int, metavar="N", help="training processes (default: one a core or GPU)")
    parser.set_defaults(run=_run_finetune)


def _run_finetune(arguments: argparse.Namespace) -> int:
    from bert_pipeline.tasks.task import get_task, load_task_data

    get_task(arguments.task)  # an unknown task is told before torch is loaded
    from bert_model.finetuning.config import task_configuration
    from bert_model.finetuning.finetune import finetune
    from bert_model.finetuning.worker_pool import WorkerPool
    from bert_model.registry.resolve import resolve_model

    config = task_configuration(arguments.task, override({}, arguments.assignments))
    data = load_task_data(arguments.task, arguments.data, arguments.dev_fraction)
    for name in data.absent:
        print(f"{arguments.task}: {name} is absent and left out", file=sys.stderr)
    with WorkerPool(num_workers=arguments.workers) as pool:
        result = finetune(
            data, resolve_model(arguments.model), arguments.output, config, pool=pool, progress=_show_trial
        )
    for key, entry in result.metrics.items():
        print(json.dumps({"metric": key, **entry, "own_split": data.own_split}))
    return 0


def _show_trial(done: int, total: int, line: str) -> None:
    print(f"{done}/{total}  {line}", file=sys.stderr, flush=True)


def _add_predict(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "predict",
        "Answer a task on plain input, as JSON lines with probabilities. Besides the tasks: mlm fills [MASK], nsp says "
        "whether the second text follows the first.",
    )
    parser.add_argument("task", metavar="TASK|mlm|nsp")
    parser.add_argument("--model", required=True, action="append", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("--input", default="-", metavar="FILE", help="one input a line; - is standard input")
    parser.add_argument("--output", default="-", metavar="FILE", help="- is standard output")
    parser.set_defaults(run=_run_predict)


def _run_predict(arguments: argparse.Namespace) -> int:
    from bert_pipeline.tasks.task import get_task

    if arguments.task not in ("mlm", "nsp"):
        get_task(arguments.task)
    from bert_model.inference.predict import predict
    from bert_model.registry.resolve import resolve_model

    directories = [resolve_model(model) for model in arguments.model]
    predict(arguments.task, directories, arguments.input, arguments.output)
    return 0


def _add_score(subparsers: Subparsers) -> None:
    parser = add_command(subparsers, "score", "Score predictions by the task's official metric, as JSON.")
    parser.add_argument("task", metavar="TASK")
    parser.add_argument("--data", required=True, type=Path, metavar="FILE")
    parser.add_argument("--predictions", required=True, type=Path, metavar="FILE")
    parser.add_argument(
        "--na-prob-thresh", type=float, default=1.0, metavar="P", help="SQuAD 2.0: null odds above it mean no answer"
    )
    parser.add_argument("--na-prob", type=Path, metavar="FILE", help="SQuAD 2.0: null odds, for the best threshold")
    parser.set_defaults(run=_run_score)


def _run_score(arguments: argparse.Namespace) -> int:
    from bert_model.metrics.score import score_files

    print(
        json.dumps(
            score_files(
                arguments.task, arguments.data, arguments.predictions, arguments.na_prob, arguments.na_prob_thresh
            ),
            indent=1,
        )
    )
    return 0


def _add_submission(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers, "submission", "Write the GLUE submission from fine-tuned models: one zip, eleven files."
    )
    parser.add_argument("directories", nargs="+", type=Path, metavar="DIR", help="fine-tuned models")
    parser.add_argument("--output", type=Path, default=Path("submission.zip"), metavar="FILE")
    parser.set_defaults(run=_run_submission)


def _run_submission(arguments: argparse.Namespace) -> int:
    from bert_model.metrics.score import read_predictions
    from bert_pipeline.manifest import load_manifest
    from bert_pipeline.tasks.submission import write_submission
    from bert_pipeline.tasks.task import get_task

    predictions: dict[str, dict[str, Any]] = {}
    for directory in arguments.directories:
        manifest = load_manifest(directory, kind="finetuned_model")
        task = get_task(manifest.configuration["task"])
        for split in task.submission_files:
            if f"predictions/{split}.jsonl" in manifest.files:
                key = f"{task.name}/{split}"
                if key in predictions:
                    raise UsageError(f"{directory}: another directory already answers {key}; give one model a task")
                predictions[key] = read_predictions(task, directory / "predictions" / f"{split}.jsonl")
    if not predictions:
        raise UsageError("none of these models has predictions for a GLUE test file; fine-tune with test.tsv beside it")
    for note in write_submission(arguments.output, predictions):
        print(note, file=sys.stderr)
    print(arguments.output)
    return 0


def _add_features(subparsers: Subparsers) -> None:
    parser = add_command(subparsers, "features", "Write a model's activations per token to Parquet.")
    parser.add_argument("--model", required=True, metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("--input", required=True, metavar="FILE", help="a text a line, or A<TAB>B; - is standard input")
    parser.add_argument("--output", required=True, type=Path, metavar="FILE")
    parser.add_argument("--layers", default="-1,-2,-3,-4", metavar="N,N", help="-1 is the top (default: %(default)s)")
    parser.set_defaults(run=_run_features)


def _run_features(arguments: argparse.Namespace) -> int:
    try:
        layers = [int(word) for word in arguments.layers.split(",")]
    except ValueError:
        raise UsageError(f"--layers {arguments.layers}: expected whole numbers with commas, such as -1,-2") from None
    from bert_model.inference.features import write_features
    from bert_model.registry.resolve import resolve_model

    count = write_features(resolve_model(arguments.model), arguments.input, arguments.output, layers=layers)
    print(f"{arguments.output}: activations of {count} texts")
    return 0


def _add_attention(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "attention",
        "Draw the attention of every layer and head between the tokens of one or two texts, as one HTML page that "
        "needs no network.",
    )
    parser.add_argument("--model", required=True, metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("text_a", metavar="TEXT_A")
    parser.add_argument("text_b", metavar="TEXT_B", nargs="?", help="the second text of a pair")
    parser.add_argument("--output", required=True, type=Path, metavar="FILE", help="page.html")
    parser.set_defaults(run=_run_attention)


def _run_attention(arguments: argparse.Namespace) -> int:
    from bert_model.inference.attention import write_attention
    from bert_model.registry.resolve import resolve_model

    directory, texts = resolve_model(arguments.model), (arguments.text_a, arguments.text_b)
    count = write_attention(directory, *texts, arguments.output, model_name=arguments.model)
    print(f"{arguments.output}: attention between {count} tokens")
    return 0


def _add_models(subparsers: Subparsers) -> None:
    parser = add_command(subparsers, "models", "List the registered models, their versions, scores and aliases.")
    parser.set_defaults(run=_run_models)

    parser = add_command(
        subparsers,
        "promote",
        "Move the alias champion to a version, if every gate lets it pass. A refusal names its gate.",
    )
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--version", type=int, metavar="N", help="default: the newest version")
    parser.add_argument("--dry-run", action="store_true", help="print the decision, change nothing")
    parser.add_argument(
        "assignments", nargs="*", metavar="key=value", help="the gates: margin=0.5 tolerance=2 min_seeds=3 and others"
    )
    parser.set_defaults(run=_run_promote)

    parser = add_command(subparsers, "rollback", "Give the alias champion back to the version that held it before.")
    parser.add_argument("name", metavar="NAME")
    parser.set_defaults(run=_run_rollback)


def _run_models(arguments: argparse.Namespace) -> int:
    from bert_model.registry.registry import list_models, models_table

    print(models_table(list_models()))
    return 0


def _run_promote(arguments: argparse.Namespace) -> int:
    from bert_model.registry.promotion import GateConfig
    from bert_model.registry.registry import promote

    gates = from_mapping(GateConfig, override({}, arguments.assignments))
    decision = promote(arguments.name, arguments.version, arguments.dry_run, config=gates)
    print(decision.table())
    return 0 if decision.passed else PromotionError.exit_code


def _run_rollback(arguments: argparse.Namespace) -> int:
    from bert_model.registry.registry import rollback

    version = rollback(arguments.name)
    print(f"{version.name} version {version.version} is champion again")
    return 0
