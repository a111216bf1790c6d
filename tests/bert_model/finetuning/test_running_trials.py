"""A running search can be watched, interrupted, resumed within a trial, and extended after it has finished."""

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny_tasks
import torch
from processes import free_port
from safetensors.torch import load_file

from bert_model.finetuning import results, trial
from bert_model.finetuning.display import TrialDisplay
from bert_model.finetuning.finetune import finetune
from bert_model.finetuning.results import SearchLog, replay_search
from bert_model.finetuning.search import Initialization, Setting, Trial
from bert_model.finetuning.task_model import load_task_model
from bert_model.finetuning.trial import TrialOutput, TrialProgress
from bert_model.finetuning.worker_pool import WorkerPool
from bert_model.inference.predict import TaskPredictor
from bert_model.kinds import kind_of
from bert_model.kinds.encoded import num_training_steps
from bert_model.kinds.text import Classification
from bert_model.registry.model_card import write_readme
from bert_model.training.metrics_log import mlflow_run_id
from bert_model.training.mlflow_store import open_client
from bert_pipeline import progress
from bert_pipeline.errors import ArtifactError, TrainingError
from bert_pipeline.manifest import load_manifest
from bert_pipeline.step import STEPS, Step

ROOT = Path(__file__).resolve().parents[3]


class Counted(WorkerPool):
    """A pool of this process that counts its trials."""

    def __init__(self):
        super().__init__(num_workers=0)
        self.trained = []

    def run(self, jobs, on_report=None):
        for job, output in zip(jobs, super().run(jobs, on_report)):
            if isinstance(output, TrialOutput):
                self.trained.append(job.trial.name)
            yield output


def tune(name, model, output, pool=None, data=None, watch=None, experiment="", **overrides):
    data = data or tiny_tasks.task_data(name)
    config = tiny_tasks.configuration(**overrides)
    return finetune(data, model, output, config, pool=pool or Counted(), watch=watch, experiment=experiment)


