"""Attention over unpadded sequences by torch's kernel for GPUs, here on a slow CPU kernel; recomputed blocks."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from bert_model.model import bert, unpadding
from bert_model.model.bert import BertForPreTraining, new_model
from bert_model.model.config import BertConfig
from bert_model.training.gradients import compile_layers
from bert_model.training.optimizer import build_optimizer, clip_gradients
from bert_model.training.schedule import OptimizerConfig

varlen = pytest.importorskip("torch.nn.attention.varlen")

LENGTHS = torch.tensor([24, 17, 8, 21])


def config(**changes):
    return BertConfig.from_preset(
        "tiny", **{"vocab_size": 90, "max_position_embeddings": 40, "attention_probs_dropout_prob": 0.0, **changes}
    )


def unpadded_model(**changes):
    """A model for which torch has the kernel."""
    model = new_model(BertForPreTraining, config(**changes), seed=3).train()
    model.bert.has_varlen = True
    return model


def batch(num_padding=0):
    """Four sequences, unpadded, with `num_padding` rows of padding behind all tokens."""
    generator = torch.Generator().manual_seed(1)
    mask = torch.arange(24) < LENGTHS.unsqueeze(1)
    padding = (~mask).flatten().nonzero().squeeze(1)[:num_padding]
    return {
        "input_ids": torch.randint(5, 90, (4, 24), generator=generator) * mask,
        "attention_mask": mask,
        "token_type_ids": torch.zeros(4, 24, dtype=torch.int64),
        "token_indices": torch.cat([mask.flatten().nonzero().squeeze(1), padding]),
        "masked_lm_positions": torch.tensor([[1, 5, 7], [2, 3, 16], [1, 2, 0], [4, 9, 20]]),
        "prediction_indices": torch.tensor([0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11]),
        "labels": torch.tensor([[11, 12, 13], [14, 15, 16], [17, 18, -100], [19, 20, 21]]),
        "next_sentence_label": torch.tensor([0, 1, 1, 0]),
    }


def losses_and_gradients(model, inputs):
    losses = model.loss_sums(**inputs)
    model.zero_grad()
    sum(losses).backward()
    return [*losses, *(parameter.grad.clone() for parameter in model.parameters())]  # type: ignore[union-attr]


def attend_one_by_one(query, key, value, starts_q, starts_k):
    """Attend a sequence at a time, in plain torch; rows without a sequence are undefined, as the kernel leaves them."""
    parts = torch.full_like(query, float("nan"))
    for first, end, first_k, end_k in zip(starts_q, starts_q[1:], starts_k, starts_k[1:]):
        q, k, v = (item.transpose(0, 1) for item in (query[first:end], key[first_k:end_k], value[first_k:end_k]))
        weights = (q @ k.transpose(1, 2) * q.shape[-1] ** -0.5).softmax(-1)
        parts = torch.cat([parts[:first], (weights @ v).transpose(0, 1), parts[end:]])
    return parts


@pytest.fixture
def cpu_kernel(monkeypatch):
    """Give torch's operators a CPU kernel, and take them for a CPU too; the list has the shapes of the queries."""
    calls: list[torch.Size] = []

    def forward(query, key, value, starts_q, starts_k, *sizes):
        assert starts_q.dtype == starts_k.dtype == torch.int32
        assert int(starts_q.diff().max()) <= sizes[0]
        assert int(starts_k.diff().max()) <= sizes[1]
        calls.append(query.shape)
        out = attend_one_by_one(query, key, value, starts_q, starts_k)
        return out, query.new_zeros(query.shape[1], len(query)), torch.zeros(2, dtype=torch.uint64)

    def backward(gradient, query, key, value, out, lse, *rest):
        # By the formulas of softmax: the derivatives of a kernel's own operations are not recorded.
        results = [torch.zeros_like(item) for item in (query, key, value)]
        starts_q, starts_k = rest[:2]
        for first, end, first_k, end_k in zip(starts_q, starts_q[1:], starts_k, starts_k[1:]):
            rows = (slice(first, end), slice(first_k, end_k), slice(first_k, end_k))
            q, k, v = (item[part].transpose(0, 1) for item, part in zip((query, key, value), rows))
            g, scale = gradient[rows[0]].transpose(0, 1), q.shape[-1] ** -0.5
            weights = (q @ k.transpose(1, 2) * scale).softmax(-1)
            scores = weights * (g @ v.transpose(1, 2) - (g * (weights @ v)).sum(-1, keepdim=True)) * scale
            parts = (scores @ k, scores.transpose(1, 2) @ q, weights.transpose(1, 2) @ g)
            for result, part, found in zip(results, rows, parts):
                result[part] = found.transpose(0, 1)
        return tuple(results)

    for operator, kernel in ((varlen._varlen_attn, forward), (varlen._varlen_attn_backward, backward)):
        operator.register_kernel("cpu", kernel)
    monkeypatch.setattr(bert, "VARLEN_DTYPES", (torch.float32,))
    yield calls
    for operator in (varlen._varlen_attn, varlen._varlen_attn_backward):
        operator._backend_fns.pop("cpu", None)


