"""The proximal term of FedProx, which other methods may add as well."""

from fairbloom.protocol.terms import PROXIMAL

from .base import Rule


class ProximalTerm(Rule):
    """Adds (mu/2)‖x − w‖² to the loss, w the received model.

    Source: Li et al., MLSys 2020 (FedProx), eq. 2.
    """

    reads = PROXIMAL

    def pull(self) -> float:
        """Return mu."""
        return self.terms.proximal_mu
