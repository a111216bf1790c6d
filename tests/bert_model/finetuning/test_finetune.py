"""Fine-tuning of every task: scores, reproducibility, resumption, and nothing left behind on failure."""

import dataclasses
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import tiny_tasks
import torch
import transformers
from safetensors.torch import load_file, save_file

from bert_model.cli import main
from bert_model.finetuning.config import task_configuration
from bert_model.finetuning.finetune import finetune
from bert_model.finetuning.forward_passes import FeatureJob
from bert_model.finetuning.search import DivergedError, Initialization, Setting, Trial
from bert_model.finetuning.task_model import load_task_model
from bert_model.finetuning.trial import OUTPUT_SUFFIX, TrialJob, TrialOutput, initial_model, write_output
from bert_model.finetuning.trial_runner import trial_directory
from bert_model.finetuning.worker_pool import WorkerPool
from bert_model.inference.predict import TaskPredictor
from bert_model.kinds import kind_of
from bert_model.kinds.scores import read_predictions
from bert_model.model.config import BertConfig
from bert_model.training.mlflow_store import open_client
from bert_pipeline.errors import ArtifactError, ConfigurationError, InputError, TrainingError, UsageError
from bert_pipeline.manifest import load_manifest
from bert_pipeline.tasks.catalogue import TASKS, get_task


@pytest.fixture(scope="module")
def home(empty_store, tmp_path_factory):
    """One MLflow store for the tests that need one."""
    home = tmp_path_factory.mktemp("home")
    shutil.copy(empty_store, home / "mlflow.db")
    return home


@pytest.fixture
def recorded(home, monkeypatch):
    """Let the fine-tunings of this test log to the store."""
    monkeypatch.setenv("BERT_HOME", str(home))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def tune(name, model, output, pool, data=None, **overrides):
    data = data or tiny_tasks.task_data(name)
    return finetune(data, model, output, tiny_tasks.configuration(**overrides), pool=pool, experiment="")


@pytest.mark.parametrize("name", sorted(TASKS))
def test_stored_predictions_of_a_task_reproduce_its_reported_scores(name, tuned):
    data = tiny_tasks.task_data(name)
    result = tuned(name)
    manifest = load_manifest(result.path, kind="finetuned_model", verify="sha256")
    task = get_task(name)
    for split, examples in data.dev.items():
        suffix = "json" if task.kind == "span" else "jsonl"
        predictions = read_predictions(task, manifest.path / "predictions" / f"{split}.{suffix}")
        again = kind_of(task).score(examples, predictions)
        for metric in task.metrics:
            entry = result.metrics[f"{name}/{split}/{metric}"]
            assert entry["n"] == len(examples)
            assert entry["best"] == pytest.approx(again[metric], abs=1e-5)
            assert entry["majority"] is not None
    description = json.loads((manifest.path / "task.json").read_text())
    assert description["scores"][result.main_key] == pytest.approx(result.metrics[result.main_key]["best"], abs=1e-5)
    assert len({description[key] for key in ("data_sha256", "dev_sha256", "configuration_sha256", "model_sha256")}) == 4


@pytest.mark.parametrize("name", ["sst2", "squad1", "swag", "ner"])
def test_model_learns_the_task(name, tuned):
    result = tuned(name)
    entry = result.metrics[result.main_key]
    assert entry["mean"] > entry["majority"] + 25
    assert not result.results["degenerate"]


def test_truncated_examples_are_counted_and_said(model, tmp_path, pool, caplog):
    tune("mrpc", model, tmp_path / "out", pool, epochs=[1.0], max_seq_length=10)
    assert "mrpc: 48 of 48 examples of train were cut to fit into max_seq_length 10" in caplog.text
    assert "mrpc: 24 of 24 examples of dev were cut" in caplog.text


