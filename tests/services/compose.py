"""Reader of deploy/compose.yaml that moves its services to this machine's loopback, since tests cannot run Compose."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
DEPLOY = ROOT / "deploy"

_VARIABLE = re.compile(r"\$\{(?P<name>\w+)(?P<operator>:[?-])?(?P<rest>[^}]*)\}")


def load(variables: Mapping[str, str], places: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Read the file with each ${NAME} filled in, as Compose does; KeyError names a variable that has to be set.

    `places` are replaced before; see `moved`.
    """

    def fill(match: re.Match[str]) -> str:
        value = variables.get(match["name"], "")
        if not value and match["operator"] == ":?":
            raise KeyError(f"{match['name']}: {match['rest']}")
        return value or (match["rest"] if match["operator"] == ":-" else "")

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: filled(item) for key, item in value.items()}
        if isinstance(value, list):
            return [filled(item) for item in value]
        return _VARIABLE.sub(fill, value) if isinstance(value, str) else value

    document = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    return {key: filled(value) for key, value in moved(document, places or {}).items()}


def variables_named() -> set[str]:
    """Return every variable that the file uses."""
    return {match["name"] for match in _VARIABLE.finditer((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))}


def example_variables() -> dict[str, str]:
    """Return the variables of .env.example with their values."""
    lines = (DEPLOY / ".env.example").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def moved(value: Any, places: Mapping[str, str]) -> Any:
    """Replace names that exist only in containers (host names, paths, ports) by those of this machine."""
    if isinstance(value, dict):
        return {key: moved(item, places) for key, item in value.items()}
    if isinstance(value, list):
        return [moved(item, places) for item in value]
    if isinstance(value, str):
        for place in sorted(places, key=len, reverse=True):
            value = re.sub(rf"(?<![\w.]){re.escape(place)}(?![\w.-])", places[place], value)
    return value
