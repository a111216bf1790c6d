"""Every Parquet file of this project has page checksums, and every reader verifies them."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import tiny_tasks
from small_corpus import make_corpus, make_documents
from small_instances import make_columns

import bert_model
import bert_pipeline
from bert_model.inference.features import write_features
from bert_pipeline.corpus.parquet import read_documents
from bert_pipeline.corpus.quality import sample_passages
from bert_pipeline.errors import BertError
from bert_pipeline.exam import job as exam_job
from bert_pipeline.instances.parquet import InstanceWriter, ParquetInstances
from bert_pipeline.records import open_records, open_source
from bert_pipeline.vocabulary import job as vocabulary_job


def corpus_shard(directory: Path) -> Path:
    return make_corpus(directory / "corpus", [make_documents(9)]) / "documents-00000.parquet"


def instance_shard(directory: Path) -> Path:
    with InstanceWriter(directory / "instances.parquet") as writer:
        writer.write(make_columns(20, static=False))
    return directory / "instances.parquet"


def word_counts(directory: Path) -> Path:
    vocabulary_job._write_counts(directory / "counts.parquet", [[("a", 1), ("b", 2)]])
    return directory / "counts.parquet"


def ngram_counts(directory: Path) -> Path:
    exam_job._write_table(directory / "windows.parquet", pq.read_table(word_counts(directory)))
    return directory / "windows.parquet"


def features(directory: Path) -> Path:
    (directory / "texts.txt").write_text("the film was good .\n")
    model = tiny_tasks.make_model(directory / "model")
    write_features(model, str(directory / "texts.txt"), directory / "features.parquet", layers=[-1])
    return directory / "features.parquet"


def read_rows(path: Path) -> None:
    with open_source(path) as source:
        list(open_records(source).rows)


def read_instances(path: Path) -> None:
    with ParquetInstances(path) as shard:
        shard.read_row_group(0)


READERS: dict[str, tuple[Callable[[Path], Path], Callable[[Path], Any]]] = {
    "documents": (corpus_shard, lambda path: list(read_documents(path))),
    "sampled passages": (corpus_shard, lambda path: sample_passages([(path, 9, "")])),
    "instances": (instance_shard, read_instances),
    "word counts": (word_counts, lambda path: list(vocabulary_job._read_counts(path, 0))),
    "n-gram counts": (ngram_counts, exam_job._read_table),
    "features": (features, read_rows),
}


@pytest.mark.parametrize("name", READERS)
def test_flipped_bit_of_any_column_is_found_by_every_reader(tmp_path: Path, name: str) -> None:
    write, read = READERS[name]
    path = write(tmp_path)
    read(path)
    whole, group = path.read_bytes(), pq.ParquetFile(path).metadata.row_group(0)
    for index in range(group.num_columns):
        column = group.column(index)
        if name == "sampled passages" and column.path_in_schema in ("language", "split"):
            continue  # which are not read
        start = min(offset for offset in (column.dictionary_page_offset, column.data_page_offset) if offset)
        damaged = bytearray(whole)
        damaged[start + column.total_compressed_size - 1] ^= 1  # the last byte of its last page
        path.write_bytes(damaged)
        with pytest.raises(BertError, match=re.escape(path.name)):
            read(path)


def test_no_parquet_file_is_written_or_read_without_checksums() -> None:
    calls = re.compile(r"\bpq\.(?:ParquetWriter|write_table|ParquetFile|read_table)\((?:[^()]|\([^()]*\))*\)")
    found = [
        call
        for package in (bert_pipeline, bert_model)
        for path in Path(package.__path__[0]).rglob("*.py")
        for call in calls.findall(path.read_text(encoding="utf-8"))
    ]
    assert len(found) >= 7
    assert not [call for call in found if "page_checksum" not in call]
