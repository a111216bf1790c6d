"""A failed blocking check stops downstream assets; a failed warning stops nothing."""

import os
import shutil
from pathlib import Path

import dagster as dg
import miniature
import pytest

from bert_model.presets import preset_from_mapping
from workflows.definitions import defs
from workflows.lib import data_checks, model_checks
from workflows.lib.instance import open_instance
from workflows.lib.launchpad import asset_configs
from workflows.lib.resources import BertHome, dump_task_key

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # the miniature run is in the first test's time


@pytest.fixture
def data(
    finished_home: BertHome, clean_environment: Path, empty_dagster: Path, monkeypatch: pytest.MonkeyPatch
) -> BertHome:
    """Home with dump and corpus of the finished run, without vocabulary, instances and tasks."""
    copy = BertHome(directory=str(clean_environment))
    shutil.copytree(empty_dagster, copy.path / "dagster")
    shutil.copytree(finished_home.dump(miniature.DUMP), copy.dump(miniature.DUMP))
    shutil.copytree(finished_home.corpus(miniature.DUMP), copy.corpus(miniature.DUMP))
    for name in ("dump", "corpus"):
        key = finished_home.of_dump(miniature.DUMP) / f".{name}.recipe.json"
        shutil.copy(key, copy.of_dump(miniature.DUMP) / key.name)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return copy


def materialize(home: BertHome, partition: str, *assets: str) -> dg.ExecuteInProcessResult:
    configs = asset_configs(preset_from_mapping(miniature.preset(), name="miniature"))
    with open_instance(home) as instance:
        result = (
            defs()
            .resolve_implicit_global_asset_job_def()
            .execute_in_process(
                instance=instance,
                partition_key=partition,
                asset_selection=[dg.AssetKey(name) for name in assets],
                run_config={"ops": {name: {"config": configs[name]} for name in assets if name in configs}},
                raise_on_error=False,
            )
        )
    os.environ.pop("DAGSTER_HOME", None)
    return result


def test_failed_blocking_check_stops_downstream_assets(data, monkeypatch):
    monkeypatch.setattr(data_checks, "MAX_MARKUP_SHARE", -1.0)  # no corpus is as clean as that
    result = materialize(data, miniature.DUMP, "dump", "corpus", "vocabulary")
    assert not result.success
    failed = {evaluation.check_name for evaluation in result.get_asset_check_evaluations() if not evaluation.passed}
    assert failed == {"corpus_without_markup"}
    assert result.asset_materializations_for_node("corpus")
    assert not result.asset_materializations_for_node("vocabulary")
    assert not data.vocabulary(miniature.DUMP).exists()


def test_failed_warning_check_stops_nothing(data, monkeypatch):
    monkeypatch.setattr(model_checks, "MAX_SHARED_EXAMPLES", -1.0)
    result = materialize(data, dump_task_key(miniature.DUMP, "sst2"), "task_data")
    assert result.success
    (warned,) = [item for item in result.get_asset_check_evaluations() if not item.passed]
    assert (warned.check_name, warned.severity) == ("task_splits_disjoint", dg.AssetCheckSeverity.WARN)
