"""Min-max fairness between clients, under a budget for each client's disparity between groups."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, ClassVar, Unpack

import numpy as np

from fairbloom.logs import log
from fairbloom.protocol.names import ARRAYS_DISPARITY, DISPARITY, LEARNING_RATE, LOSS_BEFORE
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.method import Cohort, Decision, FloatArray, Options
from fairbloom.rounds.ranges import Choices, NonNegative, Pairs, Positive, Range, amounts_in

from .simplex import steepest_common_weights
from .strategy import FairStrategy, Tries

# The names of δ_l and δ_g in the memory.
TEMPERATURES = ("delta-loss", "delta-disparity")

# An entry of a softmax that is this many temperatures below the largest is 0.
FAR_BELOW = -800.0


class FCFL(FairStrategy):
    r"""FCFL: lowers the largest client loss, while the disparity at each client keeps to a budget.

    Client k replies with one gradient step on its loss and one on its disparity between groups, so
    that the rows are L_k = ∇F_k and Q_k = ∇|Δ_k|. With v_k = |Δ_k| − ε_k, the excess of client k
    over its budget, stage 1 steps along

    .. math:: d = x g_l + (1 - x) g_g, \qquad
        g_l = \sum_k \mathrm{softmax}(F/\delta_l)_k L_k, \qquad
        g_g = \sum_k \mathrm{softmax}(v/\delta_g)_k Q_k

    If all clients are within their budgets, x lowers the largest loss fastest. Else x lowers the
    largest excess fastest, among the steps that do not raise the largest loss. Stage 2 looks for
    Pareto improvements among R = L_1 … L_m, and g_g if a client is not within its budget:

    .. math:: d = R^\top \alpha, \qquad \alpha = \arg\max_\alpha \alpha^\top R \bar g \quad
        \text{over the simplex with } R R^\top \alpha \ge 0, \qquad \bar g = \tfrac1m \sum_k L_k

    To first order, no client's loss rises, nor the disparity. The step is w ← w − η d with the
    smallest of the clients' learning rates.

    Source: Cui et al., Addressing Algorithmic Disparity and Performance Inconsistency in Federated
    Learning, NeurIPS 2021, doi:10.48550/arXiv.2108.08435; implemented after the authors' code,
    github.com/cuis15/FCFL, not after the paper.

    Parameters
    ----------
    budget
        Largest disparity that a client may have.
    budgets
        Budgets of single clients, as site-a=0.02 site-b=0.1.
    stage1_rounds
        Number of rounds of stage 1; all later rounds are stage 2.
    delta
        Initial temperature of both softmaxes; the smaller it is, the more the largest entry
        dominates.
    delta_decay
        Factor of a temperature's decay.
    delta_factor
        A temperature decays after a round in which delta_factor × its gradient norm ≤ the
        temperature.
    delta_min
        A temperature that is not above this does not decay.
    disparity
        Difference between the groups: of the rates of positive predictions, or of these rates among
        positive examples.

    Reductions: `budget=1, stage1_rounds=1` with a small `delta` is a step on the largest loss only;
    a single client within its budget takes its gradient step.

    Departures: a client has its own budget in both stages; the code's stage 2 uses 0 if budgets are
    specific. A disparity that no client must lower is not a row of stage 2; in the code, the solver
    chooses its weight. The code's weight decay on the server is omitted. Clients are sampled as
    with any method; in the paper, all take part.

    Objective: the largest loss under a disparity budget at every client, then Pareto improvements
    Good for: a few hospitals or banks with a legal bound on the disparity between groups at each
    site.
    Hurts when: gradients are stochastic, because the largest entry then changes from round to
    round; or a budget is below the lowest possible disparity, because stage 1 then only lowers the
    disparity.
    Memory: two numbers
    Cost: two updates a client, a Gram matrix of both and in stage 2 a linear program
    """

    tries: ClassVar[Tries] = {"budget": (0.05, 0.1)}
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
            Mapping[str, float] | str | None, Pairs('"site a"=0.02 site-b=0.1')
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
        self.budgets = amounts_in("[0, inf)", budgets=budgets)
        self.stage1_rounds = stage1_rounds
        self.disparity = disparity
        self.delta = delta
        self.delta_decay = delta_decay
        self.delta_factor = delta_factor
        self.delta_min = delta_min

    def terms(self, server_round: int) -> Terms:
        """Return the common terms, with one full-batch step on loss and disparity each."""
        return replace(
            super().terms(server_round),
            full_batch_step=True,
            disparity=self.disparity,
            disparity_sharpness=10.0,  # σ(10 z) replaces the decision 1[z ≥ 0]: it has a gradient
        )

    def weigh(self, cohort: Cohort) -> Decision:
        """Return the weights of the 2m gradients, the losses' first, times η/η_k.

        The temperatures of stage 1 decay if their gradients are short.
        """
        memory = cohort.past.memory
        unknown = [name for name in self.budgets if name not in cohort.online]
        if unknown and not memory:
            log.warning(
                "budgets names %s, but no client online has this name: correct it",
                ", ".join(unknown),
            )
        deltas = np.array([memory.get(name, self.delta) for name in TEMPERATURES])
        excess = self._excess(cohort)
        g = maxima_of(cohort.losses, excess, deltas)
        K = gradient_products(cohort)
        if cohort.round <= self.stage1_rounds:
            products = g @ K @ g.T
            weights = stage1_weights(g, products, within_budgets=excess.max() <= 0.0)
            deltas = self._decayed(deltas, np.diag(products), cohort.metrics[LEARNING_RATE].min())
        else:
            weights = stage2_weights(g[1], K, is_at_budget=excess.max() >= 0.0)
        shares = np.tile(rate_shares(cohort), 2)
        memory = dict(zip(TEMPERATURES, deltas.tolist(), strict=True))
        return Decision(np.asarray(weights * shares), memory)

    def _decayed(self, deltas: FloatArray, squares: FloatArray, eta: float) -> FloatArray:
        """Return the temperatures after a round; `squares` are those of their gradients times η."""
        norms = np.sqrt(np.maximum(squares, 0.0))
        decays = (deltas > self.delta_min) & (self.delta_factor * norms <= deltas * eta)
        return np.where(
            decays, np.maximum(self.delta_decay * deltas, np.finfo(np.float64).tiny), deltas
        )

    def own_metrics(self, cohort: Cohort, coefficients: FloatArray) -> dict[str, float]:
        """Return the number of clients that exceed their budgets."""
        return {"over-budget": float((self._excess(cohort) > 0.0).sum())}

    def _excess(self, cohort: Cohort) -> FloatArray:
        """Return v_k = |Δ_k| − ε_k, shape (m,)."""
        budgets = np.array([self.budgets.get(name, self.budget) for name in cohort.names])
        return np.asarray(np.abs(cohort.metrics[DISPARITY]) - budgets)


def maxima_of(losses: FloatArray, excess: FloatArray, deltas: FloatArray) -> FloatArray:
    """Return g_l and g_g, the slopes of both softmaxes, as weights of the 2m gradients.

    `deltas` are the temperatures. The shape is (2, 2m).
    """
    zeros = np.zeros(len(losses))
    return np.block([[softmax(losses, deltas[0]), zeros], [zeros, softmax(excess, deltas[1])]])


def stage1_weights(g: FloatArray, products: FloatArray, *, within_budgets: bool) -> FloatArray:
    """Return d as weights of the 2m gradients; `products` are the inner products of g_l and g_g."""
    (p, q), (_, s) = products
    x = share_of_loss(p, q, s, within_budgets=within_budgets)
    return np.asarray(x * g[0] + (1.0 - x) * g[1])


def stage2_weights(g_g: FloatArray, K: FloatArray, *, is_at_budget: bool) -> FloatArray:
    """Return the steepest common direction of the losses, and of g_g at a budget, as weights."""
    m = len(g_g) // 2
    R = np.eye(m, 2 * m)
    if is_at_budget and g_g @ K @ g_g > 0.0:
        R = np.vstack([R, g_g])
    products = R @ K @ R.T
    return np.asarray(steepest_common_weights(products, products[:, :m].mean(axis=1)) @ R)


def share_of_loss(p: float, q: float, s: float, *, within_budgets: bool) -> float:
    """Return the x in [0, 1] of d = x g_l + (1 − x) g_g.

    x maximises ⟨d, g_l⟩ within the budgets, and else ⟨d, g_g⟩ among those with ⟨d, g_l⟩ ≥ 0. p =
    ‖g_l‖², q = ⟨g_l, g_g⟩ and s = ‖g_g‖².
    """
    if within_budgets:
        return float(p >= q)
    if q >= s:
        return 1.0
    return 0.0 if q >= 0.0 else -q / (p - q)


def softmax(values: FloatArray, temperature: float) -> FloatArray:
    """Return e^(v/δ), normalised to sum 1."""
    weights = np.exp(np.maximum(values - values.max(), FAR_BELOW * temperature) / temperature)
    return np.asarray(weights / weights.sum())


def rate_shares(cohort: Cohort) -> FloatArray:
    """Return η/η_k, shape (m,): the factors that turn updates η_k ∇F_k into steps η ∇F_k."""
    return np.asarray(cohort.metrics[LEARNING_RATE].min() / cohort.metrics[LEARNING_RATE])


def gradient_products(cohort: Cohort) -> FloatArray:
    """Return the inner products of all gradients, times η².

    Like the updates, and unlike the gradients, these are in the range of numbers.
    """
    shares = np.tile(rate_shares(cohort), 2)
    return np.asarray(cohort.gram * np.outer(shares, shares))
