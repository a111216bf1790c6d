"""The nine GLUE tasks over the invented world: their sentences, in the official files and columns.

Acceptability, sentiment, paraphrase, similarity, inference, answers, pronouns: each function draws one example; its
index decides the label, so that the classes of a file are balanced.
"""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path

from bert_pipeline.sample.grammar import Slots, mark, plain
from bert_pipeline.sample.lexicon import FIELDS, TASKS, TRADES, TRAITS, WORK_PARTS, Trade
from bert_pipeline.sample.splits import Split, make_split
from bert_pipeline.sample.world import World


def acceptability(split: Split, index: int) -> tuple[int, str, str]:
    """CoLA: (1 acceptable or 0 not, its mark, sentence). A broken sentence and its original are never both included."""
    label = index % 2
    writer = split.writer()
    slots = writer.slots(split.person())
    template = split.rng.choice(split.rng.choice([*TASKS["cola"].values()]))[1 - label]
    return label, "" if label else "*", plain(writer.grammar.fill(template, slots))


def sentiment(split: Split, index: int) -> tuple[str, int]:
    """SST-2: (sentence in lower case, 1 praise or 0 blame): only the words of judgment differ."""
    label = index % 2
    writer = split.writer()
    # Works come with a reception of their own, which the label replaces.
    slots = {
        **writer.slots(split.work()),
        **writer.reception_slots(bool(label)),
        "part": lambda: split.rng.choice(WORK_PARTS),
    }
    return plain(writer.grammar.fill(split.rng.choice(TASKS["sst2"]["opinions"]), slots)).lower(), label


_TRAITS_OF = {
    "person": ("wealth", "temper", "fame"),
    "town": ("size", "wealth", "fame"),
    "organization": ("size", "fame"),
}


class Statement:
    """The meaning of a sentence: who, of which character, did what to which thing. Words are drawn at writing."""

    def __init__(self, split: Split) -> None:
        rng = split.rng
        self.split = split
        self.trade = rng.choice(split.trades)
        self.trait = rng.choice(("wealth", "temper", "fame"))
        self.pole = rng.randrange(2)
        self.verb, self.good = rng.choice(self.trade.verbs), rng.choice(self.trade.goods)
        self.place = rng.choice(self.trade.places)

    def say(self, template: str) -> str:
        """Return it in words. Verb, good and place are part of it; the others vary with each wording."""
        rng, writer = self.split.rng, self.split.writer()
        adjectives = TRAITS[self.trait][self.pole].adjectives
        slots: Slots = {
            "adjective": lambda: writer.grammar.pick(adjectives),
            "agent": lambda: rng.choice(self.trade.agents).singular,
            "verb": self.verb.base,
            "verbed": self.verb.past,
            "goods": self.good.plural,
            "place": self.place.singular,
            "tool_word": lambda: rng.choice(("tool", "instrument")),
        }
        return plain(writer.grammar.fill(template, slots))

    def changed(self, what: str) -> "Statement":
        """Return the statement with another character ("pole"), agent, deed, or agent and deed ("event")."""
        changed, rng = copy.copy(self), self.split.rng
        if what == "pole":
            changed.pole = 1 - self.pole
            return changed
        other = _other_trade(self.split, self.trade, self.split.trades)
        verb, good = rng.choice(other.verbs), rng.choice(other.goods)
        if what != "agent":
            changed.verb, changed.good = verb, good
        if what != "deed":
            changed.trade = other
        if what == "event":
            changed.place = rng.choice(other.places)
        return changed


_DIFFERENCES = ("event", "event", "event", "agent", "deed", "pole")
_EVENTS = ("event", "event", "agent", "deed")


def _other_trade(split: Split, trade: Trade, choices: tuple[Trade, ...] = TRADES) -> Trade:
    return split.rng.choice([other for other in choices if other is not trade])


def paraphrase(split: Split, index: int) -> tuple[int, str, str]:
    """MRPC: (1 or 0, sentence, sentence): one statement in two wordings, or with one part changed."""
    label = index % 2
    statement = Statement(split)
    other = statement if label else statement.changed(split.rng.choice(_DIFFERENCES))
    first, second = split.rng.sample(TASKS["paraphrases"]["sentences"], 2)
    return label, statement.say(first), other.say(second)


