"""Programs that compute one model with the parameters of many clients at once.

A client's parameters are a row of a matrix, its trainable arrays one after the other. A chain of linear layers and
activations is computed by batched products; any other model by torch.func.vmap, if it gives the same numbers that way
as by itself. What does not is named, with the reason, and its clients are computed one after the other.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from fairbloom.client.training import drawing_from, outputs_of
from fairbloom.tasks import Examples, Task

ELEMENTWISE: tuple[type[nn.Module], ...] = (
    *(nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU),
    *(nn.GELU, nn.SiLU, nn.Mish, nn.Softplus, nn.Softsign, nn.Sigmoid),
    *(nn.LogSigmoid, nn.Tanh, nn.Tanhshrink, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid),
)
"""Activations that map each number by itself, without parameters and without drawing."""

PROBED = 3
"""So many examples show whether a model gives the same numbers for several clients at once as by itself."""


class UnstackableError(Exception):
    """A model that cannot be computed for many clients at once; the message says why."""


class Program(Protocol):
    """One model with the parameters of many clients."""

    def __call__(self, weights: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """Return the outputs, shape (k, b, …), of k clients' models.

        Parameters
        ----------
        weights
            The trainable arrays in the model's order, each of shape (k, *shape).
        inputs
            b examples of each client, shape (k, b, …).
        """


class Chain:
    """Linear layers and activations, one after the other, by a batched product each."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        self._layers = tuple(layers)

    def __call__(self, weights: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """Return the outputs, shape (k, b, outputs); see Program."""
        left = iter(weights)
        x = inputs
        for layer in self._layers:
            if isinstance(layer, nn.Flatten):
                x = x.flatten(2)
            elif isinstance(layer, nn.Linear):
                weight = next(left).transpose(1, 2)
                x = torch.bmm(x, weight) if layer.bias is None else torch.baddbmm(next(left).unsqueeze(1), x, weight)
            else:
                x = layer(x)
        return x


class Mapped:
    """Any model whose operations PyTorch can carry over to many sets of parameters."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        def one(weights: Sequence[Tensor], inputs: Tensor) -> Tensor:
            outputs: Tensor = functional_call(model, dict(zip(names, weights, strict=True)), (inputs,))
            return outputs

        self._all = vmap(one, randomness="error")

    def __call__(self, weights: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """Return the outputs, shape (k, b, …); see Program."""
        outputs: Tensor = self._all(tuple(weights), inputs)
        return outputs


def program_of(model: nn.Module, task: Task, examples: Examples) -> Program:
    """Return how a model is computed for many clients.

    Parameters
    ----------
    model
        Of the task; it is left as it is.
    task
        Whose loss is taken.
    examples
        Of any client: some are tried where the model is no chain.

    Raises
    ------
    UnstackableError
        When the model, or the loss, cannot be computed for many clients at once.
    """
    _check_parameters(model)
    layers = _chained(model)
    program = Mapped(model, [name for name, _ in model.named_parameters()]) if layers is None else Chain(layers)
    buffers = {buffer: buffer.clone() for buffer in model.buffers()}
    try:
        _check_same(program, model, task, examples)
    except UnstackableError:
        raise
    except Exception as error:  # whatever PyTorch, or a user's model, raises on many clients
        words = " ".join(str(error).split())[:200]
        raise UnstackableError(f"PyTorch cannot map it over clients ({type(error).__name__}: {words})") from error
    finally:
        changed = [buffer for buffer, before in buffers.items() if not torch.equal(buffer, before)]
        for buffer in changed:
            buffer.copy_(buffers[buffer])
    if changed:
        raise UnstackableError("it changes buffers as it trains")
    return program


def _check_parameters(model: nn.Module) -> None:
    """Raise UnstackableError when a model has parts that several clients cannot have side by side."""
    if any(isinstance(module, _BatchNorm) for module in model.modules()):
        raise UnstackableError("its BatchNorm keeps statistics of each client")
    if any(isinstance(module, nn.LSTM) for module in model.modules()):
        raise UnstackableError("its LSTM is 20 times as slow over several clients at once")
    parameters = dict(model.named_parameters(remove_duplicate=False))
    if len(set(parameters.values())) < len(parameters):
        raise UnstackableError("several of its names are one parameter")
    if not all(parameter.requires_grad for parameter in parameters.values()):
        raise UnstackableError("some of its parameters are frozen")
    if len({parameter.dtype for parameter in parameters.values()}) > 1:
        raise UnstackableError("its parameters have several dtypes")


def _chained(model: nn.Module) -> list[nn.Module] | None:
    """Return the layers of a chain of linear layers and activations, None where a model is something else."""
    if type(model) is nn.Sequential:
        parts = [_chained(child) for child in model]
        return None if None in parts else [layer for part in parts for layer in part or ()]
    flat = type(model) is nn.Flatten and model.start_dim == 1 and model.end_dim == -1
    # A module's own class may be a subclass that does something else, and hooks may change what it does.
    plain = type(model) in (nn.Linear, *ELEMENTWISE) and not (model._forward_hooks or model._forward_pre_hooks)
    return [model] if flat or plain else None


def _check_same(program: Program, model: nn.Module, task: Task, examples: Examples) -> None:
    """Raise UnstackableError when two clients' losses or gradients are others at once than one by one."""
    count = min(PROBED, len(examples))
    inputs, targets = examples[slice(0, count)]
    _check_same_in_evaluation(model, inputs)
    _check_each_by_itself(model, task, inputs, targets)
    losses = task.loss(outputs_of(model, inputs), targets)
    gradients = torch.autograd.grad(losses.mean(), tuple(model.parameters()), allow_unused=True)
    expected = losses.detach()
    if losses.shape != (count,):
        raise UnstackableError(f"the task's loss has shape {tuple(losses.shape)} for {count} examples")
    if None in gradients:
        raise UnstackableError("the loss does not touch some of its parameters")
    weights = [torch.stack([p.detach(), p.detach()]).requires_grad_() for p in model.parameters()]
    outputs = program(weights, torch.stack([inputs, inputs.roll(1, 0)]))
    found = task.loss(outputs.flatten(0, 1), torch.cat([targets, targets.roll(1, 0)]))
    ours = torch.autograd.grad(found[count:].mean(), weights)
    same = torch.allclose(found[:count], expected, rtol=1e-3, atol=1e-5)
    same &= torch.allclose(found[count:], expected.roll(1, 0), rtol=1e-3, atol=1e-5)
    for gradient, both in zip(gradients, ours, strict=True):
        same &= torch.allclose(both[1], gradient, rtol=1e-2, atol=1e-5) and not bool(both[0].any())
    if not same:
        raise UnstackableError("its loss or gradient is another for several clients at once than for each by itself")


@torch.no_grad()
def _check_each_by_itself(model: nn.Module, task: Task, inputs: Tensor, targets: Tensor) -> None:
    """Raise UnstackableError when an example's output or loss depends on the others of its batch."""
    outputs, losses = [], []
    for count in (len(inputs), max(1, len(inputs) - 1)):  # an odd and an even number
        outputs.append(outputs_of(model, inputs[:count]))
        losses.append(task.loss(outputs[-1], targets[:count]))
    few = len(outputs[1])
    same = torch.allclose(outputs[0][:few], outputs[1], rtol=1e-3, atol=1e-5)
    if not (same and torch.allclose(losses[0][:few], losses[1], rtol=1e-3, atol=1e-5)):
        raise UnstackableError("what it makes of an example depends on the others of its batch")


@torch.no_grad()
def _check_same_in_evaluation(model: nn.Module, inputs: Tensor) -> None:
    """Raise UnstackableError when a model draws, or does something else in training than in evaluation."""
    outputs = []
    for training, seed in ((False, 0), (False, 1), (True, 0)):
        model.train(training)
        with drawing_from(seed, inputs.device):
            outputs.append(outputs_of(model, inputs))
    if not all(torch.equal(outputs[0], other) for other in outputs[1:]):
        raise UnstackableError("it draws, as dropout does, or computes otherwise in training than in evaluation")
