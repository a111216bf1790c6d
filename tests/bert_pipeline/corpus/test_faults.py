"""Files in a corpus directory that are missing from its manifest are not read."""

import shutil
from pathlib import Path

import pytest
from small_corpus import make_corpus, make_documents

from bert_pipeline.corpus.parquet import read_documents
from bert_pipeline.errors import ArtifactError
from bert_pipeline.manifest import load_manifest
from bert_pipeline.wikipedia.dump import read_site
from bert_pipeline.wikipedia.extract import extract


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return make_corpus(tmp_path / "corpus", [make_documents(3, seed=1), make_documents(3, seed=2)])


def read_all(corpus: Path) -> list[str]:
    paths = load_manifest(corpus, kind="corpus", verify="sha256").file_paths("documents-")
    return [document.sentences[0] for path in paths for document in read_documents(path)]


def test_shard_missing_from_manifest_is_not_read(corpus: Path) -> None:
    before = read_all(corpus)
    shutil.copy(corpus / "documents-00000.parquet", corpus / "documents-00002.parquet")
    assert read_all(corpus) == before


def test_missing_or_replaced_shard_raises(corpus: Path, tmp_path: Path) -> None:
    other = make_corpus(tmp_path / "other", [make_documents(3, seed=3)])
    shutil.copy(other / "documents-00000.parquet", corpus / "documents-00001.parquet")
    with pytest.raises(ArtifactError, match=r"documents-00001\.parquet"):
        read_all(corpus)
    (corpus / "documents-00001.parquet").unlink()
    with pytest.raises(ArtifactError, match="is missing"):
        read_all(corpus)


@pytest.mark.parametrize(
    "wikitext", ["{{Infobox|a=b}}", "{{a}}{{b|{{c}}}}", "<!-- x -->", "[[Category:A]]", "== T ==\n* a"]
)
def test_page_without_prose_has_no_passage_but_counts(wikitext: str) -> None:
    extraction = extract(wikitext, read_site(""))
    assert extraction.passages == []
    assert sum(extraction.dropped.values()) >= 1
