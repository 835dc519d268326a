"""Transforms of the local loss that a server's method may ask for."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

Transform = Callable[[Tensor], Tensor]


def transform_of(told: Mapping[str, Any]) -> Transform:
    """Return what the server's config makes of the mean loss of a minibatch.

    Raises
    ------
    ValueError
        When the server asks for a transform that is not known here.
    """
    name = told.get("loss-transform")
    if name is None:
        return unchanged
    if name == "propfair":
        return partial(propfair, baseline=told["propfair-baseline"], epsilon=told["propfair-epsilon"])
    raise ValueError(f"loss-transform = {name!r} is unknown: this client knows propfair")


def propfair(loss: Tensor, baseline: float, epsilon: float) -> Tensor:
    """Return −log(M − f), continued below M − f = ε by its tangent; M is `baseline`.

    Source: Zhang et al., Proportional Fairness in Federated Learning, TMLR 2023.
    """
    utility = baseline - loss
    if utility >= epsilon:
        return -torch.log(utility)
    return -math.log(epsilon) - (utility - epsilon) / epsilon


def unchanged(loss: Tensor) -> Tensor:
    """Return the loss."""
    return loss
