"""Counting words, training a vocabulary on the counts, extending one, and measuring it."""

import collections
import random
import re
import types

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import trainers

from bert_pipeline.errors import ConfigurationError, InputError
from bert_pipeline.vocabulary.files import SPECIAL_TOKENS
from bert_pipeline.vocabulary.quality import quality
from bert_pipeline.vocabulary.tokenizer import WORDS, Tokenizer, normalizer
from bert_pipeline.vocabulary.wordpiece import (
    VocabularyConfig,
    WordCounter,
    characters_of,
    extend,
    layout,
    min_training_count,
    train,
)
from bert_pipeline.wikipedia.dump import open_dump, read_pages
from bert_pipeline.wikipedia.extract import extract_article
from bert_pipeline.wikipedia.sentences import split_sentences

ODD = "aAzÉéßıİΣς ́\u0301\t\n\x1c\x85\u2028\u3000\u00a0\u200b中日-_.,!?'\"[]<>|~^`€\u0000\ufffd1９"


def plain_counts(texts, do_lower_case):
    clean, split = normalizer(do_lower_case), WORDS
    return collections.Counter(word for text in texts for word, _ in split.pre_tokenize_str(clean.normalize_str(text)))


def counts_of(texts, do_lower_case=True):
    counter = WordCounter(do_lower_case)
    counter.add(texts)
    return counter.counts()


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text(alphabet=ODD, max_size=40) | st.text(max_size=30), max_size=5), st.booleans())
def test_counts_equal_reference_for_any_text(texts, do_lower_case):
    assert counts_of(texts, do_lower_case) == plain_counts(texts, do_lower_case)


@pytest.mark.parametrize("limit", ["MAX_ROWS", "MAX_BYTES"])
def test_counts_do_not_depend_on_what_is_kept(limit):
    texts = ["the cat, the dog", "a cat; THE end", "the-end"] * 3
    counter = type("Limited", (WordCounter,), {limit: 0})(True)
    for text in texts:
        counter.add([text])
        assert counter._num_raw == 0  # it is counted already
    assert counter.counts() == counts_of(texts)


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_counts_do_not_depend_on_block_size(do_lower_case):
    rng = random.Random(4)
    texts = ["".join(rng.choices(ODD, k=rng.randint(0, 40))) for _ in range(9_000)]  # more than a block
    texts += ["the-end, the cat"] * 3
    assert counts_of(texts, do_lower_case) == plain_counts(texts, do_lower_case)


def test_one_call_splits_a_bounded_number_of_characters():
    rng = random.Random(3)
    sentences = ["".join(chr(rng.randrange(0x4E00, 0x5E00)) for _ in range(60)) for _ in range(2_500)]
    counter = WordCounter(True)
    sizes = []
    clean = counter._normalizer
    counter._normalizer = types.SimpleNamespace(
        normalize_str=lambda text: sizes.append(len(text)) or clean.normalize_str(text)
    )
    counter.add(sentences)
    assert counter.counts().total() == sum(sizes) - len(sentences) + len(sizes) == 60 * len(sentences)
    assert max(sizes) <= (1 << 16) + 60


@pytest.fixture(scope="module")
def counts():
    rng = random.Random(5)
    syllables = ["ka", "lo", "mi", "ner", "tu", "sa", "vel", "or", "ith", "pan"]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(800)]
    return sorted(collections.Counter(rng.choices(words, weights=range(800), k=20_000)).items())


def small(**values):
    return VocabularyConfig(**{"vocab_size": 300, "num_unused": 20} | values)


def test_vocabulary_has_requested_size_and_bert_layout(counts):
    tokens = train(counts, small())
    assert len(tokens) == len(set(tokens)) == 300
    assert tokens[0] == "[PAD]"
    assert tokens[1:21] == tuple(f"[unused{index}]" for index in range(20))
    assert tokens[21:25] == ("[UNK]", "[CLS]", "[SEP]", "[MASK]")
    characters = sorted({character for word, _ in counts for character in word})
    assert list(tokens[25 : 25 + len(characters)]) == characters
    assert tokens[25 + len(characters)].startswith("##")


