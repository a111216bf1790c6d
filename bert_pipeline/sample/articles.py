"""Articles as text: the grammar draws sentences from facts, arranged in paragraphs and sections."""

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

from bert_pipeline.sample.grammar import Cut, Grammar, Slots, mark
from bert_pipeline.sample.lexicon import ARTICLES, JUDGMENTS, PRONOUNS, TRADES, WORK_PARTS, Trade
from bert_pipeline.sample.world import Organization, Person, Town, Work, World, person_name

Entity = Person | Town | Organization | Work | Trade


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
    entity: Entity
    sections: tuple[Section, ...]


SENTENCES: dict[str, dict[str, Sequence[str]]] = ARTICLES["sentences"]
"""Kind of article -> kind of section -> templates; those under "all" suit every kind of article."""


class Writer:
    """Turns entities into sentences. `cut` restricts the words of each cluster (see `Grammar`)."""

    def __init__(self, world: World, rng: random.Random, cut: Cut | None = None) -> None:
        self.world = world
        self.rng = rng
        self.grammar = Grammar(rng, cut)

    def slots(self, entity: Entity) -> Slots:
        """Slots of the templates of an entity's kind."""
        slots_of: dict[type, Callable[[Any], Slots]] = {
            Person: self.person_slots,
            Town: self.town_slots,
            Organization: self.organization_slots,
            Work: self.work_slots,
            Trade: self.trade_slots,
        }
        return slots_of[type(entity)](entity)

    def person_slots(self, person: Person) -> Slots:
        """Slots of the PERSON templates."""
        # The third argument of `mark` is a title: the name becomes a link if there is such an article.
        return {
            **self.trade_slots(person.trade),
            **self.grammar.trait_slots(person.traits),
            "P": mark("PER", person.title, person.title),
            "S": mark("PER", person.surname, person.title),
            **{slot: pair[person.female] for slot, pair in PRONOUNS.items()},
            "relative": lambda: self.rng.choice(("mother", "father", "uncle", "aunt")),
            "home": mark("LOC", person.home.title, person.home.title),
            "birthplace": mark("LOC", person.birthplace.title, person.birthplace.title),
            "deathplace": mark("LOC", person.home.title, person.home.title),
            "land": mark("LOC", person.birthplace.land),
            "river": mark("LOC", person.birthplace.river),
            "born": str(person.born),
            "died": str(person.died),
            "year": lambda: str(person.born + self.rng.randrange(16, 25)),
            "year2": lambda: str(person.born + self.rng.randrange(25, 40)),
            "mentor": mark("PER", person.mentor, person.mentor),
            "org": mark("ORG", person.employer.title, person.employer.title),
        }

    def town_slots(self, town: Town) -> Slots:
        """Slots of the TOWN templates."""
        return {
            **self.trade_slots(town.trade),
            **self.grammar.trait_slots(town.traits),
            "T": mark("LOC", town.title, town.title),
            "land": mark("LOC", town.land),
            "river": mark("LOC", town.river),
            "founded": str(town.founded),
            "year": lambda: str(town.founded + self.rng.randrange(50, 300)),
        }

    def organization_slots(self, organization: Organization) -> Slots:
        """Slots of the ORGANIZATION templates."""
        return {
            **self.trade_slots(organization.trade),
            **self.grammar.trait_slots(organization.traits),
            "O": mark("ORG", organization.title, organization.title),
            "kind": organization.kind.lower(),
            "town": mark("LOC", organization.town.title, organization.town.title),
            "land": mark("LOC", organization.town.land),
            "founded": str(organization.founded),
            "founder": mark("PER", organization.founder, organization.founder),
            "year": lambda: str(organization.founded + self.rng.randrange(20, 200)),
        }

    def work_slots(self, work: Work) -> Slots:
        """Slots of the WORK templates."""
        pick = self.grammar.pick
        traits = {name: self.rng.randrange(2) for name in ("temper", "wealth")}
        return {
            **self.trade_slots(work.trade),
            **self.grammar.trait_slots(traits),
            "W": mark("MISC", work.title, work.title),
            "work": work.kind,
            "author": mark("PER", work.author, work.author),
            "town": mark("LOC", work.town.title, work.town.title),
            "land": mark("LOC", work.town.land),
            "year": str(work.year),
            **self.reception_slots(work.praised),
            "part": lambda: pick(WORK_PARTS),
        }

    def reception_slots(self, praised: bool) -> Slots:
        """Slots of the reception of a work."""
        pick, words = self.grammar.pick, JUDGMENTS[praised]
        return {
            "quality": lambda: pick(words.adjectives),
            "verdict": lambda: pick(words.nouns),
            "judged": lambda: pick(words.verbs),
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

    def write(self, kind: str, slots: Slots) -> tuple[Section, ...]:
        """Return the sections of a kind of article: one paragraph for the lead, one per entry in the other sections."""
        pools = SENTENCES["all"] | SENTENCES[kind]
        sections = []
        for heading, *entries in ARTICLES["plans"][kind]:
            paragraphs = [tuple(self.sentences(pools[pool], count, slots)) for pool, count in entries]
            if not heading:
                paragraphs = [tuple(sentence for paragraph in paragraphs for sentence in paragraph)]
            sections.append(Section(heading, tuple(paragraphs)))
        return tuple(sections)


def write_articles(world: World) -> list[Article]:
    """Return all articles of the world, each a function of the world's seed and its title."""
    kinds: dict[str, Sequence[Entity]] = {
        "person": world.persons,
        "town": world.towns,
        "organization": world.organizations,
        "work": world.works,
        "trade": TRADES,
    }
    articles = []
    for kind, entities in kinds.items():
        for entity in entities:
            # A generator for each title: no article depends on the order.
            writer = Writer(world, random.Random(f"{world.seed}:article:{entity.title}"))
            articles.append(Article(entity.title, kind, entity, writer.write(kind, writer.slots(entity))))
    return articles
