"""What the commands on models do: each takes its parsed arguments and returns the exit code."""

import argparse
import contextlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bert_pipeline.atomic import check_file_target
from bert_pipeline.configuration import configured, settings_given
from bert_pipeline.errors import ArtifactError, PromotionError, UsageError, count_of
from bert_pipeline.manifest import fetched, load_manifest
from bert_pipeline.storage import to_path, without_secrets
from bert_pipeline.tasks.catalogue import NAME_PATTERN


def run_pretrain(arguments: argparse.Namespace) -> int:
    from bert_model.pretraining.__main__ import run

    return run(arguments)


def pretraining_settings(arguments: argparse.Namespace) -> Any:
    from bert_model.presets import pretraining_configuration

    return pretraining_configuration(arguments)


def run_finetune(arguments: argparse.Namespace) -> int:
    from bert_pipeline.tasks.catalogue import get_task
    from bert_pipeline.tasks.task import load_task_data

    task = get_task(arguments.task)  # reports an unknown task before torch is loaded
    from bert_model.finetuning.analysis import errors_path, kept_epoch, scores_table
    from bert_model.finetuning.caveats import describe, read_caveats
    from bert_model.finetuning.config import task_configuration
    from bert_model.finetuning.display import TrialDisplay
    from bert_model.finetuning.finetune import finetune, replaced_model
    from bert_model.finetuning.worker_pool import WorkerPool
    from bert_model.registry.model_card import stated_license, write_readme

    # Settings and data are checked before a model is fetched and workers start.
    settings = settings_given(arguments)
    config = task_configuration(task, settings)
    for key, instead in {"learning_rates": "; give lstm_learning_rates", "head": ""}.items():
        if task.feature_based and key in settings:
            raise UsageError(f"{arguments.task}: {key} has no effect on frozen features{instead}")
    texts = ("classification", "multilabel", "regression")
    for key, kinds in {"document_context": ("tagging",), "stride": texts}.items():
        if settings.get(key) and task.kind not in kinds:
            raise UsageError(f"{arguments.task}: {key} has no effect, expected it with {', '.join(kinds)} only")
    data = load_task_data(arguments.task, _fetched(arguments.data), arguments.dev_fraction)
    for note in (*data.summaries(), *data.notes()):
        print(f"{arguments.task}: {note}", file=sys.stderr)
    # The license of an earlier search that this one extends is kept; that of another model is no statement on this one.
    model = _model(arguments)
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

    # All but the scores goes to standard error.
    lines = [json.dumps({"metric": k, **entry, "own_split": data.own_split}) for k, entry in result.metrics.items()]
    _print_scores(arguments, scores_table(result.results, "simple"), lines)
    if kept := kept_epoch(result.results["winner"]):
        print(f"published: {kept}", file=sys.stderr)
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
    from bert_pipeline.tasks.catalogue import get_task

    if arguments.output != "-":
        check_file_target(to_path(arguments.output))

    # An unknown task is reported before a model is fetched and torch is loaded. A model that exists may describe its
    # task itself, which then has no file here: a directory, or what has a slash, as URIs, URLs and hub ids do.
    describable = all("/" in model or Path(model).is_dir() for model in arguments.model)
    if arguments.task not in ("mlm", "nsp", "pll") and not (describable and NAME_PATTERN.fullmatch(arguments.task)):
        get_task(arguments.task)
    directories = [_model(arguments, model) for model in arguments.model]
    from bert_model.inference.predict import predict

    counts = predict(
        arguments.task, directories, arguments.input, arguments.output, arguments.precision, arguments.tokens
    )
    return 1 if counts.rejected else 0


def run_score(arguments: argparse.Namespace) -> int:
    from bert_model.kinds.scores import score_files
    from bert_model.tables import format_table

    scores = score_files(
        arguments.task, _fetched(arguments.data), arguments.predictions, arguments.na_prob, arguments.na_prob_thresh
    )
    for what, count in scores.get("defects", {}).items():
        print(f"{arguments.data}: {what}: {count:,}", file=sys.stderr)
    head, *rows = [(k, f"{v:.2f}" if isinstance(v, float) else str(v)) for k, v in scores.items() if k != "defects"]
    _print_scores(arguments, format_table(head, rows, "simple", numbers=[1]), [json.dumps(scores, indent=1)])
    return 0


def _print_scores(arguments: argparse.Namespace, table: str, lines: Iterable[str]) -> None:
    """Print scores: a table for people on a terminal, else JSON for programs."""
    print(*([table] if sys.stdout.isatty() and not arguments.json else lines), sep="\n")


def run_submission(arguments: argparse.Namespace) -> int:
    check_file_target(arguments.output)
    from bert_model.finetuning.analysis import errors_path
    from bert_model.kinds.scores import read_predictions
    from bert_pipeline.tasks.catalogue import get_task
    from bert_pipeline.tasks.submission import write_submission

    # Each directory contributes the test splits that its fine-tuning predicted.
    predictions: dict[str, dict[str, Any]] = {}
    pages = {errors_path(directory) for directory in arguments.directories}  # `o/*` names them too
    for directory in (path for path in arguments.directories if path not in pages):
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
    directory = _model(arguments)
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
    try:
        layers = [int(word) for word in arguments.layers.split(",")] if arguments.layers else []
    except ValueError:
        raise UsageError(f"--layers {arguments.layers}: expected whole numbers with commas, such as -1,-2") from None
    from bert_model.inference.features import write_features

    options: dict[str, Any] = {"pools": bool(arguments.pool), "precision": arguments.precision or "float32"}
    count = write_features(_model(arguments), arguments.input, arguments.output, layers=layers, **options)
    print(f"{arguments.output}: hidden states of {count_of(count, 'texts')}")
    return 0


def run_attention(arguments: argparse.Namespace) -> int:
    check_file_target(arguments.output)
    from bert_model.inference.attention import write_attention

    directory, texts = _model(arguments), (arguments.text_a, arguments.text_b)
    count = write_attention(directory, *texts, arguments.output, model_name=without_secrets(arguments.model))
    print(f"{arguments.output}: attention between {count} tokens")
    return 0


def _model(arguments: argparse.Namespace, reference: str = "", vocabulary: Path | None = None) -> Path:
    """Return the local directory of a command's model, by default of its only one."""
    from bert_model.registry.resolve import resolve_model

    return resolve_model(reference or arguments.model, cased=arguments.cased, vocabulary=vocabulary)


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

    paths, model = (arguments.vocab, arguments.output, arguments.corpus), _model(arguments, vocabulary=arguments.vocab)
    options: dict[str, Any] = {"positions": arguments.positions, "special_tokens": arguments.special_token or ()}
    counts = adapt_model(model, *paths, **options, cased=arguments.cased).counts
    print(
        f"{arguments.output}: {counts['positions']:,} positions; {counts['vocab_size']:,} tokens: "
        f"{counts['kept_rows']:,} keep their rows, "
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

    if arguments.data and not arguments.quantize:
        raise UsageError("--data: needs --quantize, whose scores it is for; none was given")
    data = arguments.data and _fetched(arguments.data)
    written = export_onnx(_model(arguments), arguments.output, int8=bool(arguments.quantize), data=data)
    for file, difference in written.items():
        print(f"{file}: {file.stat().st_size:,} bytes, {difference}")
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
