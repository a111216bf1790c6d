"""Fine-tuning on a task: encode, search, compare initializations, and publish the best model with its scores."""

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from bert_model.finetuning.analysis import analyze, error_of_confidence, errors_page, errors_path, results_table
from bert_model.finetuning.config import GRID_KEYS, FinetuningConfig, with_epochs
from bert_model.finetuning.results import SearchLog, dev_data, named_scores, results_document
from bert_model.finetuning.search import SearchResult, Trial, TrialResult, first_trials, search
from bert_model.finetuning.task_model import TAGGER_NAME, TaskModel, check_model_fit, load_task_model, write_task_model
from bert_model.finetuning.trial import CHECKPOINT_SUFFIX, OUTPUT_SUFFIX, TrialJob
from bert_model.finetuning.trial_runner import Progress, TrialRunner, Watch, recorded_threads, trial_directory
from bert_model.finetuning.worker_pool import WorkerPool
from bert_model.kinds import kind_of
from bert_model.kinds.base import TEMPERATURE, Evaluation, fitted_of
from bert_model.metrics.uncertainty import STATISTICS_NAME, stacked
from bert_model.model.config import BertConfig
from bert_model.model.cpu_kernels import onednn_width, processor
from bert_model.model.weights import WEIGHTS_NAME, weight_files
from bert_model.training.metrics_log import LOG_DIRECTORY, DataInput
from bert_pipeline.atomic import replace_text
from bert_pipeline.configuration import to_mapping
from bert_pipeline.errors import ArtifactError, UsageError
from bert_pipeline.hashes import content_sha256, file_sha256
from bert_pipeline.manifest import MANIFEST_NAME, Draft, Manifest, load_manifest, publishing, read_manifest
from bert_pipeline.step import STEPS
from bert_pipeline.storage import is_remote, to_path
from bert_pipeline.tasks.catalogue import Task
from bert_pipeline.tasks.task import TaskData
from bert_pipeline.vocabulary.tokenizer import Tokenizer

