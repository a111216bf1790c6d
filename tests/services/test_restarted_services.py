"""Services that are killed during their work and restarted: the work completes, once."""

import miniature
import pytest
from dagster_api import wait_for
from processes import process_ids

from bert_model.presets import preset_from_mapping
from bert_model.training.metrics_log import read_lines
from workflows.defs.automation import MAX_RETRIES_TAG
from workflows.lib.launchpad import asset_configs
from workflows.lib.resources import TASK_ASSETS, BertHome, dump_task_key

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(2400, method="signal")]

STEPS = 300
PHASE = {"max_seq_length": 32, "steps": STEPS, "global_batch_size": 16, "learning_rate": 2e-3, "warmup_steps": 6}


def test_backfill_of_tasks_continues_after_the_daemon_was_killed(dagster, stack, trained):
    partitions = [str(dump_task_key(miniature.DUMP, task)) for task in miniature.TASKS]
    backfill = dagster.backfill(TASK_ASSETS, partitions)

    def is_underway() -> bool:
        runs = list(dagster.runs_of_backfill(backfill).values())
        return "STARTED" in runs

    wait_for(is_underway, "the backfill's first run")
    stack.servers["daemon"].kill()
    assert set(dagster.runs_of_backfill(backfill).values()) & {"QUEUED", "STARTED"}
    assert dagster.backfill_status(backfill) == "REQUESTED"
    stack.start("daemon")
    wait_for(lambda: dagster.backfill_status(backfill) != "REQUESTED", "the end of the backfill")
    assert dagster.backfill_status(backfill) == "COMPLETED_SUCCESS"
    runs = dagster.runs_of_backfill(backfill)
    assert list(runs.values()) == ["SUCCESS"] * len(partitions)
    for asset in TASK_ASSETS:
        done = [(partition, run) for partition, run in dagster.materializations(asset) if run in runs]
        assert sorted(partition for partition, _ in done) == sorted(partitions)
        assert {run for _, run in done} == set(runs)


def test_training_resumes_after_its_code_server_was_killed(dagster, stack, trained):
    home = BertHome(directory=str(stack.home))
    trainings = home.pretraining(miniature.DUMP, "x").parent
    before = set(trainings.iterdir())
    preset = preset_from_mapping(miniature.preset(phases=[PHASE], checkpoint_interval_steps=50), name="longer")
    config = {"ops": {"pretrained_model": {"config": asset_configs(preset)["pretrained_model"]}}}
    first = dagster.launch(["pretrained_model"], miniature.DUMP, config, tags={MAX_RETRIES_TAG: "1"})

    def has_checkpoint() -> bool:
        return any(list(new.glob("checkpoints/step-*/manifest.json")) for new in set(trainings.iterdir()) - before)

    wait_for(has_checkpoint, "a checkpoint")
    (directory,) = set(trainings.iterdir()) - before
    stack.servers["code"].kill()
    wait_for(lambda: not process_ids("bert_model.pretraining", str(directory)), "the end of the ranks")
    stack.start("code")
    wait_for(lambda: dagster.run(first)["status"] == "FAILURE", "the mark of the run that was lost")
    assert any("the code server that executed this run was ended" in message for message in dagster.messages(first))
    (second,) = wait_for(lambda: dagster.runs_with({"dagster/parent_run_id": first}), "the second try")
    dagster.succeeded(second)
    lines = list(read_lines(directory))
    assert [line["event"] for line in lines if line["event"] in ("start", "resume")] == ["start", "resume"]
    assert (miniature.DUMP, second) in dagster.materializations("pretrained_model")


def test_training_saves_before_its_code_server_has_ended(dagster, stack, trained):
    home = BertHome(directory=str(stack.home))
    trainings = home.pretraining(miniature.DUMP, "x").parent
    before = set(trainings.iterdir())
    preset = preset_from_mapping(
        miniature.preset(phases=[PHASE | {"steps": 100_000}], checkpoint_interval_steps=100_000), name="longest"
    )
    config = {"ops": {"pretrained_model": {"config": asset_configs(preset)["pretrained_model"]}}}
    run = dagster.launch(["pretrained_model"], miniature.DUMP, config)

    def has_begun() -> bool:
        return any("train" in {line["event"] for line in read_lines(new)} for new in set(trainings.iterdir()) - before)

    wait_for(has_begun, "the first steps")
    (directory,) = set(trainings.iterdir()) - before
    stack.servers["code"].stop(seconds=90.0)  # `stop_grace_period` in compose.yaml: then the container is killed
    assert process_ids("bert_model.pretraining", str(directory)) == []
    assert len(list(directory.glob("checkpoints/step-*/manifest.json"))) == 1
    stack.start("code")
    wait_for(lambda: dagster.run(run)["status"] == "FAILURE", "the mark of the run that was lost")
