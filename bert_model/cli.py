"""The `bert` command: one subcommand per step, with the functions that the Dagster assets call.

Exit code 0, 1 for failure, 2 for bad usage. Errors are one readable paragraph on standard error; `--debug` adds the
traceback. Every command imports the heavy libraries that it needs, so `bert --help` answers at once.
"""

import argparse
import contextlib
import functools
import logging
import operator
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_model import run_commands
from bert_model.pretraining.config import add_arguments
from bert_pipeline import cli as pipeline_cli
from bert_pipeline.cli import add_command
from bert_pipeline.configuration import CommandParser, add_configuration, naming_options, print_settings
from bert_pipeline.errors import BertError, exit_code_of
from bert_pipeline.signals import exiting_on_signals
from bert_pipeline.storage import local_path, path_or_url, store_errors
from bert_pipeline.tasks.catalogue import TASK_FILES, TASKS
from bert_pipeline.vocabulary.files import CASED_HELP

DEV_FRACTION_HELP = "share of the only data file to split off as the dev set, if the task has one file (own split)"
MODEL_HELP = (
    "a directory or its URL, a Hugging Face id[@revision], or an MLflow URI such as models:/bert-tiny-sst2@champion"
)


Argument = functools.partial(operator.methodcaller, "add_argument")
"""An argument that is added to the parser that it is called with; it has the parameters of `add_argument`."""

PRECISION_ARGUMENT = Argument(
    "--precision",
    choices=("float32", "bfloat16", "auto"),
    help="auto: bfloat16 where the device has it (default: float32, or auto for a model fine-tuned in bfloat16)",
)
JSON_ARGUMENT = Argument("--json", action="store_true", help="print scores as JSON also on a terminal")


def model_arguments(name: str, **options: Any) -> list[operator.methodcaller]:
    """Return the argument of a model, and the option that states its case."""
    case = {"action": argparse.BooleanOptionalAction, "help": CASED_HELP}
    return [Argument(name, metavar="MODEL", help=MODEL_HELP, **options), Argument("--cased", **case)]


class Command(NamedTuple):
    """A subcommand."""

    run: Callable[[argparse.Namespace], int]
    """Runs the parsed command and returns its exit code; its name is `run_` and the command's."""
    description: str
    """The first sentence is the line in `bert --help`."""
    arguments: Sequence[operator.methodcaller] = ()
    config_class: str = ""
    """Its configuration as "module:name"; the command then takes `--config`, `key=value` and `--settings`."""


