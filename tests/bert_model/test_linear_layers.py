"""Products on oneDNN are torch's own products, in values and gradients."""

import pytest
import torch
from torch.nn import functional

from bert_model.cross_entropy import cross_entropy_sum
from bert_model.linear import HAS_ONEDNN, Linear, linear, transposed_times, uses_onednn


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("leading", [(7,), (2, 5), (1, 1, 3), (0, 4)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_linear_layer_has_the_values_and_gradients_of_torch(leading: tuple[int, ...], has_bias: bool) -> None:
    found, expected = [], []
    for function, results in ((linear, found), (functional.linear, expected)):
        hidden, weight = numbers(*leading, 12).requires_grad_(), numbers(9, 12, seed=1).requires_grad_()
        bias = numbers(9, seed=2).requires_grad_() if has_bias else None
        output = function(hidden, weight, bias)
        (output * numbers(*leading, 9, seed=3)).sum().backward()
        results += [output, hidden.grad, weight.grad, *([bias.grad] if bias is not None else [])]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("shape", [(50, 40, 3), (50, 3, 40), (4, 30, 20)])
def test_the_gradient_of_a_weight_is_one_product_whichever_factor_is_turned(shape: tuple[int, int, int]) -> None:
    rows, outputs, inputs = shape
    left, right = numbers(rows, outputs), numbers(rows, inputs, seed=1)
    torch.testing.assert_close(transposed_times(left, right), left.t() @ right, atol=1e-5, rtol=1e-5)


def test_gradients_of_any_layout_are_taken() -> None:
    layer = Linear(6, 4)
    hidden = numbers(5, 6)
    layer(hidden).sum().backward()  # the gradient of a sum is one number, repeated by strides of 0
    assert layer.weight.grad is not None
    torch.testing.assert_close(layer.weight.grad, hidden.sum(0).expand(4, 6), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(layer(hidden.t().contiguous().t()), layer(hidden))


@pytest.mark.skipif(not HAS_ONEDNN, reason="this torch was built without oneDNN")
def test_onednn_computes_float32_on_the_cpu_and_nothing_else() -> None:
    assert uses_onednn(numbers(2, 3))
    assert not uses_onednn(numbers(2, 3).double())
    assert not uses_onednn(numbers(2, 3).bfloat16())
    assert not uses_onednn(numbers(2, 3).to("meta"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not uses_onednn(numbers(2, 3))
        assert linear(numbers(2, 3), numbers(4, 3)).dtype == torch.bfloat16


@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_the_sum_of_cross_entropies_has_the_value_and_gradients_of_torch(scale: float) -> None:
    labels = torch.tensor([3, 0, 10, 10, 7])
    found, expected = [], []
    for is_ours, results in ((True, found), (False, expected)):
        hidden, weight = (scale * numbers(5, 8)).requires_grad_(), numbers(11, 8, seed=1).requires_grad_()
        bias = numbers(11, seed=2).requires_grad_()
        if is_ours:
            loss = cross_entropy_sum(hidden, weight, bias, labels)
        else:
            loss = functional.cross_entropy(functional.linear(hidden, weight, bias), labels, reduction="sum")
        (loss / 3).backward()
        results += [loss, hidden.grad, weight.grad, bias.grad]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_a_poisoned_logit_poisons_the_sum() -> None:
    hidden = numbers(3, 8)
    hidden[1, 2] = float("nan")
    loss = cross_entropy_sum(hidden.requires_grad_(), numbers(11, 8), numbers(11), torch.tensor([1, 2, 3]))
    assert loss.isnan()


def test_without_predictions_the_sum_is_0() -> None:
    hidden = torch.empty(0, 8, requires_grad=True)
    assert cross_entropy_sum(hidden, numbers(11, 8), numbers(11), torch.empty(0, dtype=torch.long)).item() == 0
