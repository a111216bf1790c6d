"""Instance directories and the names of their shards; also TFRecord files that google's script has written."""

import contextlib
import re
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from bert_pipeline.atomic import atomic_write
from bert_pipeline.errors import ArtifactError, InputError
from bert_pipeline.hashes import check_shard, sha256_once
from bert_pipeline.instances.columns import InstanceColumns
from bert_pipeline.instances.pairs import InstancesConfig
from bert_pipeline.instances.parquet import InstanceWriter, ParquetInstances
from bert_pipeline.instances.tfrecord import TfrecordInstances, TfrecordWriter, read_widths
from bert_pipeline.manifest import MANIFEST_NAME, Manifest, load_manifest
from bert_pipeline.parquet_io import footer_sha256
from bert_pipeline.storage import is_remote, to_path
from bert_pipeline.vocabulary.files import CONFIGURATION_NAME, FAST_NAME, VOCABULARY_NAME
from bert_pipeline.vocabulary.tokenizer import Tokenizer

_TFRECORD_NAME = re.compile(r"\.tf_?records?(-\d+-of-\d+)?(\.gz)?$")
"""File names of google's scripts and of TensorFlow's sharded writers."""


Shard: TypeAlias = ParquetInstances | TfrecordInstances


def open_shard(path: Path) -> Shard:
    """Open a shard of instances, in the format of its suffix. InputError if it is not one."""
    return TfrecordInstances(path) if is_tfrecord(path.name) else ParquetInstances(path)


def verify_shard(manifest: Manifest, path: Path) -> None:
    """Raise ArtifactError if a shard is damaged where reading it would not notice: before it is opened.

    TFRecord files have a CRC for each record, Parquet files for each page: these are compared when they are read.
    Parquet's footer has none.
    """
    if is_tfrecord(path.name):
        return
    footer = footer_sha256(path)
    expected = manifest.files[path.relative_to(manifest.path).as_posix()].get("footer_sha256", "")
    if footer != expected:
        raise ArtifactError(
            f"{path}: the file was changed or damaged: its footer is {footer[:12]}…, expected {expected[:12]}…; "
            "make the instances again"
        )


def is_tfrecord(name: str) -> bool:
    """Return True for the name of a TFRecord file, sharded or compressed ones included."""
    return _TFRECORD_NAME.search(name) is not None


def load_instances(directory: Path | str) -> Manifest:
    """Read the manifest of an instance directory, or compute one for a directory of other TFRecord files.

    Of other files those in `held_out/` are held out, the rest is for training; vocab.txt and tokenizer_config.json are
    expected in the same directory. Their identity is their bytes. ArtifactError if it is neither.
    """
    directory = to_path(directory)
    if is_remote(directory) or (directory / MANIFEST_NAME).is_file() or not directory.is_dir():
        manifest = load_manifest(directory, kind="instances")
        # The vocabulary decides what the ids mean. Shards are verified when they are opened.
        for name in {VOCABULARY_NAME, CONFIGURATION_NAME, FAST_NAME} & manifest.files.keys():
            check_shard(str(manifest.path / name), manifest.files[name]["sha256"])
        return manifest
    paths = sorted(path for path in directory.rglob("*") if path.is_file() and is_tfrecord(path.name))
    if not paths:
        return load_manifest(directory, kind="instances")  # raises ArtifactError
    # Foreign files have no manifest: compute its content, so that a training can record what it read.
    files: dict[str, dict[str, Any]] = {}
    for path in paths:
        files[path.relative_to(directory).as_posix()] = {"sha256": sha256_once(path), "bytes": path.stat().st_size}
    max_seq_length, max_predictions = map(max, zip(*map(read_widths, paths)))
    # Widths may differ between files: the largest is what a model must support.
    configuration = {"format": "tfrecord", "max_seq_length": max_seq_length, "max_predictions_per_seq": max_predictions}
    content = {"format_version": 1, "kind": "instances", "files": files, "configuration": configuration}
    return Manifest(path=directory, content={**content, "counts": {}, "inputs": {}}, provenance={})


