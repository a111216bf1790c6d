"""Instances in Parquet, written and read one row group at a time."""

import contextlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bert_pipeline.instances.columns import InstanceColumns
from bert_pipeline.parquet_io import list_array, list_offsets, open_parquet, read_row_group
from bert_pipeline.storage import to_path

INSTANCE_SCHEMA = pa.schema(
    [("input_ids", pa.list_(pa.int32())), ("segment_b_start", pa.int32()), ("is_random_next", pa.bool_())]
)
MASKED_INSTANCE_SCHEMA = pa.schema(
    [*INSTANCE_SCHEMA, ("masked_lm_positions", pa.list_(pa.int32())), ("masked_lm_ids", pa.list_(pa.int32()))]
)
INSTANCES_PER_ROW_GROUP = 4096


class InstanceWriter(contextlib.AbstractContextManager["InstanceWriter"]):
    """Writes unpadded instances to one Parquet file, in row groups of at most 4,096 instances.

    The file has the columns that the first instances have: with or without masks, `continues_word` or not.
    """

    def __init__(self, path: Path | str) -> None:
        self.rows = 0
        self._path = path
        self._writer: pq.ParquetWriter | None = None

    def write(self, columns: InstanceColumns) -> None:
        """Append instances. ValueError if they have masks and the file does not, or the reverse."""
        arrays = {
            "input_ids": list_array(columns.offsets, columns.input_ids),
            "segment_b_start": pa.array(columns.segment_b_start, type=pa.int32()),
            "is_random_next": pa.array(columns.is_random_next, type=pa.bool_()),
        }
        if columns.masked_offsets is not None:
            for name in ("masked_lm_positions", "masked_lm_ids"):
                arrays[name] = list_array(columns.masked_offsets, getattr(columns, name))
        if columns.continues_word is not None:
            arrays["continues_word"] = list_array(columns.offsets, pa.array(columns.continues_word))
        table = pa.table(arrays)
        if self._writer is None:
            # Token ids repeat too little for dictionary pages; byte streams of equal significance compress well.
            lists = [f"{name}.list.element" for name in ("input_ids", "masked_lm_ids") if name in arrays]
            self._writer = pq.ParquetWriter(
                self._path,
                table.schema,
                compression="zstd",
                use_dictionary=False,
                use_byte_stream_split=lists,
                write_statistics=False,
                write_page_checksum=True,
            )
        self._writer.write_table(table, row_group_size=INSTANCES_PER_ROW_GROUP)
        self.rows += columns.num_instances

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()


class ParquetInstances(contextlib.AbstractContextManager["ParquetInstances"]):
    """One instance shard, read a row group at a time."""

    def __init__(self, path: Path | str) -> None:
        """InputError if the file is not an instance shard."""
        self.path = to_path(path)
        self._file = open_parquet(path, INSTANCE_SCHEMA, "an instance shard")
        metadata = self._file.metadata
        self.num_instances, self.num_row_groups = metadata.num_rows, metadata.num_row_groups
        self.row_group_sizes = tuple(metadata.row_group(index).num_rows for index in range(self.num_row_groups))

    def read_row_group(self, index: int) -> InstanceColumns:
        """Read one row group. ArtifactError if its bytes are damaged."""
        table = read_row_group(self._file, index, self.path)
        columns = {name: table.column(name).combine_chunks() for name in table.column_names}
        masked: dict[str, np.ndarray] = {}
        if "continues_word" in columns:
            masked["continues_word"] = columns["continues_word"].flatten().to_numpy(zero_copy_only=False)
        if "masked_lm_positions" in columns:
            for name in ("masked_lm_positions", "masked_lm_ids"):
                masked[name] = columns[name].flatten().to_numpy()
            # Positions and ids have the same offsets, so one column gives them.
            masked["masked_offsets"] = list_offsets(columns["masked_lm_positions"])
        return InstanceColumns(
            input_ids=columns["input_ids"].flatten().to_numpy(),
            offsets=list_offsets(columns["input_ids"]),
            segment_b_start=columns["segment_b_start"].to_numpy(),
            is_random_next=columns["is_random_next"].to_numpy(zero_copy_only=False),
            **masked,
        )

    def __exit__(self, *_: object) -> None:
        self._file.close()
