"""The trigram model equals a textbook implementation, and its file is read back whole or refused."""

import collections
import math
import random

import numpy as np
import pytest

from bert_pipeline.errors import InputError
from bert_pipeline.exam.ngrams import (
    END,
    MARKS,
    TrigramModel,
    Trigrams,
    WordSplitter,
    count_trigrams,
    merge_trigrams,
    ngram_baseline_scores,
    trigrams_of,
    write_trigrams,
)
from bert_pipeline.exam.pairs import Pair

WORDS = [f"w{number}" for number in range(300)]
IDS = {word: index for index, word in enumerate([*MARKS, *WORDS])}


def sentences(count: int, seed: int) -> list[list[str]]:
    """Sentences in which each word prefers a few others, so that trigrams repeat."""
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        number, words = 0, []
        while not words or rng.random() < 0.85:
            number = (number * 7 + int(rng.expovariate(0.5))) % 40 if rng.random() < 0.8 else rng.randrange(300)
            words.append(WORDS[number])
        made.append(words)
    return made


def arrays_of(texts: list[list[str]]) -> tuple[np.ndarray, np.ndarray]:
    flat = np.array([IDS.get(word, IDS["<unk>"]) for text in texts for word in text], dtype=np.int64)
    return flat, np.array([len(text) for text in texts], dtype=np.int64)


def count(texts: list[list[str]]) -> Trigrams:
    return merge_trigrams([count_trigrams(*arrays_of(half)) for half in (texts[::2], texts[1::2])])


class Textbook:
    """Interpolated Kneser-Ney, equation by equation (Chen and Goodman 1998, sections 2.7 and 4.1.5)."""

    def __init__(self, texts: list[list[str]]) -> None:
        padded = [["<s>", "<s>", *text, "</s>"] for text in texts]
        trigrams = collections.Counter(tuple(text[i - 2 : i + 1]) for text in padded for i in range(2, len(text)))
        bigrams = collections.Counter(gram[1:] for gram in trigrams)
        self.counts = [collections.Counter(gram[1:] for gram in bigrams), bigrams, trigrams]
        self.after = [collections.defaultdict(list) for _ in self.counts]
        for counts, after in zip(self.counts, self.after):
            for gram, number in counts.items():
                after[gram[:-1]].append(number)
        ones = [collections.Counter(counts.values()) for counts in self.counts]
        self.discounts = [one[1] / (one[1] + 2 * one[2]) for one in ones]

    def probability(self, *gram: str) -> float:
        if not gram:
            return 1 / (len(WORDS) + 2)  # with </s> and <unk>
        level = len(gram) - 1
        shorter, after = self.probability(*gram[1:]), self.after[level][gram[:-1]]
        if not after:
            return shorter
        discount = self.discounts[level]
        return (max(self.counts[level][gram] - discount, 0) + discount * len(after) * shorter) / sum(after)

    def score(self, text: list[str]) -> float:
        padded = ["<s>", "<s>", *text, "</s>"]
        return sum(math.log(self.probability(*padded[i - 2 : i + 1])) for i in range(2, len(padded)))


def test_scores_equal_the_textbook(tmp_path):
    texts = sentences(600, seed=1)
    write_trigrams(tmp_path / "trigrams.npz", count(texts), WORDS)
    textbook, others = Textbook(texts), [*sentences(40, seed=2), ["w3"] * 9]
    # Two sentences count as one; case and punctuation are those of the words.
    pairs = [Pair(pair_id="0", kind="k", good=("W1", "w2"), bad=("w3 .",))]
    pairs += [Pair(pair_id="1", kind="k", good=(" ".join(text),), bad=("w9",)) for text in others]
    good, bad = ngram_baseline_scores(tmp_path / "trigrams.npz", pairs)
    assert good == pytest.approx([textbook.score(text) for text in [["w1", "w2"], *others]], abs=1e-8)
    assert bad[:2] == pytest.approx([textbook.score(["w3", "<unk>"]), textbook.score(["w9"])], abs=1e-8)


def test_probabilities_of_every_context_sum_to_one():
    model = TrigramModel(count(sentences(400, seed=1)), len(IDS))
    keys = trigrams_of(*arrays_of(sentences(30, seed=3)))
    every = np.arange(1, len(IDS), dtype=np.uint64)  # all but <s>
    for key in keys:
        context = key & np.uint64((1 << 42) - 1)
        probabilities = model.probabilities((every << np.uint64(42)) | context)
        assert probabilities.min() > 0
        assert probabilities.sum() == pytest.approx(1)


def test_model_of_one_sentence_prefers_it():
    model = TrigramModel(count([["w1", "w2"]]), len(IDS))
    seen, swapped = (
        np.log(model.probabilities(trigrams_of(*arrays_of([text])))).sum() for text in (["w1", "w2"], ["w2", "w1"])
    )
    assert -math.inf < swapped < seen


def test_equal_factors_in_another_order_are_a_tie(tmp_path):
    write_trigrams(tmp_path / "trigrams.npz", count(sentences(400, seed=1)), WORDS)
    texts = [f"new1 new2 new3 {word} new4 new5 new6 {other} new7 new8" for word, other in (("w5", "w8"), ("w8", "w5"))]
    good, bad = ngram_baseline_scores(
        tmp_path / "trigrams.npz", [Pair(pair_id="0", kind="k", good=(texts[0],), bad=(texts[1],))]
    )
    assert good == bad


@pytest.mark.parametrize("damage", ["absent", "cut short", "changed", "another file"])
def test_file_that_holds_no_trigrams_is_refused(tmp_path, damage):
    path = tmp_path / "trigrams.npz"
    write_trigrams(path, count(sentences(40, seed=1)), WORDS)
    data = path.read_bytes()
    if damage == "absent":
        path.unlink()
    elif damage == "another file":
        np.savez(path, keys=np.zeros(3))
    else:
        path.write_bytes(data[:-100] if damage == "cut short" else data.replace(b"w299", b"w298"))
    with pytest.raises(InputError, match=r"trigrams\.npz: not the trigrams of an exam \(.+\); make the exam again"):
        ngram_baseline_scores(path, [])


@pytest.mark.parametrize("lengths", [[], [2], [0, 1], [0, 0, 0]])
def test_short_texts_are_counted(lengths):
    ids = np.full(sum(lengths), len(MARKS), dtype=np.int64)
    trigrams = count_trigrams(ids, np.array(lengths, dtype=np.int64))
    assert trigrams.counts.sum() == sum(lengths) + len(lengths)
    assert trigrams.counts[trigrams.keys >> np.uint64(42) == END].sum() == len(lengths)


def test_words_are_lower_case_with_their_accents():
    splitter = WordSplitter(["café", "東"])
    assert splitter.split("Le CAFÉ, 東京.") == ["le", "café", ",", "東", "京", "."]
    ids, offsets = splitter.encode("CAFÉ 東京")
    assert ids == [3, 4, 2]
    assert offsets == [(0, 4), (5, 6), (6, 7)]
    assert splitter.encode_batch(["café", "x"]) == [[3], [2]]
