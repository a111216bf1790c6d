"""Repeated dumps and corpora have distinct pages and documents."""

import bz2

import pytest
from small_corpus import make_corpus, make_documents

from benchmarks.inputs import cut_corpus, repeat_corpus, repeat_dump, text_bytes
from bert_pipeline.corpus.parquet import read_documents
from bert_pipeline.errors import InputError
from bert_pipeline.manifest import load_manifest
from bert_pipeline.wikipedia.dump import ReadReport, open_dump, read_pages


def test_repeated_dump_has_distinct_pages_equal_in_xml_and_bz2(dump, tmp_path):
    plain = repeat_dump(dump, tmp_path / "many.xml", 0.05)
    packed = repeat_dump(dump, tmp_path / "many.xml.bz2", 0.05)
    assert bz2.decompress(packed.read_bytes()) == plain.read_bytes()
    pages = list(read_pages(open_dump(str(plain)), 0, plain.stat().st_size, ReadReport()))
    assert len({page.title for page in pages}) == len({page.page_id for page in pages}) == len(pages) > 50


def test_dump_without_pages_is_rejected(tmp_path):
    path = tmp_path / "empty.xml"
    path.write_text("<mediawiki></mediawiki>")
    with pytest.raises(InputError, match="no <page> found"):
        repeat_dump(path, tmp_path / "many.xml", 1)


def test_repeated_corpus_has_equal_shards_and_distinct_ids(tmp_path):
    one = load_manifest(make_corpus(tmp_path / "one", [make_documents(5)]))
    many = repeat_corpus(one, tmp_path / "many", 0.02, shard_megabytes=0.007)
    shards = [list(read_documents(path)) for path in many.file_paths("documents-")]
    assert len({len(shard) for shard in shards}) == 1
    assert len(shards) == 3
    documents = [document for shard in shards for document in shard]
    assert len(documents) == len({d.document_id for d in documents}) == 5 * many.configuration["copies"]
    assert text_bytes(many) == text_bytes(one) * many.configuration["copies"] >= 0.02e6
    assert len(list(read_documents(cut_corpus(one, tmp_path / "few", 2).file_paths()[0]))) == 2
