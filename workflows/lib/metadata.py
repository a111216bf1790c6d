"""Results of assets: failures, metadata in the order of the UI, tables and plots."""

import base64
import contextlib
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

from bert_model.training.metrics_log import without_password
from bert_pipeline.errors import BertError, PromotionError, UnavailableError
from bert_pipeline.manifest import Manifest
from bert_pipeline.storage import store_errors, without_secrets

if TYPE_CHECKING:
    import pyarrow

FIRST_KEYS = ("outcome", "score", "main_metric", "metric", "generated_sample", "name", "version", "model")
"""The entries that the UI lists first, in this order: the result, and what it is a result of."""
GROUPS = {
    "corpus": "text",
    "dump": "size",
    "finetuned_model": "search",
    "predictions": "rows",
    "pretrained_model": "training",
    "report": "tasks",
    "sample": "text",
    "task_data": "examples",
}
"""Kind of artifact -> the group of its counts, whose unit is the last part of a key: `text/words`, `rows/answers`. The
others have their kind's. The groups of all are `artifact`, `size` and `time`; scores and losses are as in MLflow."""
LAST_KEYS = ("path", "source", "sources", "training_directory", "sha256", "files", "bytes", "seconds")
"""Last parts of the keys on location and size, which the UI lists last."""


@contextlib.contextmanager
def as_dagster_failures(*, allow_retries: bool = False) -> Iterator[None]:
    """Raise an error that the user can act on as a Dagster failure with the error text as description.

    The retry policy applies if a server did not answer or a champion moved, and to all errors with `allow_retries`.
    """
    try:
        with store_errors():
            yield
    except BertError as error:
        retry = allow_retries or isinstance(error, (UnavailableError, PromotionError))
        raise dg.Failure(
            description=without_password(str(error)), metadata={"error": type(error).__name__}, allow_retries=retry
        ) from error


def manifest_metadata(manifest: Manifest, *, rates: bool = True) -> dict[str, Any]:
    """Return path, hash, size and every count of an artifact; the UI plots numbers as time series.

    Without `rates` seconds and rates are left out: for artifacts most of whose time passes before they are written.
    """
    metadata: dict[str, Any] = {
        "artifact/path": dg.MetadataValue.path(without_secrets(str(manifest.path))),
        "artifact/sha256": manifest.sha256,
        "size/bytes": (size := sum(entry["bytes"] for entry in manifest.files.values())),
        "size/files": len(manifest.files),
    }
    if rows := [entry["rows"] for entry in manifest.files.values() if "rows" in entry]:
        metadata["dagster/row_count"] = sum(rows)
    seconds = float(manifest.provenance.get("seconds", 0.0))
    if rates:
        metadata["time/seconds"] = seconds
    if rates and seconds:
        metadata["time/bytes_per_second"] = size / seconds
        if rows:
            metadata["time/rows_per_second"] = sum(rows) / seconds
    group = GROUPS.get(manifest.kind, manifest.kind)
    counts = flat_numbers(manifest.counts).items()
    return metadata | {key if "/" in key else f"{group}/{key}": value for key, value in counts}


def columns_metadata(schema: "pyarrow.Schema", origins: Mapping[str, Sequence[str]] | None = None) -> dict[str, Any]:
    """Return the columns of Parquet files for the UI; `origins` (asset -> columns) are what each of them is made of."""
    columns = dg.TableSchema([dg.TableColumn(field.name, str(field.type)) for field in schema])
    metadata: dict[str, Any] = {"dagster/column_schema": columns}
    if origins:
        deps = [dg.TableColumnDep(dg.AssetKey(asset), column) for asset, names in origins.items() for column in names]
        metadata["dagster/column_lineage"] = dg.TableColumnLineage(dict.fromkeys(schema.names, deps))
    return metadata


