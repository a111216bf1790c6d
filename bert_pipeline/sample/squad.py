"""Reading comprehension over the invented world, in the SQuAD 1.1 and 2.0 format."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bert_pipeline.sample.grammar import mark, plain
from bert_pipeline.sample.splits import Split

Slots = Mapping[str, Callable[[], str]]


@dataclasses.dataclass(frozen=True, slots=True)
class Fact:
    """Sentences that state one fact, questions for it, and the kind of its answer.

    `{answer}` is the slot that both answers and hides; `kind` groups facts whose answers could be mistaken.
    """

    kind: str
    answer: str
    sentences: tuple[str, ...]
    questions: tuple[str, ...]


_PERSON: tuple[Fact, ...] = (
    Fact("place", "birthplace",
         ("{S} was born in {birthplace}.", "{He} grew up in {birthplace} in a~ {wealth} family."),
         ("Where was {S} born?", "In which town did {S} grow up?")),
    Fact("year", "born", ("The {agent} was born in {born}.", "In {born} {he} was born."), ("When was {S} born?", "In what year was {S} born?")),
    Fact("person", "mentor",
         ("{S} learned to {verb} {goods} from {mentor}.", "The {agent} {mentor} taught {him} how to {verb} {goods}."),
         ("Who taught {S}?", "From whom did {S} learn to {verb} {goods}?")),
    Fact("place", "home",
         ("{S} worked as a~ {agent} in the {place} of {home}.", "{He} {verbed} {goods} in {home}."),
         ("Where did {S} work?", "In which town did {S} {verb} {goods}?")),
    Fact("organization", "org", ("Later {he} joined the {org}.", "{S} {verbed} {goods} for the {org}."),
         ("Which organization did {S} join?", "For whom did {S} {verb} {goods}?")),
    Fact("thing", "a_tool", ("{He} {verbed} the {goods} with a~ {a_tool}.", "The {agent} used a~ {a_tool} to {verb} {goods}."),
         ("What did {S} use to {verb} {goods}?", "With what did the {agent} {verb} {goods}?")),
    Fact("year", "died", ("{S} died in {died}.", "The {temper} {agent} died in {died}."), ("When did {S} die?", "In what year did {S} die?")),
    Fact("person", "spouse", ("{He} married {spouse} , a~ {temper} {agent}.", "{S} married {spouse}."), ("Whom did {S} marry?", "Who married {S}?")),
)  # fmt: skip
_TOWN: tuple[Fact, ...] = (
    Fact("land", "land", ("{T} is a~ {size} town in {land}.", "{T} , a~ {wealth} town , lies in {land}."),
         ("In which land is {T}?", "Where does {T} lie?")),
    Fact("river", "river", ("The river {river} flows through {T}.", "The town lies on the river {river}."),
         ("Which river flows through {T}?", "On which river does {T} lie?")),
    Fact("year", "founded", ("{T} was founded in {founded}.", "In {founded} the town was founded."),
         ("When was {T} founded?", "In what year was {T} founded?")),
    Fact("person", "founder", ("{founder} founded the town.", "The {agent} {founder} founded {T}."), ("Who founded {T}?", "By whom was {T} founded?")),
    Fact("thing", "goods_made", ("The {agents} of {T} {verb} {goods_made} in the {place}.", "{T} is known for {goods_made} and {agents}."),
         ("What do the {agents} of {T} {verb}?", "What is {T} known for?")),
    Fact("year", "war", ("Soldiers came to {T} in {war}.", "The town belonged to {land2} until {war}."),
         ("When did soldiers come to {T}?", "Until when did {T} belong to {land2}?")),
)  # fmt: skip


def read_topics(split: Split, count: int, *, impossible_share: float) -> list[dict[str, Any]]:
    """About `count` questions as SQuAD articles: one entity each, one paragraph, three questions.

    An unanswerable question asks for a fact of the entity that the paragraph leaves out while it states another one
    with an answer of the same kind, which is given as the plausible answer.
    """
    topics = []
    asked = impossible = 0
    while asked < count:
        topic, context, stated, omitted, slots = _topic(split)
        qas: list[dict[str, Any]] = []
        # A fact is a trap only if the paragraph has an answer of its kind, which is then wrong.
        tempting = [fact for fact in omitted if any(fact.kind == other.kind for other in stated)]
        for fact in split.rng.sample(stated, 3):
            number = f"{split.world.seed}-{split.task}-{split.name}-{asked}"
            identifier = hashlib.blake2b(number.encode(), digest_size=12).hexdigest()
            qa: dict[str, Any] = {"id": identifier}
            # After each question the share is as close to its target as it can be.
            if tempting and impossible < impossible_share * (asked + 1):
                missing = tempting.pop()
                decoy = next(other for other in stated if other.kind == missing.kind)
                qa |= {
                    "question": split_fill(split, split.rng.choice(missing.questions), slots),
                    "answers": [],
                    "is_impossible": True,
                    "plausible_answers": [_answer(context, decoy, slots)],
                }
                impossible += 1
            else:
                question = split_fill(split, split.rng.choice(fact.questions), slots)
                qa |= {"question": question, "answers": [_answer(context, fact, slots)]}
                # Only version 2.0 has this key, and for every question.
                if impossible_share:
                    qa["is_impossible"] = False
            qas.append(qa)
            asked += 1
        topics.append({"title": topic.replace(" ", "_"), "paragraphs": [{"context": context, "qas": qas}]})
    return topics


def split_fill(split: Split, template: str, slots: Slots) -> str:
    """Fill a template with the split's grammar and drop the marks."""
    return plain(split.writer().grammar.fill(template, slots))


