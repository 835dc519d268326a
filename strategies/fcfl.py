"""Min-max fairness between clients, under a budget for the disparity between groups at each of them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Unpack

import numpy as np

from fairbloom.logs import log
from fairbloom.protocol.names import ARRAYS_DISPARITY, DISPARITY, LEARNING_RATE, LOSS_BEFORE
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.method import Cohort, FloatArray, Kept, Options, Probed
from fairbloom.rounds.ranges import Choices, NonNegative, Pairs, Positive, Range, amounts_in

from .simplex import steepest_common_weights
from .strategy import FairStrategy

TEMPERATURES = ("delta-loss", "delta-disparity")
"""What the memory calls δ_l and δ_g."""

FAR_BELOW = -800.0
"""An entry of a softmax that is so many temperatures below the largest is 0."""


class FCFL(FairStrategy):
    r"""FCFL: lowers the largest loss of a client while the disparity at each client keeps to a budget.

    Client k replies one gradient step on its loss and one on its disparity between groups, so that
    the rows are L_k = ∇F_k and Q_k = ∇|Δ_k|. With v_k = |Δ_k| − ε_k, what client k is beyond its
    budget, stage 1 steps along

    .. math:: d = x g_l + (1 - x) g_g, \qquad g_l = \sum_k \mathrm{softmax}(F/\delta_l)_k L_k, \qquad
        g_g = \sum_k \mathrm{softmax}(v/\delta_g)_k Q_k

    with the x that lowers the largest loss fastest where all clients are within their budgets, and
    else the largest excess among the steps that do not raise the largest loss. Stage 2 looks for
    Pareto improvements among R = L_1 … L_m, and g_g where a client is not within its budget:

    .. math:: d = R^\top \alpha, \qquad \alpha = \arg\max_\alpha \alpha^\top R \bar g \quad
        \text{over the simplex with } R R^\top \alpha \ge 0, \qquad \bar g = \tfrac1m \sum_k L_k

    so that to first order no client's loss rises, nor the disparity. The step is w ← w − η d with
    the smallest of the clients' learning rates.

    Source: Cui et al., Addressing Algorithmic Disparity and Performance Inconsistency in Federated
    Learning, NeurIPS 2021, doi:10.48550/arXiv.2108.08435; taken from the authors' code,
    github.com/cuis15/FCFL, not from the paper.

    Parameters
    ----------
    budget
        Largest disparity that a client may have.
    budgets
        Budgets of single clients, as site-a=0.02 site-b=0.1.
    stage1_rounds
        Rounds of stage 1; all later ones are stage 2, of which a run of no more rounds has none.
    delta
        Temperature of both softmaxes at first; the smaller it is, the more the largest entry alone
        counts.
    delta_decay
        What a temperature is multiplied by each time it falls.
    delta_factor
        A temperature falls after a round in which so many times the length of its gradient was at
        most the temperature.
    delta_min
        A temperature that is not above this falls no further.
    disparity
        Difference between the groups: of the rates of positive predictions, or of these among the
        positive examples.

    Reductions: `budget=1, stage1_rounds=1` with a small `delta` is a step on the largest loss
    alone; a single client within its budget takes its gradient step.

    Departures: a client has its own budget in both stages, where the code's stage 2 has 0 where
    budgets are specific; and a disparity that nobody must lower is no row of stage 2, where the
    code lets its solver choose a weight. The code's weight decay on the server is left out. Clients
    are sampled as anywhere, where the paper has all of them.

    Objective: the largest loss under a disparity budget at every client, then Pareto improvements
    Good for: a few hospitals or banks with a legal bound on the disparity between groups at each
    site.
    Hurts when: gradients are stochastic or a budget is below what the data allow: the largest entry
    is then another one each round, or stage 1 lowers nothing but disparity.
    Memory: two numbers
    Cost: two updates a client, a Gram matrix of both and in stage 2 a linear program
    """

    tries = ({"budget": 0.05}, {"budget": 0.1})
    needs = frozenset({LOSS_BEFORE, DISPARITY, LEARNING_RATE})
    default_weighting = None
    requires = frozenset({"gram", "plain sgd"})
    lost_to_server_optimizers = (
        "to first order, its second stage raises no participant's loss, nor the disparity"
    )
    second = ARRAYS_DISPARITY
    reports = ("over-budget",)

    def __init__(
        self,
        *,
        budget: NonNegative = 0.05,
        budgets: Annotated[
            Mapping[str, float] | str | None, Pairs("site-a=0.02 site-b=0.1")
        ] = None,
        stage1_rounds: Annotated[int, Range("[0, inf)")] = 800,
        delta: Positive = 0.5,
        delta_decay: Annotated[float, Range("(0, 1]")] = 0.01,
        delta_factor: NonNegative = 0.1,
        delta_min: NonNegative = 1e-4,
        disparity: Annotated[
            str, Choices("demographic-parity", "equal-opportunity")
        ] = "demographic-parity",
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        self.budget = budget
        self.budgets = amounts_in(0.0, budgets=budgets)
        self.stage1_rounds = stage1_rounds
        self.disparity = disparity
        self.delta = delta
        self.delta_decay = delta_decay
        self.delta_factor = delta_factor
        self.delta_min = delta_min

    def terms(self, server_round: int) -> Terms:
        """Return that each client does one full-batch step on its loss, and one on its disparity."""
        plain = super().terms(server_round)
        # σ(10 z) replaces the decision 1[z ≥ 0], which has no gradient
        return replace(
            plain, full_batch_step=True, disparity=self.disparity, disparity_sharpness=10.0
        )

    def weigh(self, cohort: Cohort) -> FloatArray:
        """Return the weights of the gradients, first those of the losses, times η/η_k with η the smallest rate."""
        K = gradient_products(cohort)
        maxima = self._maxima(cohort)
        m = cohort.size
        if cohort.round <= self.stage1_rounds:
            (p, q), (_, s) = maxima @ K @ maxima.T
            x = share_of_loss(p, q, s, within_budgets=self._excess(cohort).max() <= 0.0)
            weights = x * maxima[0] + (1.0 - x) * maxima[1]
        else:
            is_row = self._excess(cohort).max() >= 0.0 and maxima[1] @ K @ maxima[1] > 0.0
            rows = np.vstack([np.eye(m, 2 * m), *([maxima[1]] if is_row else [])])
            products = rows @ K @ rows.T
            weights = steepest_common_weights(products, products[:, :m].mean(axis=1)) @ rows
        return np.asarray(weights * np.tile(rate_shares(cohort), 2))

    def remember(
        self, cohort: Cohort, coefficients: FloatArray, probed: Probed
    ) -> Mapping[Kept, FloatArray]:
        """Let the temperatures of stage 1 fall where their gradients are short."""
        if not self.memory and (
            unknown := [name for name in self.budgets if name not in cohort.online]
        ):
            log.warning(
                "budgets names %s, which is none of the clients online: correct the name",
                ", ".join(unknown),
            )
        deltas = self._deltas
        if cohort.round <= self.stage1_rounds:
            maxima = self._maxima(cohort)
            eta = cohort.metrics[LEARNING_RATE].min()
            lengths = np.sqrt(
                np.maximum(np.diag(maxima @ gradient_products(cohort) @ maxima.T), 0.0)
            )
            falls = (deltas > self.delta_min) & (self.delta_factor * lengths <= deltas * eta)
            deltas = np.where(
                falls, np.maximum(self.delta_decay * deltas, np.finfo(np.float64).tiny), deltas
            )
        self.memory = dict(zip(TEMPERATURES, deltas.tolist(), strict=True))
        return {}

    def own_metrics(self, cohort: Cohort, coefficients: FloatArray) -> dict[str, float]:
        """Return how many clients are beyond their budgets."""
        return {"over-budget": float((self._excess(cohort) > 0.0).sum())}

    @property
    def _deltas(self) -> FloatArray:
        return np.array([self.memory.get(name, self.delta) for name in TEMPERATURES])

    def _excess(self, cohort: Cohort) -> FloatArray:
        """Return v_k = |Δ_k| − ε_k, shape (m,)."""
        budgets = np.array([self.budgets.get(name, self.budget) for name in cohort.names])
        return np.asarray(np.abs(cohort.metrics[DISPARITY]) - budgets)

    def _maxima(self, cohort: Cohort) -> FloatArray:
        """Return g_l and g_g as weights of the 2m gradients, shape (2, 2m): the slopes of both smooth maxima."""
        delta_l, delta_g = self._deltas
        losses = softmax(cohort.losses, delta_l)
        excess = softmax(self._excess(cohort), delta_g)
        return np.block([[losses, np.zeros(cohort.size)], [np.zeros(cohort.size), excess]])


def share_of_loss(p: float, q: float, s: float, *, within_budgets: bool) -> float:
    """Return x of d = x g_l + (1 − x) g_g in [0, 1], with p = ‖g_l‖², q = ⟨g_l, g_g⟩ and s = ‖g_g‖².

    It maximises ⟨d, g_l⟩ within the budgets, and else ⟨d, g_g⟩ among those with ⟨d, g_l⟩ ≥ 0.
    """
    if within_budgets:
        return 1.0 if p >= q else 0.0
    return 1.0 if q >= s else 0.0 if q >= 0.0 else -q / (p - q)


def softmax(values: FloatArray, temperature: float) -> FloatArray:
    """Return e^(v/δ), normalised."""
    weights = np.exp(np.maximum(values - values.max(), FAR_BELOW * temperature) / temperature)
    return np.asarray(weights / weights.sum())


def rate_shares(cohort: Cohort) -> FloatArray:
    """Return η/η_k, shape (m,): what makes an update η_k ∇F_k the step η ∇F_k."""
    return np.asarray(cohort.metrics[LEARNING_RATE].min() / cohort.metrics[LEARNING_RATE])


def gradient_products(cohort: Cohort) -> FloatArray:
    """Return the inner products of all gradients times η², which is in the range of numbers where the updates are."""
    shares = np.tile(rate_shares(cohort), 2)
    return np.asarray(cohort.gram * np.outer(shares, shares))