@pytest.fixture
def eager(monkeypatch):
    """Report every step, evaluate every epoch, and save a checkpoint after every step."""
    monkeypatch.setattr(trial, "REPORT_INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(trial, "EPOCH_EVALUATION_SECONDS", 0.0)
    monkeypatch.setattr(trial, "CHECKPOINT_INTERVAL_SECONDS", 0.0)


@pytest.fixture
def recorded(tmp_path, monkeypatch, empty_store):
    """Log every report to a store of this test."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "mlflow.db").write_bytes(empty_store.read_bytes())
    monkeypatch.setenv("BERT_HOME", str(home))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr("bert_pipeline.progress.LINE_INTERVAL_SECONDS", 0.0)


# --- checkpoints ---


class StopAt:
    """Interrupt a training before its step of this number, once."""

    def __init__(self, monkeypatch, step):
        self.steps, self.stop = 0, step
        self._backward = trial._backward
        monkeypatch.setattr(trial, "_backward", self)

    def __call__(self, *arguments):
        if self.steps == self.stop:
            self.stop = None
            raise KeyboardInterrupt
        self.steps += 1
        return self._backward(*arguments)


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        ("sst2", "bert_adam"),
        ("sst2", "adamw"),
        ("stsb", "bert_adam"),
        ("squad2", "adamw"),
        ("swag", "bert_adam"),
        ("ner", "adamw"),
        ("ner_features", "adamw"),
    ],
)
def test_trial_resumes_from_its_checkpoint_bit_for_bit(name, optimizer, model, tmp_path, monkeypatch, eager):
    settings = {"optimizer": optimizer, "epochs": [2.0]}
    whole = tune(name, model, tmp_path / "whole" / "out", **settings)
    total = whole.results["winner"]["steps"]
    steps = StopAt(monkeypatch, total - 3)  # in the second epoch
    with pytest.raises(KeyboardInterrupt):
        tune(name, model, tmp_path / "out", watch=lambda report: None, **settings)  # evaluates its first epoch
    (kept,) = tmp_path.glob(".trials-out-*")
    (checkpoint,) = kept.glob("*.checkpoint")
    assert sorted(path.suffix for path in checkpoint.iterdir()) == [".json", ".json", ".safetensors"]
    resumed = tune(name, model, tmp_path / "out", **settings)
    assert steps.steps == total
    assert resumed.results == whole.results
    assert resumed.manifest.sha256 == whole.manifest.sha256
    assert not list(kept.glob("*.checkpoint"))


@pytest.fixture
def scripted(monkeypatch):
    """Return a list of the dev scores that the next epochs get."""
    scores, evaluate = [], Classification.evaluate

    def scored(kind, examples, encoded, logits, config, **options):
        evaluation = evaluate(kind, examples, encoded, logits, config, **options)
        given = {"scores": {"accuracy": scores.pop(0)}, "collapsed": False} if scores else {}
        return dataclasses.replace(evaluation, **given)

    monkeypatch.setattr(Classification, "evaluate", scored)
    return scores


@pytest.mark.parametrize(
    ("settings", "kept", "epochs"),
    [
        ({}, 2, 4),
        ({"patience": 1}, 2, 3),
        ({"patience": 2}, 2, 4),
        ({"select": "last"}, None, 4),
        ({"select": "last", "patience": 1}, 3, 3),
    ],
)
def test_best_epoch_is_published_and_patience_ends_a_training(settings, kept, epochs, model, tmp_path, scripted):
    scripted[:] = [10.0, 90.0, 20.0, 30.0] if settings != {"select": "last"} else []
    result = tune("sst2", model, tmp_path / "out", epochs=[4.0], learning_rates=[1e-4], **settings)
    winner, table = result.results["winner"], (result.path / "results.md").read_text(encoding="utf-8")
    steps = 6  # an epoch: 48 examples in batches of 8
    assert winner["steps"] == epochs * steps
    assert ("each training keeps its best epoch on dev" in result.results["search"]["procedure"]) == (
        "select" not in settings
    )
    if kept is None:
        assert "epoch_scores" not in winner
        assert "Published:" not in table
        return
    assert (winner["epoch"], [epoch for epoch, _ in winner["epoch_scores"]]) == (kept, [*range(1, epochs + 1)])
    stopped = f"; stopped after {epochs})" if epochs < 4 else ")"
    assert f"Published: epoch {kept} of 4 (dev scores by epoch: 10.0, 90.0, 20.0" in table
    assert f"{stopped}." in table
    # The weights are those of a training that is as long, with the same rates: of the epoch itself.
    data = tiny_tasks.task_data("sst2")
    loaded = load_task_model(result.path)
    logits = loaded.logits(loaded_encoding(loaded, data))
    dev = result.path / "predictions" / "dev.jsonl"
    predicted = [json.loads(line)["prediction"] for line in dev.read_text(encoding="utf-8").splitlines()]
    assert predicted == [data.task.labels[index] for index in logits.argmax(axis=1)]


def loaded_encoding(loaded, data):
    return kind_of(data.task).encode(data.dev["dev"], loaded.tokenizer, loaded.config)


def test_weights_of_the_best_epoch_are_those_it_had(model, tmp_path, scripted):
    settings = {"epochs": [3.0], "learning_rates": [1e-3], "warmup_share": 0.0}
    scripted[:] = [10.0, 20.0, 5.0]
    best = tune("sst2", model, tmp_path / "best", **settings).path
    scripted[:] = [10.0, 20.0, 30.0]
    last = tune("sst2", model, tmp_path / "last", **settings).path
    one, other = (load_file(path / "model.safetensors") for path in (best, last))
    assert not torch.equal(one["bert.pooler.dense.weight"], other["bert.pooler.dense.weight"])


def test_resumed_training_knows_its_best_epoch(model, tmp_path, monkeypatch, eager, scripted):
    settings = {"epochs": [3.0], "learning_rates": [1e-3]}
    scripted[:] = [10.0, 5.0, 6.0]
    whole = tune("sst2", model, tmp_path / "whole" / "out", **settings)
    assert whole.results["winner"]["epoch"] == 1.0
    scripted[:] = [10.0, 5.0, 6.0]
    StopAt(monkeypatch, 15)  # in the third epoch
    with pytest.raises(KeyboardInterrupt):
        tune("sst2", model, tmp_path / "out", **settings)
    resumed = tune("sst2", model, tmp_path / "out", **settings)
    assert resumed.results["winner"] == whole.results["winner"]
    assert resumed.manifest.files["model.safetensors"] == whole.manifest.files["model.safetensors"]


@pytest.mark.parametrize("name", ["sst2", "stsb", "squad2", "ner"])
def test_training_reads_nothing_from_its_device_until_a_report(name, model, tmp_path, monkeypatch):
    class Captured(Exception):
        pass

    train_model = trial.train_model

    def capture(*arguments, **named):
        raise Captured(arguments)

    monkeypatch.setattr(trial, "train_model", capture)
    with pytest.raises(Captured) as captured:
        tune(name, model, tmp_path / "out", epochs=[1.0], gradient_accumulation=2)
    network, job, train = captured.value.args[0]

    def build_fused(*arguments):  # as on a GPU
        optimizer = build_optimizer(*arguments)
        for group in optimizer.param_groups:
            group["fused"] = True
        return optimizer

    # Tensors of the meta device have no values: one that is read is an error.
    build_optimizer = trial.build_optimizer
    monkeypatch.setattr(trial, "build_optimizer", build_fused)
    monkeypatch.setattr(torch, "autocast", lambda *given, **named: contextlib.nullcontext())  # it refuses the device
    monkeypatch.setattr(trial, "REPORT_INTERVAL_SECONDS", float("inf"))  # a busy machine takes two for a step
    steps = StopAt(monkeypatch, None)
    with pytest.raises(RuntimeError) as read:
        train_model(network.to("meta"), dataclasses.replace(job, checkpoint=None), train)
    assert steps.steps == num_training_steps(train.num_units, job.trial.setting.batch_size, 1.0) > 1
    assert "torch.stack" in str(read.traceback[-1].statement)


def test_damaged_checkpoint_starts_the_trial_over(model, tmp_path, monkeypatch, eager, caplog):
    whole = tune("sst2", model, tmp_path / "whole" / "out", epochs=[1.0])
    steps = StopAt(monkeypatch, 4)
    with pytest.raises(KeyboardInterrupt):
        tune("sst2", model, tmp_path / "out", epochs=[1.0])
    (state,) = tmp_path.glob(".trials-out-*/*.checkpoint/state.safetensors")
    content = bytearray(state.read_bytes())
    content[-9] ^= 1
    state.write_bytes(content)
    assert tune("sst2", model, tmp_path / "out", epochs=[1.0]).manifest.sha256 == whole.manifest.sha256
    assert steps.steps == 4 + 6
    assert "the trial starts over" in caplog.text


def test_full_disk_does_not_end_a_training(model, tmp_path, monkeypatch, eager, caplog):
    whole = tune("sst2", model, tmp_path / "whole" / "out", epochs=[1.0])
    save = trial.save_tensors

    def full(tensors, path):
        if path.name == "state.safetensors":
            raise OSError(28, "No space left on device")
        save(tensors, path)

    monkeypatch.setattr(trial, "save_tensors", full)
    result = tune("sst2", model, tmp_path / "out", epochs=[1.0])
    assert result.manifest.sha256 == whole.manifest.sha256
    assert "step 1 could not be saved" in caplog.text
    assert not list(tmp_path.glob(".trials-out-*/.*partial*"))


# --- watching ---


def test_watched_training_computes_the_same_and_reports_dev_scores_of_every_epoch(
    model, tmp_path, monkeypatch, empty_store
):
    plain = tune("sst2", model, tmp_path / "plain" / "out", epochs=[3.0])
    monkeypatch.setattr(trial, "REPORT_INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(trial, "EPOCH_EVALUATION_SECONDS", 0.0)
    reports = []
    watched = tune("sst2", model, tmp_path / "out", watch=reports.append, epochs=[3.0])
    assert watched.manifest.sha256 == plain.manifest.sha256
    assert [report.step for report in reports] == [*range(1, 19), 18]
    assert [report.step for report in reports if report.scores] == [6, 12]
    assert all(0 <= report.scores["dev"]["accuracy"] <= 100 for report in reports if report.scores)
    assert all(report.loss > 0 and report.steps_per_second > 0 and report.total_steps == 18 for report in reports)


def test_losses_are_in_the_log_and_in_mlflow_while_a_trial_runs(model, tmp_path, recorded, eager):
    seen = []

    def watch(report):
        if report.step == 14 and not seen:
            (log,) = tmp_path.glob(".tracking/out-*/*/metrics.jsonl")
            seen.extend(json.loads(line) for line in log.read_text().splitlines())

    result = tune("sst2", model, tmp_path / "out", watch=watch, experiment="live", epochs=[3.0])
    losses = [line["metrics"]["train/loss"] for line in seen if line["event"] == "progress"]
    assert len(losses) == 13
    assert [line["step"] for line in seen if line["event"] == "evaluation"] == [6, 12]
    client = open_client()
    parent = result.manifest.provenance["mlflow_run_id"]
    experiment = client.get_experiment_by_name("live").experiment_id
    (child,) = client.search_runs([experiment], f"tags.`mlflow.parentRunId` = '{parent}'")
    assert child.info.status == "FINISHED"
    assert child.data.tags["winner"] == "true"
    history = client.get_metric_history(child.info.run_id, "train/loss")
    assert [metric.value for metric in history[:13]] == losses
    assert {"system/cpu_utilization_percentage", "system/system_memory_usage_percentage"} < set(child.data.metrics)
    scores = client.get_metric_history(child.info.run_id, "sst2/dev/accuracy")
    assert [metric.step for metric in scores] == [6, 12, 18]
    artifacts = {artifact.path for artifact in client.list_artifacts(parent)}
    assert artifacts == {"results.json", "results.md", "out.errors.html"}


def test_log_of_a_trial_that_resumes_from_its_checkpoint_goes_on(model, tmp_path, monkeypatch, recorded, eager):
    settings = {"watch": lambda report: None, "experiment": "resumed", "epochs": [3.0]}
    StopAt(monkeypatch, 14)
    with pytest.raises(KeyboardInterrupt):
        tune("sst2", model, tmp_path / "out", **settings)
    result = tune("sst2", model, tmp_path / "out", **settings)
    client = open_client()
    experiment = client.get_experiment_by_name("resumed").experiment_id
    runs = {run.info.run_id: run for run in client.search_runs([experiment])}
    parent = result.manifest.provenance["mlflow_run_id"]
    (child,) = runs.keys() - {parent}
    assert [runs[name].info.status for name in (parent, child)] == ["FINISHED", "FINISHED"]
    steps = [metric.step for metric in client.get_metric_history(child, "train/loss")]
    assert min(steps) == 1
    assert max(steps) > 14


@pytest.mark.parametrize("is_watched", [False, True])
def test_search_that_ended_during_an_outage_is_copied_with_its_trials(
    is_watched, model, tmp_path, monkeypatch, empty_store, eager
):
    monkeypatch.setenv("BERT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setattr("bert_pipeline.progress.LINE_INTERVAL_SECONDS", 0.0 if is_watched else 1e9)
    manifest = tune("sst2", model, tmp_path / "out", experiment="live", seeds=[1, 2]).manifest
    assert "mlflow_run_id" not in manifest.provenance or manifest.provenance["mlflow_run_id"] is None
    assert not replay_search(manifest)

    shutil.copy(empty_store, tmp_path / "mlflow.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    for _ in range(2):
        assert replay_search(load_manifest(tmp_path / "out"))
    client = open_client()
    runs = client.search_runs([client.get_experiment_by_name("live").experiment_id])
    (parent,) = (run for run in runs if run.data.tags["kind"] == "finetuning")
    assert mlflow_run_id(manifest) == parent.info.run_id
    trials = [run for run in runs if run.data.tags["kind"] == "trial"]
    assert {run.data.tags["mlflow.parentRunId"] for run in trials} == {parent.info.run_id}
    assert sorted(run.data.params["seed"] for run in trials) == ["1", "2"]
    assert sorted(run.data.tags["winner"] for run in trials) == ["false", "true"]
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert all("sst2/dev/accuracy" in run.data.metrics and "train/loss" in run.data.metrics for run in trials)
    assert {artifact.path for artifact in client.list_artifacts(parent.info.run_id)} >= {"results.json", "results.md"}


REPORT = TrialProgress(
    trial=Trial(Initialization("pretrained", "pretrained"), Setting(5e-5, 32, 3.0), 1),
    step=120,
    total_steps=400,
    loss=0.5123,
    num_steps=10,
    learning_rate=4e-5,
    steps_per_second=2.0,
    tokens_per_second=1000.0,
)


def test_plain_lines_have_step_loss_rate_and_time_left_every_ten_seconds(monkeypatch, capsys):
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with TrialDisplay() as shown:
        for second in range(25):
            now = float(second)
            shown.running(dataclasses.replace(REPORT, step=120 + second))
        shown.running(dataclasses.replace(REPORT, scores={"dev": {"f1": 83.14}}))
        shown.running(dataclasses.replace(REPORT, step=400))
    name = "pretrained lr 5e-05 batch 32 epochs 3 seed 1"
    assert capsys.readouterr().err.splitlines() == [
        f"{name}: 130 of 400 steps, loss 0.512, 2.0 steps/s, 2 min left",
        f"{name}: 140 of 400 steps, loss 0.512, 2.0 steps/s, 2 min left",
        f"{name}: 120 of 400 steps, loss 0.512, 2.0 steps/s, 2 min left, dev f1 83.1",
    ]


def test_terminal_has_a_bar_for_each_running_trial(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    other = dataclasses.replace(REPORT, trial=dataclasses.replace(REPORT.trial, seed=2))
    with TrialDisplay() as shown:
        for report in (REPORT, other, dataclasses.replace(REPORT, step=200)):
            shown.running(report)
        shown.finished(1, 2, "one line")
        assert len(shown._bars) == 2
        shown.running(dataclasses.replace(REPORT, step=400))
        assert ["seed 2" in name for name in shown._bars] == [True]
    text = capsys.readouterr().err
    assert "seed 1:  30%" in text
    assert "120/400" in text
    assert "loss 0.512" in text
    assert "1/2  one line" in text


def test_number_of_threads_is_that_of_the_cores_recorded_and_kept_by_a_further_search(model, tmp_path, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(2))
    settings = {"threads": 0, "epochs": [1.0]}
    assert tune("sst2", model, tmp_path / "out", **settings).results["search"]["threads"] == 2
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(1))
    further = Counted()
    result = tune("sst2", model, tmp_path / "out", further, seeds=[1, 2], **settings)
    assert further.trained == ["pretrained-0.002-8-1-2"]
    assert result.results["search"]["threads"] == result.manifest.configuration["threads"] == 2
    write_readme(result.path)
    assert "\nthreads: 2\n" in (result.path / "README.md").read_text(encoding="utf-8")
    named = tune("sst2", model, tmp_path / "named", seeds=[1, 2], **settings | {"threads": 2})
    assert named.manifest.sha256 == result.manifest.sha256
    other = Counted()
    tune("sst2", model, tmp_path / "out", other, **settings | {"threads": 1})
    assert len(other.trained) == 1  # sums of one thread are others


# --- interruption ---


class Endless:
    """A job that reports and never ends."""

    def run(self, *, device, num_threads, report):
        while True:
            report(os.getpid())
            time.sleep(0.01)


class Counting:
    """A job that reports and ends."""

    def run(self, *, device, num_threads, report):
        for number in range(50):
            report(number)
            time.sleep(0.01)
        return 50


def is_alive(process_id):
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


def test_reports_of_a_worker_reach_the_parent_in_order():
    reports = []
    with WorkerPool(num_workers=1) as pool:
        list(pool.run([Counting()], reports.append))
    assert len(reports) > 10
    assert reports == list(range(len(reports)))


def test_interrupted_pool_ends_its_workers_in_the_middle_of_their_jobs():
    workers = set()

    def interrupt(process_id):
        workers.add(process_id)
        if len(workers) == 2:
            raise KeyboardInterrupt

    with WorkerPool(num_workers=2) as pool:
        with pytest.raises(KeyboardInterrupt):
            list(pool.run([Endless(), Endless()], interrupt))
        assert not any(map(is_alive, workers))
        with pytest.raises(AttributeError):  # an error ends the other jobs too
            list(pool.run([None, Endless()]))
        assert list(pool.run([Counting()])) == [50]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_to_the_parent_alone_ends_parent_and_workers(number, model, tmp_path, empty_store):
    folder = tmp_path / "SST-2"
    folder.mkdir()
    rows = [f"{example.text_a}\t{example.label}" for example in tiny_tasks.task_data("sst2").train]
    for name in ("train.tsv", "dev.tsv"):
        (folder / name).write_text("\n".join(["sentence\tlabel", *rows]) + "\n", encoding="utf-8")
    words = f"finetune sst2 --data {tmp_path} --model {model} --output {tmp_path}/out --workers 2"
    settings = "epochs=[1e6] seeds=[1,2] learning_rates=[1e-3] max_seq_length=48"
    program = (
        "import signal, sys; from bert_model import cli; from bert_pipeline import progress;"
        "signal.signal(signal.SIGINT, signal.SIG_IGN);"  # as a shell starts a background job
        "progress.LINE_INTERVAL_SECONDS = 0.1; sys.exit(cli.main())"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db"}
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    process = subprocess.Popen(
        [sys.executable, "-c", program, *words.split(), *settings.split()],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        assert any("steps/s" in line for line in process.stderr)  # a worker is training
        workers = [int(p.name) for p in Path("/proc").glob("[0-9]*") if is_child(p, process.pid)]
        os.kill(process.pid, number)
        code = process.wait(120)
    finally:
        process.kill()
    assert code == 128 + number
    assert len(workers) >= 2
    deadline = time.monotonic() + 60
    while any(map(is_alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_alive, workers))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("error", "status"), [(KeyboardInterrupt, "KILLED"), (SystemExit, "KILLED"), (OSError, "FAILED")]
)
def test_interruption_waits_five_seconds_for_all_logs_together(error, status, tmp_path, monkeypatch):
    now, closed = 0.0, []

    class Unreachable:
        """A log whose server does not answer."""

        def close(self, status, timeout_seconds):
            nonlocal now
            now += timeout_seconds
            closed.append(status)

    monkeypatch.setattr(results.time, "monotonic", lambda: now)
    log = SearchLog(tmp_path / "out", experiment="", task="sst2", identity="0" * 64, tags={}, params={})
    log.tracker = Unreachable()
    for seed in (1, 2, 3):
        log._running[seed] = results._RunningTrial()
        log._running[seed].tracker = Unreachable()
    log.fail(error)
    assert closed == [status] * 4
    assert now == (5.0 if status == "KILLED" else results.CLOSE_TIMEOUT_SECONDS)


def is_child(process, session):
    """Tell whether a process belongs to the session that a program started."""
    try:
        fields = (process / "stat").read_text().rpartition(") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return int(fields[3]) == session and int(process.name) != session


# --- extension ---


@pytest.mark.parametrize("name", ["sst2", "squad2", "ner_features"])
@pytest.mark.parametrize("keep", ["best", "all"])
def test_further_seeds_and_rates_train_only_what_is_new(name, keep, model, tmp_path):
    def settings(seeds, rates):
        return {"learning_rates": rates, "lstm_learning_rates": rates, "seeds": seeds, "epochs": [1.0], "keep": keep}

    tune(name, model, tmp_path / "out", **settings([1, 2], [2e-3]))
    for seeds, rates, new in (([1, 2, 3], [2e-3], 1), ([1, 2, 3], [2e-3, 1e-9], 3), ([3, 2], [2e-3], 0)):
        pool = Counted()
        result = tune(name, model, tmp_path / "out", pool, **settings(seeds, rates))
        assert len(set(pool.trained)) == len(pool.trained)
        weights_lost = len(pool.trained) - new  # only the published weights are kept
        assert 0 <= weights_lost <= 1
        if keep == "all" and seeds != [3, 2]:
            assert weights_lost == 0
        whole = tune(name, model, tmp_path / "whole" / str(new) / "out", **settings(seeds, rates))
        assert result.manifest.sha256 == whole.manifest.sha256


def test_trials_of_another_version_are_not_reused(model, tmp_path, monkeypatch):
    tune("sst2", model, tmp_path / "out", epochs=[1.0])
    monkeypatch.setitem(STEPS, "finetuned_model", Step(version=999))
    pool = Counted()
    tune("sst2", model, tmp_path / "out", pool, epochs=[1.0])
    assert len(pool.trained) == 1


def test_trials_of_other_kernels_are_not_reused(model, tmp_path, monkeypatch):
    for width, trained in ((None, 1), (768, 1), (768, 0)):
        monkeypatch.setattr("bert_model.finetuning.finetune.onednn_width", lambda width=width: width)
        pool = Counted()
        tune("sst2", model, tmp_path / "out", pool, epochs=[1.0])
        assert len(pool.trained) == trained


def test_removed_log_leaves_the_finished_trials(model, tmp_path, recorded):
    class Removing(Counted):
        def run(self, jobs, on_report=None):
            for output in super().run(jobs, on_report):
                yield output
                # In one step: the thread that copies it to MLflow may write there meanwhile.
                (tmp_path / ".tracking").rename(tmp_path / "removed")

    with pytest.raises(TrainingError, match="metrics.jsonl"):
        tune("sst2", model, tmp_path / "out", Removing(), experiment="test", seeds=[1, 2], epochs=[1.0])
    pool = Counted()
    tune("sst2", model, tmp_path / "out", pool, seeds=[1, 2], epochs=[1.0])
    assert len(pool.trained) < 2


def test_error_of_an_extension_leaves_the_earlier_trials(model, tmp_path):
    still = {"max_gradient_norm": 0.0, "epochs": [1.0]}
    tune("sst2", model, tmp_path / "out", **still)
    with pytest.raises(Exception, match="stopped being finite"):
        tune("sst2", model, tmp_path / "out", learning_rates=[1e30], **still)
    pool = Counted()
    tune("sst2", model, tmp_path / "out", pool, **still)
    assert pool.trained == []


def test_refused_publication_leaves_the_new_trials(model, tmp_path):
    tune("sst2", model, tmp_path / "out", epochs=[1.0])
    answers = tmp_path / "out" / "answers.jsonl"

    class WrittenTo(Counted):
        def run(self, jobs, on_report=None):
            answers.touch()
            yield from super().run(jobs, on_report)

    with pytest.raises(ArtifactError, match="another run has published or written here"):
        tune("sst2", model, tmp_path / "out", WrittenTo(), epochs=[1.0], seeds=[1, 2])
    answers.unlink()
    pool = Counted()
    tune("sst2", model, tmp_path / "out", pool, epochs=[1.0], seeds=[1, 2])
    assert len(pool.trained) <= 1  # the weights to be published, if they are of the earlier trial


def test_batches_are_split_for_gradient_accumulation(model, tmp_path, monkeypatch):
    sizes = []
    forward = trial.forward

    def counted(network, tensors):
        sizes.append(len(tensors["input_ids"]) if network.training else 0)
        return forward(network, tensors)

    monkeypatch.setattr(trial, "forward", counted)
    tune("sst2", model, tmp_path / "out", epochs=[1.0], gradient_accumulation=4)
    assert max(sizes) == 8 // 4
    assert sum(sizes) == len(tiny_tasks.task_data("sst2").train)


# --- keep=all ---


def test_every_seed_is_kept_for_ensembles(model, tmp_path):
    seeds = {"seeds": [1, 2, 3], "epochs": [1.0], "learning_rates": [2e-3, 1e-9]}
    data = tiny_tasks.task_data("sst2")
    best = tune("sst2", model, tmp_path / "best", **seeds)
    result = tune("sst2", model, tmp_path / "all", keep="all", **seeds)
    assert result.metrics == best.metrics
    assert best.manifest.configuration["keep"] == "best"
    assert not (tmp_path / "best" / "seeds").exists()
    load_manifest(tmp_path / "all", verify="sha256")
    directories = [tmp_path / "all" / "seeds" / str(seed) for seed in (1, 2, 3)]
    assert len({(directory / "model.safetensors").read_bytes() for directory in directories}) == 3
    records = [{"text": example.text_a} for example in data.dev["dev"]]
    for directory, score in zip(directories, result.metrics["sst2/dev/accuracy"]["values"]):
        loaded = load_task_model(directory)
        answers = [answer["label"] for answer in TaskPredictor([loaded]).answer(records)]
        correct = [answer == example.label for answer, example in zip(answers, data.dev["dev"])]
        assert 100.0 * sum(correct) / len(correct) == pytest.approx(score, abs=1e-4)
        assert loaded.description["seed"] == int(directory.name)
    winner = directories[result.results["winner"]["seed"] - 1]
    stored, published = load_file(winner / "model.safetensors"), load_file(tmp_path / "all" / "model.safetensors")
    assert all((stored[name] == published[name]).all() for name in published)
    assert len(TaskPredictor([load_task_model(directory) for directory in directories]).answer(records)) == len(records)


def test_results_of_a_search_with_a_diverged_trial_are_json(model, tmp_path, recorded):
    settings = {"learning_rates": [2e-3, 1e30], "max_gradient_norm": 0.0, "epochs": [1.0]}
    tune("sst2", model, tmp_path / "out", experiment="test", **settings)

    def refuse(constant):
        raise AssertionError(constant)

    text = (tmp_path / "out" / "results.json").read_text()
    diverged = [
        run["diverged"] for run in json.loads(text, parse_constant=refuse)["initializations"]["pretrained"]["runs"]
    ]
    assert sorted(diverged) == [False, True]
