"""Dagster's launchpad schema, made from the configuration dataclasses of the lower floors.

A dataclass stays the one definition: its types, its defaults and the line of documentation under each field become a
Dagster `Config` class, and what the launchpad hands over is read back into the dataclass, which checks it.
"""

import dataclasses
import functools
import inspect
import os
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import dagster as dg
from pydantic import Field, create_model

from bert_model.presets import RunPreset, load_preset
from bert_pipeline.configuration import documentation_of, from_mapping, to_mapping

PRESET_VARIABLE = "BERT_PRESET"
DEFAULT_PRESET = "demo"

Settings = TypeVar("Settings")


@functools.cache
def launchpad_preset() -> RunPreset:
    """The preset whose values are the launchpad's defaults: BERT_PRESET, or the demo."""
    return load_preset(os.environ.get(PRESET_VARIABLE) or DEFAULT_PRESET)


def config_class(
    settings_class: type,
    *,
    name: str | None = None,
    defaults: Any = None,
    without: tuple[str, ...] = (),
    extra: Mapping[str, Any] | None = None,
) -> type[dg.Config]:
    """Make a Dagster Config class from a dataclass, nested dataclasses included.

    `defaults` is an instance whose values become the launchpad's defaults; without it the dataclass's own defaults
    hold. `without` leaves fields out that an asset fills itself; `extra` adds fields of the asset's own, as pydantic
    takes them: name -> (type, Field).
    """
    hints = typing.get_type_hints(settings_class)
    documentation = documentation_of(settings_class)
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(settings_class):
        if field.name in without or not field.init:
            continue
        default = getattr(defaults, field.name) if defaults is not None else _own_default(field)
        kind = _config_type(hints[field.name], default)
        description = documentation.get(field.name)
        if default is dataclasses.MISSING:
            fields[field.name] = (kind, Field(description=description))
        else:
            value = default if _is_config(kind) else _plain(default)
            if _is_config(kind) and dataclasses.is_dataclass(value):
                value = kind()
            fields[field.name] = (kind, Field(default=value, description=description))
    fields |= dict(extra or {})
    made = create_model(name or f"{settings_class.__name__}Launchpad", __base__=dg.Config, **fields)
    made.__doc__ = inspect.getdoc(settings_class)
    return made


def from_launchpad(settings_class: type[Settings], config: dg.Config, **filled: Any) -> Settings:
    """Read what the launchpad handed over into its dataclass; ConfigurationError when a value is refused.

    Fields that `config_class` added by `extra` are left to the asset; `filled` are those that it left out.
    """
    known = {field.name for field in dataclasses.fields(typing.cast(Any, settings_class))}
    values = {key: value for key, value in _plain(config.model_dump(warnings=False)).items() if key in known}
    values |= filled
    return from_mapping(settings_class, values, where=settings_class.__name__)


def _own_default(field: "dataclasses.Field[Any]") -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return dataclasses.MISSING


def _config_type(hint: Any, default: Any) -> Any:
    """The type of a launchpad field: nested Config classes for dataclasses, lists for tuples, free values for Any."""
    if dataclasses.is_dataclass(hint):
        instance = default if dataclasses.is_dataclass(default) and not isinstance(default, type) else None
        return config_class(typing.cast(type, hint), defaults=instance)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        (only,) = [argument for argument in arguments if argument is not type(None)]
        return typing.Optional[_config_type(only, dataclasses.MISSING)]  # noqa: UP045
    if origin is tuple:
        return list[_config_type(arguments[0], dataclasses.MISSING)]  # type: ignore[misc]
    if origin is dict:
        return dict[str, Any]
    return hint


def _is_config(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, dg.Config)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_mapping(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def asset_configs(
    preset: RunPreset,
    *,
    sources: Sequence[str] = (),
    suites: Mapping[str, str] | None = None,
    dev_fraction: float | None = None,
) -> dict[str, dict[str, Any]]:
    """What a preset says to each asset, as one would type it into the launchpad."""
    beam_options = {"beam_options": list(preset.beam_options)}
    instances = to_mapping(preset.instances)
    del instances["max_seq_length"]
    task_runs = to_mapping(preset.finetuning)
    if dev_fraction is None:
        dev_fraction = preset.finetuning.dev_fraction
    return {
        "dump": {**to_mapping(preset.sample), "sources": list(sources)},
        "corpus": {**to_mapping(preset.corpus), **beam_options},
        "vocabulary": {**to_mapping(preset.vocabulary), **beam_options},
        "instances": {**instances, **beam_options, "max_seq_lengths": list(preset.sequence_lengths)},
        "pretrained_model": {**to_mapping(preset.pretraining), "launch": to_mapping(preset.launch)},
        "task_data": {**(suites or {}), "dev_fraction": dev_fraction},
        "finetuned_model": {**task_runs, "dev_fraction": dev_fraction},
        "registered_task_model": to_mapping(preset.promotion),
        "promotion_decision": to_mapping(preset.promotion),
    }
