"""Pre-training: no sample lost or repeated, bit-exact resume, and errors that name the last checkpoint."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from instances_fixture import make_tokenizer, write_instances
from safetensors.torch import load_file
from small_training import (
    NO_DROPOUT,
    assert_same_training,
    configuration,
    read_events,
    small_model,
    stop_after,
    train,
    train_events,
)
from two_ranks import run_pretraining

from bert_model.model.bert import BertForPreTraining
from bert_model.model.cpu_kernels import onednn_width
from bert_model.pretraining.__main__ import EXIT_PREEMPTED, main
from bert_model.pretraining.config import PretrainingConfig
from bert_model.pretraining.evaluation import measure_held_out
from bert_model.pretraining.run_directory import LOCK_NAME, training_id
from bert_pipeline import signals
from bert_pipeline.atomic import locked
from bert_pipeline.configuration import from_mapping
from bert_pipeline.errors import ArtifactError, ConfigurationError, TrainingError, UsageError
from bert_pipeline.manifest import load_manifest


@pytest.mark.parametrize(
    ("rank", "step"),
    [pytest.param(1, 7, id="in the first phase, second epoch"), pytest.param(0, 10, id="second phase")],
)
def test_killed_run_resumes_bit_for_bit(data, undisturbed, tmp_path, rank, step):
    output = tmp_path / "training"
    codes, reports, _ = run_pretraining(configuration(data), output, fail=(rank, step, "kill"))
    assert codes[rank] == -signal.SIGKILL
    assert codes[1 - rank] == 1
    assert f"rank {1 - rank} lost the other ranks at step " in reports[1 - rank]["error"]
    assert "checkpoints/step-" in reports[1 - rank]["error"]
    assert not (output / "model").exists()

    codes, reports, _ = run_pretraining(configuration(data), output, resume=True)
    assert codes == [0, 0], reports
    assert_same_training(output, undisturbed)
    assert load_manifest(output / "model").sha256 == load_manifest(undisturbed / "model").sha256


def test_terminated_rank_saves_checkpoint_and_resumes_bit_for_bit(data, undisturbed, tmp_path):
    output = tmp_path / "training"
    codes, reports, _ = run_pretraining(configuration(data), output, fail=(1, 4, "terminate"))
    assert codes == [0, 0]
    assert reports == [{"status": "preempted", "step": 4}] * 2
    assert (output / "checkpoints" / "step-00000004" / "manifest.json").is_file()
    codes, reports, _ = run_pretraining(configuration(data), output, resume=True)
    assert reports == [{"status": "finished", "step": 14}] * 2
    assert load_manifest(output / "model").sha256 == load_manifest(undisturbed / "model").sha256


def test_damaged_newest_checkpoints_are_skipped_on_resume(data, undisturbed, tmp_path):
    output = tmp_path / "training"
    run_pretraining(configuration(data), output, fail=(0, 13, "terminate"))
    checkpoints = sorted((output / "checkpoints").glob("step-*"))
    assert [path.name for path in checkpoints] == ["step-00000009", "step-00000012", "step-00000013"]
    weights = checkpoints[2] / "model.safetensors"
    flipped = bytearray(weights.read_bytes())
    flipped[len(flipped) // 2] ^= 1
    weights.write_bytes(flipped)
    (checkpoints[1] / "training_state" / "optimizer.safetensors").unlink()
    codes, _, warnings = run_pretraining(configuration(data), output, resume=True)
    assert codes == [0, 0]
    assert "checkpoint of step 13 is skipped" in warnings
    assert "checkpoint of step 12 is skipped" in warnings
    assert [event["step"] for event in read_events(output) if event["event"] == "resume"] == [9]
    assert load_manifest(output / "model").sha256 == load_manifest(undisturbed / "model").sha256


def damage(checkpoint):
    (checkpoint / "model.safetensors").write_bytes(b"")


def test_what_is_saved_after_a_damaged_checkpoint_stays(data, tmp_path):
    output, config = tmp_path / "training", single(data, keep_last=1)
    train(config, output, after_step=stop_after(9))
    folder = output / "checkpoints"
    assert [path.name for path in folder.glob("step-*")] == ["step-00000009"]
    shutil.copytree(folder / "step-00000009", folder / "step-00000013")
    damage(folder / "step-00000013")
    train(config, output, resume=True, after_step=stop_after(11))
    assert [path.name for path in folder.glob("step-*")] == ["step-00000011"]


def test_run_without_an_intact_checkpoint_does_not_begin_anew(data, tmp_path):
    output = tmp_path / "training"
    train(configuration(data), output, after_step=stop_after(4))
    for spoil in (damage, lambda checkpoint: (checkpoint / "manifest.json").unlink()):
        for checkpoint in (output / "checkpoints").glob("step-*"):
            spoil(checkpoint)
        for _ in range(2):
            with pytest.raises(ArtifactError, match="none of its 2 checkpoints is intact"):
                train(configuration(data), output, resume=True)


def test_checkpoint_has_the_metrics_of_its_own_weights(data, tmp_path):
    output = tmp_path / "training"
    result = train(configuration(data), output, after_step=stop_after(4))
    assert result.metrics == {}  # those of step 3 are of other weights
    counts = {step: load_manifest(output / "checkpoints" / f"step-0000000{step}").counts for step in (3, 4)}
    assert {step: "held_out/mlm_loss" in found for step, found in counts.items()} == {3: True, 4: False}


def test_resume_with_another_evaluation_is_described_by_its_directory(data, tmp_path):
    output = tmp_path / "training"
    train(configuration(data, evaluation_max_instances=10), output, after_step=stop_after(4))
    train(configuration(data, evaluation_max_instances=5), output, resume=True)
    recorded = load_manifest(output / "model").counts["held_out/mlm_loss"]
    assert measure_held_out(output / "model")["held_out/mlm_loss"] == pytest.approx(recorded, abs=1e-4)


def test_resume_with_a_longer_first_phase_says_that_phases_have_moved(data, tmp_path, caplog):
    output, changed = tmp_path / "training", configuration(data)
    changed["phases"][1]["warmup_steps"] = 0
    train(changed, output, after_step=stop_after(10))
    changed["phases"][0]["steps"] = 12
    result = train(changed, output, resume=True, allow_changes=True)
    assert (result.status, result.step) == ("finished", 18)
    assert "step 10 was in phase 1 and is in another one now" in caplog.text


def test_resume_with_another_world_size_continues_at_the_same_sample(data, undisturbed, tmp_path):
    output = tmp_path / "training"
    run_pretraining(configuration(data), output, fail=(1, 4, "terminate"))
    codes, reports, warnings = run_pretraining(configuration(data), output, world_size=1, resume=True)
    assert codes == [0], reports
    assert "had 2 ranks, now it has 1" in warnings
    # Only dropout and the order of sums differ: losses stay close to those of two ranks, step by step.
    ours, theirs = train_events(output), train_events(undisturbed)
    assert ours.keys() == theirs.keys()
    for step, metrics in theirs.items():
        assert ours[step]["train/loss"] == pytest.approx(metrics["train/loss"], rel=0.05)


def test_loss_without_dropout_is_independent_of_world_size(data, tmp_path):
    plain = configuration(data, model=small_model(**NO_DROPOUT))
    for world_size, name in ((1, "one"), (2, "two")):
        codes, reports, _ = run_pretraining(plain, tmp_path / name, world_size=world_size)
        assert set(codes) == {0}, reports
    one, two = train_events(tmp_path / "one"), train_events(tmp_path / "two")
    for step, metrics in one.items():
        assert two[step]["train/loss"] == pytest.approx(metrics["train/loss"], rel=1e-4)


def test_batch_not_divisible_by_world_size_is_refused(data, tmp_path):
    odd = configuration(data)
    odd["phases"][1]["global_batch_size"] = 9
    codes, reports, _ = run_pretraining(odd, tmp_path / "training")
    assert codes == [2, 2]
    assert "phases.1.global_batch_size: 9 instances cannot be shared equally by 2 ranks" in reports[0]["error"]
    assert reports[1]["type"] == "OtherRankError"
    assert not (tmp_path / "training").exists()


def single(data, **changes):
    return from_mapping(PretrainingConfig, configuration(data, **changes))


def test_stop_right_after_a_checkpoint_does_not_write_it_again(data, tmp_path):
    config = from_mapping(PretrainingConfig, configuration(data))
    result = train(config, tmp_path / "training", after_step=stop_after(3))
    assert (result.status, result.step) == ("preempted", 3)
    assert [event["step"] for event in read_events(tmp_path / "training") if event["event"] == "checkpoint"] == [3]


@pytest.mark.parametrize("name", ["processor", "onednn_width"])
def test_resume_on_another_processor_or_kernel_warns(data, tmp_path, monkeypatch, caplog, name):
    train(configuration(data), tmp_path / "training", after_step=stop_after(5))
    monkeypatch.setattr(f"bert_model.pretraining.trainer.{name}", lambda: "Another (AVX2)")
    result = train(configuration(data), tmp_path / "training", resume=True)
    assert result.status == "finished"
    assert caplog.text.count("Another (AVX2)") == 1
    before = {"processor": "runs on", "onednn_width": f"from width {onednn_width()} on, now from width"}
    assert f"{before[name]} Another (AVX2)" in caplog.text


def test_every_step_logs_losses_rates_and_utilization(undisturbed):
    events = read_events(undisturbed)
    assert events[0]["event"] == "start"
    assert events[0]["matrix_product_rate"] > 1e9
    assert events[0]["matrix_product_rate_kind"] == "measured"
    steps = [event for event in events if event["event"] == "train"]
    assert [event["step"] for event in steps] == list(range(1, 15))
    assert all(event["time"] > 1.7e9 for event in steps)
    named = {"loss", "mlm_loss", "nsp_loss", "learning_rate", "gradient_norm", "tokens_per_second", "tokens_seen"}
    named |= {"model_flops_utilization", "data_wait_share", "memory_bytes"}
    load = {"system/cpu_utilization_percentage", "system/system_memory_usage_percentage"}
    assert {f"train/{name}" for name in named} | load == set(steps[0]["metrics"])
    assert all(0 <= event["metrics"][name] <= 100 for event in steps for name in load)
    assert all(0 < event["metrics"]["train/model_flops_utilization"] < 1 for event in steps)
    evaluated = next(event["metrics"] for event in events if event["event"] == "evaluation")
    named = {"mlm_loss", "mlm_accuracy", "perplexity", "nsp_loss", "nsp_accuracy", "nsp_majority", "instances"}
    assert {f"held_out/{name}" for name in named} == set(evaluated)


def test_training_without_held_out_instances_logs_no_empty_evaluation(tmp_path, caplog):
    caplog.set_level("INFO")
    write_instances(tmp_path / "data", max_seq_length=16, shards=(48,), held_out=0, rows_per_write=16)
    values = configuration({"short": str(tmp_path / "data"), "long": ""}, evaluation_interval_steps=1)
    values["phases"] = [values["phases"][0] | {"steps": 2, "warmup_steps": 0}]
    train(values, tmp_path / "training")
    assert [message for message in caplog.messages if message.endswith(": ")] == []
    events = (tmp_path / "training" / "metrics.jsonl").read_text().splitlines()
    assert {json.loads(line)["event"] for line in events}.isdisjoint({"evaluation"})


@pytest.mark.parametrize("upload", [True, False])
def test_upload_checkpoints_is_passed_to_the_tracker(data, tmp_path, upload):
    values = configuration(data, upload_checkpoints=upload)
    values["phases"] = [values["phases"][0] | {"steps": 1, "warmup_steps": 0}]
    train(values, tmp_path / "training")
    assert json.loads((tmp_path / "training" / "tracking.json").read_text())["upload_checkpoints"] is upload


def test_finished_run_is_left_unchanged(data, undisturbed, caplog):
    before = {path: path.stat().st_mtime_ns for path in undisturbed.rglob("*") if path.is_file()}
    caplog.set_level("INFO")
    result = train(configuration(data), undisturbed, resume=True)
    assert result.status == "already_finished"
    assert result.step == 14
    assert result.metrics["held_out/instances"] == 10
    assert "nothing is left to do" in caplog.text
    after = {path: path.stat().st_mtime_ns for path in undisturbed.rglob("*") if path.is_file()}
    changed = {path.name for path in after if before.get(path) != after[path]}
    assert changed <= {".lock"}


def test_damaged_model_is_published_again_from_the_last_checkpoint(data, undisturbed, tmp_path):
    output = tmp_path / "training"
    shutil.copytree(undisturbed, output)
    weights = output / "model" / "model.safetensors"
    flipped = bytearray(weights.read_bytes())  # the size is unchanged
    flipped[len(flipped) // 2] ^= 1
    weights.write_bytes(flipped)
    assert train(configuration(data), output, resume=True).status == "finished"
    assert load_manifest(output / "model", verify="sha256").sha256 == load_manifest(undisturbed / "model").sha256


def test_second_run_in_a_directory_requires_resume(data, undisturbed):
    with pytest.raises(UsageError, match="add --resume"):
        train(configuration(data), undisturbed)


def test_resume_with_changed_configuration_lists_the_keys(data, undisturbed):
    changed = single(data, seed=1, micro_batch_size=4)
    with pytest.raises(ConfigurationError) as caught:
        train(changed, undisturbed, resume=True)
    assert "configuration.micro_batch_size: was 3, is 4" in str(caught.value)
    assert "configuration.seed: was 12345, is 1" in str(caught.value)


def test_resume_with_another_batch_size_says_which_samples_are_skipped(data, tmp_path, caplog):
    train(configuration(data), tmp_path / "training", after_step=stop_after(3))
    changed = configuration(data)
    changed["phases"][0]["global_batch_size"] = 24
    config = from_mapping(PretrainingConfig, changed)
    options: dict[str, Any] = {"resume": True, "after_step": stop_after(4)}
    train(config, tmp_path / "training", allow_changes=True, **options)
    assert "read the samples before 48, now its batch sizes place step 3 at sample 72: those between are skipped" in (
        caplog.text
    )
    caplog.clear()
    train(config, tmp_path / "training", **options)
    assert "samples" not in caplog.text


def test_changes_that_are_refused_do_not_replace_the_configuration(data, tmp_path):
    output = tmp_path / "training"
    train(configuration(data), output, after_step=stop_after(4))
    stored = (output / "configuration.json").read_text()
    options: dict[str, Any] = {"resume": True, "after_step": stop_after(5)}
    for overrides, error, text in (
        ({"hidden_size": 64}, ArtifactError, "does not fit the model at bert"),
        ({"max_position_embeddings": 16}, ConfigurationError, "max_seq_length 32, but the model has only 16 positions"),
    ):
        with pytest.raises(error, match=text):
            train(configuration(data, model=small_model(**overrides)), output, allow_changes=True, **options)
        assert (output / "configuration.json").read_text() == stored
    assert train(configuration(data), output, **options).step == 5
    changed = configuration(data, seed=1)  # what is accepted holds for the next resume
    assert train(changed, output, allow_changes=True, **options | {"after_step": stop_after(6)}).step == 6
    assert train(changed, output, **options | {"after_step": stop_after(7)}).step == 7


def test_resume_with_changed_data_names_the_hashes(data, undisturbed, tmp_path):
    other = write_instances(tmp_path / "other", max_seq_length=32, shards=(40,), held_out=10, rows_per_write=16, seed=9)
    changed = configuration(data)
    changed["phases"][1]["instances"] = str(tmp_path / "other")
    with pytest.raises(ConfigurationError, match=f"inputs.instances_1.content_sha256: was .*, is '{other.sha256}'"):
        train(changed, undisturbed, resume=True)


def test_training_id_ignores_monitoring_keys(data):
    manifests = [load_manifest(path) for path in data.values()]
    name = training_id(single(data), manifests)
    assert name == training_id(single(data, checkpoint_interval_steps=7, keep_last=1), manifests)
    assert name != training_id(single(data, seed=1), manifests)
    assert name != training_id(single(data), manifests[::-1])


def test_locked_run_directory_is_refused(data, tmp_path):
    with locked(tmp_path / "training" / LOCK_NAME), pytest.raises(TrainingError, match=f"process {os.getpid()}"):
        train(configuration(data), tmp_path / "training")


def test_directory_with_other_files_is_refused(data, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ArtifactError, match=r"notes\.txt"):
        train(configuration(data), tmp_path)


@pytest.mark.parametrize("place", ["file", "file/below", "link", "link/below", "/proc/training"])
def test_output_that_cannot_be_a_directory_is_one_sentence(data, tmp_path, capsys, place):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "missing")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(configuration(data)))
    output = tmp_path / place
    assert main(["--config", str(tmp_path / "config.yaml"), "--output", str(output), "--experiment", ""]) == 1
    found = capsys.readouterr().err.strip()
    assert found.startswith(f"error: {output}: cannot be written: ")
    assert found.endswith("; give a path in a directory that can be written")
    assert len(found.splitlines()) == 1
    if place.startswith("link"):
        assert f"symbolic link to {tmp_path / 'missing'}, which is not a directory" in found
    assert not (tmp_path / "missing").exists()


def test_unusable_output_ends_every_rank(data, tmp_path):
    (tmp_path / "training").write_text("")
    codes, reports, _ = run_pretraining(configuration(data), tmp_path / "training")
    assert codes == [1, 1]
    assert [report["type"] for report in reports] == ["ArtifactError", "OtherRankError"]


@pytest.mark.parametrize("interval", ["log_interval_steps", "checkpoint_interval_steps"])
def test_removed_output_ends_the_run_at_the_next_write(data, tmp_path, interval):
    output = tmp_path / "training"
    often = {"log_interval_steps": 1000, "checkpoint_interval_steps": 1000} | {interval: 2}
    seen: list[int] = []

    def after_step(step):
        seen.append(step)
        if step == 3:
            # A checkpoint that is being written removes its own draft meanwhile.
            while output.exists():
                shutil.rmtree(output, ignore_errors=True)

    with pytest.raises(TrainingError, match=f"^{output}.*: was removed or moved while the training was writing"):
        train(configuration(data, **often), output, after_step=after_step)
    assert seen[-1] == 4 if interval == "log_interval_steps" else seen[-1] < 8
    assert not output.exists()


def test_non_finite_loss_stops_the_run_and_its_weights_are_not_saved(data, tmp_path, monkeypatch):
    steps = iter(range(1000))
    original = BertForPreTraining.loss_sums

    def poisoned(*arguments, **named):
        masked_lm, next_sentence = original(*arguments, **named)
        # 16 instances in micro-batches of 3 make 6 calls a step: the 26th falls into the update after step 4
        return (masked_lm * float("nan") if next(steps) == 25 else masked_lm), next_sentence

    monkeypatch.setattr(BertForPreTraining, "loss_sums", poisoned)
    config = single(data, checkpoint_interval_steps=4, evaluation_max_instances=1)
    monkeypatch.setattr("bert_model.pretraining.trainer.evaluate", lambda *_, **__: {})
    with pytest.raises(TrainingError, match=r"step 4: .*not finite.*samples 64 to 79.*step-00000004"):
        train(config, tmp_path / "training")
    weights = load_file(tmp_path / "training" / "checkpoints" / "step-00000004" / "model.safetensors")
    assert all(torch.isfinite(tensor).all() for tensor in weights.values())
    end = read_events(tmp_path / "training")[-1]
    assert (end["event"], end["status"]) == ("end", "failed")


@pytest.mark.parametrize(
    ("error", "raised", "text"),
    [
        (KeyError("a defect"), KeyError, "KeyError: 'a defect'"),
        (
            RuntimeError("InvalidCxxCompiler: No working C++ compiler found in torch._inductor.config.cpp.cxx\n"),
            TrainingError,
            "found in torch._inductor.config.cpp.cxx); install g++, or give compile=false; the last checkpoint is ",
        ),
        (
            torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate"),
            TrainingError,
            "the GPU has too little memory (OutOfMemoryError: CUDA out of memory.); give a smaller micro_batch_size, "
            "or activation_checkpointing=true; the last checkpoint is ",
        ),
    ],
)
def test_every_failure_is_the_last_line_of_the_log(data, tmp_path, error, raised, text):
    def fail(step):
        if step == 5:
            raise error

    with pytest.raises(raised):
        train(configuration(data, checkpoint_interval_steps=4), tmp_path / "training", after_step=fail)
    end = read_events(tmp_path / "training")[-1]
    assert (end["event"], end["step"], end["status"]) == ("end", 4, "failed")  # in the update that followed step 4
    assert text in end["error"]


@pytest.mark.parametrize("file_format", ["parquet", "tfrecord"])
def test_static_masks_train_from_both_formats(tmp_path, file_format):
    write_instances(tmp_path / "static", max_seq_length=16, static_masks=True, file_format=file_format)
    config = single({"short": str(tmp_path / "static"), "long": ""})
    phase = from_mapping(type(config.phases[0]), {**vars(config.phases[0]), "steps": 2, "warmup_steps": 0})
    config = from_mapping(PretrainingConfig, {**vars(config), "phases": [phase]})
    result = train(config, tmp_path / "training")
    assert result.status == "finished"
    assert result.metrics["held_out/instances"] == 30


def without_predictions(columns, *_):
    nothing = np.zeros(0, dtype=np.int32)
    masks = {"masked_lm_positions": nothing, "masked_lm_ids": nothing, "masked_offsets": np.zeros_like(columns.offsets)}
    return dataclasses.replace(columns, **masks)


def test_batches_in_which_nothing_is_predicted_do_not_end_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr("instances_fixture.with_static_masks", without_predictions)
    write_instances(tmp_path / "data", max_seq_length=16, static_masks=True)
    values = configuration({"short": str(tmp_path / "data"), "long": ""})
    values["phases"] = [values["phases"][0] | {"steps": 2, "warmup_steps": 0}]
    assert train(values, tmp_path / "training").metrics["held_out/mlm_loss"] == 0.0
    for event in train_events(tmp_path / "training").values():
        assert event["train/mlm_loss"] == 0.0
        assert event["train/nsp_loss"] > 0.0


def test_run_continues_from_another_model_and_logs_it(data, undisturbed, tmp_path, caplog):
    caplog.set_level("INFO")
    newest = undisturbed / "checkpoints" / "step-00000014"
    url = "s3://me:secret@bucket/model"
    config = configuration(data, initial_model=url, initial_optimizer="restored")
    config["phases"] = [config["phases"][1] | {"steps": 1, "warmup_steps": 0, "learning_rate": 0.0}]
    settings = from_mapping(PretrainingConfig, config)
    result = train(settings, tmp_path / "more", resolve={url: newest}.__getitem__)
    assert result.model is not None
    assert f"s3://bucket/model is {newest}" in caplog.text
    assert "secret" not in caplog.text
    assert f"continuing from {newest} with its own optimizer state: " in caplog.text
    assert "tensors used, 0 ignored, 0 newly initialized" in caplog.text
    before, after = (load_file(path / "model.safetensors") for path in (newest, result.model))
    assert all(torch.equal(before[name], after[name]) for name in before)
    # The second moments decay by a thousandth a step from where they were; a fresh optimizer begins at zero.
    state = "training_state/optimizer.safetensors"
    before, after = (load_file(path / state) for path in (newest, tmp_path / "more/checkpoints/step-00000001"))
    moments = [name for name in before if name.startswith("exp_avg_sq:")]
    assert moments
    assert all((after[name] >= 0.99 * before[name]).all() for name in moments)


def test_masks_are_those_of_the_configuration(data, undisturbed, tmp_path):
    masking = {"mask_share": 0.0, "same_share": 0.0, "random_share": 1.0}
    config = from_mapping(PretrainingConfig, configuration(data, masking=masking))
    train(config, tmp_path / "random")
    # The same positions are predicted, of other inputs.
    first, other = (train_events(path)[1]["train/mlm_loss"] for path in (undisturbed, tmp_path / "random"))
    assert first != other


def test_initial_model_is_resolved_on_rank_0_only(data, undisturbed, tmp_path):
    model = undisturbed / "model"
    config = configuration(data, initial_model=f"models:/{model}")
    config["phases"] = [config["phases"][1] | {"steps": 1, "warmup_steps": 0}]
    codes, reports, _ = run_pretraining(config, tmp_path / "more", resolve=resolve_on_rank_0)
    assert codes == [0, 0], reports
    stored = json.loads((tmp_path / "more" / "configuration.json").read_text())
    assert stored["configuration"]["initial_model"] == str(model)


def resolve_on_rank_0(reference):
    if os.environ["RANK"] != "0":
        raise UsageError("the other rank has looked as well")
    return Path(reference.removeprefix("models:/"))


def test_from_option_continues_a_hub_model_of_another_architecture(data, tmp_path, caplog):
    transformers = pytest.importorskip("transformers")
    foreign = tmp_path / "foreign"
    shape = {"vocab_size": 64, "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3}
    theirs = transformers.BertForMaskedLM(
        transformers.BertConfig(**shape, intermediate_size=40, max_position_embeddings=40)
    )
    theirs.save_pretrained(foreign)
    (foreign / "model.safetensors").unlink()
    torch.save(theirs.state_dict(), foreign / "pytorch_model.bin")
    make_tokenizer(60).save(foreign)
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(configuration(data, model={"preset": "base"})))
    assignments = ["phases.0.steps=1", "phases.0.warmup_steps=0", "phases.0.learning_rate=0.0"]
    assignments += ["phases.1.steps=1", "phases.1.warmup_steps=0", "phases.1.learning_rate=0.0"]
    options = ["--config", str(path), "--experiment", "", "--device", "cpu", "--output", str(tmp_path / "more")]
    caplog.set_level("INFO")
    assert main([*options, "--from", str(foreign), *assignments]) == 0
    assert f"continuing from {foreign} with fresh optimizer state: " in caplog.text
    assert "0 ignored, 4 (bert.pooler, cls.seq_relationship) newly initialized" in caplog.text
    continued = load_file(tmp_path / "more" / "model" / "model.safetensors")
    for name, parameter in theirs.named_parameters():
        assert torch.equal(continued[name], parameter), name
    readme = (tmp_path / "more" / "model" / "README.md").read_text()
    assert "library_name: transformers\npipeline_tag: fill-mask\n" in readme
    restored = [*options, "--from", str(foreign), "--optimizer-state", "restored", "--resume", *assignments]
    assert main(restored) == 2
    assert main([*options, "--optimizer-state", "fresh"]) == 2


def test_instances_longer_than_the_phase_are_refused(data, tmp_path):
    config = configuration(data)
    config["phases"][0]["instances"] = data["long"]
    with pytest.raises(ConfigurationError, match="made for max_seq_length=32, the phase has 16"):
        train(config, tmp_path / "training")
    assert not (tmp_path / "training").exists()


def test_signals_of_one_request_stop_a_run_and_a_later_one_ends_it(monkeypatch):
    ended: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *arguments: ended.append(arguments))
    with signals.stop_requests() as should_stop:
        handle = signal.getsignal(signal.SIGTERM)
        assert callable(handle)
        assert not should_stop()
        handle(signal.SIGTERM, None)  # Slurm's, to every process of the job
        handle(signal.SIGTERM, None)  # torchrun's, which has received the same
        assert should_stop()
        assert not ended
        monkeypatch.setattr(signals, "ONE_REQUEST_SECONDS", 0.0)
        handle(signal.SIGTERM, None)
    assert ended == [(os.getpid(), signal.SIGTERM)]


COMPUTING_THREAD = """
import runpy, sys, threading, torch
def compute():
    while True:
        torch.ones(8).add_(1)
threading.Thread(target=compute, daemon=True).start()  # as gloo's, which release tensors when they come to it
sys.argv = ["bert_model.pretraining", "--settings"]
runpy.run_module("bert_model.pretraining", run_name="__main__", alter_sys=True)
"""


def test_thread_that_still_has_tensors_does_not_abort_a_finished_process():
    result = subprocess.run([sys.executable, "-c", COMPUTING_THREAD], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.endswith("    Timeout of the communication between ranks.\n")


@pytest.mark.slow
def test_torchrun_trains_two_ranks_and_preempted_run_exits_with_75(data, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(configuration(data)))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    arguments = ["-m", "bert_model.pretraining", "--config", str(path), "--experiment", ""]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*torchrun, *arguments, "--output", str(tmp_path / "two")], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "finished"

    endless = [*arguments, "--output", str(tmp_path / "one"), "phases.0.steps=100000"]
    process = subprocess.Popen([sys.executable, *endless], env=environment, stderr=subprocess.PIPE, text=True)
    metrics = tmp_path / "one" / "metrics.jsonl"
    deadline = time.monotonic() + 240
    while not (metrics.is_file() and '"train"' in metrics.read_text()) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=240) == EXIT_PREEMPTED
