"""Reading comprehension over the invented world, in the SQuAD 1.1 and 2.0 format."""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from bert_pipeline.sample.grammar import Slots, draw, mark, plain
from bert_pipeline.sample.lexicon import TASKS
from bert_pipeline.sample.splits import Split


@dataclasses.dataclass(frozen=True, slots=True)
class Fact:
    """Sentences that state one fact, questions for it, and the kind of its answer.

    `{answer}` is the slot that both answers and hides; `kind` groups facts whose answers could be mistaken.
    """

    kind: str
    answer: str
    sentences: tuple[str, ...]
    questions: tuple[str, ...]


_FACTS = {kind: [Fact(**fact) for fact in facts] for kind, facts in TASKS["squad"].items()}


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
        title, facts = person.title, [*_FACTS["person"]]
        slots = {**writer.slots(person)}
        slots["spouse"] = mark("PER", split.person().title)
        opening = "{P} was a~ {fame} {agent}."
    else:
        town = split.town()
        title, facts = town.title, [*_FACTS["town"]]
        slots = {**writer.slots(town)}
        # Drawn once, so that paragraph, question and answer agree.
        slots |= {
            "founder": mark("PER", split.person().title),
            "war": str(town.founded + 90),
            "land2": mark("LOC", split.rng.choice(split.names.lands)),
        }
        opening = "{T} has {size_sign} and {wealth_sign}."
    # These may be answers: one value for the whole paragraph, so that it states one answer.
    tool, goods, _ = (draw(name, slots) for name in ("tool", "goods", "verb"))
    slots |= {"a_tool": tool, "goods_made": goods, "org": draw("org", slots)}
    if title.count(" "):
        slots |= {"goods": goods}

    # Three facts are in the paragraph; the others can be asked without an answer.
    split.rng.shuffle(facts)
    stated, omitted = facts[:3], facts[3:]
    lines = [opening] + [split.rng.choice(fact.sentences) for fact in stated]
    context = " ".join(plain(writer.grammar.fill(line, slots)) for line in lines)
    return title, context, stated, omitted, slots


def _answer(context: str, fact: Fact, slots: Slots) -> dict[str, Any]:
    text = plain(draw(fact.answer, slots))
    start = context.find(text)
    if start < 0:  # a sentence may open with it
        text = text[0].upper() + text[1:]
        start = context.index(text)
    return {"text": text, "answer_start": start}


def write_squad(path: Path, version: str, topics: list[dict[str, Any]]) -> int:
    """Write a SQuAD file; returns the number of questions."""
    path.write_text(json.dumps({"version": version, "data": topics}, ensure_ascii=False), encoding="utf-8")
    return sum(len(paragraph["qas"]) for topic in topics for paragraph in topic["paragraphs"])
