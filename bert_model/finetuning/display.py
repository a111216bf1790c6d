"""Progress of running trials: a bar for each on a terminal, else occasional lines."""

from bert_model.finetuning.trial import TrialProgress
from bert_pipeline.progress import Progress, describe


def describe_trial(report: TrialProgress) -> str:
    """Return the step, loss, rate and time left of a running trial in one line, with the dev scores of an epoch."""
    rate, name, note = report.steps_per_second, report.trial.title, f"loss {report.loss:.3f}"
    line = describe(report.step, report.total_steps, "steps", rate=rate, name=name, note=note)
    scores = [f"{split} {key} {value:.1f}" for split, own in report.scores.items() for key, value in own.items()]
    return ", ".join([line, *scores])


class TrialDisplay(Progress):
    """Progress of a search on standard error; two of its methods are `finetune`'s `progress` and `watch`."""

    def __init__(self) -> None:
        super().__init__("steps")

    def finished(self, done: int, total: int, line: str) -> None:
        """Print the result of a trial."""
        self.print(f"{done}/{total}  {line}")

    def running(self, report: TrialProgress) -> None:
        """Show a trial, which goes with its last step, and print the scores of an epoch."""
        name = report.trial.title
        if report.scores:
            self.print(describe_trial(report))
        if report.step == report.total_steps:
            self.end(name)
        elif not report.scores:
            note, rate = f"loss {report.loss:.3f}", report.steps_per_second
            self.show(report.step, report.total_steps, rate=rate, name=name, note=note)
