"""Kernels equal torch in values and gradients, and oneDNN computes what processor and width of a layer decide."""

import pytest
import torch
from torch.nn import functional

from bert_model.model import cpu_kernels
from bert_model.model.cpu_kernels import (
    ONEDNN_VARIABLE,
    Linear,
    fast_dropout,
    linear,
    onednn_width,
    processor,
    summed_cross_entropy,
)
from bert_pipeline.errors import ConfigurationError

needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN")


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def force(monkeypatch):
    """Return a function that sets the variable by which oneDNN is chosen."""

    def set_variable(value):
        monkeypatch.setenv(ONEDNN_VARIABLE, value)
        onednn_width.cache_clear()

    yield set_variable
    onednn_width.cache_clear()


@pytest.fixture
def calls(monkeypatch):
    """The weight shapes of the layers that oneDNN computes."""
    found: list[tuple[int, ...]] = []
    computed = cpu_kernels._onednn_linear

    def counted(hidden, weight, bias=None):
        found.append(tuple(weight.shape))
        return computed(hidden, weight, bias)

    monkeypatch.setattr(cpu_kernels, "_onednn_linear", counted)
    return found


@needs_onednn
@pytest.mark.parametrize("leading", [(7,), (2, 5), (1, 1, 3)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_onednn_equals_torch_in_values_and_gradients(calls, force, leading, has_bias):
    results: list[list[torch.Tensor]] = []
    for value in "10":
        force(value)
        hidden, weight = numbers(*leading, 12).requires_grad_(), numbers(9, 12, seed=1).requires_grad_()
        bias = numbers(9, seed=2).requires_grad_() if has_bias else None
        output = linear(hidden, weight, bias)
        (output * numbers(*leading, 9, seed=3)).sum().backward()
        results.append([output, *(item.grad for item in (hidden, weight, bias) if item is not None)])
    assert calls == [(9, 12)]
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


@needs_onednn
@pytest.mark.parametrize("shape", [(50, 40, 3), (50, 3, 40), (4, 30, 20)])
def test_weight_gradient_is_equal_for_either_transposed_factor(shape):
    rows, outputs, inputs = shape
    left, right = numbers(rows, outputs), numbers(rows, inputs, seed=1)
    torch.testing.assert_close(cpu_kernels._matmul_tn(left, right), left.t() @ right, atol=1e-5, rtol=1e-5)


def test_gradients_of_any_memory_layout_are_accepted(force):
    force("1")
    layer = Linear(6, 4)
    hidden = numbers(5, 6)
    layer(hidden).sum().backward()  # the gradient of a sum is one number, repeated by strides of 0
    assert layer.weight.grad is not None
    torch.testing.assert_close(layer.weight.grad, hidden.sum(0).expand(4, 6), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(layer(hidden.t().contiguous().t()), layer(hidden))


def test_onednn_is_limited_to_wide_float32_layers_on_cpu(calls, force, monkeypatch):
    force("1")
    monkeypatch.setattr(cpu_kernels, "onednn_width", lambda: 4)
    linear(numbers(2, 3), numbers(9, 3))
    linear(numbers(2, 9), numbers(3, 9))
    linear(numbers(2, 4).double(), numbers(4, 4).double())
    linear(numbers(2, 4).bfloat16(), numbers(4, 4).bfloat16())
    linear(numbers(2, 4).to("meta"), numbers(4, 4).to("meta"))
    assert linear(numbers(0, 4), numbers(4, 4)).shape == (0, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert linear(numbers(2, 4), numbers(4, 4)).dtype == torch.bfloat16
    assert calls == []


@needs_onednn
@pytest.mark.parametrize(
    ("info", "capability", "width"),
    [
        ({"vendor_id": "AuthenticAMD", "cpu family": "26"}, "AVX512", 64),
        ({"vendor_id": "AuthenticAMD", "cpu family": "25"}, "AVX512", 768),
        ({"vendor_id": "AuthenticAMD", "cpu family": "25"}, "AVX2", None),
        ({"vendor_id": "GenuineIntel", "cpu family": "6"}, "AVX512", None),
        ({}, "DEFAULT", None),
    ],
)
def test_processor_decides_how_wide_layers_on_onednn_are(force, monkeypatch, info, capability, width):
    monkeypatch.setattr(cpu_kernels, "_cpu_info", lambda key: info.get(key, ""))
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    for value, expected in (("", width), ("0", None), ("1", 1)):
        force(value)
        assert onednn_width() == expected


def test_other_value_of_the_variable_is_refused(force):
    force("yes")
    with pytest.raises(ConfigurationError, match="BERT_ONEDNN: found 'yes', expected 0, 1 or nothing"):
        onednn_width()


def test_processor_name_includes_the_instruction_set():
    assert processor().endswith(f"({torch.backends.cpu.get_cpu_capability()})")


def test_dropout_without_effect_returns_its_input():
    hidden = numbers(3, 4)
    assert fast_dropout(hidden, 0.0, True) is hidden
    assert fast_dropout(hidden, 0.5, False) is hidden


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "scale"), [(0, 1), (1, 1), (77, 3), (64, 500)])
def test_summed_cross_entropy_equals_torch(dtype, rows, scale):
    labels = torch.randint(0, 301, (rows,), generator=torch.Generator().manual_seed(1))
    labels[3::5] = -100
    losses, gradients = [], []
    for compute in (
        summed_cross_entropy,
        lambda logits, labels: functional.cross_entropy(logits.float(), labels, reduction="sum"),
    ):
        logits = (scale * numbers(rows, 301)).to(dtype).requires_grad_()
        loss = compute(logits, labels)
        (loss / 7).backward()
        losses.append(loss)
        gradients.append(logits.grad)
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-6, atol=0)
    assert losses[0].dtype == torch.float32
    torch.testing.assert_close(gradients[0], gradients[1], rtol=2**-8 if dtype == torch.bfloat16 else 1e-5, atol=1e-8)
