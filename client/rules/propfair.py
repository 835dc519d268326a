"""PropFair's client half: a transform of the loss."""

import math

import torch
from torch import Tensor

from fairbloom.errors import ReportableError
from fairbloom.protocol.terms import LOSS_TRANSFORM, Terms

from .base import Rule


class PropFairLoss(Rule):
    """Minimises −log(M − f) instead of each mean loss f."""

    reads = LOSS_TRANSFORM

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms)
        if terms.loss_transform != "propfair":
            raise ReportableError(f"{self} is unknown: this client knows propfair")
        if terms.propfair_baseline is None or terms.propfair_epsilon is None:
            raise ReportableError(f"{self} came without propfair-baseline or propfair-epsilon")
        self._baseline = terms.propfair_baseline
        self._epsilon = terms.propfair_epsilon

    def loss(self, loss: Tensor) -> Tensor:
        """Return −log(M − f)."""
        return propfair(loss, self._baseline, self._epsilon)


def propfair(loss: Tensor, baseline: float, epsilon: float) -> Tensor:
    """Return −log(M − f) of each mean loss f, continued below M − f = ε by its tangent.

    M is `baseline`, ε is `epsilon`.

    Source: Zhang et al., Proportional Fairness in Federated Learning, TMLR 2023.
    """
    utility = baseline - loss
    tangent = -math.log(epsilon) - (utility - epsilon) / epsilon
    # The clamp keeps the gradient of the logarithm finite where the tangent is used: there it is
    # multiplied by zero, and 0 × inf is NaN.
    return torch.where(utility >= epsilon, -torch.log(utility.clamp(min=epsilon)), tangent)
