"""N-gram models with modified Kneser-Ney smoothing, as in Chen and Goodman 1998: the floor of an exam.

Counting and estimation are vectorized over whole tables of n-grams; the result is written in the ARPA format. Terms:
the adjusted count of an n-gram is its number of different left neighbors, except for the longest n-grams and those that
begin a sentence, which have their number of occurrences.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer, models, normalizers

from bert_pipeline.vocabulary.tokenizer import pre_tokenizer

_BITS = 21
_MASK = np.uint64((1 << _BITS) - 1)
_PER_KEY = 3
"""Words in a 64-bit key."""
_RUNS_PER_KEY = 1 << (64 - 2 * _BITS)
_PART_SIZE = 1 << 20
"""Windows whose n-grams are in memory at a time."""
MAX_WORDS = (1 << _BITS) - 1

PAD, BEGIN, END, UNKNOWN = range(4)
MARKS = ("<pad>", "<s>", "</s>", "<unk>")
"""The first ids. <pad> fills windows before the beginning of a sentence and is no word of the model."""


class WordSplitter:
    """Words of a text: lower-cased with their accents, split as BERT's tokenizer splits before WordPiece."""

    def __init__(self, words: Sequence[str] = ()) -> None:
        """`words` have the ids from `len(MARKS)`; every other word has the id `UNKNOWN`."""
        ids = {word: index for index, word in enumerate((*MARKS, *words))}
        self._engine = Tokenizer(models.WordLevel(ids, unk_token=MARKS[UNKNOWN]))
        self._engine.normalizer = normalizers.BertNormalizer(
            clean_text=True, handle_chinese_chars=True, strip_accents=False, lowercase=True
        )
        self._engine.pre_tokenizer = pre_tokenizer()

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


class Windows(NamedTuple):
    """Different windows of `order` words, ascending by the last word, then by the one before it, and so on."""

    last: np.ndarray
    """(N,) uint64: the last three words, the last one in the highest bits."""
    first: np.ndarray
    """(N,) uint64: the words before them."""
    counts: np.ndarray
    """(N,) int64."""

    def words(self, back: int) -> np.ndarray:
        """Return the word `back` positions before the last of each window, (N,) uint64."""
        key, place = (self.last, back) if back < _PER_KEY else (self.first, back - _PER_KEY)
        words: np.ndarray = (key >> np.uint64(_BITS * (_PER_KEY - 1 - place))) & _MASK
        return words

    def has(self, first: int, second: int, third: int) -> bool:
        """Return whether three words follow each other in a window."""
        key = np.uint64((third << 2 * _BITS) | (second << _BITS) | first)
        place = int(np.searchsorted(self.last, key))
        return place < len(self.last) and bool(self.last[place] == key)


