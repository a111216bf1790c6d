"""Forward passes of a fine-tuned model over an encoded dataset.

Shapes: N examples, B units of a batch, S positions, C choices, T tokens of all rows.
"""

from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from bert_model.finetuning.frozen_features import Activations
from bert_model.kinds.encoded import EncodedSet, prediction_batches
from bert_model.training.distributed import autocast

TOKENS_PER_BATCH = 4096
"""Padded tokens of a batch on the CPU: enough to fill it, few enough to stay in its caches."""


@torch.inference_mode()
def predict_logits(
    model: nn.Module,
    encoded: EncodedSet,
    *,
    pad_id: int,
    features: Activations | None = None,
    precision: str = "float32",
) -> np.ndarray:
    """Compute the outputs for every example, or, for spans and tags, for every token in the order of the encoded rows.

    Returns float32 (N, labels) or (T, labels); the outputs for the windows of an example are pooled.
    """
    # A GPU needs larger batches to be busy.
    device = next(model.parameters()).device
    tokens_per_batch = TOKENS_PER_BATCH * (1 if device.type == "cpu" else 16)
    model.eval()

    # The limit is on tokens: a unit of multiple choice has all its rows in the batch.
    result: np.ndarray | None = None
    for units in prediction_batches(encoded.unit_lengths() * encoded.rows_per_example, tokens_per_batch):
        host_tensors = to_tensors(encoded, units, pad_id, features)
        tensors = {name: send(tensor, device) for name, tensor in host_tensors.items()}
        with autocast(device, precision):
            outputs = forward(model, tensors).float().cpu().numpy()
        # Scatter the batch, which is sorted by length, back to the order of the rows.
        if result is None:
            rows = len(encoded.input_ids) if encoded.per_token else encoded.num_units
            result = np.zeros((rows, outputs.shape[-1]), dtype=np.float32)
        if encoded.per_token:
            inside, tokens = encoded.token_indices(units)
            result[tokens] = outputs[inside]
        else:
            result[units] = outputs
    assert result is not None, "an encoded set has rows"
    return result if encoded.per_token else encoded.pooled(result)


def to_tensors(
    encoded: EncodedSet,
    units: np.ndarray,
    pad_id: int,
    features: Activations | None = None,
) -> dict[str, Tensor]:
    """Pad units to a batch in host memory, without `attention_mask` if nothing is padded."""
    padded = encoded.padded(units, pad_id=pad_id)
    if features is not None:
        padded["features"] = features.padded(encoded, units)
    elif padded["attention_mask"].all():
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
