"""Optimizers of BERT: Adam with and without bias correction (google's optimization.py, paper appendix A.2).

The functions torch._foreach_… apply one operation to a list of tensors in few kernel launches. They are documented
(https://docs.pytorch.org/docs/stable/torch.html#foreach-operations), but as beta.
"""

import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from bert_model.training.gradients import full_tensor, shard_like
from bert_model.training.schedule import OptimizerConfig
from bert_pipeline.errors import ArtifactError

# Adam's bias corrections are 1 - beta ** step: with a step this large both are exactly 1 in double precision, so
# torch's fused AdamW computes BERT's update, which has none. The step stays: 1e9 + 1 is 1e9 in float32.
UNCORRECTED_STEP = 1e9


class Adam(AdamW):
    """torch's AdamW with decoupled weight decay, with or without bias correction; it does not import torch's compiler.

    torch wraps these methods to exclude them from compilation, and the wrappers import the compiler, which takes as
    long as to import torch itself. Only models are compiled here, so the wrappers are removed. `inspect.unwrap` returns
    a method without wrappers unchanged.
    """

    add_param_group = inspect.unwrap(Optimizer.add_param_group)
    zero_grad = inspect.unwrap(Optimizer.zero_grad)
    step = torch.no_grad()(inspect.unwrap(AdamW.step))

    def __init__(self, groups: Iterable[dict[str, Any]], *, corrects_bias: bool, **settings: Any) -> None:
        super().__init__(groups, **settings)
        self.corrects_bias = corrects_bias
        if corrects_bias:  # torch creates the state in the first update, with a step of 0
            return
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter] = {
                    "step": torch.tensor(UNCORRECTED_STEP, dtype=torch.float32, device=parameter.device),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }


def is_decayed(name: str) -> bool:
    """Tell whether a parameter has weight decay: all but biases and layer normalization."""
    module, _, last = name.rpartition(".")
    return not (last.startswith("bias") or module.lower().endswith("norm"))


def build_optimizer(model: nn.Module, config: OptimizerConfig, learning_rate: float) -> Optimizer:
    """Build the optimizer of a model's trainable parameters, in two groups: with and without weight decay."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    groups = [
        {"params": [parameter for name, parameter in named if is_decayed(name)], "weight_decay": config.weight_decay},
        {"params": [parameter for name, parameter in named if not is_decayed(name)], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return Adam(
        groups,
        corrects_bias=config.name == "adamw",
        lr=learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.epsilon,
        # torch has the fused kernel for these devices.
        fused=all(parameter.device.type in ("cpu", "cuda") for _, parameter in named),
    )


def set_learning_rate(optimizer: Optimizer, learning_rate: float) -> None:
    """Set the learning rate of every group."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
    """Scale the gradients down to a global norm, 0 for no limit; return the norm before clipping, a scalar."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = full_tensor(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients))))
    if max_norm:  # as google's code, without the epsilon of torch's clip_grad_norm_
        torch._foreach_mul_(gradients, max_norm / norm.clamp(min=max_norm))
    return norm


def optimizer_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's state as tensors named "<state>:<parameter>"."""
    tensors = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{key}:{name}"] = value
    return tensors


@torch.no_grad()
def load_optimizer_tensors(model: nn.Module, optimizer: Optimizer, tensors: dict[str, Tensor]) -> None:
    """Restore the result of `optimizer_tensors`; raise ArtifactError if tensors are missing or unexpected."""
    if not tensors and not optimizer.state:  # saved before the first update, in which torch's Adam creates its state
        return
    remaining = dict(tensors)
    names = {parameter: name for name, parameter in model.named_parameters()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state[parameter]
            for key in ("step", "exp_avg", "exp_avg_sq"):
                stored = remaining.pop(f"{key}:{names[parameter]}", None)
                if stored is None or (key != "step" and stored.shape != parameter.shape):
                    actual = "nothing" if stored is None else f"shape {tuple(stored.shape)}"
                    raise ArtifactError(
                        f"optimizer state: {key} of {names[parameter]}: found {actual}, expected shape "
                        f"{tuple(parameter.shape)}; it belongs to another model: give a checkpoint of this one"
                    )
                if key == "step":  # one number, never sharded
                    device = state[key].device if key in state else parameter.device
                    state[key] = stored.to(device, copy=True)
                else:
                    state[key] = shard_like(stored, parameter)
            # The stored steps may be those of an optimizer that corrects.
            if isinstance(optimizer, Adam) and not optimizer.corrects_bias:
                state["step"].fill_(UNCORRECTED_STEP)
    # A head that was trained then and is not now has a state, which is left out.
    if unknown := sorted(key for key in remaining if key.partition(":")[2] not in names.values()):
        raise ArtifactError(
            f"optimizer state: found tensors that the model does not have ({', '.join(unknown[:5])}); give a "
            "checkpoint of this model"
        )
