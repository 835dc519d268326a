"""The plain average."""

from fairbloom.rounds.method import Cohort, FloatArray

from .strategy import FairStrategy


class FedAvg(FairStrategy):
    r"""Federated averaging: the mean of the clients' models, by examples or by clients.

    .. math:: c_k = p_k

    Source: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017,
    Algorithm 1, doi:10.48550/arXiv.1602.05629.

    Reductions: `weighting="uniform"` is c = 1/m.

    Objective: the mean loss
    Good for: clients with similar data, and as the baseline that every other method is compared with.
    Hurts when: clients differ; those with few examples or small gradients are neglected, and nothing corrects it.
    Memory: none
    Cost: a weighted sum
    """

    @property
    def weighs_by_prior(self) -> bool:
        """Whether its weights are the prior in every round: they are where a subclass weighs no otherwise."""
        return type(self).weigh is FedAvg.weigh

    def weigh(self, cohort: Cohort) -> FloatArray:
        """Return the prior."""
        return cohort.prior
