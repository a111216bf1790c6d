"""A corpus of any size: the documents of a smaller one again and again, under other ids and titles."""

import math
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bert_pipeline.corpus.parquet import DOCUMENT_SCHEMA, DOCUMENTS_PER_ROW_GROUP
from bert_pipeline.manifest import Manifest, input_of, load_manifest, publishing


def text_bytes(manifest: Manifest) -> int:
    """The size of a corpus' sentences in UTF-8."""
    return sum(_text_bytes(pq.read_table(path, columns=["sentences"])) for path in manifest.file_paths("documents-"))


def repeat_corpus(source: Manifest, target: Path, megabytes: float, *, shard_megabytes: float = 64.0) -> Manifest:
    """Publish a corpus of at least so many megabytes of text, in equal shards of about `shard_megabytes`.

    `configuration["copies"]` says how often it holds the source. An existing target is taken as it is.
    """
    if (target / "manifest.json").is_file():
        return load_manifest(target, kind="corpus")
    table = pa.concat_tables([pq.read_table(path) for path in source.file_paths("documents-")])
    num_shards = max(1, round(megabytes / shard_megabytes))
    per_shard = max(1, math.ceil(megabytes * 1e6 / _text_bytes(table) / num_shards))
    copies = per_shard * num_shards
    configuration = {"copies": copies, "per_shard": per_shard}
    with publishing(target, kind="corpus", configuration=configuration, inputs={"corpus": input_of(source)}) as draft:
        for index, first in enumerate(range(0, copies, per_shard)):
            name = f"documents-{index:05d}.parquet"
            with pq.ParquetWriter(draft.path / name, DOCUMENT_SCHEMA, compression="zstd") as writer:
                for copy in range(first, min(first + per_shard, copies)):
                    writer.write_table(_copy(table, copy), row_group_size=DOCUMENTS_PER_ROW_GROUP)
                    draft.rows[name] = draft.rows.get(name, 0) + table.num_rows
    return load_manifest(target, kind="corpus")


def cut_corpus(source: Manifest, target: Path, num_documents: int) -> Manifest:
    """Publish the first documents of a corpus alone; an existing target is taken as it is."""
    if (target / "manifest.json").is_file():
        return load_manifest(target, kind="corpus")
    table = pq.read_table(source.file_paths("documents-")[0]).slice(0, num_documents)
    configuration = {"documents": num_documents}
    with publishing(target, kind="corpus", configuration=configuration, inputs={"corpus": input_of(source)}) as draft:
        pq.write_table(table, draft.path / "documents-00000.parquet", compression="zstd")
        draft.rows["documents-00000.parquet"] = table.num_rows
    return load_manifest(target, kind="corpus")


def _text_bytes(table: pa.Table) -> int:
    return pc.sum(pc.binary_length(pc.list_flatten(table.column("sentences")))).as_py() or 0


def _copy(table: pa.Table, copy: int) -> pa.Table:
    if not copy:
        return table
    for name in ("document_id", "title"):
        at = table.schema.get_field_index(name)
        changed = pc.binary_join_element_wise(table.column(name), str(copy + 1), "-")
        table = table.set_column(at, table.schema.field(name), changed)
    return table
