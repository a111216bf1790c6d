"""Dropout; on a CPU with a faster draw than torch's."""

import torch
from torch import Tensor, nn
from torch.nn import functional


def drop_out(hidden: Tensor, probability: float, training: bool) -> Tensor:
    """Set values to 0 with a probability and scale the others up, while training.

    torch's dropout on a CPU draws its numbers one by one and takes a tenth of a small model's step: there, 16 random
    bits decide on each value, which rounds the probability to 1/65536.
    """
    if not training or probability == 0.0:
        return hidden
    if hidden.device.type != "cpu" or torch.compiler.is_compiling():
        return functional.dropout(hidden, probability)
    count = hidden.numel()
    words = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)  # 64 bits each: 4 values
    threshold = round(probability * 65536) - 32768
    kept = (words.view(torch.int16)[:count] >= threshold).view(hidden.shape)
    return hidden * kept.to(hidden.dtype).mul_(1.0 / (1.0 - probability))


class Dropout(nn.Module):
    """Dropout as a module without parameters."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, hidden: Tensor) -> Tensor:
        return drop_out(hidden, self.probability, self.training)
