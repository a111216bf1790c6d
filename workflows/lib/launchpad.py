"""Dagster's launchpad schema, derived from the configuration dataclasses of the other packages.

A dataclass, or the signature of an asset's function, is the only definition: its types, defaults and documentation
become a Dagster `Config` class. The values from the launchpad are read back into the dataclass, which validates them.
"""

import dataclasses
import functools
import inspect
import os
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dagster as dg
from pydantic import Field, create_model
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, to_jsonable_python

from bert_model.presets import RunPreset, load_preset
from bert_pipeline.configuration import documentation_of, from_mapping, to_mapping
from bert_pipeline.exam.pairs import ExamConfig
from workflows.lib.metadata import as_dagster_failures

PRESET_VARIABLE = "BERT_PRESET"
DEFAULT_PRESET = "demo"


@functools.cache
def launchpad_preset() -> RunPreset:
    """Return the preset whose values are the launchpad's defaults: BERT_PRESET, or the demo."""
    return load_preset(os.environ.get(PRESET_VARIABLE) or DEFAULT_PRESET)


@functools.cache
def launchpad_defaults() -> dict[str, dict[str, Any]]:
    """Return the run config of each asset for the launchpad's preset."""
    return asset_configs(launchpad_preset())


def configured(function: Callable[..., Any], defaults: Mapping[str, Any]) -> Callable[..., Any]:
    """Return an asset's or a job's function as Dagster calls it: with context, home, and the launchpad as `config`.

    The launchpad has the parameters that follow these two. A configuration dataclass gives its fields, those that have
    `defaults`; any other parameter is a field itself, `Annotated` with its description. One without a default, of its
    own or among `defaults`, is required. ConfigurationError when a dataclass refuses a value; errors that the user can
    act on become Dagster failures.
    """
    signature = inspect.signature(function)
    context, home, *parameters = signature.parameters.values()
    fields: dict[str, Any] = {}
    for name, hint, own in ((each.name, each.annotation, each.default) for each in parameters):
        if dataclasses.is_dataclass(hint):
            fields |= _launchpad_fields(hint, defaults)
        else:
            kind = hint.__origin__ if dataclasses.is_dataclass(hint.__origin__) else hint
            default = defaults.get(name, PydanticUndefined) if own is inspect.Parameter.empty else own
            fields[name] = _launchpad_field(kind, default, hint.__metadata__[-1])

    @functools.wraps(function)
    def compute(context: Any, home: Any, config: Any = None) -> Any:
        values = config.model_dump(warnings=False) if fields else {}
        with as_dagster_failures():
            return function(context, home, **{each.name: _argument(each, values) for each in parameters})

    launchpad = create_model(f"{function.__name__}_launchpad", __base__=dg.Config, **fields)
    config = [inspect.Parameter("config", home.kind, annotation=launchpad)] if fields else []
    compute.__signature__ = signature.replace(parameters=[context, home, *config])  # type: ignore[attr-defined]
    return compute


def _argument(parameter: inspect.Parameter, values: Mapping[str, Any]) -> Any:
    """Return the launchpad's value for a parameter."""
    hint: Any = parameter.annotation
    is_whole = dataclasses.is_dataclass(hint)
    kind, value = (hint, values) if is_whole else (hint.__origin__, values[parameter.name])
    if (names := getattr(kind, "__dataclass_fields__", None)) is None:
        return value
    return from_mapping(kind, {key: value[key] for key in names if key in value}, where=kind.__name__)


def _launchpad_fields(settings_class: Any, defaults: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the fields of a dataclass that have `defaults`; without them all, with those of the dataclass."""
    documentation = documentation_of(settings_class)
    shown = {}
    for key, field in settings_class.__pydantic_fields__.items():
        if defaults is None or key in defaults:
            default = field.get_default(call_default_factory=True) if defaults is None else defaults[key]
            shown[key] = _launchpad_field(field.annotation, default, documentation.get(key))
    return shown


def _launchpad_field(hint: Any, default: Any, description: str | None) -> tuple[Any, FieldInfo]:
    kind = _config_type(hint, default)
    # A nested Config class carries the defaults itself; other defaults become plain JSON values.
    if inspect.isclass(kind) and issubclass(kind, dg.Config):
        default = kind()
    elif default is not PydanticUndefined:
        default = to_jsonable_python(default)
    return kind, Field(default=default, description=description)


def _config_type(hint: Any, default: Any) -> Any:
    """Return the type of a launchpad field: Config classes for dataclasses, lists for tuples, any values for dicts."""
    if dataclasses.is_dataclass(hint):
        default = to_mapping(default) if dataclasses.is_dataclass(default) else default
        fields = _launchpad_fields(hint, default if isinstance(default, Mapping) else None)
        return create_model("Launchpad", __base__=dg.Config, __doc__=inspect.getdoc(hint), **fields)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        kinds = [argument for argument in arguments if argument is not type(None)]
        # Dagster has no unions of numbers and names such as "auto"; `from_mapping` checks their values.
        return typing.Optional[_config_type(kinds[0], None)] if len(kinds) == 1 else Any  # noqa: UP045
    # Dagster's Config has no tuples of any length; `from_mapping` makes tuples of the lists again.
    if origin is tuple:
        return list[_config_type(arguments[0], None)]  # type: ignore[misc]
    if origin is dict:
        return dict[str, Any]
    return hint


def asset_configs(
    preset: RunPreset,
    *,
    sources: Sequence[str] = (),
    suites: Mapping[str, str] | None = None,
    dev_fraction: float | None = None,
    license: str = "",
) -> dict[str, dict[str, Any]]:
    """Return the run config of each asset for a preset, files and the license of the weights."""
    beam_options = {"beam_options": list(preset.beam_arguments)}
    instances = to_mapping(preset.instances)
    del instances["max_seq_length"]  # the asset takes several: max_seq_lengths
    if dev_fraction is None:
        dev_fraction = preset.finetuning.dev_fraction
    gates = to_mapping(preset.promotion)
    del gates["retraining_margin"]  # the margin of a run that somebody starts is `margin`
    finetuning = to_mapping(preset.finetuning)
    del finetuning["dev_fraction"]  # of task_data
    return {
        "dump": {**to_mapping(preset.sample), "sources": list(sources)},
        "corpus": {**to_mapping(preset.corpus), **beam_options},
        "vocabulary": {**to_mapping(preset.vocabulary), **beam_options, "from_model": preset.pretraining.initial_model},
        "instances": {**instances, **beam_options, "max_seq_lengths": list(preset.sequence_lengths)},
        "exam": {**to_mapping(preset.exam or ExamConfig()), **beam_options, "enabled": preset.exam is not None},
        "pretrained_model": {**to_mapping(preset.pretraining), "launch": to_mapping(preset.launch)},
        "task_data": {**(suites or {}), "dev_fraction": dev_fraction},
        "finetuned_model": finetuning,
        "candidate_model": {"license": license},
        "registered_model": {**gates, "license": license},
        "promotion_decision": gates,
    }
