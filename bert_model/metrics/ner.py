"""Entity precision, recall and F1 as conlleval computes them, on the scale of 0 to 100."""

from collections import Counter
from collections.abc import Iterable, Sequence

Chunk = tuple[int, int, str]
"""First word, one past the last word, type."""


def chunks(tags: Sequence[str]) -> set[Chunk]:
    """Return the entities of one sentence's tags, IOB1 or IOB2, by conlleval's rules.

    An entity starts at B-, at I- after O, and wherever the type changes.
    """
    found: set[Chunk] = set()
    start, current = 0, ""
    for position, tag in enumerate([*tags, "O"]):
        prefix, separator, entity = tag.partition("-")
        if current and (not separator or prefix == "B" or entity != current):
            found.add((start, position, current))
            current = ""
        if separator and not current:
            start, current = position, entity
    return found


def score_tags(gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> dict[str, float]:
    """Score sentences of tags: precision, recall and f1 of entities, and accuracy of tags."""
    return _rates(*_count(gold, predicted)[0])


def score_by_type(gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> dict[str, dict[str, float]]:
    """Score sentences of tags for each type of entity apart: precision, recall, f1 and the number `found`."""
    _, present, found, correct = _count(gold, predicted)
    result = {}
    for entity in sorted({*present, *found}):
        rates = _rates(1, 0, present[entity], found[entity], correct[entity])
        result[entity] = {"found": float(found[entity]), **{key: rates[key] for key in ("precision", "recall", "f1")}}
    return result


def _count(
    gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]
) -> tuple[tuple[int, int, int, int, int], Counter[str], Counter[str], Counter[str]]:
    """Return (words, words with the right tag, entities present, found, correct) and the last three by type."""
    present: Counter[str] = Counter()
    found: Counter[str] = Counter()
    correct: Counter[str] = Counter()
    words = right = 0
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        assert len(gold_tags) == len(predicted_tags), (len(gold_tags), len(predicted_tags))
        words += len(gold_tags)
        right += sum(a == b for a, b in zip(gold_tags, predicted_tags))
        gold_chunks, predicted_chunks = chunks(gold_tags), chunks(predicted_tags)
        present.update(entity for _, _, entity in gold_chunks)
        found.update(entity for _, _, entity in predicted_chunks)
        correct.update(entity for _, _, entity in gold_chunks & predicted_chunks)
    return (words, right, present.total(), found.total(), correct.total()), present, found, correct


def _rates(words: int, right: int, present: int, found: int, correct: int) -> dict[str, float]:
    return {
        "f1": 100.0 * 2 * correct / (present + found) if correct else 0.0,
        "precision": 100.0 * correct / found if found else 0.0,
        "recall": 100.0 * correct / present if present else 0.0,
        "accuracy": 100.0 * right / words if words else 0.0,
    }
