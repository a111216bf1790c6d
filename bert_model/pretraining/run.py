"""Pre-training from instance directories to a published model: `torchrun … -m bert_model.pretraining`."""

import contextlib
import dataclasses
import logging
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from bert_model.model.config import BertConfig
from bert_model.model.cpu_kernels import cpu_settings, onednn_choice, onednn_shapes, processor
from bert_model.model.weights import write_weights
from bert_model.pretraining.checkpoint import BackgroundSaver, CheckpointDirectory
from bert_model.pretraining.config import PretrainingConfig
from bert_model.pretraining.data import InstanceSplit
from bert_model.pretraining.run_directory import (
    MODEL_KIND,
    build,
    describe_difference,
    identity,
    open_directory,
    training_id,
    training_lock,
)
from bert_model.pretraining.trainer import Outcome, Phase, Trainer
from bert_model.training.distributed import (
    Group,
    LostRanksError,
    Watchdog,
    is_lost_connection,
    process_group,
    resolve_precision,
)
from bert_model.training.metrics_log import CODE_VERSION_VARIABLE
from bert_model.training.mlflow_sync import Tracker
from bert_model.training.throughput import matrix_product_rate
from bert_pipeline.errors import BertError, ConfigurationError, TrainingError
from bert_pipeline.manifest import (
    content_sha256,
    load_manifest,
    publishing,
)
from bert_pipeline.vocabulary.tokenizer import Tokenizer

__all__ = ["PretrainingResult", "pretrain", "training_id"]

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingResult:
    """What `pretrain` has done."""

    status: Literal["finished", "preempted", "already_finished"]
    step: int
    model: Path | None
    """The published model, None when the training was preempted."""
    metrics: dict[str, float]
    """The latest held-out metrics."""


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
) -> PretrainingResult:
    """Pre-train in this process, or as one rank under torchrun; `output` is the training's directory.

    With `resume` a training that stands in `output` goes on from its newest whole checkpoint, a finished one is left
    alone, and an empty directory starts from the beginning. Without an `experiment` MLflow is left out. `resolve` turns
    the configuration's initial model into a directory, on rank 0; by default it is one.

    TrainingError when another process trains there or a loss is not finite, ConfigurationError when configuration and
    data do not fit or differ from those of the training at hand (`allow_changes` goes on all the same), ArtefactError
    when inputs are damaged.
    """
    output = Path(output)
    with process_group(config.timeout_seconds, device) as group, contextlib.ExitStack() as stack:
        config = _with_initial_directory(config, group, resolve)

        def start() -> tuple[list[Phase], Tokenizer, dict[str, Any], str]:
            phases, tokenizer = _load_data(config)
            _check_batches(config, group.world_size)
            described = identity(config, [phase.train.manifest for phase in phases])
            stack.enter_context(training_lock(output))
            found = open_directory(output, config, described, resume=resume, allow_changes=allow_changes)
            return phases, tokenizer, described, found

        phases, tokenizer, described, found = group.first(start)
        if found == "finished":
            return _already_finished(output, group)
        checkpoints = CheckpointDirectory(
            output / "checkpoints",
            tokenizer=tokenizer,
            configuration=described["configuration"],
            inputs=described["inputs"],
            keep_last=config.keep_last,
            keep_every_steps=config.keep_every_steps,
        )
        newest = group.first(lambda: _newest_checkpoint(checkpoints))
        model, optimizer, step, state, origin = build(config, newest, tokenizer, group)
        onednn = group.first(lambda: _choose_kernels(config, model.config, state, group))
        stack.enter_context(cpu_settings(onednn=onednn))
        tracker = _open_tracker(output, config, described, group, experiment)
        rate = 0.0
        if tracker is not None:
            logger.info("%s", origin)
            rate = matrix_product_rate(group.device, resolve_precision(config.precision, group.device))
            facts = {"message": origin, "world_size": group.world_size, "matrix_product_rate": rate}
            facts |= {"processor": processor(), "onednn": onednn}
            facts["code_version"] = os.environ.get(CODE_VERSION_VARIABLE, "")
            tracker.record("resume" if newest else "start", step, {}, **facts)
        saver = BackgroundSaver(checkpoints) if group.is_main else None
        trainer = Trainer(
            config,
            phases=phases,
            model=model,
            optimizer=optimizer,
            vocabulary=tokenizer,
            group=group,
            tracker=tracker,
            saver=saver,
            should_stop=stack.enter_context(stop_requests()),
            after_step=after_step,
            matrix_product_rate=rate,
        )
        _take_up(trainer, state)
        outcome = _train(
            trainer, step, checkpoints, lambda: publish_model(trainer, described, tokenizer, output / "model")
        )
        return PretrainingResult(
            status=outcome.status,
            step=outcome.step,
            model=output / "model" if outcome.status == "finished" else None,
            metrics=outcome.metrics,
        )


