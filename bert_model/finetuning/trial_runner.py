"""Trials of one search: run on the worker pool, scored here, resumed from their stored outputs."""

import contextlib
import dataclasses
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from bert_model.finetuning.config import FinetuningConfig
from bert_model.finetuning.decode import Evaluation, evaluate
from bert_model.finetuning.encode import encode_examples
from bert_model.finetuning.frozen_features import FeatureJob
from bert_model.finetuning.results import SearchLog
from bert_model.finetuning.search import Setting, Trial, TrialResult
from bert_model.finetuning.trial import (
    OUTPUT_SUFFIX,
    TrialJob,
    TrialOutput,
    read_output,
    task_overrides,
)
from bert_model.finetuning.worker_pool import WorkerDiedError, WorkerPool
from bert_model.model.bert import BertModel
from bert_model.model.config import BertConfig
from bert_model.model.cpu_kernels import Shape
from bert_model.model.heads import HEAD_CLASSES, states_of
from bert_model.model.weights import fill_model, read_weights
from bert_pipeline.errors import BertError, UsageError
from bert_pipeline.tasks.catalogue import Task
from bert_pipeline.tasks.task import TaskData
from bert_pipeline.vocabulary.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

Progress = Callable[[int, int, str], None]
"""Called with (finished trials, trials of this stage, one line about the last one)."""


@contextlib.contextmanager
def trial_directory(output: Path, identity: str) -> Iterator[Path]:
    """Create and lock the scratch directory of a search, next to `output`; yield its path.

    It is removed on success or on a deterministic error, and kept after a kill or a worker crash if any trial is
    finished, so that the search can resume. `identity` is a hash of all that decides the trials; unlocked directories
    of other identities are removed. UsageError if another process has the lock.
    """
    prefix = f".trials-{output.name}-"
    directory = output.parent / f"{prefix}{identity[:16]}"
    output.parent.mkdir(parents=True, exist_ok=True)
    for other in output.parent.glob(f"{prefix}{'[0-9a-f]' * 16}"):
        if other != directory:
            with contextlib.suppress(Timeout), _lock(other):
                shutil.rmtree(other, ignore_errors=True)
    directory.mkdir(exist_ok=True)
    try:
        lock = _lock(directory).acquire()
    except Timeout as error:
        raise UsageError(f"{output}: another process is fine-tuning this very model; wait for it, or end it") from error
    with lock:
        try:
            yield directory
        except BaseException as error:
            deterministic = isinstance(error, BertError) and not isinstance(error, WorkerDiedError)
            if deterministic or not any(directory.glob(f"*{OUTPUT_SUFFIX}")):
                shutil.rmtree(directory, ignore_errors=True)
            raise
        shutil.rmtree(directory, ignore_errors=True)


