"""The model equals a textbook implementation, read back by kenlm from its ARPA file."""

import collections
import math
import random
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from bert_pipeline.exam import ngrams
from bert_pipeline.exam.floor import floor_scores
from bert_pipeline.exam.ngrams import (
    END,
    MARKS,
    Level,
    WordSplitter,
    count_windows,
    estimate,
    merge_windows,
    write_arpa,
)
from bert_pipeline.exam.pairs import Pair

WORDS = [f"w{number}" for number in range(300)]


def sentences(count: int, seed: int) -> list[list[str]]:
    """Sentences in which each word prefers a few others, so that all orders have frequent n-grams."""
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        number, words = 0, []
        while not words or rng.random() < 0.85:
            number = (number * 7 + int(rng.expovariate(0.5))) % 40 if rng.random() < 0.8 else rng.randrange(300)
            words.append(WORDS[number])
        made.append(words)
    return made


def build(texts: list[list[str]], order: int, prune: int = 0) -> list[Level]:
    ids = {word: index for index, word in enumerate([*MARKS, *WORDS])}
    parts = []
    for half in (texts[::2], texts[1::2]):
        flat = np.array([ids[word] for text in half for word in text], dtype=np.int64)
        parts.append(count_windows(flat, np.array([len(text) for text in half], dtype=np.int64), order))
    return estimate(merge_windows(parts), order, len(ids), prune=prune)


@pytest.mark.parametrize("runs_per_key", [1, 7, 1 << 22])
def test_windows_are_merged_in_the_order_of_last_then_first(monkeypatch, runs_per_key):
    monkeypatch.setattr(ngrams, "_RUNS_PER_KEY", runs_per_key)
    rng = np.random.default_rng(1)
    last, first = (rng.integers(0, 50, 4000).astype(np.uint64) << np.uint64(42) for _ in range(2))
    merged = merge_windows([ngrams.Windows(last, first, np.ones(4000, dtype=np.int64))])
    expected = sorted(collections.Counter(zip(last.tolist(), first.tolist())).items())
    assert list(zip(zip(merged.last.tolist(), merged.first.tolist()), merged.counts.tolist())) == expected
    nothing = np.zeros(0, dtype=np.uint64)
    assert len(merge_windows([ngrams.Windows(nothing, nothing, np.zeros(0, dtype=np.int64))]).counts) == 0


class Textbook:
    """Interpolated modified Kneser-Ney, equation by equation (Chen and Goodman 1998, section 3).

    What n-grams of three or more words that occur at most `prune` times would have goes to the words below them.
    """

    def __init__(self, texts: list[list[str]], order: int, prune: int = 0) -> None:
        self.order = order
        occurrences: collections.Counter[tuple[str, ...]] = collections.Counter()
        for text in texts:
            padded = ["<s>", *text, "</s>"]
            for length in range(1, order + 1):
                for start in range(len(padded) - length + 1):
                    occurrences[tuple(padded[start : start + length])] += 1
        left = collections.defaultdict(set)
        for gram in occurrences:
            left[gram[1:]].add(gram[0])
        self.counts = {
            gram: count if len(gram) == order or gram[0] == "<s>" else len(left[gram])
            for gram, count in occurrences.items()
            if gram != ("<s>",)
        }
        self.kept: set[tuple[str, ...]] = set()
        self.following = collections.defaultdict(list)
        for gram in sorted(self.counts, key=len):
            self.following[gram[:-1]].append(gram)
            if len(gram) <= 2 or (occurrences[gram] > prune and gram[:-1] in self.kept):
                self.kept.add(gram)
        self.discounts = [self.discount(length) for length in range(1, order + 1)]

    def discount(self, length: int) -> list[float]:
        found = collections.Counter(count for gram, count in self.counts.items() if len(gram) == length)
        y = found[1] / (found[1] + 2 * found[2])
        return [0.0] + [k - (k + 1) * y * found[k + 1] / found[k] for k in (1, 2, 3)]

    def probability(self, word: str, context: tuple[str, ...]) -> float:
        """P(word | context), the context at most order - 1 words."""
        discounts = self.discounts[len(context)]
        shorter = self.probability(word, context[1:]) if context else 1 / (len(WORDS) + 2)  # with </s> and <unk>
        if not self.following[context] or (len(context) > 1 and context not in self.kept):
            return shorter
        counts = {gram: self.counts[gram] for gram in self.following[context]}
        own = {gram: count - discounts[min(count, 3)] for gram, count in counts.items() if gram in self.kept}
        total = sum(counts.values())
        return (own.get((*context, word), 0) + (total - sum(own.values())) * shorter) / total

    def score(self, text: list[str]) -> float:
        """log10 of the probability of a sentence."""
        padded = ["<s>", *text, "</s>"]
        return sum(
            math.log10(self.probability(word, tuple(padded[max(0, i - self.order + 1) : i])))
            for i, word in enumerate(padded)
            if i
        )


