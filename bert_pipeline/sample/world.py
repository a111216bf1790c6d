"""The invented facts: persons, towns, organizations and works, and how they hang together."""

import dataclasses
import random

from bert_pipeline.sample.lexicon import ORGANIZATION_KINDS, SYLLABLES, TRADES, TRAITS, WORK_KINDS


@dataclasses.dataclass(frozen=True, slots=True)
class Names:
    """The names of one world, all different except for surnames that are also towns."""

    male: tuple[str, ...]
    female: tuple[str, ...]
    surnames: tuple[str, ...]
    towns: tuple[str, ...]
    rivers: tuple[str, ...]
    lands: tuple[str, ...]


class Town:
    """A place with its trade and its character; `traits` maps a trait to the index of its pole."""

    def __init__(self, rng: random.Random, names: Names, title: str) -> None:
        self.title = title
        self.land = rng.choice(names.lands)
        self.river = rng.choice(names.rivers)
        self.founded = rng.randrange(1100, 1400)
        self.trade = rng.choice(TRADES)
        self.traits = make_traits(rng, "size", "wealth", "fame")


class Organization:
    """A guild, academy, club … of one trade, which is called after its town or after a family."""

    def __init__(self, rng: random.Random, names: Names, town: Town) -> None:
        self.town = town
        given, surname, _ = person_name(rng, names)
        self.founder = f"{given} {surname}"
        self.kind = rng.choice(ORGANIZATION_KINDS)
        self.title = f"{rng.choice((town.title, surname))} {self.kind}"
        self.founded = rng.randrange(1400, 1700)
        self.trade = rng.choice(TRADES)
        self.traits = make_traits(rng, "size", "fame")


class Person:
    """Somebody with a trade, a temper and a life."""

    def __init__(self, rng: random.Random, names: Names, birthplace: Town, home: Town, employer: Organization) -> None:
        self.birthplace, self.home, self.employer = birthplace, home, employer
        self.given, self.surname, self.female = person_name(rng, names)
        self.title = f"{self.given} {self.surname}"
        self.mentor = " ".join(person_name(rng, names)[:2])
        self.born = rng.randrange(1400, 1700)
        self.trade = rng.choice(TRADES)
        self.died = self.born + rng.randrange(40, 90)
        self.traits = make_traits(rng, "wealth", "temper", "fame")


class Work:
    """A novel, play, film … about a trade, whose title names its subject and its author's home."""

    def __init__(self, rng: random.Random, author: Person) -> None:
        self.author, self.town = author.title, author.home
        self.trade = rng.choice(TRADES)
        subject = rng.choice(self.trade.agents + self.trade.tools + self.trade.places).singular.capitalize()
        self.title = f"The {subject} of {self.town.title}"
        self.kind = rng.choice(WORK_KINDS)
        self.year = author.born + rng.randrange(20, 40)
        self.praised = rng.random() < 0.5
        """How it was received."""


class World:
    """Everything that the encyclopedia knows: entities that fill about `num_articles` articles."""

    def __init__(self, seed: int, num_articles: int) -> None:
        rng = random.Random(f"{seed}:world")
        self.seed, self.names = seed, make_names(rng)
        num_towns = min(len(self.names.towns), max(8, num_articles // 10))
        self.towns = tuple(Town(rng, self.names, title) for title in self.names.towns[:num_towns])

        # Titles may be drawn twice: the first is kept, and more are drawn until there are enough.
        organizations: dict[str, Organization] = {}
        while len(organizations) < max(8, num_articles * 15 // 100):
            organization = Organization(rng, self.names, rng.choice(self.towns))
            organizations.setdefault(organization.title, organization)
        self.organizations = tuple(organizations.values())
        persons: dict[str, Person] = {}
        while len(persons) < max(16, num_articles * 45 // 100):
            employer = rng.choice(self.organizations)
            person = Person(rng, self.names, rng.choice(self.towns), rng.choice(self.towns), employer)
            persons.setdefault(person.title, person)
        self.persons = tuple(persons.values())

        # Works make up the rest of the articles.
        works: dict[str, Work] = {}
        while len(works) < max(8, num_articles - num_towns - len(organizations) - len(persons)):
            work = Work(rng, rng.choice(self.persons))
            works.setdefault(work.title, work)
        self.works = tuple(works.values())


def make_names(rng: random.Random) -> Names:
    """Draw the names of a world."""
    taken: set[str] = set()

    def draw(count: int, kind: str) -> tuple[str, ...]:
        names: list[str] = []
        parts = [SYLLABLES[part] for part in ("onsets", "vowels", "middles", f"{kind}_endings")]
        while len(names) < count:
            name = "".join(map(rng.choice, parts))
            if name not in taken:
                taken.add(name)
                names.append(name.capitalize())
        return tuple(names)

    towns = draw(120, "town")
    families = draw(108, "surname")
    return Names(
        male=draw(60, "male"),
        female=draw(60, "female"),
        # A tenth of the families is called after a town, so that a name alone does not tell its kind: after a town
        # of the first half in the first half of the families, and so in the second (tasks cut both in the middle).
        surnames=(*families[:54], *towns[:6], *families[54:], *towns[-6:]),
        towns=towns,
        rivers=draw(24, "town"),
        lands=draw(16, "land"),
    )


def make_traits(rng: random.Random, *names: str) -> dict[str, int]:
    """Draw a pole for each of the traits."""
    return {name: rng.randrange(len(TRAITS[name])) for name in names}


def person_name(rng: random.Random, names: Names) -> tuple[str, str, bool]:
    """Draw a given name, a surname, and whether they are a woman's."""
    female = rng.random() < 0.5
    return rng.choice(names.female if female else names.male), rng.choice(names.surnames), female
