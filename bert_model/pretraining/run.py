"""Pre-training from instance directories to a published model: data, run directory, model, trainer."""

import contextlib
import dataclasses
import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch

from bert_model.model.config import BertConfig
from bert_model.model.weights import save_model
from bert_model.pretraining import run_directory
from bert_model.pretraining.checkpoint import KIND as CHECKPOINT_KIND
from bert_model.pretraining.checkpoint import BackgroundSaver, CheckpointDirectory, is_intact, read_state, restore
from bert_model.pretraining.config import INITIAL_SIZE, PretrainingConfig
from bert_model.pretraining.fast_exam import FastExam, input_of_pairs, pairs_for_choosing, report_metrics, whole_exam
from bert_model.pretraining.phases import (
    Phase,
    Timetable,
    data_inputs,
    load_phases,
    refuse_other_budget,
    with_own_copies,
)
from bert_model.pretraining.run_store import RunStore
from bert_model.pretraining.trainer import PretrainingResult, Trainer
from bert_model.training.distributed import Group, LostRanksError, is_lost_connection, process_group, resolve_precision
from bert_model.training.gradients import unsharded
from bert_model.training.metrics_log import CODE_VERSION_VARIABLE, first_line, read_lines
from bert_model.training.mlflow_sync import Tracker, sync
from bert_model.training.throughput import PeakRate, peak_rate
from bert_model.zero_shot.result import EXAM_NAME, ExamResult, exam_table
from bert_pipeline.atomic import locked, write_text_durably
from bert_pipeline.errors import ArtifactError, BertError, ConfigurationError, DiskFullError, TrainingError
from bert_pipeline.exam.pairs import PAIRS_NAME, Pair, write_pairs
from bert_pipeline.manifest import Manifest, load_manifest, publishing
from bert_pipeline.signals import stop_requests
from bert_pipeline.storage import is_remote, to_path, without_secrets

logger = logging.getLogger(__name__)


def pretrain(
    config: PretrainingConfig,
    output: Path | str,
    *,
    resume: bool = False,
    allow_changes: bool = False,
    experiment: str = "pretraining",
    device: str = "",
    after_step: Callable[[int], None] | None = None,
    resolve: Callable[[str], Path] = Path,
    clock: Callable[[], float] = time.monotonic,
) -> PretrainingResult:
    """Pre-train in this process, or as one rank under torchrun; `output` is the run directory, or its URL in a store.

    With `resume` the run in `output` continues from its newest valid checkpoint, a finished one is left unchanged, and
    an empty directory starts from the beginning. Without an `experiment` MLflow is not used. `resolve` turns the
    configuration's initial model into a directory, on rank 0. `clock` measures budget and exams, in seconds.

    Raise TrainingError if another process holds the directory or a loss is not finite, ConfigurationError if the
    configuration does not fit the data or differs from that of the run to resume (`allow_changes` accepts the
    differences), ArtifactError if inputs are damaged. A store that fails in the middle of a training is warned of, and
    is an error at the start and at the end.
    """
    store = RunStore(to_path(output)) if is_remote(output) else None
    output = store.directory if store is not None else Path(output)
    with process_group(config.timeout_seconds, device) as group, contextlib.ExitStack() as stack:
        # Data and run directory: rank 0 checks and locks them, and its errors end all ranks.
        config = resolve_initial_model(config, group, resolve)
        run = group.call_on_main(
            lambda: _open_run(config, output, store, group, stack, resume=resume, allow_changes=allow_changes)
        )
        own = group.on_all_ranks(lambda: run.phases if group.is_main else with_own_copies(run.phases, config))
        run, checkpoints, tokenizer = dataclasses.replace(run, phases=own), run.checkpoints, run.checkpoints.tokenizer
        if run.status == "finished":
            return group.call_on_main(lambda: _already_finished(checkpoints, store))
        # One rank chooses the checkpoint for all: another machine might see the files of a shared disk later.
        chosen = group.call_on_main(lambda: _newest_checkpoint(checkpoints, store))
        newest = _here(store, group, *chosen) if chosen is not None else None
        model, optimizer, state, origin = run_directory.initialize_or_resume(config, newest, tokenizer, group)
        step, precision = state.get("step", 0), resolve_precision(config.precision, group.device)
        # All ranks train alike; only rank 0 logs and saves.
        trainer = Trainer(
            config,
            model=model,
            optimizer=optimizer,
            vocabulary=tokenizer,
            group=group,
            saver=BackgroundSaver(checkpoints, store.push_soon if store else None) if group.is_main else None,
            should_stop=stack.enter_context(stop_requests()),
            after_step=after_step if store is None else store.checking(after_step),
            peak=peak_rate(group.device, precision) if group.is_main else PeakRate(),
            # Last, as their clocks start here.
            timetable=Timetable(config, run.phases, state.get("budget"), clock=clock),
            exam=FastExam(run.pairs, tokenizer, config, state.get("exam"), clock=clock) if run.pairs else None,
        )
        if group.is_main:
            described = {"configuration": checkpoints.configuration, "inputs": checkpoints.inputs}
            run_directory.write_configuration(output, config, described)
            trainer.tracker = _open_tracker(output, config, run, experiment)  # which starts with what is computed on
            logger.info("%s%s", origin, cost_of_dropout(model.config, group.device))
            trainer.tracker.record(
                "resume" if newest else "start",
                step,
                message=origin,
                matrix_product_rate=trainer.peak.flops,
                matrix_product_rate_kind=trainer.peak.kind,
                code_version=os.environ.get(CODE_VERSION_VARIABLE, ""),
                **trainer.arithmetic,
            )
        # Rank 0 looks for the best checkpoint, for all: it has the files.
        best = state.get("best", {})
        has_best = group.call_on_main(lambda: bool(best) and is_intact(checkpoints.path_of(best["step"])))
        trainer.restore(state, has_best=has_best)
        return _train(trainer, step, run, store)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Run:
    """What rank 0 found when it opened data and run directory."""

    phases: list[Phase]
    checkpoints: CheckpointDirectory
    """With the tokenizer of the data, and the identity of the run."""
    pairs: list[Pair]
    """Minimal pairs that checkpoints are examined on."""
    status: Literal["new", "unfinished", "finished"]

    @property
    def model(self) -> Path:
        """Where the finished model is published."""
        return self.checkpoints.path.parent / "model"


