"""Progress of running work on standard error: bars on a terminal, else a line every ten seconds."""

import contextlib
import functools
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

LINE_INTERVAL_SECONDS = 10.0


class RateLimit:
    """True at most once in LINE_INTERVAL_SECONDS, the first time after them."""

    def __init__(self) -> None:
        self._next = time.monotonic() + LINE_INTERVAL_SECONDS

    def __call__(self) -> bool:
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + LINE_INTERVAL_SECONDS
        return True


def describe(done: int, total: int | None, unit: str, *, rate: float, name: str = "", note: str = "") -> str:
    """Return, for example, "name: 130 of 400 steps, note, 2.0 steps/s, 2 min left"; `rate` is per second."""
    parts = [f"{done:,}{'' if total is None else f' of {total:,}'} {unit}", note, f"{rate:,.1f} {unit}/s"]
    if total is not None and rate > 0:
        parts.append(f"{time_text((total - done) / rate)} left")
    return (f"{name}: " if name else "") + ", ".join(part for part in parts if part)


def time_text(seconds: float) -> str:
    """Return a time in seconds, or from a minute and a half on in minutes."""
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


class Progress(contextlib.AbstractContextManager["Progress"]):
    """Progress of one work, or of several with names: a bar for each on a terminal, else one line for all."""

    def __init__(self, unit: str, log: Callable[[str], None] | None = None) -> None:
        """`unit` is the plural of what is counted, such as "steps". With `log` there are only lines, which go there."""
        self.unit = unit
        self._log = log or functools.partial(print, file=sys.stderr, flush=True)
        self._on_terminal = log is None and sys.stderr.isatty()
        self._bars: dict[str, Any] = {}
        self._first: dict[str, tuple[float, int]] = {}
        self._is_due = RateLimit()

    def show(
        self, done: int, total: int | None = None, *, rate: float | None = None, name: str = "", note: str = ""
    ) -> None:
        """Update the bar of a work, or print a line if one is due. Without `rate`, it is the mean since the first call.

        A new bar begins at `done`, where a resumed work continues.
        """
        if not self._on_terminal:
            started, first = self._first.setdefault(name, (time.monotonic(), done))
            if self._is_due():
                rate = (done - first) / max(time.monotonic() - started, 1e-9) if rate is None else rate
                self.print(describe(done, total, self.unit, rate=rate, name=name, note=note))
            return
        from tqdm import tqdm

        if name not in self._bars:
            options = {"unit": f" {self.unit}", "leave": False, "dynamic_ncols": True}
            self._bars[name] = tqdm(desc=name, total=total, initial=done, **options)
        bar = self._bars[name]
        bar.total = total
        bar.set_postfix_str(note, refresh=False)
        bar.update(done - bar.n)

    def end(self, name: str = "") -> None:
        """Remove the bar of a work."""
        if bar := self._bars.pop(name, None):
            bar.close()

    def print(self, line: str) -> None:
        """Print a line above the bars."""
        if self._bars:
            next(iter(self._bars.values())).write(line, file=sys.stderr)
        else:
            self._log(line)

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for name in list(self._bars):
            self.end(name)