def _choose_kernels(
    config: PretrainingConfig, model_config: BertConfig, state: Mapping[str, Any], group: Group
) -> Sequence[Sequence[int]]:
    """Return the weight shapes for oneDNN: those of the checkpoint on the same processor, else the fastest here."""
    if state.get("processor") == processor():
        return state["onednn"]
    if config.compile or resolve_precision(config.precision, group.device) != "float32":
        return ()
    return onednn_choice(model_config, device=group.device)


def _take_up(trainer: Trainer, state: Mapping[str, Any]) -> None:
    """Go on counting where a checkpoint's state stands, and warn of what cannot be as it was."""
    trainer.tokens_seen = int(state.get("tokens_seen", 0))
    trainer.metrics = dict(state.get("metrics", {}))
    if state.get("precision", trainer.precision) != trainer.precision:
        logger.warning("so far this training computed in %s, now it does in %s", state["precision"], trainer.precision)
    if trainer.group.device.type == "cpu" and state.get("processor", processor()) != processor():
        logger.warning(
            "so far this training ran on %s, now it runs on %s: every sample is still seen exactly once, but sums "
            "differ in their last bits; the weight shapes that oneDNN computes were %s and are %s",
            state["processor"],
            processor(),
            state["onednn"],
            onednn_shapes(),
        )
    world_size = trainer.group.world_size
    if state.get("world_size", world_size) != world_size:
        logger.warning(
            "so far this training had %d ranks, now it has %d: every sample is still seen exactly once, but sums "
            "and dropout differ",
            state["world_size"],
            world_size,
        )


def _train(trainer: Trainer, step: int, checkpoints: CheckpointDirectory, publish: Callable[[], None]) -> Outcome:
    """Train from `step` on and publish a finished model; however it ends, the record says how."""
    tracker, saver = trainer.tracker, trainer.saver
    try:
        outcome = trainer.run(step)
        if saver is not None:
            saver.wait()
        if outcome.status == "finished" and trainer.group.is_main:
            publish()
    except Exception as error:
        if saver is not None:
            with contextlib.suppress(Exception):  # it is the first error that counts
                saver.wait()
        failure = _explain(error, checkpoints, trainer.watchdog)
        if tracker is not None:
            tracker.record("end", step, {}, status="failed", error=str(failure))
            tracker.close("FAILED")
        raise failure from error
    if tracker is not None:
        tracker.record("end", outcome.step, outcome.metrics, status=outcome.status)
        tracker.close("FINISHED" if outcome.status == "finished" else "KILLED")
    return outcome


def _with_initial_directory(
    config: PretrainingConfig, group: Group, resolve: Callable[[str], Path]
) -> PretrainingConfig:
    """Return the configuration with a directory as initial model, one for all ranks: an alias may move meanwhile."""
    reference = config.initial_model
    if not reference:
        return config
    directory = group.first(lambda: resolve(reference))
    if not directory.is_dir():  # downloaded on another machine; rank 0's weights are sent to all ranks anyway
        directory = resolve(reference)
    if group.is_main and str(directory) != reference:
        logger.info("%s is %s", reference, directory)
    return dataclasses.replace(config, initial_model=str(directory))


def _load_data(config: PretrainingConfig) -> tuple[list[Phase], Tokenizer]:
    """Open the phases' instances and check that they fit the phases and one another."""
    phases: list[Phase] = []
    seen: dict[str, int] = {}
    tokenizer: Tokenizer | None = None
    first_step = 0
    for index, phase in enumerate(config.phases):
        where = f"phases.{index}"
        if not phase.instances:
            raise ConfigurationError(f"{where}.instances: not given; name an instance directory")
        train, held_out = InstanceSplit(phase.instances, "train"), InstanceSplit(phase.instances, "held_out")
        train.check_fits(max_seq_length=phase.max_seq_length, where=where)
        if not held_out.num_instances:
            logger.warning("%s: no held-out instances, so the phase is not evaluated", phase.instances)
        its_tokenizer = Tokenizer.from_directory(phase.instances)
        train.check_vocabulary(its_tokenizer)
        if tokenizer is None:
            tokenizer = its_tokenizer
        elif tokenizer.sha256 != its_tokenizer.sha256:
            raise ConfigurationError(
                f"{where}.instances: {describe_difference('phase 0', tokenizer, where, its_tokenizer)}"
            )
        key = train.manifest.sha256
        phases.append(
            Phase(
                index=index,
                config=phase,
                masking=config.masking_of(phase),
                train=train,
                held_out=held_out,
                first_step=first_step,
                first_position=seen.get(key, 0),
            )
        )
        seen[key] = seen.get(key, 0) + phase.steps * phase.global_batch_size
        first_step += phase.steps
    assert tokenizer is not None
    return phases, tokenizer


