"""torch's attention over packed sequences on a CPU, as a GPU's kernel computes it."""

import contextlib

import torch
import torch.nn.attention.varlen as varlen

from bert_model.pretraining import packing


@contextlib.contextmanager
def varlen_on_cpu():
    """Give the operators a CPU kernel, so that trainings in bfloat16 pack; yield the shapes of the queries."""
    calls: list[torch.Size] = []

    def forward(query, key, value, starts_q, starts_k, *sizes):
        assert starts_q.dtype == torch.int32
        assert torch.equal(starts_q, starts_k)
        assert int(starts_q.diff().min()) >= 0
        assert int(starts_q.diff().max()) <= sizes[0]
        calls.append(query.shape)
        _, weights, _, _, v = _weights(query, key, value, starts_q, sizes[4])
        out = (weights @ v).transpose(0, 1).to(query.dtype).contiguous()
        out[int(starts_q[-1]) :] = float("nan")  # rows without a sequence are undefined
        return out, query.new_zeros(query.shape[1], len(query), dtype=torch.float32), torch.zeros(2, dtype=torch.uint64)

    def backward(gradient, query, key, value, out, lse, *rest):
        # By the formulas of softmax: the derivatives of a kernel's own operations are not recorded.
        scale, weights, q, k, v = _weights(query, key, value, rest[0], rest[-1])
        g = gradient.float().transpose(0, 1)
        scores = weights * (g @ v.transpose(1, 2) - (g * (weights @ v)).sum(-1, keepdim=True)) * scale
        parts = (scores @ k, scores.transpose(1, 2) @ q, weights.transpose(1, 2) @ g)
        return tuple(part.transpose(0, 1).to(query.dtype).contiguous() for part in parts)

    supports_varlen = packing.supports_varlen
    for operator, kernel in ((varlen._varlen_attn, forward), (varlen._varlen_attn_backward, backward)):
        operator.register_kernel("cpu", kernel)
    packing.supports_varlen = lambda device: True
    try:
        yield calls
    finally:
        packing.supports_varlen = supports_varlen
        for operator in (varlen._varlen_attn, varlen._varlen_attn_backward):
            operator._backend_fns.pop("cpu", None)


def _weights(query, key, value, starts, window):
    """Return the scale, the weights (A, R, R) of keys in the same sequence, and the heads (A, R, D) in float32.

    A window of (64, 64) leaves as many keys on each side; -1 stands for all.
    """
    q, k, v = (item.float().transpose(0, 1) for item in (query, key, value))
    sequence = torch.bucketize(torch.arange(len(query)), starts[1:], right=True)
    scale = query.shape[-1] ** -0.5
    places = torch.arange(len(query))
    seen = sequence[:, None] == sequence
    for reach, side in zip(window, (1, -1), strict=True):
        seen &= (side * (places[:, None] - places) <= reach) | (reach < 0)
    scores = (q @ k.transpose(1, 2) * scale).masked_fill(~seen, float("-inf"))
    return scale, scores.softmax(-1), q, k, v
