"""Documents and instances in Parquet round-trip, and other files raise."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_corpus import make_documents, write_documents
from small_instances import assert_same, make_columns

from bert_pipeline.corpus.parquet import read_documents, read_sentences
from bert_pipeline.errors import InputError
from bert_pipeline.instances.columns import pad, unpad
from bert_pipeline.instances.parquet import InstanceWriter, ParquetInstances


def test_documents_round_trip(tmp_path):
    documents = make_documents(1100, held_out=[3, 700])
    path = tmp_path / "documents.parquet"
    assert write_documents(path, documents) == 1100
    assert list(read_documents(path)) == documents
    assert pq.ParquetFile(path).num_row_groups == 3


def test_no_documents_give_an_empty_file(tmp_path):
    assert write_documents(tmp_path / "none.parquet", []) == 0
    assert list(read_documents(tmp_path / "none.parquet")) == []


def test_sentences_are_read_without_their_documents(tmp_path):
    documents = make_documents(600)
    write_documents(tmp_path / "documents.parquet", documents)
    found = []
    for table, offsets, sentences in read_sentences(tmp_path / "documents.parquet"):
        texts = sentences.to_pylist()
        for row, document_id in enumerate(table.column("document_id").to_pylist()):
            found.append((document_id, tuple(texts[offsets[row] : offsets[row + 1]])))
    assert found == [(document.document_id, document.sentences) for document in documents]


@pytest.mark.parametrize("static", [False, True])
def test_instances_round_trip_by_row_group(tmp_path, static):
    path = tmp_path / "instances.parquet"
    columns = [make_columns(count, static=static, seed=count) for count in (4096, 4096, 100)]
    with InstanceWriter(path) as writer:
        for some in columns:
            writer.write(some)
    assert writer.rows == 8292
    with ParquetInstances(path) as shard:
        assert shard.row_group_sizes == (4096, 4096, 100)
        assert shard.num_row_groups == 3
        assert shard.num_instances == 8292
        assert shard.read_row_group(0).is_masked == static
        for index in (2, 0, 1):
            assert_same(shard.read_row_group(index), columns[index])


def test_file_that_is_not_parquet_raises(tmp_path):
    path = tmp_path / "instances.parquet"
    path.write_bytes(b"not a parquet file")
    with pytest.raises(InputError, match="not an instance shard"):
        ParquetInstances(path)
    with pytest.raises(InputError, match="not a corpus shard"):
        list(read_documents(tmp_path / "absent.parquet"))


def test_wrong_columns_and_types_raise(tmp_path):
    write_documents(tmp_path / "documents.parquet", make_documents(3))
    with pytest.raises(InputError, match="expected 'input_ids' too"):
        ParquetInstances(tmp_path / "documents.parquet")
    table = pa.table({"input_ids": pa.array([["a"]]), "segment_b_start": [1], "is_random_next": [True]})
    pq.write_table(table, tmp_path / "text.parquet")
    with pytest.raises(InputError, match="column 'input_ids' holds list"):
        ParquetInstances(tmp_path / "text.parquet")


def test_pad_and_unpad_are_inverse():
    columns = make_columns(40, static=False)
    padded = pad(columns.input_ids, columns.offsets, 40)
    assert padded.shape == (40, 40)
    flat, offsets = unpad(padded, columns.lengths)
    assert np.array_equal(flat, columns.input_ids)
    assert np.array_equal(offsets, columns.offsets)
    part = pad(columns.input_ids, columns.offsets[10:21], 40)
    assert np.array_equal(part, padded[10:20])
    with pytest.raises(ValueError, match="does not fit into 8"):
        pad(columns.input_ids, columns.offsets, 8)
