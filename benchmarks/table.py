"""The one table that each benchmark prints, and the alternating rounds that its figures come from."""

import dataclasses
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence

NOT_AVAILABLE = "not available"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement: a rate of ours and the peer's, higher is better."""

    what: str
    unit: str
    ours: float | None
    peer: str = ""
    """Which peer, with its version where it matters; empty for a measurement that has none."""
    theirs: float | None = None
    note: str = ""
    target: float | None = None
    """What ours is meant to reach: at least this, or with `less_is_better` at most this."""
    less_is_better: bool = False
    target_ratio: float | None = None
    """How many times the peer's rate ours is meant to be, in the place of `target`."""

    @property
    def ratio(self) -> float | None:
        """How many times the peer's rate ours is."""
        return self.ours / self.theirs if self.ours and self.theirs else None

    @property
    def verdict(self) -> str:
        """The target and whether it is met; "" without one."""
        if self.target_ratio is not None and self.ratio is not None:
            return f"RATIO ≥ {_number(self.target_ratio)} {'met' if self.ratio >= self.target_ratio else 'MISSED'}"
        if self.target is None or self.ours is None:
            return ""
        met = self.ours <= self.target if self.less_is_better else self.ours >= self.target
        return f"{'≤' if self.less_is_better else '≥'} {_number(self.target)} {'met' if met else 'MISSED'}"


def render(rows: Sequence[Row]) -> str:
    """Lay the rows out as a Markdown table with aligned columns; targets have one where there are any."""
    header = ("measurement", "unit", "ours", "peer", "which peer", "RATIO", "note")
    cells = [header, *(_cells(row) for row in rows)]
    if any(row.verdict for row in rows):
        cells = [(*line, last) for line, last in zip(cells, ["target", *(row.verdict for row in rows)])]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    numeric = (2, 3, 5)
    lines = [_line(line, widths, numeric) for line in cells]
    rule = (f"{'-' * (width - 1)}:" if column in numeric else "-" * width for column, width in enumerate(widths))
    return "\n".join([lines[0], f"| {' | '.join(rule)} |", *lines[1:]])


def _cells(row: Row) -> tuple[str, ...]:
    theirs = _number(row.theirs) if row.theirs is not None else NOT_AVAILABLE if row.peer else ""
    ours = _number(row.ours) if row.ours is not None else NOT_AVAILABLE
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    return row.what, row.unit, ours, theirs, row.peer, ratio, row.note


def _line(cells: Sequence[str], widths: Sequence[int], numeric: Sequence[int]) -> str:
    padded = (f"{c:>{w}}" if column in numeric else f"{c:<{w}}" for column, (c, w) in enumerate(zip(cells, widths)))
    return f"| {' | '.join(padded)} |"


def _number(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 1 else f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


Contestant = Callable[[], float]
"""Runs once and returns its rate."""


def medians(contestants: Mapping[str, Contestant], rounds: int, title: str = "") -> dict[str, float]:
    """Run every contestant once a round, there and back again, and return the median rate of each.

    What slows the machine down for a while so falls on all of them.
    """
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds):
        names = list(contestants)
        for name in names if number % 2 == 0 else reversed(names):
            rate = contestants[name]()
            rates[name].append(rate)
            label = f"{title}: " if title else ""
            print(f"{label}round {number + 1} of {rounds}, {name}: {_number(rate)}", file=sys.stderr, flush=True)
    return {name: statistics.median(values) for name, values in rates.items()}
