"""Declarations that methods share which seek a common descent direction of all participants."""

from typing import ClassVar

from .simplex import GRAM_REPORTS
from .strategy import FairStrategy

# A property of these methods' step; a server optimizer breaks it, because it turns the step.
COMMON_DESCENT = "to first order, its step raises no participant's loss"


class CommonDescent(FairStrategy):
    """A method that weighs updates by their inner products and the losses, without a prior."""

    needs = frozenset({"loss-before"})
    default_weighting: ClassVar[str | None] = None
    requires = frozenset({"gram"})
    reports = GRAM_REPORTS
    lost_to_server_optimizers = COMMON_DESCENT
