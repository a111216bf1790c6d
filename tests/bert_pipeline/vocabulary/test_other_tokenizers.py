"""Any tokenizer.json gives the library's own ids, sentence by sentence and word by word."""

import dataclasses
import json
import pickle

import numpy as np
import other_tokenizers
import pytest
import tokenizers
from small_corpus import make_corpus, make_documents

from bert_pipeline.errors import InputError
from bert_pipeline.instances.job import tokenize_shard
from bert_pipeline.vocabulary.encoder import SentenceEncoder
from bert_pipeline.vocabulary.tokenizer import CONTINUES, Tokenizer

SENTENCES = [
    "The mayor, Anna Lind, didn't reply.",
    "Where does it flow?",
    "東京は日本の首都です。",
    "<mask> [MASK]",
    "ﬁne  ½",
]


@pytest.fixture(params=other_tokenizers.KINDS)
def directory(request, tmp_path):
    return other_tokenizers.make(request.param, tmp_path / request.param)


def library(directory):
    """The library's tokenizer of the file as it is, which reads special tokens in a text as plain text."""
    engine = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    engine.no_truncation()
    engine.no_padding()
    engine.encode_special_tokens = True
    return engine


def texts():
    return [*SENTENCES, *other_tokenizers.every_category()]


def test_ids_are_the_librarys_for_every_category_of_unicode(directory):
    tokenizer, engine = Tokenizer.from_directory(directory), library(directory)
    for text in texts():
        expected = engine.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text) == expected, ascii(text)
        assert tokenizer.encode_batch([text]) == [expected]
        assert [index % CONTINUES for index in tokenizer.encode_batch_with_words([text])[0]] == expected
        assert tokenizer.encode_batch_with_offsets([text])[0][0] == expected


def document_of(sentences):
    return dataclasses.replace(make_documents(1)[0], sentences=tuple(sentences), passage_starts=(0,))


def assert_joined(directory, lines, folder):
    """Documents of five lines each are tokenized as the library tokenizes the lines joined by blanks."""
    # Sentences of a corpus have neither blanks at their ends nor control characters.
    plain = [text.strip() for text in lines if text.strip() and text.strip().isprintable()]
    assert len(plain) > 200
    documents = [document_of(plain[start : start + 5]) for start in range(0, len(plain), 5)]
    corpus = make_corpus(folder / "corpus", [documents])
    tokenizer, engine = Tokenizer.from_directory(directory), library(directory)
    found, _ = tokenize_shard(corpus / "documents-00000.parquet", SentenceEncoder(tokenizer))
    tokens, sentences = found["train"].tokens, found["train"].sentence_offsets
    starts = sentences[found["train"].document_offsets]
    for document, start, stop in zip(documents, starts[:-1], starts[1:], strict=True):
        joined = " ".join(document.sentences)
        assert (tokens[start:stop] % CONTINUES).tolist() == engine.encode(joined, add_special_tokens=False).ids, joined


def test_documents_are_tokenized_as_their_joined_sentences(directory, tmp_path):
    assert_joined(directory, texts(), tmp_path)


@pytest.mark.real_data
def test_documents_of_golden_lines_are_tokenized_as_their_joined_sentences(directory, real_data, tmp_path):
    golden = (real_data / "golden/tokenization.cased.jsonl").read_text(encoding="utf-8").splitlines()
    assert_joined(directory, [json.loads(line)["text"] for line in golden], tmp_path)


