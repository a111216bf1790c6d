"""What a materialization shows: the manifest's facts, tables of samples, pictures."""

import base64
import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dagster as dg

from bert_model.training.metrics_log import without_password
from bert_pipeline.errors import BertError, UnavailableError
from bert_pipeline.manifest import Manifest

WHEREABOUTS = ("path", "source", "sources", "training_directory", "sha256", "files", "bytes", "seconds")
"""Last parts of the keys that say where an artefact lies and what it weighs."""


@contextlib.contextmanager
def readable_failures(*, allow_retries: bool = False) -> Iterator[None]:
    """Turn an error that the user can act on into a Dagster failure with its sentence as description.

    Trying the same again helps where a server did not answer; `allow_retries` says that it does for every error here.
    The asset's retry policy decides how often.
    """
    try:
        yield
    except BertError as error:
        retry = allow_retries or isinstance(error, UnavailableError)
        raise dg.Failure(
            description=without_password(str(error)), metadata={"error": type(error).__name__}, allow_retries=retry
        ) from error


def manifest_metadata(manifest: Manifest) -> dict[str, Any]:
    """Path, identity, size and every count of an artefact, numbers as numbers so that they make time series."""
    metadata: dict[str, Any] = {
        "path": dg.MetadataValue.path(str(manifest.path)),
        "sha256": manifest.sha256,
        "bytes": sum(entry["bytes"] for entry in manifest.files.values()),
        "files": len(manifest.files),
        "seconds": float(manifest.provenance.get("seconds", 0.0)),
    }
    if manifest.provenance.get("seconds"):
        metadata["bytes_per_second"] = metadata["bytes"] / metadata["seconds"]
    rows = [entry["rows"] for entry in manifest.files.values() if "rows" in entry]
    if rows:
        metadata["dagster/row_count"] = sum(rows)
        if metadata["seconds"]:
            metadata["rows_per_second"] = sum(rows) / metadata["seconds"]
    metadata |= flat_numbers(manifest.counts)
    return metadata


def for_reading(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The order in which the UI lists metadata: pictures and texts, links, tables, facts, at last where it lies.

    Within a kind the order stays. Floats get six significant digits: more is noise to a reader.
    """
    shown = {key: _six_digits(value) if isinstance(value, float) else value for key, value in metadata.items()}
    return dict(sorted(shown.items(), key=lambda entry: _place(*entry)))


def _place(key: str, value: Any) -> int:
    if key.rpartition("/")[2] in WHEREABOUTS:
        return 4
    kinds = (dg.MarkdownMetadataValue, dg.UrlMetadataValue, dg.TableMetadataValue)
    return next((place for place, kind in enumerate(kinds) if isinstance(value, kind)), 3)


def _six_digits(value: float) -> float:
    return float(f"{value:.6g}")


def flat_numbers(values: Mapping[str, Any], prefix: str = "") -> dict[str, int | float]:
    """The finite numbers of a nested mapping, under keys joined by slashes."""
    numbers: dict[str, int | float] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            numbers |= flat_numbers(value, f"{name}/")
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            numbers[name] = value
    return numbers


def table(rows: Sequence[Mapping[str, Any]]) -> dg.MetadataValue[Any]:
    """A table for the UI; columns are the first row's keys."""
    if not rows:
        return dg.MetadataValue.md("(no rows)")
    columns = [dg.TableColumn(name=str(key), type=_column_type(value)) for key, value in rows[0].items()]
    records = [dg.TableRecord({str(key): _cell(value) for key, value in row.items()}) for row in rows]
    return dg.MetadataValue.table(records=records, schema=dg.TableSchema(columns=columns))


def picture(png: bytes, title: str) -> dg.MetadataValue[Any]:
    """A PNG as Markdown that the UI renders."""
    return dg.MetadataValue.md(f"![{title}](data:image/png;base64,{base64.b64encode(png).decode()})")


def shortened(text: str, length: int = 160) -> str:
    """Text for a table cell."""
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 1] + "…"


def _column_type(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int"
    return "float" if isinstance(value, float) else "string"


def _cell(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, (bool, int, float, str)) or value is None else str(value)
