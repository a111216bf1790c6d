"""What is known against a score, as one list: in results.json, the model card, MLflow, Dagster, and for the gates."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bert_model.metrics.uncertainty import is_at_chance, standard_error
from bert_pipeline.tasks.catalogue import TASKS
from bert_pipeline.tasks.task import TaskData


@dataclasses.dataclass(frozen=True, kw_only=True)
class Caveat:
    """One thing that is known against a score."""

    kind: str
    """REPEATS, AT_CHANCE and so on."""
    text: str
    """In a sentence, without its full stop."""
    share: float = 1.0
    """Share of the examples that it concerns."""

    def __str__(self) -> str:
        return self.kind.replace("_", " ")


FEW_STEPS = 100
"""Fewer optimizer steps than these rarely fine-tune a model: the warm-up alone is a tenth of them."""
REPEATS, AT_CHANCE, OWN_SPLIT, NOT_OFFICIAL = "repeats", "at_chance", "own_split", "not_official"


def known_about(
    data: TaskData, entry: Mapping[str, Any], *, official: bool, steps: int, truncated: Mapping[str, int], length: int
) -> Iterator[Caveat]:
    """Yield what is known against the main score of a search, `entry` of results.json's metrics.

    `official` tells whether the files are the published ones, `steps` the optimizer steps of a training, and
    `truncated` the number of the examples of train and of each scored split that were cut to `length` tokens.
    """
    # The examples.
    splits = {**data.dev, **data.labeled_test}
    for split, count in data.repeated.items():
        share = count / len(splits[split])
        yield Caveat(kind=REPEATS, text=f"{share:.1%} of the examples of {split} are in the training set", share=share)
    labels = set(_labels(data.train))
    for split, examples in splits.items() if data.task.labels else ():
        if unseen := sorted({str(label) for label in _labels(examples) if label not in labels}):
            more = f" and {len(unseen) - 1} more" if len(unseen) > 1 else ""
            text = f"{split} has classes without a training example: {unseen[0]}{more}"
            yield Caveat(kind="unseen_classes", text=text)
    for split, count in truncated.items():
        if count:
            total = len({"train": data.train, **splits}[split])
            text = f"{count:,} of {total:,} texts of {split} cut at {length} tokens"
            yield Caveat(kind="cut_texts", text=text, share=count / total)

    # The files. A task of one's own and the generated sample have no published ones.
    if data.own_split:
        yield Caveat(kind=OWN_SPLIT, text="the dev set was cut off the only file there was")
    if data.task.name in TASKS and not official and not data.generated:
        yield Caveat(kind=NOT_OFFICIAL, text="the files are not known to be the published ones")

    # The training and its score.
    num_seeds = len(entry["values"])
    if is_at_chance(entry["mean"], entry["majority"], standard_error(entry["n"], entry["sd"], num_seeds)):
        yield Caveat(
            kind=AT_CHANCE,
            text=f"{entry['mean']:.1f} is not clearly above the trivial baseline, {entry['majority']:.1f}",
        )
    if steps < FEW_STEPS:
        yield Caveat(kind="few_steps", text=f"trained for {steps} steps only")
    if num_seeds == 1:
        yield Caveat(kind="one_seed", text="the score is of one seed")


def _labels(examples: Sequence[Any]) -> Iterator[Any]:
    """Yield every label of some examples: classes, those of multilabel, or tags."""
    for gold in (example.gold for example in examples if example.gold is not None):
        yield from gold if isinstance(gold, tuple) else (gold,)


def kinds_of(known: Iterable[Caveat]) -> list[str]:
    """Return a list in a few words, each kind once: several splits may have the same."""
    return list(dict.fromkeys(map(str, known)))


def describe(known: Iterable[Caveat]) -> str:
    """Return a list in words."""
    return "; ".join(caveat.text for caveat in known) or "nothing"


def read_caveats(items: Iterable[Mapping[str, Any]]) -> tuple[Caveat, ...]:
    """Return the list that results.json or a version has as JSON."""
    return tuple(Caveat(**item) for item in items)
