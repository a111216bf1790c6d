"""Names of registered models and the models:/ addresses of their versions, by our own pattern."""

import re

from bert_pipeline.errors import UsageError

NAME_PATTERN = re.compile(r"bert-[a-z0-9]+(?:[-_][a-z0-9]+)*")
MAX_NAME_LENGTH = 80
URI_PATTERN = re.compile(r"models:/(?P<name>[^/@]+)(?:/(?P<version>[0-9]+)|@(?P<alias>[a-z]+))")


def model_name(preset: str, task: str | None = None) -> str:
    """Return the registered name: `bert-<preset>` or `bert-<preset>-<task>`."""
    return check_name(f"bert-{preset}" + (f"-{task}" if task else ""))


def check_name(name: str) -> str:
    """Return a registered name; UsageError when it is none of ours (MLflow takes nearly anything)."""
    if len(name) > MAX_NAME_LENGTH or not NAME_PATTERN.fullmatch(name):
        shown = name if len(name) <= MAX_NAME_LENGTH else name[:MAX_NAME_LENGTH] + "…"
        raise UsageError(
            f"model name {shown!r}: expected bert-<preset> or bert-<preset>-<task> in small letters, digits, '-' and "
            f"'_', at most {MAX_NAME_LENGTH} characters"
        )
    return name


def parse_uri(reference: str) -> tuple[str, int | None, str | None]:
    """Split a models:/ URI into name, version and alias."""
    match = URI_PATTERN.fullmatch(reference)
    if match is None:
        raise UsageError(f"{reference!r}: expected models:/NAME@ALIAS or models:/NAME/VERSION")
    version = match["version"]
    return check_name(match["name"]), int(version) if version else None, match["alias"]
