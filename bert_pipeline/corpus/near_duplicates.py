"""Near-duplicate documents and passages: MinHash signatures with banding, on arrays.

A text is the set of its *shingles*, runs of five words (in scripts without spaces, characters), in lower case and
without punctuation; they do not cross the end of a passage. The share of equal values in two signatures estimates the
Jaccard similarity of two sets. Texts that agree on a whole band of values are candidates; candidates whose estimate
reaches the threshold are near, and so are the texts that a chain of such pairs joins.

The worker that reads a batch computes the signatures. One task per band then sorts the band's hashes over all batches,
and several tasks share a band of more than three million texts: each holds about fifty bytes for each of its texts.
Nothing depends on the order of the work. At most 2^31 texts are compared.
Sources: Broder (1997), "On the resemblance and containment of documents"; Lee et al. (2022), "Deduplicating training
data makes language models better" (five-grams, .8, groups of joined pairs); Li and König (2010), "b-Bit minwise
hashing" (one byte of each value is compared).
"""

import dataclasses
import functools
import io
import math
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bert_pipeline.atomic import atomic_write
from bert_pipeline.errors import UsageError
from bert_pipeline.parquet_io import list_offsets, numbers_of
from bert_pipeline.randomness import combine
from bert_pipeline.storage import is_remote, read_range
from bert_pipeline.wikipedia.punctuation import UNSPACED_LETTERS

THRESHOLD = 0.8
"""Minimum estimated Jaccard similarity of near texts."""
SPLIT_THRESHOLD = 0.7
"""The same for documents that must not be in different splits: lower, because the estimate has a deviation of .04."""
SHINGLE_WORDS = 5
MIN_WORDS = 20
"""Shorter texts are near to nothing: two short passages of one kind differ in a name."""
NUM_BANDS, VALUES_PER_BAND = 20, 6
"""Texts of similarity s share a band with probability 1 - (1 - s^6)^20: .998 at .8, .92 at .7, .27 at .5, .01 at .3."""
NUM_VALUES = NUM_BANDS * VALUES_PER_BAND

_TEXTS = np.dtype([("document", "<i4"), ("passage", "<i4"), ("words", "<i4")])
"""Row of the document in its batch, number of the passage in it, -1 for the whole document, and words of the text."""
_ALL_VALUES = NUM_BANDS
_NO_SHINGLE = np.uint32(0xFFFFFFFF)
_CHUNK_CHARACTERS = 1 << 20
_BLOCK_CHARACTERS = 1 << 16
"""Characters whose arrays fit into a core's cache."""
_TEXTS_PER_TASK = 3 << 20
_PAIRS_AT_A_TIME = 1 << 16
_HEADER_BYTES = 256
"""Bytes with the header of any of our .npy files."""
_GAP_BYTES = 1 << 18
"""Bytes between two rows that are read from a store faster than a second request is answered."""
_MAX_TEXTS = 1 << 31
"""Two numbers of texts and a bit are packed into 64 bits."""

_MULTIPLIERS = (combine(0, np.arange(NUM_VALUES)) >> np.uint64(32)).astype(np.uint32) | np.uint32(1)
_UNSPACED = re.compile(f"[{UNSPACED_LETTERS}]")


# --- words and signatures of one batch ---