def test_words_of_a_tagger_are_tokenized_as_their_joined_sentence(directory):
    tokenizer, engine = Tokenizer.from_directory(directory), library(directory)
    sentences = [text.split() for text in texts() if text.isprintable()]
    for words in sentences:
        joined = " ".join(words)
        of_words = tokenizer.encode_words(words)
        ids = [index for own in of_words for index in own]
        own = engine.encode(joined, add_special_tokens=False).ids
        assert len(of_words) == len(words)
        assert all(of_words)
        assert [i for i in ids if i != tokenizer.unk_id] == [i for i in own if i != tokenizer.unk_id], ascii(joined)
        after = [index for own in tokenizer.encode_words(words, follows=True) for index in own]
        if tokenizer.unk_id not in after:
            assert after == engine.encode(f" {joined}", add_special_tokens=False).ids
    of_words = tokenizer.encode_words(["river", "\u200b" if "wordpiece" in directory.name else "", "mill"])
    assert len(of_words) == 3
    assert all(of_words)
    assert tokenizer.encode_words([], follows=True) == []


def test_offsets_leave_the_blank_out(directory):
    text = "The river  flows, Anna"
    ((_, offsets),) = Tokenizer.from_directory(directory).encode_batch_with_offsets([text])
    pieces = [text[start:end] for start, end in offsets]
    assert all(piece == piece.strip() or not piece.strip() for piece in pieces)
    covered = {place for start, end in offsets for place in range(start, end)}
    assert {place for place, character in enumerate(text) if character != " "} <= covered


def test_pieces_that_continue_a_word_are_known_from_the_text(directory):
    tokenizer = Tokenizer.from_directory(directory)
    (row,) = tokenizer.encode_batch_with_words(["unaffables rivers"])
    starts = np.flatnonzero(np.array(row) < CONTINUES).tolist()
    assert len(starts) == 2
    assert tokenizer.decode([index % CONTINUES for index in row[: starts[1]]]).strip() == "unaffables"


def test_saved_tokenizer_loads_equal_and_hash_covers_merges_and_normalizer(directory, tmp_path):
    tokenizer = Tokenizer.from_directory(directory)
    (tmp_path / "saved").mkdir()
    tokenizer.save(tmp_path / "saved", model_max_length=64)
    loaded = Tokenizer.from_directory(tmp_path / "saved")
    assert loaded.sha256 == tokenizer.sha256 == pickle.loads(pickle.dumps(tokenizer)).sha256
    assert loaded.tokens == tokenizer.tokens
    assert loaded.names == tokenizer.names
    document = json.loads((directory / "tokenizer.json").read_text())
    changed = [{**document, "normalizer": {"type": "NFD"}}]
    if "merges" in document["model"]:
        merges = document["model"]["merges"]
        changed.append({**document, "model": {**document["model"], "merges": [*merges[1:], merges[0]]}})
    for other in changed:
        (directory / "tokenizer.json").write_text(json.dumps(other))
        assert Tokenizer.from_directory(directory).sha256 != tokenizer.sha256


@pytest.mark.parametrize("model_type", ["bert", "modernbert"])
def test_saved_file_opens_in_transformers_with_the_layout_of_bert(directory, tmp_path, model_type):
    transformers = pytest.importorskip("transformers")
    ours = Tokenizer.from_directory(directory)
    (tmp_path / "saved").mkdir()
    ours.save(tmp_path / "saved", model_max_length=64)
    (tmp_path / "saved" / "config.json").write_text(json.dumps({"model_type": model_type}))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    a, b = SENTENCES[:2]
    expected = [ours.cls_id, *ours.encode(a), ours.sep_id, *ours.encode(b), ours.sep_id]
    assert theirs(a, b)["input_ids"] == expected
    engine = tokenizers.Tokenizer.from_file(str(tmp_path / "saved" / "tokenizer.json"))
    assert engine.encode(a, b).ids == expected
    segments = [0] * (len(ours.encode(a)) + 2) + [1] * (len(ours.encode(b)) + 1)
    assert engine.encode(a, b).type_ids == theirs(a, b)["token_type_ids"] == segments
    assert theirs.mask_token_id == ours.mask_id


def test_vocabulary_without_a_special_token_names_the_setting(directory):
    (directory / "tokenizer_config.json").write_text('{"mask_token": "<nothing>"}')
    with pytest.raises(InputError, match=r"no <nothing>; BERT needs it: state another token as mask_token"):
        Tokenizer.from_directory(directory)
