"""Named entities (CoNLL-2003): documents in four columns, entity tags in the IOB1 scheme."""

from pathlib import Path

from bert_pipeline.sample import templates
from bert_pipeline.sample.grammar import tagged
from bert_pipeline.sample.lexicon import BLAME, PRAISE, TRADES, TRAITS
from bert_pipeline.sample.splits import Split

Token = tuple[str, str, str, str]

_CLOSED = {
    **dict.fromkeys(("the", "a", "an", "this", "these", "that", "those", "every", "each", "no"), "DT"),
    **dict.fromkeys(("in", "of", "with", "by", "for", "from", "to", "on", "near", "among", "as", "like"), "IN"),
    **dict.fromkeys(("because", "while", "until"), "IN"),
    **dict.fromkeys(("and", "or", "but"), "CC"),
    **dict.fromkeys(("he", "she", "it", "they", "him", "them"), "PRP"),
    **dict.fromkeys(("his", "her", "its"), "PRP$"),
    **dict.fromkeys(("who", "what"), "WP"),
    **dict.fromkeys(("where", "when", "how"), "WRB"),
    **dict.fromkeys(("is", "has", "lies", "flows"), "VBZ"),
    **dict.fromkeys(("was", "had", "died", "joined", "founded", "worked", "became", "lived", "wrote"), "VBD"),
    **dict.fromkeys((".", "!", "?"), "."),
    ",": ",",
    ";": ":",
}
_CHUNKS = {"IN": "I-PP", "CC": "O", "VBZ": "I-VP", "VBD": "I-VP", "VB": "I-VP", ".": "O", ",": "O", ":": "O"}


def _open_class() -> dict[str, str]:
    words: dict[str, str] = dict.fromkeys(PRAISE + BLAME, "JJ")
    for poles in TRAITS.values():
        for pole in poles:
            words |= dict.fromkeys(pole.adjectives, "JJ")
    # Later entries win: within a trade, a noun that is spelled like a verb counts as a noun.
    for trade in TRADES:
        for verb in trade.verbs:
            words |= {verb.base: "VB", verb.third: "VBZ", verb.past: "VBD"}
        for noun in trade.agents + trade.tools + trade.goods + trade.places:
            words |= {noun.plural: "NNS", noun.singular: "NN"}
    return words


_OPEN = _open_class()


def documents(split: Split, num_sentences: int) -> list[list[list[Token]]]:
    """Return documents of a few sentences about one entity, about `num_sentences` in total, as tokens of four columns."""
    result: list[list[list[Token]]] = []
    written = 0
    while written < num_sentences:
        writer = split.writer()
        kind = split.rng.choice(("person", "person", "town", "organization", "work"))
        pools: tuple[tuple[str, ...], ...]
        # The templates of the encyclopedia, about people and places that have no article in it.
        if kind == "person":
            slots = writer.person_slots(split.person())
            pools = (templates.PERSON_LEAD, templates.PERSON_YOUTH, templates.PERSON_WORK, templates.PERSON_DEATH)
        elif kind == "town":
            slots = writer.town_slots(split.town())
            pools = (templates.TOWN_LEAD, templates.TOWN_HISTORY, templates.TOWN_ECONOMY)
        elif kind == "organization":
            slots = writer.organization_slots(split.organization())
            pools = (templates.ORGANIZATION_LEAD, templates.ORGANIZATION_HISTORY, templates.ORGANIZATION_WORK)
        else:
            slots = writer.work_slots(split.work())
            pools = (templates.WORK_LEAD, templates.WORK_PLOT, templates.WORK_RECEPTION)
        sentences = [sentence for pool in pools for sentence in writer.sentences(pool, 2, slots)]
        # A sentence without a name has nothing to tag.
        named = [words for words in map(tagged, sentences) if any(kind for _, kind in words)]
        result.append([_tokens(words) for words in named])
        written += len(named)
    return result


def _tokens(words: list[tuple[str, str]]) -> list[Token]:
    tokens: list[Token] = []
    for word, kind in words:
        part = "NNP" if kind else _part_of_speech(word)
        tag = f"I-{kind}" if kind else "O"
        tokens.append((word, part, _CHUNKS.get(part, "I-NP"), tag))
    return tokens


def _part_of_speech(word: str) -> str:
    lower = word.lower()
    if lower.isdigit():
        return "CD"
    return _CLOSED.get(lower) or _OPEN.get(lower) or ("NNS" if lower.endswith("s") else "NN")


def write_conll(path: Path, documents: list[list[list[Token]]]) -> int:
    """Write a CoNLL-2003 file; returns the number of sentences."""
    blocks = []
    for document in documents:
        blocks.append("-DOCSTART- -X- O O\n")
        blocks += ["".join(" ".join(token) + "\n" for token in sentence) for sentence in document]
    path.write_text("\n".join(blocks) + "\n", encoding="utf-8")
    return sum(map(len, documents))
