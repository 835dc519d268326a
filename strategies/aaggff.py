"""Weights as decisions of online convex optimisation: each round's losses move the next mixture."""

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Unpack

import numpy as np

from fairbloom.rounds.method import Cohort, FloatArray, Kept, Options, Probed
from fairbloom.rounds.ranges import Choices

from .decisions import leader_memory, leader_weights, newton_memory, newton_weights
from .strategy import FairStrategy, Tries

# The distribution functions ρ, of the losses over their mean: they rise from 0 to 1.
CDFS: Mapping[str, Callable[[FloatArray], FloatArray]] = {
    "weibull": lambda x: 1.0 - np.exp(-(x**2)),
    "exponential": lambda x: 1.0 - np.exp(-x),
    "frechet": lambda x: np.exp(-1.0 / x),
    "normal": lambda x: np.array([0.5 * math.erfc((1.0 - x_k) / math.sqrt(2.0)) for x_k in x]),
    "gumbel": lambda x: np.exp(-np.exp(1.0 - x)),
    "logistic": lambda x: 1.0 / (1.0 + np.exp(1.0 - x)),
}


class AAggFF(FairStrategy):
    r"""AAggFF: the weights are the decisions of an online learner that follows high losses.

    With ρ a distribution function and x_k = F_k over the mean loss, a client's response is ρ(x_k).
    `rule="ons"`, for few clients that all take part in every round, decides by an online Newton
    step over the K known clients:

    .. math:: r_k = \frac{\rho(x_k)}{K}, \qquad g_t = \frac{-r}{1 + \langle q_t, r \rangle}

    .. math:: c = \arg\min_{p \in \Delta} \sum_{\tau \le t} \langle g_\tau, p \rangle
        + 2 \lVert p \rVert^2 + \frac K8 \sum_{\tau \le t} \langle g_\tau, p - q_\tau \rangle^2

    with q the decision before this round's losses. `rule="ftrl"`, for many clients of which m of N
    take part, follows the regularised leader, with a score Z for each client:

    .. math:: Z_k \leftarrow Z_k + \frac{\rho(x_k) - \bar\rho}{1 + C \bar\rho}, \qquad
        c_k = \frac{e^{\kappa Z_k}}{\sum_{j \in S} e^{\kappa Z_j}}, \qquad C = \frac mN, \qquad
        \kappa = \frac{\sqrt{\ln N}}{(2 + C) \sqrt{t + 1}}

    Source: Hahn, Kim and Lee, Pursuing Overall Welfare in Federated Learning through Sequential
    Decision Making, ICML 2024, Algorithms 2 (ons) and 3 (ftrl), doi:10.48550/arXiv.2405.20821.

    Parameters
    ----------
    rule
        How weights are decided: "ons" for few clients, "ftrl" for many.
    cdf
        The distribution function ρ. The paper chooses it for each data set: normal, weibull,
        logistic, gumbel, frechet.

    Reductions: equal losses in every round are FedAvg with uniform weights.

    Departures: the poster and the authors' code were read, not the paper's main text. Their code's
    normal ρ falls with the loss, its ons has another ridge and omits a term, and its ftrl forgets
    the mean response; here all three are as derived. Weights are those of the decision after the
    round's losses, restricted to its clients. Under ons, an absent client counts with the mean
    response, and a newcomer gets the mean client's past. A weight below 1e-9 of an ons decision
    counts as 0, because it is the solver's rounding; if all weights are 0, clients are averaged. A
    negative loss counts as 0, and if every loss is 0, all clients count the same.

    Objective: the regret of Σ log(1 + ⟨p, r⟩) over all rounds
    Good for: losses so noisy that a single round is no guide, and few rounds; ftrl for thousands of
    clients.
    Hurts when: a client's loss cannot fall: its weight grows from round to round, though never as
    fast as a loss does.
    Memory: K² + 2K numbers for K clients, or with ftrl one number per client
    Cost: a QP of K variables, and another one if clients join, or with ftrl a weighted sum
    """

    tries: ClassVar[Tries] = {"rule": ("ons", "ftrl")}
    needs = frozenset({"loss-before"})
    default_weighting = None

    def __init__(
        self,
        *,
        rule: Annotated[str, Choices("ons", "ftrl")] = "ons",
        cdf: Annotated[str, Choices(*CDFS)] = "weibull",
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        self.rule = rule
        self.cdf = cdf
        self.requires = frozenset({"roster"}) if rule == "ftrl" else frozenset()

    def weigh(self, cohort: Cohort) -> FloatArray:
        """Return the decision after this round's losses on the participants, renormalised."""
        decide = newton_weights if self.rule == "ons" else leader_weights
        return decide(self._after(cohort), cohort)

    def remember(
        self, cohort: Cohort, coefficients: FloatArray, probed: Probed
    ) -> Mapping[Kept, FloatArray]:
        """Add the round's losses to the memory."""
        self.memory = self._after(cohort)
        return {}

    def _after(self, cohort: Cohort) -> dict[str, Any]:
        learn = newton_memory if self.rule == "ons" else leader_memory
        return learn(self.memory, cohort, responses(cohort.losses, self.cdf))


def responses(losses: FloatArray, cdf: str) -> FloatArray:
    """Return ρ of the losses over their mean, shape (m,), each in [0, 1]."""
    F = np.maximum(losses, 0.0)
    F = F / F.max() if F.any() else np.ones_like(F)  # so that no sum overflows
    with np.errstate(divide="ignore", over="ignore"):
        return CDFS[cdf](F / F.mean())
