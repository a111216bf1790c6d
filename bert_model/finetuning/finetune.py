"""Fine-tuning a task: encode, search, compare the starts, and publish the best model with its scores."""

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_model.finetuning.config import FinetuningConfig, task_configuration
from bert_model.finetuning.decode import Evaluation, evaluate
from bert_model.finetuning.encode import encode_examples
from bert_model.finetuning.results import FinetuningRecord, results_document
from bert_model.finetuning.search import ArmResult, arms_of, search
from bert_model.finetuning.task_model import TaskModel, write_predictions, write_task_model
from bert_model.finetuning.trial_runner import OUTPUT_SUFFIX, Progress, Session, trial_directory
from bert_model.finetuning.worker_pool import TrialPool
from bert_model.model.config import BertConfig
from bert_model.model.cpu_kernels import onednn_choice, processor
from bert_model.model.weights import weight_files
from bert_pipeline.configuration import to_mapping
from bert_pipeline.errors import ConfigurationError, UsageError
from bert_pipeline.manifest import (
    MANIFEST_NAME,
    Draft,
    Manifest,
    content_sha256,
    file_sha256,
    load_manifest,
    publishing,
)
from bert_pipeline.tasks.catalogue import Task
from bert_pipeline.tasks.task import TaskData
from bert_pipeline.vocabulary.tokenizer import Tokenizer

__all__ = ["FinetuningConfig", "FinetuningResult", "finetune", "task_configuration"]

KIND = "finetuned_model"


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
    installed, as a run of `experiment` with children; an empty `experiment` records nothing. A fine-tuning that was
    killed goes on when it is started again: trials that had ended are not trained anew. UsageError when model and
    data do not fit, TrainingError when every run diverged; nothing is left behind then.
    """
    task = data.task
    tokenizer = Tokenizer.from_directory(model)
    model_config = BertConfig.from_directory(model)
    check_fit(task, data, tokenizer, model_config, config, model)
    configuration = {"task": task.name, **to_mapping(config)}
    identity = model_identity(model)
    inputs = {"model": identity, "data": {name: {"sha256": h} for name, h in sorted(data.sha256.items())}}
    hashes = {
        "data_sha256": examples_sha256({"train": data.train, **data.dev}),
        "dev_sha256": examples_sha256(data.dev),
        "configuration_sha256": content_sha256(configuration),
        "model_sha256": identity.get("content_sha256") or identity["sha256"],
    }
    with contextlib.ExitStack() as stack:
        pool = pool or stack.enter_context(TrialPool())
        device = pool.devices[0].partition(":")[0]
        onednn = onednn_choice(model_config, device=device)
        machine = {"device": device, "threads": pool.threads_per_worker, "processor": processor(), "onednn": onednn}
        trials_identity = content_sha256({**hashes, **machine, "task": to_mapping(task)})
        scratch = stack.enter_context(trial_directory(Path(output), trials_identity))
        record: FinetuningRecord | None = None
        if experiment:
            record = FinetuningRecord(
                Path(output),
                experiment=experiment,
                task=task.name,
                identity=content_sha256({"configuration": configuration, "inputs": inputs}),
                tags={"input.model": next(reversed(identity.values())), "own_split": str(data.own_split).lower()},
                params=configuration,
                resumed=any(scratch.glob(f"*{OUTPUT_SUFFIX}")),
            )
            stack.callback(record.fail)  # unless it is finished by then
        with publishing(output, kind=KIND, configuration=configuration, inputs=inputs) as draft:
            session = Session(data, model, tokenizer, config, pool, onednn, scratch, progress, record)
            arms = search(config, arms_of(config), session.learning_rates, session.run_trials, session.variants)
            results = results_document(data, config, arms, hashes=hashes)
            _write(draft, data, session, arms, {**hashes, "main_key": results["main_key"]})
            text = json.dumps(results, indent=1, ensure_ascii=False) + "\n"
            (draft.path / "results.json").write_text(text, encoding="utf-8")
            if record is not None:
                draft.provenance["mlflow_run_id"] = record.run_id
        manifest = load_manifest(output, kind=KIND)
        if record is not None:
            record.finish(arms, results, manifest.path)
    return FinetuningResult(
        path=Path(output), manifest=manifest, results=results, seconds=float(manifest.provenance["seconds"])
    )


def _write(draft: Draft, data: TaskData, session: Session, arms: Sequence[ArmResult], facts: Mapping[str, Any]) -> None:
    """Write the winner of the given weights: the model, its answers to dev and test, and what the search took."""
    task, config, pool, given = data.task, session.config, session.pool, arms[0]
    winner = session.winner(given.best)
    model = write_task_model(
        draft.path,
        trial=winner.trial,
        task=task,
        tokenizer=session.tokenizer,
        facts={
            **facts,
            "own_split": data.own_split,
            "null_threshold": winner.evaluations[session.main_split].null_threshold,
            "degenerate": given.degenerate,
            "seed": given.best.seed,
            "setting": given.setting.describe(),
            "scores": {
                f"{task.name}/{split}/{metric}": value
                for split, values in given.best.scores.items()
                for metric, value in values.items()
            },
        },
    )
    for split, examples in data.dev.items():
        draft.rows |= write_predictions(draft.path, split, examples, winner.evaluations[split])
    model.to(pool.devices[0])
    for split, examples in data.test.items():
        evaluation = predict_split(model, task, examples, session.tokenizer, config, pool)
        draft.rows |= write_predictions(draft.path, split, examples, evaluation)
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
        "processor": processor(),
        "onednn": session.onednn,
        "resumed_trials": session.resumed_trials,
    }


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
    """Name a model as an input: by its manifest when it is ours, else by name and the hash of its files."""
    if (model / MANIFEST_NAME).is_file():
        manifest = load_manifest(model)
        return {"kind": manifest.kind, "content_sha256": manifest.sha256}
    beside = (model / name for name in ("config.json", "vocab.txt", "tokenizer.json", "tokenizer_config.json"))
    files = [*weight_files(model), *(path for path in beside if path.is_file())]
    hashes = {path.name: file_sha256(path) for path in files}
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