def count_windows(ids: np.ndarray, lengths: np.ndarray, order: int) -> Windows:
    """Count the windows that end at each word, and at the end, of S sentences: `ids` (T,) and `lengths` (S,)."""
    # Append </s> to every sentence; then `place` is a word's index within its sentence.
    words = np.insert(ids, np.cumsum(lengths), END).astype(np.uint64)
    sizes = lengths + 1
    place = np.arange(len(words)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    keys = [np.zeros(len(words), dtype=np.uint64) for _ in range(2)]
    for back in range(order):
        word = np.full(len(words), PAD, dtype=np.uint64)
        word[back:] = words[: max(0, len(words) - back)]
        word[place < back] = PAD
        word[place == back - 1] = BEGIN
        keys[back // _PER_KEY] |= word << np.uint64(_BITS * (_PER_KEY - 1 - back % _PER_KEY))
    return merge_windows([Windows(keys[0], keys[1], np.ones(len(words), dtype=np.int64))])


def merge_windows(parts: Sequence[Windows]) -> Windows:
    """Sum the counts of equal windows."""
    last, first, counts = (np.concatenate(arrays) for arrays in zip(*parts))
    del parts  # mostly the last reference: as much memory as the sum
    order = _sorted_order(last, first)
    last, first = last[order], first[order]
    starts = np.flatnonzero(_changes(last) | _changes(first))
    return Windows(last[starts], first[starts], np.add.reduceat(counts[order], starts) if len(starts) else counts)


def _sorted_order(last: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Return the order of `np.lexsort((first, last))`, but for equal windows, in a third of its time."""
    order = np.argsort(last)
    # What is left are runs of windows with one `last`: by the number of the run, and in a run by `first`.
    changes = _changes(last[order])
    rows = np.flatnonzero(~(changes & np.append(changes[1:], True)))
    run = np.cumsum(changes[rows]) - 1
    # A part at a time, whose numbers fit into a key beside the two words of `first`, which are its highest bits.
    bounds = np.searchsorted(run, np.arange(0, int(run[-1]) + 1 if len(run) else 0, _RUNS_PER_KEY))
    for part, numbers in zip(np.split(rows, bounds[1:]), np.split(run, bounds[1:])):
        keys = (numbers % _RUNS_PER_KEY).astype(np.uint64) << np.uint64(2 * _BITS)
        order[part] = order[part][np.argsort(keys | (first[order[part]] >> np.uint64(_BITS)))]
    return order


def _changes(values: np.ndarray) -> np.ndarray:
    """Return where a value differs from the one before it; the first does."""
    return np.concatenate([np.ones(min(1, len(values)), dtype=bool), values[1:] != values[:-1]])


@dataclasses.dataclass
class Level:
    """The n-grams of one length that the model keeps, by their first word, then the second, and so on."""

    context: np.ndarray
    """(N,) int64: index in the level below of all words but the last; of a word itself 0."""
    word: np.ndarray
    """(N,) int64: the last word."""
    probability: np.ndarray
    """(N,) float64, interpolated."""
    backoff: np.ndarray
    """(N,) float64: probability left for words that do not follow the n-gram in the level above."""

    @property
    def keys(self) -> np.ndarray:
        """(N,) int64, ascending."""
        keys: np.ndarray = (self.context << _BITS) | self.word
        return keys


def estimate(windows: Windows, order: int, num_words: int, *, prune: int = 0) -> list[Level]:
    """Return the levels 1 to `order` of a modified Kneser-Ney model of words with ids below `num_words`.

    N-grams of three or more words that occur at most `prune` times are left out, and their probability goes to the
    backoff of their context; a level of which nothing is left ends the model. Beside windows and levels it needs
    little memory: n-grams are computed a part of the windows at a time.
    """
    parts = list(_parts(windows))
    levels = [_unigrams(parts, order, num_words)]
    for length in range(2, order + 1):
        below, discount_of = levels[-1], _discounts(parts, length, order)
        totals, left = np.zeros((2, len(below.word)))
        kept_parts = []
        for part in parts:
            starts, adjusted, occurrences = _adjusted(part, length, order)
            # Only n-grams whose context is in the model: the others were pruned with it.
            context = _find(levels, part, starts, range(length - 1, 0, -1))
            known = context >= 0
            starts, adjusted, occurrences, context = (
                array[known] for array in (starts, adjusted, occurrences, context)
            )
            discounts = discount_of[np.minimum(adjusted, 3)]  # (N,)
            kept = occurrences > (prune if length > 2 else 0)
            totals += np.bincount(context, weights=adjusted, minlength=len(totals))
            left += np.bincount(context, weights=np.where(kept, discounts, adjusted), minlength=len(left))
            # The kept ones are interpolated with the level below, where the n-gram without its first word is.
            starts = starts[kept]
            shorter = _find(levels, part, starts, range(length - 2, -1, -1))
            words = part.words(0)[starts].astype(np.int64)
            kept_parts.append((context[kept], words, adjusted[kept] - discounts[kept], shorter))

        context, words, discounted, shorter = (np.concatenate(arrays) for arrays in zip(*kept_parts))
        if not len(words):
            break  # kenlm reads no empty level
        below.backoff = np.divide(left, totals, out=np.ones(len(totals)), where=totals > 0)
        probability = discounted / totals[context] + below.backoff[context] * below.probability[shorter]
        level = Level(context, words, probability, np.ones(len(words)))
        by_key = np.argsort(level.keys)
        levels.append(Level(*(array[by_key] for array in dataclasses.astuple(level))))
    return levels


def _parts(windows: Windows) -> Iterator[Windows]:
    """Yield consecutive parts of the windows; all windows with one last word are in one part."""
    last_word = windows.last[::_PART_SIZE] >> np.uint64(2 * _BITS) << np.uint64(2 * _BITS)
    bounds = np.unique([*np.searchsorted(windows.last, last_word), len(windows.last)])
    for start, stop in itertools.pairwise(bounds):
        yield Windows(*(array[start:stop] for array in windows))


def _adjusted(windows: Windows, length: int, order: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the n-grams of one length: an index of a window that ends with each, adjusted counts, occurrences."""
    # Windows that end with the same words are neighbors; a longer ending starts wherever a shorter one does.
    changes = np.zeros(len(windows.counts), dtype=bool)
    for back in range(length):
        changes |= _changes(windows.words(back))
    starts = np.flatnonzero(changes)
    occurrences = np.add.reduceat(windows.counts, starts)
    if length == order:
        adjusted = occurrences
    else:
        neighbors = changes | _changes(windows.words(length))
        begins = windows.words(length - 1)[starts] == BEGIN
        adjusted = np.where(begins, occurrences, np.add.reduceat(neighbors.astype(np.int64), starts))
    complete = windows.words(length - 1)[starts] != PAD
    return starts[complete], adjusted[complete], occurrences[complete]


def _unigrams(parts: Sequence[Windows], order: int, num_words: int) -> Level:
    adjusted = np.zeros(num_words, dtype=np.int64)
    for part in parts:
        starts, counts, _ = _adjusted(part, 1, order)
        adjusted[part.words(0)[starts].astype(np.int64)] = counts
    discounts = _discounts(parts, 1, order)[np.minimum(adjusted, 3)]
    total = adjusted.sum()
    # Every word but <pad> and <s> shares in the rest, so <unk> has a probability even if it never occurs.
    probability = discounts.sum() / total / (num_words - 2) + (adjusted - discounts) / total
    probability[[PAD, BEGIN]] = 0.0
    return Level(np.zeros(num_words, dtype=np.int64), np.arange(num_words), probability, np.ones(num_words))


def _discounts(parts: Sequence[Windows], length: int, order: int) -> np.ndarray:
    """Return what is taken from counts of 0, 1, 2, and 3 or more of the n-grams of one length: (4,)."""
    num_with = np.zeros(6, dtype=np.int64)  # with adjusted counts of 0 to 4, and more
    for part in parts:
        num_with += np.bincount(np.minimum(_adjusted(part, length, order)[1], 5), minlength=6)
    one, two, three, four = num_with[1:5].tolist()
    fallback = np.array([0.0, 0.5, 1.0, 1.5])  # as KenLM's --discount_fallback, for tables too small to estimate from
    if not (one and two and three and four):
        return fallback
    share = one / (one + 2 * two)
    found = np.array([0.0, 1 - 2 * share * two / one, 2 - 3 * share * three / two, 3 - 4 * share * four / three])
    return found if (found >= 0).all() and (found <= np.arange(4)).all() else fallback


def _find(levels: Sequence[Level], windows: Windows, rows: np.ndarray, backs: Sequence[int]) -> np.ndarray:
    """Return the index, in the level of their length, of the words at positions `backs` of some windows; -1: absent."""
    index: np.ndarray = windows.words(backs[0])[rows].astype(np.int64)
    for level, back in zip(levels[1:], backs[1:]):
        known = np.flatnonzero(index >= 0)
        keys, wanted = level.keys, (index[known] << _BITS) | windows.words(back)[rows[known]].astype(np.int64)
        # In ascending order the searches find their keys in the cache: a tenth of the time for millions of keys.
        by_key = np.argsort(wanted)
        known, wanted = known[by_key], wanted[by_key]
        found = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        index[known] = np.where(keys[found] == wanted, found, -1)
    return index


def write_arpa(path: Path, levels: Sequence[Level], words: Sequence[str]) -> None:
    """Write a model in the ARPA format, with log10 of probabilities and backoffs. `words` begin after `MARKS`."""
    texts = names = [*MARKS, *words]
    with path.open("w", encoding="utf-8", newline="\n") as stream:
        stream.write("\\data\\\n")
        for length, level in enumerate(levels, start=1):
            stream.write(f"ngram {length}={len(level.word) - (length == 1)}\n")  # <pad> is not written
        for length, level in enumerate(levels, start=1):
            stream.write(f"\n\\{length}-grams:\n")
            if length > 1:
                pairs = zip(level.context.tolist(), level.word.tolist())
                texts = [f"{texts[context]} {names[word]}" for context, word in pairs]
            stream.writelines(_lines(level, texts, is_highest=length == len(levels)))
        stream.write("\n\\end\\\n")


def _lines(level: Level, texts: Sequence[str], *, is_highest: bool) -> Iterator[str]:
    with np.errstate(divide="ignore"):
        probabilities = np.maximum(np.log10(level.probability), -99.0).tolist()
        backoffs = np.maximum(np.log10(level.backoff), -99.0).tolist()
    for text, probability, backoff in zip(texts, probabilities, backoffs):
        if text != MARKS[PAD]:
            yield f"{probability:.7f}\t{text}\n" if is_highest else f"{probability:.7f}\t{text}\t{backoff:.7f}\n"
