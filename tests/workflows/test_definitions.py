"""The Dagster definitions: complete descriptions, stages and pools, and no slow imports; tests/pins has the graph."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from bert_model.presets import load_preset, preset_names
from workflows.definitions import defs
from workflows.defs.data import OFFICIAL_FILES, PUBLISHED_DUMPS
from workflows.lib.launchpad import asset_configs, launchpad_preset
from workflows.lib.resources import ASSETS, asset_of_step, step_asset

ROOT = Path(__file__).resolve().parent.parent.parent
OBSERVED = {"champion", OFFICIAL_FILES, PUBLISHED_DUMPS}
"""Assets that are not made here."""
SHOWN_LETTERS = 18
"""Dagster's graph shortens longer names in the middle."""


@pytest.fixture(scope="module")
def definitions() -> dg.Definitions:
    return defs()


def test_link_to_mlflow_is_that_of_its_present_address(monkeypatch):
    monkeypatch.setenv("BERT_MLFLOW_ADDRESS", "https://people.example.org/mlflow/")

    def report(context, home): ...

    assert step_asset()(report).metadata_by_key[dg.AssetKey("report")]["mlflow"].value.startswith("https://people")
    linked = {spec.key.to_user_string() for spec in defs().resolve_all_asset_specs() if "mlflow" in spec.metadata}
    results = {"pretrained_model", "finetuned_model", "candidate_model", "registered_model"}
    assert linked == results | {"promotion_decision", "report", "predictions", "champion"}


def test_assets_of_resources_are_the_assets_of_the_graph(definitions):
    specs = definitions.resolve_all_asset_specs()
    assert {*ASSETS, *OBSERVED} == {spec.key.to_user_string() for spec in specs}


def test_every_asset_has_description_group_owner_and_code_version(definitions):
    for spec in definitions.resolve_all_asset_specs():
        assert spec.description
        assert len(spec.description) > 40
        assert spec.owners
        assert spec.code_version or spec.key.to_user_string() in OBSERVED
        assert spec.group_name


def test_names_of_assets_are_short_and_differ_at_the_start(definitions):
    names = [spec.key.to_user_string() for spec in definitions.resolve_all_asset_specs()]
    assert max(map(len, names)) <= SHOWN_LETTERS
    assert len({name[:4] for name in names}) == len(names)


def test_every_asset_links_to_its_source(definitions):
    for spec in definitions.resolve_all_asset_specs():
        if spec.key.to_user_string() in OBSERVED:
            continue
        (reference,) = spec.metadata["dagster/code_references"].code_references
        lines = Path(reference.file_path).read_text(encoding="utf-8").splitlines()
        assert f"def {spec.key.to_user_string()}(" in "\n".join(lines[reference.line_number - 1 :][:20])


def test_every_check_has_a_description(definitions):
    specs = [spec for check in definitions.asset_checks for spec in check.check_specs]
    assert specs
    assert all(spec.description for spec in specs)


def test_check_steps_are_shown_under_their_asset(definitions):
    for check in definitions.asset_checks:
        for spec in check.check_specs:
            assert asset_of_step(check.node_def.name) == spec.asset_key.to_user_string()


def test_workspace_file_names_the_definitions():
    import yaml

    (entry,) = yaml.safe_load((ROOT / "workspace.yaml").read_text(encoding="utf-8"))["load_from"]
    assert entry["python_module"]["module_name"] == "workflows.definitions"


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_a_valid_run_configuration(definitions, name):
    job = definitions.resolve_implicit_global_asset_job_def()
    configs = asset_configs(load_preset(name), sources=["dump.xml.bz2"], suites={"glue": "glue"}, dev_fraction=0.2)
    run_config = {"ops": {asset: {"config": values} for asset, values in configs.items()}}
    assert dg.validate_run_config(job, run_config)


def test_launchpad_without_any_input_is_the_demo_preset(definitions):
    job = definitions.resolve_implicit_global_asset_job_def()
    resolved = dg.validate_run_config(job, {})
    assert launchpad_preset().name == "demo"
    expected = asset_configs(launchpad_preset())
    # Automation starts runs with the launchpad's defaults; a run that somebody starts has the margin of one by hand.
    for asset in ("registered_model", "promotion_decision"):
        assert expected[asset]["margin"] == 0.0
        expected[asset]["margin"] = -1.0
    promote = dg.validate_run_config(definitions.resolve_job_def("promote"), by_hand("bert-tiny"))
    assert promote["ops"]["evaluate_promotion"]["config"]["margin"] == 0.0
    for asset, values in expected.items():
        assert {key: resolved["ops"][asset]["config"][key] for key in values} == values


def by_hand(name: str) -> dict[str, Any]:
    return {"ops": {"evaluate_promotion": {"config": {"name": name}}}}
