"""Trigrams of a text and the model of their counts: the baseline of an exam.

A trigram is one number with its last word in the highest bits, so those that end alike are neighbors in sorted order,
and the number of different words before an ending is the length of its range.
"""

import itertools
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer, models, normalizers

from bert_pipeline.errors import InputError
from bert_pipeline.exam.pairs import Pair
from bert_pipeline.vocabulary.tokenizer import WORDS

NGRAM_BASELINE_NAME = "trigrams.npz"
"""The trigrams in a directory of `build_exam`."""

_BITS = 21
_ONE, _TWO = np.uint64(_BITS), np.uint64(2 * _BITS)
_MASK = np.uint64((1 << _BITS) - 1)
MAX_WORDS = (1 << _BITS) - 1

BEGIN, END, UNKNOWN = range(3)
MARKS = ("<s>", "</s>", "<unk>")
"""The first ids. Two <s> come before a sentence."""


class WordSplitter:
    """Words of a text: lower-cased with their accents, split as BERT's tokenizer splits before WordPiece."""

    def __init__(self, words: Sequence[str] = ()) -> None:
        """`words` have the ids from `len(MARKS)`; every other word has the id `UNKNOWN`."""
        ids = {word: index for index, word in enumerate((*MARKS, *words))}
        self._engine = Tokenizer(models.WordLevel(ids, unk_token=MARKS[UNKNOWN]))
        self._engine.normalizer = normalizers.BertNormalizer(
            clean_text=True, handle_chinese_chars=True, strip_accents=False, lowercase=True
        )
        self._engine.pre_tokenizer = WORDS

    def split(self, text: str) -> list[str]:
        """Return the words of a text, unknown ones as they are."""
        normalized = self._engine.normalizer.normalize_str(text)
        return [word for word, _ in self._engine.pre_tokenizer.pre_tokenize_str(normalized)]

    def encode(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids of a text's words, and the characters that each covers."""
        encoding = self._engine.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of the words of many texts."""
        return [encoding.ids for encoding in self._engine.encode_batch_fast(list(texts), add_special_tokens=False)]


class Trigrams(NamedTuple):
    """Different trigrams of a text, ascending."""

    keys: np.ndarray
    """(N,) uint64: three words, the last one in the highest bits."""
    counts: np.ndarray
    """(N,) int64."""

    def has(self, first: int, second: int, third: int) -> bool:
        """Return whether three words follow each other in the text."""
        key = np.uint64((third << 2 * _BITS) | (second << _BITS) | first)
        place = int(np.searchsorted(self.keys, key))
        return place < len(self.keys) and bool(self.keys[place] == key)


def trigrams_of(ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the trigrams that end at each word and at the end of S sentences: `ids` (T,), `lengths` (S,); (T + S,)."""
    # Append </s> to every sentence; then `place` is a word's index within its sentence.
    words = np.insert(ids, np.cumsum(lengths), END).astype(np.uint64)
    sizes = lengths + 1
    place = np.arange(len(words)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    second, first = (np.where(place < back, np.uint64(BEGIN), np.roll(words, back)) for back in (1, 2))
    keys: np.ndarray = (words << _TWO) | (second << _ONE) | first
    return keys


def count_trigrams(ids: np.ndarray, lengths: np.ndarray) -> Trigrams:
    """Count the trigrams of S sentences: `ids` (T,) and `lengths` (S,)."""
    keys = trigrams_of(ids, lengths)
    return merge_trigrams([Trigrams(keys, np.ones(len(keys), dtype=np.int64))])


def merge_trigrams(parts: Sequence[Trigrams]) -> Trigrams:
    """Sum the counts of equal trigrams."""
    keys, counts = (np.concatenate(arrays) for arrays in zip(*parts))
    order = np.argsort(keys)
    keys, starts = np.unique(keys[order], return_index=True)
    return Trigrams(keys, np.add.reduceat(counts[order], starts) if len(starts) else counts)


class TrigramModel:
    """Interpolated Kneser-Ney: one discount for each length (Chen and Goodman 1998, sections 2.7 and 4.1.5)."""

    def __init__(self, trigrams: Trigrams, num_words: int) -> None:
        """Words have ids below `num_words`, those of `MARKS` among them."""
        self._keys, self._counts = trigrams
        # Shorter n-grams count the different words before them, since those that follow few words are rare elsewhere.
        bigrams, self._before_bigram = np.unique(self._keys >> _ONE, return_counts=True)
        self._before_word = np.bincount(_integers(bigrams >> _ONE), minlength=num_words)
        self._discounts = [_discount(counts) for counts in (self._before_word, self._before_bigram, self._counts)]
        # Of the two words before: sums of counts and different words after them, in sorted order again.
        contexts = self._keys & ((_MASK << _ONE) | _MASK)
        order = np.argsort(contexts)
        self._contexts, self._sums = contexts[order], np.concatenate([[0], np.cumsum(self._counts[order])])
        self._around_word = np.bincount(_integers(self._keys >> _ONE & _MASK), minlength=num_words)
        self._after_word = np.bincount(_integers(bigrams & _MASK), minlength=num_words)

        # Every word but <s> shares in the rest, so <unk> has a probability even if it never occurs.
        totals, types = np.array([len(bigrams)]), np.array([np.count_nonzero(self._before_word)])
        uniform = 1 / (num_words - 1)
        self._unigrams = _interpolate(self._before_word, totals, types, self._discounts[0], np.array([uniform]))

    def probabilities(self, keys: np.ndarray) -> np.ndarray:
        """Return the probability of the last word of trigrams (N,) after the other two."""
        last, second = _integers(keys >> _TWO), _integers(keys >> _ONE & _MASK)
        bigram = keys >> _ONE
        start, stop = np.searchsorted(self._keys, [bigram << _ONE, (bigram + np.uint64(1)) << _ONE])
        shorter = _interpolate(
            stop - start, self._around_word[second], self._after_word[second], self._discounts[1], self._unigrams[last]
        )
        place = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        counts = np.where(self._keys[place] == keys, self._counts[place], 0)
        context = keys & ((_MASK << _ONE) | _MASK)
        start, stop = (np.searchsorted(self._contexts, context, side) for side in ("left", "right"))
        return _interpolate(counts, self._sums[stop] - self._sums[start], stop - start, self._discounts[2], shorter)


def _interpolate(
    counts: np.ndarray, totals: np.ndarray, types: np.ndarray, discount: float, shorter: np.ndarray
) -> np.ndarray:
    """Take a discount from each count, and give what the `types` of a context lost to the `shorter` probability."""
    mixed = np.maximum(counts - discount, 0) + discount * types * shorter
    return np.where(totals > 0, mixed / np.maximum(totals, 1), shorter)


def _discount(counts: np.ndarray) -> float:
    ones, twos = np.count_nonzero(counts == 1), np.count_nonzero(counts == 2)
    return ones / (ones + 2 * twos) if ones and twos else 0.75  # of tables too small to estimate it from


def _integers(words: np.ndarray) -> np.ndarray:
    return words.astype(np.int64)


def write_trigrams(path: Path, trigrams: Trigrams, words: Sequence[str]) -> None:
    """Write trigrams and the words of their ids, which begin after `MARKS`."""
    np.savez(path, words=np.frombuffer("\n".join(words).encode(), dtype=np.uint8), **trigrams._asdict())


def ngram_baseline_scores(path: Path | str, pairs: Sequence[Pair]) -> tuple[np.ndarray, np.ndarray]:
    """Return log probabilities of the good (N,) and of the bad texts (N,) of pairs; two sentences count as one.

    InputError if the file is not one of `write_trigrams`.
    """
    try:
        with np.load(path) as arrays:
            words = arrays["words"].tobytes().decode().split("\n")
            trigrams = Trigrams(arrays["keys"], arrays["counts"])
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: not the trigrams of an exam ({error}); make the exam again") from error
    encode = WordSplitter(words).encode_batch
    model = TrigramModel(trigrams, len(MARKS) + len(words))

    def scores(texts: Sequence[tuple[str, ...]]) -> np.ndarray:
        ids = encode([" ".join(text) for text in texts])
        lengths = np.array([len(text) for text in ids], dtype=np.int64)
        logs = np.log(model.probabilities(trigrams_of(np.fromiter(itertools.chain(*ids), dtype=np.int64), lengths)))
        sizes = lengths + 1
        # Rounded, so that equal factors in another order are a tie.
        return np.round(np.add.reduceat(logs, np.cumsum(sizes) - sizes), 9)

    return scores([pair.good for pair in pairs]), scores([pair.bad for pair in pairs])
