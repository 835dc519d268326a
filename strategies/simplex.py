"""The probability simplex: projection on it, and the shortest combination of vectors, by quadratic programming.

The one file that imports cvxopt, which is licensed under the GPL, version 3.
"""

import cvxopt
import cvxopt.solvers
import numpy as np
from numpy.typing import NDArray

from fairbloom.rounds.updates import FloatArray

SOLVER = {"show_progress": False, "abstol": 1e-13, "reltol": 1e-13, "feastol": 1e-13, "maxiters": 200}
"""The solver's default tolerances leave errors of 5e-5 in the weights."""

ENOUGH = 1e-11
"""Relative excess of the objective over its minimum, as its duality gap bounds it, that is left as it is."""

POLISHING_WORK = 2e8
"""Bounds the time of exact refinement: so many operations, in steps of m³ each, ten steps at least."""


def project(vector: FloatArray) -> FloatArray:
    """Return the point of the simplex that is nearest to `vector`, shape (m,).

    Source: Duchi et al., Efficient Projections onto the l1-Ball for Learning in High Dimensions, ICML 2008, Figure 1.
    """
    shifted = vector - vector.max()  # the projection is the same, and large entries do not cancel
    u = np.sort(shifted)[::-1]
    thresholds = (1.0 - np.cumsum(u)) / np.arange(1, len(u) + 1)
    rho = np.flatnonzero(u + thresholds > 0.0)[-1]
    point: FloatArray = np.maximum(shifted + thresholds[rho], 0.0)
    return point


def shortest(gram: FloatArray, prior: FloatArray, epsilon: float) -> FloatArray:
    """Return argmin λᵀGλ over λ in the simplex with |λ_k − p_k| ≤ `epsilon`, shape (m,).

    Parameters
    ----------
    gram
        G, positive semidefinite, shape (m, m).
    prior
        p, in the simplex, shape (m,).
    epsilon
        Half-width of the box, at least 0; 1 is no box.
    """
    m = len(prior)
    scale = np.trace(gram) / m
    if m == 1 or epsilon == 0.0 or scale == 0.0:
        return prior
    G = gram / scale
    lower, upper = np.maximum(prior - epsilon, 0.0), np.minimum(prior + epsilon, 1.0)
    solution = cvxopt.solvers.qp(
        cvxopt.matrix(G),
        cvxopt.matrix(0.0, (m, 1)),
        cvxopt.spmatrix([-1.0] * m + [1.0] * m, range(2 * m), [*range(m), *range(m)]),
        cvxopt.matrix(np.concatenate([-lower, upper])),
        cvxopt.matrix(1.0, (1, m)),
        cvxopt.matrix(1.0),
        initvals={"x": cvxopt.matrix(prior)},
        options=SOLVER,
    )
    weights: FloatArray = np.clip(np.array(solution["x"]).ravel(), lower, upper)
    weights /= weights.sum()
    rounding = 1e-12 * (weights @ np.sqrt(np.diag(G))) ** 2
    if excess(G, weights, lower, upper) > ENOUGH * (weights @ G @ weights) + rounding:
        slack, pressure = (np.array(solution[key]).reshape(2, m) for key in "sz")
        weights = _polished(G, weights, lower, upper, active=pressure > slack)
    return weights


def excess(G: FloatArray, x: FloatArray, lower: FloatArray, upper: FloatArray) -> float:
    """Return the duality gap (x − s)ᵀGx, with s the best point for the gradient: at least the excess of ½xᵀGx."""
    gradient = G @ x
    s, left = lower.copy(), 1.0 - lower.sum()
    for k in np.argsort(gradient):
        s[k] += min(upper[k] - lower[k], left)
        left = max(left - (upper[k] - lower[k]), 0.0)
    return float((x - s) @ gradient)


def _polished(
    G: FloatArray, x: FloatArray, lower: FloatArray, upper: FloatArray, active: NDArray[np.bool_]
) -> FloatArray:
    """Return the exact solution near x by the primal active-set method, where lengths of updates differ widely.

    `active`, shape (2, m), says which lower and which upper bounds seem to hold with equality.
    """
    lengths = np.sqrt(np.diag(G))
    lengths[lengths == 0.0] = 1.0
    at_lower, at_upper = active
    y = np.where(at_lower, lower, np.where(at_upper, upper, x))
    for _ in range(min(3 * len(x), max(10, int(POLISHING_WORK / len(x) ** 3)))):
        free = ~(at_lower | at_upper)
        if not free.any():
            free[np.argmax(np.where(at_upper, G @ y, -np.inf))] = True
        target, nu = _on_face(G, y, free, lengths)
        below, beyond = target < lower, target > upper
        if (below | beyond).any():  # go as far as the first bound
            with np.errstate(divide="ignore", invalid="ignore"):
                room = np.where(below, (lower - y) / (target - y), (upper - y) / (target - y))
            k = int(np.argmin(np.where(below | beyond, room, np.inf)))
            y += room[k] * (target - y)
            y[k], at_lower[k], at_upper[k] = (lower if below[k] else upper)[k], below[k], beyond[k]
            continue
        y = target
        pull = (G @ y - nu) / lengths
        wrong = np.where(at_lower, -pull, np.where(at_upper, pull, 0.0))
        k = int(np.argmax(wrong))
        if wrong[k] <= 1e-13 * (y @ lengths):
            break
        at_lower[k] = at_upper[k] = False
    feasible = abs(y.sum() - 1.0) < 1e-12 and (y >= lower).all() and (y <= upper).all()
    return y if feasible and y @ G @ y <= x @ G @ x else x


def _on_face(G: FloatArray, y: FloatArray, free: NDArray[np.bool_], lengths: FloatArray) -> tuple[FloatArray, float]:
    """Return the minimiser with all but the `free` weights fixed, and the multiplier of Σλ = 1."""
    fixed = np.where(free, 0.0, y)
    size = int(free.sum())
    unit = G[np.ix_(free, free)] / np.outer(lengths[free], lengths[free])
    shares = lengths.min() / lengths[free]
    system = np.block([[unit, -shares[:, None]], [shares[None, :], np.zeros((1, 1))]])
    right = np.append(-(G @ fixed)[free] / lengths[free], (1.0 - fixed.sum()) * lengths.min())
    solution = np.linalg.lstsq(system, right, rcond=None)[0]
    target = fixed.copy()
    target[free] = solution[:size] / lengths[free]
    return target, float(solution[size] * lengths.min())