def test_vocabulary_begins_with_those_of_smaller_sizes(counts):
    longest = train(counts, small(), max_size=600)
    assert len(longest) == 600
    for size in (150, 300, 600):
        assert train(counts, small(vocab_size=size)) == longest[:size]
    assert len(train(counts, small(), max_size=100_000)) == len(set(train(counts, small(), max_size=50_000))) < 5000


@pytest.mark.real_data
@pytest.mark.parametrize(("language", "size"), [("de", 2500), ("hi", 1500), ("hu", 2500), ("ru", 2500), ("tr", 2500)])
def test_small_text_gives_as_few_tokens_per_word_as_the_trainer(real_data, language, size):
    dump = open_dump(real_data / f"wikipedia/languages/{language}wiki-head.xml.bz2")
    passages = [text for page in read_pages(dump) for text in extract_article(page, dump.site).passages]
    sentences = [sentence for passage in passages for sentence in split_sentences(passage, language)]
    train_on = [sentence for number, sentence in enumerate(sentences) if number % 5]
    held_out = counts_of(sentences[::5], do_lower_case=False)

    def tokens_per_word(tokens):
        return quality(Tokenizer.from_tokens(tokens, do_lower_case=False), held_out)["tokens_per_word"]

    engine = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    engine.normalizer, engine.pre_tokenizer = normalizer(False), WORDS
    engine.train_from_iterator(train_on, trainers.WordPieceTrainer(vocab_size=size, special_tokens=[*SPECIAL_TOKENS]))
    counts = sorted(counts_of(train_on, do_lower_case=False).items())
    ours, rarest_left_out = (
        tokens_per_word(train(counts, VocabularyConfig(vocab_size=size, num_unused=0, pad_with_unused=True, **values)))
        for values in ({}, {"min_count": 2})
    )
    theirs = tokens_per_word(sorted(engine.get_vocab(), key=engine.get_vocab().__getitem__))
    assert ours < 1.02 * theirs < rarest_left_out  # theirs differs by 1 % from run to run


def test_layout_of_994_slots_equals_published_vocabularies():
    head = layout(994)
    assert head[100:105] == ("[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused99]")
    assert head[998] == "[unused993]"
    assert len(head) == 999


def test_vocabulary_does_not_depend_on_order_of_counts(counts):
    expected = train(counts, small())
    for seed in range(4):
        shuffled = list(counts)
        random.Random(seed).shuffle(shuffled)
        assert train(shuffled, small()) == expected


def test_words_of_the_corpus_are_known_and_frequent_ones_are_whole(counts):
    tokenizer = Tokenizer.from_tokens(train(counts, small()), do_lower_case=True)
    assert all(tokenizer.unk_id not in ids for ids in tokenizer.encode_batch([word for word, _ in counts]))
    frequent = sorted(counts, key=lambda item: -item[1])[:20]
    assert sum(len(ids) for ids in tokenizer.encode_batch([word for word, _ in frequent])) < 30


def test_largest_size_in_error_is_possible(counts):
    with pytest.raises(InputError, match=r"the corpus is too small for it, (\d+) is the largest possible") as caught:
        train(counts, small(vocab_size=30_000))
    largest = int(str(caught.value).split(" is the largest")[0].split()[-1])
    assert len(train(counts, small(vocab_size=largest))) == largest
    with pytest.raises(InputError):
        train(counts, small(vocab_size=largest + 1))


