"""The GLUE tasks over single sentences: acceptability (CoLA) and sentiment (SST-2)."""

from bert_pipeline.sample.grammar import plain
from bert_pipeline.sample.lexicon import WORK_PARTS
from bert_pipeline.sample.splits import Split

# Each pair is a sentence and the same sentence broken in one place.
_AGREEMENT: tuple[tuple[str, str], ...] = (
    ("The {agent} {verbs} the {good}.", "The {agent} {verb} the {good}."),
    ("The {agents} {verb} {goods} with a~ {tool}.", "The {agents} {verbs} {goods} with a~ {tool}."),
    ("A~ {agent} {verbs} {goods} in the {place}.", "A~ {agent} {verb} {goods} in the {place}."),
    ("Many {agents} {verb} a~ {good}.", "Many {agents} {verbs} a~ {good}."),
)
_NUMBER: tuple[tuple[str, str], ...] = (
    ("This {agent} {verbs} {goods}.", "This {agents} {verb} {goods}."),
    ("These {agents} {verb} the {good}.", "These {agent} {verbs} the {good}."),
    ("Every {agent} owns a~ {tool}.", "Every {agents} owns a~ {tool}."),
    ("Many {agents} use a~ {tool}.", "Many {agent} use a~ {tool}."),
    ("The {agent} needs a~ {tool} for the {good}.", "The {agent} needs a~ {tools} for the {good}."),
)
_FORM: tuple[tuple[str, str], ...] = (
    ("The {agent} can {verb} a~ {good} with the {tool}.", "The {agent} can {verbed} a~ {good} with the {tool}."),
    ("He learned to {verb} {goods} in the {place}.", "He learned to {verbed} {goods} in the {place}."),
    ("She knows how to {verb} {goods}.", "She knows how to {verbs} {goods}."),
    ("Yesterday the {agent} {verbed} {goods}.", "Yesterday the {agent} {verb} {goods}."),
)
_ORDER: tuple[tuple[str, str], ...] = (
    ("The {agent} {verbs} {goods} with a~ {tool}.", "The {agent} {goods} {verbs} with a~ {tool}."),
    ("The {agents} {verb} a~ {good} in the {place}.", "The {verb} {agents} a~ {good} in the {place}."),
    ("The {wealth} {agent} {verbed} the {good}.", "The {agent} {wealth} {verbed} the {good}."),
    ("A~ {temper} {field} owns the {place}.", "A~ {temper} owns {field} the {place}."),
)
_SELECTION: tuple[tuple[str, str], ...] = (
    ("The {agent} {verbs} a~ {good} with the {tool}.", "The {tool} {verbs} a~ {agent} with the {good}."),
    ("In the {place} the {agents} {verb} {goods}.", "In the {agent} the {places} {verb} {goods}."),
    ("The {temper} {agent} was born in {year}.", "The {temper} {tool} was born in {year}."),
    ("The {agent} learned to {verb} {goods}.", "The {good} learned to {verb} {agents}."),
)
_ERRORS = (_AGREEMENT, _NUMBER, _FORM, _ORDER, _SELECTION)

_OPINIONS: tuple[str, ...] = (
    "a~ {quality} {work} with a~ {quality} {part}",
    "the {part} is {quality} and the {part} is {quality}",
    "this {work} has a~ {quality} {part}",
    "{quality} , {quality} and {quality}",
    "the {work} about the {agent} is a~ {verdict}",
    "a~ {quality} {verdict} of a {work}",
    "i found the {part} {quality}",
    "the {agents} in this {work} are {quality}",
    "critics {judged} the {part} of the {work}",
    "a {work} about {agents} , {judged} for its {quality} {part}",
    "some {work} by {author} ! {quality} from the {place} to the {part}",
)


def acceptability(split: Split, index: int) -> tuple[int, str]:
    """Draw (1 acceptable or 0 not, sentence). A broken sentence and its original are never both included."""
    label = index % 2
    writer = split.writer()
    slots = writer.person_slots(split.person())
    template = split.rng.choice(split.rng.choice(_ERRORS))[1 - label]
    return label, plain(writer.grammar.fill(template, slots))


def sentiment(split: Split, index: int) -> tuple[str, int]:
    """Draw (sentence in lower case, 1 praise or 0 blame): only the words of judgment differ."""
    label = index % 2
    writer = split.writer()
    slots = {
        **writer.work_slots(split.work()),
        **writer.reception_slots(bool(label)),
        "part": lambda: split.rng.choice(WORK_PARTS),
    }
    return plain(writer.grammar.fill(split.rng.choice(_OPINIONS), slots)).lower(), label
