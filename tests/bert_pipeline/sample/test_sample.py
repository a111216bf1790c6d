"""The generated encyclopedia and its task files: real formats, correct labels, reproducible bytes."""

import bz2
import csv
import hashlib
import json
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import pytest

from bert_pipeline.errors import ConfigurationError
from bert_pipeline.sample import generate_sample
from bert_pipeline.sample.articles import write_articles
from bert_pipeline.sample.export import base36_sha1
from bert_pipeline.sample.grammar import plain, tagged
from bert_pipeline.sample.lexicon import PRAISE, TRADES, TRAITS, seen, unseen
from bert_pipeline.sample.world import World

NAMESPACE = "{http://www.mediawiki.org/xml/export-0.11/}"


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    return generate_sample(tmp_path_factory.mktemp("sample") / "samplewiki", seed=3, num_articles=300)


@pytest.fixture(scope="module")
def pages(sample):
    with bz2.open(sample.path / "samplewiki-3-pages-articles.xml.bz2") as stream:
        return list(ElementTree.parse(stream).getroot())


def read_tsv(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]


def test_bytes_depend_on_seed_only(sample, tmp_path):
    assert generate_sample(tmp_path / "again", seed=3, num_articles=300).sha256 == sample.sha256
    assert generate_sample(tmp_path / "other", seed=4, num_articles=300).sha256 != sample.sha256


def test_default_sample_has_over_a_thousand_articles(tmp_path):
    assert len(write_articles(World(1, 1200))) > 1000


def test_too_few_articles_raise(tmp_path):
    with pytest.raises(ConfigurationError, match=r"num_articles: found 5"):
        generate_sample(tmp_path / "few", num_articles=5)
    with pytest.raises(ConfigurationError, match=r"num_articles: found 20000, expected 100 to 12000"):
        generate_sample(tmp_path / "many", num_articles=20_000)
    assert not (tmp_path / "few").exists()


def test_sample_has_site_information(pages):
    site = pages[0]
    assert site.findtext(f"{NAMESPACE}dbname") == "samplewiki"
    namespaces = {int(entry.get("key")): entry.text for entry in site.find(f"{NAMESPACE}namespaces")}
    assert namespaces[0] is None
    assert namespaces[14] == "Category"


def test_every_revision_states_its_true_size_and_sha1(pages):
    for page in pages[1:]:
        revision = page.find(f"{NAMESPACE}revision")
        text = revision.find(f"{NAMESPACE}text")
        data = text.text.encode()
        digits = revision.findtext(f"{NAMESPACE}sha1")
        assert int(text.get("bytes")) == len(data)
        assert int(digits, 36) == int(hashlib.sha1(data).hexdigest(), 16)
        assert len(digits) == 31


def test_base36_sha1_of_the_empty_text_is_the_one_of_mediawiki():
    assert base36_sha1(b"") == "phoiac9h4m842xq45sp7s6u21eteeq1"


def test_page_titles_and_identifiers_are_unique(pages):
    titles = Counter(page.findtext(f"{NAMESPACE}title") for page in pages[1:])
    identifiers = [int(page.findtext(f"{NAMESPACE}id")) for page in pages[1:]]
    assert max(titles.values()) == 1
    assert identifiers == sorted(set(identifiers))


@pytest.mark.parametrize(
    "markup",
    [
        "{{Infobox person", "{{Infobox settlement", "{| class=", "<ref>{{cite book", "{{Reflist}}", "== History ==",
        "[[Category:Generated articles]]", "'''", "{{nowrap|", "#REDIRECT [[", "{{Disambiguation}}", "* [[", "[[File:",
        "<!--", "{{Quote|", "; ",
    ],
)  # fmt: skip
def test_sample_uses_markup_of_real_dumps(pages, markup):
    texts = [page.findtext(f"{NAMESPACE}revision/{NAMESPACE}text") for page in pages[1:]]
    assert any(markup in text for text in texts)


def test_there_are_redirects_a_disambiguation_page_and_a_talk_page(pages):
    assert any(page.find(f"{NAMESPACE}redirect") is not None for page in pages[1:])
    assert any("(disambiguation)" in page.findtext(f"{NAMESPACE}title") for page in pages[1:])
    assert any(page.findtext(f"{NAMESPACE}ns") == "1" for page in pages[1:])


def test_sample_is_labeled_as_generated(sample, pages):
    assert sample.counts["generated"] is True
    assert "generated" in sample.counts["notice"]
    articles = [page for page in pages[1:] if page.findtext(f"{NAMESPACE}ns") == "0"]
    for page in articles:
        text = page.findtext(f"{NAMESPACE}revision/{NAMESPACE}text")
        if page.find(f"{NAMESPACE}redirect") is None and "{{Disambiguation}}" not in text:
            assert "[[Category:Generated articles]]" in text


def test_no_template_slot_or_mark_is_left_in_the_prose():
    for article in write_articles(World(2, 200)):
        for section in article.sections:
            for sentence in (sentence for paragraph in section.paragraphs for sentence in paragraph):
                assert not re.search(r"[\[\]{}|~⟦⟧]", plain(sentence)), sentence
                assert plain(sentence)[0].isupper() or plain(sentence)[0].isdigit()


def test_most_sentences_have_six_to_fifteen_words():
    lengths = [
        len(plain(sentence).split())
        for article in write_articles(World(2, 200))
        for section in article.sections
        for paragraph in section.paragraphs
        for sentence in paragraph
    ]
    assert sum(6 <= length <= 15 for length in lengths) > 0.7 * len(lengths)
    assert max(lengths) <= 24


