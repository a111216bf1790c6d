"""Vocabularies from word counts: counting words, training WordPiece and byte-level BPE, extending."""

import collections
import dataclasses
import json
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tokenizers
from pydantic import NonNegativeInt, PositiveInt
from tokenizers import decoders, models, pre_tokenizers, trainers

from bert_pipeline.configuration import configuration
from bert_pipeline.corpus.mixture import MixtureConfig
from bert_pipeline.errors import ConfigurationError, InputError
from bert_pipeline.vocabulary.files import CONTINUATION_PREFIX, MASK, PAD, SPECIAL_TOKENS, UNK, Stated
from bert_pipeline.vocabulary.tokenizer import (
    MAX_INPUT_CHARS_PER_WORD,
    WORDS,
    WORDS_WITH_BLANKS,
    Tokenizer,
    fill_unused,
    normalizer,
)

NUM_UNUSED_BEFORE_UNK = 99
"""[PAD], this many [unused] slots, then [UNK]: with all of them [UNK] is 100 and [MASK] 103, as in BERT's own files."""

ALPHABET_COVERAGE = 0.9995
"""Share of the characters of the text that the alphabet makes up, if no size is given."""
MIN_ALPHABET = 1_000
"""Characters of the alphabet in any case, if no size is given: more than English and its foreign names need."""

_BLOCK_CHARACTERS = 1 << 16
"""Characters that are split into words at a time: the library's result takes 300 bytes for each Han character."""
_MAX_TRAINING_TOKENS = 20_000_000
_TRAINING_LINE = 1_000
_SEPARATOR = "\0"  # of words with blanks


@configuration
class VocabularyConfig(MixtureConfig):
    """Size and layout of a vocabulary."""

    kind: Literal["wordpiece", "bpe"] = "wordpiece"
    """`bpe` is byte-level BPE, which knows every text and has the blank in its words."""
    vocab_size: int = 30_522
    """Entries, special tokens and [unused] slots counted."""
    do_lower_case: bool = True
    """Lower-case and strip accents (an uncased vocabulary)."""
    min_count: PositiveInt = 1
    """Words that occur less often are left out of training, as are all but the 600,000 most frequent."""
    num_unused: NonNegativeInt = NUM_UNUSED_BEFORE_UNK
    """[unused] slots for later additions; BERT's own vocabularies have 994."""
    max_alphabet: PositiveInt | None = None
    """At most this many characters, the most frequent; words with other ones become [UNK]. Without it 1,000, or as many
    as make up 99.95 % of the text, in half of the entries."""
    pad_with_unused: bool = False
    """Fill up with [unused] slots when the corpus is too small for the size, in place of an error."""
    special_tokens: tuple[str, ...] = ()
    """Tokens of your own, such as [E1], that are cut out of a text; they take [unused] slots, or extend the size."""

    def __post_init__(self) -> None:
        if self.kind == "bpe" and self.max_alphabet is not None:
            raise ConfigurationError(f"max_alphabet={self.max_alphabet}: kind='bpe' has all bytes; leave it")
        room = self.vocab_size - self.num_unused - len(SPECIAL_TOKENS)
        if room < 2:
            raise ConfigurationError(
                f"vocab_size={self.vocab_size}: {len(SPECIAL_TOKENS)} special tokens and num_unused={self.num_unused} "
                f"leave room for {max(room, 0)} entries; expected at least "
                f"{len(SPECIAL_TOKENS) + self.num_unused + 2}"
            )
        if self.kind == "bpe" and room < 256:
            raise ConfigurationError(f"vocab_size={self.vocab_size}: the 256 bytes need {self.vocab_size - room + 256}")


