"""Trials of one search: run on the worker pool, scored here, resumed from their stored outputs."""

import contextlib
import dataclasses
import glob
import itertools
import json
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from bert_model.finetuning.caveats import FEW_STEPS
from bert_model.finetuning.config import SMALL_SET_STEPS, FinetuningConfig
from bert_model.finetuning.epochs import save_examples
from bert_model.finetuning.forward_passes import FeatureJob
from bert_model.finetuning.results import WITH_CONTEXT, SearchLog
from bert_model.finetuning.search import DivergedError, Training, Trial, TrialResult, choose_setting
from bert_model.finetuning.task_model import read_task_description
from bert_model.finetuning.trial import (
    CHECKPOINT_SUFFIX,
    OUTPUT_SUFFIX,
    TrialJob,
    TrialOutput,
    TrialProgress,
    read_output,
    task_model_config,
)
from bert_model.finetuning.worker_pool import WorkerPool
from bert_model.kinds import kind_of
from bert_model.kinds.base import Evaluation
from bert_model.kinds.encoded import num_training_steps
from bert_model.metrics.uncertainty import UnitStatistics
from bert_model.model.bert import BertModel
from bert_model.model.config import BertConfig
from bert_model.model.heads import HEAD_CLASSES, chosen_states
from bert_model.model.weights import CLASSIFIER, fill_model, read_weights, save_tensors
from bert_pipeline.atomic import disk_errors, locked, replace_text
from bert_pipeline.errors import ArtifactError, UnavailableError, UsageError
from bert_pipeline.manifest import Manifest, load_manifest, refuse_foreign_directory
from bert_pipeline.tasks.catalogue import Task
from bert_pipeline.tasks.ner import DOCUMENT_MARK
from bert_pipeline.tasks.task import TaskData
from bert_pipeline.vocabulary.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

Progress = Callable[[int, int, str], None]
"""Called with (finished trials, trials of this stage, one line about the last one)."""


Watch = Callable[[TrialProgress], None]
"""Called with each running trial after its first step and about every two seconds, at the end of an epoch with its dev
scores, and a last time with the last step."""

CONTEXT_SET = "+context"
"""Suffix of a split whose sentences are encoded in their documents; no split's name has a plus sign."""
LOCK_NAME = "lock"
THREADS_NAME = "threads"
"""File with the number of threads of the trials."""
PUBLISHED_NAME = "published.json"
"""File with the trials whose weights the output directory has: {"sha256": its hash, "weights": trial -> file}."""


@contextlib.contextmanager
def trial_directory(output: Path, identity: str) -> Iterator[Path]:
    """Create and lock the directory of a model's trials, next to `output`; yield its path.

    On success the outputs of trials stay, so that a search with further seeds or rates trains only what is new;
    weights and encoded examples are removed. After a divergence, which is deterministic, those of trials that did not
    diverge stay; after any other error, all that a resumed search can use. `identity` is a hash of all that decides a
    trial's output; unlocked directories of other identities are removed. UsageError if another process has the lock.
    """
    prefix = f".trials-{output.name}-"
    directory = output.parent / f"{prefix}{identity[:16]}"
    refuse_foreign_directory(output, "finetuned_model")
    with disk_errors(output, creating=True):
        directory.mkdir(parents=True, exist_ok=True)

    # Trials of other data, versions or machines cannot be reused. A directory with a lock belongs to a running search.
    for other in output.parent.glob(f"{glob.escape(prefix)}{'[0-9a-f]' * 16}"):
        if other != directory:
            with contextlib.suppress(UnavailableError), locked(other / LOCK_NAME, wait=0):
                if trials := _finished_trials(other):
                    logger.warning(
                        f"{output}: {len(trials)} finished trials of other data, settings, versions or kernels are "
                        "removed"
                    )
                shutil.rmtree(other, ignore_errors=True)

    # The lock is held until the end of the block, and released by the system if this process is killed.
    busy = UsageError(f"{output}: already being fine-tuned by another process; wait until it ends")
    with locked(directory / LOCK_NAME, wait=0, busy=busy):
        try:
            yield directory
        except BaseException as error:
            # A diverged search would diverge again. After any other error, such as a crash, it can be resumed.
            if isinstance(error, DivergedError):
                outputs = [(path, read_output(path)) for path in _finished_trials(directory)]
                _remove_all_but(directory, {path for path, own in outputs if own and not own.diverged})
            elif not _finished_trials(directory) and not any(directory.glob(f"*{CHECKPOINT_SUFFIX}")):
                shutil.rmtree(directory, ignore_errors=True)
            raise
        _remove_all_but(directory, _finished_trials(directory))


