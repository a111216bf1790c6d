"""Asset checks: each reopens the artefact that it judges. Blocking ones stop what would waste a training."""

import warnings
from collections.abc import Callable
from typing import Any

import dagster as dg

from workflows.defs.data import corpus, dump, dump_sources, instances, vocabulary
from workflows.defs.finetuning import finetuned_model, task_data
from workflows.defs.predictions import predictions
from workflows.defs.pretraining import current_model, pretrained_model
from workflows.defs.promotion import registered_name, registered_pretrained_model, registered_task_model, report
from workflows.lib import data_checks, model_checks
from workflows.lib.data_checks import Verdict
from workflows.lib.resources import TASK_NAMES, BertHome, dump_and_task, sample_seed

DUMP_READABLE = "dump_readable"
CORPUS_INTACT = "corpus_intact"
CORPUS_NOT_EMPTY = "corpus_not_empty"
CORPUS_WITHOUT_MARKUP = "corpus_without_markup"
CORPUS_SPLIT_DISJOINT = "corpus_split_disjoint"
CORPUS_NOT_SHRUNKEN = "corpus_not_shrunken"
VOCABULARY_LAYOUT = "vocabulary_layout"
VOCABULARY_UNKNOWN_RATE = "vocabulary_unknown_rate"
INSTANCES_WELL_FORMED = "instances_well_formed"
NEXT_SENTENCE_BALANCE = "next_sentence_balance"
PRETRAINED_MODEL_LOADS = "pretrained_model_loads"
PRETRAINING_LOSS_FALLS = "pretraining_loss_falls"
HELD_OUT_REPRODUCES = "held_out_reproduces"
TASK_DATA_UNCHANGED = "task_data_unchanged"
TASK_SPLITS_DISJOINT = "task_splits_disjoint"
FINETUNED_SCORES_REPRODUCE = "finetuned_scores_reproduce"
FINETUNED_NOT_DEGENERATE = "finetuned_not_degenerate"
REGISTERED_PRETRAINED_CONSISTENT = "registered_pretrained_consistent"
REGISTERED_TASK_CONSISTENT = "registered_task_consistent"
REPORT_INTACT = "report_intact"
PREDICTIONS_COMPLETE = "predictions_complete"

Judge = Callable[[BertHome, str], Verdict]


def _dump_readable(home: BertHome, name: str) -> Verdict:
    """The dump's files are there and unchanged."""
    directory = home.dump(name)
    verdict = data_checks.intact(directory)
    return data_checks.dump_readable(directory, dump_sources(directory)) if verdict.passed else verdict


def _corpus_intact(home: BertHome, name: str) -> Verdict:
    """Every shard is byte for byte what the manifest says."""
    return data_checks.intact(home.corpus(name), "corpus")


def _corpus_not_empty(home: BertHome, name: str) -> Verdict:
    """There are training and held-out documents with sentences."""
    return data_checks.corpus_not_empty(home.corpus(name))


def _corpus_without_markup(home: BertHome, name: str) -> Verdict:
    """Sentences are prose, free of wikitext and HTML."""
    return data_checks.corpus_without_markup(home.corpus(name))


def _corpus_split_disjoint(home: BertHome, name: str) -> Verdict:
    """No document stands in both training and held-out data, or twice."""
    return data_checks.corpus_split_disjoint(home.corpus(name))


def _corpus_not_shrunken(home: BertHome, name: str) -> Verdict:
    """The corpus is not much smaller than that of the same wiki's dump before."""
    if sample_seed(name) is not None:
        return Verdict(passed=True, description="a generated sample is as large as it was asked to be")
    return data_checks.corpus_not_shrunken(home.path / "data", name)


def _vocabulary_layout(home: BertHome, name: str) -> Verdict:
    """Special tokens, size, no token twice."""
    return data_checks.vocabulary_layout(home.vocabulary(name))


def _vocabulary_unknown_rate(home: BertHome, name: str) -> Verdict:
    """Held-out text is nearly free of [UNK]: at most 0.1 % of the tokens in English (a warning up to 2 %)."""
    return data_checks.unknown_rate(home.vocabulary(name), home.corpus(name))


def _instances_well_formed(home: BertHome, name: str) -> Verdict:
    """Every instance of every length is [CLS] A [SEP] B [SEP]."""
    return _all_lengths(home, name, data_checks.instances_well_formed)


def _next_sentence_balance(home: BertHome, name: str) -> Verdict:
    """Random and true next sentences are balanced."""
    return _all_lengths(home, name, data_checks.next_sentence_balance)


def _all_lengths(home: BertHome, name: str, judge: Callable[[Any], Verdict]) -> Verdict:
    directories = sorted(
        (path.parent for path in home.instances(name, 0).parent.glob("*/manifest.json")),
        key=lambda path: int(path.name) if path.name.isdigit() else 0,
    )
    if not directories:
        return Verdict(passed=False, description="no instances at all")
    verdicts = {directory.name: judge(directory) for directory in directories}
    return Verdict(
        passed=all(verdict.passed for verdict in verdicts.values()),
        description="; ".join(f"{length}: {verdict.description}" for length, verdict in verdicts.items()),
        metadata={f"{length}/{k}": v for length, verdict in verdicts.items() for k, v in verdict.metadata.items()},
    )


def _pretrained_model_loads(home: BertHome, name: str) -> Verdict:
    """The weights are intact, load strictly, and are finite."""
    return model_checks.pretrained_model_loads(current_model(home, name))


def _pretraining_loss_falls(home: BertHome, name: str) -> Verdict:
    """The held-out loss is finite and lower at the end than at the start, and better than guessing."""
    return model_checks.pretraining_loss_falls(current_model(home, name))