def _open_run(
    config: PretrainingConfig,
    output: Path,
    store: RunStore | None,
    group: Group,
    stack: contextlib.ExitStack,
    *,
    resume: bool,
    allow_changes: bool,
) -> _Run:
    """Open the data, and open the run directory under its lock, which `stack` releases."""
    phases, tokenizer = load_phases(config)
    check_batch_sizes(config, group.world_size)
    if config.choose == "loss" and not phases[-1].held_out.num_instances:
        raise ConfigurationError(
            f"choose: found 'loss', but {phases[-1].train.manifest.path} has no held-out instances to measure it on; "
            "make its corpus with a larger held_out_per_mille"
        )
    pairs = pairs_for_choosing(config.exam, config.exam_pairs) if config.exam or config.choose == "exam" else []
    described = run_directory.identity(config, [phase.train.manifest for phase in phases])
    checkpoints = CheckpointDirectory(
        path=output / "checkpoints",
        tokenizer=tokenizer,
        configuration=described["configuration"],
        inputs=described["inputs"],
        keep_last=config.keep_last,
        keep_every_steps=config.keep_every_steps,
    )
    busy = TrainingError(f"{output}: another run holds this directory; wait for it, or give another directory")
    if not stack.enter_context(locked(output / run_directory.LOCK_NAME, wait=0, busy=busy)):
        logger.warning("%s: this disk has no locks: a second run in this directory would not be refused", output)
    if store is not None:
        store.fetch(resume=resume)
    state: dict[str, Any] = {}
    if steps := checkpoints.steps():
        with contextlib.suppress(OSError, ValueError):  # a damaged one, which is skipped later
            state = read_state(checkpoints.path_of(steps[-1]))
    refuse_other_budget(config, state.get("budget", {}))
    status = run_directory.open_directory(output, config, described, resume=resume, allow_changes=allow_changes)
    if store is not None:  # only now: a start that is refused stops no other run
        store.take_over()
    return _Run(phases=phases, checkpoints=checkpoints, pairs=pairs, status=status)


