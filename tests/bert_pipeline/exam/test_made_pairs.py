"""Pairs made from documents: what is exchanged in each kind, in several scripts."""

import numpy as np

from bert_pipeline.corpus.parquet import Document
from bert_pipeline.exam.made_pairs import PairMaker, without_attested
from bert_pipeline.exam.ngrams import Trigrams, WordSplitter, count_trigrams
from bert_pipeline.exam.pairs import Pair

COUNTS = {
    "the": 5000, "dog": 400, "dogs": 300, "walk": 60, "walks": 50, "walked": 40, "walnut": 30, "quickly": 30, "he": 900,
    "in": 900, "paris": 20, "rome": 20, "anna": 20, "karl": 20, "met": 40, "home": 50, "to": 900,
}  # fmt: skip
NAMES = ("paris", "rome", "anna", "karl", "smith", "jones")


def make(*passages: tuple[str, ...], counts: dict[str, int] = COUNTS, seed: int = 0) -> dict[str, list[Pair]]:
    starts = np.cumsum([0, *(len(passage) for passage in passages[:-1])])
    document = Document(
        document_id="d",
        title="",
        language="en",
        sentences=tuple(sentence for passage in passages for sentence in passage),
        passage_starts=tuple(starts.tolist()),
        split="held_out",
    )
    lower = np.array([0 if word in NAMES else count for word, count in counts.items()])
    maker = PairMaker(list(counts), np.array(list(counts.values())), lower, seed)
    found: dict[str, list[Pair]] = {"swap": [], "ending": [], "entity": [], "next_sentence": []}
    for pair in maker.make(document):
        found[pair.kind].append(pair)
    return found


def test_swap_exchanges_neighbors_after_the_first_word():
    sentence = "Dog walks, quickly home to 12 walnut."
    bad = {make((sentence,), seed=seed)["swap"][0].bad[0] for seed in range(20)}
    # Not over a comma or a figure, and not the capital at the beginning.
    assert bad == {"Dog walks, home quickly to 12 walnut.", "Dog walks, quickly to home 12 walnut."}


def test_ending_is_the_word_of_the_stem_nearest_in_frequency():
    sentence = "Anna walks in the walnut."
    assert {make((sentence,), seed=seed)["ending"][0].bad[0] for seed in range(20)} == {"Anna walk in the walnut."}
    # "dogs" is like "dog", but six times as frequent; "walnut" shares too little with "walk".
    rare = COUNTS | {"dogs": 50}
    assert not make(("The dog met quickly home.",), counts=rare)["ending"]
    bad = {make(("The dog met quickly home.",), seed=seed)["ending"][0].bad[0] for seed in range(20)}
    assert bad == {"The dogs met quickly home."}


def test_attested_endings_are_dropped():
    words = list(COUNTS)
    splitter = WordSplitter(words)

    def trigrams_of(*texts: str) -> Trigrams:
        ids = [splitter.encode(text)[0] for text in texts]
        return count_trigrams(np.concatenate(ids), np.array([len(text) for text in ids]))

    pairs = make(("He walks home.", "The home to walks"))
    (one, last) = pairs["ending"]
    assert (one.bad, last.bad) == (("He walk home.",), ("The home to walk",))
    others = [pair for kind in pairs for pair in pairs[kind] if kind != "ending"]
    everything = [one, last, *others]
    # The neighbors alone, in other places, or the right word, say nothing.
    kept = trigrams_of("He walks home.", "home walk he", "the he walk", "walk home", "home to walk in")
    assert without_attested(everything, words, kept) == everything
    assert without_attested(everything, words, trigrams_of("Quickly he walk home to Rome")) == [last, *others]
    assert without_attested(everything, words, trigrams_of("In to walk")) == [one, *others]
    # A neighbor that the model does not know is no neighbor.
    (unknown,) = make(("He met Bob walks home.",))["ending"]
    assert without_attested([unknown], words, trigrams_of("he met jim walk home")) == [unknown]


def test_entity_exchanges_names_inside_sentences():
    passage = ("Karl met Anna in Paris.", "In Rome, He walks to the Paris-Rome dog.")
    found = {make(passage, seed=seed)["entity"][0].bad[0] for seed in range(60)}
    text = " ".join(passage)
    # "Karl" and "In" begin a sentence, "He" is mostly lower case, "Paris-Rome" is one word.
    pairs = (("Anna", "Paris"), ("Anna", "Rome"), ("Paris", "Rome"))
    expected = set()
    for a, b in pairs:
        start, other = text.index(a), text.index(b)
        expected.add(text[:start] + b + text[start + len(a) : other] + a + text[other + len(b) :])
    assert found == expected


def test_names_of_several_words_are_exchanged_whole():
    counts = COUNTS | {"smith": 5, "jones": 5, "x": 1_000_000}
    (pair,) = make(("He met Anna Smith and Karl Jones in the home.",), counts=counts)["entity"]
    assert pair.bad == ("He met Karl Jones and Anna Smith in the home.",)


def test_scripts_without_case_exchange_rare_repeated_words():
    counts = {"的": 50_000, "東": 10, "京": 10, "大": 40_000, "वह": 60_000, "राम": 5, "सीता": 5, "और": 90_000}
    passage = ("वह राम और सीता और राम और सीता.",)
    bad = {make(passage, counts=counts, seed=seed)["entity"][0].bad[0] for seed in range(40)}
    assert "वह सीता और राम और राम और सीता." in bad
    assert all(sorted(text.split()) == sorted(passage[0].split()) for text in bad if "सीता." in text)


def test_names_are_found_by_the_script_of_the_text():
    counts = {"वह": 60_000, "राम": 5, "सीता": 5, "और": 90_000, "dna": 5}
    assert make(("वह DNA राम और सीता और राम और सीता.",), counts=counts)["entity"]
    # Georgian has capitals in Unicode, with which no word begins.
    counts = {"ის": 60_000, "ანა": 5, "გია": 5, "და": 90_000}
    assert make(("ის ანა და გია და ანა და გია.",), counts=counts)["entity"]


def test_unknown_words_of_scripts_without_case_are_told_apart():
    counts = {"הלך": 50_000, "אל": 60_000}
    assert not make(("משה הלך אל ירושלים אל שילה אל בארשבע.",), counts=counts)["entity"]
    (pair,) = make(("משה הלך אל שילה אל משה אל שילה אל ירושלים.",), counts=counts, seed=1)["entity"]
    assert pair.bad[0].split()[-1] == "ירושלים."
    assert sorted(pair.bad[0].split()) == sorted(pair.good[0].split())


def test_chinese_characters_are_swapped():
    (pair,) = make(("東京大的。",), counts={"的": 100, "東": 50, "京": 50, "大": 100})["swap"]
    assert pair.bad[0] in ("東大京的。", "東京的大。")


def test_next_sentence_reverses_neighbors_of_one_passage():
    passage = ("The dog walks home.", "He met Anna in Rome.", "Oh!")
    (pair,) = make(passage, ("The dogs walk home.",))["next_sentence"]
    assert (pair.good, pair.bad) == (passage[:2], passage[1::-1])
    assert pair.source == "d"
    assert not make(("The dog walks home.",), ("He met Anna in Rome.",))["next_sentence"]


def test_pairs_have_unique_ids_and_differ():
    passages = [("The dog walks home to Anna in Rome.", "He met Karl in the home of Anna.")] * 3
    pairs = [pair for kind in make(*passages).values() for pair in kind]
    assert len({pair.pair_id for pair in pairs}) == len(pairs) > 10
    assert all(pair.good != pair.bad for pair in pairs)
