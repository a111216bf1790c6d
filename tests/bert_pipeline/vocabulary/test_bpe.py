"""`bert vocab --kind bpe`: the layout of BERT, no text with [UNK], the same bytes every time."""

import json

import numpy as np
import pytest
import tokenizers
from small_corpus import make_corpus, make_documents

from bert_model.cli import main
from bert_pipeline.errors import ConfigurationError, InputError, UsageError
from bert_pipeline.vocabulary.files import SPECIAL_TOKENS
from bert_pipeline.vocabulary.job import build_vocabulary
from bert_pipeline.vocabulary.tokenizer import Tokenizer
from bert_pipeline.vocabulary.wordpiece import VocabularyConfig, WordCounter, train_bpe

ONE_WORKER = ["--workers", "1"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    shards = [make_documents(40, held_out=range(0, 40, 8)), make_documents(30, seed=5)]
    return make_corpus(tmp_path_factory.mktemp("bpe") / "corpus", shards)


def config(**changes):
    return VocabularyConfig(**{"kind": "bpe", "vocab_size": 500, "num_unused": 9, "do_lower_case": False, **changes})


@pytest.fixture(scope="module")
def built(corpus, tmp_path_factory):
    return build_vocabulary(corpus, tmp_path_factory.mktemp("built") / "bpe", config(), ONE_WORKER)


def test_words_have_the_blank_in_front_of_them():
    counts = WordCounter(False, "bpe").count(["Don't stop, naïve　x2", "Don't"])
    assert counts == {" Don": 2, "'t": 2, " stop": 1, ",": 1, " naïve": 1, "　": 1, "x": 1, "2": 1}
    lower = WordCounter(True, "bpe").count(["Naïve　中 X"])
    assert lower == {" naive": 1, " 中": 1, " x": 1}


def test_layout_is_that_of_bert_and_bytes_come_first(built):
    tokenizer = Tokenizer.from_directory(built.path)
    assert sorted(built.files) == ["tokenizer.json", "tokenizer_config.json"]
    assert built.files["tokenizer.json"]["rows"] == tokenizer.vocab_size == 500
    assert tokenizer.tokens[:11] == ("[PAD]", *(f"[unused{n}]" for n in range(9)), "[UNK]")
    assert tokenizer.tokens[11:14] == ("[CLS]", "[SEP]", "[MASK]")
    assert set(tokenizer.tokens[14:270]) == set(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    assert all(len(token) > 1 for token in tokenizer.tokens[270:])
    document = json.loads((built.path / "tokenizer.json").read_text())
    assert [entry["lstrip"] for entry in document["added_tokens"]] == [False, False, False, False, True]


def test_report_is_that_of_wordpiece_and_nothing_is_unknown(built, corpus, tmp_path):
    quality = built.counts["quality"]
    assert quality["unk_share"] == 0
    assert 1 < quality["tokens_per_word"] < 3
    wordpiece = build_vocabulary(corpus, tmp_path / "words", config(kind="wordpiece", vocab_size=150), ONE_WORKER)
    assert set(wordpiece.counts["quality"]) == set(quality)
    assert built.counts["words"] == wordpiece.counts["words"]
    assert "kind" not in wordpiece.configuration
    assert built.configuration["kind"] == "bpe"


def test_any_text_is_read_back(built):
    tokenizer = Tokenizer.from_directory(built.path)
    for text in ("Kalo nermi.", "東京 naïve 👍🏽", "a\tb\n", "[MASK] [UNK]"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer.unk_id not in tokenizer.encode(text)


def test_order_of_counts_and_shards_does_not_matter(built, corpus, tmp_path):
    counts = [(" town", 5), (" river", 3), ("s", 9), (" rivers", 3), ("'t", 2), (" don", 2)]
    shuffled = [counts[index] for index in np.random.default_rng(0).permutation(len(counts))]
    small = config(vocab_size=14 + 256 + 9)
    assert train_bpe(counts, small).sha256 == train_bpe(shuffled, small).sha256
    again = build_vocabulary(corpus, tmp_path / "again", config(), ["--workers", "2"])
    assert again.sha256 == built.sha256


def test_rare_words_alone_raise():
    with pytest.raises(InputError, match="no word occurs 6 times"):
        train_bpe([(" town", 5)], config(min_count=6))


def test_too_little_text_names_the_largest_size_or_is_filled_up():
    counts = [(" town", 5)]
    with pytest.raises(InputError, match="274 is the largest possible"):
        train_bpe(counts, config())
    filled = train_bpe(counts, config(pad_with_unused=True))
    assert filled.vocab_size == 500
    assert filled.encode(" town") == [499]


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"max_alphabet": 5}, "kind='bpe' has all bytes"), ({"vocab_size": 200}, "the 256 bytes need 270")],
)
def test_settings_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(ConfigurationError, match=message):
        config(**changes)


def test_bpe_extends_no_vocab_txt(corpus, tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(SPECIAL_TOKENS))
    plain = VocabularyConfig(kind="bpe", do_lower_case=False)
    with pytest.raises(UsageError, match="kind='bpe': extending"):
        build_vocabulary(corpus, tmp_path / "out", plain, ONE_WORKER, extend_vocabulary=tmp_path / "vocab.txt")


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
@pytest.mark.parametrize(("num_unused", "size"), [(9, 500), (1, 501)])
def test_special_tokens_fill_unused_entries_and_then_extend(corpus, tmp_path, kind, num_unused, size):
    transformers = pytest.importorskip("transformers")
    words = f"vocab {corpus} --output {tmp_path / 'out'} --kind {kind} --vocab-size 500 --num-unused {num_unused}"
    options = ["--cased", "--pad-with-unused"] if num_unused > 1 else ["--cased"]
    code = main([*words.split(), *options, "--special-token", "[E1]", "--special-token", "<e2>", "--", *ONE_WORKER])
    if kind == "wordpiece" and num_unused == 1:
        assert code != 0  # the small corpus has no 500 pieces
        return
    assert code == 0
    tokenizer = Tokenizer.from_directory(tmp_path / "out")
    assert tokenizer.vocab_size == size
    assert tokenizer.token_to_id("[E1]") == 1
    assert tokenizer.token_to_id("<e2>") == (2 if num_unused > 1 else 500)
    text = "kalo[E1] <e2>ner Kalo [E1]"
    ids = tokenizer.encode(text)
    assert ids.count(1) == 2
    (tmp_path / "model").mkdir()
    tokenizer.save(tmp_path / "model", model_max_length=64)
    (tmp_path / "model" / "config.json").write_text('{"model_type": "bert"}')
    for directory in (tmp_path / "out", tmp_path / "model"):
        theirs = transformers.AutoTokenizer.from_pretrained(directory)
        assert theirs(text, add_special_tokens=False)["input_ids"] == ids


@pytest.mark.parametrize("token", ["", "a b", "[MASK]"])
def test_special_token_that_is_none_is_refused_before_the_count(corpus, tmp_path, token):
    with pytest.raises(UsageError, match="expected a new one without blanks"):
        build_vocabulary(corpus, tmp_path / "out", config(special_tokens=(token,)), ONE_WORKER)
    assert not (tmp_path / "out").exists()
