"""Asset checks: each reopens the artifact that it judges. Blocking ones stop what would waste a training."""

import warnings
from collections.abc import Mapping, Sequence

import dagster as dg

from workflows.defs.data import corpus, dump, exam, instances, vocabulary
from workflows.defs.finetuning import finetuned_model, task_data
from workflows.defs.predictions import predictions
from workflows.defs.pretraining import pretrained_model
from workflows.defs.promotion import candidate_model, registered_model, report
from workflows.lib import data_checks, model_checks
from workflows.lib.data_checks import Check
from workflows.lib.resources import BertHome

CHECKS: Mapping[dg.AssetsDefinition, Sequence[Check]] = {
    dump: [data_checks.dump_readable],
    corpus: [
        data_checks.corpus_intact,
        data_checks.corpus_not_empty,
        data_checks.corpus_without_markup,
        data_checks.corpus_without_broken_text,
        data_checks.corpus_without_failures,
        data_checks.corpus_split_disjoint,
        data_checks.corpus_not_shrunken,
    ],
    vocabulary: [data_checks.vocabulary_layout, data_checks.vocabulary_unknown_rate],
    instances: [data_checks.instances_well_formed, data_checks.next_sentence_balance],
    exam: [data_checks.exam_of_held_out_documents],
    pretrained_model: [
        model_checks.pretrained_model_loads,
        model_checks.pretraining_loss_falls,
        model_checks.held_out_reproduces,
        model_checks.pretrained_model_beats_ngram_baseline,
    ],
    task_data: [model_checks.task_data_unchanged, model_checks.task_splits_disjoint],
    finetuned_model: [model_checks.finetuned_scores_reproduce, model_checks.finetuned_not_degenerate],
    candidate_model: [model_checks.registered_pretrained_consistent],
    registered_model: [model_checks.registered_task_consistent],
    report: [model_checks.report_intact],
    predictions: [model_checks.predictions_complete],
}
"""The checks of each asset; a function's name and docstring are the name and description of the check."""
WARNINGS = {
    data_checks.corpus_without_broken_text,
    data_checks.corpus_without_failures,
    model_checks.pretrained_model_beats_ngram_baseline,
    model_checks.task_splits_disjoint,
    model_checks.finetuned_not_degenerate,
}
"""Checks whose failure is a warning: it may be a property of the text, of the task or of a short training."""
NOT_BLOCKING = WARNINGS | {
    model_checks.registered_pretrained_consistent,
    model_checks.registered_task_consistent,
    model_checks.report_intact,
    model_checks.predictions_complete,
}
"""Checks that stop nothing: no training builds on what they judge."""


def build_check(asset: dg.AssetsDefinition, function: Check) -> dg.AssetChecksDefinition:
    """Build the Dagster check that runs a function on the partition of the run."""
    name = function.__name__

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.PreviewWarning)

        @dg.asset_check(
            asset=asset,
            name=name,
            description=function.__doc__,
            blocking=function not in NOT_BLOCKING,
            partitions_def=asset.partitions_def,
        )
        def check(context: dg.AssetCheckExecutionContext, home: BertHome) -> dg.AssetCheckResult:
            home.apply_environment()
            verdict = function(home, context.partition_key)
            is_warning = function in WARNINGS or verdict.is_warning
            # Logged as well, so that a failure is also a warning on the console.
            log = context.log.info if verdict.passed else context.log.warning
            log(f"check {name} {'passed' if verdict.passed else 'FAILED'}: {verdict.description}")
            return dg.AssetCheckResult(
                passed=verdict.passed,
                severity=dg.AssetCheckSeverity.WARN if is_warning else dg.AssetCheckSeverity.ERROR,
                description=verdict.description,
                metadata=verdict.metadata,
            )

    return check


checks = [build_check(asset, function) for asset, functions in CHECKS.items() for function in functions]