def recorded_threads(directory: Path, default: int) -> int:
    """Return the number of threads of a directory's trials; `default`, which is recorded, for the first search."""
    path = directory / THREADS_NAME
    if not path.is_file():
        replace_text(path, f"{default}\n")
    return int(path.read_text(encoding="ascii"))


def _finished_trials(directory: Path) -> set[Path]:
    return set(directory.glob(f"*{OUTPUT_SUFFIX}"))


def _remove_all_but(directory: Path, finished: set[Path]) -> None:
    """Remove everything but the outputs of finished trials; without any, the directory."""
    if not finished:
        shutil.rmtree(directory, ignore_errors=True)
        return
    for path in directory.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path not in finished and path.name not in (LOCK_NAME, PUBLISHED_NAME, THREADS_NAME):
            path.unlink(missing_ok=True)


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
        scratch: Path,
        *,
        progress: Progress | None = None,
        watch: Watch | None = None,
        log: SearchLog | None = None,
    ) -> None:
        self.data, self.model, self.tokenizer = data, model, tokenizer
        self.config, self.pool, self.scratch = config, pool, scratch
        self.progress, self.watch, self.log = progress, watch, log
        task = data.task
        kind = self.kind = kind_of(task)
        self.main_split = next(iter(data.dev))
        self.statistics: dict[Trial, UnitStatistics] = {}
        """What the main score of each trial from pre-trained weights is computed from."""
        self._results: dict[Trial, TrialResult] = {}
        self._running: dict[Trial, TrialProgress] = {}
        self.training_seconds = 0.0
        self.training_tokens = 0
        self.resumed_trials = 0

        # What trials start from; a head is kept only where outputs and shape are the task's. Classes and numbers of
        # equal names may mean another thing in another task; spans and endings do not.
        self.task_config = task_model_config(model_config, config, task)
        same_labels = self.task_config.labels in ((), model_config.labels)
        same_shape = same_labels and model_config.head == self.task_config.head
        weights, head_class = read_weights(model), HEAD_CLASSES[kind.architecture]
        description = read_task_description(model)
        same_task = description is None or description["task"] == task.name or not kind.head_labels()
        self.keeps_head = same_task and same_shape and weights.architecture == kind.architecture

        # Weights that do not fit are refused before any work, and what trials use is logged once for all of them.
        if task.feature_based:
            _, report = fill_model(BertModel, model_config, weights)
        else:
            _, report = fill_model(head_class, self.task_config, weights, new_task_head=not self.keeps_head)
        logger.info("%s: %s", model, report)

        # Trials read encoded examples from disk. An interrupted process may have left sets half-written.
        self.sets = scratch / "sets"
        shutil.rmtree(self.sets, ignore_errors=True)
        shutil.rmtree(scratch / "states", ignore_errors=True)
        self.train = kind.encode(data.train, tokenizer, config)
        self.examples = {**data.dev, **data.labeled_test}
        """Dev or labeled test split -> its examples. No choice depends on the test splits."""
        # A model is chosen as it is used: a tagger of documents by single sentences, which text and requests are.
        self.alone = dataclasses.replace(config, document_context=False)
        self.encoded = {s: kind.encode(own, tokenizer, self.alone) for s, own in self.examples.items()}
        """The same encoded, and for a tagger of documents "<split>+context": the sentences in their documents."""
        if config.document_context:
            if all(example.document is None for example in data.train):
                logger.warning(
                    f"{task.name}: train has no {DOCUMENT_MARK} and no `document`, so its rows have one sentence"
                )
            for split, own in self.examples.items():
                if any(example.document is not None for example in own):
                    self.encoded[split + CONTEXT_SET] = kind.encode(own, tokenizer, config)
        save_examples(self.sets, self.examples[self.main_split])
        sets = {"train": self.train, **self.encoded}
        for name, encoded in sets.items():
            encoded.save(self.sets / name)
            if cut := len(encoded.truncated):
                logger.warning(
                    f"{task.name}: {cut} of {encoded.num_examples} examples of {name} were cut to fit into "
                    f"max_seq_length {config.max_seq_length}"
                )
        self.truncated = {name: len(sets[name].truncated) for name in ("train", *self.examples)}
        """Train, or a scored split -> number of its examples whose texts were cut."""
        self._warn_of_few_steps()

    def _warn_of_few_steps(self) -> None:
        steps, batch_size, epochs = min(
            (num_training_steps(self.train.num_units, self.train.units_of_batch(size), epochs), size, epochs)
            for size, epochs in itertools.product(self.config.batch_sizes, self.config.epochs)
        )
        if steps < FEW_STEPS and not self.data.generated:  # the sample is small on purpose
            logger.warning(
                f"{self.data.task.name}: {steps} optimizer steps ({len(self.data.train)} examples, batch {batch_size}, "
                f"{epochs:g} epochs) are too few to fine-tune well, expected {FEW_STEPS} or more; give smaller "
                f"batch_sizes or more epochs (epochs=[] makes {SMALL_SET_STEPS} steps of a small training set)"
            )

    def run_trials(self, trials: Sequence[Trial]) -> list[TrialResult]:
        """Run and score trials, the longest first so that the workers end together."""
        results: dict[Trial, TrialResult] = {}

        def finish(job: TrialJob, output: TrialOutput) -> None:
            result = results[job.trial] = self._results[job.trial] = self._score(job, output)
            self._remove_beaten_weights()
            if self.log is not None:
                self.log.add(result)
            if (last := self._running.pop(job.trial, None)) is not None and self.watch is not None:
                self.watch(dataclasses.replace(last, step=last.total_steps, logits={}, scores={}))
            if self.progress is not None:
                self.progress(len(results), len(trials), _one_line(self.data.task, result))

        # Finished trials are scored from their stored outputs, since scores are not stored with them.
        waiting = []
        for trial in trials:
            job, output = self._job(trial), self._output_of(trial)
            if output is None:
                waiting.append(job)
            else:
                self.resumed_trials += 1
                finish(job, output)

        # The longest first. Frozen states must exist before the trials that read them start.
        waiting.sort(key=lambda job: -job.trial.setting.epochs)
        self._compute_features(waiting)
        if len(waiting) < len(trials):
            logger.info("%d of %d trials are finished already", len(trials) - len(waiting), len(trials))
        for job, output in zip(waiting, self.pool.run(waiting, self._show)):
            finish(job, output)
        return [results[trial] for trial in trials]

    def published(self, trial: Trial) -> tuple[TrialJob, dict[str, np.ndarray], dict[str, Evaluation]]:
        """Return the job of a trial, with its weights on disk, its outputs, and their evaluations by split."""
        [job], output = self.jobs_of([trial]), self._output_of(trial)
        assert output is not None, "the trial is finished"
        return job, output.logits, self._evaluate(output.logits)

    def jobs_of(self, trials: Sequence[Trial]) -> list[TrialJob]:
        """Return the jobs of trials from pre-trained weights that did not diverge, with their weights on disk.

        Those that were lost with an interrupted process, or are of an earlier search, are trained again.
        """
        jobs = [self._job(trial) for trial in trials]
        missing = [job for job in jobs if job.weights is not None and not job.weights.is_file()]
        for job in missing:
            logger.info("%s is trained again: its weights were not kept", job.trial.name)
        self._compute_features(missing)
        list(self.pool.run(missing, self._show))
        return jobs

    def take_weights(self, published: Path) -> None:
        """Copy the weights that an earlier search published, if the directory is still what it published."""
        try:
            record = json.loads((self.scratch / PUBLISHED_NAME).read_text(encoding="utf-8"))
            manifest = load_manifest(published, verify="sha256")
        except (FileNotFoundError, ValueError, ArtifactError):
            return

        # Another search may have published there since: then its weights are those of other trials.
        if record["sha256"] == manifest.sha256:
            for name, file in record["weights"].items():
                tensors = load_file(published / file)
                heads = {key: torch.tensor(value) for key, value in record["classifiers"][name].items()}
                save_tensors(tensors | heads, self.scratch / f"{name}.safetensors")

    def record_weights(self, manifest: Manifest, files: Mapping[Trial, str]) -> None:
        """Record which weights the published directory has, for `take_weights` of a later search."""
        weights = {trial.name: file for trial, file in files.items()}
        classifiers = {}  # as they were before their temperature
        for name in weights:
            tensors = load_file(self.scratch / f"{name}.safetensors")
            classifiers[name] = {key: tensors[key].tolist() for key in tensors if key.startswith(CLASSIFIER)}
        document = {"sha256": manifest.sha256, "weights": weights, "classifiers": classifiers}
        replace_text(self.scratch / PUBLISHED_NAME, json.dumps(document))

    def _show(self, report: TrialProgress) -> None:
        """Pass on the report of a running trial, with the scores of an epoch."""
        if report.trial in self._results:
            return  # it had finished when its report was read
        scores = {split: evaluation.scores for split, evaluation in self._evaluate(report.logits).items()}
        report = self._running[report.trial] = dataclasses.replace(report, logits={}, scores=scores)
        if self.watch is not None:
            self.watch(report)
        if self.log is not None:
            self.log.report(report)

    def _job(self, trial: Trial) -> TrialJob:
        task, initialization = self.data.task, trial.initialization
        states = None
        if task.feature_based:
            # Pre-trained weights are the same whatever the seed.
            seed = "" if initialization.weights == "pretrained" else f"-{trial.seed}"
            states = self.scratch / "states" / f"{initialization.weights}{seed}"

        # Models from random weights are compared, never published.
        saves_weights = initialization.weights == "pretrained"
        return TrialJob(
            trial=trial,
            task=task,
            config=self.config,
            model=self.model,
            model_config=self.task_config,
            keeps_head=self.keeps_head,
            data=self.sets,
            dev_splits=tuple(self.data.dev),
            other_sets=tuple(name for name in self.encoded if name not in self.data.dev),
            evaluates_epochs=saves_weights and not (self.watch is None and self.log is None),
            states=states,
            weights=self.scratch / f"{trial.name}.safetensors" if saves_weights else None,
            output=self.scratch / f"{trial.name}{OUTPUT_SUFFIX}",
            checkpoint=self.scratch / f"{trial.name}{CHECKPOINT_SUFFIX}",
        )

    def _output_of(self, trial: Trial) -> TrialOutput | None:
        return read_output(self.scratch / f"{trial.name}{OUTPUT_SUFFIX}")

    def _compute_features(self, jobs: Sequence[TrialJob]) -> None:
        """Compute the states that feature-based trials read and that are missing, for all inputs at once."""
        # All configured inputs share one forward pass; trials of one initialization share its directory.
        num_states = self.task_config.num_hidden_layers + 1
        states = {state for name in self.config.feature_inputs for state in chosen_states(name, num_states)}
        # One job for each missing directory, not for each trial that reads it.
        trials = {job.states: job.trial for job in jobs if job.states is not None}
        feature_jobs = [
            FeatureJob(
                trial=trial,
                states=tuple(sorted(states)),
                model=self.model,
                data=self.sets,
                sets=("train", *self.encoded),
                output=directory,
            )
            for directory, trial in trials.items()
            if not directory.is_dir()
        ]
        list(self.pool.run(feature_jobs))

    def _score(self, job: TrialJob, output: TrialOutput) -> TrialResult:
        task = self.data.task

        # Resumed trials count as well: these are the costs of the search, not of this process.
        self.training_seconds += output.training_seconds
        self.training_tokens += output.training_tokens
        evaluations = self._evaluate(output.logits)
        main = evaluations.get(self.main_split)  # None if the training diverged
        result = TrialResult(
            trial=job.trial,
            scores={split: evaluation.scores for split, evaluation in evaluations.items()},
            main_score=main.scores[task.main_metric] if main is not None else float("-inf"),
            collapsed=main is not None and main.collapsed,
            fitted=main.fitted if main is not None else {},
            **{field.name: getattr(output, field.name) for field in dataclasses.fields(Training)},
        )
        if job.weights is not None and main is not None:
            seed, examples = job.trial.seed, self.examples[self.main_split]
            self.statistics[job.trial] = self.kind.statistics(examples, main.predictions, seed=seed)
        return result

    def _evaluate(self, outputs: Mapping[str, np.ndarray]) -> dict[str, Evaluation]:
        """Decode and score outputs. What is chosen on the main dev split, as task.json has it, holds for all splits.

        The scores with the context of documents are further metrics of their split, such as "f1_with_context".
        """
        evaluations: dict[str, Evaluation] = {}
        for name, logits in outputs.items():
            split = name.removesuffix(CONTEXT_SET)
            fitted = evaluations[self.main_split].fitted if evaluations else None  # which is the first
            evaluation = self.kind.evaluate(
                self.examples[split], self.encoded[name], logits, self.config, fitted=fitted
            )
            if split != name:
                more = {metric + WITH_CONTEXT: score for metric, score in evaluation.scores.items()}
                own = evaluations[split]
                evaluation = dataclasses.replace(own, scores={**own.scores, **more})
            evaluations[split] = evaluation
        return evaluations

    def _remove_beaten_weights(self) -> None:
        """Remove weights that will not be published: of trials that are not the best of their setting.

        With `keep=all`, of settings that will not be chosen: another one has a better mean over the same seeds.
        """
        seeds = self.config.seeds
        results = [result for result in self._results.values() if result.trial.initialization.weights == "pretrained"]
        if self.config.keep == "best":
            # Trials finish in any order, so a tie goes by the seeds' order, not by who came first.
            results.sort(key=lambda result: (result.usable, result.main_score, -seeds.index(result.trial.seed)))
            best = {result.trial.setting: result for result in results}
            beaten = [result for result in results if result is not best[result.trial.setting]]
        else:
            # Means over different seeds do not compare: only settings that have all seeds of the search take part.
            searched = set(seeds if self.config.search == "grid" else seeds[:1])
            complete = [
                result
                for result in results
                if result.trial.seed in searched
                and searched <= {other.trial.seed for other in results if other.trial.setting == result.trial.setting}
            ]
            chosen = choose_setting(complete) if complete else None
            beaten = [result for result in complete if result.trial.setting != chosen]
        for result in beaten:
            (self.scratch / f"{result.trial.name}.safetensors").unlink(missing_ok=True)


def _one_line(task: Task, result: TrialResult) -> str:
    outcome = "diverged" if result.diverged else f"{task.main_metric} {result.main_score:.1f}"
    note = " (collapsed)" if result.collapsed else ""
    return f"{task.name} {result.trial.title}, {result.steps} steps: {outcome}{note}"