def test_feature_based_tagger_learns_and_leaves_the_encoder_unchanged(model, tmp_path, pool):
    data = tiny_tasks.task_data("ner_features", num_train=96)
    result = tune("ner_features", model, tmp_path / "out", pool, data, epochs=[20.0], batch_sizes=[4])
    assert result.metrics[result.main_key]["mean"] > 50
    loaded = load_task_model(tmp_path / "out")
    before = transformers.BertModel.from_pretrained(model).state_dict()
    for key, value in loaded.encoder.state_dict().items():
        torch.testing.assert_close(value, before[key])


def test_feature_inputs_of_table_7_share_one_set_of_activations(model, tmp_path, pool, monkeypatch):
    feature_jobs = []
    run = WorkerPool.run

    def counted(self, jobs, on_report=None):
        feature_jobs.extend(job for job in jobs if isinstance(job, FeatureJob))
        return run(self, jobs, on_report)

    monkeypatch.setattr(WorkerPool, "run", counted)
    inputs = ["embeddings", "second_to_last", "last", "weighted_sum_last_four", "concat_last_four", "weighted_sum_all"]
    result = tune("ner_features", model, tmp_path / "out", pool, feature_inputs=inputs, seeds=[1, 2], epochs=[4.0])
    (feature_job,) = feature_jobs
    assert feature_job.states == (0, 1)  # all that a model of one block has
    rows = result.results["feature_inputs"]
    assert [row["feature_input"] for row in rows] == inputs
    assert [row["paper"] for row in rows] == [91.0, 95.6, 94.9, 95.9, 96.1, 95.5]
    assert all(len(row["values"]) == 2 and row["n"] == 24 for row in rows)
    best = max(rows, key=lambda row: row["mean"])
    assert result.metrics[result.main_key]["mean"] == best["mean"]
    assert load_task_model(tmp_path / "out").description["feature_input"] == best["feature_input"]
    assert len(result.results["initializations"]["pretrained"]["runs"]) == 12


def test_comparison_reports_both_random_initializations(model, tmp_path, pool):
    result = tune("sst2", model, tmp_path / "out", pool, compare_random=True, seeds=[1, 2], epochs=[2.0])
    entry = result.metrics["sst2/dev/accuracy"]
    assert len(entry["values"]) == len(entry["random_values"]) == len(entry["random_x4_values"]) == 2
    initializations = result.results["initializations"]
    assert initializations["random"]["steps"] == initializations["pretrained"]["steps"] == 12
    assert initializations["random_x4"]["steps"] == 48


def test_random_weights_are_not_those_of_the_model(model):
    data, config = tiny_tasks.task_data("sst2"), tiny_tasks.configuration()
    task, train = data.task, kind_of(data.task).encode(data.train, tiny_tasks.tokenizer(), config)
    job = TrialJob(
        trial=Trial(Initialization("pretrained", "pretrained"), Setting(1e-3, 8, 1.0), seed=1),
        task=task,
        config=config,
        model=model,
        model_config=BertConfig.from_directory(model, labels=task.labels),
    )
    stored = load_file(model / "model.safetensors")["bert.embeddings.word_embeddings.weight"]
    for weights in ("pretrained", "random"):
        trial = dataclasses.replace(job.trial, initialization=Initialization(weights, weights))
        start = initial_model(dataclasses.replace(job, trial=trial), train)
        is_stored = torch.equal(start.bert.embeddings.word_embeddings.weight, stored)
        assert is_stored is (weights == "pretrained")


@pytest.mark.slow
def test_one_process_and_two_workers_publish_the_same_content(model, tmp_path):
    hashes = []
    for workers in (0, 2):  # 0 runs the trials in this process
        with WorkerPool(num_workers=workers) as pool:
            for name in ("mnli", "ner_features"):
                data = tiny_tasks.task_data(name, num_dev=23)  # 23 rows fill no batch evenly
                output = tmp_path / f"{name}-{workers}"
                result = tune(name, model, output, pool, data, seeds=[1, 2], compare_random=True)
                assert {entry["n"] for entry in result.metrics.values()} == {23}
                hashes.append((name, result.manifest.sha256))
    assert len(set(hashes)) == 2


