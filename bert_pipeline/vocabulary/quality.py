"""Quality of a vocabulary on words that it was not trained on: pieces a word, share of [UNK], longest pieces."""

import collections
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from fontTools import unicodedata as scripts

from bert_pipeline.vocabulary.files import CONTINUATION_PREFIX
from bert_pipeline.vocabulary.tokenizer import Tokenizer

MAX_UNKNOWN_SHARE = 0.02
"""Share of [UNK] above which a training is wasted, in any language."""
MAX_ENGLISH_UNKNOWN_SHARE = 0.001
"""The same for English and for Latin script: above it characters are missing, or held-out text differs in kind."""
MIN_SCRIPT_TOKENS = 1_000
"""Tokens of a script below which its share of [UNK] says little."""
MAX_MARKS_SHARE = 0.05
"""Share of combining marks above which a language without them is another one: French has fewer, Vietnamese more."""


def quality(tokenizer: Tokenizer, counts: Mapping[str, int]) -> dict[str, Any]:
    """Measure how well a vocabulary fits words that it was not trained on, such as those of held-out documents."""
    words = sorted(counts)
    num_whole = num_lost = 0
    used: set[int] = set()
    tokens_of: collections.Counter[str] = collections.Counter()
    unknown_of: collections.Counter[str] = collections.Counter()
    # All sums are over occurrences, not distinct words. Batches bound the memory of the encoder.
    for start in range(0, len(words), 10_000):
        batch = words[start : start + 10_000]
        for word, ids in zip(batch, tokenizer.encode_batch(batch)):
            count, unknown, script = counts[word], ids.count(tokenizer.unk_id), script_of(word)
            tokens_of[script] += count * len(ids)
            unknown_of[script] += count * unknown
            # A word that becomes [UNK] loses all of its characters.
            num_lost += count * len(word) if unknown else 0
            num_whole += count if len(ids) == 1 and not unknown else 0
            used.update(ids)
    num_words, num_tokens = sum(counts.values()), tokens_of.total()
    num_characters = sum(count * len(word) for word, count in counts.items())
    # For people to read: long debris of markup, such as addresses, comes first.
    pieces = (tokenizer.tokens[index] for index in used - {tokenizer.unk_id})
    by_length = sorted(pieces, key=lambda token: (-len(token.removeprefix(CONTINUATION_PREFIX)), token))
    return {
        "words": num_words,
        "tokens_per_word": ratio(num_tokens, num_words),
        "unk_share": ratio(unknown_of.total(), num_tokens),
        "scripts": {
            script: {"tokens": number, "unk_share": ratio(unknown_of[script], number)}
            for script, number in sorted(tokens_of.items(), key=lambda item: (-item[1], item[0]))
        },
        "characters_lost_share": ratio(num_lost, num_characters),
        "whole_words_share": ratio(num_whole, num_words),
        "longest_pieces": by_length[:10],
    }


def script_of(word: str) -> str:
    """Return the script of a word, as Unicode names it: that of its first letter; "Common" for digits and symbols."""
    return next((script for script in map(_script, word) if script not in ("Common", "Inherited", "Unknown")), "Common")


@functools.lru_cache(maxsize=1 << 16)
def _script(character: str) -> str:
    return str(scripts.script_name(scripts.script(character)))


def describe_scripts(report: Mapping[str, Any]) -> str:
    """Format the share of [UNK] of each script in a report of `quality`, for people to read."""
    shares = (f"{name} {entry['unk_share']:.3%} of {entry['tokens']:,}" for name, entry in report["scripts"].items())
    return ", ".join(shares)


def unknown_warnings(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each script of a report of `quality` with more [UNK] than a training should have."""
    for script, entry in report["scripts"].items():
        limit = MAX_ENGLISH_UNKNOWN_SHARE if script == "Latin" else MAX_UNKNOWN_SHARE
        if entry["tokens"] >= MIN_SCRIPT_TOKENS and entry["unk_share"] > limit:
            yield (
                f"{entry['unk_share']:.3%} of the tokens of {script} script are [UNK], at most {limit:.1%} expected; "
                "ask for a larger vocabulary or alphabet"
            )


def count_marks(sentences: pa.Array) -> tuple[int, int]:
    """Return the combining marks of sentences, which lower-casing removes, and all their characters, marks included."""
    decomposed = pc.utf8_normalize(sentences, "NFD")
    marks, characters = pc.count_substring_regex(decomposed, r"\p{Mn}"), pc.utf8_length(decomposed)
    return pc.sum(marks, min_count=0).as_py(), pc.sum(characters, min_count=0).as_py()


def marks_warnings(marks: int, characters: int) -> Iterator[str]:
    """Yield a sentence if lower-casing removes more of a text than accents."""
    if marks > MAX_MARKS_SHARE * characters:
        yield (
            f"{marks / characters:.1%} of the characters are accents or vowel signs, which lower-casing removes; "
            "--cased (do_lower_case: false) keeps them"
        )


def ratio(part: int, whole: int) -> float:
    """Return a share for a manifest, 0 of nothing."""
    return round(part / whole, 6) if whole else 0.0
