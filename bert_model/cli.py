"""The `bert` command: one subcommand per step, with the functions that the Dagster assets call.

Exit code 0, 1 for failure, 2 for bad usage. Errors are one readable paragraph on standard error; `--debug` adds the
traceback. Every command imports the heavy libraries that it needs, so `bert --help` answers at once.
"""

import argparse
import contextlib
import functools
import json
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_model.pretraining.config import add_arguments
from bert_pipeline import cli as pipeline_cli
from bert_pipeline.atomic import check_file_target
from bert_pipeline.cli import add_command
from bert_pipeline.configuration import (
    CommandParser,
    add_configuration,
    configured,
    naming_options,
    print_settings,
    settings_given,
)
from bert_pipeline.errors import ArtifactError, BertError, PromotionError, UsageError, exit_code_of
from bert_pipeline.manifest import fetched, load_manifest
from bert_pipeline.signals import exiting_on_signals
from bert_pipeline.storage import local_path, path_or_url, store_errors, to_path, without_secrets
from bert_pipeline.tasks.catalogue import NAME_PATTERN, TASK_FILES, TASKS

DEV_FRACTION_HELP = "share of the only data file to split off as the dev set, if the task has one file (own split)"
MODEL_HELP = "a directory or its URL, a Hugging Face id, or an MLflow URI such as models:/bert-tiny-sst2@champion"


class Argument:
    """The parameters of one call of `ArgumentParser.add_argument`."""

    def __init__(self, *names: str, **options: Any) -> None:
        self.names, self.options = names, options


class Command(NamedTuple):
    """A subcommand."""

    name: str
    run: Callable[[argparse.Namespace], int]
    """Runs the parsed command and returns its exit code."""
    description: str
    """The first sentence is the line in `bert --help`."""
    arguments: Sequence[Argument] = ()
    config_class: str = ""
    """Its configuration as "module:name"; the command then takes `--config`, `key=value` and `--settings`."""


