"""Tasks of YAML files in BERT_TASKS are partitions like those of the paper, from their files to the registry."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import miniature
import pytest
import yaml
from materialized import materialize

from bert_model.inference.predict import load_predictor
from bert_model.registry.operations import download, list_models
from bert_pipeline.errors import UsageError
from bert_pipeline.manifest import load_manifest
from workflows.definitions import defs
from workflows.lib.instance import open_instance
from workflows.lib.lineage import load_published_task
from workflows.lib.resources import (
    STAGE_ASSETS,
    TASK_ASSETS,
    TASK_NAMES,
    TASKS_VARIABLE,
    BertHome,
    dump_task_key,
    read_own_tasks,
    task_partitions,
)
from workflows.run import build_parser, plan_of

TICKETS = {
    "name": "tickets",
    "title": "Support tickets",
    "kind": "classification",
    "labels": ["0", "1"],
    "metrics": ["accuracy"],
    "main_metric": "accuracy",
    "columns": {"text_a": "sentence"},
    "folder": "tickets",
}


def write_task(folder: Path, **changes: Any) -> Path:
    """Describe a task in the folder."""
    folder.mkdir(exist_ok=True)
    path = folder / "tickets.yaml"
    path.write_text(yaml.safe_dump({**TICKETS, **changes}), encoding="utf-8")
    return path


@pytest.fixture
def tasks(tmp_path, monkeypatch) -> Path:
    """BERT_TASKS with one task in it."""
    monkeypatch.setenv(TASKS_VARIABLE, str(tmp_path / "tasks"))
    write_task(tmp_path / "tasks")
    return tmp_path / "tasks"


def test_files_that_describe_no_task_do_not_hide_the_others(tasks):
    (tasks / "broken.yaml").write_text("name: [", encoding="utf-8")
    (tasks / "taken.yml").write_text(yaml.safe_dump({**TICKETS, "name": "rte"}), encoding="utf-8")
    (tasks / "wrong.yaml").write_text(yaml.safe_dump({**TICKETS, "main_metrik": "f1"}), encoding="utf-8")
    found = read_own_tasks(tasks)
    assert set(found.tasks) == {"tickets"}
    assert set(found.problems) == {"broken.yaml", "taken.yml", "wrong.yaml"}
    assert "'rte' is taken by another task" in found.problems["taken.yml"]
    assert "main_metrik" in found.problems["wrong.yaml"]
    with pytest.raises(UsageError, match=r"task 'reviews': no YAML file in .* describes it; .*broken.yaml"):
        BertHome().task("reviews")


def test_new_home_has_every_task_as_partition(tasks, clean_environment, instance):
    open_instance().dispose()
    assert instance.get_dynamic_partitions(str(task_partitions.name)) == [*TASK_NAMES, "tickets"]


def test_sensor_adds_a_task_that_appears_and_names_a_broken_file(clean_environment, instance, tasks):
    repository = defs().get_repository_def()
    sensor = repository.get_sensor_def("new_task_in_folder")

    def evaluate() -> Any:
        with dg.build_sensor_context(
            instance_ref=instance.get_ref(), resources={"home": BertHome()}, repository_def=repository
        ) as context:
            return sensor.evaluate_tick(context)

    (request,) = evaluate().dynamic_partitions_requests
    assert (request.partitions_def_name, request.partition_keys) == ("task", ["tickets"])
    instance.add_dynamic_partitions("task", ["tickets"])
    (tasks / "broken.yaml").write_text("name: [", encoding="utf-8")
    assert "broken.yaml" in evaluate().skip_message


def test_command_takes_own_tasks_after_those_of_the_paper(tasks, capsys):
    assert plan_of(build_parser().parse_args([])).tasks == (*TASK_NAMES, "tickets")
    assert plan_of(build_parser().parse_args(["--tasks", "tickets,rte"])).tasks == ("rte", "tickets")
    assert not capsys.readouterr().err
    write_task(tasks, main_metrik="f1")
    assert plan_of(build_parser().parse_args([])).tasks == TASK_NAMES
    assert re.search(r"main_metrik.*; this task is left out", capsys.readouterr().err)


@pytest.fixture
def home(finished_home: BertHome, empty_dagster: Path, tmp_path: Path, monkeypatch) -> Iterator[BertHome]:
    """A copy of the finished run's home and registry."""
    copy = BertHome(directory=str(tmp_path / "home"))
    shutil.copytree(finished_home.path, copy.path, ignore=shutil.ignore_patterns("dagster", "cache"))
    shutil.copytree(empty_dagster, copy.path / "dagster")
    for variable in ("DAGSTER_HOME", "MLFLOW_TRACKING_URI"):
        monkeypatch.setenv(variable, "")  # what the runs set is put back at the end
        monkeypatch.delenv(variable)
    monkeypatch.setenv("BERT_HOME", str(copy.path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield copy
    os.environ.pop("DAGSTER_HOME", None)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_own_task_is_finetuned_registered_reported_and_judged(home, tasks):
    shutil.copytree(home.dump(miniature.DUMP) / "glue" / "SST-2", tasks / "tickets")
    mapping = miniature.preset()
    mapping["finetuning"] |= {"comparison": False}
    mapping["promotion"] = {"waived_gates": list(miniature.UNFIT)}
    key = dump_task_key(miniature.DUMP, "tickets")

    def run(assets: tuple[str, ...], partition: Any) -> dg.ExecuteInProcessResult:
        return materialize(instance, partition, assets, mapping)

    with open_instance(home) as instance:
        assert run(TASK_ASSETS, key).success
        for asset in TASK_ASSETS:
            assert instance.get_materialized_partitions(dg.AssetKey(asset)) == {str(key)}
        (version,) = list_models("bert-tiny-tickets")
        assert set(version.aliases) == {"candidate", "champion"}
        local = download("models:/bert-tiny-tickets@champion")
        answers = load_predictor("tickets", [local]).answer([{"text": "a fine answer"}])
        assert set(answers[0]["probabilities"]) == {"0", "1"}

        # The report and the decision on the pre-trained model count it.
        result = run(STAGE_ASSETS["report"], miniature.DUMP)
        rows = json.loads((home.report(miniature.DUMP) / "results.json").read_text())["rows"]
        assert [row["task"] for row in rows] == [*miniature.TASKS, "tickets"]
        (event,) = result.asset_materializations_for_node("promotion_decision")
        assert "tickets" in {record.data["task"] for record in event.metadata["tasks"].records}

        # Predictions of its champion.
        inputs = home.prediction_inputs("tickets")
        inputs.mkdir(parents=True)
        (inputs / "new.txt").write_text("one ticket\nanother\n")
        model = {"ops": {"predictions": {"config": {"model": "models:/bert-tiny-tickets@champion"}}}}

        def answer() -> dg.ExecuteInProcessResult:
            assets = [dg.AssetKey("predictions")]
            job = defs().resolve_implicit_global_asset_job_def()
            return job.execute_in_process(
                instance=instance, partition_key="tickets", asset_selection=assets, run_config=model
            )

        assert answer().success
        assert len((home.predictions("tickets") / "new.txt.jsonl").read_text().splitlines()) == 2

        # Another description is other data; a task whose file is gone is skipped, and its results stay readable.
        before = load_manifest(home.task_data(miniature.DUMP, "tickets")).sha256
        write_task(tasks, title="Complaints")
        assert run(("task_data",), key).success
        assert load_manifest(home.task_data(miniature.DUMP, "tickets")).sha256 != before
        (tasks / "tickets.yaml").unlink()
        assert load_published_task(home, miniature.DUMP, "tickets").task.title == "Complaints"
        assert "tickets" in home.tasks_of(miniature.DUMP)
        assert run(("task_data",), key).success
        skipped = load_manifest(home.task_data(miniature.DUMP, "tickets"))
        assert (skipped.kind, "describes it" in skipped.counts["reason"]) == ("skipped_task", True)
