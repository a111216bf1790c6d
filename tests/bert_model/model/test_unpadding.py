"""Packed sequences, whose attention is here on a slow CPU kernel, beside padded ones; recomputed blocks."""

import pytest
import torch
from four_sequences import losses_and_gradients, packed, padded
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from varlen_on_cpu import varlen_on_cpu

from bert_model.model import unpadding
from bert_model.model.bert import BertForPreTraining
from bert_model.model.config import BertConfig
from bert_model.model.initialization import new_model
from bert_model.model.unpadding import KeyValueInput, attend
from bert_model.training.gradients import compile_layers
from bert_model.training.optimizer import build_optimizer, clip_gradients
from bert_model.training.schedule import OptimizerConfig


def config(**changes):
    return BertConfig.from_preset(
        "tiny", **{"vocab_size": 90, "max_position_embeddings": 40, "attention_probs_dropout_prob": 0.0, **changes}
    )


@pytest.mark.parametrize("compiled", [False, True])
def test_packed_sequences_have_the_losses_and_gradients_of_padded_ones(compiled):
    model = new_model(BertForPreTraining, config(hidden_dropout_prob=0.0), seed=3).train()
    expected = losses_and_gradients(model, padded())
    if compiled:
        compile_layers(model, packed=True, backend="aot_eager", fullgraph=True)
    with varlen_on_cpu() as calls:
        results = losses_and_gradients(model, packed())
    assert calls == [(96, 2, 64)] * 2
    for one, other in zip(results, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("generation", "expected"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_kernel_is_that_of_newer_gpus(monkeypatch, generation, expected):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: generation)
    assert unpadding.supports_varlen(torch.device("cuda", 0)) is expected
    assert not unpadding.supports_varlen(torch.device("cpu"))


def test_padding_behind_the_tokens_is_not_seen():
    model = new_model(BertForPreTraining, config(hidden_dropout_prob=0.0), seed=3).train()
    expected = losses_and_gradients(model, padded())
    inputs = padded(10)
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
        results.append(losses_and_gradients(model, padded()))
    if not compiled:
        assert len(calls) == 3  # once, and twice
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


class Operators(TorchDispatchMode):
    """Record the operators of a device."""

    def __init__(self):
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def test_step_of_packed_sequences_reads_nothing_from_its_device():
    # On the meta device, which has no values: an operator that reads one raises.
    model = new_model(BertForPreTraining, config(), seed=3).train().to("meta")
    optimizer = build_optimizer(model, OptimizerConfig(), 1e-4)
    for group in optimizer.param_groups:
        group["fused"] = True  # as on a GPU
    with Operators() as operators:
        sum(model.loss_sums(**packed("meta"))).backward()  # type: ignore[union-attr]
        clip_gradients(model.parameters(), 1.0)
        optimizer.step()
    assert operators.names.count("torch_attn._varlen_attn.default") == 2
    assert operators.names.count("torch_attn._varlen_attn_backward.default") == 2
    with pytest.raises(RuntimeError, match="meta"):
        next(model.parameters()).sum().item()


@pytest.mark.parametrize(
    ("dtype", "trains", "length", "is_fused"),
    [
        (torch.bfloat16, True, 256, False),
        (torch.bfloat16, True, 257, True),
        (torch.bfloat16, False, 256, True),
        (torch.float32, True, 256, True),
    ],
)
def test_attention_of_a_cpu_is_fused_where_that_is_faster(dtype, trains, length, is_fused):
    generator = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(2, length, 64, generator=generator) for _ in range(3))
    source = KeyValueInput(query, mask=torch.arange(length)[None, None, None, :] < length - 3)
    expected = attend(query, key, value, source._replace(attentions=[]), 2, 0.0)
    own = [heads.to(dtype).requires_grad_() for heads in (query, key, value)]
    with torch.set_grad_enabled(trains), Operators() as operators:
        found = attend(*own, source, 2, 0.0)
    assert ("_scaled_dot_product_flash_attention_for_cpu" in "".join(operators.names)) is is_fused
    torch.testing.assert_close(found.float(), expected, atol=0.02 if dtype == torch.bfloat16 else 1e-5, rtol=0.02)
