"""Templates to sentences, with the kind of every name marked.

A template is a sentence with slots in braces and alternatives in brackets: "[In {year} , |]{he} joined the {org}."
`a~` is the indefinite article. A name is carried as `⟦KIND|surface|target⟧` until the sentence is rendered as plain
text, as wikitext with links, or as words with entity tags.
"""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from bert_pipeline.sample.lexicon import FIELDS, TRAITS, Noun, Trade

Item = TypeVar("Item")
Slots = Mapping[str, str | Callable[[], str]]
"""Slot -> its text, or a function that draws one at each occurrence."""
Cut = Callable[[Sequence[Any]], Sequence[Any]]
"""Selects the part of a cluster of words that may be used."""

_MARK = re.compile(r"⟦([A-Z]+)\|([^|⟧]*)\|([^|⟧]*)⟧")
_ALTERNATIVES = re.compile(r"\[([^\[\]]*)\]")
_SLOT = re.compile(r"\{(\w+)\}")
_ARTICLE = re.compile(r"\b([Aa])~ (?=(?:⟦\w+\|)?(\w))")
_WORD = re.compile(r"\w+|[^\w\s]")


def mark(kind: str, surface: str, target: str = "") -> str:
    """Mark a name: kind PER, LOC, ORG or MISC; `target` is the title of its article."""
    return f"⟦{kind}|{surface}|{target}⟧"


def plain(sentence: str) -> str:
    """Return the sentence without marks."""
    return _MARK.sub(r"\2", sentence)


def with_marks(sentence: str, render: Callable[[str, str, str], str]) -> str:
    """Replace each mark by `render(kind, surface, target)`."""
    return _MARK.sub(lambda match: render(match[1], match[2], match[3]), sentence)


def tagged(sentence: str) -> list[tuple[str, str]]:
    """Return the words of the sentence with their entity kinds ("" outside names)."""
    words: list[tuple[str, str]] = []
    position = 0
    for match in _MARK.finditer(sentence):
        words += [(word, "") for word in _WORD.findall(sentence[position : match.start()])]
        words += [(word, match[1]) for word in _WORD.findall(match[2])]
        position = match.end()
    return words + [(word, "") for word in _WORD.findall(sentence[position:])]


def draw(name: str, slots: Slots) -> str:
    """Return a text for a slot; `{Goods}` is `{goods}` at the head of a sentence."""
    if name not in slots:
        word = draw(name[0].lower() + name[1:], slots)
        return word[0].upper() + word[1:]
    value = slots[name]
    return value if isinstance(value, str) else value()


class Grammar:
    """Fills templates. `cut` selects the usable part of every cluster: all of it, or the half of a task."""

    def __init__(self, rng: random.Random, cut: Cut | None = None) -> None:
        self.rng = rng
        self.cut: Cut = cut or tuple
        self._decks: dict[Sequence[Any], list[Any]] = {}

    def pick(self, cluster: Sequence[Item]) -> Item:
        """Draw a word from the usable part of the cluster, like a card from a deck.

        A word is repeated only after all others of its cluster. So a model that predicts a masked word has to know
        which words go together, instead of copying one from the text around it.
        """
        deck = self._decks.setdefault(cluster, [])
        if len(deck) <= 1:
            cards = [word for word in self.cut(cluster) if word not in deck]
            self.rng.shuffle(cards)
            deck[:0] = cards
        word: Item = deck.pop()
        return word

    def fill(self, template: str, slots: Slots) -> str:
        """Fill one template: alternatives and slots are drawn at each occurrence."""
        text = _ALTERNATIVES.sub(lambda match: self.rng.choice(match[1].split("|")), template)
        text = _SLOT.sub(lambda match: draw(match[1], slots), text)
        text = _ARTICLE.sub(lambda match: match[1] + ("n " if match[2].lower() in "aeiou" else " "), text)
        text = text.replace(" ,", ",").replace(" .", ".")
        first = text[0]
        return first.upper() + text[1:] if first.islower() else text

    def trade_slots(self, trade: Trade, prefix: str = "") -> dict[str, Callable[[], str]]:
        """Slots for the words of a trade; a prefix keeps two trades in one sentence apart."""

        # Each occurrence of a slot is a draw of its own.
        slots: dict[str, Callable[[], str]] = {}
        clusters = {"agent": trade.agents, "tool": trade.tools, "good": trade.goods, "place": trade.places}
        for name, nouns in clusters.items():
            slots |= self._noun_slots(name, nouns)
        slots |= {
            "thing": lambda: self.pick(self.rng.choice(tuple(clusters.values()))).singular,
            "verb": lambda: self.pick(trade.verbs).base,
            "verbs": lambda: self.pick(trade.verbs).third,
            "verbed": lambda: self.pick(trade.verbs).past,
            **self._noun_slots("field", FIELDS[trade.field]),
        }
        return {prefix + name: draw for name, draw in slots.items()}

    def _noun_slots(self, name: str, nouns: Sequence[Noun]) -> dict[str, Callable[[], str]]:
        return {name: lambda: self.pick(nouns).singular, f"{name}s": lambda: self.pick(nouns).plural}

    def trait_slots(self, traits: Mapping[str, int]) -> dict[str, Callable[[], str]]:
        """Slots `{wealth}`, `{wealth_sign}`, … for the poles given."""
        slots: dict[str, Callable[[], str]] = {}
        for name, pole_index in traits.items():
            pole = TRAITS[name][pole_index]
            slots[name] = lambda pole=pole: self.pick(pole.adjectives)  # type: ignore[misc]
            slots[f"{name}_sign"] = lambda pole=pole: self.rng.choice(pole.signs)  # type: ignore[misc]
        return slots