class WordCounter:
    """Counts words as BERT's tokenizer sees them: normalized, and split at white space and punctuation.

    Raw strings between spaces are counted first, and only the distinct ones are normalized, many strings of equal count
    in one call. The result is exact, since no rule of the normalization looks across a space.
    """

    MAX_ROWS, MAX_BYTES = 1_000_000, 16 << 20
    """Raw strings that are kept; in scripts without spaces their bytes are reached first."""

    def __init__(self, do_lower_case: bool, kind: str = "wordpiece") -> None:
        """Words of `kind` bpe have the blank in front of them."""
        self._do_lower_case = do_lower_case
        self._blank = " " * (kind == "bpe")
        self._normalizer = normalizer(do_lower_case, kind)
        self._pre_tokenizer = WORDS_WITH_BLANKS if self._blank else WORDS
        self._raw: list[pa.Table] = []
        self._num_raw = 0
        self._num_raw_bytes = 0
        self._words: collections.Counter[str] = collections.Counter()

    def add(self, texts: pa.StringArray | Sequence[str]) -> None:
        """Count the words of some texts."""
        sentences = texts if isinstance(texts, pa.Array) else pa.array(texts, type=pa.string())
        counts = pc.split_pattern(sentences, " ").flatten().value_counts()
        self._raw.append(pa.table({"text": counts.field("values"), "count": counts.field("counts")}))
        self._num_raw += len(counts)
        self._num_raw_bytes += counts.nbytes
        if self._num_raw > self.MAX_ROWS or self._num_raw_bytes > self.MAX_BYTES:
            self._flush()

    def counts(self) -> collections.Counter[str]:
        """Return word -> count of all texts added so far."""
        self._flush()
        return self._words

    def count(self, texts: pa.StringArray | Sequence[str]) -> collections.Counter[str]:
        """Count the words of some texts; return word -> count of all texts added so far."""
        self.add(texts)
        return self.counts()

    def _flush(self) -> None:
        if not self._raw:
            return
        merged = pa.concat_tables(self._raw).group_by("text", use_threads=False).aggregate([("count", "sum")])
        self._raw.clear()
        self._num_raw = self._num_raw_bytes = 0
        counts = merged.column("count_sum").to_numpy().tolist()
        # Printable ASCII is split by one regular expression, several times as fast as the library.
        plain: dict[int, list[str]] = collections.defaultdict(list)
        other: dict[int, list[str]] = collections.defaultdict(list)
        for raw, count in zip(merged.column("text").to_numpy().tolist(), counts):
            is_plain = not self._blank and raw.isascii() and raw.isprintable()
            (plain if is_plain else other)[count].append(raw)

        # Strings of equal count are joined, so that few calls handle them all.
        for count, texts in plain.items():
            for text in _blocks(texts):
                self._add_words(_ASCII_WORD.findall(text.lower() if self._do_lower_case else text), count)
        for count, texts in other.items():
            for text in _blocks(texts):
                clean = self._normalizer.normalize_str(self._blank + text)
                split = self._pre_tokenizer.pre_tokenize_str(clean)
                self._add_words([clean[start:end] for _, (start, end) in split], count)

    def _add_words(self, occurrences: list[str], count: int) -> None:
        words = self._words
        if count == 1:
            words.update(occurrences)
        else:
            for word, times in collections.Counter(occurrences).items():
                words[word] += times * count


def _blocks(texts: Iterable[str]) -> Iterator[str]:
    """Join texts by spaces, and yield that in blocks, cut at the first space after `_BLOCK_CHARACTERS`."""
    text = " ".join(texts)
    start = 0
    while start < len(text):
        stop = text.find(" ", start + _BLOCK_CHARACTERS)
        stop = len(text) if stop < 0 else stop
        yield text[start:stop]
        start = stop + 1


_ASCII_WORD = re.compile(r"[A-Za-z0-9]+|[!-/:-@\[-`{-~]")
"""A run of letters and digits, or one of the characters that BERT treats as ASCII punctuation."""


def characters_of(counts: Iterable[tuple[str, int]]) -> collections.Counter[str]:
    """Count the characters of words: "a" at the start of a word, "##a" elsewhere."""
    characters: collections.Counter[str] = collections.Counter()
    for word, count in counts:
        characters[word[0]] += count
        for character in word[1:]:
            characters[CONTINUATION_PREFIX + character] += count
    return characters


def min_training_count(counts: np.ndarray, max_words: int = 600_000) -> int:
    """Return the smallest count of words used for training: of at most 600,000 words, since a million take 1.1 GB."""
    if len(counts) <= max_words:
        return 1
    at = len(counts) - max_words - 1
    return int(np.partition(counts, at)[at]) + 1  # words of equal count are used together or not at all


