"""Entity precision, recall and F1 as conlleval computes them, on the scale of 0 to 100.

Implemented here because conlleval is a Perl program and no runtime dependency has a port of it.
"""

from collections.abc import Iterable, Sequence

Chunk = tuple[int, int, str]
"""First word, one past the last word, type."""


def score_tags(gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> dict[str, float]:
    """Score sentences of tags: precision, recall and f1 of entities, and accuracy of tags."""
    # Counts over all sentences: a mean of the sentences' scores would be another metric.
    counts = (count_tags(*tags) for tags in zip(gold, predicted, strict=True))
    return scores_of_counts(*map(sum, zip([0] * 5, *counts)))


def count_tags(gold: Sequence[str], predicted: Sequence[str]) -> tuple[int, int, int, int, int]:
    """Count a sentence: words, words with the right tag, entities in gold, predicted, and predicted correctly."""
    assert len(gold) == len(predicted), (len(gold), len(predicted))
    num_right = sum(a == b for a, b in zip(gold, predicted))
    gold_chunks, predicted_chunks = chunks(gold), chunks(predicted)
    return len(gold), num_right, len(gold_chunks), len(predicted_chunks), len(gold_chunks & predicted_chunks)


def scores_of_counts(
    num_words: int, num_right: int, num_gold: int, num_predicted: int, num_correct: int
) -> dict[str, float]:
    """Return the scores of sentences from the sums of `count_tags`."""
    return {
        "f1": 100.0 * 2 * num_correct / (num_gold + num_predicted) if num_correct else 0.0,
        "precision": 100.0 * num_correct / num_predicted if num_predicted else 0.0,
        "recall": 100.0 * num_correct / num_gold if num_gold else 0.0,
        "accuracy": 100.0 * num_right / num_words if num_words else 0.0,
    }


def chunks(tags: Sequence[str]) -> set[Chunk]:
    """Return the entities of one sentence's tags, IOB1 or IOB2, by conlleval's rules.

    An entity starts at B-, at I- after O, and wherever the type changes; that of a B or I alone is "".
    """
    entities: set[Chunk] = set()
    start = 0
    current: str | None = None  # the type of the open entity

    # The appended O ends an entity that reaches the end of the sentence.
    for position, tag in enumerate([*tags, "O"]):
        prefix, separator, name = tag.partition("-")
        entity = name if separator or prefix in ("B", "I") else None
        if current is not None and (prefix == "B" or entity != current):
            entities.add((start, position, current))
            current = None
        if entity is not None and current is None:
            # conlleval also starts an entity at I- without a B- in front of it.
            start, current = position, entity
    return entities
