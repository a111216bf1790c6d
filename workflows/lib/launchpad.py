"""Dagster's launchpad schema, derived from the configuration dataclasses of the other packages.

A dataclass is the only definition: its types, defaults and field documentation become a Dagster `Config` class. The
values from the launchpad are read back into the dataclass, which validates them.
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
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, to_jsonable_python

from bert_model.presets import RunPreset, load_preset
from bert_pipeline.configuration import documentation_of, from_mapping, to_mapping
from bert_pipeline.exam.pairs import ExamConfig

PRESET_VARIABLE = "BERT_PRESET"
DEFAULT_PRESET = "demo"

Settings = TypeVar("Settings")


@functools.cache
def launchpad_preset() -> RunPreset:
    """Return the preset whose values are the launchpad's defaults: BERT_PRESET, or the demo."""
    return load_preset(os.environ.get(PRESET_VARIABLE) or DEFAULT_PRESET)


@functools.cache
def launchpad_defaults() -> dict[str, dict[str, Any]]:
    """Return the run config of each asset for the launchpad's preset."""
    return asset_configs(launchpad_preset())


def config_class(
    settings_class: type, defaults: Mapping[str, Any] | None = None, name: str = "", /, **extra: tuple[Any, str]
) -> type[dg.Config]:
    """Return a Dagster Config class for a configuration dataclass and the dataclasses nested in it.

    `defaults` maps the fields that the launchpad shows to its defaults, such as the entry of an asset in
    `asset_configs`; without it all are shown, with those of the dataclass. `extra` adds fields of the asset: their type
    and description. One without a default is required.
    """
    documentation = documentation_of(settings_class)
    shown: dict[str, tuple[Any, str | None, Any]] = {}  # type, description, default
    for key, field in _fields(settings_class).items():
        if defaults is None or key in defaults:
            default = field.get_default(call_default_factory=True) if defaults is None else defaults[key]
            shown[key] = _config_type(field.annotation, default), documentation.get(key), default
    for key, (kind, description) in extra.items():
        shown[key] = kind, description, (defaults or {}).get(key, PydanticUndefined)
    fields: dict[str, Any] = {}
    for key, (kind, documented, default) in shown.items():
        # A nested Config class carries the defaults itself; other defaults become plain JSON values.
        if inspect.isclass(kind) and issubclass(kind, dg.Config):
            default = kind()
        elif default is not PydanticUndefined:
            default = to_jsonable_python(default)
        fields[key] = (kind, Field(default=default, description=documented))
    config = create_model(name or f"{settings_class.__name__}Launchpad", __base__=dg.Config, **fields)
    config.__doc__ = inspect.getdoc(settings_class)
    return config


def from_launchpad(settings_class: type[Settings], config: dg.Config) -> Settings:
    """Read the launchpad's values into the dataclass; ConfigurationError when one is refused.

    Fields that `config_class` added by `extra` are left to the asset.
    """
    fields = _fields(settings_class)
    values = {key: value for key, value in config.model_dump(warnings=False).items() if key in fields}
    return from_mapping(settings_class, values, where=settings_class.__name__)


def _fields(settings_class: type) -> dict[str, FieldInfo]:
    fields: dict[str, FieldInfo] = typing.cast(Any, settings_class).__pydantic_fields__
    return fields


def _config_type(hint: Any, default: Any) -> Any:
    """Return the type of a launchpad field: Config classes for dataclasses, lists for tuples, any values for dicts."""
    if dataclasses.is_dataclass(hint):
        nested = typing.cast(type, hint)
        default = to_mapping(default) if dataclasses.is_dataclass(default) else default
        return config_class(nested, default if isinstance(default, Mapping) else None)
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
        "vocabulary": {**to_mapping(preset.vocabulary), **beam_options, "from_model": ""},
        "instances": {**instances, **beam_options, "max_seq_lengths": list(preset.sequence_lengths)},
        "exam": {**to_mapping(preset.exam or ExamConfig()), **beam_options, "enabled": preset.exam is not None},
        "pretrained_model": {**to_mapping(preset.pretraining), "launch": to_mapping(preset.launch)},
        "task_data": {**(suites or {}), "dev_fraction": dev_fraction},
        "finetuned_model": finetuning,
        "candidate_model": {"license": license},
        "registered_model": {**gates, "license": license},
        "promotion_decision": gates,
    }