class BackoffModel:
    """An ARPA file, read by its definition; for where kenlm is not installed."""

    def __init__(self, path: str) -> None:
        self.entries: dict[tuple[str, ...], tuple[float, float]] = {}
        sizes = []
        for line in Path(path).read_text(encoding="utf-8").splitlines():
            columns = line.split("\t")
            if len(columns) > 1:
                backoff = float(columns[2]) if len(columns) == 3 else 0.0
                self.entries[tuple(columns[1].split(" "))] = float(columns[0]), backoff
            elif line.startswith("ngram "):
                sizes.append(int(line.partition("=")[2]))
        self.order = len(sizes)
        assert sizes == [sum(len(gram) == length for gram in self.entries) for length in range(1, self.order + 1)]

    def probability(self, gram: tuple[str, ...]) -> float:
        if gram in self.entries:
            return self.entries[gram][0]
        return self.entries.get(gram[:-1], (0.0, 0.0))[1] + self.probability(gram[1:] or ("<unk>",))

    def score(self, text: str) -> float:
        words = ["<s>", *text.split(), "</s>"]
        return sum(self.probability(tuple(words[max(0, i - self.order + 1) : i + 1])) for i in range(1, len(words)))


@pytest.mark.parametrize("reader", ["backoff", "kenlm"])
@pytest.mark.parametrize(("order", "prune"), [(3, 0), (4, 0), (5, 0), (4, 1), (5, 2)])
def test_scores_equal_the_textbook(tmp_path, order, prune, reader):
    open_model = BackoffModel if reader == "backoff" else pytest.importorskip("kenlm").Model
    texts = sentences(600, seed=1)
    write_arpa(tmp_path / "floor.arpa", build(texts, order, prune), WORDS)
    model, textbook = open_model(str(tmp_path / "floor.arpa")), Textbook(texts, order, prune)
    assert model.order == order
    for text in [*sentences(40, seed=2), ["nothing", "w1"], ["w3"] * 9]:
        assert model.score(" ".join(text)) == pytest.approx(textbook.score(text), abs=1e-4)


def test_floor_scores_good_and_bad_texts_as_one_sentence_each(tmp_path):
    pytest.importorskip("kenlm")
    path = tmp_path / "floor.arpa"
    write_arpa(path, build(sentences(600, seed=1), 3), WORDS)
    texts = [(("W1 w2.", "w3"), ("w3 w3", "w9")), (("w4 w5",), ("w5 w4",))]
    pairs = [Pair(pair_id=str(number), kind="k", good=good, bad=bad) for number, (good, bad) in enumerate(texts)]
    good, bad = floor_scores(path, pairs)
    model = BackoffModel(str(path))
    assert good == pytest.approx([model.score("w1 w2 . w3"), model.score("w4 w5")], abs=1e-4)
    assert bad == pytest.approx([model.score("w3 w3 w9"), model.score("w5 w4")], abs=1e-4)