@pytest.mark.parametrize("num_padding", [0, 10, 24])
def test_unpadded_attention_equals_padded(cpu_kernel, num_padding):
    model = unpadded_model(hidden_dropout_prob=0.0)
    found = losses_and_gradients(model, batch(num_padding))
    # The last block has 1 + 3 queries a sequence, the others every row.
    assert cpu_kernel == [(70 + num_padding, 2, 64), (4 * 4, 2, 64)]
    model.bert.has_varlen = False
    expected = losses_and_gradients(model, batch())
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_unpadded_attention_is_in_the_graph_of_a_compiled_layer(cpu_kernel):
    model = unpadded_model(hidden_dropout_prob=0.0)
    expected = losses_and_gradients(model, batch(10))
    cpu_kernel.clear()
    compile_layers(model, backend="aot_eager", fullgraph=True)
    for one, other in zip(losses_and_gradients(model, batch(10)), expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    assert len(cpu_kernel) == 2


@pytest.mark.parametrize(
    ("changes", "training", "expected"),
    [
        ({}, True, 2),
        ({"attention_probs_dropout_prob": 0.1}, True, 0),
        ({"attention_probs_dropout_prob": 0.1}, False, 2),
        ({"attention": "causal"}, True, 0),
    ],
)
def test_unpadded_attention_is_for_bidirectional_attention_without_dropout(cpu_kernel, changes, training, expected):
    unpadded_model(**changes).train(training).loss_sums(**batch())
    assert len(cpu_kernel) == expected


def test_kernel_computes_in_16_bits_under_autocast_too():
    model = new_model(BertForPreTraining, config(), seed=3)
    model.bert.has_varlen = True
    hidden = torch.zeros(2, 128)
    assert not model.bert._uses_varlen(hidden)
    assert model.bert._uses_varlen(hidden.bfloat16())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model.bert._uses_varlen(hidden)


@pytest.mark.parametrize(("generation", "expected"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_kernel_is_that_of_newer_gpus(monkeypatch, generation, expected):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: generation)
    assert unpadding.supports_varlen(torch.device("cuda", 0)) is expected
    assert not unpadding.supports_varlen(torch.device("cpu"))


def test_padding_behind_the_tokens_is_not_seen():
    model = new_model(BertForPreTraining, config(hidden_dropout_prob=0.0), seed=3).train()
    expected = losses_and_gradients(model, batch())
    inputs = batch(10)
    for one, other in zip(losses_and_gradients(model, inputs), expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("compiled", [False, True])
def test_recomputed_blocks_have_equal_gradients(compiled):
    # Compiled functions draw other random numbers.
    dropout = 0.0 if compiled else 0.1
    settings = {"attention_probs_dropout_prob": dropout, "hidden_dropout_prob": dropout}
    model = new_model(BertForPreTraining, config(**settings), seed=3).train()
    if compiled:
        compile_layers(model, backend="eager", fullgraph=True)
    results: list[list[Tensor]] = []
    calls: list[int] = []
    if not compiled:
        model.bert.encoder.layer[0].intermediate.register_forward_hook(lambda *_: calls.append(1))
    for recomputes in (False, True):
        model.bert.recomputes_blocks = recomputes
        torch.manual_seed(1)
        results.append(losses_and_gradients(model, batch()))
    if not compiled:
        assert len(calls) == 3  # once, and twice
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


class Operators(TorchDispatchMode):
    """Count the operators of a device."""

    def __init__(self):
        super().__init__()
        self.counts: dict[str, int] = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.counts[str(function)] = self.counts.get(str(function), 0) + 1
        return function(*args, **(kwargs or {}))


def operators_of_a_step(dropout, monkeypatch):
    """Return the operators of a step on the meta device: it has no values, so one that reads a value would raise."""
    monkeypatch.setattr(bert, "VARLEN_DTYPES", (torch.float32,))
    model = unpadded_model(attention_probs_dropout_prob=dropout).to("meta")
    optimizer = build_optimizer(model, OptimizerConfig(), 1e-4)
    for group in optimizer.param_groups:
        group["fused"] = True  # as on a GPU
    inputs = {name: item.to("meta") for name, item in batch(10).items()}
    with Operators() as operators:
        sum(model.loss_sums(**inputs)).backward()  # type: ignore[union-attr]
        clip_gradients(model.parameters(), 1.0)
        optimizer.step()
    with pytest.raises(RuntimeError, match="meta"):
        functional.relu(next(model.parameters())).sum().item()
    return operators.counts


def test_step_reads_nothing_from_its_device_and_gathers_no_heads(monkeypatch):
    plain = operators_of_a_step(0.1, monkeypatch)
    unpadded = operators_of_a_step(0.0, monkeypatch)
    gathers = "aten.index_select.default"
    # Three of a step are of whole vectors: unpadding and its gradient, padding. Of heads, a layer has four and their
    # gradients; the last one, whose queries are at selected positions, two.
    assert (plain[gathers], unpadded[gathers]) == (3 + 8 + 4, 3)
    assert unpadded["torch_attn._varlen_attn.default"] == unpadded["torch_attn._varlen_attn_backward.default"] == 2
    assert sum(unpadded.values()) < sum(plain.values())
