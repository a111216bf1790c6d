"""A version served by MLflow answers like `bert predict` and refuses input outside its signature."""

import ast
import contextlib
import importlib
import importlib.metadata
import json
import subprocess
import sys
import warnings
from pathlib import Path

import mlflow
import pandas as pd
import pytest
import tiny_tasks
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from starlette.testclient import TestClient

from bert_model.inference.predict import load_predictor, predict
from bert_model.registry import artifacts, operations, pyfunc
from bert_model.registry.resolve import resolve_model
from bert_model.training.home import tracking_uri
from bert_pipeline.manifest import load_manifest

INPUTS = {
    "sst2": {"text": "the film was lovely ."},
    "squad2": {"question": "where does anna live ?", "context": "Boris was in Oslo. Anna lives in Rome."},
    "swag": {"context": "anna lives .", "endings": ["the film was dull .", "the film was great ."]},
    "ner": {"text": "Anna lives in Oslo."},
}

STORED_IMPORTS = {
    ("bert_model.inference.predict", "answer_inputs"),
    ("bert_model.inference.predict", "load_predictor"),
    ("bert_model.finetuning.task_model", "read_task_description"),
}
"""What the model code imports. A registered version keeps its copy: names are added, never removed."""


@pytest.fixture(scope="module")
def served(home, tmp_path_factory):
    """Registered versions by task, and the directories they were made from."""
    root = tmp_path_factory.mktemp("served")
    base = tiny_tasks.make_model(root / "base")
    for name in INPUTS:
        tiny_tasks.tune(name, base, root / name)
        operations.register(root / name, operations.model_name("tiny", name))
    return {name: root / name for name in INPUTS}


def load(name):
    mlflow.set_tracking_uri(tracking_uri())  # the registry restores MLflow's own default
    return mlflow.pyfunc.load_model(f"models:/{operations.model_name('tiny', name)}@candidate")


@pytest.mark.parametrize("name", sorted(INPUTS))
def test_served_model_answers_like_bert_predict(name, served):
    record = INPUTS[name]
    (answer,) = load(name).predict(pd.DataFrame([record]))
    (expected,) = load_predictor(name, [served[name]]).answer([record])
    assert answer == expected


def test_served_model_has_signature_and_example(served):
    model = load("swag")
    assert model.metadata.get_input_schema().input_names() == ["id", "context", "endings"]
    assert model.metadata.get_input_schema().required_input_names() == ["context", "endings"]
    assert model.metadata.get_output_schema() is not None
    assert model.predict(model.input_example)[0]["id"] == "0"


def test_answers_have_the_ids_of_rows_that_have_one(served):
    rows = pd.DataFrame([{"id": "first", **INPUTS["sst2"]}, INPUTS["sst2"]])
    assert [answer["id"] for answer in load("sst2").predict(rows)] == ["first", "1"]


ELSEWHERE = """
import importlib.machinery, importlib.metadata, json, sys
from packaging.utils import canonicalize_name

class Finder(importlib.machinery.PathFinder):
    \"""Finds only packages of the requirements, and what is of no package.\"""

    @classmethod
    def find_spec(cls, name, *more):
        owners = {canonicalize_name(owner) for owner in packages.get(name.partition(".")[0], [])} - {"bert-workflow"}
        return None if owners and not owners & installed else super().find_spec(name, *more)

installed, packages = {*json.loads(sys.argv[2])}, importlib.metadata.packages_distributions()
sys.meta_path = [Finder if finder is importlib.machinery.PathFinder else finder for finder in sys.meta_path]
import mlflow
model = mlflow.pyfunc.load_model(sys.argv[1])
answer = model.predict(model.input_example)
import bert_model, bert_pipeline
print(json.dumps([answer, bert_model.__file__, bert_pipeline.__file__]))
"""


