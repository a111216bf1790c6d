"""A corpus of any size: the documents of a smaller one again and again, under other ids and titles."""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bert_pipeline.formats.parquet import DOCUMENT_SCHEMA, DOCUMENTS_PER_ROW_GROUP
from bert_pipeline.manifest import Manifest, input_of, load_manifest, publishing


def text_bytes(manifest: Manifest) -> int:
    """The size of a corpus' sentences in UTF-8."""
    return sum(_text_bytes(pq.read_table(path, columns=["sentences"])) for path in manifest.file_paths("documents-"))


def repeat_corpus(source: Manifest, target: Path, megabytes: float, *, shard_megabytes: float = 16.0) -> Manifest:
    """Publish a corpus of at least so many megabytes of text, in shards of about `shard_megabytes`.

    An existing target is taken as it is.
    """
    if (target / "manifest.json").is_file():
        return load_manifest(target, kind="corpus")
    table = pa.concat_tables([pq.read_table(path) for path in source.file_paths("documents-")])
    size = _text_bytes(table) / 1e6
    copies = max(1, -int(-megabytes // size))
    per_shard = max(1, min(copies, round(shard_megabytes / size)))
    configuration = {"copies": copies, "per_shard": per_shard}
    with publishing(target, kind="corpus", configuration=configuration, inputs={"corpus": input_of(source)}) as draft:
        for index, first in enumerate(range(0, copies, per_shard)):
            name = f"documents-{index:05d}.parquet"
            with pq.ParquetWriter(draft.path / name, DOCUMENT_SCHEMA, compression="zstd") as writer:
                for copy in range(first, min(first + per_shard, copies)):
                    writer.write_table(_copy(table, copy), row_group_size=DOCUMENTS_PER_ROW_GROUP)
                    draft.rows[name] = draft.rows.get(name, 0) + table.num_rows
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
