"""Packed sequences, whose attention is here on a slow CPU kernel, beside padded ones; recomputed blocks."""

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from varlen_on_cpu import varlen_on_cpu

from bert_model.model import unpadding
from bert_model.model.bert import BertForPreTraining
from bert_model.model.config import BertConfig
from bert_model.model.initialization import new_model
from bert_model.model.unpadding import PackedRows
from bert_model.training.gradients import compile_layers
from bert_model.training.optimizer import build_optimizer, clip_gradients
from bert_model.training.schedule import OptimizerConfig

LENGTHS = torch.tensor([24, 17, 8, 21])


def config(**changes):
    return BertConfig.from_preset(
        "tiny", **{"vocab_size": 90, "max_position_embeddings": 40, "attention_probs_dropout_prob": 0.0, **changes}
    )


def padded(num_padding=0):
    """Four sequences, with `num_padding` rows of padding behind all tokens."""
    generator = torch.Generator().manual_seed(1)
    mask = torch.arange(24) < LENGTHS.unsqueeze(1)
    padding = (~mask).flatten().nonzero().squeeze(1)[:num_padding]
    return {
        "input_ids": torch.randint(5, 90, (4, 24), generator=generator) * mask,
        "attention_mask": mask,
        "token_type_ids": (torch.arange(24) >= 9).long().expand(4, 24) * mask,
        "token_indices": torch.cat([mask.flatten().nonzero().squeeze(1), padding]),
        "masked_lm_positions": torch.tensor([[1, 5, 7], [2, 3, 16], [1, 2, 0], [4, 9, 20]]),
        "prediction_indices": torch.tensor([0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11]),
        "labels": torch.tensor([[11, 12, 13], [14, 15, 16], [17, 18, -100], [19, 20, 21]]),
        "next_sentence_label": torch.tensor([0, 1, 1, 0]),
    }


def packed(device="cpu"):
    """The same sequences in 96 rows: three dummies, of which one is empty, and five places without a prediction."""
    whole = padded()
    lengths = torch.cat([LENGTHS, torch.tensor([24, 2, 0])])
    starts = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    tokens = {name: whole[name].flatten()[whole["token_indices"]] for name in ("input_ids", "token_type_ids")}
    predicted = (starts[:4, None] + whole["masked_lm_positions"]).flatten()[whole["prediction_indices"]]
    rows = PackedRows(
        **{name: torch.nn.functional.pad(item, (0, 26)).to(device) for name, item in tokens.items()},
        position_ids=torch.cat([torch.arange(int(length)) for length in lengths]).to(device),
        starts=starts.int().to(device),
        read_rows=torch.cat([starts[:-1].clamp(max=95), predicted, torch.arange(5)]).to(device),
        max_length=24,
    )
    labels = torch.cat([whole["labels"].flatten()[whole["prediction_indices"]], torch.full((5,), -100)])
    following = torch.cat([whole["next_sentence_label"], torch.full((3,), -100)])
    return {"packed": rows, "labels": labels.to(device), "next_sentence_label": following.to(device)}


def losses_and_gradients(model, inputs):
    losses = model.loss_sums(**inputs)
    model.zero_grad()
    sum(losses).backward()
    return [*losses, *(parameter.grad.clone() for parameter in model.parameters())]  # type: ignore[union-attr]


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
