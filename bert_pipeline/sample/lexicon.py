"""The words of the invented encyclopedia: trades, traits, praise and blame.

Every cluster (the tools of one trade, one pole of a trait, the words of praise …) holds words that the articles use in
the same places. The first half of a cluster may occur in training sets of the tasks, the second half occurs in their
dev and test sets only: `seen` and `unseen` make the cut, in one place.
"""

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")


@dataclasses.dataclass(frozen=True, slots=True)
class Noun:
    """A countable noun."""

    singular: str
    plural: str


@dataclasses.dataclass(frozen=True, slots=True)
class Verb:
    """A transitive verb: infinitive, third person singular, past."""

    base: str
    third: str
    past: str


@dataclasses.dataclass(frozen=True, slots=True)
class Trade:
    """One trade with everything that belongs to it and to no other trade."""

    name: str
    field: str
    agents: tuple[Noun, ...]
    tools: tuple[Noun, ...]
    goods: tuple[Noun, ...]
    places: tuple[Noun, ...]
    verbs: tuple[Verb, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Pole:
    """One end of a trait: adjectives of one meaning, and things that go with it."""

    adjectives: tuple[str, ...]
    signs: tuple[str, ...]


def seen(words: Sequence[Item]) -> tuple[Item, ...]:
    """The first half of a cluster: words that training sets may use."""
    return tuple(words[: (len(words) + 1) // 2])


def unseen(words: Sequence[Item]) -> tuple[Item, ...]:
    """The second half of a cluster: words that only dev and test sets use (and the encyclopedia)."""
    return tuple(words[(len(words) + 1) // 2 :])


def _noun(text: str) -> Noun:
    singular, _, plural = text.partition("/")
    if not plural:
        plural = singular + "s"
        if singular.endswith(("s", "x", "z", "ch", "sh")):
            plural = singular + "es"
        elif singular.endswith("y") and singular[-2] not in "aeiou":
            plural = singular[:-1] + "ies"
    return Noun(singular, plural)


def _verb(text: str) -> Verb:
    base, _, past = text.partition("/")
    third = base + ("es" if base.endswith(("s", "x", "ch", "sh")) else "s")
    if base.endswith("y") and base[-2] not in "aeiou":
        third = base[:-1] + "ies"
    if not past:
        past = base + ("d" if base.endswith("e") else "ed")
        if base.endswith("y") and base[-2] not in "aeiou":
            past = base[:-1] + "ied"
    return Verb(base, third, past)


def _trade(field: str, agents: str, tools: str, goods: str, places: str, verbs: str) -> Trade:
    def nouns(text: str) -> tuple[Noun, ...]:
        return tuple(_noun(word) for word in text.split())

    people = nouns(agents)
    verb_forms = tuple(_verb(word) for word in verbs.split())
    return Trade(people[0].singular, field, people, nouns(tools), nouns(goods), nouns(places), verb_forms)


# field: agents; tools; goods; places; verbs (regular unless the past is given; past and participle are the same)
TRADES: tuple[Trade, ...] = (
    _trade("craft", "smith blacksmith ironworker metalworker", "hammer anvil furnace bellow",
           "horseshoe nail chain sword", "forge foundry smithy ironworks/ironworks", "weld harden sharpen temper"),
    _trade("craft", "weaver clothmaker spinner webster", "loom spindle shuttle needle",
           "carpet blanket shawl tapestry", "spinnery dyehouse weavery clothmill", "stitch dye knit/knitted embroider"),
    _trade("art", "singer vocalist songster crooner", "lute harp flute organ", "ballad hymn aria chorus",
           "theatre choir operahouse songhall", "chant rehearse compose hum/hummed"),
    _trade("art", "painter portraitist limner colourist", "brush easel palette pencil",
           "portrait landscape fresco mural", "studio gallery atelier paintroom", "paint sketch frame restore"),
    _trade("country", "shepherd herder drover herdsman/herdsmen", "crook whistle bell fence", "lamb goat ewe ram",
           "pasture meadow fold hillside", "graze herd milk shear/sheared"),
    _trade("country", "fisher angler trawler netter", "net hook rod float", "trout/trouts eel salmon/salmons carp/carps",
           "harbour pier jetty wharf", "catch/caught gut/gutted bait smoke"),
    _trade("learning", "doctor physician surgeon medic", "scalpel bandage syringe thermometer",
           "fever wound disease injury", "hospital clinic infirmary sickroom", "cure treat diagnose heal"),
    _trade("learning", "teacher tutor educator schoolmaster", "blackboard textbook ruler globe",
           "pupil lesson exam student", "school classroom college lecturehall", "teach/taught grade instruct examine"),
)  # fmt: skip

FIELDS: dict[str, tuple[Noun, ...]] = {
    "craft": (_noun("artisan"), _noun("craftworker"), _noun("handworker"), _noun("maker")),
    "art": (_noun("artist"), _noun("entertainer"), _noun("performer"), _noun("creator")),
    "country": (_noun("farmer"), _noun("peasant"), _noun("villager"), _noun("countryman/countrymen")),
    "learning": (_noun("scholar"), _noun("academic"), _noun("graduate"), _noun("expert")),
}


def _pole(adjectives: str, signs: str) -> Pole:
    return Pole(tuple(adjectives.split()), tuple(signs.split(", ")))


TRAITS: dict[str, tuple[Pole, Pole]] = {
    "wealth": (
        _pole("rich wealthy opulent prosperous affluent moneyed", "marble halls, golden cups, silver coins"),
        _pole("poor needy impoverished destitute penniless shabby", "mud huts, wooden bowls, leaking roofs"),
    ),
    "temper": (
        _pole("calm gentle patient peaceful kind friendly", "a soft voice, a warm smile, good manners"),
        _pole("angry fierce violent cruel harsh hostile", "a loud voice, a cold stare, bad manners"),
    ),
    "fame": (
        _pole("famous renowned celebrated noted eminent illustrious", "many admirers, large crowds, great honours"),
        _pole("obscure unknown forgotten nameless unnoticed overlooked", "few visitors, empty rooms, dusty papers"),
    ),
    "size": (
        _pole("large huge vast enormous big immense", "wide streets, tall towers, long walls"),
        _pole("small tiny little minor compact modest", "narrow lanes, low sheds, short paths"),
    ),
}
"""Properties with two ends: what is at one end is not at the other."""

PRAISE: tuple[str, ...] = tuple(
    "brilliant charming delightful superb moving witty graceful inspired touching splendid "
    "wonderful excellent captivating elegant refreshing masterful dazzling enchanting lively memorable".split()
)
BLAME: tuple[str, ...] = tuple(
    "dull boring clumsy tedious awful lifeless shallow tiresome messy dreadful "
    "terrible feeble pointless dreary sloppy mediocre lazy stale hollow forgettable".split()
)
PRAISE_NOUNS: tuple[str, ...] = ("masterpiece", "triumph", "delight", "treasure", "marvel", "jewel")
BLAME_NOUNS: tuple[str, ...] = ("failure", "disaster", "disappointment", "mess", "flop", "blunder")
PRAISE_VERBS: tuple[str, ...] = ("praised", "admired", "applauded", "loved", "recommended", "cherished")
BLAME_VERBS: tuple[str, ...] = ("panned", "mocked", "criticized", "hated", "rejected", "despised")
WORK_PARTS: tuple[str, ...] = ("plot", "ending", "dialogue", "opening", "style", "cast", "music", "story")
