"""The words and names of each split of a task."""

import dataclasses
import random
from collections.abc import Sequence
from typing import TypeVar

from bert_pipeline.sample.articles import Writer
from bert_pipeline.sample.lexicon import TRADES, Trade, seen, unseen
from bert_pipeline.sample.world import Names, Organization, Person, Town, Work, World

Item = TypeVar("Item")


@dataclasses.dataclass(frozen=True, slots=True)
class Split:
    """One split of one task: its random numbers, its half of the words, and new facts for it.

    The facts are about people and places too small for an article of their own; their names, trades and traits are
    those of the encyclopaedia. Training sets draw from the first half of each cluster of words and of each stock of
    names, dev and test sets from the second.
    """

    world: World
    task: str
    name: str
    """train, dev or test."""
    rng: random.Random

    def cut(self, words: Sequence[Item]) -> Sequence[Item]:
        """The half of a cluster that this split may use."""
        return seen(words) if self.name == "train" else unseen(words)

    @property
    def names(self) -> Names:
        """The half of the names that this split may use."""
        names = self.world.names
        return Names(*(tuple(self.cut(getattr(names, field.name))) for field in dataclasses.fields(Names)))

    @property
    def trades(self) -> tuple[Trade, ...]:
        """Half of the trades of every field: for tasks that need all words of a trade."""
        return tuple(TRADES[0::2] if self.name == "train" else TRADES[1::2])

    def writer(self) -> Writer:
        """A writer that keeps to this split's words."""
        return Writer(self.world, self.rng, self.names, self.cut)

    def town(self) -> Town:
        """A new town."""
        return Town(self.rng, self.names, self.rng.choice(self.names.towns))

    def organization(self) -> Organization:
        """A new organization."""
        return Organization(self.rng, self.names, self.town())

    def person(self) -> Person:
        """A new person."""
        return Person(self.rng, self.names, self.town(), self.town(), self.organization())

    def work(self) -> Work:
        """A new work."""
        return Work(self.rng, self.person())


def make_split(world: World, task: str, name: str) -> Split:
    """A split whose content is a function of (seed, task, name)."""
    return Split(world, task, name, random.Random(f"{world.seed}:{task}:{name}"))
