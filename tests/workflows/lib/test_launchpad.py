"""The launchpad's schema, derived from dataclasses."""

import dataclasses
import inspect
from typing import Annotated, Any, Literal

import dagster as dg
import pytest

from bert_pipeline.configuration import configuration, documentation_of, to_mapping
from bert_pipeline.errors import ConfigurationError
from workflows.lib.launchpad import configured
from workflows.lib.resources import BertHome


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


def run(config: dict[str, Any], defaults: Whole | None = None) -> Whole:
    """Pass a configuration through Dagster's launchpad and back into the dataclass."""
    received: list[Whole] = []

    def thing(context: dg.AssetExecutionContext, home: BertHome, settings: Whole) -> None:
        received.append(settings)

    dg.materialize(
        [dg.asset(configured(thing, to_mapping(defaults or Whole(name="x"))))],
        run_config={"ops": {"thing": {"config": config}}},
        resources={"home": BertHome()},
        instance=dg.DagsterInstance.ephemeral(),
    )
    return received[0]


def test_launchpad_has_the_given_defaults(clean_environment):
    assert run({}) == Whole(name="x")
    other = Whole(name="y", part=Part(steps=9), parts=(Part(steps=1), Part(steps=2)), choice="b", free={"k": [1]})
    assert run({}, other) == other


def test_values_of_every_kind_round_trip(clean_environment):
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
    assert run(given) == expected


@pytest.mark.parametrize("config", [{"nam": 1}, {"part": {"step": 1}}, {"name": 1}, {"choice": "c"}])
def test_invalid_values_are_refused_before_the_run_starts(config):
    with pytest.raises(dg.DagsterInvalidConfigError):
        run(config)


def test_signature_is_the_launchpad_and_refused_values_are_named():
    def function(
        context, home, settings: Part, part: Annotated[Part, "P"], x: Annotated[int, "X"], y: Annotated[str, "Y"] = "o"
    ):
        return settings, part, x, y

    compute = configured(function, {"steps": 1, "part": {"steps": 3}})
    launchpad = inspect.signature(compute).parameters["config"].annotation
    shown = {key: field.description for key, field in launchpad.model_fields.items()}
    assert shown == {"steps": "Number of steps.", "part": "P", "x": "X", "y": "Y"}
    assert launchpad.model_fields["x"].is_required()
    assert compute("context", "home", launchpad(x=1)) == (Part(steps=1), Part(steps=3), 1, "o")
    for refused in ({"steps": -1}, {"part": {"steps": -1}}):
        with pytest.raises(dg.Failure, match=r"steps: found -1"):
            compute("context", "home", launchpad(x=1, **refused))

    # Fields without a default in the preset are not shown, and have that of the dataclass.
    launchpad = inspect.signature(without := configured(function, {"part": {}})).parameters["config"].annotation
    assert "steps" not in launchpad.model_fields
    assert without("context", "home", launchpad(x=1))[0] == Part()


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