def _lock(directory: Path) -> FileLock:
    """Return a lock that raises Timeout at once if another process has it."""
    return FileLock(directory / "lock", timeout=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SavedTrial:
    """A trial whose weights are on the scratch disk."""

    job: TrialJob
    result: TrialResult
    evaluations: Mapping[str, Evaluation]
    """Dev split -> predictions and scores."""


class TrialRunner:
    """Runs and scores the trials of one search. A trial whose output is in `scratch` already is not repeated."""

    def __init__(
        self,
        data: TaskData,
        model: Path,
        model_config: BertConfig,
        tokenizer: Tokenizer,
        config: FinetuningConfig,
        pool: WorkerPool,
        onednn: tuple[Shape, ...],
        scratch: Path,
        *,
        progress: Progress | None = None,
        log: SearchLog | None = None,
    ) -> None:
        """`onednn` are the weight shapes that every trial computes by oneDNN."""
        self.data, self.model, self.model_config, self.tokenizer = data, model, model_config, tokenizer
        self.config, self.pool, self.onednn, self.scratch = config, pool, onednn, scratch
        self.progress, self.log = progress, log
        task = data.task
        self.learning_rates = config.lstm_learning_rates if task.feature_based else config.learning_rates
        self.feature_inputs: tuple[str, ...] = config.feature_inputs if task.feature_based else ("",)
        self.main_split = next(iter(data.dev))
        self.saved: dict[Setting, SavedTrial] = {}
        """The best trial of each setting from pre-trained weights."""
        self.training_seconds = 0.0
        self.training_tokens = 0
        self.resumed_trials = 0

        # What trials start from; a head is kept only where outputs and shape are the task's.
        overrides = task_overrides(config, task.kind, task.labels)
        self.task_config = dataclasses.replace(model_config, **overrides)
        same_shape = (model_config.labels, model_config.head) == (self.task_config.labels, self.task_config.head)
        weights, head_class = read_weights(model), HEAD_CLASSES[task.kind]
        self.keeps_head = same_shape and weights.architecture == head_class.__name__

        # Weights that do not fit are refused before any work, and what trials use is logged once for all of them.
        if task.feature_based:
            _, report = fill_model(BertModel, model_config, weights)
        else:
            _, report = fill_model(head_class, self.task_config, weights, new_task_head=not self.keeps_head)
        logger.info("%s: %s", model, report)

        # Trials read encoded examples from disk. An interrupted process may have left sets half-written.
        self.sets = scratch / "sets"
        shutil.rmtree(self.sets, ignore_errors=True)
        shutil.rmtree(scratch / "activations", ignore_errors=True)
        self.train = encode_examples(task, data.train, tokenizer, config)
        self.dev = {split: encode_examples(task, examples, tokenizer, config) for split, examples in data.dev.items()}
        for name, encoded in {"train": self.train, **self.dev}.items():
            encoded.save(self.sets / name)
            if cut := len(encoded.truncated):
                logger.warning(
                    f"{task.name}: {cut} of {encoded.num_examples} examples of {name} were cut to fit into "
                    f"max_seq_length {config.max_seq_length}"
                )

    def run_trials(self, trials: Sequence[Trial]) -> list[TrialResult]:
        """Run and score trials, the longest first so that the workers end together."""
        results: dict[Trial, TrialResult] = {}

        def finish(job: TrialJob, output: TrialOutput) -> None:
            result = results[job.trial] = self._score(job, output)
            if self.log is not None:
                self.log.add(result)
            if self.progress is not None:
                self.progress(len(results), len(trials), _one_line(self.data.task, result))

        waiting = []
        for job in map(self._job, trials):
            output = read_output(job.output) if job.output is not None else None
            if output is None:
                waiting.append(job)
            else:
                self.resumed_trials += 1
                finish(job, output)
        waiting.sort(key=lambda job: -job.trial.setting.epochs)
        self._compute_features(waiting)
        for job, output in zip(waiting, self.pool.run(waiting)):
            finish(job, output)
        return [results[trial] for trial in trials]

    def best_of(self, setting: Setting) -> SavedTrial:
        """Return the best trial of a setting from pre-trained weights."""
        saved = self.saved[setting]
        if saved.job.weights is not None and not saved.job.weights.is_file():  # lost with an interrupted process
            self._compute_features([saved.job])
            list(self.pool.run([saved.job]))
        return saved

    def _job(self, trial: Trial) -> TrialJob:
        task, initialization = self.data.task, trial.initialization
        activations = None
        if task.feature_based:
            # Pre-trained weights are the same whatever the seed.
            seed = "" if initialization.weights == "pretrained" else f"-{trial.seed}"
            activations = self.scratch / "activations" / f"{initialization.weights}{seed}"
        saves_weights = initialization.weights == "pretrained"
        return TrialJob(
            trial=trial,
            kind=task.kind,
            labels=task.labels,
            class_weights=tuple(task.class_weights.get(label, 1.0) for label in task.labels if task.class_weights),
            config=self.config,
            model=self.model,
            model_config=self.task_config,
            keeps_head=self.keeps_head,
            data=self.sets,
            dev_splits=tuple(self.dev),
            activations=activations,
            pad_id=self.tokenizer.pad_id,
            onednn=self.onednn,
            weights=self.scratch / f"{trial.name}.safetensors" if saves_weights else None,
            output=self.scratch / f"{trial.name}{OUTPUT_SUFFIX}",
        )

    def _compute_features(self, jobs: Sequence[TrialJob]) -> None:
        """Compute the activations that feature-based trials read and that are missing, for all inputs at once."""
        states = tuple(states_of(self.config.feature_inputs, self.model_config.num_hidden_layers + 1))
        trials = {job.activations: job.trial for job in jobs if job.activations is not None}
        feature_jobs = [
            FeatureJob(
                weights=trial.initialization.weights,
                seed=trial.seed,
                states=states,
                model=self.model,
                model_config=self.model_config,
                data=self.sets,
                sets=("train", *self.dev),
                pad_id=self.tokenizer.pad_id,
                output=directory,
                onednn=self.onednn,
            )
            for directory, trial in trials.items()
            if not directory.is_dir()
        ]
        list(self.pool.run(feature_jobs))

    def _score(self, job: TrialJob, output: TrialOutput) -> TrialResult:
        task = self.data.task
        self.training_seconds += output.training_seconds
        self.training_tokens += output.training_tokens
        evaluations = {
            split: evaluate(task, self.data.dev[split], self.dev[split], logits, self.config)
            for split, logits in output.logits.items()
        }
        main = evaluations.get(self.main_split)  # None if the training diverged
        result = TrialResult(
            trial=job.trial,
            scores={split: evaluation.scores for split, evaluation in evaluations.items()},
            main_score=main.scores[task.main_metric] if main is not None else float("-inf"),
            collapsed=main is not None and main.collapsed,
            diverged=output.diverged,
            steps=output.steps,
            losses=output.losses,
            null_threshold=main.null_threshold if main is not None else None,
        )
        if job.weights is not None and not result.diverged:
            self._save_if_best(SavedTrial(job=job, result=result, evaluations=evaluations))
        return result

    def _save_if_best(self, new: SavedTrial) -> None:
        """Keep the weights of the best trial of each setting, of the first seed on a tie; remove the others."""

        def merit(saved: SavedTrial) -> tuple[bool, float, int]:
            result = saved.result
            return result.usable, result.main_score, -self.config.seeds.index(result.trial.seed)

        setting = new.job.trial.setting
        best = self.saved.setdefault(setting, new)
        if best is new:
            return
        better, worse = (new, best) if merit(new) > merit(best) else (best, new)
        self.saved[setting] = better
        if worse.job.weights is not None:
            worse.job.weights.unlink(missing_ok=True)


def _one_line(task: Task, result: TrialResult) -> str:
    trial, setting = result.trial, result.trial.setting
    outcome = "diverged" if result.diverged else f"{task.main_metric} {result.main_score:.1f}"
    note = " (collapsed)" if result.collapsed else ""
    feature_input = f" {setting.feature_input}" if setting.feature_input else ""
    return (
        f"{task.name} {trial.initialization.name}{feature_input}: learning rate {setting.learning_rate:g}, "
        f"seed {trial.seed}, {result.steps} steps: {outcome}{note}"
    )
