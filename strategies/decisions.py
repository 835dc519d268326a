"""The decisions of AAggFF's two online learners: Newton steps, and a regularised leader."""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from fairbloom.rounds.method import Cohort, FloatArray

from .simplex import min_norm_weights

# A weight of a decision below this is the solver's rounding.
NOTHING = 1e-9

# Few clients: an online Newton step ---------------------------------------------------------------


def newton_memory(memory: Mapping[str, Any], cohort: Cohort, rho: FloatArray) -> dict[str, Any]:
    """Return the memory after this round's responses: A = Σ g gᵀ, b₁ = Σ g and b₂ = Σ ⟨g, q⟩ g."""
    names = sorted({*memory.get("names", ()), *cohort.names})
    A, b1, b2 = with_newcomers(memory, names)
    given = dict(zip(cohort.names, rho.tolist(), strict=True))
    r = np.array([given.get(name, rho.mean()) for name in names]) / len(names)
    q = decision(A, b1, b2)
    g = -r / (1.0 + q @ r)
    return {"names": names, "A": A + np.outer(g, g), "b1": b1 + g, "b2": b2 + (g @ q) * g}


def with_newcomers(
    memory: Mapping[str, Any], names: list[str]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return A, b₁ and b₂ of the clients `names`; newcomers get the mean client's past."""
    K = len(memory.get("names", ()))
    past = dict(zip(memory.get("names", ()), np.eye(K), strict=True))
    M = np.array([past.get(name, np.full(K, 1.0 / max(K, 1))) for name in names])
    A = memory.get("A", np.zeros((K, K)))
    b1 = memory.get("b1", np.zeros(K))
    b2 = memory.get("b2", np.zeros(K))
    return M @ A @ M.T, M @ b1, M @ b2


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
    decided = decision(memory["A"], memory["b1"], memory["b2"])
    weights = dict(zip(memory["names"], decided, strict=True))
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
    steps = memory["steps"]
    kappa = math.sqrt(math.log(N)) / ((2.0 + cohort.size / N) * math.sqrt(steps + 1.0))
    Z = np.array([memory["scores"][name] for name in cohort.names])
    c = np.exp(kappa * (Z - Z.max()))
    return np.asarray(c / c.sum())


def roster_size(cohort: Cohort) -> int:
    """Return N, the number of training clients that the server knows, at least the round's."""
    return max(len(cohort.roster), cohort.size)
