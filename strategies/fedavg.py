"""The plain average."""

from .cohort import Cohort, FloatArray
from .strategy import FairStrategy


class FedAvg(FairStrategy):
    r"""Federated averaging: the mean of the clients' models, by examples or by clients.

    .. math:: c_k = p_k

    Source: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017,
    Algorithm 1.

    Reductions: `weighting="uniform"` is c = 1/m.
    """

    def weigh(self, cohort: Cohort) -> FloatArray:
        """Return the prior."""
        return cohort.prior
