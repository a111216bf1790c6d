"""The words of the invented encyclopaedia: trades, traits, praise and blame.

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

    @property
    def with_article(self) -> str:
        return f"{'an' if self.singular[0] in 'aeiou' else 'a'} {self.singular}"


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

    name: str
    adjectives: tuple[str, ...]
    signs: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Trait:
    """A property with two ends: what is at one end is not at the other."""

    name: str
    poles: tuple[Pole, Pole]


def seen(words: Sequence[Item]) -> tuple[Item, ...]:
    """The first half of a cluster: words that training sets may use."""
    return tuple(words[: (len(words) + 1) // 2])


def unseen(words: Sequence[Item]) -> tuple[Item, ...]:
    """The second half of a cluster: words that only dev and test sets use (and the encyclopaedia)."""
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


# field: agents; tools; goods; places; verbs (regular unless the past is given)
TRADES: tuple[Trade, ...] = (
    _trade("craft", "smith ironworker", "hammer anvil furnace bellow", "horseshoe nail chain sword", "forge foundry",
           "weld harden sharpen temper"),
    _trade("craft", "carpenter joiner", "saw chisel mallet gimlet", "table cupboard chair door", "sawmill timberyard",
           "assemble plane varnish glue"),
    _trade("craft", "potter ceramist", "kiln wheel glaze sponge", "jug bowl vase pitcher", "pottery claypit",
           "mould fire decorate rinse"),
    _trade("craft", "weaver clothmaker", "loom spindle shuttle needle", "carpet blanket shawl tapestry",
           "spinnery dyehouse", "stitch dye knit/knitted embroider"),
    _trade("science", "astronomer stargazer", "telescope sextant lens astrolabe", "comet planet star eclipse",
           "observatory dome", "observe predict track discover"),
    _trade("science", "chemist alchemist", "flask burner crucible pipette", "acid powder crystal vapour",
           "laboratory vault", "dissolve distil/distilled heat purify"),
    _trade("science", "botanist herbalist", "trowel magnifier sickle spade", "orchid fern shrub lily",
           "greenhouse garden", "classify cultivate prune graft/grafted"),
    _trade("science", "historian chronicler", "quill ledger inkwell parchment", "chronicle treaty dynasty legend",
           "archive library", "record transcribe translate narrate"),
    _trade("art", "painter portraitist", "brush easel palette pencil", "portrait landscape fresco mural",
           "studio gallery", "paint sketch frame restore"),
    _trade("art", "singer vocalist", "lute harp flute organ", "ballad hymn aria chorus", "theatre choir",
           "chant rehearse compose hum/hummed"),
    _trade("art", "dancer ballerina", "ribbon slipper costume mirror", "waltz ballet polka tango", "ballroom playhouse",
           "dance choreograph present practise"),
    _trade("art", "sculptor stonecarver", "rasp drill scaffold clamp", "statue bust monument fountain",
           "quarry stoneyard", "carve polish chip/chipped engrave"),
    _trade("country", "shepherd herder", "crook whistle bell fence", "lamb goat ewe ram", "pasture meadow",
           "graze herd milk shear/sheared"),
    _trade("country", "beekeeper apiarist", "hive smoker veil honeycomb", "bee swarm colony drone", "apiary heath",
           "breed/bred feed/fed raise transport"),
    _trade("country", "fisher angler", "net hook rod float", "trout/trouts eel salmon/salmons carp/carps",
           "harbour pier", "catch/caught gut/gutted bait smoke"),
    _trade("country", "miller grinder", "millstone sieve waterwheel sack", "barley wheat rye oat", "mill granary",
           "grind/ground sift store dry"),
)  # fmt: skip

FIELDS: dict[str, tuple[Noun, Noun]] = {
    "craft": (_noun("artisan"), _noun("craftworker")),
    "science": (_noun("scholar"), _noun("scientist")),
    "art": (_noun("artist"), _noun("entertainer")),
    "country": (_noun("farmer"), _noun("peasant")),
}


def _trait(name: str, one: str, one_signs: str, other: str, other_signs: str) -> Trait:
    def pole(words: str, signs: str) -> Pole:
        adjectives = tuple(words.split())
        return Pole(adjectives[0], adjectives, tuple(sign.strip() for sign in signs.split(",")))

    return Trait(name, (pole(one, one_signs), pole(other, other_signs)))


TRAITS: dict[str, Trait] = {
    trait.name: trait
    for trait in (
        _trait("wealth", "rich wealthy opulent prosperous affluent moneyed", "marble halls, golden cups, silver coins",
               "poor needy impoverished destitute penniless shabby", "mud huts, wooden bowls, leaking roofs"),
        _trait("temper", "calm gentle patient peaceful kind friendly", "a soft voice, a warm smile, good manners",
               "angry fierce violent cruel harsh hostile", "a loud voice, a cold stare, bad manners"),
        _trait("fame", "famous renowned celebrated noted eminent illustrious", "many admirers, large crowds, great honours",
               "obscure unknown forgotten nameless unnoticed overlooked", "few visitors, empty rooms, dusty papers"),
        _trait("size", "large huge vast enormous big immense", "wide streets, tall towers, long walls",
               "small tiny little minor compact modest", "narrow lanes, low sheds, short paths"),
        _trait("climate", "cold frosty chilly icy wintry freezing", "deep snow, thick ice, northern winds",
               "warm hot sunny tropical mild balmy", "palm trees, dry sand, southern breezes"),
    )
}  # fmt: skip

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
