"""Tokenization of many sentences, several times faster than sentence by sentence and with the same result.

What stands between two spaces tokenizes to the same ids wherever it stands: no rule of the normalization, of the word
splitting or of WordPiece looks across a space. So Arrow cuts the sentences at spaces and numbers what it finds, only
what was not seen before goes to the tokenizer, and numpy lays the ids out.
"""

import array

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bert_pipeline.tokenization import Tokenizer

_MAX_CACHED = 500_000


class SentenceEncoder:
    """Applies a tokenizer to arrays of sentences and remembers half a million pieces of text between spaces."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._ids: dict[str, bytes] = {}

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.vocab_size

    def encode(self, sentences: pa.StringArray) -> tuple[np.ndarray, np.ndarray]:
        """Tokenize S sentences: ids of all of them (T,) int32, and how many each has (S,) int64."""
        words = pc.split_pattern(sentences, " ")
        coded = words.flatten().dictionary_encode()
        encoded = self._encode_words(coded.dictionary.to_pylist())
        flat = np.frombuffer(b"".join(encoded), dtype=np.int32)
        num_ids = np.array([len(ids) for ids in encoded], dtype=np.int64) // flat.itemsize
        starts = np.cumsum(num_ids) - num_ids
        word = coded.indices.to_numpy()  # (W,)
        word_ends = np.cumsum(num_ids[word])
        # Token t of the result is token t - (start of its word there) + (start of its word in `flat`).
        shift = starts[word] - word_ends + num_ids[word]
        num_tokens = int(word_ends[-1]) if len(word) else 0
        tokens = flat[np.arange(num_tokens) + np.repeat(shift, num_ids[word])]
        ends = np.concatenate([np.zeros(1, dtype=np.int64), word_ends])
        offsets = words.offsets.to_numpy()
        return tokens, np.diff(ends[offsets - offsets[0]] if len(offsets) else ends)

    def _encode_words(self, words: list[str]) -> list[bytes]:
        if len(self._ids) > _MAX_CACHED:
            self._ids.clear()
        known = self._ids
        unknown = [word for word in words if word not in known]
        for word, ids in zip(unknown, self.tokenizer.encode_batch(unknown)):
            known[word] = array.array("i", ids).tobytes()
        return [known[word] for word in words]
