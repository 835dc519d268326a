"""FedDyn's client half: a dynamic regularizer."""

from collections.abc import Mapping

from fairbloom.protocol.terms import DYNAMIC

from ..device import in_double
from ..work import StepsTaken
from .arrays import like, update_of
from .base import Arrays, GradientOffset


class DynamicRegularizer(GradientOffset):
    """FedDyn's local work on F_k(x) − ⟨h_k, x⟩ + (alpha/2)‖x − w‖², then h_k ← h_k + alpha u_k.

    The quadratic term is part of the gradient, like a proximal term.

    Source: Acar et al., ICLR 2021, Algorithm 1.
    """

    reads = DYNAMIC

    def pull(self) -> float:
        """Return alpha."""
        return self.terms.dynamic_alpha or 0.0

    def start(self, received: Arrays, kept: Arrays, sent: Mapping[str, Arrays]) -> Arrays:
        """Return −h_k, which is added to each gradient."""
        return {name: -like(kept.get(name), array) for name, array in received.items()}

    def shift(self, state: Arrays) -> Arrays:
        """Return −h_k."""
        return state

    def finish(
        self, received: Arrays, trained: Arrays, state: Arrays, steps: StepsTaken
    ) -> tuple[Arrays, Arrays]:
        """Return the trained parameters and the new h_k."""
        alpha = self.pull()
        updates = update_of(received, trained)
        return trained, {
            name: (alpha * updates[name] - in_double(minus_h)).to(minus_h)
            for name, minus_h in state.items()
        }
