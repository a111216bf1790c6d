"""Fine-tuning a task: encode, search, compare the starts, and publish the best model with its scores."""

import dataclasses
import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_model.config import BertConfig
from bert_model.encoding import EncodedSet
from bert_model.evaluation import Evaluation, evaluate
from bert_model.featurization import encode_examples
from bert_model.finetuning_config import FinetuningConfig, task_configuration
from bert_model.finetuning_record import FinetuningRecord
from bert_model.results import results_document
from bert_model.search import Arm, Run, Setting, arms_of, search
from bert_model.task_model import TaskModel, write_predictions, write_task_model
from bert_model.trial import Trial, TrialOutput
from bert_model.trial_pool import TrialPool
from bert_pipeline.configuration import to_mapping
from bert_pipeline.errors import ConfigurationError, UsageError
from bert_pipeline.manifest import MANIFEST_NAME, Manifest, content_sha256, file_sha256, load_manifest, publishing
from bert_pipeline.tasks.description import Task
from bert_pipeline.tasks.task import TaskData
from bert_pipeline.tokenization import Tokenizer

__all__ = ["FinetuningConfig", "FinetuningResult", "finetune", "task_configuration"]

KIND = "finetuned_model"
FEATURE_BASED = frozenset({"ner_features"})
"""Tasks whose encoder stays frozen."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuningResult:
    """A published fine-tuned model."""

    path: Path
    manifest: Manifest
    results: dict[str, Any]
    """What results.json holds."""
    seconds: float
    """Wall time of the whole fine-tuning."""

    @property
    def main_key(self) -> str:
        """The metric that is chosen by: "sst2/dev/accuracy"."""
        return self.results["main_key"]

    @property
    def metrics(self) -> dict[str, dict[str, Any]]:
        """ "<task>/<split>/<metric>" -> N, values, mean, sd, best, median, random, majority, paper and so on."""
        return self.results["metrics"]


Progress = Callable[[int, int, str], None]
"""Called with (trials done, trials of this stage, one line about the last one)."""


def finetune(
    data: TaskData,
    model: Path,
    output: Path,
    config: FinetuningConfig,
    *,
    pool: TrialPool | None = None,
    progress: Progress | None = None,
    experiment: str = "finetuning",
) -> FinetuningResult:
    """Fine-tune `model` on a task's data and publish the best run in `output`, a "finetuned_model" directory.

    With `config.compare_starts` random weights of the same shape are trained beside it. `pool` lets many
    fine-tunings share their worker processes. The trials are recorded beside `output` and, where MLflow is
    installed, as a run of `experiment` with children; an empty `experiment` records nothing. UsageError when model
    and data do not fit, TrainingError when every run diverged; nothing is left behind then.
    """
    task = data.task
    tokenizer = Tokenizer.from_directory(model)
    check_fit(task, data, tokenizer, BertConfig.from_directory(model), config, model)
    own_pool = pool is None
    pool = pool or TrialPool()
    configuration = {"task": task.name, **to_mapping(config)}
    identity = model_identity(model)
    inputs = {"model": identity, "data": {name: {"sha256": h} for name, h in sorted(data.sha256.items())}}
    record = None
    if experiment:
        record = FinetuningRecord(
            Path(output),
            experiment=experiment,
            task=task.name,
            identity=content_sha256({"configuration": configuration, "inputs": inputs}),
            tags={"input.model": next(reversed(identity.values())), "own_split": str(data.own_split).lower()},
            params=configuration,
        )
    try:
        with (
            publishing(output, kind=KIND, configuration=configuration, inputs=inputs) as draft,
            tempfile.TemporaryDirectory(prefix=".trials-", dir=draft.path.parent) as scratch,
        ):
            session = _Session(data, model, tokenizer, config, pool, Path(scratch), progress, record)
            arms = search(config, arms_of(config), session.learning_rates, session.run_trials)
            hashes = {
                "data_sha256": examples_sha256({"train": data.train, **data.dev}),
                "dev_sha256": examples_sha256(data.dev),
                "configuration_sha256": content_sha256(configuration),
                "model_sha256": identity.get("content_sha256") or identity["sha256"],
            }
            results = results_document(data, config, arms, hashes=hashes)
            winner = session.kept[_key(arms[0].best)]
            published = write_task_model(
                draft.path,
                trial=winner.trial,
                task=task,
                tokenizer=tokenizer,
                facts={
                    **hashes,
                    "own_split": data.own_split,
                    "null_threshold": winner.evaluations[session.main_split].null_threshold,
                    "degenerate": arms[0].degenerate,
                    "seed": arms[0].best.seed,
                    "setting": arms[0].setting.describe(),
                    "main_key": results["main_key"],
                    "scores": {
                        f"{task.name}/{split}/{metric}": value
                        for split, values in arms[0].best.scores.items()
                        for metric, value in values.items()
                    },
                },
            )
            for split, examples in data.dev.items():
                draft.rows |= write_predictions(draft.path, split, examples, winner.evaluations[split])
            for split, examples in data.test.items():
                evaluation = predict_split(published, task, examples, tokenizer, config, pool)
                draft.rows |= write_predictions(draft.path, split, examples, evaluation)
            text = json.dumps(results, indent=1, ensure_ascii=False) + "\n"
            (draft.path / "results.json").write_text(text, encoding="utf-8")
            draft.counts |= {
                "train_examples": len(data.train),
                **{f"{split}_examples": len(examples) for split, examples in data.dev.items()},
                "train_rows": session.train.num_rows,
                "train_tokens": len(session.train.input_ids),
                "runs": sum(len(arm.runs) for arm in arms),
                "collapsed_runs": sum(run.collapsed for arm in arms for run in arm.runs),
                "diverged_runs": sum(run.diverged for arm in arms for run in arm.runs),
                "defects": dict(data.counts),
            }
            draft.provenance |= {
                "workers": pool.num_workers,
                "training_seconds": round(session.training_seconds, 3),
                "training_tokens": session.training_tokens,
            }
            if record is not None:
                draft.provenance["mlflow_run_id"] = record.run_id
        manifest = load_manifest(output, kind=KIND)
        if record is not None:
            record.finish(arms, results, manifest.path)
            record = None
    finally:
        if record is not None:
            record.fail()
        if own_pool:
            pool.close()
    return FinetuningResult(
        path=Path(output), manifest=manifest, results=results, seconds=float(manifest.provenance["seconds"])
    )


def check_fit(
    task: Task, data: TaskData, tokenizer: Tokenizer, model_config: BertConfig, config: FinetuningConfig, model: Path
) -> None:
    """Raise when model, configuration and data do not go together."""
    if tokenizer.vocab_size > model_config.vocab_size:
        raise UsageError(
            f"{model}: its vocabulary has {tokenizer.vocab_size} tokens, its embeddings only "
            f"{model_config.vocab_size}; the vocabulary is not this model's"
        )
    if config.max_seq_length > model_config.max_position_embeddings:
        raise ConfigurationError(
            f"max_seq_length: found {config.max_seq_length}, expected at most the model's "
            f"{model_config.max_position_embeddings} positions"
        )
    for name, examples in (("training", data.train), *((f"{split}", part) for split, part in data.dev.items())):
        if not examples:
            raise UsageError(f"{task.name}: no {name} examples; check the files, or give a larger dev_fraction")


def model_identity(model: Path) -> dict[str, str]:
    """Name a model as an input: by its manifest when it is ours, else by name and the hash of its weights."""
    if (model / MANIFEST_NAME).is_file():
        manifest = load_manifest(model)
        return {"kind": manifest.kind, "content_sha256": manifest.sha256}
    weights = sorted(path for pattern in ("*.safetensors", "pytorch_model.bin") for path in model.glob(pattern))
    hashes = {path.name: file_sha256(path) for path in weights}
    return {"name": model.name, "sha256": content_sha256(hashes)}


def examples_sha256(splits: Mapping[str, Sequence[Any]]) -> str:
    """Hash examples with their labels, whatever files they came from: equal hashes mean the same questions."""
    digest = hashlib.sha256()
    for split in sorted(splits):
        digest.update(f"\n{split}\n".encode())
        for example in splits[split]:
            digest.update(repr(example).encode())
    return digest.hexdigest()


def predict_split(
    model: TaskModel,
    task: Task,
    examples: Sequence[Any],
    tokenizer: Tokenizer,
    config: FinetuningConfig,
    pool: TrialPool,
) -> Evaluation:
    """Predict a split without labels, with as many threads as a trial has."""
    encoded = encode_examples(task, examples, tokenizer, config.encoding)
    logits = model.logits(encoded, num_threads=pool.threads_per_worker)
    return evaluate(
        task, examples, encoded, logits, config, null_threshold=model.facts.get("null_threshold"), labelled=False
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Kept:
    trial: Trial
    evaluations: dict[str, Evaluation]


Key = tuple[Setting, int]


def _key(run: Run) -> Key:
    return run.setting, run.seed


class _Session:
    """The trials of one fine-tuning: data on scratch disk, trained on the pool, scored here."""

    def __init__(
        self,
        data: TaskData,
        model: Path,
        tokenizer: Tokenizer,
        config: FinetuningConfig,
        pool: TrialPool,
        scratch: Path,
        progress: Progress | None,
        record: FinetuningRecord | None,
    ) -> None:
        self.data, self.model, self.tokenizer, self.config = data, model, tokenizer, config
        self.pool, self.scratch, self.progress = pool, scratch, progress
        self.record = record
        self.feature_based = data.task.name in FEATURE_BASED
        self.learning_rates = config.lstm_learning_rates if self.feature_based else config.learning_rates
        self.main_split = next(iter(data.dev))
        self.kept: dict[Key, _Kept] = {}
        """The best run of each setting of the given weights: its weights are on the scratch disk."""
        self.training_seconds = 0.0
        self.training_tokens = 0
        self.train = encode_examples(data.task, data.train, tokenizer, config.encoding)
        self.dev: dict[str, EncodedSet] = {
            split: encode_examples(data.task, examples, tokenizer, config.encoding)
            for split, examples in data.dev.items()
        }
        self.train.save(scratch / "train")
        for split, encoded in self.dev.items():
            encoded.save(scratch / split)

    def run_trials(self, asked: Sequence[tuple[Arm, Setting, int]]) -> list[Run]:
        """Run trials, the longest first so that the workers end together, and score them."""
        trials = [self._trial(arm, setting, seed) for arm, setting, seed in asked]
        order = sorted(range(len(trials)), key=lambda index: -trials[index].epochs)
        runs: dict[int, Run] = {}
        for position, output in self.pool.run([trials[index] for index in order]):
            index = order[position]
            runs[index] = self._score(asked[index], trials[index], output)
            if self.record is not None:
                self.record.trial(runs[index])
            if self.progress is not None:
                self.progress(len(runs), len(trials), _one_line(self.data.task, runs[index]))
        return [runs[index] for index in range(len(asked))]

    def _trial(self, arm: Arm, setting: Setting, seed: int) -> Trial:
        name = f"{arm.name}-{setting.learning_rate:g}-{setting.batch_size}-{setting.epochs:g}-{seed}.safetensors"
        return Trial(
            kind=self.data.task.kind,
            labels=self.data.task.labels,
            data=str(self.scratch),
            dev_splits=tuple(self.dev),
            model=str(self.model),
            start=arm.start,
            learning_rate=setting.learning_rate,
            batch_size=setting.batch_size,
            epochs=setting.epochs,
            seed=seed,
            config=self.config,
            feature_based=self.feature_based,
            pad_id=self.tokenizer.pad_id,
            weights=str(self.scratch / name) if arm.start == "pretrained" else "",
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
            self._keep_better(run, _Kept(trial=trial, evaluations=evaluations))
        return run

    def _keep_better(self, run: Run, kept: _Kept) -> None:
        """Keep the weights of the best run of each setting only: the others are not needed any more."""
        for key, other in list(self.kept.items()):
            if key[0] != run.setting:
                continue
            if self._merit(other) > self._merit(kept) or (
                self._merit(other) == self._merit(kept) and key[1] < run.seed
            ):
                Path(kept.trial.weights).unlink()
                return
            Path(other.trial.weights).unlink()
            del self.kept[key]
        self.kept[_key(run)] = kept

    def _merit(self, kept: _Kept) -> tuple[bool, float]:
        evaluation = kept.evaluations[self.main_split]
        return not evaluation.collapsed, evaluation.scores[self.data.task.main_metric]


def _one_line(task: Task, run: Run) -> str:
    outcome = "diverged" if run.diverged else f"{task.main_metric} {run.main_score:.1f}"
    note = " (collapsed)" if run.collapsed else ""
    rate = f"{run.setting.learning_rate:g}"
    return f"{task.name} {run.start}: learning rate {rate}, seed {run.seed}, {run.steps} steps: {outcome}{note}"
