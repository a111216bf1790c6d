"""The words of the invented encyclopedia: trades, traits, praise and blame.

Every cluster (the tools of one trade, one pole of a trait, the words of praise …) holds words that the articles use in
the same places. The first half of a cluster may occur in training sets of the tasks, the second half occurs in their
dev and test sets only: `seen` and `unseen` make the cut, in one place. Words and sentences are in `data`.
"""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

Item = TypeVar("Item")


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((Path(__file__).parent / "data" / f"{name}.toml").read_text(encoding="utf-8"))


class Noun(NamedTuple):
    """A countable noun."""

    singular: str
    plural: str


class Verb(NamedTuple):
    """A transitive verb: infinitive, third person singular, past."""

    base: str
    third: str
    past: str


class Trade:
    """One trade with everything that belongs to it and to no other trade."""

    def __init__(self, field: str, agents: str, tools: str, goods: str, places: str, verbs: str) -> None:
        words = (verb.partition("/") for verb in verbs.split())
        self.field = field
        self.verbs = tuple(Verb(base, _inflect(base, "s"), past or _inflect(base, "ed")) for base, _, past in words)
        self.agents, self.tools, self.goods, self.places = map(_nouns, (agents, tools, goods, places))
        self.name = self.agents[0].singular
        self.title = self.name.capitalize()
        """The title of its article."""


class Pole(NamedTuple):
    """One end of a trait: adjectives of one meaning, and things that go with it."""

    adjectives: tuple[str, ...]
    signs: tuple[str, ...]


class Judgment(NamedTuple):
    """Words of praise, or of blame; the verbs are in the past."""

    adjectives: tuple[str, ...]
    nouns: tuple[str, ...]
    verbs: tuple[str, ...]


def seen(words: Sequence[Item]) -> tuple[Item, ...]:
    """The first half of a cluster: words that training sets may use."""
    return tuple(words[: (len(words) + 1) // 2])


def unseen(words: Sequence[Item]) -> tuple[Item, ...]:
    """The second half of a cluster: words that only dev and test sets use (and the encyclopedia)."""
    return tuple(words[(len(words) + 1) // 2 :])


def _inflect(word: str, ending: str) -> str:
    """Add "s" or "ed" to a word: "foundries", "searches", "tied"."""
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + ("ies" if ending == "s" else "ied")
    if ending == "s":
        return word + ("es" if word.endswith(("s", "x", "z", "ch", "sh")) else "s")
    return word + ("d" if word.endswith("e") else "ed")


def _nouns(text: str) -> tuple[Noun, ...]:
    words = (word.partition("/") for word in text.split())
    return tuple(Noun(singular, plural or _inflect(singular, "s")) for singular, _, plural in words)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ARTICLES, TASKS = _read("articles"), _read("tasks")
"""The sentences of the encyclopedia, and of the tasks; the files describe themselves."""
_DATA = _read("words")
TRADES = tuple(Trade(**trade) for trade in _DATA["trades"])
FIELDS = {name: _nouns(text) for name, text in _DATA["fields"].items()}
TRAITS = {
    name: tuple(Pole(_words(pole["adjectives"]), tuple(pole["signs"].split(", "))) for pole in poles)
    for name, poles in _DATA["traits"].items()
}
"""Properties with two ends: what is at one end is not at the other."""
BLAME, PRAISE = JUDGMENTS = tuple(
    Judgment(**{name: _words(text) for name, text in _DATA[kind].items()}) for kind in ("blame", "praise")
)
ORGANIZATION_KINDS, WORK_KINDS, WORK_PARTS = (
    _words(_DATA[name]) for name in ("organization_kinds", "work_kinds", "work_parts")
)
SYLLABLES = {name: _words(text) for name, text in _DATA["syllables"].items()}
PRONOUNS = {name: _words(text) for name, text in _DATA["pronouns"].items()}
"""Slot -> masculine and feminine."""
PARTS_OF_SPEECH = {word: part for part, text in _DATA["parts_of_speech"].items() for word in text.split()}
"""Words of closed classes."""
