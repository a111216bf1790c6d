"""Mixtures of sources and languages in instances and vocabularies: exact, reproducible, and nothing by default."""

import collections
import dataclasses
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_corpus import WORDS, make_vocabulary

from bert_model.cli import main
from bert_pipeline.configuration import from_mapping
from bert_pipeline.corpus.job import build_corpus
from bert_pipeline.corpus.mixture import parse_weights, plan_passes, weigh_texts
from bert_pipeline.corpus.parquet import read_documents
from bert_pipeline.corpus.sources import parse_languages, split_name
from bert_pipeline.corpus.splits import CorpusConfig, plan_splits
from bert_pipeline.errors import ConfigurationError, UsageError
from bert_pipeline.instances.job import build_instances
from bert_pipeline.instances.pairs import InstancesConfig, TokenizedDocuments, make_pairs
from bert_pipeline.manifest import Manifest, load_manifest
from bert_pipeline.vocabulary.job import build_vocabulary, count_words
from bert_pipeline.vocabulary.wordpiece import VocabularyConfig

ONE = ["--workers", "1"]
SIZES = {("wiki", "en"): 120, ("wiki", "is"): 12, ("books", "en"): 30}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A corpus of two sources and two languages, in several shards; each document has sixty words."""
    directory = tmp_path_factory.mktemp("mixture")
    rng = random.Random(8)
    lines = collections.defaultdict(list)
    for (source, language), size in SIZES.items():
        for _ in range(size):
            sentences = [" ".join(rng.choices(WORDS, k=12)).capitalize() + "." for _ in range(5)]
            record = {"text": " ".join(sentences), "language": language}
            lines[source].append(json.dumps(record))
    for source, some in lines.items():
        (directory / f"{source}.jsonl").write_text("\n".join(some) + "\n", encoding="utf-8")
    sources = [f"jsonl:{directory / source}.jsonl" for source in lines]
    config = CorpusConfig(pages_per_split=10, shard_bytes=10_000, held_out_per_mille=100)
    return build_corpus(sources, directory / "corpus", config, ONE)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path: Path = make_vocabulary(tmp_path_factory.mktemp("vocabulary") / "v")
    return path


def instances(corpus: Manifest, vocabulary: Path, output: Path, workers: int = 1, **settings: Any) -> Manifest:
    config = InstancesConfig(**{"max_seq_length": 32, "dupe_factor": 4, **settings})
    return build_instances(corpus.path, vocabulary, output, config, ["--workers", str(workers)])


def mixture_of(manifest: Manifest) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["source"], row["language"]): row for row in manifest.counts["mixture"]}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("books=parquet:x=1/y", ("books", "parquet:x=1/y")),
        ("parquet:lang=en/x", ("", "parquet:lang=en/x")),
        ("date=1/dump.xml", ("", "date=1/dump.xml")),
        ("=text:x", ("", "=text:x")),
        ("a b=text:x", ("", "a b=text:x")),
    ],
)
def test_name_is_split_from_a_source_with_a_kind_only(source, expected):
    assert split_name(source) == expected


def test_corpus_counts_training_words_by_source_and_language(corpus):
    documents = [document for path in corpus.file_paths("documents-") for document in read_documents(path)]
    expected: collections.Counter[tuple[str, str]] = collections.Counter()
    for document in documents:
        if document.split == "train":
            expected[document.document_id.partition(":")[0], document.language] += 1
    texts = corpus.counts["texts"]
    assert [(text["source"], text["language"]) for text in texts] == sorted(SIZES)
    for text in texts:
        assert text["documents"] == expected[text["source"], text["language"]]
        assert text["words"] == 60 * text["documents"]
    assert corpus.counts["words"] == 60 * len(documents)


def test_weights_of_sources_are_those_that_are_asked_for(corpus, vocabulary, tmp_path):
    plain = instances(corpus, vocabulary, tmp_path / "plain", source_weights={"wiki": 1.0})
    mixed = instances(corpus, vocabulary, tmp_path / "mixed", source_weights={"books": 2.0, "wiki": 0.25})
    rows = mixture_of(mixed)
    for text in corpus.counts["texts"]:
        row = rows[text["source"], text["language"]]
        # Both products of weight and passes are whole numbers, so that the share is exact.
        passes = {"books": 8, "wiki": 1}[text["source"]]
        assert row["words_read"] == passes * text["words"]
        assert row["documents_read"] == row["documents"] == text["documents"]
        assert row["share"] == pytest.approx(row["words_read_share"], abs=1e-6)
        assert row["instances_share"] == pytest.approx(row["share"], abs=0.03)
    assert sum(row["instances"] for row in rows.values()) == mixed.counts["train"]["instances"]
    assert mixed.configuration["source_weights"] == {"books": 2.0, "wiki": 0.25}
    assert mixed.counts["held_out"] == plain.counts["held_out"]


def test_document_without_tokens_is_not_counted_as_read(vocabulary, tmp_path):
    texts = ["Ka lo mi. Ne pa ru.", "\u00ad\u00ad", "Mi ka lo. Ru ne pa.", "Lo mi ka. Pa ru ne."]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    config = CorpusConfig(held_out_per_mille=0)
    corpus = build_corpus([f"jsonl:{tmp_path / 'own.jsonl'}"], tmp_path / "corpus", config, ONE)
    (row,) = mixture_of(instances(corpus, vocabulary, tmp_path / "out", source_weights={"own": 2.0})).values()
    assert (row["documents"], row["documents_read"], row["words_read"]) == (4, 3, 3 * 6 * 2 * 4)


def test_no_mixture_leaves_manifest_and_instances_as_they_were(corpus, vocabulary, tmp_path):
    plain = instances(corpus, vocabulary, tmp_path / "plain")
    assert not {"source_weights", "language_exponent"} & plain.configuration.keys()
    assert "mixture" not in plain.counts
    ones = instances(corpus, vocabulary, tmp_path / "ones", source_weights={"books": 1.0}, language_exponent=1.0)
    assert ones.content == plain.content
    counted = build_vocabulary(corpus.path, tmp_path / "v", VocabularyConfig(vocab_size=120, num_unused=5), ONE)
    assert not {"source_weights", "language_exponent"} & counted.configuration.keys()
    assert "mixture" not in counted.counts


def test_source_of_weight_zero_is_left_out_of_random_next_sentences_too(corpus, vocabulary, tmp_path):
    manifest = instances(corpus, vocabulary, tmp_path / "out", source_weights={"wiki": 0.0})
    rows = mixture_of(manifest)
    assert rows["wiki", "en"]["instances"] == rows["wiki", "is"]["documents_read"] == 0
    assert rows["books", "en"]["instances_share"] == rows["books", "en"]["words_read_share"] == 1.0

    documents = make_tokens(4, 6)
    pairs = make_pairs(documents, InstancesConfig(max_seq_length=12), np.array([3, 0, 5, 0]))
    assert set(documents.document_of(pairs.a_start).tolist()) == {0, 2}
    assert pairs.is_random_next.any()
    assert set(documents.document_of(pairs.b_start).tolist()) == {0, 2}


def make_tokens(num_documents: int, sentences: int) -> TokenizedDocuments:
    count = num_documents * sentences
    return TokenizedDocuments(
        tokens=np.arange(3 * count, dtype=np.uint16),
        sentence_offsets=np.arange(0, 3 * count + 1, 3),
        document_offsets=np.arange(0, count + 1, sentences),
        keys=np.arange(7, 7 + num_documents, dtype=np.uint64),
    )


def test_random_next_sentences_are_drawn_by_weight():
    documents = make_tokens(5, 40)
    pairs = make_pairs(documents, InstancesConfig(max_seq_length=20, seed=1), np.array([100, 300, 100, 0, 100]))
    is_other = pairs.is_random_next & (documents.document_of(pairs.a_start) == 0)
    drawn = np.bincount(documents.document_of(pairs.b_start[is_other]), minlength=5)
    assert is_other.sum() > 500
    assert drawn / drawn.sum() == pytest.approx([0, 0.6, 0.2, 0, 0.2], abs=0.05)


def test_fractions_of_passes_follow_a_hash_of_the_document(corpus):
    texts = weigh_texts(corpus, InstancesConfig(source_weights={"wiki": 0.6}))
    shards = corpus.file_paths("documents-")
    assert len(shards) > 2
    found = [plan_passes(shard, texts, 4, 12345) for shard in shards]
    wiki = np.concatenate([some["passes"][[texts[text].source == "wiki" for text in some["text"]]] for some in found])
    assert set(wiki.tolist()) == {2, 3}
    assert wiki.mean() == pytest.approx(2.4, abs=0.15)
    # A larger weight adds passes and takes none away; another seed adds them to other documents.
    heavier = weigh_texts(corpus, InstancesConfig(source_weights={"wiki": 0.7}))
    more = [plan_passes(shard, heavier, 4, 12345) for shard in shards]
    assert all((one["passes"] <= other["passes"]).all() for one, other in zip(found, more))
    others = [plan_passes(shard, texts, 4, 1) for shard in shards]
    assert any((one["passes"] != other["passes"]).any() for one, other in zip(found, others))


def write_hub_wikipedias(directory: Path) -> list[str]:
    """Write Parquet files in the columns of the hub's wikimedia/wikipedia; returns the sources."""
    rng = random.Random(2)
    sizes = {"enwiki": 40, "dewiki": 8}
    for name, size in sizes.items():
        texts = [
            " ".join(rng.choices(WORDS, k=40)).capitalize() + " im Haus bzw. Wohnheim der Stadt." for _ in range(size)
        ]
        columns = {"id": [str(number) for number in range(size)], "url": [""] * size, "title": [""] * size}
        pq.write_table(pa.table({**columns, "text": texts}), directory / f"{name}-00000.parquet")
    return [f"{name}=parquet:{directory / name}-00000.parquet" for name in sizes]


