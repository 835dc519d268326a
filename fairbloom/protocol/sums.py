"""Noise that clients share: what a run asks for, by facts that both sides know.

If a server sees the sum of K clients' noisy gradients and no single one, each needs only a part of
the noise: if h of them follow the protocol, their h noises add up to that of the sum. So the noise
of each is smaller by √h than that of an account that stands for itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fairbloom.errors import ReportableError

from .conditions import Where
from .names import LOSS_BEFORE
from .private import METRICS, check_settings, check_terms
from .settings import SETTINGS, RunSettings
from .terms import Terms

# The fewest clients of a sum: of two, each knows the other's part.
FEWEST_PARTNERS = 3


@dataclass(frozen=True, kw_only=True)
class SharedNoise:
    """What a round asks of all clients that share noise; it is the same for each.

    Attributes
    ----------
    sigma
        σ of the sum, in clipped norms of a row: with it, a round costs 1/σ² of each owner's μ².
    honest
        h, the clients that follow the protocol: together, their noise is that of the sum.
    shares
        ρ by client, from 0 to 1: the factor of its gradient's sum. With weights w_k for n_k rows it
        is (w_k/n_k) / max_j (w_j/n_j), so 1 with weights by rows.
    """

    sigma: float
    honest: int
    shares: Mapping[str, float]

    def share_of(self, client: str) -> float:
        """Return ρ of a client; raise ReportableError unless it is one: it bounds a row's part."""
        share = self.shares.get(client, -1.0)
        if not 0.0 <= share <= 1.0:
            raise ReportableError(
                f"the server asks for {share} of the client's sum: it must be from 0 to 1"
            )
        return share


def check_work(settings: RunSettings) -> None:
    """Raise ReportableError for the first setting with which no client adds to a sum.

    A round is one plain step of SGD from the received model: the server sees no more of it.
    """
    check_settings(settings)
    for key, parameter in SETTINGS.items():
        allowed = parameter.values_in(Where.SUMS)
        value = settings.value_of(parameter)
        if allowed is not None and not allowed.allows(value):
            raise ReportableError(
                f"{key} = {value!r}: with shared noise, each client adds the gradient of one plain"
                f" step to a sum: set {key} = {allowed.values[0]}"
            )


def check_asked(terms: Terms) -> None:
    """Raise ReportableError for terms that change more than a client's weight in the sum."""
    check_terms(terms, METRICS & {LOSS_BEFORE})
    plain = Terms(server_round=1)
    for name in ("control_variates", "dynamic_alpha", "client_momentum", "local_steps"):
        if getattr(terms, name) != getattr(plain, name):
            raise ReportableError(
                f"the method changes clients' steps ({name.replace('_', '-')}), and with shared"
                " noise a client adds its gradient at the received model: take fedavg or term"
            )
