"""A fine-tuned model is registered by name and lineage of the pre-trained model that it was fine-tuned from."""

import json
from pathlib import Path

import dagster as dg
import pytest

from bert_pipeline.manifest import Manifest, load_manifest, publishing
from workflows.defs.promotion import TaskRegistrationLaunchpad, registered_model
from workflows.lib.lineage import check_origin
from workflows.lib.resources import BertHome, dump_task_key

DUMP, TASK = "samplewiki-1", "mrpc"


def pretrain(home: BertHome, preset: str) -> Manifest:
    """Publish a pre-trained model without weights, and make it the dump's current one."""
    directory = home.pretraining(DUMP, preset) / "model"
    with publishing(directory, kind="pretrained_model", configuration={"model": {"preset": preset}}, inputs={}):
        pass
    home.current_training(DUMP).write_text(json.dumps({"training": preset}), encoding="utf-8")
    return load_manifest(directory)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BertHome:
    """A home whose task model is fine-tuned from its only pre-trained model."""
    monkeypatch.setenv("BERT_HOME", str(tmp_path))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    home = BertHome(directory=str(tmp_path))
    facts = {"task": TASK, "kind": "pair", "labels": [], "configuration": {}}
    facts["model_sha256"] = pretrain(home, "tiny").sha256
    with publishing(home.finetuning(DUMP, TASK), kind="finetuned_model", configuration={}, inputs={}) as draft:
        (draft.path / "task.json").write_text(json.dumps(facts), encoding="utf-8")
    return home


def test_fine_tuning_of_the_present_pretrained_model_is_accepted(home):
    check_origin(home.finetuning(DUMP, TASK), home.current_model(DUMP))


def test_fine_tuning_of_a_replaced_pretrained_model_is_not_registered(home):
    pretrain(home, "mini")
    context = dg.build_asset_context(partition_key=dump_task_key(DUMP, TASK))
    with pytest.raises(dg.Failure) as failure:
        registered_model(context, TaskRegistrationLaunchpad(), home)
    assert "fine-tuned from another pre-trained model" in str(failure.value.description)
    assert "materialize finetuned_model" in str(failure.value.description)
    assert not (home.path / "mlflow.db").exists()
