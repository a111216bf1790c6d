"""Hidden states of chosen layers for every token of plain text, as Parquet (feature-based use of BERT, paper 5.3).

Their means are the vectors of sentence embeddings.
"""

import contextlib
import itertools
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from bert_model.finetuning.forward_passes import compute_states
from bert_model.finetuning.task_model import prediction_device
from bert_model.inference.inputs import halved, read_rows, rejected_path, rejecting
from bert_model.kinds.encoded import EncodedSet
from bert_model.kinds.text import encode_texts
from bert_model.model.bert import BertModel
from bert_model.model.weights import check_embeddings, load_model
from bert_model.training.distributed import autocast
from bert_pipeline.atomic import atomic_write
from bert_pipeline.errors import ConfigurationError, InputError
from bert_pipeline.failed_records import check_failures
from bert_pipeline.records import Record
from bert_pipeline.vocabulary.files import model_max_length
from bert_pipeline.vocabulary.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

CHUNK = 256
"""Number of texts in a row group, if they are not too long."""
MAX_VALUES = 1 << 29
"""Numbers of hidden states in memory, 2 GB: those of 256 texts of 512 tokens, in four layers of BERT-large."""


def write_features(
    directory: Path,
    input_path: str,
    output_path: Path | str,
    *,
    layers: Sequence[int] = (),
    pools: bool = False,
    precision: str = "float32",
) -> int:
    """Write one row for each text or pair of a file (`read_rows`); return the number of rows.

    Columns: `id`, `text` and `text_b`, `tokens` list<string> with [CLS] and [SEP], and `layer_<n>`
    list<list<float32>>, a vector for each token. Layers count from 0 for the embeddings, or from -1 for the top block;
    by default the upper four. With `pools` they are list<float32>, the mean vector of all tokens, by default of the top
    one, and texts are cut as `bert predict` cuts them. `precision` is as in `autocast`. ConfigurationError for a layer
    that the model does not have. Rows that fail are set aside (`rejecting`); InputError if too many (`check_failures`).
    """
    # Layers are checked before the first text is read.
    tokenizer = Tokenizer.from_directory(directory)
    encoder, _ = load_model(BertModel, directory)
    device = torch.device(prediction_device())
    encoder.to(device)
    upper = range(-1, -2 if pools else max(-5, -encoder.config.num_hidden_layers - 2), -1)
    numbers = layer_numbers(layers or upper, encoder.config.num_hidden_layers)
    max_length = encoder.config.max_position_embeddings
    if pools:
        max_length = min(max_length, model_max_length(directory) or max_length)

    # In chunks, so that memory holds the hidden states of a few texts; a failure leaves no file.
    output = Path(output_path)
    output.parent.mkdir(parents=True, exist_ok=True)
    count = num_truncated = 0
    failed: list[str] = []
    with atomic_write(output) as temporary, contextlib.ExitStack() as stack:
        reject = stack.enter_context(rejecting(str(output_path)))
        writer: pq.ParquetWriter | None = None  # with the columns of the first table

        def compute(rows: Sequence[Record]) -> tuple[EncodedSet, pa.Table]:
            pairs = [(row.fields["text"], row.fields.get("text_b")) for row in rows]
            if any(text_b is not None for _, text_b in pairs):
                check_embeddings(directory, encoder.config, tokenizer, pair_task="bert features")
            encoded = encode_texts(pairs, tokenizer, max_length)
            if len(rows) > 1 and len(encoded.input_ids) * len(numbers) * encoder.config.hidden_size > MAX_VALUES:
                raise InputError("too many hidden states at once")  # `halved` asks for fewer
            with autocast(device, precision):
                states = compute_states(encoder, encoded, numbers, dtype=np.float32)
            ids = [str(row.fields["id"]) for row in rows]
            return encoded, _table(ids, pairs, encoded, states, numbers, tokenizer, pools)

        inputs = (row for row in read_rows(input_path, "texts") if not row.is_blank)
        while chunk := list(itertools.islice(inputs, CHUNK)):
            for row in chunk:
                if row.error:
                    failed.append(row.error)
                    reject(row)
            texts = [row for row in chunk if not row.error]
            for rows, result in halved(compute, texts) if texts else ():
                if isinstance(result, InputError):
                    failed.append(f"id {rows[0].fields['id']} ({result})")
                    reject(rows[0]._replace(error=str(result)))
                    continue
                encoded, table = result
                num_truncated += len(encoded.truncated)
                if writer is None:
                    writer = pq.ParquetWriter(temporary, table.schema, write_page_checksum=True)
                    stack.enter_context(writer)
                writer.write_table(table)
                count += len(rows)
        if warning := check_failures("texts", len(failed), count + len(failed), failed):
            logger.warning("%s (%s lists them)", warning, rejected_path(str(output_path)))
        if not count:
            raise InputError(f"{input_path}: no text in it, so there are no features to write")
    if num_truncated:
        logger.warning("%s: %d texts were cut to the model's %d positions", input_path, num_truncated, max_length)
    return count


def layer_numbers(layers: Sequence[int], num_hidden_layers: int) -> list[int]:
    """Return the layers as indices of hidden states; ConfigurationError names one that the model does not have."""
    numbers = []
    for layer in layers:
        number = layer if layer >= 0 else num_hidden_layers + 1 + layer
        if not 0 <= number <= num_hidden_layers:
            raise ConfigurationError(
                f"layers: found {layer}, expected {-num_hidden_layers - 1} to {num_hidden_layers}: the model has "
                f"{num_hidden_layers} blocks and its embeddings"
            )
        numbers.append(number)
    if not numbers or len(set(numbers)) < len(numbers):
        raise ConfigurationError(f"layers: found {list(layers)}, expected one or more different layers")
    return numbers


def _table(
    ids: Sequence[str],
    pairs: Sequence[tuple[str, str | None]],
    encoded: EncodedSet,
    states: Sequence[np.ndarray],
    numbers: Sequence[int],
    tokenizer: Tokenizer,
    pools: bool,
) -> pa.Table:
    # Arrow's lists share the set's flat arrays: a row's tokens by `offsets`, a token's vector by `inner`.
    offsets = pa.array(encoded.offsets, pa.int32())
    num_vectors = encoded.num_rows if pools else len(encoded.input_ids)
    inner = pa.array(np.arange(num_vectors + 1) * states[0].shape[1], pa.int32())
    tokens = pa.array([tokenizer.tokens[i] for i in encoded.input_ids], pa.string())
    columns = {
        "id": pa.array(ids, pa.string()),
        "text": pa.array([text for text, _ in pairs], pa.string()),
        "text_b": pa.array([text_b for _, text_b in pairs], pa.string()),
        "tokens": pa.ListArray.from_arrays(offsets, tokens),
    }
    for number, state in zip(numbers, states):
        if pools:
            state = np.add.reduceat(state, encoded.offsets[:-1], dtype=np.float64) / encoded.lengths()[:, None]
        vectors = pa.ListArray.from_arrays(inner, pa.array(state.reshape(-1), pa.float32()))
        columns[f"layer_{number}"] = vectors if pools else pa.ListArray.from_arrays(offsets, vectors)
    return pa.table(columns)
