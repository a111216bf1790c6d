"""Quality of a vocabulary on words that it was not trained on: pieces a word, share of [UNK], longest pieces."""

from collections.abc import Mapping
from typing import Any

from bert_pipeline.vocabulary.tokenizer import CONTINUATION_PREFIX, Tokenizer


def quality(tokenizer: Tokenizer, counts: Mapping[str, int]) -> dict[str, Any]:
    """Measure how well a vocabulary fits words that it was not trained on, such as those of held-out documents."""
    words = sorted(counts)
    num_words = num_tokens = num_unknown = num_whole = num_characters = lost = 0
    used: set[str] = set()
    # All sums are over occurrences, not distinct words. Batches bound the memory of the encoder.
    for start in range(0, len(words), 10_000):
        some = words[start : start + 10_000]
        for word, ids in zip(some, tokenizer.encode_batch(some)):
            count = counts[word]
            num_words += count
            num_tokens += count * len(ids)
            num_characters += count * len(word)
            # A word that becomes [UNK] loses all of its characters.
            if tokenizer.unk_id in ids:
                num_unknown += count * ids.count(tokenizer.unk_id)
                lost += count * len(word)
            elif len(ids) == 1:
                num_whole += count
            used.update(tokenizer.tokens[index] for index in ids if index != tokenizer.unk_id)
    # For people to read: long debris of markup, such as addresses, comes first.
    by_length = sorted(used, key=lambda token: (-len(token.removeprefix(CONTINUATION_PREFIX)), token))
    return {
        "words": num_words,
        "tokens_per_word": _ratio(num_tokens, num_words),
        "unk_share": _ratio(num_unknown, num_tokens),
        "characters_lost_share": _ratio(lost, num_characters),
        "whole_words_share": _ratio(num_whole, num_words),
        "longest_pieces": by_length[:10],
    }


def _ratio(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0