class Interrupted(WorkerPool):
    """A pool whose process is interrupted when so many trials have finished."""

    def __init__(self, after):
        super().__init__(num_workers=0)
        self.after, self.ran = after, 0

    def run(self, jobs, on_report=None):
        for output in super().run(jobs, on_report):
            if self.ran == self.after:
                raise KeyboardInterrupt
            self.ran += isinstance(output, TrialOutput)
            yield output


@pytest.mark.parametrize("name", ["sst2", "ner_features"])
def test_interrupted_search_resumes_and_publishes_the_same_content(name, model, tmp_path):
    settings = {"learning_rates": [1e-3, 2e-3], "lstm_learning_rates": [1e-2, 2e-2], "seeds": [1, 2], "epochs": [1.0]}
    with pytest.raises(KeyboardInterrupt):
        tune(name, model, tmp_path / "out", Interrupted(after=2), **settings)
    assert not (tmp_path / "out").exists()
    (held,) = tmp_path.iterdir()
    assert held.name.startswith(".trials-out-")
    outputs = sorted(held.glob("*.npz"))
    assert len(outputs) == 3  # with the trial that had finished when the interruption came
    outputs[0].write_bytes(outputs[0].read_bytes()[:100])  # torn by a power cut: repeated
    rest = Interrupted(after=99)
    result = tune(name, model, tmp_path / "out", rest, **settings)
    assert rest.ran == 2
    assert result.manifest.provenance["resumed_trials"] == 2
    whole = tune(name, model, tmp_path / "whole" / "out", Interrupted(after=99), **settings)
    assert result.manifest.sha256 == whole.manifest.sha256
    assert sorted(path.name for path in tmp_path.iterdir()) == [held.name, "out", "out.errors.html", "whole"]
    assert {path.suffix for path in held.iterdir()} == {".npz", ".json", ""}  # neither weights nor examples