def test_languages_of_sources_are_smoothed_and_split_by_their_rules(tmp_path):
    sources = write_hub_wikipedias(tmp_path)
    arguments = ["corpus", *sources, "--output", str(tmp_path / "corpus"), "--held-out-per-mille", "0"]
    assert main([*arguments, "--language", "en", "--language", "dewiki=de", "--", "--workers", "1"]) == 0
    corpus = load_manifest(tmp_path / "corpus", kind="corpus")
    documents = [document for path in corpus.file_paths("documents-") for document in read_documents(path)]
    for document in documents:
        expected = ("de", 1) if document.document_id.startswith("dewiki:") else ("en", 2)
        assert (document.language, len(document.sentences)) == expected
    weights = {text.source: text.weight for text in weigh_texts(corpus, InstancesConfig(language_exponent=0.7))}
    assert weights["enwiki"] < 1 < weights["dewiki"]

    # A preset has the same as a mapping, and without it a manifest is what it was.
    config = from_mapping(CorpusConfig, {"languages": {"dewiki": "de"}, "held_out_per_mille": 0})
    assert build_corpus(sources, tmp_path / "same", config, ONE).content == corpus.content
    assert "languages" not in build_corpus(sources, tmp_path / "plain", CorpusConfig(), ONE).configuration


