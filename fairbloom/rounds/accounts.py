"""What a run knows of its clients' privacy accounts."""

from dataclasses import dataclass, replace
from typing import Self

# Each new loss multiplies the weights of earlier ones by this factor.
LOSS_MEMORY = 0.8


@dataclass(frozen=True)
class AccountInRun:
    """A client's privacy account, as a run has seen it.

    Attributes
    ----------
    signal
        1/(1 + σ²/n), the factor of the client's prior weight: n are its training rows and σ is
        the noise of a step at the lowest price.
    units
        The units that were left when the run first saw it.
    spent
        The units that its replies in this run were charged.
    loss_sum, loss_weight
        The exponentially weighted sum of the losses that it reported, and of their weights.
    """

    signal: float = 1.0
    units: float = 0.0
    spent: float = 0.0
    loss_sum: float = 0.0
    loss_weight: float = 0.0

    def after(self, spent: float, loss: float | None) -> Self:
        """Return the account after a reply that was charged so, with this loss if it has one."""
        if loss is None:
            return replace(self, spent=self.spent + spent)
        return replace(
            self,
            spent=self.spent + spent,
            loss_sum=LOSS_MEMORY * self.loss_sum + loss,
            loss_weight=LOSS_MEMORY * self.loss_weight + 1.0,
        )

    def smooth(self, loss: float, largest: float) -> float:
        """Return the weighted mean of the reported losses, cut to [0, `largest`].

        The cut comes last: the mean of cut reports would be biased. Without a report, it is `loss`.
        """
        if not self.loss_weight:
            return loss
        return min(max(self.loss_sum / self.loss_weight, 0.0), largest)

    def units_left(self, spend: float) -> int:
        """Return what the run may still spend, of `spend` units in all."""
        return max(0, int(min(self.units, spend) - self.spent))


# The account of a client without one.
NO_ACCOUNT = AccountInRun()