KIND = "finetuned_model"
PREDICTIONS = "predictions"
SEEDS = "seeds"
"""Directory of the models of all seeds, with `keep=all`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuningResult:
    """A published fine-tuned model."""

    path: Path
    manifest: Manifest
    results: dict[str, Any]
    """Content of results.json."""

    @property
    def main_key(self) -> str:
        """Key of the metric that decides the search, such as "sst2/dev/accuracy"."""
        return cast(str, self.results["main_key"])

    @property
    def metrics(self) -> dict[str, dict[str, Any]]:
        """ "<task>/<split>/<metric>" -> N, values, mean, sd, best, median, random, majority, paper and so on."""
        return cast(dict[str, dict[str, Any]], self.results["metrics"])


def finetune(
    data: TaskData,
    model: Path,
    output: Path | str,
    config: FinetuningConfig,
    *,
    pool: WorkerPool | None = None,
    progress: Progress | None = None,
    watch: Watch | None = None,
    experiment: str = "finetuning",
    replace: bool = False,
) -> FinetuningResult:
    """Fine-tune `model` on a task's data and publish the best trial in `output`, a "finetuned_model" directory.

    With `config.compare_random`, random weights of the same shape are trained for comparison. `pool` lets several
    fine-tunings share their worker processes. `progress` is called with each finished trial, `watch` with the running
    ones. The search is logged next to `output` and, if MLflow is installed, as a run of `experiment` with a child for
    each trial; an empty `experiment` logs nothing. The page of the worst errors is `errors_path(output)`.

    An interrupted fine-tuning resumes when it is started again, without repeating finished trials, and so does a
    finished one with further seeds or other values of the grid. UsageError if model and data do not fit, `output` is in
    a store, or is another model (`replaced_model`) and `replace` is not given; TrainingError if every trial from some
    weights diverged. Neither leaves anything behind but the outputs of trials that did not.
    """
    # Trials of several processes lock and share the directory, which a store cannot do.
    output = to_path(str(output))
    if is_remote(output):
        raise UsageError(f"{output}: a fine-tuning writes to a local directory; give one, and copy it to the store")
    # Check that everything fits, and name what decides the results.
    task, config = data.task, with_epochs(config, len(data.train))
    if not replace and (other := replaced_model(output, task.name, model)):
        raise UsageError(f"{output}: {other}; give another output, or --replace")
    tokenizer = Tokenizer.from_directory(model)
    model_config = BertConfig.from_directory(model)
    check_fit(task, data, tokenizer, model_config, config, model)
    identity = model_identity(model)
    inputs = {"model": identity, "data": {name: {"sha256": h} for name, h in sorted(data.sha256.items())}}

    # Hashes leave out file names: the same examples from another folder, or in another format, are the same data.
    hashes = {
        "data_sha256": examples_sha256({"train": data.train, **data.dev}),
        "dev_sha256": examples_sha256(data.dev),
        "model_sha256": identity.get("content_sha256") or identity["sha256"],
    }
    with contextlib.ExitStack() as stack:
        # Resume from the trials of an interrupted search only on a machine that computes alike: device, processor and
        # kernels decide the bits of a result. So does the number of threads: further searches keep that of the first.
        pool = pool or stack.enter_context(WorkerPool())
        device = pool.devices[0].partition(":")[0]
        machine = {"device": device, "processor": processor(), "onednn": onednn_width()}
        # The grid is left out: a search with another one finds the trials of both.
        decisive = {key: value for key, value in to_mapping(config).items() if key not in GRID_KEYS}
        trials_identity = content_sha256(
            {
                **hashes,
                **machine,
                "configuration_sha256": content_sha256(decisive),
                "test_sha256": examples_sha256(data.labeled_test),
                "task": to_mapping(task),
                "code_version": STEPS["finetuned_model"].code_version,
            }
        )
        scratch = stack.enter_context(trial_directory(output, trials_identity))
        default = pool.threads_for(len(first_trials(config, feature_based=task.feature_based)))
        config = dataclasses.replace(config, threads=recorded_threads(scratch, config.threads or default))
        pool.num_threads = config.threads
        configuration = {"task": task.name, **to_mapping(config)}
        hashes["configuration_sha256"] = content_sha256(configuration)
        # The log continues that of an interrupted search, and is closed as failed if this block raises.
        log: SearchLog | None = None
        if experiment:
            log = SearchLog(
                output,
                experiment=experiment,
                task=task.name,
                identity=content_sha256({"configuration": configuration, "inputs": inputs}),
                # The last value of either form of identity is its hash.
                tags={"input.model": next(reversed(identity.values())), "own_split": str(data.own_split).lower()},
                params=configuration,
                inputs=_data_inputs(data, tokenizer, hashes, Path(model)),
                note=f"Fine-tuning for {task.title}: a search with {len(config.seeds)} seeds of each setting, its "
                "trials as child runs. The scores are means over the seeds of the best setting; the artifact "
                "`results.md` has them beside the baselines.",
                resumed=any(any(scratch.glob(f"*{suffix}")) for suffix in (OUTPUT_SUFFIX, CHECKPOINT_SUFFIX)),
            )
            stack.push(log.fail)  # unless it is finished by then

        # Search, and publish the best trial from the pre-trained weights.
        with publishing(output, kind=KIND, configuration=configuration, inputs=inputs) as draft:
            runner = TrialRunner(
                data, model, model_config, tokenizer, config, pool, scratch, progress=progress, watch=watch, log=log
            )
            runner.take_weights(output)
            searches = search(config, runner.run_trials, feature_based=task.feature_based)
            # The first search is that of the pre-trained weights: the only one whose model is published.
            job, logits, evaluations = runner.published(searches[0].best.trial)
            analysis, page = _analyze(runner, logits, evaluations)
            results = results_document(
                data, config, searches, hashes=hashes, analysis=analysis, truncated=runner.truncated
            )
            description = {**hashes, "main_key": results["main_key"]}
            files = _write(draft, runner, searches, job, evaluations, description)
            text = json.dumps(results, indent=1, ensure_ascii=False) + "\n"
            (draft.path / "results.json").write_text(text, encoding="utf-8")
            (draft.path / "results.md").write_text(results_table(results), encoding="utf-8")
            statistics = stacked([runner.statistics[r.trial] for r in searches[0].chosen if not r.diverged])
            (draft.path / STATISTICS_NAME).write_text(statistics.to_json() + "\n", encoding="utf-8")
            if log is not None:
                draft.provenance["mlflow_run_id"] = log.tracker.run_id
                draft.provenance[LOG_DIRECTORY] = str(log.directory.relative_to(output.parent))
        # Only now, as the weights and the page belong to this manifest and a failure above must leave neither.
        manifest = load_manifest(output, kind=KIND)
        runner.record_weights(manifest, files)
        replace_text(errors_path(output), page)
        if log is not None:
            log.finish(searches, results, manifest.path, [errors_path(output)])
    return FinetuningResult(path=output, manifest=manifest, results=results)


def _data_inputs(data: TaskData, tokenizer: Tokenizer, hashes: Mapping[str, str], model: Path) -> list[DataInput]:
    """Return the data sets of a fine-tuning, and those of the pre-training where the model names them."""
    name, num_dev = data.task.name, sum(map(len, data.dev.values()))
    own: list[DataInput] = [
        {
            "name": name,
            "kind": "task_data",
            "sha256": hashes["data_sha256"],
            "context": "training",
            "num_rows": len(data.train) + num_dev,
        },
        {**dev_data(name, hashes["dev_sha256"]), "num_rows": num_dev},
        {"name": "vocabulary", "kind": "vocabulary", "sha256": tokenizer.sha256, "context": "source"},
    ]
    has_manifest = (model / MANIFEST_NAME).is_file()
    earlier: list[DataInput] = load_manifest(model).provenance.get("data", []) if has_manifest else []
    return own + [{**item, "context": "pre-training"} for item in earlier if item["kind"] != "vocabulary"]


def _analyze(
    runner: TrialRunner, logits: Mapping[str, np.ndarray], evaluations: Mapping[str, Evaluation]
) -> tuple[dict[str, Any], str]:
    """Return the analysis of every labeled split for the published model, and the page of its errors on dev."""
    kind, page = runner.kind, ""
    analysis: dict[str, Any] = {}
    for split, evaluation in evaluations.items():
        examples = runner.examples[split]
        decided = kind.decisions(examples, runner.encoded[split], logits[split], evaluation)
        analysis[split] = analyze(kind, examples, evaluation, decided)
        if TEMPERATURE in evaluation.fitted:
            plain = dataclasses.replace(evaluation, fitted=fitted_of(evaluation.fitted))
            before = kind.decisions(examples, runner.encoded[split], logits[split], plain)
            analysis[split]["uncalibrated_error"] = error_of_confidence(before)
        if split == runner.main_split:
            page = errors_page(kind, split, analysis[split], decided)
    return analysis, page


def _write(
    draft: Draft,
    runner: TrialRunner,
    searches: Sequence[SearchResult],
    job: TrialJob,
    evaluations: Mapping[str, Evaluation],
    description: Mapping[str, Any],
) -> dict[Trial, str]:
    """Write the best model, its predictions for dev and test, and the counts and times of the search.

    With `keep=all`, also the models of the other seeds. Returns trial -> file of its weights.
    """
    data, config, pool = runner.data, runner.config, runner.pool

    # What was chosen on the main dev split also applies to the others, on which nothing is.
    task, best = data.task, searches[0].best
    fitted = fitted_of(evaluations[runner.main_split].fitted)
    weights_name = TAGGER_NAME if task.feature_based else WEIGHTS_NAME

    def write_model(directory: Path, job: TrialJob, result: TrialResult) -> None:
        own_description = {
            **description,
            "own_split": data.own_split,
            **fitted_of(result.fitted),
            "degenerate": not result.usable,
            "seed": result.trial.seed,
            "setting": result.trial.setting.describe(),
            "scores": named_scores(task.name, result),
        }
        temperature = result.fitted.get(TEMPERATURE, 1.0)
        write_task_model(directory, job, runner.tokenizer, own_description, temperature=temperature)

    # The model of each seed is a whole model directory of its own, as ensembles of `bert predict` take them.
    files = {best.trial: weights_name}
    if config.keep == "all":
        chosen = [result for result in searches[0].chosen if not result.diverged]
        for other, result in zip(runner.jobs_of([result.trial for result in chosen]), chosen):
            folder = f"{SEEDS}/{other.trial.seed}"
            (draft.path / folder).mkdir(parents=True)
            write_model(draft.path / folder, other, result)
            files[other.trial] = f"{folder}/{weights_name}"
    write_model(draft.path, job, best)
    model: TaskModel | None = None
    (draft.path / PREDICTIONS).mkdir()
    for split, examples in {**data.dev, **data.test}.items():
        evaluation = evaluations.get(split)
        if evaluation is None:  # without labels, so no trial predicted it; with as many threads as a trial has
            model = model or load_task_model(draft.path, log=False).to(pool.devices[0])
            encoded = runner.kind.encode(examples, runner.tokenizer, runner.alone)
            logits = model.logits(encoded, num_threads=pool.num_threads)
            evaluation = runner.kind.evaluate(examples, encoded, logits, config, fitted=fitted)
        for name, content in runner.kind.prediction_files(split, evaluation).items():
            (draft.path / PREDICTIONS / name).write_text(content, encoding="utf-8")
            draft.rows[f"{PREDICTIONS}/{name}"] = len(evaluation.predictions)

    # Counts are part of the content's hash; times and the machine's choices are not, so they are provenance.
    results = [result for search in searches for result in search.trials]
    draft.counts |= {
        "train_examples": len(data.train),
        **{f"{split}_examples": len(examples) for split, examples in data.dev.items()},
        "train_rows": runner.train.num_rows,
        "train_tokens": len(runner.train.input_ids),
        "runs": len(results),
        "collapsed_runs": sum(result.collapsed for result in results),
        "diverged_runs": sum(result.diverged for result in results),
        "defects": dict(data.counts),
    }
    draft.provenance |= {
        "workers": pool.num_workers,
        "training_seconds": round(runner.training_seconds, 3),
        "training_tokens": runner.training_tokens,
        "processor": processor(),
        "resumed_trials": runner.resumed_trials,
    }
    return files


def check_fit(
    task: Task, data: TaskData, tokenizer: Tokenizer, model_config: BertConfig, config: FinetuningConfig, model: Path
) -> None:
    """Raise an error if model, configuration and data do not fit together."""
    check_model_fit(task, tokenizer, model_config, config, model)
    if model_config.attention == "causal" and config.head == "linear" and kind_of(task).reads_first_token:
        raise UsageError(
            f"{model}: its tokens attend to the left only, so [CLS], from which {task.name} is predicted, sees nothing "
            "else; give head=bilstm"
        )

    if problem := kind_of(task).problem(config):
        raise UsageError(f"{task.name}: {problem}")

    # Data that training would accept, but learn nothing from.
    for name, examples in (("training", data.train), *data.dev.items()):
        if not examples:
            raise UsageError(f"{task.name}: no {name} examples; check the files, or give a larger dev_fraction")
    if task.labels and len(labels := {example.gold for example in data.train}) == 1 and kind_of(task).reads_first_token:
        raise UsageError(
            f"{task.name}: every training example has the label {next(iter(labels))!r}, expected two or more of "
            f"{', '.join(task.labels)}; check the file and the task's labels"
        )


def replaced_model(output: Path, task: str, model: Path) -> str:
    """Return which other model a fine-tuning of `model` would replace: the start, or one of another task or start.

    "" for none, and for a model of the same task and start, whose search is extended.
    """
    if output.exists() and model.exists() and output.samefile(model):
        return "is the model that the fine-tuning starts from"
    try:
        manifest = read_manifest(output, any_format=True)
    except (ArtifactError, OSError):  # there is none, or it is damaged
        return ""
    if manifest.kind != KIND:  # which is refused elsewhere
        return ""
    if (other := manifest.configuration.get("task")) != task:
        return f"holds a finished model for {other}"
    start, expected = (next(reversed(entry.values())) for entry in (manifest.inputs["model"], model_identity(model)))
    return "" if start == expected else f"holds a finished model that was fine-tuned from another one ({start[:12]}…)"


def model_identity(model: Path) -> dict[str, str]:
    """Identify a model as an input: by its manifest, or without one by its name and the hash of its files."""
    if (model / MANIFEST_NAME).is_file():
        manifest = load_manifest(model)
        return {"kind": manifest.kind, "content_sha256": manifest.sha256}
    others = (model / name for name in ("config.json", "vocab.txt", "tokenizer.json", "tokenizer_config.json"))
    files = [*weight_files(model), *(path for path in others if path.is_file())]
    hashes = {path.name: file_sha256(path) for path in files}
    return {"name": model.name, "sha256": content_sha256(hashes)}


def examples_sha256(splits: Mapping[str, Sequence[Any]]) -> str:
    """Hash examples with their labels, whatever files they came from."""
    digest = hashlib.sha256()
    for split in sorted(splits):
        digest.update(f"\n{split}\n".encode())
        for example in splits[split]:
            digest.update(repr(example).encode())
    return digest.hexdigest()