def test_trials_of_another_configuration_are_not_reused(model, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        tune("sst2", model, tmp_path / "out", Interrupted(after=1), seeds=[1, 2])
    fresh = Interrupted(after=99)
    tune("sst2", model, tmp_path / "out", fresh, seeds=[1, 2], epochs=[1.0])
    assert fresh.ran == 2
    assert len([path for path in tmp_path.iterdir() if path.name.startswith(".trials-")]) == 1


def test_first_of_tied_seeds_wins_in_any_order(model, tmp_path, pool):
    fine_tuned = tune("squad1", model, tmp_path / "a", pool)  # its head is kept, whatever the seed
    still = {"learning_rates": [1e-12], "epochs": [1.0], "hidden_dropout": 0.0, "classifier_dropout": 0.0}
    result = tune("squad1", fine_tuned.path, tmp_path / "b", pool, seeds=[2, 1], **still)
    trials = result.results["initializations"]["pretrained"]["runs"]
    assert trials[0]["scores"] == trials[1]["scores"]
    assert result.results["winner"]["seed"] == 2


def test_concurrent_fine_tuning_of_one_output_is_refused(tmp_path):
    with (
        trial_directory(tmp_path / "out", "0" * 64),
        pytest.raises(UsageError, match="already being fine-tuned by another process"),
        trial_directory(tmp_path / "out", "0" * 64),
    ):
        pass


def test_trials_of_another_version_are_removed_with_a_warning(tmp_path, caplog):
    old, other = tmp_path / f".trials-out[1]-{'1' * 16}", tmp_path / f".trials-out1-{'1' * 16}"
    for directory in (old, other):
        directory.mkdir()
        (directory / f"lr{OUTPUT_SUFFIX}").touch()
    with trial_directory(tmp_path / "out[1]", "0" * 64):
        assert (old.exists(), other.exists()) == (False, True)
    assert "1 finished trials of other data, settings, versions or kernels are removed" in caplog.text


@pytest.mark.parametrize("place", ["file", "file/below", "link"])
def test_output_that_cannot_be_a_directory_is_refused_before_any_training(place, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "missing")
    with (
        pytest.raises(ArtifactError, match=f"^{tmp_path / place}: .*not a directory"),
        trial_directory(tmp_path / place, "0" * 64),
    ):
        pytest.fail("the search began")
    assert {path.name for path in tmp_path.iterdir()} == {"file", "link"}


def test_resumed_search_is_one_mlflow_run_with_every_trial_once(model, tmp_path, recorded):
    config = tiny_tasks.configuration(seeds=[1, 2, 3], epochs=[1.0])
    data = tiny_tasks.task_data("sst2")
    with pytest.raises(KeyboardInterrupt):
        finetune(data, model, tmp_path / "out", config, pool=Interrupted(after=1), experiment="tasks")
    result = finetune(data, model, tmp_path / "out", config, pool=Interrupted(after=9), experiment="tasks")
    client = open_client()
    experiment = client.get_experiment_by_name("tasks").experiment_id
    runs = {run.info.run_id: run for run in client.search_runs([experiment])}
    parents = [run for run in runs.values() if "mlflow.parentRunId" not in run.data.tags]
    assert [run.info.run_id for run in parents] == [result.manifest.provenance["mlflow_run_id"]]
    assert parents[0].info.status == "FINISHED"
    assert len(runs) == 1 + 3
    description = json.loads((tmp_path / "out" / "task.json").read_text())
    expected = {"sst2": description["data_sha256"][:36], "sst2-dev": description["dev_sha256"][:36]}
    for run in runs.values():
        data = {item.dataset.name: item.dataset.digest for item in run.inputs.dataset_inputs}
        assert {name: data[name] for name in expected} == expected
        assert len(data["vocabulary"]) == 36
        assert run.data.tags["mlflow.note.content"]
    (record,) = (tmp_path / ".tracking").iterdir()
    lines = [json.loads(line) for line in (record / "metrics.jsonl").read_text().splitlines()]
    assert sorted(line["trial"] for line in lines if line["event"] == "trial") == [
        f"pretrained-0.002-8-1-{seed}" for seed in (1, 2, 3)
    ]


def test_manifest_identity_covers_inputs_and_configuration_not_times(model, tuned, tmp_path, pool):
    first = tuned("rte")
    second = tune("rte", model, tmp_path / "b", pool)
    assert first.manifest.sha256 == second.manifest.sha256
    assert first.manifest.inputs["data"] == {"made-by-hand": {"sha256": "0" * 64}}
    assert tune("rte", model, tmp_path / "c", pool, seeds=[2]).manifest.sha256 != first.manifest.sha256


def test_gradient_accumulation_changes_nothing_but_rounding(model, tmp_path, pool):
    whole = tune("sst2", model, tmp_path / "a", pool, hidden_dropout=0.0, classifier_dropout=0.0)
    parts = tune(
        "sst2", model, tmp_path / "b", pool, hidden_dropout=0.0, classifier_dropout=0.0, gradient_accumulation=4
    )
    losses = [result.results["winner"]["losses"] for result in (whole, parts)]
    np.testing.assert_allclose(*losses, atol=2e-3)


def test_head_is_kept_for_the_same_task_and_fresh_for_another(tuned, tmp_path, pool):
    again = tune("squad1", tuned("squad1").path, tmp_path / "again", pool, epochs=[1.0])
    assert again.results["winner"]["losses"][0] < 1.0  # it goes on from where the first one ended
    result = tune("rte", tuned("mnli").path, tmp_path / "rte", pool)
    assert result.manifest.inputs["model"]["kind"] == "finetuned_model"

    # A model of the hub: the two outputs of a span head may be counted, or have names that mean nothing.
    left_out = shutil.ignore_patterns("manifest.json", "task.json")
    hub = Path(shutil.copytree(tuned("squad1").path, tmp_path / "hub", ignore=left_out))
    config = json.loads((hub / "config.json").read_text())
    (hub / "config.json").write_text(json.dumps({**config, "num_labels": 2}))
    again = tune("squad1", hub, tmp_path / "of-the-hub", pool, epochs=[1.0])
    assert again.results["winner"]["losses"][0] < 1.0


def test_head_of_another_regression_is_not_kept(tuned, tmp_path, pool):
    data = tiny_tasks.task_data("stsb")
    task = dataclasses.replace(data.task, name="stars", label_range=(0.0, 100.0))
    train, dev = (
        [dataclasses.replace(example, label=20 * example.label) for example in examples]
        for examples in (data.train, data.dev["dev"])
    )
    data = dataclasses.replace(data, task=task, train=train, dev={"dev": dev})
    result = tune("stsb", tuned("stsb").path, tmp_path / "stars", pool, data, epochs=[1.0])
    # It begins at the mean of the new labels, not at that of the old ones; the loss is in units of their variance.
    variance = np.var([example.label for example in train])
    assert result.results["winner"]["losses"][0] < 1.5 < np.mean([(e.label - 2.5) ** 2 for e in train]) / variance


def test_numbers_of_any_size_are_learned_alike(model, tmp_path, pool):
    answers = {}
    for factor in (1.0, 1e4, 1e-4):
        data = tiny_tasks.task_data("stsb")
        task = dataclasses.replace(data.task, name="own", label_range=(0.0, 1e5))
        train, dev = (
            [dataclasses.replace(example, label=factor * example.label / 2.5) for example in examples]
            for examples in (data.train, data.dev["dev"])
        )
        data = dataclasses.replace(data, task=task, train=train, dev={"dev": dev})
        output = tmp_path / str(factor)
        tune("stsb", model, output, pool, data, epochs=[10.0])
        found = TaskPredictor([load_task_model(output)]).answer([{"text": e.text_a, "text_b": e.text_b} for e in dev])
        answers[factor] = [answer["prediction"] for answer in found]
        stored = read_predictions(task, output / "predictions" / "dev.jsonl")
        assert list(stored.values()) == pytest.approx(answers[factor], rel=1e-3, abs=1e-6)
        # A further fine-tuning for the task continues with its head.
        again = tune("stsb", output, tmp_path / f"{factor}-again", pool, data, epochs=[1.0])
        assert again.results["winner"]["losses"][0] < 0.2
    assert answers[1e4] == pytest.approx([1e4 * value for value in answers[1.0]], rel=1e-3, abs=10)
    assert answers[1e-4] == pytest.approx([1e-4 * value for value in answers[1.0]], rel=1e-2, abs=1e-6)


def rewrite_weights(model, directory, change):
    """Copy a model with its tensors changed, and with the `architectures` of bert-base-uncased on the hub."""
    shutil.copytree(model, directory)
    save_file(change(load_file(model / "model.safetensors")), directory / "model.safetensors")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"architectures": ["BertForMaskedLM"]}))
    return directory