def commands() -> list[Command]:
    """Return the subcommands on models, in the order of the work; `bert_pipeline.cli` has those on data."""
    return [
        Command(
            run_commands.run_finetune,
            "Fine-tune a model on a task and score it on the task's dev set. Keeps the best model of a grid of "
            "learning rates and seeds.",
            [
                Argument("task", metavar="TASK", help=" ".join([*TASKS, *TASK_FILES]) + ", or a YAML file"),
                Argument("--data", required=True, type=path_or_url, metavar="PATH", help="official or hub files"),
                *model_arguments("--model", required=True),
                Argument("--output", required=True, type=local_path, metavar="DIR"),
                Argument("--dev-fraction", type=float, default=0.0, metavar="SHARE", help=DEV_FRACTION_HELP),
                Argument("--workers", type=int, metavar="N", help="trainings at once (default: one per core or GPU)"),
                Argument("--replace", action="store_true", help="replace a finished model of another task or start"),
                JSON_ARGUMENT,
            ],
            "bert_model.finetuning.config:FinetuningConfig",
        ),
        Command(
            run_commands.run_predict,
            "Predict for plain input or a task's own files, as JSON lines with id, prediction and probabilities. "
            "Besides the tasks: mlm fills [MASK], nsp decides whether the second text follows the first, pll is the "
            "pseudo-log-likelihood of a text. Rows that cannot be read go to FILE.rejected.jsonl, the others are "
            "answered, and the exit code is 1.",
            [
                Argument("task", metavar="TASK|mlm|nsp|pll"),
                *model_arguments("--model", required=True, action="append"),
                Argument(
                    "--input",
                    default="-",
                    metavar="FILE",
                    help="one input per line, or a data file of the task in any format; - is standard input",
                ),
                Argument("--output", default="-", metavar="FILE", help="- is standard output"),
                Argument("--tokens", action="store_true", help="pll: each token's part of it as well"),
                PRECISION_ARGUMENT,
            ],
        ),
        Command(
            run_commands.run_score,
            "Score predictions with the task's official metric: a table on a terminal, else JSON.",
            [
                Argument("task", metavar="TASK"),
                Argument("--data", required=True, type=path_or_url, metavar="FILE"),
                Argument("--predictions", required=True, type=local_path, metavar="FILE"),
                Argument(
                    "--na-prob-thresh",
                    type=float,
                    default=1.0,
                    metavar="P",
                    help="SQuAD 2.0: null odds above P mean no answer",
                ),
                Argument(
                    "--na-prob", type=local_path, metavar="FILE", help="SQuAD 2.0: null odds, for the best threshold"
                ),
                JSON_ARGUMENT,
            ],
        ),
        Command(
            run_commands.run_submission,
            "Write the GLUE submission of fine-tuned models: one zip, eleven files.",
            [
                Argument("directories", nargs="+", type=local_path, metavar="DIR", help="fine-tuned models"),
                Argument("--output", type=local_path, default=Path("submission.zip"), metavar="FILE"),
            ],
        ),
        Command(
            run_commands.run_exam,
            "Score a pre-trained model on minimal pairs, without fine-tuning: how often it finds the right text of two "
            "more likely. Pairs are BLiMP's, your own, or made from the held-out text of a corpus in any language.",
            [
                *model_arguments("model"),
                Argument(
                    "--pairs",
                    default="made",
                    metavar="blimp|FILE|made",
                    help="FILE: lines of good<TAB>bad<TAB>kind, or BLiMP's JSON lines in a file, zip or folder; blimp: "
                    "BERT_HOME/data/blimp.zip; made: from --corpus (default)",
                ),
                Argument(
                    "--corpus",
                    type=local_path,
                    metavar="DIR",
                    help="the corpus of the model: source of made pairs and of the trigram model",
                ),
                Argument(
                    "--part",
                    choices=("reporting", "choosing", "all"),
                    help="pairs to use: choose among models by one part and report the other "
                    "(default: reporting of made pairs, all of others)",
                ),
                Argument(
                    "--whole-words", action="store_true", help="mask the later pieces of a word with each of its pieces"
                ),
                Argument("--output", type=local_path, metavar="FILE", help="results as JSON"),
            ],
        ),
        Command(
            run_commands.run_features,
            "Write a model's hidden states for every token, or their mean for every text, to Parquet.",
            [
                *model_arguments("--model", required=True),
                Argument(
                    "--input", required=True, metavar="FILE", help="one text per line, or A<TAB>B; - is standard input"
                ),
                Argument("--output", required=True, type=local_path, metavar="FILE"),
                Argument("--layers", metavar="N,N", help="-1 is the top (default: the upper four; with --pool -1)"),
                Argument("--pool", choices=["mean"], help="one vector for each text, as sentence embeddings have"),
                PRECISION_ARGUMENT,
            ],
        ),
        Command(
            run_commands.run_attention,
            "Draw the attention of every layer and head between the tokens of one or two texts. The output is one HTML "
            "page that needs no network.",
            [
                *model_arguments("--model", required=True),
                Argument("text_a", metavar="TEXT_A"),
                Argument("text_b", metavar="TEXT_B", nargs="?", help="the second text of a pair"),
                Argument("--output", required=True, type=local_path, metavar="FILE", help="page.html"),
            ],
        ),
        Command(
            run_commands.run_convert,
            "Convert a TensorFlow checkpoint of google's BERT to a model directory. Needs "
            ".venv/bin/pip install -e '.[tensorflow]'.",
            [
                Argument(
                    "checkpoint",
                    type=local_path,
                    metavar="CKPT",
                    help="such as uncased_L-12_H-768_A-12/bert_model.ckpt",
                ),
                Argument("--output", required=True, type=path_or_url, metavar="DIR"),
                Argument(
                    "--cased",
                    action=argparse.BooleanOptionalAction,
                    help="whether the vocabulary keeps case and accents (default: by the name of the directory)",
                ),
            ],
        ),
        Command(
            run_commands.run_adapt,
            "Move a model to another vocabulary, such as a domain's, or give it more positions. New tokens start from "
            "the mean of their old pieces, new positions from the old ones; `bert pretrain --from` continues from the "
            "result.",
            [
                *model_arguments("model"),
                Argument("--vocab", type=path_or_url, metavar="DIR", help="the directory of the new vocabulary"),
                Argument(
                    "--special-token", action="append", metavar="TOKEN", help="your own token, such as [E1]; repeatable"
                ),
                Argument("--positions", type=int, default=0, metavar="N", help="length of texts, such as 1024"),
                Argument("--output", required=True, type=path_or_url, metavar="DIR"),
                Argument("--corpus", type=path_or_url, metavar="DIR", help="measure both vocabularies on this corpus"),
            ],
        ),
        Command(
            run_commands.run_export,
            "Write a model as an ONNX file, for runtimes without torch. Its logits are compared with the model's.",
            [
                *model_arguments("model"),
                Argument("--output", required=True, type=local_path, metavar="FILE", help="model.onnx"),
                Argument(
                    "--quantize", choices=["int8"], help="write a second file, smaller and faster: model.int8.onnx"
                ),
                Argument("--data", type=path_or_url, metavar="FILE", help="a labeled file: its score with --quantize"),
            ],
        ),
        Command(
            run_commands.run_register,
            "Register a model directory: a new version in MLflow, which `bert promote` can make the champion.",
            [
                Argument(
                    "directory", type=local_path, metavar="DIR", help="output of finetune, or model/ below pretrain's"
                ),
                Argument("--name", metavar="NAME", help="default: bert-<size>, or bert-<size>-<task>"),
                Argument("--license", default="", metavar="ID", help="of the weights, such as apache-2.0; a gate"),
            ],
        ),
        Command(run_commands.run_models, "List the registered models with their versions, scores and aliases."),
        Command(
            run_commands.run_promote,
            "Make a version the champion if it passes every gate. A refusal names the gates.",
            [
                Argument("name", metavar="NAME"),
                Argument("--version", type=int, metavar="N", help="default: the newest version"),
                Argument("--dry-run", action="store_true", help="print the decision without changing anything"),
            ],
            "bert_model.registry.promotion:GateConfig",
        ),
        Command(
            run_commands.run_rollback,
            "Make the previous champion champion again.",
            [Argument("name", metavar="NAME")],
        ),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    # Beam's options are cut off before argparse sees them.
    words, beam_options = split_beam_options(sys.argv[1:] if argv is None else list(argv))
    parser = build_parser()
    arguments = parse(parser, words)
    if hasattr(arguments, "beam_options"):
        arguments.beam_options = beam_options
    elif beam_options:
        parser.error(f"bert {arguments.command} takes no Beam options after '--'")

    # Expected failures end in one line and their exit code; anything else is a bug and keeps its traceback.
    log_to_stderr()
    # Pre-training handles signals itself: the first one ends it with a checkpoint.
    run = store_errors()(functools.partial(_run, arguments))
    handles_signals = arguments.command == "pretrain" and not arguments.plan
    with contextlib.nullcontext() if handles_signals else exiting_on_signals():
        return exit_code_of(run, f"bert {arguments.command}", debug=arguments.debug)


def _run(arguments: argparse.Namespace) -> int:
    if getattr(arguments, "settings", False):
        print_settings(arguments.configured(arguments))
        return 0
    try:
        return int(arguments.run(arguments))
    except BertError as error:
        error.args = (naming_options(str(error), arguments),)
        raise


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command."""
    parser = argparse.ArgumentParser(
        prog="bert", description="BERT from a Wikipedia dump to a promoted model, one step per command."
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=CommandParser)
    pipeline_cli.add_commands(subparsers)

    # The arguments of pre-training are shared with `torchrun -m bert_model.pretraining`.
    pretraining = add_command(
        subparsers,
        "pretrain",
        "Pre-train BERT on instances. Runs in one process; for several use torchrun -m bert_model.pretraining with the "
        "same arguments.",
    )
    add_arguments(pretraining)
    pretraining.set_defaults(run=run_commands.run_pretrain, configured=run_commands.pretraining_settings)
    for command in commands():
        subparser = add_command(subparsers, command.run.__name__.removeprefix("run_"), command.description)
        for argument in command.arguments:
            argument(subparser)
        if command.config_class:
            add_configuration(subparser, command.config_class)
        subparser.set_defaults(run=command.run)
        if command.run is run_commands.run_finetune:
            subparser.set_defaults(configured=run_commands.finetuning_configuration)
    return parser


def split_beam_options(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split a command line at its first `--`; the words after it are Beam's."""
    cut = [*words, "--"].index("--")
    return list(words[:cut]), list(words[cut + 1 :])


def parse(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """Parse a command line with key=value words in any position, which argparse does not support."""
    words = list(words)
    if "--layers" in words[:-1]:  # argparse takes -1,-2 for an option unless it is joined
        index = words.index("--layers")
        words[index : index + 2] = ["=".join(words[index : index + 2])]

    # Words that argparse could not place are assignments, if the command takes any.
    arguments, rest = parser.parse_known_args(words)
    assignments = [word for word in rest if "=" in word and not word.startswith("-")]
    if getattr(arguments, "settings", False):  # the argument before them may be missing
        for name in {"task", "name", "corpus"} & vars(arguments).keys():
            if "=" in (word := str(getattr(arguments, name))):
                assignments.append(word)
                setattr(arguments, name, None)
    if hasattr(arguments, "assignments"):
        arguments.assignments = [*arguments.assignments, *assignments]
        rest = [word for word in rest if word not in assignments]
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return arguments


def log_to_stderr() -> None:
    """Log this project's progress, and warnings of libraries."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("apache_beam").setLevel(logging.ERROR)  # it warns about Google services that are not used
    for package in ("bert_pipeline", "bert_model"):
        logging.getLogger(package).setLevel(logging.INFO)


if __name__ == "__main__":
    sys.exit(main())
