"""oneDNN equals torch in values and gradients, and is chosen per model size where it is faster."""

import pytest
import torch

from bert_model.model import cpu_kernels
from bert_model.model.config import BertConfig
from bert_model.model.cpu_kernels import (
    Linear,
    cpu_settings,
    fast_dropout,
    has_onednn_linear,
    linear,
    onednn_choice,
    onednn_shapes,
    processor,
)

CONFIG = BertConfig.from_preset("tiny", vocab_size=60)
SHAPES = [(128, 128), (128, 512), (512, 128), (60, 128)]


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The weight shapes of the layers that oneDNN computes."""
    found: list[tuple[int, ...]] = []
    computed = cpu_kernels._onednn_linear

    def counted(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        found.append(tuple(weight.shape))
        return computed(hidden, weight, bias)

    monkeypatch.setattr(cpu_kernels, "_onednn_linear", counted)
    return found


@pytest.mark.skipif(not has_onednn_linear(), reason="this torch was built without oneDNN")
@pytest.mark.parametrize("leading", [(7,), (2, 5), (1, 1, 3)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_onednn_equals_torch_in_values_and_gradients(calls, leading: tuple[int, ...], has_bias: bool) -> None:
    results: list[list[torch.Tensor]] = []
    for shapes in ([(9, 12)], []):
        hidden, weight = numbers(*leading, 12).requires_grad_(), numbers(9, 12, seed=1).requires_grad_()
        bias = numbers(9, seed=2).requires_grad_() if has_bias else None
        with cpu_settings(onednn=shapes):
            output = linear(hidden, weight, bias)
            (output * numbers(*leading, 9, seed=3)).sum().backward()
        results.append([output, *(item.grad for item in (hidden, weight, bias) if item is not None)])
    assert calls == [(9, 12)]
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


@pytest.mark.skipif(not has_onednn_linear(), reason="this torch was built without oneDNN")
@pytest.mark.parametrize("shape", [(50, 40, 3), (50, 3, 40), (4, 30, 20)])
def test_weight_gradient_is_equal_for_either_transposed_factor(shape: tuple[int, int, int]) -> None:
    rows, outputs, inputs = shape
    left, right = numbers(rows, outputs), numbers(rows, inputs, seed=1)
    torch.testing.assert_close(cpu_kernels._matmul_tn(left, right), left.t() @ right, atol=1e-5, rtol=1e-5)


def test_gradients_of_any_memory_layout_are_accepted() -> None:
    layer = Linear(6, 4)
    hidden = numbers(5, 6)
    with cpu_settings(onednn=[(4, 6)]):
        layer(hidden).sum().backward()  # the gradient of a sum is one number, repeated by strides of 0
        assert layer.weight.grad is not None
        torch.testing.assert_close(layer.weight.grad, hidden.sum(0).expand(4, 6), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(layer(hidden.t().contiguous().t()), layer(hidden))


def test_onednn_is_limited_to_chosen_float32_shapes_on_cpu(calls) -> None:
    with cpu_settings(onednn=[(4, 3)]):
        linear(numbers(2, 3), numbers(5, 3))
        linear(numbers(2, 3).double(), numbers(4, 3).double())
        linear(numbers(2, 3).bfloat16(), numbers(4, 3).bfloat16())
        linear(numbers(2, 3).to("meta"), numbers(4, 3).to("meta"))
        assert linear(numbers(0, 3), numbers(4, 3)).shape == (0, 4)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert linear(numbers(2, 3), numbers(4, 3)).dtype == torch.bfloat16
        assert calls == []
    linear(numbers(2, 3), numbers(4, 3))
    assert calls == []


def test_cpu_settings_are_restored_after_an_error() -> None:
    threads = torch.get_num_threads()

    def fails() -> None:
        with cpu_settings(onednn=[[4, 3]], num_threads=threads + 1):
            assert (onednn_shapes(), torch.get_num_threads()) == ([[4, 3]], threads + 1)
            raise ZeroDivisionError

    pytest.raises(ZeroDivisionError, fails)
    assert (onednn_shapes(), torch.get_num_threads()) == ([], threads)


@pytest.mark.skipif(not has_onednn_linear(), reason="this torch was built without oneDNN")
@pytest.mark.parametrize(
    ("faster", "by_onednn", "chosen"),
    [
        (SHAPES, 0.5, SHAPES),
        (SHAPES, 0.95, []),  # five percent saved
        (SHAPES, 1.5, []),
        (SHAPES[:1], 0.2, SHAPES),  # the largest share of the products: all shapes go together
        (SHAPES[3:], 0.5, []),  # 15 % of one product of 12.15 a token
    ],
)
def test_onednn_is_chosen_if_it_saves_a_tenth_of_product_time(monkeypatch, faster, by_onednn, chosen) -> None:
    monkeypatch.setattr(
        cpu_kernels, "_time_products", lambda shape, rows: (rows, rows * (by_onednn if shape in faster else 1.2))
    )
    cpu_kernels._choose.cache_clear()
    assert sorted(onednn_choice(CONFIG)) == sorted(chosen)
    cpu_kernels._choose.cache_clear()


@pytest.mark.skipif(not has_onednn_linear(), reason="this torch was built without oneDNN")
def test_kernel_probe_leaves_generator_and_settings_unchanged() -> None:
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    cpu_kernels._choose.cache_clear()
    with torch.inference_mode():  # as a prediction may ask
        assert set(onednn_choice(CONFIG)) <= set(SHAPES)
    assert torch.equal(torch.get_rng_state(), state)
    assert (onednn_shapes(), torch.get_num_threads()) == ([], threads)


def without_arguments() -> torch.Tensor:
    return torch.zeros(1)


def unknown_operator(*_: object) -> torch.Tensor:
    raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute '_linear_pointwise'")


def without_bias(left: torch.Tensor, right: torch.Tensor, *_: object) -> torch.Tensor:
    return left @ right.t()


@pytest.mark.parametrize("kernel", [unknown_operator, without_arguments, without_bias])
def test_private_kernel_missing_or_changed_falls_back_to_torch(monkeypatch, request, calls, kernel) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", kernel)
    has_onednn_linear.cache_clear()
    request.addfinalizer(has_onednn_linear.cache_clear)
    assert onednn_choice(CONFIG) == ()
    with cpu_settings(onednn=[(4, 3)]):  # as a checkpoint of another machine may ask
        assert linear(numbers(2, 3), numbers(4, 3)).shape == (2, 4)
    assert calls == []


def test_gpu_has_no_onednn_choice() -> None:
    assert onednn_choice(CONFIG, device="cuda") == ()


def test_processor_name_includes_the_instruction_set() -> None:
    assert processor().endswith(f"({torch.backends.cpu.get_cpu_capability()})")


def test_dropout_without_effect_returns_its_input() -> None:
    hidden = numbers(3, 4)
    assert fast_dropout(hidden, 0.0, True) is hidden
    assert fast_dropout(hidden, 0.5, False) is hidden