@pytest.mark.parametrize("prune", [0, 1, 3])
def test_probabilities_of_every_context_sum_to_one(tmp_path, prune):
    kenlm = pytest.importorskip("kenlm")
    levels = build(sentences(400, seed=1), 4, prune)
    write_arpa(tmp_path / "floor.arpa", levels, WORDS)
    model, vocabulary = kenlm.Model(str(tmp_path / "floor.arpa")), [*WORDS, "</s>", "<unk>"]
    for text in sentences(30, seed=3):
        state, after = kenlm.State(), kenlm.State()
        model.BeginSentenceWrite(state)
        for word in text:
            total = sum(10 ** model.BaseScore(state, other, kenlm.State()) for other in vocabulary)
            assert total == pytest.approx(1, abs=1e-4)
            model.BaseScore(state, word, after)
            state, after = after, state
    sizes = [len(level.word) for level in levels]
    assert sizes[:2] == [len(level.word) for level in build(sentences(400, seed=1), 4)][:2]
    assert prune == 0 or sizes[2] < len(build(sentences(400, seed=1), 4)[2].word)


def test_estimate_needs_little_memory_beside_windows_and_levels(monkeypatch):
    rng = np.random.default_rng(1)
    ids = len(MARKS) + rng.integers(40, size=400_000)
    windows = count_windows(ids, np.full(20_000, 20), 5)
    num_bytes = sum(array.nbytes for array in windows)
    expected = estimate(windows, 5, len(MARKS) + 40, prune=3)

    monkeypatch.setattr(ngrams, "_PART_SIZE", 10_000)
    tracemalloc.start()
    try:
        levels = estimate(windows, 5, len(MARKS) + 40, prune=3)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # Nearly all of the windows are different; n-grams of all of them at once take four times the memory of the windows.
    assert peak < 1.5 * num_bytes
    assert [len(level.word) for level in levels] == [len(level.word) for level in expected]
    for level, other in zip(levels, expected):
        assert (level.keys == other.keys).all()
        np.testing.assert_allclose(level.probability, other.probability, rtol=1e-12)
        np.testing.assert_allclose(level.backoff, other.backoff, rtol=1e-12)


def test_small_texts_have_fallback_discounts(tmp_path):
    levels = build([["w1", "w2"]], 3)
    assert levels[1].probability.max() == pytest.approx(0.5 + 0.5 * levels[0].probability[4 + 1], abs=0.1)
    assert sum(levels[0].probability) == pytest.approx(1)


def test_level_without_frequent_ngrams_ends_the_model(tmp_path):
    kenlm = pytest.importorskip("kenlm")
    levels = build(sentences(20, seed=1), 5, prune=20)
    write_arpa(tmp_path / "floor.arpa", levels, WORDS)
    assert kenlm.Model(str(tmp_path / "floor.arpa")).order == len(levels) == 2


@pytest.mark.parametrize("lengths", [[], [2], [0, 1], [0, 0, 0]])
def test_texts_shorter_than_the_order_are_counted(lengths):
    ids = np.full(sum(lengths), len(MARKS), dtype=np.int64)
    windows = count_windows(ids, np.array(lengths, dtype=np.int64), 5)
    assert windows.counts.sum() == sum(lengths) + len(lengths)
    ends = windows.counts[windows.words(0) == END].sum()
    assert ends == len(lengths)


def test_words_are_lower_case_with_their_accents():
    splitter = WordSplitter(["café", "東"])
    assert splitter.split("Le CAFÉ, 東京.") == ["le", "café", ",", "東", "京", "."]
    ids, offsets = splitter.encode("CAFÉ 東京")
    assert ids == [4, 5, 3]
    assert offsets == [(0, 4), (5, 6), (6, 7)]
    assert splitter.encode_batch(["café", "x"]) == [[4], [3]]
