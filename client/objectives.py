"""Transforms of the local loss that a server's method may ask for."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from fairbloom.errors import ReportableError
from fairbloom.protocol.terms import Terms

Transform = Callable[[Tensor], Tensor]


def transform_of(terms: Terms) -> Transform:
    """Return what the terms make of the mean loss of a minibatch, or of several, each by itself.

    Raises
    ------
    ValueError
        When the server asks for a transform that is not known here, or leaves its numbers out.
    """
    if not terms.loss_transform:
        return unchanged
    if terms.loss_transform != "propfair":
        raise ReportableError(f"loss-transform = {terms.loss_transform!r} is unknown: this client knows propfair")
    if terms.propfair_baseline is None or terms.propfair_epsilon is None:
        raise ReportableError("loss-transform = 'propfair' came without propfair-baseline or propfair-epsilon")
    return partial(propfair, baseline=terms.propfair_baseline, epsilon=terms.propfair_epsilon)


def propfair(loss: Tensor, baseline: float, epsilon: float) -> Tensor:
    """Return −log(M − f) of each mean loss, continued below M − f = ε by its tangent; M is `baseline`.

    Source: Zhang et al., Proportional Fairness in Federated Learning, TMLR 2023.
    """
    utility = baseline - loss
    tangent = -math.log(epsilon) - (utility - epsilon) / epsilon
    # Where the tangent is taken, the logarithm must still have a finite gradient, which is multiplied by zero.
    return torch.where(utility >= epsilon, -torch.log(utility.clamp(min=epsilon)), tangent)


def unchanged(loss: Tensor) -> Tensor:
    """Return the loss."""
    return loss