def find_words(text: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the position (W,) and the hash (W,) uint64 of each word of a text.

    A word is a run of letters, marks and digits, in lower case; a letter of a script without spaces is a word.
    """
    blocks: list[tuple[np.ndarray, np.ndarray]] = [(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.uint64))]
    start = 0
    while start < len(text):
        # Between words, if there is a space at all
        stop = 1 + max(text.rfind(space, start, start + _BLOCK_CHARACTERS) for space in " \n")
        if stop <= start or len(text) - start <= _BLOCK_CHARACTERS:
            stop = start + _BLOCK_CHARACTERS
        positions, hashes = _find_words(text[start:stop])
        blocks.append((start + positions, hashes))
        start = stop
    positions, hashes = map(np.concatenate, zip(*blocks))
    return positions, hashes


def _find_words(text: str) -> tuple[np.ndarray, np.ndarray]:
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32).astype(np.intp)  # (C,)
    values = np.take(_VALUES, codes)
    greatest = values.max(initial=0)
    if greatest == _UNKNOWN:
        for code in np.unique(codes[values == _UNKNOWN]).tolist():
            _VALUES[code] = _describe(code)
        values = np.take(_VALUES, codes)
        greatest = values.max()
    # A word begins behind a character that is none of a word, and on each side of one that is a word of its own.
    is_start = values > 0
    begins = ~is_start[:-1]
    if greatest >= _WORD:
        is_word = values >= _WORD
        begins |= is_word[:-1] | is_word[1:]
    is_start[1:] &= begins
    positions = np.flatnonzero(is_start)  # (W,)
    # Up to the next word, characters that are none of a word add nothing.
    hashes = _polynomials(values.astype(np.uint64), positions, np.append(positions[1:], len(codes)), _CHARACTER_BASE)
    return positions, combine(hashes)


_WORD, _UNKNOWN = 1 << 30, (1 << 32) - 1
_VALUES = np.full(0x110000, _UNKNOWN, dtype=np.uint32)
"""Character -> 0 if it is no part of a word, otherwise its lower case, more than `_WORD` if it is a word of its own;
`_UNKNOWN` until it is looked up."""


def _describe(code: int) -> int:
    character = chr(code)
    if unicodedata.category(character)[0] not in "LNM":
        return 0
    lower = character.lower()
    return (ord(lower) if len(lower) == 1 else code) + (_WORD if _UNSPACED.match(character) else 0)


_CHARACTER_BASE, _WORD_BASE = 0x9E3779B97F4A7C15, 0xD1342543DE82EF95
"""Odd numbers: they have an inverse among the numbers of 64 bits."""


def _polynomials(values: np.ndarray, starts: np.ndarray, stops: np.ndarray, base: int) -> np.ndarray:
    """Return v[start] b + v[start + 1] b^2 + … up to each stop, uint64 (M,), of values v (N,) uint64 and a base b."""
    powers, inverse_powers = _powers(base, 1 << max(len(values), _BLOCK_CHARACTERS).bit_length())
    # Differences of one sum over all values, divided by the powers before each start
    sums = np.zeros(len(values) + 1, dtype=np.uint64)
    np.cumsum(values * powers[: len(values)], out=sums[1:])
    polynomials: np.ndarray = (sums[stops] - sums[starts]) * inverse_powers[starts]
    return polynomials


@functools.lru_cache(maxsize=4)
def _powers(base: int, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return b, b^2, … and 1, 1/b, 1/b^2, … (number,) uint64, modulo 2^64."""
    inverse = pow(base, -1, 1 << 64)
    factors = [np.full(number, factor, dtype=np.uint64) for factor in (base, inverse)]
    factors[1][0] = 1
    return np.cumprod(factors[0]), np.cumprod(factors[1])


def count_words(sentences: pa.StringArray, offsets: np.ndarray) -> np.ndarray:
    """Return the number of words (N,) int64 of N documents, given all sentences and their offsets (N + 1,)."""
    counts = np.zeros(len(offsets) - 1, dtype=np.int64)
    for _, document in _words(sentences, np.repeat(np.arange(len(counts)), np.diff(offsets))):
        counts += np.bincount(document, minlength=len(counts))
    return counts


def _words(sentences: pa.StringArray, owner: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the hashes (W,) of the words of S sentences, and their owners (W,), given those of the sentences (S,)."""
    ends = np.cumsum(numbers_of(pc.utf8_length(sentences)).astype(np.int64) + 1)
    start = 0
    while start < len(ends):
        # Some text at a time: a document may be a book, and each word takes sixty bytes in what follows.
        base = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, base + _CHUNK_CHARACTERS)))
        positions, hashes = find_words("\n".join(sentences.slice(start, stop - start).to_pylist()))
        counts = np.diff(np.searchsorted(positions, ends[start:stop] - base), prepend=0)
        yield hashes, np.repeat(owner[start:stop], counts)
        start = stop


def compute_signatures(
    sentences: pa.StringArray, passage: np.ndarray, num_passages: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the MinHash values (NUM_VALUES, P) uint32 and the number of words (P,) of passages.

    `passage` (S,), ascending, is the passage of each sentence. The values of a document are the least ones of its
    passages.
    """
    values = np.full((NUM_VALUES, num_passages), _NO_SHINGLE, dtype=np.uint32)
    num_words = np.zeros(num_passages, dtype=np.int64)
    for hashes, owner in _words(sentences, passage):
        if not len(hashes):
            continue
        first = np.flatnonzero(np.diff(owner, prepend=-1))  # of each passage with words
        lengths = np.diff(first, append=len(owner))
        passages = owner[first]
        num_words[passages] += lengths
        shingles, starts = _shingles(hashes, first, lengths)
        permuted = np.empty_like(shingles)
        least = np.empty((NUM_VALUES, len(passages)), dtype=np.uint32)
        for multiplier, row in zip(_MULTIPLIERS, least):
            # Each multiplication with an odd number is a permutation of the 32-bit numbers from 1.
            np.multiply(shingles, multiplier, out=permuted)
            np.minimum.reduceat(permuted, starts, out=row)
        # A long passage may have been cut into several chunks.
        values[:, passages] = np.minimum(values[:, passages], least)
    return values, num_words


def _shingles(hashes: np.ndarray, first: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the shingles of words (W,) uint32, and where those of each passage start.

    A passage of fewer words is one shingle.
    """
    counts = np.maximum(lengths - SHINGLE_WORDS + 1, 1)
    starts = np.cumsum(counts) - counts
    # The first word of each shingle, and the end of its last one
    left = np.arange(starts[-1] + counts[-1]) + np.repeat(first - starts, counts)
    right = np.minimum(left + SHINGLE_WORDS, np.repeat(first + lengths, counts))
    shingles = combine(_polynomials(hashes, left, right, _WORD_BASE)) >> np.uint64(32)
    return np.maximum(shingles, 1).astype(np.uint32), starts


@dataclasses.dataclass(frozen=True)
class SignedTexts:
    """The documents and passages of a batch that are long enough to be compared."""

    texts: np.ndarray
    """(U,) `_TEXTS`, by document, the document itself before its passages."""
    bands: np.ndarray
    """(NUM_BANDS + 1, U) uint64: a hash of each band, and one of all values."""
    low_bytes: np.ndarray
    """(U, NUM_VALUES) uint8: the low bytes of all values."""
    num_words: np.ndarray
    """(D,) int64: the words of every document of the batch."""


def sign_documents(table: pa.Table, first_row: int = 0) -> SignedTexts:
    """Sign the documents of a table of the corpus' schema and their passages; `first_row` is the first one's row."""
    lists, starts = (table.column(name).combine_chunks() for name in ("sentences", "passage_starts"))
    passages_of = list_offsets(starts)  # (D + 1,)
    document = np.repeat(np.arange(table.num_rows), np.diff(passages_of))  # (P,)
    passage_start = numbers_of(starts.flatten()) + list_offsets(lists)[:-1][document]
    sentences = lists.flatten()
    passage = np.repeat(np.arange(len(document)), np.diff(passage_start, append=len(sentences)))  # (S,)
    values, num_words = compute_signatures(sentences, passage, len(document))

    # Documents and passages as one list of texts, without the short ones.
    texts = np.zeros(table.num_rows + len(document), dtype=_TEXTS)
    texts["document"] = first_row + np.concatenate([np.arange(table.num_rows), document])
    texts["passage"] = np.concatenate(
        [np.full(table.num_rows, -1), np.arange(len(document)) - passages_of[:-1][document]]
    )
    values = np.concatenate([np.minimum.reduceat(values, passages_of[:-1], axis=1), values], axis=1)
    words_of_documents = np.add.reduceat(num_words, passages_of[:-1])
    num_words = np.concatenate([words_of_documents, num_words])
    texts["words"] = num_words
    order = np.lexsort((texts["passage"], texts["document"]))
    order = order[num_words[order] >= MIN_WORDS]
    texts, values = texts[order], values[:, order]

    # Documents never share a band with passages.
    bands = np.empty((NUM_BANDS + 1, len(texts)), dtype=np.uint64)
    is_document = texts["passage"] < 0
    for band, of_band in enumerate(values.reshape(NUM_BANDS, VALUES_PER_BAND, -1)):
        bands[band] = combine(is_document, *of_band)
    bands[_ALL_VALUES] = combine(*bands[:NUM_BANDS])
    low_bytes = np.ascontiguousarray(values.astype(np.uint8).T)
    return SignedTexts(texts, bands, low_bytes, words_of_documents)


_SUFFIXES = {"texts": ".texts.npy", "bands": ".bands.npy", "low_bytes": ".values.npy"}


def write_signed_texts(parts: Sequence[SignedTexts], stem: str, directory: Path) -> None:
    """Write the signed texts of a batch, if it has documents, one file for each of their arrays."""
    for name, suffix in _SUFFIXES.items() if parts else ():
        arrays = [getattr(part, name) for part in parts]
        with atomic_write(directory / f"{stem}{suffix}") as path, open(path, "wb") as stream:
            np.save(stream, np.concatenate(arrays, axis=1 if name == "bands" else 0))


def _read_rows(rows: np.ndarray, stem: str, name: str, directory: Path) -> np.ndarray:
    """Return the rows (R,), one or more and ascending, of an array of a batch that has texts."""
    path = directory / f"{stem}{_SUFFIXES[name]}"
    if not is_remote(path):
        array: np.ndarray = np.load(path, mmap_mode="r")[rows]
        return array
    header = io.BytesIO(read_range(path, 0, _HEADER_BYTES))
    np.lib.format.read_magic(header)
    shape, _, dtype = np.lib.format.read_array_header_1_0(header)
    row_bytes = dtype.itemsize * math.prod(shape[1:])
    runs = []
    for run in np.split(rows, np.flatnonzero((np.diff(rows) - 1) * row_bytes > _GAP_BYTES) + 1):
        start, stop = (header.tell() + row * row_bytes for row in (int(run[0]), int(run[-1]) + 1))
        runs.append(np.frombuffer(read_range(path, start, stop), dtype).reshape(-1, *shape[1:])[run - run[0]])
    return np.concatenate(runs)


# --- pairs over all batches ---


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """A task: to compare the documents, or the texts of a band, whose hash falls into one part of all hashes."""

    by: str | int
    """What is hashed: the "id" or the "text" of a document, or the band of this number."""
    part: int
    num_parts: int


def plan_band_tasks(num_texts: int) -> list[Comparison]:
    """Plan the comparisons: one per band, or several where there are too many texts for one worker's memory.

    UsageError if there are more than 2^31 documents and passages.
    """
    if num_texts > _MAX_TEXTS:
        raise UsageError(
            f"{num_texts} documents and passages to compare, expected at most {_MAX_TEXTS}; "
            "make several corpora, each from a part of the dump"
        )
    num_parts = 1 + num_texts // _TEXTS_PER_TASK
    return [
        Comparison(by=band, part=part, num_parts=num_parts) for band in range(NUM_BANDS) for part in range(num_parts)
    ]


def pack_pairs(left: np.ndarray, right: np.ndarray, is_near: np.ndarray) -> np.ndarray:
    """Pack pairs of texts to one number each, uint64 (M,): single numbers are sorted twenty times as fast as rows.

    The texts' numbers are below 2^31, which `plan_band_tasks` checks.
    """
    numbers = left.astype(np.uint64) << np.uint64(33) | right.astype(np.uint64) << np.uint64(1)
    packed: np.ndarray = numbers | is_near.astype(np.uint64)
    return packed


def unpack_pairs(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the pairs of texts (M, 2) int64, and whether they are near (M,)."""
    numbers = np.stack([packed >> np.uint64(33), packed >> np.uint64(1) & np.uint64(0xFFFFFFFF)], axis=1)
    return numbers.astype(np.int64), packed & np.uint64(1) == 1


def find_pairs(task: Comparison, stems: Sequence[str], bounds: np.ndarray, directory: Path) -> np.ndarray:
    """Return packed pairs (M,) of similar texts, numbered over all batches in order, the smaller number first.

    `bounds` (B + 1,) are the numbers of the first text of each of B batches, and that of all texts.
    A pair is near, or its similarity only reaches `SPLIT_THRESHOLD`. Of texts with equal values all but the first are
    only paired with the first, by the task of one band. Of G others with one hash each is compared with the first and
    with the one before it, so there are less than 2 G.
    """
    no_hash = np.zeros(0, dtype=np.uint64)
    hashes, of_all_values, numbers = [no_hash], [no_hash], [np.zeros(0, dtype=np.int32)]
    for stem, base, end in zip(stems, bounds, bounds[1:]):
        if base == end:
            continue
        of_band, all_values = _read_rows(np.array([task.by, _ALL_VALUES]), stem, "bands", directory)
        rows = np.flatnonzero(of_band % np.uint64(task.num_parts) == task.part)
        hashes.append(of_band[rows])
        of_all_values.append(all_values[rows])
        numbers.append((base + rows).astype(np.int32))  # below 2^31
    hashed, values, number = _joined(hashes), _joined(of_all_values), _joined(numbers)

    # Of texts with equal values the first one stays.
    order = np.argsort(values, kind="stable")
    values = values[order]
    is_first = np.concatenate([[True], values[1:] != values[:-1]])[: len(values)]
    del values
    packed = [np.zeros(0, dtype=np.uint64)]
    if task.by == 0:
        first = order[is_first][np.cumsum(is_first)[~is_first] - 1]
        packed.append(pack_pairs(number[first], number[order[~is_first]], np.ones(len(first), dtype=bool)))
    first = np.sort(order[is_first])
    del order, is_first
    hashed, number = hashed[first], number[first]
    del first

    # Equal hashes become neighbors, each run ascending in the number.
    order = np.argsort(hashed, kind="stable")
    hashed, number = hashed[order], number[order]
    is_equal = np.concatenate([[False], hashed[1:] == hashed[:-1]])[: len(hashed)]
    second = np.flatnonzero(is_equal)
    left = np.maximum.accumulate(np.where(is_equal, 0, np.arange(len(hashed))))[second]
    unknown = np.zeros(len(second), dtype=bool)
    candidates = np.unique(np.concatenate([pack_pairs(number[i], number[second], unknown) for i in (left, second - 1)]))
    for start in range(0, len(candidates), _PAIRS_AT_A_TIME):
        pairs, _ = unpack_pairs(candidates[start : start + _PAIRS_AT_A_TIME])
        similarity = estimate_similarity(pairs, stems, bounds, directory)
        packed.append(pack_pairs(pairs[:, 0], pairs[:, 1], similarity >= THRESHOLD)[similarity >= SPLIT_THRESHOLD])
    return np.concatenate(packed)


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    """Join arrays (N,) to one and empty the list, so that both are in memory for one list at a time."""
    joined = np.concatenate(parts)
    parts.clear()
    return joined


def estimate_similarity(pairs: np.ndarray, stems: Sequence[str], bounds: np.ndarray, directory: Path) -> np.ndarray:
    """Estimate the Jaccard similarity (M,) of pairs (M, 2) of texts."""
    numbers, places = np.unique(pairs, return_inverse=True)
    low_bytes = np.concatenate(_rows(numbers, "low_bytes", stems, bounds, directory))
    left, right = places.reshape(-1, 2).T
    agree = (low_bytes[left] == low_bytes[right]).mean(axis=1)
    # The low bytes of different values agree by chance, too.
    similarity: np.ndarray = (agree - 1 / 256) / (1 - 1 / 256)
    return similarity


def _rows(
    numbers: np.ndarray, name: str, stems: Sequence[str], bounds: np.ndarray, directory: Path
) -> list[np.ndarray]:
    """Return the rows of one array for ascending numbers of texts, by batch."""
    return read_by_batch(numbers, stems, bounds, lambda stem, rows: _read_rows(rows, stem, name, directory))


def read_by_batch(
    numbers: np.ndarray, stems: Sequence[str], bounds: np.ndarray, read: Callable[[str, np.ndarray], np.ndarray]
) -> list[np.ndarray]:
    """Call `read` with each batch and its rows among ascending `numbers` over all batches, if there are any."""
    cuts = np.searchsorted(numbers, bounds)
    return [
        read(stem, numbers[start:stop] - base)
        for stem, base, start, stop in zip(stems, bounds, cuts, cuts[1:])
        if stop > start
    ]


@dataclasses.dataclass(frozen=True)
class TextGroups:
    """The V texts that are in a pair, ascending."""

    batch: np.ndarray
    """(V,) int64: index of the text's batch."""
    document: np.ndarray
    """(V,) int64: row of the text's document in its batch."""
    passage: np.ndarray
    """(V,) int64: number of the passage in its document, -1 for documents."""
    words: np.ndarray
    """(V,) int64: number of words."""
    group: np.ndarray
    """(V,) int64: index, among the V, of the first text of the group that is joined by pairs."""


def group_pairs(pairs: np.ndarray, stems: Sequence[str], bounds: np.ndarray, directory: Path) -> TextGroups:
    """Join pairs (M, 2) to groups; `bounds` (B + 1,) are those of the texts of B batches."""
    numbers, places = np.unique(pairs, return_inverse=True)
    texts = np.concatenate([np.zeros(0, dtype=_TEXTS), *_rows(numbers, "texts", stems, bounds, directory)])
    return TextGroups(
        batch=np.searchsorted(bounds, numbers, side="right") - 1,
        document=texts["document"].astype(np.int64),
        passage=texts["passage"].astype(np.int64),
        words=texts["words"].astype(np.int64),
        group=join(places.reshape(-1, 2), len(numbers)),
    )


def join(pairs: np.ndarray, number: int) -> np.ndarray:
    """Return the first member (N,) of the group of each of N items, given the pairs (M, 2) that join them."""
    group = np.arange(number)
    left, right = pairs.T
    while True:
        # The group of either side gets the smaller first member; then every item follows its group to the end.
        least = np.minimum(group[left], group[right])
        after = group.copy()
        np.minimum.at(after, group[left], least)
        np.minimum.at(after, group[right], least)
        while not np.array_equal(followed := after[after], after):
            after = followed
        if (after == group).all():
            return group
        group = after