def train(
    counts: Sequence[tuple[str, int]],
    config: VocabularyConfig,
    characters: Mapping[str, int] | None = None,
    *,
    max_size: int = 0,
) -> tuple[str, ...]:
    """Train a vocabulary of exactly `vocab_size` tokens in BERT's layout.

    Up to a larger `max_size` those follow that a vocabulary of this size would have too, if there are so many.
    `characters` are those of all words (`characters_of`) if `counts` lacks the rare words: a character of many rare
    words is not rare. The result depends on the counts alone, not on their order. InputError if the words do not
    yield enough pieces; it names the largest possible size.
    """
    characters = characters_of(counts) if characters is None else characters
    singles = _single_pieces(characters, config)
    # A word with a character outside the alphabet becomes [UNK] as a whole: it teaches no piece.
    alphabet = frozenset(piece for piece in singles if len(piece) == 1)
    short = (item for item in counts if len(item[0]) <= MAX_INPUT_CHARS_PER_WORD)
    kept = _frequent((item for item in short if alphabet.issuperset(item[0])), config)

    # The size can be missed both ways: too many single characters, or too few words to learn from.
    num_others = config.num_unused + len(SPECIAL_TOKENS)
    if (smallest := num_others + len(singles)) > config.vocab_size:
        raise InputError(
            f"vocab_size={config.vocab_size}: the {len(singles)} single characters (with and without "
            f"{CONTINUATION_PREFIX}) alone need {smallest}; ask for more, or for a smaller max_alphabet or num_unused"
        )
    learned = _learn(kept, singles, max(max_size, config.vocab_size) - num_others)
    largest = num_others + len(learned)

    limit = ""
    if largest < config.vocab_size:
        # A smaller size leaves room for fewer characters, and so would be too large again.
        same = len(alphabet) <= MIN_ALPHABET or (
            _single_pieces(characters, dataclasses.replace(config, vocab_size=largest)) == singles
        )
        limit = "" if same else f" with max_alphabet={len(alphabet)}"
    return (*layout(_check_size(config, len(learned), limit)), *learned)


def _check_size(config: VocabularyConfig, num_learned: int, limit: str) -> int:
    """Return the number of [unused] slots, more if there is too little text for the size; InputError if not allowed."""
    largest = config.num_unused + len(SPECIAL_TOKENS) + num_learned
    if largest >= config.vocab_size:
        return config.num_unused
    if not config.pad_with_unused:
        raise InputError(
            f"vocab_size={config.vocab_size}: the corpus is too small for it, {largest} is the largest possible"
            f"{limit}; ask for that, give more text, or fill up with pad_with_unused"
        )
    return config.num_unused + config.vocab_size - largest


def layout(num_unused: int) -> tuple[str, ...]:
    """Return the head of a BERT vocabulary: [PAD], up to 99 [unused] slots, the special tokens, the other slots."""
    unused = [f"[unused{index}]" for index in range(num_unused)]
    rest = [token for token in SPECIAL_TOKENS if token != PAD]
    return (PAD, *unused[:NUM_UNUSED_BEFORE_UNK], *rest, *unused[NUM_UNUSED_BEFORE_UNK:])


def _single_pieces(characters: Mapping[str, int], config: VocabularyConfig) -> tuple[str, ...]:
    """Return the most frequent characters, sorted, then the "##" forms of them that occur, sorted."""
    totals: collections.Counter[str] = collections.Counter()
    for piece, count in characters.items():
        totals[piece[-1]] += count
    frequent = [character for character in totals if totals[character] >= config.min_count]
    by_frequency = sorted(frequent, key=lambda character: (-totals[character], character))
    size = config.max_alphabet
    if size is None:
        # As many characters as cover the text, but no more than leave half of the entries to longer pieces.
        covered = np.cumsum([totals[character] for character in by_frequency])
        needed = int(np.searchsorted(covered, ALPHABET_COVERAGE * totals.total())) + 1
        pieces = np.cumsum([1 + (CONTINUATION_PREFIX + character in characters) for character in by_frequency])
        room = (config.vocab_size - config.num_unused - len(SPECIAL_TOKENS)) // 2
        size = max(MIN_ALPHABET, min(needed, int(np.searchsorted(pieces, room, side="right"))))
    alphabet = sorted(by_frequency[:size])
    continued = (CONTINUATION_PREFIX + character for character in alphabet)
    return (*alphabet, *(piece for piece in continued if piece in characters))


