"""Small pictures that Dagster's UI shows in an asset's page without a click.

The page renders Markdown of fewer than `INLINE_CHARACTERS`; longer one waits behind "[Show Markdown]". A vector picture
of a few hundred bytes keeps below that.
"""

import html
import math
import statistics
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dagster as dg

INLINE_CHARACTERS = 1000
"""`MarkdownMetadataEntry` in https://github.com/dagster-io/dagster/blob/master/js_modules (MetadataEntry.tsx)."""

WIDTH, HEIGHT = 480, 110
COLOURS = ("#1f77b4", "#ff7f0e")
LINE_HEIGHT = 16
BARS_LEFT = 130
POINTS = (48, 32, 24, 16, 8)
"""How many points a curve may have: the first number with which the picture is short enough."""
MAX_BARS = 16
UNESCAPED = "/:=',;.-()+"
"""What a data URL and a Markdown link take as it is; base64 would be longer."""


def loss_preview(events: Iterable[Mapping[str, Any]]) -> dg.MetadataValue[Any]:
    """Training and held-out loss of masked words against steps, each with its first and last value."""
    series: dict[str, list[tuple[int, float]]] = {"train/mlm_loss": [], "held_out/mlm_loss": []}
    for event in events:
        for key, points in series.items():
            value = (event.get("metrics") or {}).get(key)
            if isinstance(value, (int, float)) and math.isfinite(value):
                points.append((int(event.get("step", 0)), float(value)))
    drawn = [(name, points) for name, points in series.items() if points]
    if not drawn:
        return dg.MetadataValue.md("(no losses)")
    pictures = (_markdown(_curves(drawn, count), "loss of masked words against steps") for count in POINTS)
    return next(
        (text for text in pictures if len(text.value or "") < INLINE_CHARACTERS), dg.MetadataValue.md("(no picture)")
    )


def _curves(series: Sequence[tuple[str, Sequence[tuple[int, float]]]], num_points: int) -> str:
    thinned = [_thinned(points, num_points) for _, points in series]
    last = max(step for points in thinned for step, _ in points) or 1
    low, high = (limit(value for points in thinned for _, value in points) for limit in (min, max))
    shapes = []
    for index, (name, points) in enumerate(series):
        places = [
            (round(step / last * WIDTH), round((high - value) / ((high - low) or 1) * (HEIGHT - 4)) + 2)
            for step, value in thinned[index]
        ]
        legend = f"{name.partition('/')[0].replace('_', '-')} {points[0][1]:.2f} → {points[-1][1]:.2f}"
        shapes.append(f"<path fill='none' stroke='{COLOURS[index]}' d='{_path(places)}'/>")
        shapes.append(f"<text x='190' y='{20 + LINE_HEIGHT * index}' fill='{COLOURS[index]}'>{legend}</text>")
    return _svg(WIDTH, HEIGHT, shapes)


def score_preview(rows: Sequence[tuple[str, float, float | None]]) -> dg.MetadataValue[Any]:
    """One bar for each (name, score of 0 to 100, baseline), the baseline as a tick across it; the first sixteen."""
    rows = rows[:MAX_BARS]
    height = LINE_HEIGHT * len(rows)
    bars = "".join(f"M0,{line}h{max(0, round(score))}" for line, (_, score, _) in enumerate(rows))
    ticks = "".join(f"M{round(base)},{line}h0" for line, (_, _, base) in enumerate(rows) if base and base > 0)
    labels = "\n".join(f"{html.escape(name)} {score:.0f}" for name, score, _ in rows)
    scale = f"translate({BARS_LEFT},{LINE_HEIGHT // 2})scale(3,{LINE_HEIGHT})"
    shapes = [
        f"<foreignObject width='{BARS_LEFT}' height='{height}'>",
        f"<div xmlns='http://www.w3.org/1999/xhtml' style='white-space:pre'>{labels}</div></foreignObject>",
        f"<g transform='{scale}'><path stroke='{COLOURS[0]}' stroke-width='.6' d='{bars}'/>",
        f"<path stroke='{COLOURS[1]}' stroke-width='.7' stroke-linecap='square' d='{ticks}'/></g>",
    ]
    return _markdown(_svg(WIDTH, height, shapes), "scores, baselines as ticks")


def _thinned(points: Sequence[tuple[int, float]], num_points: int) -> list[tuple[float, float]]:
    """At most `num_points`: means over equal stretches, since single ones would show chance peaks as trends."""
    stretch = math.ceil(len(points) / num_points)
    groups = [points[start : start + stretch] for start in range(0, len(points), stretch)]
    return [(statistics.fmean(step for step, _ in group), statistics.fmean(v for _, v in group)) for group in groups]


def _path(places: Sequence[tuple[int, int]]) -> str:
    """A line through whole-numbered places, written with relative moves because they are short."""
    words = [f"M{places[0][0]},{places[0][1]}l"]
    for (x, y), (next_x, next_y) in zip(places, places[1:]):
        words.append(f"{next_x - x},{next_y - y}")
    return words[0] + ",".join(words[1:]).replace(",-", "-")


def _svg(width: int, height: int, shapes: Sequence[str]) -> str:
    font = f"style='font:12px/{LINE_HEIGHT}px sans-serif'"
    head = f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' {font}>"
    return f"{head}{''.join(shapes)}</svg>"


def _markdown(svg: str, title: str) -> dg.MarkdownMetadataValue:
    return dg.MetadataValue.md(f"![{title}](data:image/svg+xml,{urllib.parse.quote(svg, safe=UNESCAPED)})")