def commands() -> list[Command]:
    """Return the subcommands on models, in the order of the work; `bert_pipeline.cli` has those on data."""
    return [
        Command(
            "finetune",
            run_finetune,
            "Fine-tune a model on a task and score it on the task's dev set. Keeps the best model of a grid of "
            "learning rates and seeds.",
            [
                Argument("task", metavar="TASK", help=" ".join([*TASKS, *TASK_FILES]) + ", or a YAML file"),
                Argument("--data", required=True, type=path_or_url, metavar="PATH", help="official or hub files"),
                Argument("--model", required=True, metavar="MODEL", help=MODEL_HELP),
                Argument("--output", required=True, type=local_path, metavar="DIR"),
                Argument("--dev-fraction", type=float, default=0.0, metavar="SHARE", help=DEV_FRACTION_HELP),
                Argument("--workers", type=int, metavar="N", help="training processes (default: one per core or GPU)"),
                Argument("--replace", action="store_true", help="replace a finished model of another task or start"),
            ],
            "bert_model.finetuning.config:FinetuningConfig",
        ),
        Command(
            "predict",
            run_predict,
            "Predict for plain input or a task's own files, as JSON lines with id, prediction and probabilities. "
            "Besides the tasks: mlm fills [MASK], nsp decides whether the second text follows the first. Rows that "
            "cannot be read go to FILE.rejected.jsonl, the others are answered, and the exit code is 1.",
            [
                Argument("task", metavar="TASK|mlm|nsp"),
                Argument("--model", required=True, action="append", metavar="MODEL", help=MODEL_HELP),
                Argument(
                    "--input",
                    default="-",
                    metavar="FILE",
                    help="one input per line, or a data file of the task in any format; - is standard input",
                ),
                Argument("--output", default="-", metavar="FILE", help="- is standard output"),
            ],
        ),
        Command(
            "score",
            run_score,
            "Score predictions with the task's official metric, as JSON.",
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
            ],
        ),
        Command(
            "submission",
            run_submission,
            "Write the GLUE submission of fine-tuned models: one zip, eleven files.",
            [
                Argument("directories", nargs="+", type=local_path, metavar="DIR", help="fine-tuned models"),
                Argument("--output", type=local_path, default=Path("submission.zip"), metavar="FILE"),
            ],
        ),
        Command(
            "exam",
            run_exam,
            "Score a pre-trained model on minimal pairs, without fine-tuning: how often it finds the right text of two "
            "more likely. Pairs are BLiMP's, your own, or made from the held-out text of a corpus in any language.",
            [
                Argument("model", metavar="MODEL", help=MODEL_HELP),
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
            "features",
            run_features,
            "Write a model's hidden states for every token, or their mean for every text, to Parquet.",
            [
                Argument("--model", required=True, metavar="MODEL", help=MODEL_HELP),
                Argument(
                    "--input", required=True, metavar="FILE", help="one text per line, or A<TAB>B; - is standard input"
                ),
                Argument("--output", required=True, type=local_path, metavar="FILE"),
                Argument("--layers", metavar="N,N", help="-1 is the top (default: -1,-2,-3,-4; with --pool -1)"),
                Argument("--pool", choices=["mean"], help="one vector for each text, as sentence embeddings have"),
            ],
        ),
        Command(
            "attention",
            run_attention,
            "Draw the attention of every layer and head between the tokens of one or two texts. The output is one HTML "
            "page that needs no network.",
            [
                Argument("--model", required=True, metavar="MODEL", help=MODEL_HELP),
                Argument("text_a", metavar="TEXT_A"),
                Argument("text_b", metavar="TEXT_B", nargs="?", help="the second text of a pair"),
                Argument("--output", required=True, type=local_path, metavar="FILE", help="page.html"),
            ],
        ),
        Command(
            "convert",
            run_convert,
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
            "adapt",
            run_adapt,
            "Move a model to another vocabulary, such as a domain's. New tokens start from the mean of their old "
            "pieces; `bert pretrain --from` continues from the result.",
            [
                Argument("model", metavar="MODEL", help=MODEL_HELP),
                Argument(
                    "--vocab", required=True, type=path_or_url, metavar="DIR", help="a directory with the new vocab.txt"
                ),
                Argument("--output", required=True, type=path_or_url, metavar="DIR"),
                Argument("--corpus", type=path_or_url, metavar="DIR", help="measure both vocabularies on this corpus"),
            ],
        ),
        Command(
            "export",
            run_export,
            "Write a model as an ONNX file, for runtimes without torch. Its logits are compared with the model's.",
            [
                Argument("model", metavar="MODEL", help=MODEL_HELP),
                Argument("--output", required=True, type=local_path, metavar="FILE", help="model.onnx"),
            ],
        ),
        Command(
            "register",
            run_register,
            "Register a model directory: a new version in MLflow, which `bert promote` can make the champion.",
            [
                Argument(
                    "directory", type=local_path, metavar="DIR", help="output of finetune, or model/ below pretrain's"
                ),
                Argument("--name", metavar="NAME", help="default: bert-<size>, or bert-<size>-<task>"),
                Argument("--license", default="", metavar="ID", help="of the weights, such as apache-2.0; a gate"),
            ],
        ),
        Command("models", run_models, "List the registered models with their versions, scores and aliases."),
        Command(
            "promote",
            run_promote,
            "Make a version the champion if it passes every gate. A refusal names the gates.",
            [
                Argument("name", metavar="NAME"),
                Argument("--version", type=int, metavar="N", help="default: the newest version"),
                Argument("--dry-run", action="store_true", help="print the decision without changing anything"),
            ],
            "bert_model.registry.promotion:GateConfig",
        ),
        Command(
            "rollback", run_rollback, "Make the previous champion champion again.", [Argument("name", metavar="NAME")]
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
        prog="bert",
        description="BERT from a Wikipedia dump to a promoted model, one step per command.",
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
    pretraining.set_defaults(run=run_pretrain, configured=_pretraining_configuration)
    for command in commands():
        subparser = add_command(subparsers, command.name, command.description)
        for argument in command.arguments:
            subparser.add_argument(*argument.names, **argument.options)
        if command.config_class:
            add_configuration(subparser, command.config_class)
        subparser.set_defaults(run=command.run)
        if command.run is run_finetune:
            subparser.set_defaults(configured=finetuning_configuration)
    return parser


def split_beam_options(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split a command line at its first `--`; the words after it are Beam's."""
    words = list(words)
    if "--" not in words:
        return words, []
    cut = words.index("--")
    return words[:cut], words[cut + 1 :]


def parse(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """Parse a command line with key=value words in any position, which argparse does not support."""
    words = list(words)
    for index, word in enumerate(words[:-1]):
        if word == "--layers":  # argparse takes -1,-2 for an option unless it is joined
            words[index : index + 2] = [f"{word}={words[index + 1]}"]
            break

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


def run_pretrain(arguments: argparse.Namespace) -> int:
    from bert_model.pretraining.__main__ import run

    return run(arguments)


def _pretraining_configuration(arguments: argparse.Namespace) -> Any:
    from bert_model.presets import pretraining_configuration

    return pretraining_configuration(arguments)


def run_finetune(arguments: argparse.Namespace) -> int:
    from bert_pipeline.tasks.catalogue import get_task
    from bert_pipeline.tasks.task import load_task_data

    task = get_task(arguments.task)  # reports an unknown task before torch is loaded
    from bert_model.finetuning.analysis import errors_path
    from bert_model.finetuning.caveats import describe, read_caveats
    from bert_model.finetuning.config import task_configuration
    from bert_model.finetuning.display import TrialDisplay
    from bert_model.finetuning.finetune import finetune, replaced_model
    from bert_model.finetuning.worker_pool import WorkerPool
    from bert_model.registry.model_card import stated_license, write_readme
    from bert_model.registry.resolve import resolve_model

    # Settings and data are checked before a model is fetched and workers start.
    settings = settings_given(arguments)
    config = task_configuration(task, settings)
    for key, instead in {"learning_rates": "; give lstm_learning_rates", "head": ""}.items():
        if task.feature_based and key in settings:
            raise UsageError(f"{arguments.task}: {key} has no effect on frozen features{instead}")
    if task.kind != "tagging" and settings.get("document_context"):
        raise UsageError(f"{arguments.task}: document_context has no effect, expected it with tagging only")
    data = load_task_data(arguments.task, _fetched(arguments.data), arguments.dev_fraction)
    for note in data.notes():
        print(f"{arguments.task}: {note}", file=sys.stderr)
    # The license of an earlier search that this one extends is kept; that of another model is no statement on this one.
    model = resolve_model(arguments.model)
    other = replaced_model(arguments.output, data.task.name, model)
    license = "" if other else stated_license(arguments.output)
    shown = TrialDisplay()
    try:
        with shown, WorkerPool(num_workers=arguments.workers) as pool:
            result = finetune(
                data,
                model,
                arguments.output,
                config,
                pool=pool,
                progress=shown.finished,
                watch=shown.running,
                replace=arguments.replace,
            )
    finally:
        # Also after an interruption, once the model is there: the license would be lost with the former README.md.
        if _lacks_readme(arguments.output) and (arguments.replace or not other):
            write_readme(arguments.output, {"license": license} if license else {})

    # Metrics go to standard output, as JSON lines for programs; all else to standard error.
    for key, entry in result.metrics.items():
        print(json.dumps({"metric": key, **entry, "own_split": data.own_split}))
    print(f"known about this score: {describe(read_caveats(result.results['known']))}", file=sys.stderr)
    print(f"{result.path}/results.md, {errors_path(result.path)}", file=sys.stderr)
    return 0


def finetuning_configuration(arguments: argparse.Namespace) -> Any:
    """Return the configuration of a task, or without one the defaults of all tasks."""
    from bert_model.finetuning.config import task_configuration
    from bert_pipeline.tasks.catalogue import get_task

    if not arguments.task:
        return configured(arguments)
    return task_configuration(get_task(arguments.task), settings_given(arguments))


def _lacks_readme(directory: Path) -> bool:
    """Return whether there is a fine-tuned model without README.md, or with one that is not whole."""
    from bert_model.registry.model_card import readme_problem

    with contextlib.suppress(ArtifactError):
        load_manifest(directory, kind="finetuned_model")
        return readme_problem(directory) is not None
    return False


def run_predict(arguments: argparse.Namespace) -> int:
    from bert_model.registry.resolve import resolve_model
    from bert_pipeline.tasks.catalogue import get_task

    if arguments.output != "-":
        check_file_target(to_path(arguments.output))

    # An unknown task is reported before a model is fetched and torch is loaded. A model that exists may describe its
    # task itself, which then has no file here: a directory, or what has a slash, as URIs, URLs and hub ids do.
    describable = all("/" in model or Path(model).is_dir() for model in arguments.model)
    if arguments.task not in ("mlm", "nsp") and not (describable and NAME_PATTERN.fullmatch(arguments.task)):
        get_task(arguments.task)
    directories = [resolve_model(model) for model in arguments.model]
    from bert_model.inference.predict import predict

    counts = predict(arguments.task, directories, arguments.input, arguments.output)
    return 1 if counts.rejected else 0


def run_score(arguments: argparse.Namespace) -> int:
    from bert_model.kinds.scores import score_files

    scores = score_files(
        arguments.task, _fetched(arguments.data), arguments.predictions, arguments.na_prob, arguments.na_prob_thresh
    )
    for what, count in scores.get("defects", {}).items():
        print(f"{arguments.data}: {what}: {count:,}", file=sys.stderr)
    print(json.dumps(scores, indent=1))
    return 0


def run_submission(arguments: argparse.Namespace) -> int:
    check_file_target(arguments.output)
    from bert_model.kinds.scores import read_predictions
    from bert_pipeline.tasks.catalogue import get_task
    from bert_pipeline.tasks.submission import write_submission

    # Each directory contributes the test splits that its fine-tuning predicted.
    predictions: dict[str, dict[str, Any]] = {}
    for directory in arguments.directories:
        manifest = load_manifest(directory, kind="finetuned_model")
        task = get_task(manifest.configuration["task"])
        for split in task.submission_files:
            # A split without its file was not there at fine-tuning; the submission fills in a constant.
            if f"predictions/{split}.jsonl" in manifest.files:
                key = f"{task.name}/{split}"
                if key in predictions:
                    raise UsageError(f"{directory}: another directory already answers {key}; give one model per task")
                predictions[key] = read_predictions(task, directory / "predictions" / f"{split}.jsonl")
    if not predictions:
        raise UsageError("none of these models has predictions for a GLUE test file; fine-tune with test.tsv present")
    for note in write_submission(arguments.output, predictions):
        print(note, file=sys.stderr)
    print(arguments.output)
    return 0


def run_exam(arguments: argparse.Namespace) -> int:
    from bert_model.registry.resolve import resolve_model
    from bert_model.training.home import bert_home
    from bert_pipeline.exam.ngrams import NGRAM_BASELINE_NAME
    from bert_pipeline.exam.pairs import blimp_path, read_pairs_of

    if arguments.output is not None:
        check_file_target(arguments.output)
    # Files of pairs are read, the model is found, and what is missing reported, before a corpus is counted.
    is_made = arguments.pairs == "made"
    if is_made and arguments.corpus is None:
        raise UsageError("--pairs made: give --corpus DIR, or --pairs blimp or a file of pairs")
    path = blimp_path(bert_home() / "data") if arguments.pairs == "blimp" else Path(arguments.pairs)
    part = arguments.part or ("reporting" if is_made else "all")
    pairs = [] if is_made else read_pairs_of(path, part)
    directory = resolve_model(arguments.model)
    ngram_baseline = None
    if arguments.corpus is not None:
        from bert_pipeline.exam.job import prepared_exam

        exam = prepared_exam(arguments.corpus, bert_home() / "exams")
        ngram_baseline = exam / NGRAM_BASELINE_NAME
        pairs = read_pairs_of(exam, part) if is_made else pairs
    from bert_model.zero_shot.exam import take_exam
    from bert_model.zero_shot.result import exam_table
    from bert_pipeline.atomic import replace_text

    result = take_exam(directory, pairs, ngram_baseline=ngram_baseline, whole_words=arguments.whole_words)
    print(exam_table(result))
    if arguments.output is not None:
        model = without_secrets(arguments.model)
        document = {"model": model, "pairs": arguments.pairs, "part": part, **result.to_json()}
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        replace_text(arguments.output, json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    return 0


def run_features(arguments: argparse.Namespace) -> int:
    check_file_target(arguments.output)
    arguments.layers = arguments.layers or ("-1" if arguments.pool else "-1,-2,-3,-4")
    try:
        layers = [int(word) for word in arguments.layers.split(",")]
    except ValueError:
        raise UsageError(f"--layers {arguments.layers}: expected whole numbers with commas, such as -1,-2") from None
    from bert_model.inference.features import write_features
    from bert_model.registry.resolve import resolve_model

    model, pools = resolve_model(arguments.model), bool(arguments.pool)
    count = write_features(model, arguments.input, arguments.output, layers=layers, pools=pools)
    print(f"{arguments.output}: hidden states of {count} texts")
    return 0


def run_attention(arguments: argparse.Namespace) -> int:
    check_file_target(arguments.output)
    from bert_model.inference.attention import write_attention
    from bert_model.registry.resolve import resolve_model

    directory, texts = resolve_model(arguments.model), (arguments.text_a, arguments.text_b)
    count = write_attention(directory, *texts, arguments.output, model_name=without_secrets(arguments.model))
    print(f"{arguments.output}: attention between {count} tokens")
    return 0


def _fetched(data: Path) -> Path:
    from bert_model.training.home import bert_home

    return fetched(data, bert_home() / "cache" / "files")


def run_convert(arguments: argparse.Namespace) -> int:
    from bert_model.conversion.google_checkpoint import convert_checkpoint

    report = convert_checkpoint(arguments.checkpoint, arguments.output, cased=arguments.cased)
    print(f"{arguments.output}: {report}")
    return 0


def run_adapt(arguments: argparse.Namespace) -> int:
    from bert_model.conversion.vocabulary_transfer import adapt_model
    from bert_model.registry.resolve import resolve_model

    counts = adapt_model(resolve_model(arguments.model), arguments.vocab, arguments.output, arguments.corpus).counts
    print(
        f"{arguments.output}: {counts['vocab_size']:,} tokens: {counts['kept_rows']:,} keep their rows, "
        f"{counts['mean_rows']:,} start from the mean of their pieces, {counts['random_rows']:,} at random"
    )

    # Lower numbers of pieces and [UNK] are what the new vocabulary is for.
    if arguments.corpus is not None:
        old, new = counts["old_quality"], counts["quality"]
        print(
            f"{counts['measured_on']} documents: {old['tokens_per_word']:.3f} pieces per word before, "
            f"{new['tokens_per_word']:.3f} after; [UNK] {old['unk_share']:.3%} before, {new['unk_share']:.3%} after"
        )
        loss = "no masked-LM head, so no loss"
        if "mlm_loss" in counts:
            loss = f"masked-LM loss {counts['mlm_loss']:.3f}; {counts['mlm_loss_random_rows']:.3f} with random new rows"
        print(f"before any training: {loss}")
    return 0


def run_export(arguments: argparse.Namespace) -> int:
    check_file_target(arguments.output)
    from bert_model.conversion.onnx import export_onnx
    from bert_model.registry.resolve import resolve_model

    difference = export_onnx(resolve_model(arguments.model), arguments.output)
    print(f"{arguments.output}: {arguments.output.stat().st_size:,} bytes, logits equal within {difference:.1e}")
    return 0


def run_register(arguments: argparse.Namespace) -> int:
    from bert_model.registry.model_card import stated_license
    from bert_model.registry.operations import default_name, register

    name = arguments.name or default_name(arguments.directory)
    license = arguments.license or stated_license(Path(arguments.directory))
    tags = {"license": license} if license else {}
    version = register(arguments.directory, name, tags=tags, replaces_license=bool(arguments.license))
    print(f"{version.name} version {version.version} is {', '.join(version.aliases)}")
    if not version.license:
        print(f"{version.name} names no license, without which it is not promoted: give --license", file=sys.stderr)
    return 0


def run_models(arguments: argparse.Namespace) -> int:
    from bert_model.registry.operations import list_models, models_table

    print(models_table(list_models()))
    return 0


def run_promote(arguments: argparse.Namespace) -> int:
    from bert_model.registry.operations import promote

    if "retraining_margin" in settings_given(arguments):
        raise UsageError("retraining_margin is that of automatic runs; give margin")
    decision = promote(arguments.name, arguments.version, arguments.dry_run, config=configured(arguments))
    print(decision.table())
    return 0 if decision.passed else PromotionError.exit_code


def run_rollback(arguments: argparse.Namespace) -> int:
    from bert_model.registry.operations import rollback

    version = rollback(arguments.name)
    print(f"{version.name} version {version.version} is champion again")
    return 0


if __name__ == "__main__":
    sys.exit(main())