def _frequent(counts: Iterable[tuple[str, int]], config: VocabularyConfig) -> list[tuple[str, int]]:
    """Return the words that are frequent enough to train on. InputError if there are none."""
    if kept := [item for item in counts if item[1] >= config.min_count]:
        return kept
    raise InputError(
        f"no word occurs {config.min_count} times or more, so there is nothing to train on; "
        "give a larger corpus or a smaller min_count"
    )


def _learn(counts: Sequence[tuple[str, int]], singles: Sequence[str], size: int) -> tuple[str, ...]:
    """Learn up to `size` pieces: the single characters in the order of `singles`, then merges.

    The trainer numbers characters and "##" forms in the order of its hash table and breaks ties by number, so two runs
    would differ; passed as special tokens they have fixed numbers.
    """
    if len(singles) >= size:
        return tuple(singles)
    # The words are normalized and split already: white space is all that separates them.
    engine = tokenizers.Tokenizer(models.WordPiece(unk_token=UNK))
    engine.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=1,
        show_progress=False,
        special_tokens=list(singles),
        continuing_subword_prefix=CONTINUATION_PREFIX,
    )
    engine.train_from_iterator(_repeated(counts), trainer=trainer)
    vocabulary = engine.get_vocab()
    return tuple(sorted(vocabulary, key=vocabulary.__getitem__))


def train_bpe(counts: Sequence[tuple[str, int]], config: VocabularyConfig) -> Tokenizer:
    """Train byte-level BPE (Radford et al., 2019), with the splitter of GPT-2, to `vocab_size` tokens.

    These are the head of a BERT vocabulary, 256 bytes, merges. `counts` are of words with the blank in front of them
    (`WordCounter`). The result depends on the counts alone. InputError if they do not yield enough merges.
    """
    kept = _frequent(counts, config)
    engine = tokenizers.Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(_SEPARATOR, "removed"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size - len(layout(config.num_unused)),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    engine.train_from_iterator(_repeated(kept, _SEPARATOR), trainer)
    learned = engine.get_vocab()
    head = layout(_check_size(config, len(learned), ""))

    # The trainer numbers from 0; the head comes before.
    engine.normalizer, engine.pre_tokenizer = normalizer(config.do_lower_case, "bpe"), WORDS_WITH_BLANKS
    engine.decoder = decoders.ByteLevel()
    pipeline = json.loads(engine.to_str())
    tokens = (*head, *sorted(learned, key=learned.__getitem__))
    pipeline["model"]["vocab"] = {token: index for index, token in enumerate(tokens)}
    pipeline["added_tokens"] = [{"content": MASK, "lstrip": True}]
    return Tokenizer(Stated(tokens=tokens, pipeline=pipeline))


def _repeated(counts: Sequence[tuple[str, int]], separator: str = " ") -> Iterator[str]:
    """Yield words as often as they occur, which is the only way to pass counts to the trainer.

    Large counts are scaled down together: training only compares ratios between pairs of pieces.
    """
    total = sum(count for _, count in counts)
    scale = min(1.0, _MAX_TRAINING_TOKENS / total)
    for word, count in counts:
        left = max(1, round(count * scale))
        while left:
            times = min(left, _TRAINING_LINE)
            yield separator.join([word] * times)
            left -= times


def extend(tokenizer: Tokenizer, counts: Sequence[tuple[str, int]], min_count: int) -> tuple[Tokenizer, int]:
    """Replace [unused] slots by the words that save the most pieces; the ids of all other tokens are unchanged.

    Returns the vocabulary and the number of new words. Use it to add a domain's words to an existing model.
    """
    present = set(tokenizer.tokens)
    candidates = [
        (word, count)
        for word, count in counts
        if count >= min_count and word not in present and len(word) <= MAX_INPUT_CHARS_PER_WORD
    ]
    pieces = tokenizer.encode_batch([word for word, _ in candidates])
    # An unknown word is one piece without information: as bad as one piece per character.
    saved = [
        (count * ((len(word) if tokenizer.unk_id in ids else len(ids)) - 1), word)
        for (word, count), ids in zip(candidates, pieces)
    ]
    # The largest gain first; equal gains in the order of the words.
    best = sorted((-gain, word) for gain, word in saved if gain > 0)
    extended = fill_unused(tokenizer.tokens, [word for _, word in best])[: tokenizer.vocab_size]
    num_added = sum(map(operator.ne, extended, tokenizer.tokens))
    return Tokenizer.from_tokens(extended, tokenizer.do_lower_case), num_added