def resolve_initial_model(config: PretrainingConfig, group: Group, resolve: Callable[[str], Path]) -> PretrainingConfig:
    """Return the configuration with the initial model as a directory, and with what follows from its architecture.

    It is resolved once: an alias may move meanwhile.
    """
    reference = config.initial_model
    if not reference:
        return config
    directory = group.call_on_main(lambda: resolve(reference))
    # Downloaded on another machine; the weights will be those of rank 0 in any case.
    directory = group.on_all_ranks(lambda: directory if directory.is_dir() else resolve(reference))
    if group.is_main and str(directory) != reference:
        logger.info("%s is %s", without_secrets(reference), directory)
    config = dataclasses.replace(config, initial_model=str(directory))
    if config.model.preset != INITIAL_SIZE:
        return config
    model = dataclasses.replace(config.model, architecture=BertConfig.from_directory(directory).architecture)
    return dataclasses.replace(config, model=model, objective=config.objective_of(model.architecture))


def check_batch_sizes(config: PretrainingConfig, world_size: int) -> None:
    """Raise ConfigurationError if a batch cannot be shared equally by the ranks."""
    for index, phase in enumerate(config.phases):
        for key in ("global_batch_size", "initial_batch_size"):
            if getattr(phase, key) % world_size:
                raise ConfigurationError(
                    f"phases.{index}.{key}: {getattr(phase, key)} instances cannot be shared equally by "
                    f"{world_size} ranks; give a multiple of {world_size}"
                )


def cost_of_dropout(config: BertConfig, device: torch.device) -> str:
    """Return what attention dropout costs on a GPU, as the end of a log message; "" without dropout, or on a CPU."""
    if device.type == "cpu" or not config.attention_probs_dropout_prob:
        return ""
    return (
        f"; attention_probs_dropout_prob={config.attention_probs_dropout_prob:g}: the kernel for sequences without "
        "padding has no dropout, so attention is padded, at about half the speed; set it to 0 in model.overrides"
    )


def _newest_checkpoint(checkpoints: CheckpointDirectory, store: RunStore | None) -> tuple[Path, str] | None:
    """Return the newest valid checkpoint and its hash, after removing incomplete ones of a killed process.

    ArtifactError if there are checkpoints and none is intact.
    """
    checkpoints.path.mkdir(exist_ok=True)
    manifest = checkpoints.newest()
    if manifest is None and (steps := checkpoints.steps()):
        raise ArtifactError(
            f"{checkpoints.path}: none of its {len(steps)} checkpoints is intact; restore one, or give a new directory"
        )
    checkpoints.clean(manifest)
    if store is not None:  # it can be written, and has this checkpoint for the other hosts
        store.push(checkpoints)
    return (manifest.path, manifest.sha256) if manifest is not None else None


def _here(store: RunStore | None, group: Group, path: Path, sha256: str) -> Path:
    """Return each rank's copy of the checkpoint that rank 0 has at `path`, when all ranks have one."""
    return path if store is None else group.on_all_ranks(lambda: store.checkpoint_here(path, sha256))


def _open_tracker(output: Path, config: PretrainingConfig, run: _Run, experiment: str) -> Tracker:
    """Open the metrics log and its MLflow run, with its description, its data sets and the hashes of its inputs."""
    lineage = {f"input.{name}": next(reversed(entry.values())) for name, entry in run.checkpoints.inputs.items()}
    return Tracker(
        output,
        experiment=experiment,
        run_name=config.model.name,
        tags={"kind": "pretraining", **lineage},
        params=run.checkpoints.configuration,
        inputs=data_inputs(run.phases),
        note=_note(config, output),
        upload_checkpoints=config.upload_checkpoints,
    )


def _note(config: PretrainingConfig, output: Path) -> str:
    """Describe a run in Markdown."""
    shares = sum(phase.share for phase in config.phases)
    phases = [
        (f"{phase.share / shares:.0%} of {config.budget}" if config.budget else f"{phase.steps:,} steps")
        + f" of {phase.global_batch_size} instances of up to {phase.max_seq_length} tokens"
        for phase in config.phases
    ]
    start = f"continued from `{Path(config.initial_model).name}`" if config.initial_model else "from random weights"
    return (
        f"Pre-training of a {config.model.name} BERT {start}: {', then '.join(phases)}. The finished model is "
        f"`{output.name}/model`; `metrics.jsonl` next to it has the same metrics."
    )


