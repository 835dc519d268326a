"""Weights as decisions of online convex optimisation: each round's losses move the next mixture."""

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Unpack

import numpy as np

from fairbloom.rounds.method import Cohort, Decision, FloatArray, Options
from fairbloom.rounds.ranges import Choices

from .simplex import min_norm_weights
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

# A weight of a decision below this is the solver's rounding.
NOTHING = 1e-9


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
    the mean response; here all three are as derived. Weights come from the decision after the
    round's losses, restricted to its clients. Under ons, an absent client counts with the mean
    response, and a newcomer gets the mean client's past. A weight below 1e-9 of an ons decision
    counts as 0, because it is the solver's rounding; if all weights are 0, clients are averaged. A
    negative loss counts as 0, and if every loss is 0, all clients count the same.

    Objective: the regret of Σ log(1 + ⟨p, r⟩) over all rounds
    Good for: losses too noisy for one round to guide the weights, and few rounds; ftrl for
    thousands of clients.
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

    def weigh(self, cohort: Cohort) -> Decision:
        """Return the decision after this round's losses on the participants, renormalised."""
        rho = responses(cohort.losses, self.cdf)
        if self.rule == "ons":
            memory = newton_memory(cohort.past.memory, cohort, rho)
            return Decision(newton_weights(memory, cohort), memory)
        memory = leader_memory(cohort.past.memory, cohort, rho)
        return Decision(leader_weights(memory, cohort), memory)


def responses(losses: FloatArray, cdf: str) -> FloatArray:
    """Return ρ of the losses over their mean, shape (m,), each in [0, 1]."""
    F = np.maximum(losses, 0.0)
    F = F / F.max() if F.any() else np.ones_like(F)  # so that no sum overflows
    with np.errstate(divide="ignore", over="ignore"):
        return CDFS[cdf](F / F.mean())


# Few clients: an online Newton step ---------------------------------------------------------------


def newton_memory(memory: Mapping[str, Any], cohort: Cohort, rho: FloatArray) -> dict[str, Any]:
    """Return the memory after this round's responses: A = Σ g gᵀ, b₁ = Σ g and b₂ = Σ ⟨g, q⟩ g."""
    names = sorted({*memory.get("names", ()), *cohort.names})
    A, b1, b2 = with_newcomers(memory, names)
    given = dict(zip(cohort.names, rho.tolist(), strict=True))
    mean = rho.mean()
    r = np.array([given.get(name, mean) for name in names]) / len(names)
    q = decision(A, b1, b2)
    g = -r / (1.0 + q @ r)
    return {"names": names, "A": A + np.outer(g, g), "b1": b1 + g, "b2": b2 + (g @ q) * g}


def with_newcomers(
    memory: Mapping[str, Any], names: list[str]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return A, b₁ and b₂ of the clients `names`; newcomers get the mean client's past."""
    K = len(memory.get("names", ()))
    past = dict(zip(memory.get("names", ()), np.eye(K), strict=True))
    mean_client = np.full(K, 1.0 / max(K, 1))
    M = np.array([past.get(name, mean_client) for name in names])
    A = memory.get("A", np.zeros((K, K)))
    return M @ A @ M.T, M @ memory.get("b1", np.zeros(K)), M @ memory.get("b2", np.zeros(K))


def decision(A: FloatArray, b1: FloatArray, b2: FloatArray) -> FloatArray:
    """Return argmin (b₁ − βb₂)ᵀp + ½ pᵀ(αI + βA)p over p in the simplex, β = K/4, shape (K,).

    On the simplex, the linear term can be centred and written into the matrix, with a multiple of
    11ᵀ that makes it positive semidefinite. So p is the shortest combination of vectors with these
    inner products.
    """
    return _decision(A.tobytes(), b1.tobytes(), b2.tobytes()).copy()


# A round needs the decisions before and after its losses; the next round begins with the latter.
@lru_cache(maxsize=2)
def _decision(*memory: bytes) -> FloatArray:
    """Return `decision` of float64 arrays with these bytes."""
    A, b1, b2 = map(np.frombuffer, memory)
    K = len(b1)
    b = b1 - 0.25 * K * b2
    b = b - b.mean()
    # α = 4 K L with L = 1/K, the Lipschitz constant of the decision losses
    H = 4.0 * np.eye(K) + 0.25 * K * A.reshape(K, K) + b[:, None] + b[None, :] + 0.25 * (b @ b)
    return min_norm_weights(H, np.full(K, 1.0 / K), epsilon=1.0)


def newton_weights(memory: Mapping[str, Any], cohort: Cohort) -> FloatArray:
    """Return the decision over all known clients, restricted to the participants."""
    weights = dict(
        zip(memory["names"], decision(memory["A"], memory["b1"], memory["b2"]), strict=True)
    )
    c = np.array([weights[name] for name in cohort.names])
    c = np.where(c < NOTHING, 0.0, c) if c.max() >= NOTHING else np.ones(cohort.size)
    return np.asarray(c / c.sum())


# Many clients: follow the regularised leader ------------------------------------------------------


def leader_memory(memory: Mapping[str, Any], cohort: Cohort, rho: FloatArray) -> dict[str, Any]:
    """Return the clients' scores after this round's responses, and the number of rounds."""
    scores = memory.get("scores", {})
    mean = float(rho.mean())
    share = cohort.size / roster_size(cohort)
    gains = dict(zip(cohort.names, ((rho - mean) / (1.0 + share * mean)).tolist(), strict=True))
    new = {name: scores.get(name, 0.0) + gain for name, gain in gains.items()}
    return {"scores": {**scores, **new}, "steps": memory.get("steps", 0) + 1}


def leader_weights(memory: Mapping[str, Any], cohort: Cohort) -> FloatArray:
    """Return the softmax of the participants' scores.

    It is sharper with more known clients and fewer rounds.
    """
    N = roster_size(cohort)
    kappa = math.sqrt(math.log(N)) / ((2.0 + cohort.size / N) * math.sqrt(memory["steps"] + 1.0))
    Z = np.array([memory["scores"][name] for name in cohort.names])
    c = np.exp(kappa * (Z - Z.max()))
    return np.asarray(c / c.sum())


def roster_size(cohort: Cohort) -> int:
    """Return N, the number of training clients that the server knows, at least the round's."""
    return max(len(cohort.roster), cohort.size)
