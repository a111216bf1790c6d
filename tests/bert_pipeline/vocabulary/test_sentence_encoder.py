"""SentenceEncoder equals Tokenizer on each sentence."""

from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_pipeline.vocabulary.encoder import SentenceEncoder, StringEncoder
from bert_pipeline.vocabulary.files import SPECIAL_TOKENS
from bert_pipeline.vocabulary.tokenizer import Tokenizer

ODD = "aAzÉéßıİΣς ́\u0301\t\n\x1c\x85\u2028\u3000\u00a0\u200b中日-_.,!?'\"[]<>|~^`€\u0000\ufffd1９각가 "
LETTERS = [*sorted(set(ODD) | set("aeσsi")), "[MASK"]
TOKENIZERS = [
    Tokenizer.from_tokens([*SPECIAL_TOKENS, *LETTERS, *(f"##{letter}" for letter in LETTERS)], do_lower_case=lower)
    for lower in (True, False)
]


def assert_same(tokenizer, sentences, encoder=None):
    tokens, lengths = (encoder or SentenceEncoder(tokenizer)).encode(pa.array(sentences, type=pa.string()))
    expected = tokenizer.encode_batch(sentences)
    assert tokens.tolist() == [index for ids in expected for index in ids]
    assert lengths.tolist() == [len(ids) for ids in expected]


def limited(encode_batch, **limits):
    """An encoder that reaches a limit soon."""
    return type("Limited", (StringEncoder,), limits)(encode_batch)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.text(alphabet=ODD, max_size=30) | st.text(max_size=20), max_size=5), st.sampled_from(TOKENIZERS))
def test_encoder_equals_tokenizer_for_any_sentences(sentences, tokenizer):
    assert_same(tokenizer, sentences)


@pytest.mark.parametrize("number", [1, 7, 40])
def test_encoder_equals_tokenizer_in_blocks(number):
    encode_batch = mock.Mock(side_effect=TOKENIZERS[0].encode_batch)
    encoder = limited(encode_batch, BLOCK_BYTES=number)
    sentences = ["left out", "", "eas is", "a" * 90, "", "i e a s", "中日 É", ""]
    assert_same(TOKENIZERS[0], sentences, encoder)
    assert encode_batch.call_count > 1


def test_encoder_equals_tokenizer_with_full_cache():
    encoder = limited(TOKENIZERS[0].encode_batch, MAX_CACHED=3)
    for sentences in (["a" * 200, "a" * 201, "", " ", "a  a"], ["e a s i"], ["a a", "i e"], []):
        assert_same(TOKENIZERS[0], sentences, encoder)


def test_cache_that_is_full_in_another_thread_loses_no_string():
    """The slots of an engine share a process, and with it an encoder."""

    def encode_batch(strings):
        for text in ("b c d", "e") if "new" in strings else ():  # as another thread does meanwhile
            encoder.encode(pa.array([text]))
        return [[len(string)] for string in strings]

    encoder = limited(encode_batch, MAX_CACHED=2)
    encoder.encode(pa.array(["old"]))
    tokens, _ = encoder.encode(pa.array(["old new"]))
    assert tokens.tolist() == [3, 3]


def test_cache_is_emptied_by_characters_of_long_strings():
    encoded = []

    def encode_batch(words):
        encoded.append(len(words))
        return [[1] * len(word) for word in words]

    encoder = limited(encode_batch, MAX_CHARACTERS=1_000)
    sentences = pa.array([letter * 400 for letter in "abc"])
    for _ in range(2):
        encoder.encode(sentences[:2])  # 800 characters: kept
    encoder.encode(sentences[2:])  # 1,200
    tokens, lengths = encoder.encode(sentences[:2])
    assert encoded == [2, 0, 1, 2]
    assert lengths.tolist() == [400, 400]
    assert len(tokens) == 800


def test_slice_of_sentences_is_tokenized():
    sentences = pa.array(["a", "e e", "", "s i", "a a a"])
    tokens, lengths = SentenceEncoder(TOKENIZERS[0]).encode(sentences[1:4])
    assert lengths.tolist() == [2, 0, 2]
    assert len(tokens) == 4
