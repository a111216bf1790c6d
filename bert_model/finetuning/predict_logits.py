"""Forward passes of a fine-tuned model over an encoded dataset."""

import numpy as np
import torch
from torch import Tensor, nn

from bert_model.finetuning.dataset import EncodedSet, prediction_batches
from bert_model.finetuning.frozen_features import Activations
from bert_model.training.distributed import resolve_precision

PREDICTION_TOKENS = 4096
"""Padded tokens of a prediction batch on the CPU: enough to fill it, little enough to stay in its caches."""


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Mixed precision as configured."""
    enabled = resolve_precision(precision, device) == "bfloat16"
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=enabled)


def to_tensors(
    encoded: EncodedSet,
    units: np.ndarray,
    pad_id: int,
    device: torch.device,
    features: Activations | None = None,
) -> dict[str, Tensor]:
    """Pad units to a batch on the device; `attention_mask` is left out where nothing is padded."""
    padded = encoded.padded(units, pad_id=pad_id)
    if features is not None:
        padded["features"] = features.padded(encoded, units)
    elif padded["attention_mask"].all():
        del padded["attention_mask"]
    return {name: torch.from_numpy(array).to(device, non_blocking=True) for name, array in padded.items()}


def forward(model: nn.Module, tensors: dict[str, Tensor]) -> Tensor:
    """Compute (B, labels), (B, 1), (B, C), (B, S, 2) or (B, S, labels)."""
    if "features" in tensors:
        return model(tensors["features"], tensors["attention_mask"])
    outputs = model(tensors["input_ids"], tensors.get("attention_mask"), tensors["token_type_ids"])
    return torch.stack(outputs, dim=-1) if isinstance(outputs, tuple) else outputs


@torch.inference_mode()
def predict_logits(
    model: nn.Module,
    encoded: EncodedSet,
    *,
    pad_id: int,
    features: Activations | None = None,
    precision: str = "float32",
    tokens_per_batch: int = PREDICTION_TOKENS,
) -> np.ndarray:
    """Compute the outputs for every unit, or, for spans and tags, for every token in the order of the encoded rows.

    Returns float32 (units, labels) or (T, labels).
    """
    device = next(model.parameters()).device
    if device.type != "cpu":
        tokens_per_batch *= 16
    model.eval()
    result: np.ndarray | None = None
    per_token = encoded.kind in ("span", "tagging")
    lengths = encoded.unit_lengths()
    for units in prediction_batches(lengths * encoded.rows_per_example, tokens_per_batch):
        tensors = to_tensors(encoded, units, pad_id, device, features)
        with autocast(device, precision):
            outputs = forward(model, tensors).float().cpu().numpy()
        if result is None:
            rows = len(encoded.input_ids) if per_token else encoded.num_units
            result = np.zeros((rows, outputs.shape[-1]), dtype=np.float32)
        if per_token:
            columns = np.arange(outputs.shape[1])
            inside = columns < lengths[units][:, None]
            result[(encoded.offsets[units][:, None] + columns)[inside]] = outputs[inside]
        else:
            result[units] = outputs
    assert result is not None, "an encoded set has rows"
    return result