def test_language_of_a_source_that_is_not_there_is_refused(tmp_path):
    sources = write_hub_wikipedias(tmp_path)
    with pytest.raises(UsageError, match=r"no source has the name 'dwiki' \(did you mean 'dewiki'\?\)"):
        plan_splits(sources, CorpusConfig(languages={"dwiki": "de"}))
    unnamed = [source.partition("=")[2] for source in sources]
    assert plan_splits(unnamed, CorpusConfig(languages={"dewiki-00000": "de"}))
    with pytest.raises(ConfigurationError, match=r"languages\.dewiki: found 'd e', expected a code"):
        CorpusConfig(languages={"dewiki": "d e"})


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["=de"], "the name of the source is missing"),
        (["a=de", "a=en"], "the source a has the language 'de' already"),
        (["en", "de"], "the corpus has the language 'en' already"),
    ],
)
def test_malformed_languages_are_refused(texts, message):
    with pytest.raises(UsageError, match=message):
        parse_languages(texts)


def test_languages_are_smoothed_as_by_the_multilingual_model(corpus, vocabulary, tmp_path):
    manifest = instances(corpus, vocabulary, tmp_path / "out", language_exponent=0.7, dupe_factor=20)
    words: collections.Counter[str] = collections.Counter()
    for text in corpus.counts["texts"]:
        words[text["language"]] += text["words"]
    powers = {language: (count / words.total()) ** 0.7 for language, count in words.items()}
    asked, read, made = (dict.fromkeys(words, 0.0) for _ in range(3))
    for row in manifest.counts["mixture"]:
        asked[row["language"]] += row["share"]
        read[row["language"]] += row["words_read_share"]
        made[row["language"]] += row["instances_share"]
    for language, power in powers.items():
        assert asked[language] == pytest.approx(power / sum(powers.values()), abs=1e-5)
        assert read[language] == pytest.approx(asked[language], abs=0.01)
        assert made[language] == pytest.approx(asked[language], abs=0.03)
    assert read["is"] > 1.5 * words["is"] / words.total()
    # The whole keeps its size.
    total = sum(row["words_read"] for row in manifest.counts["mixture"])
    assert total == pytest.approx(20 * words.total(), rel=0.01)


