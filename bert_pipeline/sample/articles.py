"""Articles as text: the grammar draws sentences from facts, arranged in paragraphs and sections."""

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bert_pipeline.sample import templates
from bert_pipeline.sample.grammar import Cut, Grammar, mark
from bert_pipeline.sample.lexicon import (
    BLAME,
    BLAME_NOUNS,
    BLAME_VERBS,
    PRAISE,
    PRAISE_NOUNS,
    PRAISE_VERBS,
    TRADES,
    WORK_PARTS,
    Trade,
)
from bert_pipeline.sample.world import Organization, Person, Town, Work, World, person_name

Slots = Mapping[str, Callable[[], str]]
Plan = tuple[tuple[str, tuple[tuple[Sequence[str], int], ...]], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Section:
    """A heading ("" for the lead) and paragraphs of marked sentences."""

    heading: str
    paragraphs: tuple[tuple[str, ...], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Article:
    """The prose of one article, its kind and its entity."""

    title: str
    kind: str
    entity: Person | Town | Organization | Work | Trade
    sections: tuple[Section, ...]


# heading; for each paragraph: which sentences, how many
_PERSON: Plan = (
    ("", ((templates.PERSON_LEAD, 1), (templates.TRADE, 3))),
    ("Early life", ((templates.PERSON_YOUTH, 4),)),
    ("Work", ((templates.TRADE, 5), (templates.PERSON_WORK, 3), (templates.TRADE, 4))),
    ("Character", ((templates.PERSON_CHARACTER, 6),)),
    ("Death and legacy", ((templates.PERSON_DEATH, 2),)),
)
_TOWN: Plan = (
    ("", ((templates.TOWN_LEAD, 1), (templates.TRADE, 3))),
    ("History", ((templates.TOWN_HISTORY, 3),)),
    ("Character", ((templates.TOWN_CHARACTER, 5),)),
    ("Economy", ((templates.TRADE, 5), (templates.TOWN_ECONOMY, 3), (templates.TRADE, 4))),
)
_ORGANIZATION: Plan = (
    ("", ((templates.ORGANIZATION_LEAD, 1), (templates.TRADE, 3))),
    ("History", ((templates.ORGANIZATION_HISTORY, 3),)),
    ("Activities", ((templates.TRADE, 5), (templates.ORGANIZATION_WORK, 3), (templates.TRADE, 4))),
    ("Character", ((templates.ORGANIZATION_CHARACTER, 4),)),
)
_WORK: Plan = (
    ("", ((templates.WORK_LEAD, 1), (templates.TRADE, 3))),
    ("Plot", ((templates.TRADE, 5), (templates.WORK_PLOT, 3))),
    ("Reception", ((templates.WORK_RECEPTION, 6), (templates.WORK_RECEPTION, 5))),
)
_CONCEPT: Plan = (("", ((templates.CONCEPT, 5),)), ("Work", ((templates.TRADE, 5), (templates.CONCEPT, 4))))


class Writer:
    """Turns entities into sentences. `cut` restricts the words of each cluster (see `Grammar`)."""

    def __init__(self, world: World, rng: random.Random, cut: Cut | None = None) -> None:
        self.world = world
        self.rng = rng
        self.grammar = Grammar(rng, cut)

    def person_slots(self, person: Person) -> Slots:
        """Slots of the PERSON templates."""
        # The third argument of `mark` is a title: the name becomes a link if there is such an article.
        return {
            **self.trade_slots(person.trade),
            **self.grammar.trait_slots(person.traits),
            "P": lambda: mark("PER", person.title, person.title),
            "S": lambda: mark("PER", person.surname, person.title),
            "He": lambda: "She" if person.female else "He",
            "he": lambda: "she" if person.female else "he",
            "him": lambda: "her" if person.female else "him",
            "His": lambda: "Her" if person.female else "His",
            "his": lambda: "her" if person.female else "his",
            "man": lambda: "woman" if person.female else "man",
            "relative": lambda: self.rng.choice(("mother", "father", "uncle", "aunt")),
            "home": lambda: mark("LOC", person.home.title, person.home.title),
            "birthplace": lambda: mark("LOC", person.birthplace.title, person.birthplace.title),
            "deathplace": lambda: mark("LOC", person.home.title, person.home.title),
            "land": lambda: mark("LOC", person.birthplace.land),
            "river": lambda: mark("LOC", person.birthplace.river),
            "born": lambda: str(person.born),
            "died": lambda: str(person.died),
            "year": lambda: str(person.born + self.rng.randrange(16, 25)),
            "year2": lambda: str(person.born + self.rng.randrange(25, 40)),
            "mentor": lambda: mark("PER", person.mentor, person.mentor),
            "org": lambda: mark("ORG", person.employer.title, person.employer.title),
        }

    def town_slots(self, town: Town) -> Slots:
        """Slots of the TOWN templates."""
        return {
            **self.trade_slots(town.trade),
            **self.grammar.trait_slots(town.traits),
            "T": lambda: mark("LOC", town.title, town.title),
            "land": lambda: mark("LOC", town.land),
            "river": lambda: mark("LOC", town.river),
            "founded": lambda: str(town.founded),
            "year": lambda: str(town.founded + self.rng.randrange(50, 300)),
        }

    def organization_slots(self, organization: Organization) -> Slots:
        """Slots of the ORGANIZATION templates."""
        return {
            **self.trade_slots(organization.trade),
            **self.grammar.trait_slots(organization.traits),
            "O": lambda: mark("ORG", organization.title, organization.title),
            "kind": lambda: organization.kind.lower(),
            "town": lambda: mark("LOC", organization.town.title, organization.town.title),
            "land": lambda: mark("LOC", organization.town.land),
            "founded": lambda: str(organization.founded),
            "founder": lambda: mark("PER", organization.founder, organization.founder),
            "year": lambda: str(organization.founded + self.rng.randrange(20, 200)),
        }

    def work_slots(self, work: Work) -> Slots:
        """Slots of the WORK templates."""
        pick = self.grammar.pick
        traits = {name: self.rng.randrange(2) for name in ("temper", "wealth")}
        return {
            **self.trade_slots(work.trade),
            **self.grammar.trait_slots(traits),
            "W": lambda: mark("MISC", work.title, work.title),
            "work": lambda: work.kind,
            "author": lambda: mark("PER", work.author, work.author),
            "town": lambda: mark("LOC", work.town.title, work.town.title),
            "land": lambda: mark("LOC", work.town.land),
            "year": lambda: str(work.year),
            **self.reception_slots(work.praised),
            "part": lambda: pick(WORK_PARTS),
        }

    def reception_slots(self, praised: bool) -> Slots:
        """Slots of the reception of a work."""
        pick = self.grammar.pick
        return {
            "quality": lambda: pick(PRAISE if praised else BLAME),
            "verdict": lambda: pick(PRAISE_NOUNS if praised else BLAME_NOUNS),
            "judged": lambda: pick(PRAISE_VERBS if praised else BLAME_VERBS),
        }

    def trade_slots(self, trade: Trade) -> Slots:
        """Slots of the CONCEPT templates, which all others share."""
        names = self.world.names

        def somebody() -> str:
            given, surname, _ = person_name(self.rng, names)
            return mark("PER", f"{given} {surname}", f"{given} {surname}")

        def some_organization() -> str:
            title = self.rng.choice(self.world.organizations).title
            return mark("ORG", title, title)

        return {
            **self.grammar.trade_slots(trade),
            "P": somebody,
            "founder": somebody,
            "org": some_organization,
            "land_people": lambda: mark("MISC", self.rng.choice(names.lands) + "ian"),
        }

    def sentences(self, pool: Sequence[str], count: int, slots: Slots) -> list[str]:
        """Return `count` sentences from different templates of the pool, in random order."""
        chosen = self.rng.sample(pool, min(count, len(pool)))
        return [self.grammar.fill(template, slots) for template in chosen]

    def write(self, plan: Plan, slots: Slots) -> tuple[Section, ...]:
        """Return the sections of the plan: one paragraph for the lead, one per entry in the other sections."""
        sections = []
        for heading, entries in plan:
            paragraphs = [tuple(self.sentences(pool, count, slots)) for pool, count in entries]
            if not heading:
                paragraphs = [tuple(sentence for paragraph in paragraphs for sentence in paragraph)]
            sections.append(Section(heading, tuple(paragraphs)))
        return tuple(sections)


def write_articles(world: World) -> list[Article]:
    """Return all articles of the world, each a function of the world's seed and its title."""
    kinds: tuple[tuple[str, Plan, Sequence[Any], Callable[[Writer, Any], Slots]], ...] = (
        ("person", _PERSON, world.persons, Writer.person_slots),
        ("town", _TOWN, world.towns, Writer.town_slots),
        ("organization", _ORGANIZATION, world.organizations, Writer.organization_slots),
        ("work", _WORK, world.works, Writer.work_slots),
        ("trade", _CONCEPT, TRADES, Writer.trade_slots),
    )
    articles = []
    for kind, plan, entities, slots_of in kinds:
        for entity in entities:
            # A generator for each title: no article depends on the order.
            title = entity.name.capitalize() if isinstance(entity, Trade) else entity.title
            writer = Writer(world, random.Random(f"{world.seed}:article:{title}"))
            articles.append(Article(title, kind, entity, writer.write(plan, slots_of(writer, entity))))
    return articles