def open_writers(
    stack: contextlib.ExitStack, directory: Path, index: int, config: InstancesConfig
) -> dict[Path, InstanceWriter | TfrecordWriter]:
    """Open the files of a new shard below `directory`; they get their final names when `stack` is closed."""
    writers: dict[Path, InstanceWriter | TfrecordWriter] = {}
    for suffix in ("parquet", "tfrecord") if config.format == "both" else (config.format,):
        path = directory / f"instances-{index:05d}.{suffix}"
        # The stack closes a writer before it renames the file: last entered, first left.
        temporary = stack.enter_context(atomic_write(path))
        if suffix == "parquet":
            writers[path] = stack.enter_context(InstanceWriter(temporary))
        else:
            writers[path] = stack.enter_context(
                TfrecordWriter(
                    temporary,
                    max_seq_length=config.max_seq_length,
                    max_predictions_per_seq=config.masking_config().max_predictions(config.max_seq_length),
                    compression=config.tfrecord_compression,
                )
            )
    return writers


def shard_paths(manifest: Manifest, split: str) -> list[Path]:
    """Return the shards of "train" or "held_out", in Parquet if both formats were written."""
    names = [name for name in manifest.files if name.endswith(".parquet") or is_tfrecord(name)]
    chosen = [name for name in names if (name.startswith("held_out/")) == (split == "held_out")]
    parquet = [name for name in chosen if name.endswith(".parquet")]
    return [manifest.path / name for name in parquet or chosen]


def check_vocabulary(columns: InstanceColumns, tokenizer: Tokenizer, where: Path | str) -> None:
    """Raise InputError if instances do not belong to a vocabulary, or static masks not to their instances.

    Compared are all ids with the number of tokens, and the first and last ones of instances with [CLS] and [SEP].
    """
    if not columns.num_instances:
        return
    if not (lengths := columns.lengths).all():
        raise InputError(f"{where}: instance {int(lengths.argmin())} has no tokens; make the instances again")
    _check_ids(columns.input_ids, "input_ids", tokenizer, where)
    if columns.masked_offsets is not None:
        assert columns.masked_lm_positions is not None
        assert columns.masked_lm_ids is not None
        positions, counts = columns.masked_lm_positions, np.diff(columns.masked_offsets)
        if len(columns.masked_lm_ids) != len(positions):
            raise InputError(
                f"{where}: holds {len(columns.masked_lm_ids)} masked_lm_ids and {len(positions)} masked_lm_positions, "
                "expected as many; make the instances again"
            )
        outside = (positions < 0) | (positions >= np.repeat(lengths, counts))
        if outside.any():
            place = int(outside.argmax())
            row = int(np.repeat(np.arange(len(counts)), counts)[place])
            raise InputError(
                f"{where}: instance {row} has masked_lm_positions {int(positions[place])}, expected 0 to "
                f"{int(lengths[row]) - 1}, its last token; make the instances again"
            )
        _check_ids(columns.masked_lm_ids, "masked_lm_ids", tokenizer, where)
    # Another vocabulary may be as large; if its layout differs, so do the ids of [CLS] and [SEP].
    for name, ids, expected in (
        ("[CLS]", columns.input_ids[columns.offsets[:-1]], tokenizer.cls_id),
        ("[SEP]", columns.input_ids[columns.offsets[1:] - 1], tokenizer.sep_id),
    ):
        if (ids != expected).any():
            row = int((ids != expected).argmax())
            raise InputError(
                f"{where}: instance {row} has token id {int(ids[row])} where {name} belongs, which is {expected} in "
                "the vocabulary next to it; put the vocab.txt there that the instances were made with"
            )


def _check_ids(ids: np.ndarray, name: str, tokenizer: Tokenizer, where: Path | str) -> None:
    for token_id in (int(ids.min()), int(ids.max())) if ids.size else ():
        if not 0 <= token_id < tokenizer.vocab_size:
            raise InputError(
                f"{where}: {name} holds token id {token_id}, but the vocabulary next to it has {tokenizer.vocab_size} "
                "tokens; put the vocab.txt there that the instances were made with"
            )
