"""The invented facts: persons, towns, organizations and works, and how they hang together."""

import dataclasses
import random
from collections.abc import Mapping

from bert_pipeline.sample.lexicon import ORGANIZATION_KINDS, SYLLABLES, TRADES, TRAITS, WORK_KINDS, Trade


@dataclasses.dataclass(frozen=True, slots=True)
class Names:
    """The names of one world, all different except for surnames that are also towns."""

    male: tuple[str, ...]
    female: tuple[str, ...]
    surnames: tuple[str, ...]
    towns: tuple[str, ...]
    rivers: tuple[str, ...]
    lands: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Town:
    """A place with its trade and its character; `traits` maps a trait to the index of its pole."""

    title: str
    land: str
    river: str
    founded: int
    trade: Trade
    traits: Mapping[str, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Organization:
    """A guild, academy, club … of one trade in one town."""

    title: str
    kind: str
    town: Town
    founded: int
    founder: str
    trade: Trade
    traits: Mapping[str, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Person:
    """Somebody with a trade, a temper and a life."""

    title: str
    given: str
    surname: str
    female: bool
    trade: Trade
    birthplace: Town
    home: Town
    born: int
    died: int
    employer: Organization
    mentor: str
    traits: Mapping[str, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """A novel, play, film … about a trade; `praised` says how it was received."""

    title: str
    kind: str
    author: str
    year: int
    trade: Trade
    town: Town
    praised: bool


@dataclasses.dataclass(frozen=True, slots=True)
class World:
    """Everything that the encyclopedia knows."""

    seed: int
    names: Names
    towns: tuple[Town, ...]
    organizations: tuple[Organization, ...]
    persons: tuple[Person, ...]
    works: tuple[Work, ...]


def make_world(seed: int, num_articles: int) -> World:
    """Invent a world whose entities fill about `num_articles` articles."""
    rng = random.Random(f"{seed}:world")
    names = make_names(rng)
    num_towns = min(len(names.towns), max(8, num_articles // 10))
    towns = tuple(make_town(rng, names, title) for title in names.towns[:num_towns])

    # Titles may be drawn twice: the first is kept, and more are drawn until there are enough.
    organizations: dict[str, Organization] = {}
    while len(organizations) < max(8, num_articles * 15 // 100):
        organization = make_organization(rng, names, rng.choice(towns))
        organizations.setdefault(organization.title, organization)
    persons: dict[str, Person] = {}
    while len(persons) < max(16, num_articles * 45 // 100):
        employer = rng.choice(tuple(organizations.values()))
        person = make_person(rng, names, rng.choice(towns), rng.choice(towns), employer)
        persons.setdefault(person.title, person)

    # Works make up the rest of the articles.
    works: dict[str, Work] = {}
    while len(works) < max(8, num_articles - len(towns) - len(organizations) - len(persons)):
        work = make_work(rng, rng.choice(tuple(persons.values())))
        works.setdefault(work.title, work)
    return World(seed, names, towns, tuple(organizations.values()), tuple(persons.values()), tuple(works.values()))


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


def make_town(rng: random.Random, names: Names, title: str) -> Town:
    """A town of the given name."""
    return Town(
        title=title,
        land=rng.choice(names.lands),
        river=rng.choice(names.rivers),
        founded=rng.randrange(1100, 1400),
        trade=rng.choice(TRADES),
        traits=make_traits(rng, "size", "wealth", "fame"),
    )


def make_organization(rng: random.Random, names: Names, town: Town) -> Organization:
    """An organization that is called after its town or after a family."""
    given, surname, _ = person_name(rng, names)
    kind = rng.choice(ORGANIZATION_KINDS)
    return Organization(
        title=f"{rng.choice((town.title, surname))} {kind}",
        kind=kind,
        town=town,
        founded=rng.randrange(1400, 1700),
        founder=f"{given} {surname}",
        trade=rng.choice(TRADES),
        traits=make_traits(rng, "size", "fame"),
    )


def make_person(rng: random.Random, names: Names, birthplace: Town, home: Town, employer: Organization) -> Person:
    """A person, and the name of the mentor."""
    given, surname, female = person_name(rng, names)
    mentor_given, mentor_surname, _ = person_name(rng, names)
    born = rng.randrange(1400, 1700)
    return Person(
        title=f"{given} {surname}",
        given=given,
        surname=surname,
        female=female,
        trade=rng.choice(TRADES),
        birthplace=birthplace,
        home=home,
        born=born,
        died=born + rng.randrange(40, 90),
        employer=employer,
        mentor=f"{mentor_given} {mentor_surname}",
        traits=make_traits(rng, "wealth", "temper", "fame"),
    )


def make_work(rng: random.Random, author: Person) -> Work:
    """A work whose title names its subject and its author's home."""
    trade = rng.choice(TRADES)
    subject = rng.choice(trade.agents + trade.tools + trade.places).singular.capitalize()
    return Work(
        title=f"The {subject} of {author.home.title}",
        kind=rng.choice(WORK_KINDS),
        author=author.title,
        year=author.born + rng.randrange(20, 40),
        trade=trade,
        town=author.home,
        praised=rng.random() < 0.5,
    )
