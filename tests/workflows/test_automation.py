"""The schedule and the sensor do what they say, and are off by default."""

import datetime
import os
from pathlib import Path

import dagster as dg
import pytest

from workflows.configuration import asset_configs, launchpad_preset
from workflows.definitions import defs
from workflows.defs import automation
from workflows.instance import open_instance
from workflows.partitions import dump_partitions
from workflows.phases import DUMP_ASSETS
from workflows.resources import BertHome


@pytest.fixture(scope="module")
def repository() -> dg.RepositoryDefinition:
    return defs().get_repository_def()


@pytest.fixture
def instance(clean_environment):
    with open_instance() as opened:
        yield opened
    os.environ.pop("DAGSTER_HOME", None)


def place(folder: Path, name: str, *, age_seconds: float = 120.0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(b"<mediawiki></mediawiki>")
    moment = datetime.datetime.now().timestamp() - age_seconds
    os.utime(path, (moment, moment))
    return path


def test_schedule_and_sensors_are_off_until_switched_on(repository):
    assert {item.default_status for item in repository.schedule_defs} == {dg.DefaultScheduleStatus.STOPPED}
    assert {item.default_status for item in repository.sensor_defs} == {dg.DefaultSensorStatus.STOPPED}


def test_monthly_schedule_adds_the_months_dump_and_requests_its_retraining(repository, instance, monkeypatch):
    monkeypatch.setenv(automation.WIKI_VARIABLE, "enwiki")
    schedule = repository.get_schedule_def(automation.RETRAINING_SCHEDULE)
    moment = datetime.datetime(2026, 11, 5, 3, 0, tzinfo=datetime.UTC)
    with (
        dg.build_schedule_context(
            instance=instance, scheduled_execution_time=moment, repository_def=repository
        ) as context,
    ):
        result = schedule.evaluate_tick(context)
    (request,) = result.run_requests
    assert request.partition_key == "enwiki-20261101"
    assert instance.has_dynamic_partition(str(dump_partitions.name), "enwiki-20261101")
    assert dg.validate_run_config(repository.get_job(automation.PRETRAINING_JOB), request.run_config)


def test_two_ticks_in_a_month_ask_for_one_run(repository, instance):
    schedule = repository.get_schedule_def(automation.RETRAINING_SCHEDULE)
    keys = []
    for day in (5, 6):
        moment = datetime.datetime(2026, 11, day, 3, 0, tzinfo=datetime.UTC)
        with (
            dg.build_schedule_context(
                instance=instance, scheduled_execution_time=moment, repository_def=repository
            ) as context,
        ):
            keys += [request.run_key for request in schedule.evaluate_tick(context).run_requests]
    assert len(keys) == 2
    assert len(set(keys)) == 1


def tick(repository: dg.RepositoryDefinition, instance: dg.DagsterInstance, home: BertHome):
    sensor = repository.get_sensor_def(automation.NEW_DUMP_SENSOR)
    with dg.build_sensor_context(
        instance_ref=instance.get_ref(), resources={"home": home}, repository_def=repository
    ) as context:
        return sensor.evaluate_tick(context)


def test_sensor_says_why_it_does_nothing_without_new_files(repository, instance, tmp_path):
    result = tick(repository, instance, BertHome(directory=str(tmp_path)))
    assert result.run_requests == []
    assert "no new dump" in result.skip_message


def test_sensor_turns_the_files_of_a_new_dump_into_a_partition_and_one_run(repository, instance, tmp_path):
    home = BertHome(directory=str(tmp_path))
    files = [place(home.dumps, f"enwiki-20261101-pages-articles{number}.xml.bz2") for number in (1, 2)]
    place(home.dumps, "README.txt")
    result = tick(repository, instance, home)
    (request,) = result.run_requests
    assert request.partition_key == "enwiki-20261101"
    assert request.run_config["ops"]["dump"]["config"]["sources"] == [str(file) for file in files]
    (addition,) = result.dynamic_partitions_requests
    assert addition.partition_keys == ["enwiki-20261101"]
    assert dg.validate_run_config(repository.get_job(automation.PRETRAINING_JOB), request.run_config)


def test_sensor_waits_while_a_file_is_being_copied(repository, instance, tmp_path):
    home = BertHome(directory=str(tmp_path))
    place(home.dumps, "enwiki-20261101-pages-articles.xml.bz2", age_seconds=0)
    result = tick(repository, instance, home)
    assert result.run_requests == []
    assert "changed within the last" in result.skip_message


def test_sensor_leaves_known_dumps_alone(repository, instance, tmp_path):
    home = BertHome(directory=str(tmp_path))
    place(home.dumps, "enwiki-20261101-pages-articles.xml.bz2")
    instance.add_dynamic_partitions(str(dump_partitions.name), ["enwiki-20261101"])
    assert tick(repository, instance, home).run_requests == []


def test_retraining_is_configured_by_the_preset():
    request = automation.retraining_run("enwiki-20261101", ["a.xml.bz2"])
    expected = asset_configs(launchpad_preset(), sources=["a.xml.bz2"])
    assert set(request.run_config["ops"]) == {name for name in DUMP_ASSETS if name in expected}
    assert request.run_config["ops"]["pretrained_model"]["config"] == expected["pretrained_model"]


def test_new_pretrained_model_leads_to_its_tasks_registration_and_report(repository):
    sensor = repository.get_sensor_def(automation.AUTOMATION_SENSOR)
    assert isinstance(sensor, dg.AutomationConditionSensorDefinition)
    graph = repository.asset_graph
    automated = {key.to_user_string() for key in graph.get_all_asset_keys() if graph.get(key).automation_condition}
    assert automated == {"task_data", "finetuned_model", "registered_task_model", "report"}