def _held_out_reproduces(home: BertHome, name: str) -> Verdict:
    """The exported weights have the held-out loss and accuracy that the training measured."""
    return model_checks.held_out_reproduces(current_model(home, name))


def _task_data_unchanged(home: BertHome, partition: str) -> Verdict:
    """The official files are still the ones that were read."""
    return model_checks.task_data_unchanged(home.task_data(*dump_and_task(partition)))


def _task_splits_disjoint(home: BertHome, partition: str) -> Verdict:
    """Hardly any dev example is a training example, word by word."""
    return model_checks.task_splits_disjoint(home.task_data(*dump_and_task(partition)))


def _finetuned_scores_reproduce(home: BertHome, partition: str) -> Verdict:
    """The saved weights predict dev as recorded, and the predictions score as recorded."""
    name, task = dump_and_task(partition)
    return model_checks.finetuned_scores_reproduce(home.finetuning(name, task), home.task_data(name, task))


def _finetuned_not_degenerate(home: BertHome, partition: str) -> Verdict:
    """The model does not say the same of every dev example."""
    return model_checks.finetuned_not_degenerate(home.finetuning(*dump_and_task(partition)))


def _registered_pretrained_consistent(home: BertHome, name: str) -> Verdict:
    """The registry's version holds exactly the weights of the pre-trained model."""
    directory = current_model(home, name)
    return model_checks.registered_consistent(directory, registered_name(directory, None))


def _registered_task_consistent(home: BertHome, partition: str) -> Verdict:
    """The registry's version holds exactly the fine-tuned weights, and the champion can be read."""
    name, task = dump_and_task(partition)
    model = registered_name(current_model(home, name), task)
    return model_checks.registered_consistent(home.finetuning(name, task), model)


def _report_intact(home: BertHome, name: str) -> Verdict:
    """Table and pictures are there, and the table says what the fine-tuned models say."""
    return model_checks.report_agrees(home.report(name), home.finetuning(name, TASK_NAMES[0]).parent)


def _predictions_complete(home: BertHome, task: str) -> Verdict:
    """There is an answer for each input, in whole files."""
    return model_checks.predictions_complete(home.predictions(task))


def _check(
    asset: dg.AssetsDefinition, name: str, judge: Judge, *, blocking: bool, warn: bool = False
) -> dg.AssetChecksDefinition:
    """Wrap a judge: the partition is the run's own."""
    partitions = asset.partitions_def
    assert partitions is not None

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.PreviewWarning)

        @dg.asset_check(asset=asset, name=name, description=judge.__doc__, blocking=blocking, partitions_def=partitions)
        def check(context: dg.AssetCheckExecutionContext, home: BertHome) -> dg.AssetCheckResult:
            home.apply_environment()
            verdict = judge(home, context.partition_key)
            say = context.log.info if verdict.passed else context.log.warning
            say(f"check {name} {'passed' if verdict.passed else 'FAILED'}: {verdict.description}")
            return dg.AssetCheckResult(
                passed=verdict.passed,
                severity=dg.AssetCheckSeverity.WARN if warn or verdict.is_warning else dg.AssetCheckSeverity.ERROR,
                description=verdict.description,
                metadata=verdict.metadata,
            )

    return check


checks = [
    _check(dump, DUMP_READABLE, _dump_readable, blocking=True),
    _check(corpus, CORPUS_INTACT, _corpus_intact, blocking=True),
    _check(corpus, CORPUS_NOT_EMPTY, _corpus_not_empty, blocking=True),
    _check(corpus, CORPUS_WITHOUT_MARKUP, _corpus_without_markup, blocking=True),
    _check(corpus, CORPUS_SPLIT_DISJOINT, _corpus_split_disjoint, blocking=True),
    _check(corpus, CORPUS_NOT_SHRUNKEN, _corpus_not_shrunken, blocking=True),
    _check(vocabulary, VOCABULARY_LAYOUT, _vocabulary_layout, blocking=True),
    _check(vocabulary, VOCABULARY_UNKNOWN_RATE, _vocabulary_unknown_rate, blocking=True),
    _check(instances, INSTANCES_WELL_FORMED, _instances_well_formed, blocking=True),
    _check(instances, NEXT_SENTENCE_BALANCE, _next_sentence_balance, blocking=True),
    _check(pretrained_model, PRETRAINED_MODEL_LOADS, _pretrained_model_loads, blocking=True),
    _check(pretrained_model, PRETRAINING_LOSS_FALLS, _pretraining_loss_falls, blocking=True),
    _check(pretrained_model, HELD_OUT_REPRODUCES, _held_out_reproduces, blocking=True),
    _check(task_data, TASK_DATA_UNCHANGED, _task_data_unchanged, blocking=True),
    _check(task_data, TASK_SPLITS_DISJOINT, _task_splits_disjoint, blocking=False, warn=True),
    _check(finetuned_model, FINETUNED_SCORES_REPRODUCE, _finetuned_scores_reproduce, blocking=True),
    _check(finetuned_model, FINETUNED_NOT_DEGENERATE, _finetuned_not_degenerate, blocking=False, warn=True),
    _check(
        registered_pretrained_model, REGISTERED_PRETRAINED_CONSISTENT, _registered_pretrained_consistent, blocking=False
    ),
    _check(registered_task_model, REGISTERED_TASK_CONSISTENT, _registered_task_consistent, blocking=False),
    _check(report, REPORT_INTACT, _report_intact, blocking=False),
    _check(predictions, PREDICTIONS_COMPLETE, _predictions_complete, blocking=False),
]
