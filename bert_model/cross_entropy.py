"""Cross-entropy over the vocabulary with its projection: on a CPU one pass keeps the logits' memory and their softmax.

Shapes: N predictions, H hidden size, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from bert_model.linear import times_transposed, transposed_times, uses_onednn

IGNORED_LABEL = -100
"""Label of a position without a prediction, as torch's cross-entropy and Hugging Face have it."""


def cross_entropy_sum(hidden: Tensor, embeddings: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
    """Return the summed cross-entropy of labels (N) under the softmax of hidden (N, H) times embeddings (V, H), + bias.

    The sum is a float32 scalar. Labels of -100 do not count; where oneDNN computes, the caller leaves them out.
    """
    if uses_onednn(hidden) and torch.is_grad_enabled():
        return _CrossEntropySum.apply(hidden, embeddings, bias, labels)
    logits = functional.linear(hidden, embeddings, bias).float()  # (N, V)
    return functional.cross_entropy(logits, labels, ignore_index=IGNORED_LABEL, reduction="sum")


class _CrossEntropySum(torch.autograd.Function):
    """The sum; its backward pass turns the softmax itself into the gradient, of which torch makes three copies."""

    @staticmethod
    def forward(context: Any, hidden: Tensor, embeddings: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
        logits = times_transposed(hidden, embeddings, bias)  # (N, V)
        softmax = logits.softmax(-1)
        context.save_for_backward(hidden, embeddings, softmax, labels)
        # The largest entry of the softmax is 1 / sum(exp(logits - largest)): the log of the sum costs no other pass.
        log_sums = logits.amax(-1) - softmax.amax(-1).log()  # (N,)
        return (log_sums - logits.gather(1, labels.unsqueeze(1)).squeeze(1)).sum()

    @staticmethod
    @once_differentiable
    def backward(context: Any, scale: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        hidden, embeddings, softmax, labels = context.saved_tensors
        gradient = softmax  # (N, V); nothing reads the softmax itself after this
        gradient[torch.arange(len(labels)), labels] -= 1.0
        return (
            times_transposed(gradient, embeddings.t()).mul_(scale),  # (N, H)
            transposed_times(gradient, hidden * scale),  # (V, H)
            gradient.sum(0).mul_(scale),  # (V,)
            None,
        )
