"""A failed blocking check stops downstream assets; a failed warning stops nothing."""

import shutil
from pathlib import Path

import dagster as dg
import miniature
import pytest
from materialized import materialize

from workflows.lib import data_checks, model_checks
from workflows.lib.instance import open_instance
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
        key = finished_home.dump_directory(miniature.DUMP) / f".{name}.key.json"
        shutil.copy(key, copy.dump_directory(miniature.DUMP) / key.name)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return copy


def test_failed_blocking_check_stops_downstream_assets(data, monkeypatch):
    for limit in ("MARKUP_WARNING_SHARE", "MAX_MARKUP_SHARE"):
        monkeypatch.setattr(data_checks, limit, -1.0)  # no corpus is as clean as that
    with open_instance(data) as instance:
        result = materialize(instance, miniature.DUMP, ["dump", "corpus", "vocabulary"], miniature.preset())
    assert not result.success
    failed = {evaluation.check_name for evaluation in result.get_asset_check_evaluations() if not evaluation.passed}
    assert failed == {"corpus_without_markup"}
    assert result.asset_materializations_for_node("corpus")
    assert not result.asset_materializations_for_node("vocabulary")
    assert not data.vocabulary(miniature.DUMP).exists()


def test_failed_warning_check_stops_nothing(data, monkeypatch):
    monkeypatch.setattr(model_checks, "MAX_SHARED_EXAMPLES", -1.0)
    with open_instance(data) as instance:
        result = materialize(instance, dump_task_key(miniature.DUMP, "sst2"), ["task_data"], miniature.preset())
    assert result.success
    (warned,) = [item for item in result.get_asset_check_evaluations() if not item.passed]
    assert (warned.check_name, warned.severity) == ("task_splits_disjoint", dg.AssetCheckSeverity.WARN)