@pytest.mark.parametrize(
    ("name", "used"),
    [
        ("sst2", "23 tensors used, 7 (cls.predictions, cls.seq_relationship) ignored, 2 (classifier) newly"),
        (
            "ner",
            "21 tensors used, 9 (bert.pooler, cls.predictions, cls.seq_relationship) ignored, 2 (classifier) newly",
        ),
        ("ner_features", "23 tensors used, 7 (cls.predictions, cls.seq_relationship) ignored, 0 newly"),
    ],
)
def test_use_of_hub_weights_is_logged_once_for_all_trials(name, used, model, tmp_path, pool, caplog):
    def rename(tensors):
        old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        return {re.sub(r"LayerNorm\.\w+$", lambda end: old[end[0]], key): tensors[key] for key in tensors}

    hub = rewrite_weights(model, tmp_path / "hub", rename)
    caplog.set_level("INFO")
    result = tune(name, hub, tmp_path / "out", pool, seeds=[1, 2], epochs=[0.5])
    assert result.manifest.counts["runs"] == 2
    assert [line for line in caplog.messages if "tensors used" in line] == [f"{hub}: {used} initialized"]


def test_non_finite_weight_is_refused_before_training(model, tmp_path, pool):
    def spoil(tensors):
        tensors["bert.embeddings.word_embeddings.weight"][-1, 0] = float("nan")  # a token that no example has
        return tensors

    broken = rewrite_weights(model, tmp_path / "broken", spoil)
    with pytest.raises(InputError, match="not finite: bert.embeddings.word_embeddings.weight"):
        tune("sst2", broken, tmp_path / "out", pool)
    assert [path.name for path in tmp_path.iterdir()] == ["broken"]


