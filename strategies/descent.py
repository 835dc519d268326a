"""Declarations that methods share which seek a common descent direction of all participants."""

from collections.abc import Collection
from typing import ClassVar

from fairbloom.rounds.method import Kept

from .strategy import FairStrategy

# A property of these methods' step; a server optimizer breaks it, because it turns the step.
COMMON_DESCENT = "to first order, its step raises no participant's loss"


class CommonDescent(FairStrategy):
    """A method that weighs updates by their inner products and the losses, without a prior."""

    needs = frozenset({"loss-before"})
    default_weighting: ClassVar[str | None] = None
    requires = frozenset({"gram"})
    lost_to_server_optimizers = COMMON_DESCENT

    def recalls(
        self, kept: Collection[Kept], names: Collection[str], server_round: int
    ) -> Collection[Kept]:
        """Return the rows of absent clients: the others have an update of this round."""
        return [each for each in kept if each.key not in names]
