"""Hidden states of a frozen encoder: computed once, stored in one file each, read by all trials of `ner_features`.

Shapes: T tokens of all rows, B rows, S positions, K chosen hidden states, H hidden size.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import DTypeLike

from bert_model.finetuning.dataset import EncodedSet, prediction_batches
from bert_model.model.bert import BertModel, new_model
from bert_model.model.config import BertConfig
from bert_model.model.cpu_kernels import cpu_settings
from bert_model.model.weights import load_model

TOKENS_PER_BATCH = 4096
STORED = np.float16
"""A normalized activation is of the order of 1, so 11 bits keep it to within 0.001; float32 would double the disk
that a tagging task takes (CoNLL-2003 under BERT-base, all states: 10 GB)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Activations:
    """Chosen hidden states of every token of an encoded set."""

    states: tuple[np.ndarray, ...]
    """K arrays (T, H)."""

    @property
    def shape(self) -> tuple[int, int]:
        """(K, H)."""
        return len(self.states), self.states[0].shape[1]

    def padded(self, encoded: EncodedSet, rows: np.ndarray) -> np.ndarray:
        """Gather (B, S, K, H) float32."""
        lengths = encoded.lengths()[rows]
        columns = np.arange(int(lengths.max()))
        inside = columns < lengths[:, None]
        source = (encoded.offsets[rows][:, None] + columns)[inside]
        padded = np.zeros((*inside.shape, *self.shape), dtype=np.float32)
        for index, state in enumerate(self.states):
            padded[inside, index] = state[source]
        return padded

    @classmethod
    def load(cls, directory: Path, states: Sequence[int]) -> "Activations":
        """Map hidden states that `compute_activations` wrote."""
        return cls(tuple(np.load(_file(directory, state), mmap_mode="r", allow_pickle=False) for state in states))


@torch.inference_mode()
def compute_activations(
    encoder: BertModel,
    encoded: EncodedSet,
    *,
    pad_id: int,
    states: Sequence[int],
    dtype: DTypeLike = STORED,
    directory: Path | None = None,
) -> Activations:
    """Compute hidden states of an encoded set, without dropout; 0 is the embeddings, L the top block.

    With a directory they are written there, so that memory holds one batch.
    """
    encoder.eval()
    device = encoder.embeddings.word_embeddings.weight.device
    shape = (len(encoded.input_ids), encoder.config.hidden_size)
    arrays: list[np.ndarray]
    if directory is not None:
        directory.mkdir(parents=True)
        arrays = [
            np.lib.format.open_memmap(_file(directory, state), mode="w+", dtype=np.dtype(dtype), shape=shape)
            for state in states
        ]
    else:
        arrays = [np.empty(shape, dtype=dtype) for _ in states]
    lengths = encoded.lengths()
    for rows in prediction_batches(lengths, TOKENS_PER_BATCH):
        batch = {
            name: torch.from_numpy(array).to(device) for name, array in encoded.padded(rows, pad_id=pad_id).items()
        }
        output = encoder(
            batch["input_ids"], batch["attention_mask"], batch["token_type_ids"], output_hidden_states=True
        )
        assert output.hidden_states is not None
        columns = np.arange(batch["input_ids"].shape[1])
        inside = columns < lengths[rows][:, None]
        target = (encoded.offsets[rows][:, None] + columns)[inside]
        for array, state in zip(arrays, states):
            array[target] = output.hidden_states[state].cpu().numpy()[inside]
    return Activations(tuple(arrays))


def _file(directory: Path, state: int) -> Path:
    return directory / f"state-{state:02}.npy"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Extraction:
    """Which activations to compute; plain values, so that it travels to a worker."""

    data: str
    """Directory with the encoded sets."""
    sets: tuple[str, ...]
    """Their names: train, and every dev split."""
    model: str
    """Directory of the model."""
    start: str
    """pretrained: the model's weights; random: fresh weights of the same shape, drawn by the seed."""
    seed: int
    states: tuple[int, ...]
    """The hidden states to keep."""
    pad_id: int
    output: str
    """Directory to make: one directory for each set in it."""
    onednn: tuple[tuple[int, int], ...] = ()
    """Weight shapes that oneDNN computes."""


def run_extraction(extraction: Extraction, *, device: str, num_threads: int) -> None:
    """Compute and store the activations."""
    with cpu_settings(onednn=extraction.onednn, num_threads=num_threads):
        encoder = starting_encoder(extraction.model, extraction.start, extraction.seed).to(torch.device(device))
        for name in extraction.sets:
            compute_activations(
                encoder,
                EncodedSet.load(Path(extraction.data) / name),
                pad_id=extraction.pad_id,
                states=extraction.states,
                directory=Path(extraction.output) / name,
            )


def starting_encoder(model: str, start: str, seed: int) -> BertModel:
    """Make the encoder that a feature-based training reads."""
    if start == "random":
        return new_model(BertModel, BertConfig.from_directory(model), seed=seed)
    return load_model(BertModel, model)[0]
