"""Configuration: frozen dataclasses, validated by pydantic; YAML, `key=value` arguments and Dagster read into them.

A class is declared once, with `@configuration`: types, ranges and the line of documentation under each field. YAML
presets, the command line and Dagster's launchpad follow from it.
"""

import argparse
import ast
import dataclasses
import functools
import importlib
import inspect
import itertools
import json
import os
import re
import sys
import textwrap
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import pydantic
import yaml
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from bert_pipeline.errors import ConfigurationError, suggest

Share = Annotated[float, Field(ge=0, lt=1)]
"""A share that is never the whole, such as a dropout."""
Proportion = Annotated[float, Field(ge=0, le=1)]
"""A share of a whole."""
Seed = Annotated[int, Field(ge=0, lt=2**63)]
"""A seed of torch's generators, and a 64-bit key of `bert_pipeline.randomness`."""

Config = TypeVar("Config")


@typing.dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field, Field))
def configuration(declared: type[Config]) -> type[Config]:
    """Make a class a frozen, keyword-only dataclass whose values are validated.

    ConfigurationError names the key, the value found and what was expected; an unknown key names the nearest known.
    """
    rules = ConfigDict(extra="forbid", strict=True)
    validated: Any = pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=rules)(declared)
    initialize = validated.__init__

    @functools.wraps(initialize)
    def __init__(self: Any, *unnamed: Any, **values: Any) -> None:
        try:
            initialize(self, *unnamed, **values)
        except ValidationError as error:
            raise ConfigurationError(_explain(error, declared)) from error

    validated.__init__ = __init__
    return typing.cast(type[Config], validated)


def from_mapping(config_class: type[Config], mapping: Mapping[str, Any], where: str = "configuration") -> Config:
    """Build a (nested) configuration from plain YAML values.

    ConfigurationError names the key, the value found and what was expected; an unknown key names the nearest known.
    """
    try:
        # As JSON, lists become tuples while nothing else is converted: 1.0 is no int, and True no number.
        return typing.cast(
            Config, _validator(typing.cast(Any, config_class)).validate_json(json.dumps(_plain(mapping)))
        )
    except ValidationError as error:
        raise ConfigurationError(_explain(error, config_class, where)) from error


def to_mapping(config: Any) -> dict[str, Any]:
    """Turn a configuration dataclass into plain YAML and JSON values: tuples become lists."""
    return dict(_plain(dataclasses.asdict(config)))


def changed_settings(config: Any) -> dict[str, Any]:
    """Return the settings of a configuration that differ from their defaults, as plain values; all of a mapping."""
    if isinstance(config, Mapping):
        return dict(_plain(config))
    changed = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if value != default_of(field):
            changed[field.name] = changed_settings(value) if dataclasses.is_dataclass(value) else _plain(value)
    return changed


def documentation_of(config_class: type) -> dict[str, str]:
    """Return the line of documentation under each field of a configuration class, read from its source."""
    texts: dict[str, str] = {}
    for base in reversed(config_class.__mro__[:-1]):  # inherited fields too
        declared = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(declared, ast.ClassDef)
        for field, line in itertools.pairwise(declared.body):
            match field, line:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    texts[name] = " ".join(text.split())
    return texts