def test_clusters_are_cut_into_disjoint_halves_without_loss():
    poles = [pole for trait in TRAITS.values() for pole in trait]
    clusters = [PRAISE.adjectives, *(trade.tools for trade in TRADES), *(pole.adjectives for pole in poles)]
    for cluster in clusters:
        assert seen(cluster)
        assert unseen(cluster)
        assert (*seen(cluster), *unseen(cluster)) == tuple(cluster)


def test_trade_vocabularies_are_disjoint():
    words = Counter(
        word
        for trade in TRADES
        for noun in trade.agents + trade.tools + trade.goods + trade.places
        for word in {noun.singular, noun.plural}
    )
    assert [word for word, count in words.items() if count > 1] == []


GLUE = {
    "CoLA": (4, 1, False), "SST-2": (2, 1, True), "MRPC": (5, 0, True), "STS-B": (10, 9, True), "QQP": (6, 5, True),
    "QNLI": (4, 3, True), "RTE": (4, 3, True), "WNLI": (4, 3, True),
}  # fmt: skip


@pytest.mark.parametrize("folder", GLUE)
def test_glue_files_have_the_official_columns(sample, folder):
    width, _, header = GLUE[folder]
    for name in ("train", "dev"):
        rows = read_tsv(sample.path / "glue" / folder / f"{name}.tsv")
        assert {len(row) for row in rows} == {width}
        assert sample.files[f"glue/{folder}/{name}.tsv"]["rows"] == len(rows) - header
    assert read_tsv(sample.path / "glue" / folder / "test.tsv")[0][0] in ("index", "id")


@pytest.mark.parametrize("folder", [folder for folder in GLUE if folder != "STS-B"])
def test_classes_are_balanced(sample, folder):
    _, column, header = GLUE[folder]
    for name in ("train", "dev"):
        labels = Counter(row[column] for row in read_tsv(sample.path / "glue" / folder / f"{name}.tsv")[header:])
        assert len(labels) == 2
        assert max(labels.values()) <= 0.52 * sum(labels.values())


def test_mnli_has_three_balanced_classes_and_two_dev_sets(sample):
    for name, width in (("train", 12), ("dev_matched", 16), ("dev_mismatched", 16)):
        rows = read_tsv(sample.path / "glue" / "MNLI" / f"{name}.tsv")
        assert {len(row) for row in rows} == {width}
        labels = Counter(row[-1] for row in rows[1:])
        assert set(labels) == {"entailment", "contradiction", "neutral"}
        assert max(labels.values()) <= 0.35 * (len(rows) - 1)
    genres = {
        name: {row[3] for row in read_tsv(sample.path / "glue" / "MNLI" / f"{name}.tsv")[1:]}
        for name in ("train", "dev_matched", "dev_mismatched")
    }
    assert genres["train"] == genres["dev_matched"]
    assert not genres["train"] & genres["dev_mismatched"]


def test_similarity_scores_span_zero_to_five(sample):
    scores = [float(row[9]) for row in read_tsv(sample.path / "glue" / "STS-B" / "dev.tsv")[1:]]
    assert (min(scores), max(scores)) == (0.0, 5.0)
    assert len(set(scores)) >= 6


def test_praise_and_blame_of_train_and_dev_are_disjoint(sample):
    def words(name: str) -> set[str]:
        return {word for row in read_tsv(sample.path / "glue" / "SST-2" / f"{name}.tsv")[1:] for word in row[0].split()}

    assert words("train") & set(PRAISE.adjectives) == set(seen(PRAISE.adjectives))
    assert words("dev") & set(PRAISE.adjectives) == set(unseen(PRAISE.adjectives))


@pytest.mark.parametrize("file", ["train-v1.1", "dev-v1.1", "train-v2.0", "dev-v2.0"])
def test_squad_answers_match_their_offsets(sample, file):
    document = json.loads((sample.path / "squad" / f"{file}.json").read_text(encoding="utf-8"))
    questions = [
        (paragraph["context"], question)
        for topic in document["data"]
        for paragraph in topic["paragraphs"]
        for question in paragraph["qas"]
    ]
    assert len({question["id"] for _, question in questions}) == len(questions)
    for context, question in questions:
        for answer in question["answers"] + question.get("plausible_answers", []):
            assert context[answer["answer_start"] :].startswith(answer["text"])
        assert len(question["answers"]) == (0 if question.get("is_impossible") else 1)
    share = sum(bool(question.get("is_impossible")) for _, question in questions) / len(questions)
    assert share == 0 if "1.1" in file else 0.2 < share < 0.6


def test_swag_rows_have_four_endings_and_balanced_labels(sample):
    with open(sample.path / "swag" / "train.csv", encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    labels = Counter(row["label"] for row in rows)
    assert set(labels) == {"0", "1", "2", "3"}
    assert max(labels.values()) < 0.35 * len(rows)
    assert all(len({row[f"ending{number}"] for number in range(4)}) == 4 for row in rows)
    assert all(row["startphrase"] == f"{row['sent1']} {row['sent2']}" for row in rows)


def test_dev_entities_are_absent_from_training(sample):
    names: dict[str, set[str]] = {}
    for part in ("train", "testa", "testb"):
        lines = (sample.path / "conll2003" / f"eng.{part}").read_text(encoding="utf-8").splitlines()
        columns = [line.split(" ") for line in lines if line]
        assert {len(row) for row in columns} == {4}
        assert {row[3] for row in columns} == {"O", "I-PER", "I-LOC", "I-ORG", "I-MISC"}
        names[part] = {row[0] for row in columns if row[3] in ("I-PER", "I-LOC")}
    assert not names["train"] & names["testa"]


def test_all_words_of_a_name_are_tagged():
    assert tagged("The ⟦ORG|Dravel Guild|⟧ met.") == [
        ("The", ""), ("Dravel", "ORG"), ("Guild", "ORG"), ("met", ""), (".", ""),
    ]  # fmt: skip