def _train(trainer: Trainer, step: int, run: _Run, store: RunStore | None) -> PretrainingResult:
    """Train from `step` on and publish the finished model; the metrics log records how the run ended."""
    tracker, saver = trainer.tracker, trainer.saver
    try:
        result = trainer.run(step)
        # The other ranks wait for rank 0's files as long as it gives signs of life.
        trainer.group.on_all_ranks(saver.wait if saver is not None else lambda: None)
        if result.status == "finished":
            if trainer.best and trainer.best["step"] != result.step:
                _load_best(trainer, run.checkpoints, store)
            with unsharded(trainer.model):
                exam = _take_exam(trainer, result.step, run)
                result = dataclasses.replace(result, metrics=trainer.metrics)
                if trainer.group.is_main:
                    _publish_model(trainer, result.step, run, exam)
    except Exception as error:
        if saver is not None:
            # Finish the queued checkpoints first, so that the error names the last one that is safe.
            with contextlib.suppress(Exception):  # the first error is the cause
                saver.wait()
            if store is not None:
                store.wait()
        failure = _explain(error, run.checkpoints, store, trainer)
        if tracker is not None:
            # The failure may be that the log was removed, or that the disk is full.
            with contextlib.suppress(TrainingError, DiskFullError, OSError):
                text = str(failure) if isinstance(failure, BertError) else first_line(failure)
                tracker.record("end", max(step, trainer.watchdog.step), {}, status="failed", error=text)
            with contextlib.suppress(DiskFullError, OSError):
                tracker.close("FAILED")
        if failure is error:
            raise
        raise failure from error

    # A preempted run is "killed" in MLflow: it is not finished, and it did not fail.
    if tracker is not None:
        tracker.record("end", result.step, result.metrics, status=result.status)
        tracker.close("FINISHED" if result.status == "finished" else "KILLED")
        if store is not None:
            store.finish(run.checkpoints)
    return dataclasses.replace(result, model=run.model) if result.status == "finished" else result


def _explain(error: Exception, checkpoints: CheckpointDirectory, store: RunStore | None, trainer: Trainer) -> Exception:
    """Turn the exception that ended a run into an error that names the last checkpoint; a defect stays as it is."""
    watchdog = trainer.watchdog
    steps = checkpoints.steps()
    safe = f"the last checkpoint is {checkpoints.path_of(steps[-1])}" if steps else "there is no checkpoint yet"
    if store is not None and not watchdog.group.is_main:  # another host has them
        safe = f"the checkpoints are in {store.url}"
    if isinstance(error, TrainingError):
        return TrainingError(f"{error}; {safe}")
    if isinstance(error, BertError):
        return error
    if is_lost_connection(error):
        stalled = watchdog.stalled_ranks(is_lost=True)
        return LostRanksError(
            f"rank {watchdog.group.rank} lost the other ranks at step {watchdog.step} ({str(error).splitlines()[0]})"
            f"{f'; it waited for {stalled}' if stalled else ''}; {safe}; start again with --resume, on the remaining "
            "machines if one is lost"
        )
    if isinstance(error, RuntimeError) and ("C compiler" in str(error) or "C++ compiler" in str(error)):
        return TrainingError(
            f"torch.compile lacks a C++ compiler ({first_line(error)}); install g++, or give compile=false; {safe}"
        )
    if isinstance(error, torch.OutOfMemoryError):
        size = "micro_batch_tokens (of evaluations, micro_batch_size)" if trainer.packing else "micro_batch_size"
        return TrainingError(
            f"the GPU has too little memory ({first_line(error)}); give a smaller {size}, or "
            f"activation_checkpointing=true; {safe}"
        )
    return error


