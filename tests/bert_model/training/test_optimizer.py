"""The optimizers compute the updates of the papers."""

import math

import pytest
import torch
from torch import nn

from bert_model.model.bert import BertForPreTraining
from bert_model.model.config import BertConfig
from bert_model.model.initialization import new_model
from bert_model.training.optimizer import (
    build_optimizer,
    clip_gradients,
    is_decayed,
    load_optimizer_tensors,
    optimizer_tensors,
    set_learning_rate,
)
from bert_model.training.schedule import OptimizerConfig
from bert_pipeline.errors import ArtifactError


class Small(nn.Module):
    """One parameter with weight decay, and three without."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.dense = nn.Linear(5, 3)
        self.LayerNorm = nn.LayerNorm(3)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))


def gradients(step, model):
    generator = torch.Generator().manual_seed(100 + step)
    return {name: torch.randn(p.shape, generator=generator) for name, p in model.named_parameters()}


def update(model, optimizer, step):
    for name, gradient in gradients(step, model).items():
        model.get_parameter(name).grad = gradient
    optimizer.step()


def reference(kind, steps, rate):
    """The update rules written out in double precision, one parameter at a time."""
    model = Small()
    values = {name: p.detach().double() for name, p in model.named_parameters()}
    means = {name: torch.zeros_like(value) for name, value in values.items()}
    squares = {name: torch.zeros_like(value) for name, value in values.items()}
    for step in range(1, steps + 1):
        for name, gradient in gradients(step, model).items():
            decay = 0.01 if name == "dense.weight" else 0.0
            gradient = gradient.double()
            means[name] = 0.9 * means[name] + 0.1 * gradient
            squares[name] = 0.999 * squares[name] + 0.001 * gradient**2
            mean, square = means[name], squares[name]
            if kind != "bert_adam":
                mean, square = mean / (1 - 0.9**step), square / (1 - 0.999**step)
            update = mean / (square.sqrt() + 1e-6) + decay * values[name]
            values[name] = values[name] - rate * update
    return values


@pytest.mark.parametrize("kind", ["bert_adam", "adamw"])
def test_ten_steps_equal_the_reference_update_rule(kind):
    model = Small()
    optimizer = build_optimizer(model, OptimizerConfig(name=kind), learning_rate=1.0)
    set_learning_rate(optimizer, 0.01)
    for step in range(1, 11):
        update(model, optimizer, step)
    for name, expected in reference(kind, 10, 0.01).items():
        torch.testing.assert_close(model.get_parameter(name).double(), expected, atol=2e-6, rtol=2e-6)


def test_biases_and_layer_normalization_have_no_weight_decay():
    model = new_model(BertForPreTraining, BertConfig.from_preset("tiny", vocab_size=60), seed=0)
    decayed = {name for name, _ in model.named_parameters() if is_decayed(name)}
    assert decayed == {name for name, p in model.named_parameters() if p.dim() == 2}
    optimizer = build_optimizer(model, OptimizerConfig(), 1e-3)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.01, 0.0]
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(model.parameters()))


@pytest.mark.parametrize(("largest", "scale"), [(1.0, 1 / 5), (10.0, 1.0), (0.0, 1.0)])
def test_clipping_scales_to_global_norm_and_returns_previous_norm(largest, scale):
    one, two = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1))
    one.grad, two.grad = torch.tensor([3.0, 0.0]), torch.tensor([4.0])
    assert clip_gradients([one, two], largest).item() == pytest.approx(5.0)
    assert one.grad.tolist() == pytest.approx([3.0 * scale, 0.0])
    assert two.grad.tolist() == pytest.approx([4.0 * scale])


def test_norm_of_nan_gradient_is_not_finite():
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([1.0, math.nan])
    assert not math.isfinite(clip_gradients([parameter], 0.0).item())


@pytest.mark.parametrize("kind", ["bert_adam", "adamw"])
def test_restored_optimizer_continues_bit_for_bit(kind):
    model = Small()
    optimizer = build_optimizer(model, OptimizerConfig(name=kind), 0.01)
    for step in range(3):
        update(model, optimizer, step)
    other = Small()
    other.load_state_dict(model.state_dict())
    restored = build_optimizer(other, OptimizerConfig(name=kind), 0.01)
    tensors = {name: tensor.clone() for name, tensor in optimizer_tensors(model, optimizer).items()}
    load_optimizer_tensors(other, restored, tensors)
    for step in range(3, 6):
        update(model, optimizer, step)
        update(other, restored, step)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, other.get_parameter(name))


@pytest.mark.parametrize("kind", ["bert_adam", "adamw"])
def test_optimizer_is_restored_from_before_its_first_update(kind):
    model = Small()
    optimizer = build_optimizer(model, OptimizerConfig(name=kind), 0.01)
    load_optimizer_tensors(model, optimizer, dict(optimizer_tensors(model, optimizer)))
    # An optimizer that has a state is not restored from nothing.
    update(model, optimizer, 0)
    with pytest.raises(ArtifactError, match=r"found nothing, expected shape \("):
        load_optimizer_tensors(model, optimizer, {})


def test_bert_adam_ignores_the_restored_step_of_adamw():
    model = Small()
    stored = build_optimizer(model, OptimizerConfig(name="adamw"), 0.01)
    update(model, stored, 1)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    state = {name: tensor.clone() for name, tensor in optimizer_tensors(model, stored).items()}
    optimizer = build_optimizer(model, OptimizerConfig(name="bert_adam", weight_decay=0.0, epsilon=1e-6), 0.01)
    load_optimizer_tensors(model, optimizer, state)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        mean, square = 0.9 * state[f"exp_avg:{name}"], 0.999 * state[f"exp_avg_sq:{name}"]
        torch.testing.assert_close(parameter, before[name] - 0.01 * mean / (square.sqrt() + 1e-6))


def test_state_of_a_head_that_is_not_trained_any_more_is_left_out():
    model = Small()
    tensors = optimizer_tensors(model, build_optimizer(model, OptimizerConfig(), 0.01))
    model.LayerNorm.requires_grad_(False)
    optimizer = build_optimizer(model, OptimizerConfig(), 0.01)
    load_optimizer_tensors(model, optimizer, tensors)
    assert {name for name in tensors if "dense" in name} == set(optimizer_tensors(model, optimizer))


def test_optimizer_state_of_another_model_is_refused():
    model = Small()
    optimizer = build_optimizer(model, OptimizerConfig(), 0.01)
    tensors = optimizer_tensors(model, optimizer)
    lacking = {name: tensor for name, tensor in tensors.items() if name != "exp_avg:dense.bias"}
    with pytest.raises(ArtifactError, match=r"exp_avg of dense\.bias: found nothing, expected shape \(3,\)"):
        load_optimizer_tensors(model, optimizer, lacking)
    with pytest.raises(ArtifactError, match=r"does not have \(exp_avg:more\); give a checkpoint"):
        load_optimizer_tensors(model, optimizer, tensors | {"exp_avg:more": torch.zeros(1)})
