"""The plain average of clients that stay near the global model."""

from typing import ClassVar, Unpack

from fairbloom.rounds.method import Options
from fairbloom.rounds.ranges import NonNegative

from .fedavg import FedAvg
from .strategy import Tries


class FedProx(FedAvg):
    r"""FedProx: FedAvg of clients with a proximal term in their loss.

    .. math:: c_k = p_k, \qquad \min_x F_k(x) + \tfrac{\mu}{2} \lVert x - w \rVert^2

    Source: Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, equation 2,
    doi:10.48550/arXiv.1812.06127.

    Parameters
    ----------
    mu
        Strength of the proximal term; its gradient is mu · (x − w).

    Reductions: `mu=0` is FedAvg.

    Departures: the paper's second part, partial work, is left to the clients.

    Objective: the mean loss
    Good for: many local steps on different data, with which the clients' models would drift apart.
    Hurts when: mu is large, because every round then moves little. It makes training more stable,
    not fairer.
    Memory: none
    Cost: a weighted sum
    """

    # The paper's grid, and the 10 of Hu et al. (FedMGDA+), whose formula has no half.
    tries: ClassVar[Tries] = {"mu": (0.001, 0.01, 0.1, 1.0, 20.0)}
    own_terms = frozenset({"proximal_mu"})

    def __init__(self, *, mu: NonNegative = 0.1, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.proximal_mu = mu