@pytest.mark.parametrize(("has_instructions", "same"), [(True, "bfloat16"), (False, "float32")])
def test_auto_is_bfloat16_where_the_device_has_instructions_for_it(
    has_instructions, same, model, tmp_path, pool, monkeypatch
):
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: {"avx512_bf16": has_instructions})
    losses = [
        tune("sst2", model, tmp_path / precision, pool, precision=precision, epochs=[1.0]).results["winner"]["losses"]
        for precision in ("auto", "float32", "bfloat16")
    ]
    assert losses[1] != losses[2]
    assert losses[0] == losses[1 if same == "float32" else 2]


def test_corrected_adam_begins_with_smaller_steps_than_the_papers(model, tmp_path, pool):
    still = {"hidden_dropout": 0.0, "classifier_dropout": 0.0, "epochs": [1.0], "warmup_share": 0.0}
    moved = []
    for optimizer in ("bert_adam", "adamw"):
        tune("sst2", model, tmp_path / optimizer, pool, optimizer=optimizer, learning_rates=[1e-4], **still)
        weights = [load_file(path / "model.safetensors") for path in (model, tmp_path / optimizer)]
        name = "bert.encoder.layer.0.output.dense.weight"
        moved.append(float((weights[0][name] - weights[1][name]).norm()))
    assert moved[0] > 1.2 * moved[1] > 0


@pytest.mark.parametrize("name", ["sst2", "stsb", "swag"])
def test_prediction_from_a_token_that_sees_nothing_is_refused(name, tmp_path, pool):
    causal = tiny_tasks.make_model(tmp_path / "causal", attention="causal")
    with pytest.raises(UsageError, match=rf"from which {name} is predicted, sees nothing else; give head=bilstm"):
        tune(name, causal, tmp_path / "out", pool)
    assert not (tmp_path / "out").exists()


def test_causal_model_stays_causal_and_keeps_its_activation(tmp_path, pool):
    causal = tiny_tasks.make_model(tmp_path / "causal", attention="causal", hidden_act="gelu_new")
    tune("ner", causal, tmp_path / "out", pool)
    config = load_task_model(tmp_path / "out").model.config
    assert (config.attention, config.hidden_act) == ("causal", "gelu_new")


@pytest.mark.parametrize(
    ("name", "attention"),
    [("sst2", "bidirectional"), ("squad1", "causal"), ("swag", "bidirectional"), ("ner", "causal")],
)
def test_bilstm_head_of_table_5_is_trained_stored_and_loaded(name, attention, tmp_path, pool):
    model = tiny_tasks.make_model(tmp_path / "model", attention=attention)
    data = tiny_tasks.task_data(name)
    result = tune(name, model, tmp_path / "out", pool, data, head="bilstm", epochs=[6.0])
    loaded = load_task_model(tmp_path / "out")
    assert (loaded.model.config.head, loaded.model.config.attention) == ("bilstm", attention)
    examples = data.dev["dev"]
    encoded = kind_of(loaded.task).encode(examples, loaded.tokenizer, loaded.config)
    evaluation = kind_of(loaded.task).evaluate(examples, encoded, loaded.logits(encoded, num_threads=1), loaded.config)
    assert evaluation.scores[loaded.task.main_metric] == pytest.approx(
        result.metrics[result.main_key]["best"], abs=1e-5
    )
    again = tune(name, tmp_path / "out", tmp_path / "again", pool, data, head="bilstm", epochs=[1.0])
    linear = tune(name, tmp_path / "out", tmp_path / "linear", pool, data, epochs=[1.0])
    assert again.results["winner"]["losses"][0] < linear.results["winner"]["losses"][0]


