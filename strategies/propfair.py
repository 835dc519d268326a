"""Proportional fairness, by a transform of the clients' loss."""

from dataclasses import replace
from typing import ClassVar, Unpack

from fairbloom.protocol.terms import Terms
from fairbloom.rounds.method import Options
from fairbloom.rounds.ranges import Positive

from .fedavg import FedAvg
from .strategy import Tries


class PropFair(FedAvg):
    r"""PropFair: FedAvg of clients that maximise the logarithm of their utility M − f.

    .. math:: c_k = p_k, \qquad f \mapsto \begin{cases} -\log(M - f) & M - f \ge \epsilon \\
        -\log \epsilon - (M - f - \epsilon)/\epsilon & \text{else} \end{cases}

    for the loss f of every minibatch; value and slope are continuous.

    Source: Zhang et al., Proportional Fairness in Federated Learning, TMLR 2023, section 4,
    doi:10.48550/arXiv.2202.01666.

    Parameters
    ----------
    baseline
        Loss M that no client should exceed.
    epsilon
        Utility below which the tangent continues the logarithm.

    Reductions: a large `baseline` is FedAvg with a smaller learning rate.

    Objective: −Σ p log(M − F)
    Good for: a server that may learn only models, with clients that can transform their loss.
    Hurts when: `baseline` does not fit: far above the losses it only lowers the learning rate;
    below them, the tangent multiplies it by 1/ε.
    Memory: none
    Cost: a weighted sum
    """

    # Malekmohammadi and Yu (Semi-VRed), appendix B.2.
    tries: ClassVar[Tries] = {"baseline": (2.0, 3.0, 4.0, 5.0)}
    sums = False

    def __init__(
        self, *, baseline: Positive = 5.0, epsilon: Positive = 0.2, **options: Unpack[Options]
    ) -> None:
        super().__init__(**options)
        self.baseline = baseline
        self.epsilon = epsilon

    def terms(self, server_round: int) -> Terms:
        """Return the common terms, with the transform."""
        return replace(
            super().terms(server_round),
            loss_transform="propfair",
            propfair_baseline=self.baseline,
            propfair_epsilon=self.epsilon,
        )
