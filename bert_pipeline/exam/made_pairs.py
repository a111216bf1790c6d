"""Minimal pairs made from held-out text of any language, without labels.

The kinds:

- "swap": two neighboring words exchanged.
- "ending": a word replaced by one with the same beginning, another ending and a like frequency ("walks" by "walked").
- "entity": two names of a passage exchanged. A name is a run of words inside a sentence that are capitalized there and
  mostly elsewhere; in scripts without case, a rare word that the passage repeats.
- "next_sentence": two sentences in the wrong order.

Without labels nothing says that the wrong word of an ending does not fit, but if the training text has it between the
same neighbors, it does: `without_attested` drops such pairs. A pair may still be acceptable in both forms, so that even
a perfect model would score below 100. Every choice is a function of the seed, the document and the sentence.
"""

import collections
import functools
import itertools
import math
import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bert_pipeline.corpus.parquet import Document
from bert_pipeline.exam.ngrams import BEGIN, END, MARKS, UNKNOWN, Trigrams, WordSplitter
from bert_pipeline.exam.pairs import NEXT_SENTENCE, Pair
from bert_pipeline.randomness import key_of_text

ENDING = "ending"
MIN_WORDS, MAX_WORDS = 4, 40
"""Words of a sentence that a pair is made from."""
MAX_PASSAGE_WORDS = 80
_MIN_COUNT = 10
"""Occurrences in the training text of a word that replaces another."""
_MAX_RATIO = 4.0
"""Of the frequencies of the two words."""
_STEM_SHARE = 0.6
"""Share of the longer word that both begin with."""
_RARE = 1e-4


class Word(NamedTuple):
    """A word of a text, and the characters that it covers."""

    id: int
    start: int
    end: int
    text: str

    @property
    def is_word(self) -> bool:
        """False for figures, punctuation and mixtures."""
        return _is_word(self.text)