@pytest.mark.parametrize("batch_size", [8, 1000])  # 1000: the only update diverges, which no loss shows
def test_diverged_training_leaves_nothing_behind(model, tmp_path, pool, batch_size):
    settings = {"learning_rates": [1e30], "batch_sizes": [batch_size], "epochs": [1.0], "max_gradient_norm": 0.0}
    with pytest.raises(TrainingError, match="stopped being finite"):
        tune("stsb", model, tmp_path / "out", pool, **settings)
    assert list(tmp_path.iterdir()) == []


def test_trials_that_did_not_diverge_outlive_those_that_did(tmp_path):
    def search():
        with trial_directory(tmp_path / "out", "0" * 64) as directory:
            for name, logits in {"pretrained": {"dev": np.zeros((3, 2), dtype=np.float32)}, "random": {}}.items():
                costs = {"steps": 1, "training_seconds": 1.0, "training_tokens": 1}
                output = TrialOutput(logits=logits, diverged=not logits, **costs)
                write_output(directory / f"{name}{OUTPUT_SUFFIX}", output)
            raise DivergedError("random: the loss stopped being finite")

    with pytest.raises(DivergedError):
        search()
    assert [path.name for path in tmp_path.glob(f".trials-*/*{OUTPUT_SUFFIX}")] == [f"pretrained{OUTPUT_SUFFIX}"]


def test_row_longer_than_the_models_positions_is_refused(model, tmp_path, pool):
    with pytest.raises(ConfigurationError, match="max_seq_length: found 128, expected at most the model's 64"):
        tune("sst2", model, tmp_path / "out", pool, max_seq_length=128)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("output", ["memory://bucket/tuned", Path("memory://bucket/tuned")])
def test_output_in_a_store_is_refused(model, tmp_path, monkeypatch, pool, output):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="writes to a local directory|found one slash after memory:"):
        tune("sst2", model, output, pool)
    assert list(tmp_path.iterdir()) == []


def test_dev_set_without_examples_is_refused(model, tmp_path, pool):
    data = dataclasses.replace(tiny_tasks.task_data("sst2"), dev={"dev": []})
    with pytest.raises(UsageError, match="no dev examples"):
        tune("sst2", model, tmp_path / "out", pool, data)


def test_label_that_the_head_does_not_know_is_named_before_any_training(model, tmp_path, pool):
    data = tiny_tasks.task_data("sst2")
    spoiled = [*data.train[:-1], dataclasses.replace(data.train[-1], label="9")]
    with pytest.raises(InputError, match="has the label '9', expected 0, 1"):
        tune("sst2", model, tmp_path / "out", pool, dataclasses.replace(data, train=spoiled))


def test_task_defaults_are_the_papers_settings():
    assert task_configuration("squad2").batch_sizes == (48,)
    assert task_configuration("squad2").epochs == (2.0,)
    assert task_configuration("squad1").max_seq_length == 384
    assert task_configuration("swag", {"seeds": [7]}).learning_rates == (2e-5,)
    assert task_configuration("cola").learning_rates == (5e-5, 4e-5, 3e-5, 2e-5)


def test_task_of_ones_own_has_the_settings_of_the_papers_task_of_its_kind():
    assert task_configuration("ner").document_context is False  # as a text is tagged
    for paper in ("squad1", "squad2", "ner", "ner_features"):
        own = dataclasses.replace(get_task(paper), name="own")
        assert task_configuration(own) == task_configuration(paper)
    assert task_configuration(dataclasses.replace(get_task("swag"), name="own")) == task_configuration("cola")


