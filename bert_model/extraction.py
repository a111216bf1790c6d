"""The frozen encoder's part of a feature-based fine-tuning: its activations, computed once for all trials."""

import dataclasses
from pathlib import Path

import torch

from bert_model.activations import compute_activations
from bert_model.config import BertConfig
from bert_model.cpu_kernels import cpu_settings
from bert_model.encoding import EncodedSet
from bert_model.modeling import BertModel, new_model
from bert_model.weights import load_model


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
