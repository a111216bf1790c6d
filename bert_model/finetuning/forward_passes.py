"""Forward passes over an encoded set: of a fine-tuned model, and of the frozen encoder of a feature-based tagger.

The hidden states of a frozen encoder are computed once, stored in one file each, and read by all trials.

Shapes: N examples, B units of a batch, S positions, C choices, T tokens of all rows, K chosen hidden states, H hidden
size.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import DTypeLike
from torch import Tensor, nn

from bert_model.finetuning.search import Trial
from bert_model.kinds.encoded import EncodedSet, prediction_batches
from bert_model.model.bert import BertModel
from bert_model.model.config import BertConfig
from bert_model.model.cpu_kernels import limited_threads
from bert_model.model.initialization import new_model
from bert_model.model.weights import load_model
from bert_model.training.distributed import autocast

TOKENS_PER_BATCH = 4096
"""Padded tokens of a batch on the CPU: enough to fill it, few enough to stay in its caches."""
STORED = np.float16
"""A normalized activation is of the order of 1, so 11 bits keep it to within 0.001; float32 would double the disk
that a tagging task takes (CoNLL-2003 under BERT-base, all states: 10 GB)."""


@torch.inference_mode()
def predict_logits(model: nn.Module, encoded: EncodedSet, *, precision: str = "float32") -> np.ndarray:
    """Compute the outputs for every example, or, for spans and tags, for every token in the order of the encoded rows.

    Returns float32 (N, labels) or (T, labels); the outputs for the windows of an example are pooled.
    """
    # A GPU needs larger batches to be busy.
    device = next(model.parameters()).device
    tokens_per_batch = TOKENS_PER_BATCH * (1 if device.type == "cpu" else 16)
    model.eval()

    # The limit is on tokens: a unit of multiple choice has all its rows in the batch.
    places: list[np.ndarray] = []
    computed: list[np.ndarray] = []
    for units in prediction_batches(encoded.unit_lengths() * encoded.rows_per_example, tokens_per_batch):
        tensors = {name: send(tensor, device) for name, tensor in to_tensors(encoded, units).items()}
        with autocast(device, precision):
            outputs = forward(model, tensors).float().cpu().numpy()
        if encoded.per_token:
            inside, units = encoded.token_indices(units)
            outputs = outputs[inside]
        places.append(units)
        computed.append(outputs)
    # Batches are sorted by length: back to the order of the rows.
    result = np.concatenate(computed)[np.argsort(np.concatenate(places))]
    return result if encoded.per_token else encoded.pooled(result)


def to_tensors(encoded: EncodedSet, units: np.ndarray) -> dict[str, Tensor]:
    """Pad units to a batch in host memory, without `attention_mask` if nothing is padded and no tagger reads it."""
    padded = encoded.padded(units)
    if "features" not in padded and padded["attention_mask"].all():
        del padded["attention_mask"]
    return {name: torch.from_numpy(array) for name, array in padded.items()}


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to the device; to a GPU from pinned memory, in its queue."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def forward(model: nn.Module, tensors: dict[str, Tensor]) -> Tensor:
    """Compute (B, labels), (B, 1), (B, C), (B, S, 2) or (B, S, labels)."""
    if "features" in tensors:
        return cast(Tensor, model(tensors["features"], tensors["attention_mask"]))
    outputs: Tensor | tuple[Tensor, ...]
    outputs = model(tensors["input_ids"], tensors.get("attention_mask"), tensors["token_type_ids"])
    return torch.stack(outputs, dim=-1) if isinstance(outputs, tuple) else outputs


@torch.inference_mode()
def compute_states(
    encoder: BertModel,
    encoded: EncodedSet,
    states: Sequence[int],
    *,
    dtype: DTypeLike = STORED,
    directory: Path | None = None,
) -> tuple[np.ndarray, ...]:
    """Compute hidden states of an encoded set, without dropout; 0 is the embeddings, L the top block.

    Returns K arrays (T, H). With a directory they are written there, so that memory holds one batch.
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
        batch = {name: torch.from_numpy(array).to(device) for name, array in encoded.padded(rows).items()}
        output = encoder(
            batch["input_ids"], batch["attention_mask"], batch["token_type_ids"], output_hidden_states=True
        )
        assert output.hidden_states is not None
        # Padding is dropped: row t of each array belongs to token t of the set.
        inside, tokens = encoded.token_indices(rows)
        for array, state in zip(arrays, states):
            array[tokens] = output.hidden_states[state].float().cpu().numpy()[inside]
    return tuple(arrays)


def load_states(directory: Path, states: Sequence[int]) -> tuple[np.ndarray, ...]:
    """Map hidden states that `compute_states` wrote."""
    return tuple(np.load(_file(directory, state), mmap_mode="r", allow_pickle=False) for state in states)


def _file(directory: Path, state: int) -> Path:
    return directory / f"state-{state:02}.npy"


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureJob:
    """The hidden states that one initialization of the encoder needs, with all that a worker needs to compute them."""

    trial: Trial
    """One that starts from these weights, which the seed decides if they are random."""
    states: tuple[int, ...]
    """The hidden states to store."""
    model: Path
    """Directory of the model."""
    data: Path
    """Directory with the encoded sets."""
    sets: tuple[str, ...]
    """Their names: "train", and every dev split."""
    output: Path
    """Directory to create, with one directory for each set."""

    def run(self, *, device: str, num_threads: int, report: Callable[[Any], None] | None = None) -> None:
        """Compute and store the states; nothing is reported."""
        with limited_threads(num_threads):
            # One encoder for all sets: loading it costs more than the states of a small one.
            if self.trial.initialization.weights == "random":
                encoder = new_model(BertModel, BertConfig.from_directory(self.model), seed=self.trial.seed)
            else:
                encoder, _ = load_model(BertModel, self.model, log=False)
            encoder.to(torch.device(device))
            for name in self.sets:
                compute_states(encoder, EncodedSet.load(self.data / name), self.states, directory=self.output / name)