def _topic(split: Split) -> tuple[str, str, list[Fact], list[Fact], Slots]:
    writer = split.writer()
    if split.rng.random() < 0.65:
        person = split.person()
        title, facts = person.title, list(_PERSON)
        slots = {**writer.person_slots(person)}
        spouse = split.person().title
        slots["spouse"] = lambda: mark("PER", spouse)
        opening = "{P} was a~ {fame} {agent}."
    else:
        town = split.town()
        title, facts = town.title, list(_TOWN)
        slots = {**writer.town_slots(town)}
        # Drawn once, so that paragraph, question and answer agree.
        founder, war, land2 = split.person().title, str(town.founded + 90), split.rng.choice(split.names.lands)
        slots |= {
            "founder": lambda: mark("PER", founder),
            "war": lambda: war,
            "land2": lambda: mark("LOC", land2),
        }
        opening = "{T} has {size_sign} and {wealth_sign}."
    # These may be answers: one value for the whole paragraph, so that it states one answer.
    trade = {name: slots[name]() for name in ("tool", "goods", "verb")}
    slots |= {"a_tool": lambda: trade["tool"], "goods_made": lambda: trade["goods"], "org": _fixed(slots["org"])}
    if title.count(" "):
        slots |= {"goods": lambda: trade["goods"]}

    # Three facts are in the paragraph; the others can be asked without an answer.
    split.rng.shuffle(facts)
    stated, omitted = facts[:3], facts[3:]
    lines = [opening] + [split.rng.choice(fact.sentences) for fact in stated]
    context = " ".join(plain(writer.grammar.fill(line, slots)) for line in lines)
    return title, context, stated, omitted, slots


def _fixed(draw: Callable[[], str]) -> Callable[[], str]:
    value = draw()
    return lambda: value


def _answer(context: str, fact: Fact, slots: Slots) -> dict[str, Any]:
    text = plain(slots[fact.answer]())
    start = context.find(text)
    if start < 0:  # a sentence may open with it
        text = text[0].upper() + text[1:]
        start = context.index(text)
    return {"text": text, "answer_start": start}


def write_squad(path: Path, version: str, topics: list[dict[str, Any]]) -> int:
    """Write a SQuAD file; returns the number of questions."""
    path.write_text(json.dumps({"version": version, "data": topics}, ensure_ascii=False), encoding="utf-8")
    return sum(len(paragraph["qas"]) for topic in topics for paragraph in topic["paragraphs"])
