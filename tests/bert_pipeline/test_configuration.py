import argparse
import itertools
from typing import Literal

import pytest
from pydantic import PositiveFloat

from bert_model.presets import RunPreset, load_preset, preset_from_mapping
from bert_pipeline.configuration import (
    SettingsAction,
    configuration,
    documentation_of,
    from_mapping,
    override,
    print_settings,
    read_yaml,
    to_mapping,
)
from bert_pipeline.errors import ConfigurationError


@configuration
class Phase:
    steps: int
    """Number
    of steps."""
    learning_rate: PositiveFloat = 1e-4

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ConfigurationError(f"steps: found {self.steps}, expected at least 1")


@configuration
class Training:
    phases: tuple[Phase, ...]
    precision: Literal["float32", "bfloat16"] = "float32"
    seed: int | None = None


def test_nested_mapping_becomes_nested_dataclasses_and_back():
    mapping = {"phases": [{"steps": 3, "learning_rate": 0.5}], "precision": "bfloat16", "seed": None}
    training = from_mapping(Training, mapping)
    assert training.phases == (Phase(steps=3, learning_rate=0.5),)
    assert to_mapping(training) == mapping


@pytest.mark.parametrize("text", ["1e-4", "0.0001"])
def test_learning_rate_without_a_dot_is_a_number(tmp_path, text):
    (tmp_path / "c.yaml").write_text(f"phases: [{{steps: 1, learning_rate: {text}}}]")
    assert from_mapping(Training, read_yaml(tmp_path / "c.yaml")).phases[0].learning_rate == 0.0001


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"phases": [{"stepz": 3}]}, r"phases\.0: unknown key 'stepz' \(did you mean 'steps'\?\)"),
        ({"phases": [{}]}, r"phases\.0: required key missing: steps"),
        ({"phases": [{"steps": "many"}]}, r"phases\.0\.steps: found 'many', expected an integer"),
        ({"phases": [{"steps": True}]}, r"found True, expected an integer"),
        ({"phases": [{"steps": 0}]}, r"phases\.0: steps: found 0, expected at least 1"),
        ({"phases": [{"steps": 2.5}]}, r"steps: found 2.5, expected an integer"),
        ({"phases": [{"steps": 1, "learning_rate": 0}]}, r"learning_rate: found 0, expected more than 0"),
        ({"phases": [3]}, r"phases\.0: found 3, expected a mapping of keys to values"),
        ({"phases": 3}, r"phases: found 3, expected a list"),
        ({"phases": [], "precision": "half"}, r"precision: found 'half', expected 'float32' or 'bfloat16'"),
    ],
)
def test_wrong_value_raises_with_key_value_and_expectation(mapping, message):
    with pytest.raises(ConfigurationError, match=message):
        from_mapping(Training, mapping)


def test_construction_is_validated_like_a_mapping():
    with pytest.raises(ConfigurationError, match=r"^steps: found 0, expected at least 1"):
        Phase(steps=0)
    with pytest.raises(ConfigurationError, match=r"^unknown key 'stepz' \(did you mean 'steps'\?\)"):
        Phase(stepz=1)  # type: ignore[call-arg]


def test_documentation_is_the_line_under_each_field():
    assert documentation_of(Phase) == {"steps": "Number of steps."}


def test_settings_are_printed_with_default_and_meaning(capsys):
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", required=True)
    parser.add_argument("--settings", action=SettingsAction)
    assert parser.parse_args(["--settings"]).settings
    print_settings(RunPreset)
    printed = capsys.readouterr().out
    assert "pretraining.phases.0.steps=900000\n    Number of optimizer steps.\n" in printed
    assert "\nexam.pairs_per_kind=" in printed  # a section that may be left out
    assert "\nname=required\n" in f"\n{printed}"
    # What is printed can be written into a preset, and every key has a meaning.
    lines = printed.splitlines()
    keys = [line for line in lines if not line.startswith(" ") and not line.startswith(("name=", "pretraining.phases"))]
    for key, following in itertools.pairwise(lines):
        assert key.startswith(" ") or following.startswith("    "), key
    mapping = override(to_mapping(load_preset("laptop")), keys)
    assert preset_from_mapping(mapping, name="printed").pretraining.precision == "float32"


def test_assignments_reach_into_lists_and_leave_the_original_alone():
    mapping = {"phases": [{"steps": 3}]}
    changed = override(mapping, ["phases.0.steps=5", "precision=bfloat16", "exam=", "dropout=null"])
    assert changed == {"phases": [{"steps": 5}], "precision": "bfloat16", "exam": "", "dropout": None}
    assert mapping == {"phases": [{"steps": 3}]}


def test_date_is_a_text(tmp_path):
    assert override({}, ["corpus.name=2026-11-01", "a=2026-13-01"]) == {
        "corpus": {"name": "2026-11-01"},
        "a": "2026-13-01",
    }
    (tmp_path / "c.yaml").write_text("name: 2026-11-01\nrate: 1e-4\n")
    assert read_yaml(tmp_path / "c.yaml") == {"name": "2026-11-01", "rate": 1e-4}


@pytest.mark.parametrize(("text", "found"), [("no", "False"), ("20261101", "20261101")])
def test_text_that_yaml_takes_for_another_value_needs_quotes(text, found):
    with pytest.raises(ConfigurationError, match=f"name: found {found}, expected text, in quotes"):
        from_mapping(RunPreset, override({}, [f"name={text}"]), where="")
    assert override({}, [f'name="{text}"']) == {"name": text}


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        *((text, ".") for text in ("phases.1.steps=5", "phases", "phases.x=1", "=3", "precision.x=1")),
        *((f"name={text}", "'name=.*': not valid YAML .*; quote the value") for text in ("[a", "@x", "{", "0x_")),
    ],
)
def test_assignment_to_an_unknown_key_or_of_no_yaml_raises(assignment, message):
    with pytest.raises(ConfigurationError, match=message):
        override({"phases": [{"steps": 3}], "precision": "float32"}, [assignment])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[1]", "expected a mapping"),
        (b"a: [", "not valid YAML"),
        (b"a: {b: 1, c: 2, b: 3}", "not valid YAML .*the key 'b' occurs twice in .*c.yaml\", line 1, column 17"),
        ("name: Bücher".encode("latin-1"), r"c\.yaml: not valid YAML \('utf-8' codec"),
        (None, "cannot be read"),
    ],
)
def test_file_that_is_no_mapping_is_a_usage_error(tmp_path, content, message):
    if content is not None:
        (tmp_path / "c.yaml").write_bytes(content)
    with pytest.raises(ConfigurationError, match=message) as raised:
        read_yaml(tmp_path / "c.yaml")
    assert raised.value.exit_code == 2