def test_version_runs_where_its_requirements_are_installed_and_this_project_is_not(served, tmp_path):
    mlflow.set_tracking_uri(tracking_uri())
    uri = f"models:/{operations.model_name('tiny', 'sst2')}@candidate"
    stored = str(Path(mlflow.artifacts.download_artifacts(uri, dst_path=str(tmp_path))))
    missing = (Path(stored) / "requirements.txt").read_text().split()
    installed: set[str] = set()
    while missing:
        requirement = Requirement(missing.pop())
        name = canonicalize_name(requirement.name)
        if name not in installed and (not requirement.marker or requirement.marker.evaluate({"extra": ""})):
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # of other platforms
                missing += importlib.metadata.requires(name) or []
                installed.add(name)
    assert {"torch", "mlflow"} < installed
    assert not {"dagster", "apache-beam"} & installed
    command = [sys.executable, "-I", "-c", ELSEWHERE, stored, json.dumps(sorted(installed))]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    answer, *files = json.loads(result.stdout.splitlines()[-1])
    assert answer == load_predictor("sst2", [served["sst2"]]).answer([{"id": "0"} | artifacts.EXAMPLE_INPUTS["text"]])
    assert files == [f"{stored}/code/{package}/__init__.py" for package in ("bert_model", "bert_pipeline")]


def test_http_server_answers_and_refuses_a_wrong_schema(served):
    from mlflow.pyfunc import scoring_server

    client = TestClient(scoring_server.init(load("sst2")))
    good = client.post("/invocations", json={"dataframe_records": [INPUTS["sst2"], {"text": "the meal was sour ."}]})
    assert good.status_code == 200
    answers = json.loads(good.text)["predictions"]
    assert [set(answer) for answer in answers] == [{"id", "prediction", "label", "probabilities"}] * 2
    assert [answer["id"] for answer in answers] == ["0", "1"]
    records = [{"text": None}, INPUTS["sst2"]]
    mixed = json.loads(client.post("/invocations", json={"dataframe_records": records}).text)["predictions"]
    error = "input 1: found nothing, expected text; text is missing"
    assert mixed[0] == {"id": "0", "prediction": None, "error": error}
    assert mixed[1] == {**answers[0], "id": "1"}
    records = [{"id": 1, **INPUTS["sst2"]}, INPUTS["sst2"]]  # pandas makes a float of the id
    mixed = json.loads(client.post("/invocations", json={"dataframe_records": records}).text)["predictions"]
    assert [answer["id"] for answer in mixed] == [1, "1"]
    alone = client.post("/invocations", json={"dataframe_records": [{"text": 5}]})
    assert alone.status_code == 400
    assert "input 1: text is 5, expected a text" in alone.json()["message"]
    bad = client.post("/invocations", json={"dataframe_records": [{"sentence": "the film"}]})
    assert bad.status_code == 400
    assert "text" in bad.text


def test_registered_model_predicts_and_is_fine_tuned_by_its_uri(served, tmp_path):
    name = f"models:/{operations.model_name('tiny', 'sst2')}@candidate"
    (tmp_path / "in.txt").write_text(INPUTS["sst2"]["text"] + "\n")
    counts = predict("sst2", [resolve_model(name)], str(tmp_path / "in.txt"), str(tmp_path / "out.jsonl"))
    assert counts.answers == 1
    (expected,) = load_predictor("sst2", [served["sst2"]]).answer([INPUTS["sst2"]])
    assert json.loads((tmp_path / "out.jsonl").read_text()) == expected
    result = tiny_tasks.tune("mrpc", resolve_model(name), tmp_path / "mrpc", epochs=[1.0])
    assert result.manifest.inputs["model"]["kind"] == "finetuned_model"
    assert result.results["model_sha256"] == load_manifest(served["sst2"]).sha256


def test_served_directory_holds_no_pickle(served, home):
    suffixes = {path.suffix for path in (home / "artifacts").rglob("*") if path.is_file()}
    assert suffixes.isdisjoint({".pkl", ".pickle", ".pt", ".pth", ".bin"})


def test_loading_the_served_model_warns_of_no_type_hints(served):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load("sst2").predict(pd.DataFrame([INPUTS["sst2"]]))
    assert [str(warning.message) for warning in caught if "type hint" in str(warning.message).lower()] == []


def test_names_that_stored_model_code_imports_exist():
    tree = ast.parse(Path(pyfunc.__file__).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    names = {(node.module, alias.name) for node in imports for alias in node.names}
    assert {name for name in names if name[0].startswith("bert_model")} <= STORED_IMPORTS
    assert all(hasattr(importlib.import_module(module), name) for module, name in STORED_IMPORTS)