def duplicate(split: Split, index: int) -> tuple[str, str, int]:
    """QQP: (question, question, 1 or 0): one question in two wordings, or about another thing, or another question."""
    label = index % 2
    statement = Statement(split)
    kind, wordings = split.rng.choice([*TASKS["qqp"].items()])
    first, second = split.rng.sample(wordings, 2)
    other = statement
    # A different question about the same thing, or the same question about another.
    if not label and split.rng.random() < 0.3:
        second = split.rng.choice(split.rng.choice([group for name, group in TASKS["qqp"].items() if name != kind]))
    elif not label:
        # The question about a character mentions no deed, so a changed deed would change nothing.
        other = statement.changed(split.rng.choice(("agent", "pole") if kind == "character" else _EVENTS))
    return statement.say(first), other.say(second), label


def similarity(split: Split, index: int) -> tuple[str, str, float]:
    """STS-B: (sentence, sentence, 0–5): 2 points for the same person, 1.5 for the character, 1.5 for the deed."""
    statement = Statement(split)
    other = statement
    score = 5.0
    # Three bits of the index choose the differences: all eight combinations occur in turn.
    for what, points, bit in (("agent", 2.0, 1), ("pole", 1.5, 2), ("deed", 1.5, 4)):
        if index & bit:
            other = other.changed(what)
            score -= points
    first, second = split.rng.sample(TASKS["paraphrases"]["sentences"], 2)
    return statement.say(first), other.say(second), score


_LABELS = ("entailment", "contradiction", "neutral")


def inference(split: Split, index: int) -> tuple[str, str, str, str]:
    """MNLI: (premise, hypothesis, label, genre), of genres of its own in the mismatched files.

    The premise tells an entity's trade, one of its traits, or both. The hypothesis claims what follows from it
    (entailment: the trade's field, the same trait in another word), what it excludes (contradiction: another field,
    the opposite), or what it leaves open (neutral). Alone, the hypothesis tells nothing about the label.
    """
    label, claims_trade, rng = _LABELS[index % 3], index % 2 == 0, split.rng
    genre_name = rng.choice(("organization",) if split.task.endswith("_mismatched") else ("person", "town"))
    writer, genre = split.writer(), TASKS["mnli"][genre_name]
    person, town = split.person(), split.town().title
    name = {"PER": person.title, "LOC": town, "ORG": person.employer.title}[genre["kind"]]
    told, other_trait = rng.sample(_TRAITS_OF[genre_name], 2)
    told_pole, claimed_pole, field = rng.randrange(2), rng.randrange(2), person.trade.field
    claimed = told
    # Choose premises and a claim that make the label true.
    if claims_trade:
        premises = genre["trait"] if label == "neutral" else rng.choice((genre["trade"], genre["both"]))
        if label == "contradiction":
            field = rng.choice([other for other in FIELDS if other != field])
    elif label == "neutral":
        premises, claimed = rng.choice((genre["trade"], genre["both"])), other_trait
    else:
        premises = rng.choice((genre["trait"], genre["both"]))
        claimed_pole = told_pole if label == "entailment" else 1 - told_pole

    # x and sign describe the trait that is told, y the one that is claimed, c_field the claimed field.
    adjectives = TRAITS[told][told_pole]
    slots: Slots = {
        **writer.grammar.trade_slots(person.trade),
        "N": mark(genre["kind"], name),
        "town": mark("LOC", town),
        "x": lambda: writer.grammar.pick(adjectives.adjectives),
        "sign": lambda: rng.choice(adjectives.signs),
        "y": lambda: writer.grammar.pick(TRAITS[claimed][claimed_pole].adjectives),
        "c_field": lambda: writer.grammar.pick(FIELDS[field]).singular,
        "c_fields": lambda: writer.grammar.pick(FIELDS[field]).plural,
    }
    premise = plain(writer.grammar.fill(rng.choice(premises), slots))
    claims = genre["trade_claims"] if claims_trade else genre["trait_claims"]
    return premise, plain(writer.grammar.fill(rng.choice(claims), slots)), label, genre_name