def order_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Order metadata for the UI: the result, pictures and texts, links, tables, description, then location and size.

    The order within a kind stays. Floats are rounded to six significant digits.
    """
    kinds = (dg.MarkdownMetadataValue, dg.UrlMetadataValue, dg.TableMetadataValue)

    def position(entry: tuple[str, Any]) -> int:
        key, value = entry
        if key in FIRST_KEYS:
            return FIRST_KEYS.index(key) - len(FIRST_KEYS)
        if key.rpartition("/")[2] in LAST_KEYS:
            return len(kinds) + 1
        return next((index for index, kind in enumerate(kinds) if isinstance(value, kind)), len(kinds))

    rounded = {key: float(f"{value:.6g}") if isinstance(value, float) else value for key, value in metadata.items()}
    return dict(sorted(rounded.items(), key=position))


def materialization(version: str, metadata: Mapping[str, Any]) -> dg.MaterializeResult[None]:
    """Return the result of an asset: a content hash as data version, and the metadata in the order of the UI."""
    return dg.MaterializeResult(metadata=order_metadata(metadata), data_version=dg.DataVersion(version))


def observe(context: dg.AssetExecutionContext, metadata: Mapping[str, Any]) -> None:
    """Record an observation of the partition; the UI plots its numbers while the asset is still being materialized."""
    key, partition = context.asset_key, context.partition_key
    context.log_event(dg.AssetObservation(asset_key=key, partition=partition, metadata=metadata))


def flat_numbers(values: Mapping[str, Any], prefix: str = "") -> dict[str, int | float]:
    """Return the finite numbers of a nested mapping, with keys joined by slashes."""
    numbers: dict[str, int | float] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            numbers |= flat_numbers(value, f"{name}/")
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            numbers[name] = value
    return numbers


def table(rows: Iterable[Mapping[str, Any]]) -> dg.MetadataValue[Any]:
    """Return a table for the UI, with the keys of the first row as columns."""
    records = [dg.TableRecord({str(key): _cell(value) for key, value in row.items()}) for row in rows]
    return dg.MetadataValue.table(records) if records else dg.MetadataValue.md("(no rows)")


def picture(png: bytes, title: str) -> dg.MetadataValue[Any]:
    """Return a PNG as Markdown that the UI renders."""
    return dg.MetadataValue.md(f"![{title}](data:image/png;base64,{base64.b64encode(png).decode()})")


def shortened(text: str, length: int = 160) -> str:
    """Return text on one line, cut to fit a table cell."""
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 1] + "…"


def _cell(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, (bool, int, float, str)) or value is None else str(value)


# --- plots: PNG ---


def training_curves(events: Iterable[Mapping[str, Any]], title: str) -> bytes:
    """Plot training and held-out loss and accuracy over steps from the events of a `metrics.jsonl`; return the PNG."""
    series: dict[str, list[tuple[int, float]]] = {}
    phase_starts: dict[int, int] = {}
    for event in events:
        step = int(event.get("step", 0))
        if event.get("event") == "train":
            phase_starts.setdefault(int(event.get("phase", 0)), step)
        for key, value in (event.get("metrics") or {}).items():
            if isinstance(value, (int, float)):
                series.setdefault(key, []).append((step, float(value)))

    # Losses and accuracies side by side: they do not share a scale.
    pyplot = _pyplot()
    figure, (losses, accuracies) = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for axes, name in ((losses, "loss"), (accuracies, "accuracy")):
        for key, points in sorted(series.items()):
            if key.endswith(name):
                marker = "o" if len(points) < 15 else None  # few points are no curve
                axes.plot(*zip(*points), label=key, linewidth=1.4, marker=marker, markersize=3)
        axes.set_xlabel("step")
        axes.set_ylabel(name)
        axes.grid(alpha=0.3)
        for step in sorted(phase_starts.values())[1:]:  # sequence lengths, and so losses, change here
            axes.axvline(step, color="grey", linestyle=":", linewidth=1)
        if axes.lines:
            axes.legend(fontsize=8)
    figure.suptitle(title)
    return _png(figure)


def score_bars(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str], title: str) -> bytes:
    """Plot a group of bars for the "task" of each row, one bar per key of `columns` (key -> legend); return the PNG."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(min(11.0, max(6.0, 1.1 * len(rows) + 2)), 4.2), layout="constrained")
    width = 0.8 / max(1, len(columns))
    for index, (key, legend) in enumerate(columns.items()):
        # The bars of a task are centered around its tick.
        places = [place + (index - (len(columns) - 1) / 2) * width for place in range(len(rows))]
        heights = [row.get(key) if isinstance(row.get(key), (int, float)) else float("nan") for row in rows]
        axes.bar(places, heights, width=width, label=legend)
    axes.set_xticks(range(len(rows)), [str(row["task"]) for row in rows], rotation=30, ha="right")
    axes.set_ylabel("score")
    axes.grid(axis="y", alpha=0.3)
    axes.axhline(0, color="black", linewidth=0.8)
    if rows:
        axes.legend(fontsize=8, ncols=len(columns), loc="upper center", bbox_to_anchor=(0.5, -0.22))
    axes.set_title(title)
    return _png(figure)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    return pyplot


def _png(figure: Any) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=110, metadata={"Software": None})
    _pyplot().close(figure)
    return stream.getvalue()