def _check_batches(config: PretrainingConfig, world_size: int) -> None:
    for index, phase in enumerate(config.phases):
        if phase.global_batch_size % world_size:
            raise ConfigurationError(
                f"phases.{index}.global_batch_size: {phase.global_batch_size} instances cannot be shared equally by "
                f"{world_size} ranks; give a multiple of {world_size}"
            )


def _newest_checkpoint(checkpoints: CheckpointDirectory) -> Path | None:
    checkpoints.path.mkdir(exist_ok=True)
    checkpoints.clean()
    manifest = checkpoints.newest()
    return manifest.path if manifest is not None else None


def _open_tracker(
    output: Path, config: PretrainingConfig, described: dict[str, Any], group: Group, experiment: str
) -> Tracker | None:
    if not group.is_main:
        return None
    lineage = {f"input.{name}": next(reversed(entry.values())) for name, entry in described["inputs"].items()}
    return Tracker(
        output,
        experiment=experiment,
        run_name=f"{config.model.preset}-{content_sha256(described)[:16]}",
        tags={"kind": "pretraining", **lineage},
        params=described["configuration"],
        upload_checkpoints=config.upload_checkpoints,
    )


def _already_finished(output: Path, group: Group) -> PretrainingResult:
    manifest = load_manifest(output / "model", kind=MODEL_KIND)
    counts = dict(manifest.counts)
    step = counts.pop("steps")
    if group.is_main:
        logger.info("%s: this training has finished at step %d; nothing is left to do", output, step)
        Tracker.replay(output)
    metrics = {key: value for key, value in counts.items() if key.startswith("held_out/")}
    return PretrainingResult(status="already_finished", step=step, model=manifest.path, metrics=metrics)


def publish_model(trainer: Trainer, described: Mapping[str, Any], tokenizer: Tokenizer, directory: Path) -> None:
    """Publish the trained weights as a Hugging Face directory without training state."""
    model = trainer.model
    with publishing(
        directory, kind=MODEL_KIND, configuration=described["configuration"], inputs=described["inputs"]
    ) as draft:
        write_weights(dict(model.named_parameters()), model.config, type(model).__name__, draft.path)
        tokenizer.save(draft.path)
        draft.counts = {
            "steps": trainer.config.total_steps,
            "tokens_seen": trainer.tokens_seen,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            **trainer.metrics,
        }


def _explain(error: Exception, checkpoints: CheckpointDirectory, watchdog: Watchdog) -> BertError:
    """Turn what ended a training into an error that names what is still safe."""
    steps = checkpoints.steps()
    safe = f"the last checkpoint is {checkpoints.path_of(steps[-1])}" if steps else "there is no checkpoint yet"
    if isinstance(error, TrainingError):
        return TrainingError(f"{error}; {safe}")
    if isinstance(error, BertError):
        return error
    if is_lost_connection(error):
        missing = watchdog.missing(is_lost=True)
        return LostRanksError(
            f"rank {watchdog.group.rank} lost the other ranks at step {watchdog.step} ({str(error).splitlines()[0]})"
            f"{f'; it waited for {missing}' if missing else ''}; {safe}; start again with --resume, on the machines "
            "that are left where one is lost"
        )
    raise error


@contextlib.contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Turn SIGTERM and SIGINT into a question that the training asks at every step; a second one ends at once."""
    asked = False

    def handle(number: int, _: Any) -> None:
        nonlocal asked
        if asked:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        asked = True

    previous = {}
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            previous[number] = signal.signal(number, handle)
    except ValueError:  # not the main thread: whoever runs us handles signals
        pass
    try:
        yield lambda: asked
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