def settings_of(config: Any, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield key, value and documentation of every setting, as `key=value` and YAML name it ("phases.0.steps").

    The values are those of a configuration, or for a class the defaults.
    """
    config_class: Any = config if inspect.isclass(config) else type(config)
    documentation, types = documentation_of(config_class), typing.get_type_hints(config_class)
    for field in dataclasses.fields(config_class):
        key = f"{prefix}{field.name}"
        value = default_of(field) if config is config_class else getattr(config, field.name)
        # A section, perhaps optional, or the entries of a list; other types are values.
        parts = [kind for kind in (types[field.name], *typing.get_args(types[field.name])) if inspect.isclass(kind)]
        section = next((kind for kind in parts if dataclasses.is_dataclass(kind)), None)
        is_list = typing.get_origin(types[field.name]) is tuple
        if section is None or value is None and config is not config_class:
            text = "required" if value is dataclasses.MISSING else yaml_text(value)
            yield key, text, documentation.get(field.name, "")
        elif config is config_class:
            yield from settings_of(section, f"{key}.{'0.' if is_list else ''}")
        else:
            for index, item in enumerate(value if is_list else [value]):
                yield from settings_of(item, f"{key}.{f'{index}.' if is_list else ''}")


def default_of(field: "dataclasses.Field[Any]") -> Any:
    """Return the default of a field; `dataclasses.MISSING` if it has none."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def yaml_text(value: Any) -> str:
    """Return a value as one line of YAML."""
    return yaml.safe_dump(_plain(value), default_flow_style=True, width=1000).removesuffix("...\n").strip()


def print_settings(config: Any) -> None:
    """Print every setting of a configuration, or of a class with its defaults, and its meaning."""
    lines = ["\n    ".join([f"{key}={value}", *textwrap.wrap(text, 112)]) for key, value, text in settings_of(config)]
    try:
        print(*lines, sep="\n", flush=True)
    except BrokenPipeError:  # the reader has gone, as after `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class SettingsAction(argparse.Action):
    """The option `--settings`, with which a command prints its configuration, and needs no other argument."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        text = "print every key with its value and meaning, and exit"
        super().__init__(option_strings, dest, nargs=0, default=False, help=text)

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, *_: Any) -> None:
        setattr(namespace, self.dest, True)
        for action in parser._actions:  # argparse has no public list of them
            action.required = False


class CommandParser(argparse.ArgumentParser):
    """The parser of a command with an option for each setting.

    They are added when the command is parsed: the class of the configuration may need libraries that load slowly.
    """

    left_out: Collection[str] | None = None
    """Fields without an option, or with one of another kind; None before `add_configuration` and after the parsing."""

    def parse_known_args(self, *args: Any, **options: Any) -> Any:
        if self.left_out is not None:
            _add_options(self, _class_of(self.get_default("config_class")), self.left_out)
            self.left_out = None
        return super().parse_known_args(*args, **options)


def add_configuration(
    parser: argparse.ArgumentParser,
    config_class: str,
    *,
    special: Callable[[argparse.Namespace], dict[str, Any]] = lambda arguments: {},
    left_out: Collection[str] | None = None,
) -> None:
    """Add `--config FILE`, `key=value` and `--settings` for a class "module:name"; `configured` reads them.

    A CommandParser has an option for each field too, unless `left_out` is None. `special` returns the settings that
    other options state.
    """
    parser.add_argument("--config", metavar="FILE", help="YAML file of settings, which options and key=value override")
    parser.add_argument(
        "assignments", nargs="*", default=(), metavar="key=value", help="any key that --settings prints"
    )
    parser.add_argument("--settings", action=SettingsAction)
    parser.set_defaults(config_class=config_class, special=special, configured=configured)
    if isinstance(parser, CommandParser):
        parser.left_out = left_out


def settings_given(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of a command line: of its `--config` file, its options, and its `key=value` words."""
    settings = read_yaml(arguments.config) if arguments.config else {}
    names = [field.name for field in dataclasses.fields(_class_of(arguments.config_class))]
    settings |= {name: getattr(arguments, name) for name in names if getattr(arguments, name, None) is not None}
    return override(settings | arguments.special(arguments), arguments.assignments)


def configured(arguments: argparse.Namespace) -> Any:
    """Return the configuration that a command line states. ConfigurationError if a key or value is not acceptable."""
    return from_mapping(_class_of(arguments.config_class), settings_given(arguments), where="")


def naming_options(text: str, arguments: argparse.Namespace) -> str:
    """Return an error with a command's options in place of its settings: "--vocab-size 5" for "vocab_size=5"."""
    fields = dataclasses.fields(_class_of(arguments.config_class)) if hasattr(arguments, "config_class") else ()
    names = [field.name for field in fields if hasattr(arguments, field.name)]
    for name in names:
        option = f"--{name.replace('_', '-')}"
        text = re.sub(rf"(?<![\w.-]){name}=", f"{option} ", text)
        # A name of one word is a word of the text, except at its beginning
        text = re.sub(rf"(?<![\w.-]){name}(?!\w)" if "_" in name else rf"^{name}(?=: )", option, text)
    return text


def _class_of(name: str) -> Any:
    module, name = name.split(":")
    return getattr(importlib.import_module(module), name)


def _add_options(parser: argparse.ArgumentParser, config_class: type, left_out: Collection[str]) -> None:
    """Add an option for each field, such as --vocab-size for `vocab_size`; without it the value is None."""
    documentation, types = documentation_of(config_class), typing.get_type_hints(config_class)
    group = parser.add_argument_group("settings")
    for field in dataclasses.fields(config_class):
        if field.name in left_out:
            continue
        kind, default = types[field.name], default_of(field)
        text = documentation[field.name]
        options: dict[str, Any] = {}
        if kind is bool:
            options = {"action": "store_const", "const": True}
        elif typing.get_origin(kind) is Literal:
            options = {"choices": [choice for choice in typing.get_args(kind) if choice]}
        else:
            kind = next(part for part in (*typing.get_args(kind), kind) if part is not type(None))
            options = {"type": kind, "metavar": {int: "N", float: "X"}.get(kind, "TEXT")}
        if kind is not bool and default not in ("", None):
            text += f" (default: {default})"
        group.add_argument(f"--{field.name.replace('_', '-')}", help=text.replace("%", "%%"), **options)


def read_yaml(path: Path | str) -> dict[str, Any]:
    """Read a YAML mapping; ConfigurationError when the file is missing, not YAML, or not a mapping."""
    path = Path(path)
    try:
        with open(path, encoding="utf-8") as stream:
            document = yaml.load(stream, _Loader)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read ({error.strerror}); give a YAML file") from error
    except (yaml.YAMLError, ValueError) as error:  # the latter: not UTF-8
        raise ConfigurationError(f"{path}: not valid YAML ({' '.join(str(error).split())})") from error
    # An empty file is None, a lone word a string: both are valid YAML.
    if not isinstance(document, dict):
        raise ConfigurationError(f"{path}: found {type(document).__name__}, expected a mapping of keys to values")
    return document


def override(mapping: Mapping[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """Return a copy of `mapping` with `key=value` assignments applied.

    Dots reach into nested mappings and lists ("phases.0.steps=100"); values are YAML, and nothing is a text ("exam=").
    """
    result: Any = _plain(dict(mapping))
    for assignment in assignments:
        key, separator, text = assignment.partition("=")
        if not separator or not key:
            raise ConfigurationError(f"{assignment!r}: expected key=value, such as seed=7")
        # Walk to the mapping or list that holds the last part; mappings on the way are created.
        *parents, last = key.split(".")
        target = result
        for part in parents:
            target = _child(target, part, key)
        try:
            value = yaml.load(text, _Loader) if text else ""  # to YAML it is null, which one can write
        except (yaml.YAMLError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise ConfigurationError(f"{assignment!r}: not valid YAML ({reason}); quote the value") from error
        if isinstance(target, list):
            target[_list_index(target, last, key)] = value
        else:
            target[last] = value
    return dict(result)


class _Loader(yaml.SafeLoader):
    """YAML's safe loader that reads 1e-4 as a number and 2026-11-01 as a text, as YAML 1.2 does, and no key twice."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        keys = [key.value for key, _ in node.value]
        for number, (key, _) in enumerate(node.value):
            if key.value in keys[:number]:
                raise yaml.composer.ComposerError(None, None, f"the key {key.value!r} occurs twice", key.start_mark)
        return node


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}

_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+"), list("-+0123456789")
)


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
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain(dataclasses.asdict(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


@functools.cache
def _validator(config_class: Any) -> TypeAdapter[Any]:
    return TypeAdapter(config_class)


def _explain(error: ValidationError, config_class: Any, where: str = "") -> str:
    """Say in one line what the first error is: where, found and expected."""
    errors = error.errors(include_url=False)
    unknown = [item for item in errors if item["type"] == "unexpected_keyword_argument"]
    first = (unknown or errors)[0]  # a key that is misspelled is missing too
    parts, value = [str(part) for part in first["loc"]], first["input"]
    if unknown:
        *parts, key = parts
        reason = f"unknown key {key!r}{suggest(key, _fields_at(config_class, parts))}"
    elif first["type"].startswith("missing"):
        *parts, key = parts
        reason = f"required key missing: {key}"
    elif isinstance(cause := first.get("ctx", {}).get("error"), ConfigurationError):
        # Raised by the class's own check: the text is complete.
        reason = str(cause)
    else:
        reason = f"found {value!r}, expected {_expectation(first)}"
    return ": ".join(filter(None, [".".join(filter(None, [where, *parts])), reason]))


_KINDS = {
    "int_type": "an integer",
    "float_type": "a number",
    "string_type": "text, in quotes",
    "bool_type": "true or false",
    "tuple_type": "a list, such as [1]",
    "dict_type": "a mapping of keys to values",
    "dataclass_type": "a mapping of keys to values",
}
_BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}


def _expectation(error: ErrorDetails) -> str:
    for name, words in _BOUNDS.items():
        if name in error.get("ctx", {}):
            return f"{words} {error['ctx'][name]}"
    return _KINDS.get(error["type"]) or error["msg"].removeprefix("Input should be ")


def _fields_at(config_class: Any, location: Sequence[str]) -> list[str]:
    """Return the keys of the configuration class that a location such as phases.0 leads to."""
    for part in location:
        if part.isdigit():
            config_class = typing.get_args(config_class)[0]
        else:
            config_class = typing.get_type_hints(config_class)[part]
            # An optional section: ExamConfig | None
            kinds = [kind for kind in typing.get_args(config_class) if kind is not type(None)]
            if len(kinds) < len(typing.get_args(config_class)):
                config_class = kinds[0]
    return [field.name for field in dataclasses.fields(config_class)]
