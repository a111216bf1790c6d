"""Progress of running trials: a bar for each on a terminal, else occasional lines."""

import contextlib
import sys
import time
from types import TracebackType
from typing import Any

from bert_model.finetuning.search import Trial
from bert_model.finetuning.trial import TrialProgress

LINE_INTERVAL_SECONDS = 10.0


def describe(report: TrialProgress) -> str:
    """Return the step, loss, rate and time left of a running trial in one line, with the dev scores of an epoch."""
    seconds_left = (report.total_steps - report.step) / max(report.steps_per_second, 1e-9)
    left = f"{seconds_left / 60:.0f} min" if seconds_left >= 90 else f"{seconds_left:.0f} s"
    return (
        f"{name_of(report.trial)}: step {report.step:,} of {report.total_steps:,}, loss {report.loss:.3f}, "
        f"{report.steps_per_second:.1f} steps/s, {left} left{_scores(report)}"
    )


def name_of(trial: Trial) -> str:
    """Return what distinguishes a trial from the others of its search."""
    setting = trial.setting
    feature_input = f" {setting.feature_input}" if setting.feature_input else ""
    return (
        f"{trial.initialization.name}{feature_input} lr {setting.learning_rate:g} batch {setting.batch_size} "
        f"epochs {setting.epochs:g} seed {trial.seed}"
    )


def _scores(report: TrialProgress) -> str:
    return "".join(
        f", {split} {metric} {value:.1f}" for split, own in report.scores.items() for metric, value in own.items()
    )


class RateLimit:
    """True at most once in an interval, the first time after one."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._next = time.monotonic() + seconds

    def __call__(self) -> bool:
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self.seconds
        return True


class TrialDisplay(contextlib.AbstractContextManager["TrialDisplay"]):
    """Progress of a search on standard error; its methods are `finetune`'s `progress` and `watch`."""

    def __init__(self) -> None:
        self._on_terminal = sys.stderr.isatty()
        self._bars: dict[Trial, Any] = {}
        self._is_due = RateLimit(LINE_INTERVAL_SECONDS)

    def finished(self, done: int, total: int, line: str) -> None:
        """Show the result of a trial."""
        self._print(f"{done}/{total}  {line}")

    def running(self, report: TrialProgress) -> None:
        """Update the bar of a trial, which goes with its last step; without a terminal print a line now and then."""
        ends = report.step == report.total_steps
        if not self._on_terminal:
            if report.scores or (not ends and self._is_due()):
                self._print(describe(report))
            return
        from tqdm import tqdm

        # The first report of a trial opens its bar, at the step where a resumed one continues.
        if report.trial not in self._bars and not ends:
            self._bars[report.trial] = tqdm(
                desc=name_of(report.trial),
                total=report.total_steps,
                initial=report.step,
                unit="step",
                leave=False,
                dynamic_ncols=True,
            )

        # Scores of an epoch stay on the screen as a line above the bars.
        if report.scores:
            self._print(describe(report))
        bar = self._bars.get(report.trial)
        if bar is not None:
            bar.set_postfix_str(f"loss {report.loss:.3f}", refresh=False)
            bar.update(report.step - bar.n)
        if ends and bar is not None:
            self._bars.pop(report.trial).close()

    def _print(self, line: str) -> None:
        if self._bars:
            next(iter(self._bars.values())).write(line, file=sys.stderr)
        else:
            print(line, file=sys.stderr, flush=True)

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for bar in self._bars.values():
            bar.close()
