"""The launchpad's schema, derived from dataclasses."""

import dataclasses
from typing import Any, Literal

import dagster as dg
import pytest

from bert_pipeline.configuration import configuration, documentation_of, to_mapping
from bert_pipeline.errors import ConfigurationError
from workflows.lib.launchpad import config_class, from_launchpad


@configuration
class Part:
    """A nested part."""

    steps: int = 5
    """Number of
    steps."""

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ConfigurationError(f"steps: found {self.steps}, expected at least 0")


@configuration
class Whole:
    """The whole."""

    name: str
    """What it is called."""
    part: Part = Part()
    """One part."""
    parts: tuple[Part, ...] = (Part(steps=7),)
    """Several parts."""
    rates: tuple[float, ...] = (1e-4, 2e-4)
    """Numbers."""
    choice: Literal["a", "b"] = "a"
    """One of two."""
    maybe: float | None = None
    """A number or nothing."""
    free: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Anything."""


def run(config_type: Any, config: dict[str, Any]) -> Whole:
    """Pass a configuration through Dagster's launchpad and back into the dataclass."""
    received: list[Whole] = []

    @dg.asset
    def thing(config: config_type) -> None:  # type: ignore[valid-type]
        received.append(from_launchpad(Whole, config))

    dg.materialize(
        [thing],
        run_config={"ops": {"thing": {"config": config}}},
        instance=dg.DagsterInstance.ephemeral(),
    )
    return received[0]


def test_launchpad_has_defaults_of_the_dataclass():
    assert run(config_class(Whole), {"name": "x"}) == Whole(name="x")


def test_launchpad_has_defaults_of_a_given_instance():
    other = Whole(name="y", part=Part(steps=9), parts=(Part(steps=1), Part(steps=2)), choice="b", free={"k": [1]})
    assert run(config_class(Whole, to_mapping(other)), {}) == other


def test_values_of_every_kind_round_trip():
    given = {
        "name": "z",
        "part": {"steps": 1},
        "parts": [{"steps": 2}, {}],
        "rates": [0.5],
        "choice": "b",
        "maybe": 0.25,
        "free": {"deep": {"list": [1, 2]}},
    }
    expected = Whole(
        name="z",
        part=Part(steps=1),
        parts=(Part(steps=2), Part()),
        rates=(0.5,),
        choice="b",
        maybe=0.25,
        free={"deep": {"list": [1, 2]}},
    )
    assert run(config_class(Whole), given) == expected


@pytest.mark.parametrize(
    "config",
    [{"name": "x", "nam": 1}, {"name": "x", "part": {"step": 1}}, {"name": 1}, {"name": "x", "choice": "c"}, {}],
)
def test_invalid_values_are_refused_before_the_run_starts(config):
    with pytest.raises(dg.DagsterInvalidConfigError):
        run(config_class(Whole), config)


def test_values_refused_by_the_dataclass_are_named():
    with pytest.raises(ConfigurationError, match=r"steps: found -1"):
        run(config_class(Whole), {"name": "x", "part": {"steps": -1}})


def test_extra_fields_are_ignored_and_omitted_ones_get_defaults():
    config = config_class(Part, {"other": "o"}, other=(str, "Of the asset."))()
    assert config.other == "o"
    assert not hasattr(config, "steps")
    assert from_launchpad(Part, config) == Part()


def test_launchpad_has_documentation_of_the_fields():
    assert documentation_of(Whole)["name"] == "What it is called."
    assert documentation_of(Part)["steps"] == "Number of steps."
    fields = config_class(Whole).model_fields
    assert fields["choice"].description == "One of two."


def test_every_field_of_the_presets_dataclasses_is_documented():
    from bert_model.presets import RunPreset, TaskRunsConfig

    waiting: list[Any] = [RunPreset, TaskRunsConfig]
    while waiting:
        settings = waiting.pop()
        documented = documentation_of(settings)
        for field in dataclasses.fields(settings):
            assert documented.get(field.name), f"{settings.__name__}.{field.name} has no documentation"
            if dataclasses.is_dataclass(field.type):
                waiting.append(field.type)
