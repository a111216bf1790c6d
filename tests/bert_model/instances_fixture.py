"""A small instance directory of an artificial language."""

from pathlib import Path

import numpy as np

from bert_pipeline.instances.columns import InstanceColumns, unpad
from bert_pipeline.instances.masking import MaskingConfig, mask_batch, sample_keys
from bert_pipeline.instances.parquet import InstanceWriter
from bert_pipeline.instances.tfrecord import TfrecordWriter
from bert_pipeline.manifest import Manifest, load_manifest, publishing
from bert_pipeline.parquet_io import footer_sha256
from bert_pipeline.vocabulary.tokenizer import Tokenizer

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def make_tokenizer(vocab_size: int = 60) -> Tokenizer:
    """A vocabulary of the special tokens and words w0, w1, …"""
    return Tokenizer.from_tokens([*SPECIAL, *(f"w{index}" for index in range(vocab_size - len(SPECIAL)))], True)


def make_columns(
    count: int, *, vocab_size: int, max_seq_length: int, seed: int, full_share: float = 0.6
) -> InstanceColumns:
    """Pairs of segments that count upwards; a true next segment continues the count of the first."""
    rng = np.random.default_rng(seed)
    num_words = vocab_size - len(SPECIAL)
    full = rng.random(count) < full_share
    lengths = np.where(full, max_seq_length, rng.integers(8, max_seq_length + 1, count))
    first_lengths = rng.integers(2, lengths - 4)  # words of A; B takes what is left of three special tokens
    is_random = rng.random(count) < 0.5
    starts = rng.integers(0, num_words, count)
    jumps = np.where(is_random, rng.integers(3, num_words - 3, count), 0)
    rows = np.zeros((count, max_seq_length), dtype=np.int32)
    for row in range(count):
        words = (starts[row] + np.arange(lengths[row] - 3)) % num_words + len(SPECIAL)
        a, b = words[: first_lengths[row]], (words[first_lengths[row] :] - len(SPECIAL) + jumps[row]) % num_words
        rows[row, : lengths[row]] = [2, *a, 3, *(b + len(SPECIAL)), 3]
    input_ids, offsets = unpad(rows, lengths)
    return InstanceColumns(
        input_ids=input_ids,
        offsets=offsets,
        segment_b_start=(first_lengths + 2).astype(np.int32),
        is_random_next=is_random,
    )


def with_static_masks(columns: InstanceColumns, tokenizer: Tokenizer, max_seq_length: int) -> InstanceColumns:
    """Return the instances with static masks."""
    from bert_pipeline.instances.columns import pad

    padded = pad(columns.input_ids, columns.offsets, max_seq_length)
    keys = sample_keys(1, 0, np.arange(columns.num_instances))
    masked = mask_batch(padded, columns.lengths, keys, tokenizer, MaskingConfig())
    input_ids, offsets = unpad(masked.input_ids, columns.lengths)
    return InstanceColumns(
        input_ids=input_ids,
        offsets=offsets,
        segment_b_start=columns.segment_b_start,
        is_random_next=columns.is_random_next,
        masked_lm_positions=masked.masked_lm_positions,
        masked_lm_ids=masked.masked_lm_ids,
        masked_offsets=masked.masked_offsets,
    )


def write_instances(
    directory: Path,
    *,
    max_seq_length: int = 24,
    shards: tuple[int, ...] = (96, 64),
    held_out: int = 30,
    vocab_size: int = 60,
    rows_per_write: int = 32,
    file_format: str = "parquet",
    static_masks: bool = False,
    seed: int = 0,
) -> Manifest:
    """Publish an instance directory of several shards with several row groups each."""
    tokenizer = make_tokenizer(vocab_size)
    configuration = {"max_seq_length": max_seq_length, "format": file_format, "seed": seed}
    with publishing(directory, kind="instances", configuration=configuration, inputs={}) as draft:
        tokenizer.save(draft.path)
        parts = [("train", index, count) for index, count in enumerate(shards)] + [("held_out", 0, held_out)]
        for number, (split, index, count) in enumerate(parts):
            if not count:  # a split without instances has no file
                continue
            (draft.path / split).mkdir(exist_ok=True)
            name = f"{split}/instances-{index:05d}.{file_format}"
            writer: InstanceWriter | TfrecordWriter
            if file_format == "parquet":
                writer = InstanceWriter(draft.path / name)
            else:
                writer = TfrecordWriter(draft.path / name, max_seq_length=max_seq_length, max_predictions_per_seq=20)
            with writer:
                for start in range(0, count, rows_per_write):
                    columns = make_columns(
                        min(rows_per_write, count - start),
                        vocab_size=vocab_size,
                        max_seq_length=max_seq_length,
                        seed=1000 * seed + 100 * number + start,
                    )
                    if static_masks or file_format == "tfrecord":
                        columns = with_static_masks(columns, tokenizer, max_seq_length)
                    writer.write(columns)
            draft.rows[name] = count
            if file_format == "parquet":
                draft.footer_sha256[name] = footer_sha256(draft.path / name)
    return load_manifest(directory)
