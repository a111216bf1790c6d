"""Tokenization equals google's, and incomplete directories raise."""

import json
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import tokenizers

from bert_pipeline.errors import InputError, UsageError
from bert_pipeline.vocabulary.encoder import SentenceEncoder
from bert_pipeline.vocabulary.files import SPECIAL_TOKENS, read_stated, read_vocabulary
from bert_pipeline.vocabulary.tokenizer import Tokenizer

TOKENS = [*SPECIAL_TOKENS, "un", "##aff", "##able", "a", "##a", "[", "]", "mask", "cafe", "the", ",", "中"]


@pytest.fixture
def tokenizer():
    return Tokenizer.from_tokens(TOKENS, do_lower_case=True)


def tokens_of(tokenizer, text):
    return [tokenizer.tokens[index] for index in tokenizer.encode(text)]


@pytest.mark.real_data
@pytest.mark.parametrize(("name", "do_lower_case"), [("uncased", True), ("cased", False), ("chinese", True)])
def test_every_line_of_the_golden_files_agrees_with_google(real_data, name, do_lower_case):
    tokens = read_vocabulary(real_data / f"vocab/bert-base-{name}-vocab.txt")
    tokenizer = Tokenizer.from_tokens(tokens, do_lower_case)
    lines = (real_data / f"golden/tokenization.{name}.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    encoded = tokenizer.encode_batch([record["text"] for record in records])
    assert len(records) == 737
    for record, ids in zip(records, encoded):
        assert [tokenizer.tokens[index] for index in ids] == record["tokens"], record["text"]


def test_longest_match_comes_first(tokenizer):
    assert tokens_of(tokenizer, "Unaffable, UNAFFABLE") == ["un", "##aff", "##able", ",", "un", "##aff", "##able"]


def test_word_of_201_characters_is_unknown(tokenizer):
    assert tokens_of(tokenizer, "a" * 200) == ["a"] + ["##a"] * 199
    assert tokens_of(tokenizer, "a" * 201) == ["[UNK]"]


def test_text_that_spells_a_special_token_is_plain_text(tokenizer):
    assert tokens_of(tokenizer, "the [MASK] [SEP]") == ["the", "[", "mask", "]", "[", "[UNK]", "]"]


def test_accents_are_stripped_only_with_lower_casing(tokenizer):
    assert tokens_of(tokenizer, "Café") == ["cafe"]
    assert tokens_of(Tokenizer.from_tokens(TOKENS, do_lower_case=False), "Café") == ["[UNK]"]


def test_offsets_count_characters_of_the_original_text(tokenizer):
    text = "é\u0000 Café,the"
    (ids, offsets), the = tokenizer.encode_batch_with_offsets([text, "the"])
    assert [text[start:end] for start, end in offsets][1:] == ["Café", ",", "the"]
    assert the[1] == [(0, 3)]
    assert tokenizer.encode(text) == ids


def test_word_without_characters_becomes_unknown(tokenizer):
    words = tokenizer.encode_words(["unaffable", "\u0000", "the"])
    assert [len(ids) for ids in words] == [3, 1, 1]
    assert words[1] == [tokenizer.unk_id]


def test_decode_glues_pieces_to_their_words(tokenizer):
    assert tokenizer.decode(tokenizer.encode("the unaffable 中")) == "the unaffable 中"


def test_vocabulary_properties(tokenizer):
    assert tokenizer.vocab_size == len(TOKENS)
    special = [tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id]
    assert special == [0, 1, 2, 3, 4]
    assert np.flatnonzero(tokenizer.is_continuation).tolist() == [6, 7, 9]
    assert tokenizer.token_to_id("##able") == 7
    assert tokenizer.token_to_id("absent") is None


def test_saved_tokenizer_loads_equal_and_hash_covers_case(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    loaded = Tokenizer.from_directory(tmp_path)
    assert loaded.tokens == tokenizer.tokens
    assert loaded.do_lower_case is True
    assert loaded.sha256 == tokenizer.sha256 == pickle.loads(pickle.dumps(tokenizer)).sha256
    cased = Tokenizer.from_tokens(TOKENS, do_lower_case=False)
    assert loaded.sha256 != cased.sha256
    assert str(loaded) == f"{len(TOKENS)} tokens, lower-casing ({loaded.sha256[:12]}…)"
    assert str(cased) == f"{len(TOKENS)} tokens, cased ({cased.sha256[:12]}…)"
    assert loaded.sha256 != Tokenizer.from_tokens([*TOKENS, "new"], do_lower_case=True).sha256


def test_hugging_face_directories_round_trip(tokenizer, tmp_path):
    from transformers import BertTokenizer

    (tmp_path / "ours").mkdir()
    tokenizer.save(tmp_path / "ours")
    theirs = BertTokenizer.from_pretrained(tmp_path / "ours")
    text = "The unaffable Café, 中"
    assert theirs.encode(text, add_special_tokens=False) == tokenizer.encode(text)
    theirs.save_pretrained(tmp_path / "theirs")
    assert Tokenizer.from_directory(tmp_path / "theirs").sha256 == tokenizer.sha256


def test_directory_without_case_raises(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    with pytest.raises(UsageError, match="do_lower_case is not stated"):
        Tokenizer.from_directory(tmp_path)


def test_settings_of_other_tokenization_raise(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true, "strip_accents": false}')
    with pytest.raises(UsageError, match="strip_accents"):
        Tokenizer.from_directory(tmp_path)


@pytest.mark.parametrize(
    "settings",
    [
        {"word_tokenizer_type": "mecab"},
        {"subword_tokenizer_type": "character"},
        {"do_basic_tokenize": False},
        {"tokenizer_class": "BertJapaneseTokenizer"},
    ],
)
def test_other_words_than_those_of_bert_raise(settings, tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    usual = {"do_lower_case": True, "word_tokenizer_type": "basic", "do_basic_tokenize": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(usual | {"tokenizer_class": "BertTokenizer"}))
    assert Tokenizer.from_directory(tmp_path).tokens == tokenizer.tokens
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(usual | settings))
    ((key, value),) = settings.items()
    with pytest.raises(UsageError, match=f"{key}={value}; this project splits words and pieces as BERT's own code"):
        Tokenizer.from_directory(tmp_path)
    assert read_stated(tmp_path).tokens == tokenizer.tokens  # its weights can be loaded


def fast_document():
    """The tokenizer.json of a directory without vocab.txt, as the tokenizers library writes it."""
    document = json.loads((Path(__file__).parents[2] / "data" / "tokenizer.json").read_text())
    usual = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    document["added_tokens"] = [{"id": index, "content": token, **usual} for index, token in enumerate(SPECIAL_TOKENS)]
    document["model"]["vocab"] = {token: index for index, token in enumerate(TOKENS)}
    return document


@pytest.mark.parametrize(
    ("key", "changed", "is_other"),
    [
        (None, {}, False),
        ("normalizer", {"strip_accents": True}, False),
        ("normalizer", {"strip_accents": False}, True),
        ("normalizer", {"handle_chinese_chars": False}, True),
        ("normalizer", {"clean_text": False}, True),
        ("normalizer", {"type": "Sequence", "normalizers": []}, True),
        ("pre_tokenizer", {"type": "Whitespace"}, True),
        ("model", {"continuing_subword_prefix": "@@"}, True),
        ("model", {"unk_token": "the"}, True),
    ],
)
def test_other_settings_of_a_fast_tokenizer_are_read_as_they_are(tokenizer, tmp_path, key, changed, is_other):
    document = fast_document()
    if key:
        document[key] |= changed
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    found = Tokenizer.from_directory(tmp_path)
    assert (found.sha256 != tokenizer.sha256) is is_other
    for text in ("The unaffable Café, a_中中\u0000a", "unaffable"):
        expected = tokenizers.Tokenizer.from_str(json.dumps(document)).encode(text, add_special_tokens=False).ids
        assert found.encode(text) == expected


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("in_sequence", [True, False])
def test_case_is_read_from_tokenizer_json_beside_a_vocabulary(tokenizer, tmp_path, lowercase, in_sequence):
    tokenizer.save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 512}')
    step = {**fast_document()["normalizer"], "lowercase": lowercase}
    normalizer = {"type": "Sequence", "normalizers": [{"type": "NFC"}, step]} if in_sequence else step
    (tmp_path / "tokenizer.json").write_text(json.dumps({**fast_document(), "normalizer": normalizer}))
    assert Tokenizer.from_directory(tmp_path).do_lower_case is lowercase

    # Another normalization than that of BERT's own code is read as it is; tokenizer_config.json comes first.
    step["strip_accents"] = not lowercase
    (tmp_path / "tokenizer.json").write_text(json.dumps({**fast_document(), "normalizer": normalizer}))
    assert Tokenizer.from_directory(tmp_path).is_continuation is None
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": not lowercase}))
    assert Tokenizer.from_directory(tmp_path).do_lower_case is not lowercase


TEXT = "the[E1]unaffable the [E2] , <e3> The [CLS"


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config.json": {"additional_special_tokens": ["[E1]", "[E2]"]}},
        {"special_tokens_map.json": {"additional_special_tokens": ["[E2]", "[E1]"]}},
        {"tokenizer_config.json": {"extra_special_tokens": ["[E1]", "the"]}},
        {"added_tokens.json": {"[E1]": 18, "<e3>": 17}},
        {"tokenizer_config.json": {"added_tokens_decoder": {"17": {"content": "[E1]", "special": True}}}},
        {"tokenizer.json": [{"id": 5, "content": "un"}, {"id": 17, "content": "[E1]", "special": True}]},
    ],
)
def test_added_tokens_have_the_ids_of_transformers(tokenizer, tmp_path, files):
    transformers = pytest.importorskip("transformers")
    tokenizer.save(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    for name, stated in files.items():
        if name == "tokenizer.json":
            (tmp_path / "vocab.txt").unlink()
            usual = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
            added = [{"id": index, "content": token, "special": True} for index, token in enumerate(SPECIAL_TOKENS)]
            stated = {**fast_document(), "added_tokens": [usual | entry for entry in [*added, *stated]]}
            stated["model"] |= {
                "unk_token": "[UNK]",
                "max_input_chars_per_word": 100,
                "continuing_subword_prefix": "##",
            }
        elif name == "tokenizer_config.json":
            stated = json.loads((tmp_path / name).read_text()) | stated
        (tmp_path / name).write_text(json.dumps(stated))
    ours = Tokenizer.from_directory(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert ours.encode(TEXT) == theirs(TEXT, add_special_tokens=False)["input_ids"]
    assert ours.token_to_id("[E1]") == theirs.convert_tokens_to_ids("[E1]") in ours.encode(TEXT)
    assert ours.sha256 != tokenizer.sha256

    # A saved copy is read alike, by either.
    (tmp_path / "saved").mkdir()
    ours.save(tmp_path / "saved", model_max_length=64)
    (tmp_path / "saved" / "config.json").write_text('{"model_type": "bert"}')
    assert Tokenizer.from_directory(tmp_path / "saved").sha256 == ours.sha256
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert ours.encode(TEXT) == again(TEXT, add_special_tokens=False)["input_ids"]
    encoder = SentenceEncoder(pickle.loads(pickle.dumps(ours)))
    assert encoder.encode(pa.array([TEXT, "the"]))[0].tolist() == ours.encode(TEXT) + ours.encode("the")


def test_added_token_with_the_id_of_another_one_raises(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    for index in (5, 18):
        (tmp_path / "added_tokens.json").write_text(json.dumps({"[E1]": index}))
        with pytest.raises(InputError, match=rf"the added token '\[E1\]' has id {index}, expected 17"):
            Tokenizer.from_directory(tmp_path)


def test_tokenizer_files_of_another_vocabulary_raise(tokenizer, tmp_path):
    """A line that is missing in one of them shifts the ids of all tokens after it."""
    lines, whole = [*TOKENS[:7], *TOKENS[8:]], fast_document()
    tokenizer.save(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps(whole))
    assert Tokenizer.from_directory(tmp_path).tokens == tokenizer.tokens
    (tmp_path / "vocab.txt").write_text("".join(f"{token}\n" for token in lines))
    with pytest.raises(InputError, match=rf"tokenizer\.json: '{TOKENS[7]}' has id 7, in .*vocab\.txt it has none"):
        Tokenizer.from_directory(tmp_path)

    # A token that both lines of the vocabulary had has one id there; the other line is an unused entry now.
    lines = [*TOKENS[:7], "[unused7]", *TOKENS[8:]]
    del whole["model"]["vocab"][TOKENS[7]]
    (tmp_path / "vocab.txt").write_text("".join(f"{token}\n" for token in lines))
    (tmp_path / "tokenizer.json").write_text(json.dumps(whole))
    assert Tokenizer.from_directory(tmp_path).tokens == tuple(lines)
    (tmp_path / "vocab.txt").unlink()
    with pytest.raises(InputError, match=r"tokenizer\.json: .* none has id 7; give that id to an unused entry"):
        Tokenizer.from_directory(tmp_path)

    # transformers writes the ids of the special tokens into tokenizer_config.json too.
    (tmp_path / "tokenizer.json").unlink()
    tokenizer.save(tmp_path)
    configuration = json.loads((tmp_path / "tokenizer_config.json").read_text())
    configuration["added_tokens_decoder"] = {"1": {"content": "[PAD]"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(configuration))
    with pytest.raises(InputError, match=r"tokenizer_config\.json: '\[PAD\]' has id 1, in .*vocab\.txt it has 0"):
        Tokenizer.from_directory(tmp_path)


def test_directory_without_vocabulary_raises(tmp_path):
    with pytest.raises(InputError, match=r"no vocab\.txt"):
        Tokenizer.from_directory(tmp_path)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a"], r"5 tokens, but no \[MASK\]"),
        ([*SPECIAL_TOKENS, "a", "b", "a"], r"vocab\.txt:8: 'a' is on line 6 already; replace it by an unused entry"),
        ([*SPECIAL_TOKENS, "", "", "[unused0]"], r"vocab\.txt:7: '' .* such as \[unused1\] on line 6, and remove no"),
    ],
)
def test_malformed_vocabulary_raises_with_line(tokenizer, tmp_path, lines, message):
    tokenizer.save(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match=message):
        Tokenizer.from_directory(tmp_path)


def test_only_newlines_end_a_token(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes("a\r\n\u2028\n##\u2028\nlast".encode())
    assert read_vocabulary(path) == ("a", "\u2028", "##\u2028", "last")


def test_vocabulary_that_is_not_utf8_raises(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes(b"a\n\xff\n")
    with pytest.raises(InputError, match="not UTF-8"):
        read_vocabulary(path)


def test_file_in_place_of_a_directory_is_named_with_its_folder(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n")
    with pytest.raises(InputError, match=rf"vocab.txt: is a file, expected a directory; give {tmp_path}$"):
        Tokenizer.from_directory(tmp_path / "vocab.txt")
    (tmp_path / "bert-vocab.txt").write_text("[PAD]\n")
    with pytest.raises(InputError, match=r"expected a directory; copy it as vocab.txt into one$"):
        Tokenizer.from_directory(tmp_path / "bert-vocab.txt")
