"""Chains of linear layers and activations: models that are computed row by row."""

import copy
import operator
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

# Activations that map each number by itself, without parameters and without random draws.
ELEMENTWISE: tuple[type[nn.Module], ...] = (
    nn.Identity,
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.ELU,
    nn.SELU,
    nn.CELU,
    nn.GELU,
    nn.SiLU,
    nn.Mish,
    nn.Softplus,
    nn.Softsign,
    nn.Sigmoid,
    nn.LogSigmoid,
    nn.Tanh,
    nn.Tanhshrink,
    nn.Hardtanh,
    nn.Hardswish,
    nn.Hardsigmoid,
)


# The same as functions and methods.
FUNCTIONS: dict[Any, type[nn.Module]] = {
    **{functional.relu: nn.ReLU, torch.relu: nn.ReLU, "relu": nn.ReLU, functional.gelu: nn.GELU},
    **{functional.leaky_relu: nn.LeakyReLU, functional.elu: nn.ELU, functional.silu: nn.SiLU},
    **{functional.tanh: nn.Tanh, torch.tanh: nn.Tanh, "tanh": nn.Tanh},
    **{functional.sigmoid: nn.Sigmoid, torch.sigmoid: nn.Sigmoid, "sigmoid": nn.Sigmoid},
}

# What a class may ask of the shape of its inputs.
OF_SHAPE = ("size", getattr, operator.getitem)


def chain_layers(model: nn.Module) -> list[nn.Module] | None:
    """Return the layers of a chain of linear layers and activations, None for other models."""
    if type(model) is nn.Sequential:
        layers: list[nn.Module] = []
        for child in model:
            part = chain_layers(child)
            if part is None:
                return None
            layers += part
        return layers
    flat = type(model) is nn.Flatten and model.start_dim == 1 and model.end_dim == -1
    # The exact type, as a subclass may compute something else; and hooks may change the outputs.
    plain = type(model) in (nn.Linear, *ELEMENTWISE) and not (
        model._forward_hooks or model._forward_pre_hooks
    )
    if not flat and not plain:
        return None
    return [model]


def traced_layers(model: nn.Module) -> list[nn.Module] | None:
    """Return the layers of a class that computes a chain, None for other models.

    They are in the order of the model's parameters. What a reshaped tensor is of is not proved:
    whoever uses the layers compares them with the model.
    """
    if any(each._forward_hooks or each._forward_pre_hooks for each in model.modules()):
        return None
    try:
        # A copy, because a model may keep what it is traced with.
        last, *calls, end = fx.symbolic_trace(copy.deepcopy(model)).graph.nodes
    except Exception:  # code of a user, which may not be traceable
        return None
    layers = list[nn.Module]()
    for call in calls:
        if call.target in OF_SHAPE:
            continue
        if call.args[:1] != (last,):
            return None
        part = _layers_of(call, model)
        if part is None:
            return None
        layers += part
        last = call
    used = [id(parameter) for layer in layers for parameter in layer.parameters()]
    whole = end.args == (last,) and used == [*map(id, model.parameters())]
    return layers if whole else None


def _layers_of(call: fx.Node, model: nn.Module) -> list[nn.Module] | None:
    """Return the layers that a call is, None for a call that no chain has."""
    named = {name: value for name, value in call.kwargs.items() if name != "inplace"}
    others = [*call.args[1:], *named.values()]
    if call.op == "call_module":
        return chain_layers(model.get_submodule(str(call.target)))
    if call.target in FUNCTIONS:
        return [FUNCTIONS[call.target](**named)]
    flat = call.target in (torch.flatten, "flatten") and others == [1]
    flat |= call.target in ("view", "reshape") and len(others) == 2 and -1 in others
    return [nn.Flatten()] if flat else None