class PairMaker:
    """Makes pairs from documents, with the words of the training text and their counts."""

    def __init__(self, words: Sequence[str], counts: np.ndarray, lower_counts: np.ndarray, seed: int) -> None:
        """`counts` (W,) are the occurrences of each word in any case, `lower_counts` (W,) of its lower-case form."""
        self._splitter = WordSplitter(words)
        self._words, self._lower_counts, self._seed = words, lower_counts, seed
        marks = np.zeros(len(MARKS), dtype=np.int64)
        self._shares = np.concatenate([marks, counts]) / max(1, counts.sum())
        self._is_name = np.concatenate([marks == 0, 2 * lower_counts < counts])

        # Stem -> words that begin with it, for every stem that a word of theirs may share.
        self._by_stem: dict[str, list[int]] = collections.defaultdict(list)
        for index in np.flatnonzero(lower_counts >= _MIN_COUNT).tolist():
            if _is_word(words[index]):
                for stem in _stems(words[index]):
                    self._by_stem[stem].append(index)
        self._variant = functools.cache(self._find_variant)

    def make(self, document: Document) -> Iterator[Pair]:
        """Yield at most one pair of each kind for each sentence or passage of a document."""
        number = 0
        for passage in document.passages:
            for offset, sentence in enumerate(passage):
                words = self._split(sentence)
                if MIN_WORDS <= len(words) <= MAX_WORDS:
                    place = f"{document.document_id}:{number + offset}"
                    for kind, make in (("swap", self._swap), (ENDING, self._ending)):
                        if bad := make(sentence, words, f"{kind}:{place}"):
                            yield _pair(kind, place, document, (sentence,), (bad,))
            place = f"{document.document_id}:{number}"
            text, names = self._names(passage)
            if bad := self._exchange(text, names, f"entity:{place}"):
                yield _pair("entity", place, document, (text,), (bad,))
            if neighbors := self._neighbors(passage, f"{NEXT_SENTENCE}:{place}"):
                yield _pair(NEXT_SENTENCE, place, document, neighbors, neighbors[::-1])
            number += len(passage)

    def _draw(self, limit: int, name: str) -> int:
        return key_of_text(f"{self._seed}:{name}") % limit

    def _split(self, text: str) -> list[Word]:
        ids, offsets = self._splitter.encode(text)
        return [Word(word, start, end, text[start:end]) for word, (start, end) in zip(ids, offsets)]

    def _swap(self, sentence: str, words: Sequence[Word], name: str) -> str:
        # The first word is left where it is: its capital would give the pair away.
        places = [
            (a, b)
            for a, b in itertools.pairwise(words[1:])
            if a.is_word and b.is_word and a.id != b.id and sentence[a.end : b.start] in ("", " ")
        ]
        return _exchanged(sentence, *places[self._draw(len(places), name)]) if places else ""

    def _ending(self, sentence: str, words: Sequence[Word], name: str) -> str:
        places = [
            (word, other)
            for word in words[1:]
            if word.text.lower() == word.text and (other := self._variant(word.id - len(MARKS)))
        ]
        if not places:
            return ""
        word, other = places[self._draw(len(places), name)]
        return sentence[: word.start] + other + sentence[word.end :]

    def _find_variant(self, index: int) -> str:
        """Return the word with the same beginning whose frequency is nearest; "" if none is near enough."""
        if index < 0 or self._lower_counts[index] < _MIN_COUNT:
            return ""
        word, count = self._words[index], self._lower_counts[index]
        best = math.log(_MAX_RATIO), ""
        # The words have a stem in common that is long enough for both.
        for other_index in itertools.chain.from_iterable(self._by_stem.get(stem, ()) for stem in _stems(word)):
            if other_index != index:
                distance = abs(math.log(self._lower_counts[other_index] / count))
                best = min(best, (distance, self._words[other_index]))
        return best[1]

    def _names(self, passage: Sequence[str]) -> tuple[str, list[Word]]:
        """Return the beginning of a passage as one text, and the names in it."""
        text, names, num_words, num_cased, num_caseless = "", [], 0, 0, 0
        # By their text: all words that the training text does not have share an id.
        repeated: dict[str, list[Word]] = collections.defaultdict(list)
        for sentence in passage:
            words = self._split(sentence)
            num_words += len(words)
            if num_words > MAX_PASSAGE_WORDS:
                break
            start = len(text) + bool(text)
            text = f"{text} {sentence}" if text else sentence
            # Georgian has capitals, with which no word begins.
            has_case = [word.text[0].lower() != word.text[0].title() for word in words if word.text[0].isalpha()]
            num_cased, num_caseless = num_cased + sum(has_case), num_caseless + len(has_case) - sum(has_case)
            shifted = [Word(word.id, word.start + start, word.end + start, word.text) for word in words]
            names += self._capitalized(text, shifted)
            for word in shifted:
                if word.is_word and len(word.text) > 1 and self._shares[word.id] < _RARE:
                    repeated[word.text].append(word)
        if num_cased < num_caseless:  # "DNA" is in texts of every script
            names = [word for words in repeated.values() if len(words) > 1 for word in words]
        return text, sorted(names, key=lambda word: word.start)

    def _capitalized(self, text: str, words: Sequence[Word]) -> list[Word]:
        """Join the capitalized words after the first word of a sentence that have one space between them."""
        names: list[Word] = []
        first = next((index for index, word in enumerate(words) if word.is_word), len(words))
        for word in words[first + 1 :]:
            # Not "The" of a title, which is mostly written in lower case, and no part of "Anglo-Saxon".
            is_alone = text[word.start - 1] == " " and text[word.end : word.end + 1] != "-"
            is_capitalized = word.is_word and len(word.text) > 1 and word.text[0].isupper()
            if not (is_alone and is_capitalized and self._is_name[word.id]):
                continue
            if names and names[-1].end == word.start - 1:
                start = names.pop().start
                word = Word(word.id, start, word.end, text[start : word.end])
            names.append(word)
        return names

    def _exchange(self, text: str, names: Sequence[Word], name: str) -> str:
        # Names of as many words each, neither of which is a part of the other.
        places = [
            (a, b)
            for a, b in itertools.combinations(names, 2)
            if a.text.count(" ") == b.text.count(" ") and a.text not in b.text and b.text not in a.text
        ]
        return _exchanged(text, *places[self._draw(len(places), name)]) if places else ""

    def _neighbors(self, passage: Sequence[str], name: str) -> tuple[str, ...]:
        places = [
            pair
            for pair in itertools.pairwise(passage)
            if pair[0] != pair[1] and all(MIN_WORDS <= len(self._split(sentence)) <= MAX_WORDS for sentence in pair)
        ]
        return places[self._draw(len(places), name)] if places else ()


def without_attested(pairs: Sequence[Pair], words: Sequence[str], trigrams: Trigrams) -> list[Pair]:
    """Drop the pairs of endings whose wrong word occurs between its two neighbors in the counted text.

    `words` are those of the ids in `trigrams`.
    """
    splitter = WordSplitter(words)

    def is_attested(pair: Pair) -> bool:
        good, bad = (splitter.encode(text[0])[0] for text in (pair.good, pair.bad))
        place = next(index for index, (good_id, bad_id) in enumerate(zip(good, bad)) if good_id != bad_id)
        before, wrong, after = [BEGIN, *bad, END][place : place + 3]
        return UNKNOWN not in (before, after) and trigrams.has(before, wrong, after)

    return [pair for pair in pairs if pair.kind != ENDING or not is_attested(pair)]


def _pair(kind: str, place: str, document: Document, good: tuple[str, ...], bad: tuple[str, ...]) -> Pair:
    return Pair(pair_id=f"{kind}:{place}", kind=kind, good=good, bad=bad, source=document.document_id)


def _is_word(text: str) -> bool:
    return all(unicodedata.category(character)[0] in "LM" for character in text)  # M: the vowel signs of राम


def _stems(word: str) -> list[str]:
    """Return the beginnings of a word that another one may share with it."""
    return [word[:length] for length in range(max(2, math.ceil(_STEM_SHARE * len(word))), len(word) + 1)]


def _exchanged(text: str, a: Word, b: Word) -> str:
    """Exchange two words, of which `a` comes first."""
    return text[: a.start] + b.text + text[a.end : b.start] + a.text + text[b.end :]
