"""Configuration: frozen dataclasses are the one definition; YAML, `key=value` arguments and Dagster read into them."""

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml

from bert_pipeline.errors import ConfigurationError, suggest


def require_at_least(config: Any, name: str, least: float) -> None:
    """Raise ConfigurationError when a number is below `least` or not a number at all."""
    value = getattr(config, name)
    if not value >= least:
        raise ConfigurationError(f"{name}: found {value}, expected at least {least}")


def require_share(config: Any, name: str) -> None:
    """Raise ConfigurationError when a value is not in [0, 1)."""
    value = getattr(config, name)
    if not 0 <= value < 1:
        raise ConfigurationError(f"{name}: found {value}, expected a number from 0 to below 1")


Config = TypeVar("Config")


def from_mapping(config_class: type[Config], mapping: Mapping[str, Any], where: str = "configuration") -> Config:
    """Build a (nested) dataclass from plain YAML values.

    ConfigurationError names the key, the value found and what was expected; an unknown key names the nearest known.
    """
    return _build(config_class, mapping, where)


def to_mapping(config: Any) -> dict[str, Any]:
    """Turn a configuration dataclass into plain YAML and JSON values: tuples become lists."""
    return _plain(dataclasses.asdict(config))


def read_yaml(path: Path | str) -> dict[str, Any]:
    """Read a YAML mapping; ConfigurationError when the file is missing, not YAML, or not a mapping."""
    path = Path(path)
    try:
        with open(path, encoding="utf-8") as stream:
            document = yaml.safe_load(stream)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read ({error.strerror}); give a YAML file") from error
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{path}: not valid YAML ({' '.join(str(error).split())})") from error
    if not isinstance(document, dict):
        raise ConfigurationError(f"{path}: found {type(document).__name__}, expected a mapping of keys to values")
    return document


def override(mapping: Mapping[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """Return a copy of `mapping` with `key=value` assignments applied.

    Dots reach into nested mappings and lists ("phases.0.steps=100"); values are read as YAML.
    """
    result: Any = _plain(dict(mapping))
    for assignment in assignments:
        key, separator, text = assignment.partition("=")
        if not separator or not key:
            raise ConfigurationError(f"{assignment!r}: expected key=value, such as seed=7")
        *parents, last = key.split(".")
        target = result
        for part in parents:
            target = _child(target, part, key)
        if isinstance(target, list):
            target[_list_index(target, last, key)] = yaml.safe_load(text)
        else:
            target[last] = yaml.safe_load(text)
    return result


def _child(target: Any, part: str, key: str) -> Any:
    if isinstance(target, list):
        return target[_list_index(target, part, key)]
    child = target.setdefault(part, {})
    if not isinstance(child, (dict, list)):
        raise ConfigurationError(f"{key}: {part!r} holds {child!r}, which has no keys of its own")
    return child


def _list_index(target: list[Any], part: str, key: str) -> int:
    if not part.isdigit() or int(part) >= len(target):
        raise ConfigurationError(f"{key}: {part!r} is not an index of a list of {len(target)}")
    return int(part)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _build(expected: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(expected):
        return _build_dataclass(expected, value, where)
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        (only,) = [argument for argument in arguments if argument is not type(None)]
        return _build(only, value, where)
    if origin is Literal:
        if value not in arguments:
            raise ConfigurationError(f"{where}: found {value!r}, expected one of {', '.join(map(repr, arguments))}")
        return value
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ConfigurationError(f"{where}: found {value!r}, expected a list")
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(_build(arguments[0], item, f"{where}.{index}") for index, item in enumerate(value))
        if len(value) != len(arguments):
            raise ConfigurationError(f"{where}: found {len(value)} values, expected {len(arguments)}")
        return tuple(_build(kind, item, f"{where}.{i}") for i, (kind, item) in enumerate(zip(arguments, value)))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ConfigurationError(f"{where}: found {value!r}, expected a mapping")
        return {str(key): _build(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if expected is Any:
        return value
    return _build_scalar(expected, value, where)


def _build_scalar(expected: Any, value: Any, where: str) -> Any:
    if expected is float and isinstance(value, str):
        try:  # YAML 1.1 reads 1e-4 as text: it wants a dot in the mantissa
            return float(value)
        except ValueError:
            pass
    if expected is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, expected) and not (expected is int and isinstance(value, bool)):
        return value
    raise ConfigurationError(f"{where}: found {value!r}, expected {expected.__name__}")


def _build_dataclass(config_class: Any, value: Any, where: str) -> Any:
    if isinstance(value, config_class):
        return value
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{where}: found {value!r}, expected a mapping of keys to values")
    if hasattr(config_class, "spell_out"):  # a key may stand for several
        try:
            value = config_class.spell_out(value)
        except ConfigurationError as error:
            raise ConfigurationError(f"{where}: {error}") from error
    hints = typing.get_type_hints(config_class)
    known = {field.name: field for field in dataclasses.fields(config_class) if field.init}
    for key in value:
        if key not in known:
            raise ConfigurationError(f"{where}: unknown key {key!r}{suggest(str(key), known)}")
    missing = [
        name
        for name, field in known.items()
        if name not in value and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ConfigurationError(f"{where}: required key missing: {', '.join(missing)}")
    arguments = {key: _build(hints[key], item, f"{where}.{key}") for key, item in value.items()}
    try:
        return config_class(**arguments)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from error
