"""Encoders of whole columns of sentences."""

import array
import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bert_pipeline.parquet_io import list_array, list_offsets
from bert_pipeline.vocabulary.tokenizer import Tokenizer


class StringEncoder:
    """Encodes arrays of sentences, and caches the ids of the strings between spaces."""

    MAX_CACHED, MAX_CHARACTERS = 500_000, 8_000_000
    """A new cache is begun at so many distinct strings, or at so many characters in them: first in scripts without
    spaces, where a string is a sentence."""
    BLOCK_BYTES = 8 << 20
    """Text that is tokenized at a time."""

    def __init__(self, encode_batch: Callable[[Sequence[str]], list[list[int]]]) -> None:
        """`encode_batch` returns the ids of many strings; it must not look across a space."""
        self._encode_batch = encode_batch
        self._ids: dict[str, bytes] = {}
        self._num_characters = 0

    def encode(self, sentences: pa.StringArray) -> tuple[np.ndarray, np.ndarray]:
        """Tokenize S sentences; returns all their ids (T,) int32, and the number of ids of each sentence (S,) int64."""
        # Some text at a time, because the ids of the strings take ten times its size: a row group may hold books.
        ends = np.cumsum(pc.binary_length(sentences).to_numpy(zero_copy_only=False).astype(np.int64))
        cuts = [0, *(np.flatnonzero(np.diff(ends // self.BLOCK_BYTES)) + 1).tolist(), len(sentences)]
        blocks = [self._encode_block(sentences.slice(start, stop - start)) for start, stop in itertools.pairwise(cuts)]
        ids, counts = map(np.concatenate, zip(*blocks))
        return ids, counts

    def _encode_block(self, sentences: pa.StringArray) -> tuple[np.ndarray, np.ndarray]:
        # Tokenize each distinct string between spaces once: BERT's normalization never looks across a space.
        words = pc.split_pattern(sentences, " ")
        coded = words.flatten().dictionary_encode()
        encoded = self._encode_words(coded.dictionary.to_pylist())
        flat = np.frombuffer(b"".join(encoded), dtype=np.int32)
        ids_of_strings = list_array(np.cumsum([0, *map(len, encoded)]) // flat.itemsize, flat)
        # Expand the strings to the tokens of all sentences.
        ids = ids_of_strings.take(coded.indices)
        starts, offsets = ids.offsets.to_numpy(), list_offsets(words)  # (W + 1,), (S + 1,)
        return ids.flatten().to_numpy(), np.diff(starts[offsets]).astype(np.int64)

    def _encode_words(self, words: list[str]) -> list[bytes]:
        if len(self._ids) > self.MAX_CACHED or self._num_characters > self.MAX_CHARACTERS:
            self._ids = {}  # a new one: another thread of an engine's worker may read the old one
            self._num_characters = 0
        cached = self._ids
        unknown = [word for word in words if word not in cached]
        self._num_characters += sum(map(len, unknown))
        for word, ids in zip(unknown, self._encode_batch(unknown)):
            cached[word] = array.array("i", ids).tobytes()
        return [cached[word] for word in words]


class SentenceEncoder(StringEncoder):
    """Tokenizes arrays of sentences, by their strings between spaces or as a whole."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer.encode_batch)
        self.tokenizer = tokenizer

    def _encode_block(self, sentences: pa.StringArray) -> tuple[np.ndarray, np.ndarray]:
        if self.tokenizer.is_word_based:
            return super()._encode_block(sentences)
        tokenizer = self.tokenizer
        encode_batch = tokenizer.encode_batch if tokenizer.is_bert else tokenizer.encode_batch_with_words
        rows = encode_batch(sentences.to_pylist())
        return np.fromiter(itertools.chain(*rows), dtype=np.int32), np.array(list(map(len, rows)), dtype=np.int64)