def test_largest_size_in_error_is_possible_with_many_characters():
    ideographs = {chr(0x4E00 + rank): 2 + 60_000 // (rank + 10) for rank in range(3_000)}
    counts = sorted([*ideographs.items(), ("abcdefghij", sum(ideographs.values()))])
    with pytest.raises(InputError, match=r"\d+ is the largest possible with max_alphabet=\d+; ask") as caught:
        train(counts, VocabularyConfig(vocab_size=30_000, num_unused=0))
    largest, limit = map(int, re.search(r"(\d+) is the largest .*max_alphabet=(\d+);", str(caught.value)).groups())
    assert limit > 2_000
    assert len(train(counts, VocabularyConfig(vocab_size=largest, num_unused=0, max_alphabet=limit))) == largest


def test_unused_slots_fill_up_when_asked_for(counts):
    tokens = train(counts, small(vocab_size=5_000, pad_with_unused=True))
    assert len(tokens) == len(set(tokens)) == 5_000
    assert tokens[100:105] == ("[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused99]")


def test_vocab_size_below_alphabet_and_rare_words_alone_raise(counts):
    with pytest.raises(InputError, match="single characters"):
        train(counts, small(vocab_size=30, num_unused=0))
    with pytest.raises(InputError, match="no word occurs 2 times"):
        train([("once", 1)], small(min_count=2))


def test_character_of_many_rare_words_is_in_alphabet():
    rare = [("aé", 1), ("éa", 1), ("aü", 1)]
    tokens = train(
        [("aa", 9)], VocabularyConfig(vocab_size=10, num_unused=0, min_count=2), characters_of([("aa", 9), *rare])
    )
    assert tokens[5:] == ("a", "é", "##a", "##é", "aa")


def test_rare_words_and_rare_characters_are_left_out():
    counts = [("aa", 9), ("ab", 8), ("xa", 1), ("éa", 2)]
    tokens = train(counts, VocabularyConfig(vocab_size=10, num_unused=0, min_count=2, max_alphabet=2))
    assert set(tokens) == {*SPECIAL_TOKENS, "a", "b", "##a", "##b", "aa"}


def alphabet_of(counts, **values):
    tokens = train(counts, VocabularyConfig(num_unused=0, pad_with_unused=True, **values))
    return {token for token in tokens if len(token) == 1}


def test_alphabet_covers_a_text_of_many_characters():
    # A tenth of the text: 3,000 ideographs, a word each, the frequent ones first.
    ideographs = {chr(0x4E00 + rank): 2 + 60_000 // (rank + 10) for rank in range(3_000)}
    latin = [("abcdefghij", sum(ideographs.values()))]
    counts = sorted([*ideographs.items(), *latin])
    alphabet = alphabet_of(counts, vocab_size=30_000)
    lost = sum(count for word, count in ideographs.items() if word not in alphabet)
    characters = sum(count * len(word) for word, count in counts)
    assert 0.9995 <= 1 - lost / characters < 0.9996
    assert 2_000 < len(alphabet) < 3_000
    # An explicit limit is kept, and a small vocabulary keeps room for longer pieces.
    assert len(alphabet_of(counts, vocab_size=30_000, max_alphabet=1_000)) == 1_000
    assert len(alphabet_of(counts, vocab_size=3_405)) == 1_691


def test_alphabet_of_few_characters_is_as_before():
    counts = sorted((f"{chr(0x100 + rank)}x", 100_000 // (rank + 1) ** 2 + 2) for rank in range(500))
    everything = alphabet_of(counts, vocab_size=5_000)
    assert everything == alphabet_of(counts, vocab_size=5_000, max_alphabet=1_000)
    assert len(everything) == 501


@pytest.mark.parametrize(("max_words", "min_count"), [(7, 1), (6, 3), (4, 3), (3, 4), (1, 8)])
def test_training_uses_most_frequent_words(max_words, min_count):
    counts = np.array([5, 2, 9, 2, 3, 2, 7])
    assert min_training_count(counts, max_words) == min_count
    assert (counts >= min_count).sum() <= max_words


@pytest.mark.parametrize(
    "values", [{"vocab_size": 20, "num_unused": 20}, {"min_count": 0}, {"num_unused": -1}, {"max_alphabet": 0}]
)
def test_impossible_settings_raise(values):
    with pytest.raises(ConfigurationError, match=next(iter(values))):
        small(**values)


def test_extending_fills_unused_slots_with_the_words_that_save_most_pieces():
    tokens = [*layout(2), "a", "##a", "b", "##b", "ab"]
    counts = [("ab", 1000), ("aaaa", 10), ("bb", 20), ("abab", 1), ("ééé", 9)]
    extended, added = extend(Tokenizer.from_tokens(tokens, do_lower_case=False), counts, min_count=2)
    # aaaa saves 3 pieces 10 times, bb 1 piece 20 times; the unknown word counts by its characters, 2 pieces 9 times.
    assert added == 2
    assert extended.tokens[1:3] == ("aaaa", "bb")
    assert extended.tokens[3:] == tuple(tokens[3:])
