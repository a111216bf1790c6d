"""Invented proper names, made from a small stock of syllables."""

import dataclasses
import random
from collections.abc import Sequence

_ONSETS = ("b", "br", "d", "dr", "f", "g", "gr", "h", "k", "kr", "l", "m", "n", "p", "r", "s", "st", "t", "tr", "v")
_VOWELS = ("a", "e", "i", "o", "u")
_MIDDLES = ("l", "ld", "lm", "m", "n", "nd", "r", "rd", "rn", "s", "st", "v", "z", "th")
_MALE_ENDINGS = ("an", "ek", "or", "us", "im")
_FEMALE_ENDINGS = ("a", "ia", "elle", "ine", "is")
_SURNAME_ENDINGS = ("ik", "er", "ov", "ens", "all", "ott")
_TOWN_ENDINGS = ("el", "on", "ar", "eth", "um", "ax")
_LAND_ENDINGS = ("or", "un", "ast", "id")


@dataclasses.dataclass(frozen=True, slots=True)
class Names:
    """The names of one world, all different except for surnames that are also towns."""

    male: tuple[str, ...]
    female: tuple[str, ...]
    surnames: tuple[str, ...]
    towns: tuple[str, ...]
    rivers: tuple[str, ...]
    lands: tuple[str, ...]


def make_names(rng: random.Random) -> Names:
    """Draw the names of a world."""
    taken: set[str] = set()

    def draw(count: int, endings: Sequence[str]) -> tuple[str, ...]:
        names: list[str] = []
        while len(names) < count:
            name = rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_MIDDLES) + rng.choice(endings)
            if name not in taken:
                taken.add(name)
                names.append(name.capitalize())
        return tuple(names)

    towns = draw(120, _TOWN_ENDINGS)
    families = draw(108, _SURNAME_ENDINGS)
    return Names(
        male=draw(60, _MALE_ENDINGS),
        female=draw(60, _FEMALE_ENDINGS),
        # A tenth of the families is called after a town, so that a name alone does not tell its kind: after a town
        # of the first half in the first half of the families, and so in the second (tasks cut both in the middle).
        surnames=(*families[:54], *towns[:6], *families[54:], *towns[-6:]),
        towns=towns,
        rivers=draw(24, _TOWN_ENDINGS),
        lands=draw(16, _LAND_ENDINGS),
    )
