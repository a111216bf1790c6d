"""The data jobs from store to store, in one process: they write what they write to a local disk."""

import bz2
import gzip
from collections.abc import Sequence
from pathlib import Path

import fsspec
import pytest
from small_corpus import make_documents
from small_exports import make_export, make_page

from bert_model.cli import main
from bert_pipeline.corpus.job import build_corpus
from bert_pipeline.corpus.parquet import document_table
from bert_pipeline.corpus.splits import CorpusConfig
from bert_pipeline.errors import InputError
from bert_pipeline.instances.job import build_instances, show_instances
from bert_pipeline.instances.pairs import InstancesConfig
from bert_pipeline.manifest import load_manifest
from bert_pipeline.storage import sizes_below, to_path, upload
from bert_pipeline.vocabulary.job import build_vocabulary
from bert_pipeline.vocabulary.wordpiece import VocabularyConfig

ONE = ("--workers", "1")  # the store is in the memory of this process
TEXT = [" ".join(document.sentences) for document in make_documents(60)]


@pytest.fixture
def dump(tmp_path):
    pages = [make_page(number, text, title=f"Title {number}") for number, text in enumerate(TEXT, start=1)]
    path = tmp_path / "wiki.xml.bz2"
    path.write_bytes(bz2.compress(make_export(*pages).encode(), 1))
    return path


def leftovers(url: str, manifest: str) -> list[str]:
    """The files below a URL that belong to no artifact."""
    found = {str(path) for path in to_path(url).rglob("*") if path.is_file()}
    known = {str(path) for path in load_manifest(manifest).file_paths()}
    return sorted(found - known - {f"{manifest}/manifest.json"})


def test_jobs_write_the_same_to_a_store_as_to_a_disk(store, dump, tmp_path):
    upload(dump, f"{store}/dumps/{dump.name}")
    hashes = []
    for source, base in ((str(dump), str(tmp_path)), (f"{store}/dumps/*.bz2", store)):
        made = [
            build_corpus([source], f"{base}/corpus", CorpusConfig(split_bytes=3000, shard_bytes=20_000), ONE),
            build_vocabulary(
                f"{base}/corpus", f"{base}/vocabulary", VocabularyConfig(vocab_size=250, pad_with_unused=True), ONE
            ),
            build_instances(
                f"{base}/corpus", f"{base}/vocabulary", f"{base}/instances", InstancesConfig(dupe_factor=2), ONE
            ),
        ]
        hashes.append([manifest.sha256 for manifest in made])
    assert hashes[0] == hashes[1]
    for kind in ("corpus", "vocabulary", "instances"):
        load_manifest(f"{store}/{kind}", verify="sha256")
        assert leftovers(f"{store}/{kind}", f"{store}/{kind}") == []


@pytest.mark.parametrize("shape", ["parquet", "tfrecord"])
def test_instances_in_a_store_are_shown(shape, store, dump):
    build_corpus([str(dump)], f"{store}/corpus", CorpusConfig(), ONE)
    config = VocabularyConfig(vocab_size=250, pad_with_unused=True)
    build_vocabulary(f"{store}/corpus", f"{store}/vocabulary", config, ONE)
    static = InstancesConfig(format=shape, masking="static", dupe_factor=1)
    build_instances(f"{store}/corpus", f"{store}/vocabulary", f"{store}/instances", static, ONE)
    assert len(list(show_instances(f"{store}/instances", 2))) == 2


def write_gzip_dump(path: Path) -> None:
    path.write_bytes(gzip.compress(make_export(make_page(1, TEXT[0]), make_page(2, TEXT[1])).encode()))


def write_plain_dump(path: Path) -> None:
    path.write_text(make_export(make_page(1, TEXT[0]), make_page(2, TEXT[1])))


def write_text(path: Path) -> None:
    path.write_text("".join("\n".join(document.sentences) + "\n\n" for document in make_documents(20)))


def write_packed_text(path: Path) -> None:
    path.write_bytes(gzip.compress("".join(f'{{"text": "{text}"}}\n' for text in TEXT).encode()))


def write_parquet(path: Path) -> None:
    import pyarrow.parquet as pq

    table = document_table(make_documents(20)).select(["document_id", "title"])
    pq.write_table(table.append_column("text", [TEXT[:20]]), path, row_group_size=5)


@pytest.mark.parametrize(
    ("kind", "name", "write"),
    [
        ("wikipedia", "a.xml", write_plain_dump),
        ("wikipedia", "a.xml.gz", write_gzip_dump),
        ("lines", "a.txt", write_text),
        ("jsonl", "a.jsonl.gz", write_packed_text),
        ("parquet", "a.parquet", write_parquet),
    ],
)
def test_every_source_is_read_from_a_store(kind, name, write, store, tmp_path):
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / name)
    upload(tmp_path / "in" / name, f"{store}/in/{name}")
    sources: Sequence[str] = (f"{tmp_path}/in", (tmp_path / "in").as_uri(), f"{store}/in", f"{store}/in/{name}")
    config = CorpusConfig(split_bytes=2000)
    found = {build_corpus([f"{kind}:{source}"], f"{store}/{i}", config, ONE).sha256 for i, source in enumerate(sources)}
    assert len(found) == 1


def test_missing_and_damaged_sources_of_a_store_are_one_sentence(store):
    with pytest.raises(InputError, match="memory://bucket/a.xml: no such file"):
        build_corpus([f"{store}/a.xml"], f"{store}/corpus", CorpusConfig(), ONE)
    fsspec.filesystem("memory").pipe_file("/bucket/a.xml", b"no dump")
    with pytest.raises(InputError, match="memory://bucket/a.xml: found no XML"):
        build_corpus([f"{store}/a.xml"], f"{store}/corpus", CorpusConfig(), ONE)
    assert sizes_below(to_path(f"{store}/corpus")) == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["corpus", "x", "--output", "s4://bucket/x"], "no kind of storage is called 's4'"),
        (["sample", "--output", "memory://bucket/x"], "expected a local path"),
    ],
)
def test_url_that_a_command_cannot_use_is_one_sentence(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
    assert not Path("memory:").exists()