def test_mixture_does_not_depend_on_workers(corpus, vocabulary, tmp_path):
    settings = {"source_weights": {"books": 1.3}, "language_exponent": 0.7}
    one, two = (instances(corpus, vocabulary, tmp_path / f"{n}", n, **settings) for n in (1, 2))
    assert one.content == two.content


def test_vocabulary_counts_words_by_weight(corpus, tmp_path):
    def counted(texts: Sequence[Any]) -> collections.Counter[str]:
        total: collections.Counter[str] = collections.Counter()
        for shard in corpus.file_paths("documents-"):
            total += count_words(shard, True, texts)[0]
        return total

    plain = counted([])
    texts = weigh_texts(corpus, VocabularyConfig(source_weights={"books": 2.5, "wiki": 0.5}))
    weights = {(text.source, text.language): text.weight for text in texts}
    assert weights == {("books", "en"): 2.5, ("wiki", "en"): 0.5, ("wiki", "is"): 0.5}
    parts = {}
    for name in weights:
        alone = [dataclasses.replace(text, weight=float((text.source, text.language) == name)) for text in texts]
        parts[name] = counted(alone)
    assert sum(parts.values(), collections.Counter()) == collections.Counter({w: 10_000 * n for w, n in plain.items()})
    expected = {word: sum(round(weights[name] * part[word]) for name, part in parts.items()) for word in plain}
    assert counted(texts) == expected

    config = VocabularyConfig(vocab_size=120, num_unused=5, source_weights={"books": 2.5, "wiki": 0.5})
    one, two = (build_vocabulary(corpus.path, tmp_path / f"{n}", config, ["--workers", str(n)]) for n in (1, 2))
    assert one.content == two.content
    assert one.counts["words"] == pytest.approx(sum(expected.values()) / 10_000, rel=0.01)
    assert {row["source"]: row["weight"] for row in one.counts["mixture"]} == {"books": 2.5, "wiki": 0.5}


def test_weighted_vocabulary_does_not_depend_on_partitions(tmp_path, monkeypatch):
    # Each letter is in six words of weight .4, and the words are in different partitions.
    letters = [chr(code) for code in range(0x3B1, 0x3B1 + 12)]
    words = [letter + other for letter in letters for other in "abcdef"]
    rng = random.Random(4)
    texts = [[*rng.sample(WORDS, len(WORDS)), *words[number % 10 :: 10]] for number in range(40)]
    lines = [json.dumps({"text": f"{' '.join(text)}."}) for text in texts]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    corpus = build_corpus([f"jsonl:{tmp_path}/a.jsonl"], tmp_path / "corpus", CorpusConfig(), ONE)
    config = VocabularyConfig(vocab_size=200, num_unused=5, pad_with_unused=True, source_weights={"a": 0.1})
    whole = build_vocabulary(corpus.path, tmp_path / "whole", config, ONE)
    monkeypatch.setattr("bert_pipeline.vocabulary.job._BYTES_PER_PARTITION", 300)
    parts = build_vocabulary(corpus.path, tmp_path / "parts", config, ONE)
    assert parts.content == whole.content
    assert set(letters) <= set((parts.path / "vocab.txt").read_text(encoding="utf-8").split())


@pytest.mark.parametrize("texts", [["books"], ["books=two"], ["=2"], ["a=1", "a=2"]])
def test_malformed_weights_are_refused(texts):
    with pytest.raises(UsageError, match="such as books=2"):
        parse_weights(texts)


@pytest.mark.parametrize(
    "settings",
    [
        {"source_weights": {"a": -1}},
        {"source_weights": {"a": 1e18}},
        {"language_exponent": 0},
        {"language_exponent": 1.5},
    ],
)
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(ConfigurationError, match="expected at least 0|expected more than 0|expected at most 1"):
        from_mapping(InstancesConfig, settings)


def test_unknown_source_and_weights_of_zero_are_refused(corpus):
    with pytest.raises(UsageError, match="found book, expected sources of the corpus.*: books, wiki"):
        weigh_texts(corpus, InstancesConfig(source_weights={"book": 2.0}))
    with pytest.raises(UsageError, match="all sources with text have the weight 0"):
        weigh_texts(corpus, InstancesConfig(source_weights={"books": 0.0, "wiki": 0.0}))
    with pytest.raises(UsageError, match="all sources with text are 0 when rounded to 6 decimals; give larger ones"):
        weigh_texts(corpus, InstancesConfig(source_weights={"books": 1e-8, "wiki": 1e-8}))
