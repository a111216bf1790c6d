"""Pictures of a training and of a comparison, as PNG bytes."""

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

SAMPLE_MARK = "generated sample"


def training_curves(events: Iterable[Mapping[str, Any]], title: str) -> bytes:
    """Loss and accuracy against steps, training and held-out, from the events of a `metrics.jsonl`."""
    series: dict[str, list[tuple[int, float]]] = {}
    phase_starts: dict[int, int] = {}
    for event in events:
        step = int(event.get("step", 0))
        if event.get("event") == "train":
            phase_starts.setdefault(int(event.get("phase", 0)), step)
        for key, value in (event.get("metrics") or {}).items():
            if isinstance(value, (int, float)):
                series.setdefault(key, []).append((step, float(value)))
    pyplot = _pyplot()
    figure, (losses, accuracies) = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for key, points in sorted(series.items()):
        if key.endswith("loss"):
            _draw(losses, points, key)
        elif key.endswith("accuracy"):
            _draw(accuracies, points, key)
    for axes, name in ((losses, "loss"), (accuracies, "accuracy")):
        axes.set_xlabel("step")
        axes.set_ylabel(name)
        axes.grid(alpha=0.3)
        for step in sorted(phase_starts.values())[1:]:
            axes.axvline(step, color="grey", linestyle=":", linewidth=1)
        if axes.lines:
            axes.legend(fontsize=8)
    figure.suptitle(title)
    return _png(figure)


def score_bars(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str], title: str) -> bytes:
    """Grouped bars: one group for each row's "task", one bar for each of `columns` (key -> legend) that has a score."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(min(11.0, max(6.0, 1.1 * len(rows) + 2)), 4.2), layout="constrained")
    width = 0.8 / max(1, len(columns))
    for index, (key, legend) in enumerate(columns.items()):
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


def _draw(axes: Any, points: list[tuple[int, float]], label: str) -> None:
    steps, values = zip(*points)
    axes.plot(steps, values, label=label, linewidth=1.4, marker="o" if len(points) < 15 else None, markersize=3)


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
