"""The trials of one fine-tuning: data and outputs in a directory of their own, trained on the pool, scored here."""

import contextlib
import dataclasses
import fcntl
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bert_model.finetuning.config import FinetuningConfig
from bert_model.finetuning.dataset import EncodedSet
from bert_model.finetuning.decode import Evaluation, evaluate
from bert_model.finetuning.encode import encode_examples
from bert_model.finetuning.frozen_features import Extraction
from bert_model.finetuning.results import FinetuningRecord
from bert_model.finetuning.search import Arm, Run, Setting
from bert_model.finetuning.trial import Trial, TrialOutput, read_output
from bert_model.finetuning.worker_pool import TrialPool, WorkerDied
from bert_model.model.config import BertConfig
from bert_model.model.cpu_kernels import Shape
from bert_model.model.heads import states_of
from bert_pipeline.errors import BertError, UsageError
from bert_pipeline.tasks.catalogue import Task
from bert_pipeline.tasks.task import TaskData
from bert_pipeline.vocabulary.tokenizer import Tokenizer

Progress = Callable[[int, int, str], None]
"""Called with (trials done, trials of this stage, one line about the last one)."""

OUTPUT_SUFFIX = ".npz"


@contextlib.contextmanager
def trial_directory(output: Path, identity: str) -> Iterator[Path]:
    """Hold the directory beside `output` in which the trials of one fine-tuning leave what they made.

    `identity` is a hash of all that decides on the trials. When the block ends well, or by an error that would come
    again, the directory goes; when the process is killed or interrupted, or a worker dies, it stays if any trial is
    finished, and the same fine-tuning goes on from it. Directories of other, abandoned identities are removed.
    UsageError when another process holds it.
    """
    prefix = f".trials-{output.name}-"
    directory = output.parent / f"{prefix}{identity[:16]}"
    output.parent.mkdir(parents=True, exist_ok=True)
    for other in output.parent.glob(f"{prefix}{'[0-9a-f]' * 16}"):
        if other != directory:
            with _locked(other) as free:
                if free:
                    shutil.rmtree(other, ignore_errors=True)
    directory.mkdir(exist_ok=True)
    with _locked(directory) as free:
        if not free:
            raise UsageError(f"{output}: another process is fine-tuning this very model; wait for it, or end it")
        try:
            yield directory
        except BaseException as error:
            comes_again = isinstance(error, BertError) and not isinstance(error, WorkerDied)
            if comes_again or not any(directory.glob(f"*{OUTPUT_SUFFIX}")):
                shutil.rmtree(directory, ignore_errors=True)
            raise
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[bool]:
    """Lock a directory for this process as long as it lives; False when another one has it."""
    with open(directory / "lock", "a", encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kept:
    """A trial whose weights are on disk, and what they score."""

    trial: Trial
    evaluations: dict[str, Evaluation]
    """Dev split -> its predictions and scores."""


Key = tuple[Setting, int]
"""A setting and a seed."""


def _key(run: Run) -> Key:
    return run.setting, run.seed


class Session:
    """All trials of one fine-tuning. A trial that `scratch` holds the output of is not run again."""

    def __init__(
        self,
        data: TaskData,
        model: Path,
        tokenizer: Tokenizer,
        config: FinetuningConfig,
        pool: TrialPool,
        onednn: tuple[Shape, ...],
        scratch: Path,
        progress: Progress | None,
        record: FinetuningRecord | None,
    ) -> None:
        """`onednn` are the weight shapes that every trial computes by oneDNN."""
        self.data, self.model, self.tokenizer, self.config = data, model, tokenizer, config
        self.pool, self.scratch, self.progress = pool, scratch, progress
        self.record = record
        feature_based = data.task.feature_based
        self.learning_rates = config.lstm_learning_rates if feature_based else config.learning_rates
        self.variants: tuple[str, ...] = config.feature_inputs if feature_based else ("",)
        self.onednn = onednn
        self.main_split = next(iter(data.dev))
        self.kept: dict[Key, Kept] = {}
        """The best run of each setting of the given weights: its weights are on the scratch disk."""
        self.training_seconds = 0.0
        self.training_tokens = 0
        self.train = encode_examples(data.task, data.train, tokenizer, config.encoding)
        self.dev: dict[str, EncodedSet] = {
            split: encode_examples(data.task, examples, tokenizer, config.encoding)
            for split, examples in data.dev.items()
        }
        self.sets = scratch / "sets"
        shutil.rmtree(self.sets, ignore_errors=True)  # an interrupted process may have left them half-written
        shutil.rmtree(scratch / "activations", ignore_errors=True)
        self.train.save(self.sets / "train")
        for split, encoded in self.dev.items():
            encoded.save(self.sets / split)
        self.resumed_trials = 0

    def run_trials(self, asked: Sequence[tuple[Arm, Setting, int]]) -> list[Run]:
        """Run trials, the longest first so that the workers end together, and score them."""
        trials = [self._trial(arm, setting, seed) for arm, setting, seed in asked]
        outputs = [read_output(Path(trial.record)) for trial in trials]
        runs: dict[int, Run] = {}

        def finished(index: int, output: TrialOutput) -> None:
            runs[index] = self._score(asked[index], trials[index], output)
            if self.record is not None:
                self.record.trial(Path(trials[index].record).stem, runs[index])
            if self.progress is not None:
                self.progress(len(runs), len(trials), _one_line(self.data.task, runs[index]))

        for index, output in enumerate(outputs):
            if output is not None:
                self.resumed_trials += 1
                finished(index, output)
        waiting = [index for index, output in enumerate(outputs) if output is None]
        order = sorted(waiting, key=lambda index: -trials[index].epochs)
        self._extract([trials[index] for index in order])
        for position, output in self.pool.run([trials[index] for index in order]):
            finished(order[position], output)
        return [runs[index] for index in range(len(asked))]

    def winner(self, run: Run) -> Kept:
        """Return the kept weights of a run."""
        kept = self.kept[_key(run)]
        if not Path(kept.trial.weights).is_file():  # lost with the process that was to keep them
            self._extract([kept.trial])
            for _ in self.pool.run([kept.trial]):
                pass
        return kept

    def _extract(self, trials: Sequence[Trial]) -> None:
        """Compute the activations that feature-based trials read and that are not there yet, all inputs at once."""
        wanted = {trial.activations: trial for trial in trials if trial.activations}
        num_states = BertConfig.from_directory(self.model).num_hidden_layers + 1
        self.pool.extract(
            [
                Extraction(
                    data=str(self.sets),
                    sets=("train", *self.dev),
                    model=str(self.model),
                    start=trial.start,
                    seed=trial.seed,
                    states=tuple(states_of(self.config.feature_inputs, num_states)),
                    pad_id=self.tokenizer.pad_id,
                    output=directory,
                    onednn=self.onednn,
                )
                for directory, trial in wanted.items()
                if not Path(directory).is_dir()
            ]
        )

    def _trial(self, arm: Arm, setting: Setting, seed: int) -> Trial:
        rate, variant = f"{setting.learning_rate:g}", f"-{setting.variant}" if setting.variant else ""
        name = f"{arm.name}{variant}-{rate}-{setting.batch_size}-{setting.epochs:g}-{seed}"
        activations = ""
        if setting.variant:  # the given weights are the same whatever the seed
            encoder = arm.start if arm.start == "pretrained" else f"{arm.start}-{seed}"
            activations = str(self.scratch / "activations" / encoder)
        return Trial(
            kind=self.data.task.kind,
            labels=self.data.task.labels,
            data=str(self.sets),
            dev_splits=tuple(self.dev),
            model=str(self.model),
            start=arm.start,
            learning_rate=setting.learning_rate,
            batch_size=setting.batch_size,
            epochs=setting.epochs,
            seed=seed,
            config=self.config,
            feature_input=setting.variant,
            activations=activations,
            pad_id=self.tokenizer.pad_id,
            onednn=self.onednn,
            weights=str(self.scratch / f"{name}.safetensors") if arm.start == "pretrained" else "",
            record=str(self.scratch / f"{name}{OUTPUT_SUFFIX}"),
        )

    def _score(self, asked: tuple[Arm, Setting, int], trial: Trial, output: TrialOutput) -> Run:
        arm, setting, seed = asked
        task = self.data.task
        self.training_seconds += output.training_seconds
        self.training_tokens += output.training_tokens
        evaluations = {
            split: evaluate(task, self.data.dev[split], self.dev[split], logits, self.config)
            for split, logits in output.logits.items()
        }
        main = evaluations.get(self.main_split)
        details: dict[str, Any] = {"losses": list(output.losses)}
        if main is not None and main.null_threshold is not None:
            details["null_threshold"] = main.null_threshold
        run = Run(
            start=arm.name,
            setting=setting,
            seed=seed,
            scores={split: evaluation.scores for split, evaluation in evaluations.items()},
            main_score=main.scores[task.main_metric] if main is not None else float("-inf"),
            collapsed=main is not None and main.collapsed,
            diverged=output.diverged,
            steps=output.steps,
            details=details,
        )
        if trial.weights and not run.diverged:
            self._keep_better(run, Kept(trial=trial, evaluations=evaluations))
        return run

    def _keep_better(self, run: Run, kept: Kept) -> None:
        """Keep the weights of the best run of each setting only: the others are not needed any more."""
        for key, other in list(self.kept.items()):
            if key[0] != run.setting:
                continue
            if self._merit(other) > self._merit(kept) or (
                self._merit(other) == self._merit(kept) and key[1] < run.seed
            ):
                Path(kept.trial.weights).unlink(missing_ok=True)
                return
            Path(other.trial.weights).unlink(missing_ok=True)
            del self.kept[key]
        self.kept[_key(run)] = kept

    def _merit(self, kept: Kept) -> tuple[bool, float]:
        evaluation = kept.evaluations[self.main_split]
        return not evaluation.collapsed, evaluation.scores[self.data.task.main_metric]


def _one_line(task: Task, run: Run) -> str:
    outcome = "diverged" if run.diverged else f"{task.main_metric} {run.main_score:.1f}"
    note = " (collapsed)" if run.collapsed else ""
    rate = f"{run.setting.learning_rate:g}"
    variant = f" {run.setting.variant}" if run.setting.variant else ""
    return (
        f"{task.name} {run.start}{variant}: learning rate {rate}, seed {run.seed}, {run.steps} steps: {outcome}{note}"
    )