def _load_best(trainer: Trainer, checkpoints: CheckpointDirectory, store: RunStore | None) -> None:
    """Replace weights and metrics by those of the chosen checkpoint, on all ranks."""
    step = int(trainer.best["step"])

    def find() -> Manifest:
        if store is not None and trainer.group.world_size > 1:
            store.wait()
            store.push(checkpoints)  # the other hosts read it there
        return load_manifest(checkpoints.path_of(step), kind=CHECKPOINT_KIND, verify="sha256")

    # Rank 0 has written all checkpoints by now; the others wait for it here.
    manifest = trainer.group.call_on_main(find)
    path = _here(store, trainer.group, manifest.path, manifest.sha256)
    if trainer.group.is_main:
        logger.info("publishing the checkpoint of step %d, the best by %s", step, trainer.config.choose)
    trainer.tokens_seen = int(restore(path, trainer.model, trainer.optimizer)["tokens_seen"])
    trainer.metrics = {key: value for key, value in manifest.counts.items() if key != "step"}


def _take_exam(trainer: Trainer, step: int, run: _Run) -> tuple[ExamResult, list[Pair]] | None:
    """Examine the model on the pairs for reporting, on all ranks, and add the scores to the metrics.

    Returns the result and the pairs that were scored, or None if no exam is configured.
    """
    path, next_sentence = trainer.config.exam, trainer.config.objective == "mlm_nsp"
    exam = path and whole_exam(path, trainer.model, trainer.vocabulary, trainer.group, next_sentence=next_sentence)
    if not exam:
        return None
    metrics = report_metrics(exam[0])
    trainer.metrics = trainer.metrics | metrics
    if trainer.tracker is not None:
        # A run that was killed before its publication has recorded the same.
        lines = [line for line in read_lines(run.model.parent) if line.get("event") == "exam_report"]
        if (step, metrics) not in [(line["step"], line["metrics"]) for line in lines]:
            trainer.tracker.record("exam_report", step, metrics)
        logger.info("exam of the model, pairs for reporting:\n%s", exam_table(exam[0]))
    return exam


def _publish_model(trainer: Trainer, step: int, run: _Run, exam: tuple[ExamResult, list[Pair]] | None) -> None:
    """Publish the trained weights as a Hugging Face directory without training state.

    Beside them are the result of the exam and its pairs, on which a promotion examines the champion too.
    """
    if trainer.config.choose != "last" and not trainer.best:  # chosen by what was not measured when it was saved
        logger.warning("choose=%s: no checkpoint was compared by it; the last one is published", trainer.config.choose)
    model, configuration, inputs = trainer.model, run.checkpoints.configuration, dict(run.checkpoints.inputs)
    if trainer.exam is not None:
        inputs["exam"] = input_of_pairs(trainer.exam.scored_pairs)
    if exam:
        inputs["exam_report"] = input_of_pairs(exam[1])
    with publishing(run.model, kind=run_directory.MODEL_KIND, configuration=configuration, inputs=inputs) as draft:
        save_model(model, draft.path, trainer.vocabulary)
        if exam:
            result, pairs = exam
            # The pairs are beside it: a path would make equal models differ.
            document = {"part": "reporting", **result.to_json()}
            write_text_durably(draft.path / EXAM_NAME, json.dumps(document, indent=1, ensure_ascii=False) + "\n")
            write_pairs(draft.path / PAIRS_NAME, pairs)
        draft.counts = {
            "steps": step,
            "tokens_seen": trainer.tokens_seen,
            **({"published_step": int(trainer.best["step"])} if trainer.best else {}),
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            **trainer.metrics,
        }
        if trainer.config.budget:  # a training with the same steps computes the same
            draft.provenance["budget"] = trainer.timetable.decisions
        # Names the data to the fine-tunings of the model, wherever it is copied.
        draft.provenance["data"] = data_inputs(run.phases)


def _already_finished(checkpoints: CheckpointDirectory, store: RunStore | None) -> PretrainingResult:
    """Return the result of a finished run, and copy to MLflow and to the store what an outage left behind."""
    output = checkpoints.path.parent
    manifest = load_manifest(output / "model", kind=run_directory.MODEL_KIND)
    step = manifest.counts["steps"]
    logger.info("%s: this run finished at step %d; nothing is left to do", output, step)
    sync(output)
    if store is not None:
        store.finish(checkpoints)
    metrics = {key: value for key, value in manifest.counts.items() if key.startswith("held_out/")}
    return PretrainingResult(status="already_finished", step=step, model=manifest.path, metrics=metrics)