def entailment(split: Split, index: int) -> tuple[str, str, str]:
    """RTE: (text of two sentences, hypothesis, entailment or not_entailment): what somebody did tells the trade."""
    label = ("entailment", "not_entailment")[index % 2]
    writer = split.writer()
    person = split.person()
    slots = writer.slots(person)
    text = ["{P} {verbed} {goods} in a~ {place} in {home}.", "{He} used a~ {tool} and was {temper}."]
    # A quarter of the claims is about the temper, the rest about the trade.
    if split.rng.random() < 0.25:
        pole = person.traits["temper"] if label == "entailment" else 1 - person.traits["temper"]
        hypothesis = f"{{S}} was {writer.grammar.pick(TRAITS['temper'][pole].adjectives)}."
    else:
        trade = person.trade if label == "entailment" else _other_trade(split, person.trade)
        hypothesis = f"{{S}} worked as a~ {writer.grammar.pick(trade.agents).singular}."
    premise = " ".join(plain(writer.grammar.fill(template, slots)) for template in text)
    return premise, plain(writer.grammar.fill(hypothesis, slots)), label


def answer(split: Split, index: int) -> tuple[str, str, str]:
    """QNLI: (question, sentence, entailment or not_entailment).

    Half of the sentences without the answer tell another thing about the same person, half tell the thing that was
    asked, but of a person of another trade and temper.
    """
    label = ("entailment", "not_entailment")[index % 2]
    writer = split.writer()
    person = split.person()
    slots = writer.slots(person)
    # The question always asks about `person`; only the sentence may be about another one.
    asked = split.rng.choice(TASKS["qnli"])
    sentences = asked["sentences"]
    question = plain(writer.grammar.fill(asked["question"], slots))
    if label == "not_entailment":
        if split.rng.random() < 0.5:
            sentences = split.rng.choice([other for other in TASKS["qnli"] if other is not asked])["sentences"]
        else:
            # The opposite traits, because two persons may share a trait by chance.
            other = split.person()
            other.trade = _other_trade(split, person.trade)
            other.traits = {name: 1 - pole for name, pole in person.traits.items()}
            slots = writer.slots(other)
    return question, plain(writer.grammar.fill(split.rng.choice(sentences), slots)), label


def pronoun(split: Split, index: int) -> tuple[str, str, int]:
    """WNLI: (sentence with a pronoun, the sentence with one of two people in its place, 1 right or 0 wrong).

    What is done, and with what, belongs to the trade of one of the two.
    """
    label = index % 2
    writer = split.writer()
    trade = split.rng.choice(TRADES)
    other = _other_trade(split, trade)
    # Each word is drawn once: both sentences must name the same tools and goods.
    slots = {
        name: draw()
        for prefix, each in (("", trade), ("b_", other))
        for name, draw in writer.grammar.trade_slots(each, prefix).items()
    }
    slots["he"] = split.rng.choice(("he", "she"))
    sentence, claim = split.rng.choice(TASKS["wnli"]["claims"])
    # A claim with a word of the second trade is about the second person.
    right = "{b_agent}" if "{b_" in claim else "{agent}"
    wrong = "{agent}" if right == "{b_agent}" else "{b_agent}"
    hypothesis = f"The {right if label else wrong} {claim}"
    return writer.grammar.fill(sentence, slots), writer.grammar.fill(hypothesis, slots), label


# Files

_DRAWS: dict[str, Callable[[Split, int], Sequence[object]]] = {
    "CoLA": acceptability,
    "SST-2": sentiment,
    "MRPC": paraphrase,
    "STS-B": similarity,
    "QQP": duplicate,
    "QNLI": answer,
    "RTE": entailment,
    "WNLI": pronoun,
    "MNLI": inference,
}
"""Folder -> what draws one example, whose index decides its label."""


def write_glue(directory: Path, world: World) -> dict[str, int]:
    """Write the nine folders, in the columns that `data/tasks.toml` describes; return rows by relative path."""
    rows: dict[str, int] = {}
    for folder, draw in _DRAWS.items():
        files = TASKS["glue"][folder]
        (directory / folder).mkdir(parents=True, exist_ok=True)
        for name, size in files["sizes"].items():
            part = name.partition("_")[0]
            split = make_split(world, f"{folder}:{name}" if folder == "MNLI" else folder, part)
            examples = [draw(split, index) for index in range(size)]
            split.rng.shuffle(examples)
            names, cells = zip(*(c for parts, own in files["columns"] if part in parts.split() for c in own.items()))
            header = [] if part in files.get("headerless", ()) else [names]
            lines = [
                [cell.format(*example, index=index, first=2 * index + 1, second=2 * index + 2) for cell in cells]
                for index, example in enumerate(examples)
            ]
            rows[f"{folder}/{name}.tsv"] = size
            text = "".join("\t".join(line) + "\n" for line in (*header, *lines))
            (directory / folder / f"{name}.tsv").write_text(text, encoding="utf-8")
    return rows
