"""Named entities (CoNLL-2003): documents in four columns, entity tags in the IOB1 scheme."""

from pathlib import Path

from bert_pipeline.sample.articles import SENTENCES
from bert_pipeline.sample.grammar import tagged
from bert_pipeline.sample.lexicon import BLAME, PARTS_OF_SPEECH, PRAISE, TASKS, TRADES, TRAITS
from bert_pipeline.sample.splits import Split

Token = tuple[str, str, str, str]

_POOLS: dict[str, list[str]] = TASKS["ner"]
_CHUNKS = {"IN": "I-PP", "CC": "O", "VBZ": "I-VP", "VBD": "I-VP", "VB": "I-VP", ".": "O", ",": "O", ":": "O"}


def _open_class() -> dict[str, str]:
    words: dict[str, str] = dict.fromkeys(PRAISE.adjectives + BLAME.adjectives, "JJ")
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
    """Documents of a few sentences about one entity, `num_sentences` or a few more, as tokens of four columns."""
    result: list[list[list[Token]]] = []
    written = 0
    while written < num_sentences:
        writer = split.writer()
        kind = split.rng.choice(("person", "person", "town", "organization", "work"))
        # The templates of the encyclopedia, about people and places that have no article in it.
        slots = writer.slots(getattr(split, kind)())
        sentences = [
            sentence for pool in _POOLS[kind] for sentence in writer.sentences(SENTENCES[kind][pool], 2, slots)
        ]
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
    return PARTS_OF_SPEECH.get(lower) or _OPEN.get(lower) or ("NNS" if lower.endswith("s") else "NN")


def write_conll(path: Path, documents: list[list[list[Token]]]) -> int:
    """Write a CoNLL-2003 file; returns the number of sentences."""
    blocks = []
    for document in documents:
        blocks.append("-DOCSTART- -X- O O\n")
        blocks += ["".join(" ".join(token) + "\n" for token in sentence) for sentence in document]
    path.write_text("\n".join(blocks) + "\n", encoding="utf-8")
    return sum(map(len, documents))
