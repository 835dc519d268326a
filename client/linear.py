"""A gradient step of a linear classifier without autograd, which is slow for small models."""

import inspect
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fairbloom.tasks import Examples, Task
from fairbloom.tasks.inputs import Inputs, tensors_of

from .work import Kind, LocalWork, fields_of, step_fields

# The fields of local work that this step supports.
SUPPORTED = fields_of(Kind.LINEAR)

# Takes a step of SGD in place, on the mean loss of a batch of inputs and targets.
TakeStep = Callable[[Inputs, Tensor], None]


def linear_step(
    model: nn.Module,
    task: Task,
    work: LocalWork,
    received: list[Tensor],
    velocity: list[Tensor],
    examples: Examples | None = None,
) -> TakeStep | None:
    """Return a step of multinomial logistic regression; None for any other model, loss or work.

    The numbers are those of autograd and `fairbloom.client.work.descend`, up to rounding. The pull
    goes to `received`, the weight and bias. `velocity` has their velocities, and is changed in
    place. `examples` are all of them, if known; the step supports neither class probabilities as
    targets nor the targets that PyTorch's cross-entropy ignores.
    """
    if not step_fields(work) <= SUPPORTED:
        return None
    layer = _layer_of(model)
    loss = inspect.unwrap(task.loss)  # a user's own loss is checked by a function around it
    if layer is None or not isinstance(loss, partial):
        return None
    if loss.func is not cross_entropy or loss.args or loss.keywords != {"reduction": "none"}:
        return None
    if examples is not None:
        if examples.targets.dtype != torch.int64 or examples.targets.dim() != 1:
            return None
        least, most = examples.target_range
        if not 0 <= least <= most < layer.out_features:
            return None
    weight = layer.weight
    bias = layer.bias
    transposed = layer.weight.t()
    rate = work.learning_rate
    decay = work.weight_decay
    pull = work.pull
    classes = torch.eye(layer.out_features, dtype=weight.dtype, device=weight.device)

    @torch.no_grad()
    def step(of: Inputs, targets: Tensor) -> None:
        (tensor,) = tensors_of(of)
        inputs = tensor.flatten(1)
        slope = (
            torch.addmm(bias, inputs, transposed)
            .log_softmax(1)
            .exp_()
            .sub_(classes.index_select(0, targets))
        )
        share = 1.0 / len(inputs)
        if not velocity:
            if decay or pull:
                torch._foreach_mul_([weight, bias], 1.0 - rate * (decay + pull))
            if pull:
                torch._foreach_add_([weight, bias], received, alpha=rate * pull)
            weight.addmm_(slope.t(), inputs, alpha=-rate * share)
            bias.sub_(slope.sum(0), alpha=rate * share)
            return
        velocity[0].addmm_(slope.t(), inputs, beta=work.momentum, alpha=share)
        velocity[1].mul_(work.momentum).add_(slope.sum(0), alpha=share)
        if decay or pull:
            torch._foreach_add_(velocity, [weight, bias], alpha=decay + pull)
        if pull:
            torch._foreach_add_(velocity, received, alpha=-pull)
        torch._foreach_add_([weight, bias], velocity, alpha=-rate)

    return step


def _layer_of(model: nn.Module) -> nn.Linear | None:
    *before, last = list(model) if type(model) is nn.Sequential else [model]
    flat = all(
        type(each) is nn.Flatten and (each.start_dim, each.end_dim) == (1, -1) for each in before
    )
    hooked = any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    if not flat or hooked or type(last) is not nn.Linear or last.bias is None:
        return None
    return last if last.weight.requires_grad and last.bias.requires_grad else None
