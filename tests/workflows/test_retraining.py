"""Retraining on a new dump: continued from the champion, evaluated by fine-tunings, promoted, and rolled back."""

import json
import shutil
from typing import Any

import dagster as dg
import miniature
import pytest
from materialized import materialize

from bert_model.registry.operations import list_models, promote
from bert_model.registry.promotion import GateConfig
from bert_pipeline.vocabulary.tokenizer import Tokenizer
from workflows.definitions import defs
from workflows.defs.automation import START_VARIABLE, retraining_run, starting_model
from workflows.defs.promotion import champion_moves
from workflows.lib.instance import open_instance
from workflows.lib.model_checks import held_out_reproduces
from workflows.lib.resources import DUMP_ASSETS, STAGE_ASSETS, TASK_ASSETS, TASKS_VARIABLE, BertHome, dump_task_key

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # the miniature run is in the first test's time

NEXT_DUMP = "samplewiki-2"


@pytest.fixture
def home(finished_home: BertHome, empty_dagster, tmp_path, monkeypatch) -> BertHome:
    """A copy of the finished run's home and registry, with the first dump's tasks as default task files."""
    copy = BertHome(directory=str(tmp_path / "home"))
    shutil.copytree(finished_home.path, copy.path, ignore=shutil.ignore_patterns("dagster", "cache"))
    shutil.copytree(empty_dagster, copy.path / "dagster")
    monkeypatch.setenv("BERT_HOME", str(copy.path))
    monkeypatch.setenv(TASKS_VARIABLE, str(copy.dump(miniature.DUMP)))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return copy


def test_retraining_from_the_champion_is_promoted_and_rolled_back(home, monkeypatch):
    name = "bert-tiny"
    (first,) = list_models(name)
    assert promote(name, 1, config=GateConfig(waived_gates=miniature.UNFIT)).require().promoted
    monkeypatch.setenv(START_VARIABLE, "champion")
    start = starting_model(home)
    assert start == f"models:/{name}/1"
    asked = retraining_run(NEXT_DUMP, start=start).run_config["ops"]
    changes = {
        "vocabulary": {"from_model": asked["vocabulary"]["config"]["from_model"]},
        "pretrained_model": {"initial_model": asked["pretrained_model"]["config"]["initial_model"]},
    }
    preset = miniature.short_preset()
    preset["finetuning"]["comparison"] = False

    def run(assets: tuple[str, ...], partition: Any, **changes: dict[str, Any]) -> dg.ExecuteInProcessResult:
        result = materialize(instance, partition, assets, preset, **changes)
        assert result.success
        return result

    def execute(job: str, op: str, config: dict[str, Any]) -> dg.ExecuteInProcessResult:
        run_config = {"ops": {op: {"config": config}}}
        definition = defs().resolve_job_def(job)
        return definition.execute_in_process(instance=instance, run_config=run_config, raise_on_error=False)

    with open_instance(home, dumps=(NEXT_DUMP,)) as instance:
        result = run(DUMP_ASSETS, NEXT_DUMP, **changes)
        messages = [record.user_message for record in instance.all_logs(result.run_id)]
        assert any(f"continuing from {start}" in message for message in messages)
        old, new = (Tokenizer.from_directory(home.vocabulary(dump)) for dump in (miniature.DUMP, NEXT_DUMP))
        assert new.sha256 == old.sha256  # weights go on with their own vocabulary
        first, second = list_models(name)
        assert second.tags["dump"] == NEXT_DUMP
        assert second.document.lineage["corpus_sha256"] != first.document.lineage["corpus_sha256"]
        assert "input.initial_model" in second.document.lineage
        assert held_out_reproduces(home, NEXT_DUMP).passed

        for task in miniature.TASKS:
            run(TASK_ASSETS, dump_task_key(NEXT_DUMP, task))
        strict = {"margin": 100.0, "tolerance": 100.0, "exam_tolerance": 100.0, "waived_gates": list(miniature.UNFIT)}
        result = run(STAGE_ASSETS["report"], NEXT_DUMP, promotion_decision=strict)
        decided = decision_of(result)
        assert decided["refused_by"].value == "better"  # and not for want of something to compare
        assert {row["task"] for row in rows(decided["tasks"])} == {*miniature.TASKS, "average"}
        lenient = strict | {"margin": -100.0}
        decided = decision_of(run(STAGE_ASSETS["report"], NEXT_DUMP, promotion_decision=lenient))
        assert decided["promoted"].value
        assert aliases(name) == {"candidate": 2, "champion": 2, "previous": 1}
        cursor, (moved,) = observed_moves(home, instance, json.dumps({name: 1}))
        assert (moved["name"].value, moved["version"].value, moved["former_version"].value) == (name, 2, 1)
        gain = decided["average"].value - decided["average_of_champion"].value
        assert moved["gain"].value == pytest.approx(gain, abs=1e-3)
        assert moved["gain_low"].value <= moved["gain_high"].value
        assert "@" in moved["moved_by"].value
        assert observed_moves(home, instance, cursor) == (None, [])

        assert execute("rollback", "rollback_champion", {"name": name}).success
        assert aliases(name) == {"candidate": 2, "champion": 1, "previous": 2}
        _, (moved,) = observed_moves(home, instance, cursor)
        assert (moved["version"].value, moved["former_version"].value) == (1, 2)
        assert "gain_low" not in moved  # the decision on it was against no champion
        asked = {"name": name, "dry_run": True, **lenient}
        assert execute("promote", "evaluate_promotion", asked).success
        refused = execute("promote", "evaluate_promotion", asked | {"dry_run": False})
        assert not refused.success
        assert "not_rolled_back" in refused.failure_data_for_node("evaluate_promotion").user_failure_data.description


def observed_moves(home: BertHome, instance: dg.DagsterInstance, cursor: str) -> tuple[str | None, list[Any]]:
    """Tick the sensor of the champions; return its new cursor and the metadata of each observation of pre-training."""
    with dg.build_sensor_context(instance=instance, cursor=cursor, resources={"home": home}) as context:
        result = champion_moves(context)
    if isinstance(result, dg.SkipReason):
        return None, []
    events = [dict(event.metadata) for event in result.asset_events]
    return result.cursor, [event for event in events if event["name"].value == "bert-tiny"]


def decision_of(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    (event,) = result.asset_materializations_for_node("promotion_decision")
    return dict(event.metadata)


def rows(value: Any) -> list[dict[str, Any]]:
    return [dict(record.data) for record in value.records]


def aliases(name: str) -> dict[str, int]:
    return {alias: version.version for version in list_models(name) for alias in version.aliases}
