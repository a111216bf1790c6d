"""Hidden states of a frozen encoder: computed once, stored in one file each, read by all trials of `ner_features`.

Shapes: T tokens of all rows, B rows, S positions, K chosen hidden states, H hidden size.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import DTypeLike

from bert_model.kinds.encoded import EncodedSet, prediction_batches
from bert_model.model.bert import BertModel
from bert_model.model.config import BertConfig
from bert_model.model.cpu_kernels import limited_threads
from bert_model.model.initialization import new_model
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
        inside, tokens = encoded.token_indices(rows)
        padded = np.zeros((*inside.shape, *self.shape), dtype=np.float32)
        for index, state in enumerate(self.states):
            padded[inside, index] = state[tokens]
        return padded

    @classmethod
    def load(cls, directory: Path, states: Sequence[int]) -> "Activations":
        """Map hidden states that `compute_activations` wrote."""
        return cls(tuple(np.load(_file(directory, state), mmap_mode="r", allow_pickle=False) for state in states))


def _file(directory: Path, state: int) -> Path:
    return directory / f"state-{state:02}.npy"


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
    device = next(encoder.parameters()).device
    shape = (len(encoded.input_ids), encoder.config.hidden_size)

    # One file for each state, so that a trial maps only those that it reads.
    arrays: list[np.ndarray]
    if directory is not None:
        directory.mkdir(parents=True)
        arrays = [
            np.lib.format.open_memmap(_file(directory, state), mode="w+", dtype=np.dtype(dtype), shape=shape)
            for state in states
        ]
    else:
        arrays = [np.empty(shape, dtype=dtype) for _ in states]

    # In batches of similar length; each token's states go to its own place in the arrays.
    for rows in prediction_batches(encoded.lengths(), TOKENS_PER_BATCH):
        batch = {
            name: torch.from_numpy(array).to(device) for name, array in encoded.padded(rows, pad_id=pad_id).items()
        }
        output = encoder(
            batch["input_ids"], batch["attention_mask"], batch["token_type_ids"], output_hidden_states=True
        )
        assert output.hidden_states is not None
        # Padding is dropped: row t of each array belongs to token t of the set.
        inside, tokens = encoded.token_indices(rows)
        for array, state in zip(arrays, states):
            array[tokens] = output.hidden_states[state].float().cpu().numpy()[inside]
    return Activations(tuple(arrays))


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureJob:
    """The activations that one initialization of the encoder needs, with all that a worker needs to compute them."""

    weights: Literal["pretrained", "random"]
    seed: int
    """Decides random weights."""
    states: tuple[int, ...]
    """The hidden states to store."""
    model: Path
    """Directory of the model."""
    model_config: BertConfig
    """Its configuration."""
    data: Path
    """Directory with the encoded sets."""
    sets: tuple[str, ...]
    """Their names: "train", and every dev split."""
    pad_id: int
    output: Path
    """Directory to create, with one directory for each set."""

    def run(self, *, device: str, num_threads: int, report: Callable[[Any], None] | None = None) -> None:
        """Compute and store the activations; nothing is reported."""
        with limited_threads(num_threads):
            # One encoder for all sets: loading it costs more than the activations of a small one.
            encoder = initial_encoder(self.model, self.model_config, self.weights, self.seed).to(torch.device(device))
            for name in self.sets:
                compute_activations(
                    encoder,
                    EncodedSet.load(self.data / name),
                    pad_id=self.pad_id,
                    states=self.states,
                    directory=self.output / name,
                )


def initial_encoder(model: Path, config: BertConfig, weights: str, seed: int) -> BertModel:
    """Return the frozen encoder of a feature-based training: pre-trained, or random weights drawn by the seed."""
    if weights == "random":
        return new_model(BertModel, config, seed=seed)
    return load_model(BertModel, model, config=config, log=False)[0]
