"""The exam of a corpus: equal for any workers and shards, its baseline counted on training documents only."""

import dataclasses

import pytest
from small_corpus import make_corpus, make_documents, write_documents

from bert_pipeline.errors import InputError, UsageError
from bert_pipeline.exam.job import ExamConfig, build_exam, prepared_exam
from bert_pipeline.exam.ngrams import NGRAM_BASELINE_NAME
from bert_pipeline.exam.pairs import PAIRS_NAME, read_pairs
from bert_pipeline.manifest import publishing
from bert_pipeline.step import STEPS, Step

DOCUMENTS = make_documents(120, held_out=range(0, 120, 4))
CONFIG = ExamConfig(pairs_per_kind=40)


def contents(directory):
    return {name: (directory / name).read_bytes() for name in (PAIRS_NAME, NGRAM_BASELINE_NAME)}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    directory = tmp_path_factory.mktemp("exam")
    corpus = make_corpus(directory / "corpus", [DOCUMENTS])
    build_exam(corpus, directory / "exam", CONFIG)
    return directory


def test_exam_is_equal_for_any_workers_and_shards(built, tmp_path):
    shards = [DOCUMENTS[:50], DOCUMENTS[50:100], DOCUMENTS[100:]]
    corpus = make_corpus(tmp_path / "corpus", shards)
    manifest = build_exam(corpus, tmp_path / "exam", CONFIG, ["--direct_num_workers=2"])
    assert contents(tmp_path / "exam") == contents(built / "exam")
    assert manifest.provenance["workers"] == 2


def test_workers_of_an_engine_are_refused(built, tmp_path):
    with pytest.raises(UsageError, match="workers of this machine"):
        build_exam(built / "corpus", tmp_path / "exam", CONFIG, ["--runner=PortableRunner", "--job_endpoint=host:1"])
    assert not (tmp_path / "exam").exists()


def test_pairs_are_of_held_out_documents_in_two_parts(built):
    pairs = read_pairs(built / "exam")
    held_out = {document.document_id for document in DOCUMENTS if document.split == "held_out"}
    assert {pair.source for pair in pairs} <= held_out
    sentences = {s for document in DOCUMENTS if document.split == "held_out" for s in document.sentences}
    assert {text for pair in pairs if pair.kind != "entity" for text in pair.good} <= sentences
    counts = {kind: sum(pair.kind == kind for pair in pairs) for kind in ("swap", "next_sentence")}
    assert counts["swap"] == 40
    assert {pair.part for pair in pairs} == {"choosing", "reporting"}


def test_another_seed_makes_other_pairs(built, tmp_path):
    build_exam(built / "corpus", tmp_path / "exam", ExamConfig(pairs_per_kind=40, seed=1))
    ours, theirs = contents(built / "exam"), contents(tmp_path / "exam")
    assert ours[NGRAM_BASELINE_NAME] == theirs[NGRAM_BASELINE_NAME]
    assert ours[PAIRS_NAME] != theirs[PAIRS_NAME]


def test_baseline_does_not_depend_on_held_out_documents(built, tmp_path):
    fewer = [document for index, document in enumerate(DOCUMENTS) if document.split == "train" or index % 8]
    build_exam(make_corpus(tmp_path / "corpus", [fewer]), tmp_path / "exam", CONFIG)
    ours, theirs = contents(built / "exam"), contents(tmp_path / "exam")
    assert ours[NGRAM_BASELINE_NAME] == theirs[NGRAM_BASELINE_NAME]
    assert ours[PAIRS_NAME] != theirs[PAIRS_NAME]


def test_endings_that_the_training_text_has_are_dropped(tmp_path):
    # Held-out texts repeat training texts but for their endings, so some wrong words are those of a training text.
    endings = ("walked", "walking", "walker", "walks")
    sentences = [f"the {name} {ending} to {place} ." for name in "abcdefgh" for ending in endings for place in "xyz"]
    trained, held_out = sentences[::2], sentences[1::2]
    documents = [
        dataclasses.replace(DOCUMENTS[0], document_id=f"made:{index}", sentences=tuple(texts), split=split)
        for index, (split, texts) in enumerate([("train", trained), *(("held_out", [text]) for text in held_out)])
    ]
    manifest = build_exam(make_corpus(tmp_path / "corpus", [documents]), tmp_path / "exam", CONFIG)
    assert manifest.counts["attested_pairs"] > 0
    bad = {text for pair in read_pairs(tmp_path / "exam") if pair.kind == "ending" for text in pair.bad}
    assert not bad & set(trained)


def test_baseline_of_a_share_of_documents_is_smaller(built, tmp_path):
    config = ExamConfig(pairs_per_kind=40, max_words=5000)
    manifest = build_exam(built / "corpus", tmp_path / "exam", config)
    whole = (built / "exam" / NGRAM_BASELINE_NAME).stat().st_size
    assert 0.3 < manifest.counts["share_of_training_documents"] < 1
    assert (tmp_path / "exam" / NGRAM_BASELINE_NAME).stat().st_size < whole


@pytest.mark.parametrize("max_words", [1, 50])
def test_share_without_a_document_is_refused_and_leaves_nothing(built, tmp_path, max_words):
    config = ExamConfig(pairs_per_kind=40, max_words=max_words)
    with pytest.raises(InputError, match=rf"corpus: none of its training .* max_words={max_words} of its \d+ words"):
        build_exam(built / "corpus", tmp_path / "exam", config)
    assert not (tmp_path / "exam").exists()


@pytest.mark.parametrize(
    ("held_out", "message"),
    [
        ((), "no pairs can be made from its held-out documents.*; .* larger --held-out-per-mille"),
        (range(120), "no training text"),
    ],
)
def test_corpus_without_a_side_is_refused_and_leaves_nothing(tmp_path, held_out, message):
    corpus = make_corpus(tmp_path / "corpus", [make_documents(120, held_out=held_out)])
    with pytest.raises(InputError, match=message):
        build_exam(corpus, tmp_path / "exam", CONFIG)
    assert not (tmp_path / "exam").exists()


def test_too_few_held_out_documents_are_counted_in_the_error(tmp_path):
    with publishing(tmp_path / "corpus", kind="corpus", configuration={}, inputs={}) as draft:
        draft.rows["documents-0.parquet"] = write_documents(draft.path / "documents-0.parquet", make_documents(361))
        draft.counts = {"documents": 361, "documents_held_out": 0}
    with pytest.raises(InputError, match="which are 0 of 361; make it with a larger --held-out-per-mille, such as 50"):
        build_exam(tmp_path / "corpus", tmp_path / "exam", CONFIG)


def test_prepared_exam_is_reused_until_its_configuration_or_code_changes(built, tmp_path, monkeypatch):
    def prepare(config=CONFIG):
        path = prepared_exam(built / "corpus", tmp_path, config)
        return path, (path / PAIRS_NAME).stat().st_mtime_ns

    first = prepare()
    assert prepare() == first
    assert prepare(ExamConfig(pairs_per_kind=20)) != first
    first = prepare()
    monkeypatch.setitem(STEPS, "exam", Step(version=0))
    assert prepare() != first
    assert prepared_exam(built / "exam", tmp_path) == built / "exam"