def test_rates_that_frozen_features_do_not_use_are_refused(capsys):
    words = ["finetune", "ner_features", "learning_rates=[1e-3]", "--data", "d", "--model", "m", "--output", "o"]
    assert main(words) == UsageError.exit_code
    assert "learning_rates has no effect on frozen features; give lstm_learning_rates" in capsys.readouterr().err


def test_collapsed_winner_is_published_as_degenerate(model, tuned, tmp_path, pool, recorded):
    data = tiny_tasks.task_data("sst2")
    nearly_one_class = [dataclasses.replace(example, label="0" if n else "1") for n, example in enumerate(data.train)]
    data = dataclasses.replace(data, train=nearly_one_class)
    config = tiny_tasks.configuration(seeds=[1, 2])
    result = finetune(data, model, tmp_path / "out", config, pool=pool, experiment="collapsed")
    assert {example.label for example in data.dev["dev"]} == {"0", "1"}
    assert _labels(tmp_path / "out") == ["0"] * 24
    assert result.results["degenerate"] is True
    assert [run["collapsed"] for run in result.results["initializations"]["pretrained"]["runs"]] == [True, True]
    assert json.loads((tmp_path / "out" / "results.json").read_text())["degenerate"] is True
    assert json.loads((tmp_path / "out" / "task.json").read_text())["degenerate"] is True
    assert load_manifest(tmp_path / "out").counts["collapsed_runs"] == 2
    run = open_client().get_run(result.manifest.provenance["mlflow_run_id"])
    assert run.data.tags["degenerate"] == "true"
    sound = tuned("sst2")
    assert len(set(_labels(sound.path))) == 2
    assert sound.results["degenerate"] is False


def _labels(directory):
    lines = (directory / "predictions" / "dev.jsonl").read_text().splitlines()
    return [json.loads(line)["prediction"] for line in lines]


def test_squad2_files_reproduce_the_reported_scores(model, tmp_path, pool):
    data = tiny_tasks.task_data("squad2")
    result = tune("squad2", model, tmp_path / "out", pool, data, epochs=[2.0])
    folder = tmp_path / "out" / "predictions"
    examples = data.dev["dev"]
    predictions, candidates, odds = (
        json.loads((folder / f"dev{kind}.json").read_text()) for kind in ("", ".nbest", ".null_odds")
    )
    assert predictions.keys() == candidates.keys() == odds.keys() == {e.example_id for e in examples}
    for key, answers in candidates.items():
        assert sum(answer["probability"] for answer in answers) == pytest.approx(1, abs=1e-4)
        assert all(set(answer) == {"text", "probability", "start_logit", "end_logit"} for answer in answers)
        scores = {answer["text"]: answer["start_logit"] + answer["end_logit"] for answer in answers}
        assert list(scores.values()) == sorted(scores.values(), reverse=True)
        null = scores.pop("")
        assert odds[key] == pytest.approx(null - max(scores.values()), abs=1e-5)
    reported = result.metrics["squad2/dev/f1"]["best"]
    assert kind_of("squad2").score(examples, predictions)["f1"] == pytest.approx(reported, abs=1e-5)
    answered = {key: next(a["text"] for a in answers if a["text"]) for key, answers in candidates.items()}
    best = kind_of("squad2").score(
        examples, answered, na_probs=odds, na_threshold=result.results["winner"]["null_threshold"]
    )
    assert best["best_f1"] == pytest.approx(best["f1"], abs=1e-5) == pytest.approx(reported, abs=1e-5)


def test_threshold_is_stored_and_used_by_the_loaded_model(tuned):
    data = tiny_tasks.task_data("squad2")
    directory = tuned("squad2").path
    loaded = load_task_model(directory, "squad2")
    assert isinstance(loaded.description["null_threshold"], float)
    predictor = TaskPredictor([loaded])
    assert predictor.fitted["null_threshold"] == loaded.description["null_threshold"]
    records = [{"question": e.question, "context": e.context} for e in data.dev["dev"]]
    stored = json.loads((directory / "predictions" / "dev.json").read_text())
    assert [answer["answer"] for answer in predictor.answer(records)] == list(stored.values())
