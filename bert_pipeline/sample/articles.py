"""Articles as text: the grammar draws sentences from facts, arranged in paragraphs and sections."""

import dataclasses
import random
from collections.abc import Callable, Sequence

from bert_pipeline.sample.grammar import Cut, Grammar, Slots, mark
from bert_pipeline.sample.lexicon import ARTICLES, JUDGMENTS, PRONOUNS, TRADES, WORK_PARTS, Trade
from bert_pipeline.sample.world import Names, Organization, Person, Town, Work, World, make_traits, person_name

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
    """Turns entities into sentences. `names` and `cut` restrict the names, and the words of each cluster."""

    def __init__(self, world: World, rng: random.Random, names: Names | None = None, cut: Cut | None = None) -> None:
        self.world, self.rng, self.names = world, rng, names or world.names
        self.grammar = Grammar(rng, cut)

    def slots(self, entity: Entity) -> Slots:
        """Slots of the templates of an entity's kind: what is known of it, and the words of its trade and traits."""
        if isinstance(entity, Trade):
            return self.trade_slots(entity)
        kind = type(entity).__name__.lower()
        traits = entity.traits if not isinstance(entity, Work) else make_traits(self.rng, "temper", "wealth")
        slots: dict[str, str | Callable[[], str]] = {
            **self.trade_slots(entity.trade),
            **self.grammar.trait_slots(traits),
            **{name: text.format(entity) for name, text in ARTICLES["slots"][kind].items()},
        }
        for name, (event, *limits) in ARTICLES["years"].get(kind, {}).items():
            slots[name] = self._year_after(getattr(entity, event), *limits)
        if isinstance(entity, Person):
            slots |= {slot: pair[entity.female] for slot, pair in PRONOUNS.items()}
            slots["relative"] = lambda: self.rng.choice(("mother", "father", "uncle", "aunt"))
        elif isinstance(entity, Organization):
            slots["kind"] = entity.kind.lower()
        elif isinstance(entity, Work):
            slots |= {**self.reception_slots(entity.praised), "part": lambda: self.grammar.pick(WORK_PARTS)}
        return slots

    def _year_after(self, year: int, least: int, end: int) -> Callable[[], str]:
        return lambda: str(year + self.rng.randrange(least, end))

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
        names = self.names

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
