"""The probability simplex: projection on it, and the best combinations of vectors by quadratic and linear programs.

The one file that imports cvxopt, which is licensed under the GPL, version 3.
"""

import cvxopt
import cvxopt.solvers
import numpy as np
from numpy.typing import NDArray

from fairbloom.rounds.method import FloatArray

SOLVER = {
    "show_progress": False,
    "abstol": 1e-13,
    "reltol": 1e-13,
    "feastol": 1e-13,
    "maxiters": 200,
}
"""The solver's default tolerances leave errors of 5e-5 in the weights."""

SOLVER_ERRORS = (ArithmeticError, ValueError)
"""What the solver raises where rounding has made a number negative whose square root it takes."""

MAX_RELATIVE_GAP = 1e-11
"""Relative excess of the objective over its minimum, as its duality gap bounds it, that is left as
it is."""

POLISHING_WORK = 2e8
"""Bounds the time of exact refinement: so many operations, in steps of m³ each, ten steps at
least."""

DEPENDENT = 1e-13
"""Squared distance from the span of other updates, relative to its squared length, at which an
update lies in it."""


def project(vector: FloatArray) -> FloatArray:
    """Return the point of the simplex that is nearest to `vector`, shape (m,).

    Source: Duchi et al., Efficient Projections onto the l1-Ball for Learning in High Dimensions,
    ICML 2008, Figure 1.
    """
    shifted = vector - vector.max()  # the projection is the same, and large entries do not cancel
    u = np.sort(shifted)[::-1]
    thresholds = (1.0 - np.cumsum(u)) / np.arange(1, len(u) + 1)
    rho = np.flatnonzero(u + thresholds > 0.0)[-1]
    point: FloatArray = np.maximum(shifted + thresholds[rho], 0.0)
    return point


def min_norm_weights(gram: FloatArray, prior: FloatArray, epsilon: float) -> FloatArray:
    """Return argmin λᵀGλ over λ in the simplex with |λ_k − p_k| ≤ `epsilon`, shape (m,).

    Where several λ give the minimum, as when two updates are equal, it is the one nearest to the
    prior p. So equal updates with equal priors get equal weights, and rounding does not decide
    which minimiser is returned. G is positive semidefinite; an `epsilon` of 1 is no box.
    """
    m = len(prior)
    scale = np.trace(gram) / m
    if m == 1 or epsilon == 0.0 or scale == 0.0:
        return prior
    G = gram / scale
    lower = np.maximum(prior - epsilon, 0.0)
    upper = np.minimum(prior + epsilon, 1.0)
    try:
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
    except SOLVER_ERRORS:
        weights = prior
        active = np.stack([prior <= lower, prior >= upper])
    else:
        weights = np.clip(np.array(solution["x"]).ravel(), lower, upper)
        weights = weights / weights.sum()
        slack, pressure = (np.array(solution[key]).reshape(2, m) for key in "sz")
        active = pressure > slack
    if not is_minimal(G, weights, lower, upper):
        weights = _polished(G, weights, lower, upper, active)
    return _nearest_minimiser(G, weights, prior, lower, upper)


def shortest_combination(rows: FloatArray, gram: FloatArray) -> FloatArray:
    """Return the shortest vector in the hull of the rows' combinations, shape (r, m), as coefficients of shape (m,).

    G has the inner products of the vectors that they combine, shape (m, m).
    """
    products = rows @ gram @ rows.T
    products = (products + products.T) / 2.0
    # of a combination that cancels out, rounding is left, of either sign
    nothing = np.diag(products) <= 0.0
    products[nothing] = 0.0
    products[:, nothing] = 0.0
    shortest: FloatArray = (
        min_norm_weights(products, np.full(len(rows), 1.0 / len(rows)), epsilon=1.0) @ rows
    )
    return shortest


def steepest_common_weights(gram: FloatArray, gains: FloatArray) -> FloatArray:
    """Return argmax gainsᵀα over α in the simplex with Gα ≥ 0, shape (m,); zeros where G is zero.

    A step along Σ α_k g_k, with G the inner products of the g_k, then raises no objective to first
    order. The shortest combination is always among the feasible ones. Vectors that are equal get
    equal weights; among other maximisers, which is returned is left open.
    """
    from scipy.optimize import linprog

    m = len(gains)
    lengths = np.sqrt(np.maximum(np.diag(gram), 0.0))
    longest = lengths.max()
    most = np.abs(gains).max()
    if longest == 0.0:
        return np.zeros(m)
    slopes = gram / np.outer(np.where(lengths > 0.0, lengths, 1.0), np.full(m, longest))
    found = linprog(
        -gains / most if most > 0.0 else gains,
        A_ub=-slopes,
        b_ub=np.zeros(m),
        A_eq=np.ones((1, m)),
        b_eq=np.ones(1),
        bounds=(0.0, 1.0),
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    # rounding has left no feasible point, and the shortest combination is one
    if not found.success:
        return min_norm_weights(gram, np.full(m, 1.0 / m), 1.0)
    weights = np.maximum(found.x, 0.0)
    _, group, sizes = np.unique(gram, axis=0, return_inverse=True, return_counts=True)
    shared: FloatArray = (np.bincount(group.ravel(), weights) / sizes)[
        group.ravel()
    ] / weights.sum()
    return shared


def duality_gap(G: FloatArray, x: FloatArray, lower: FloatArray, upper: FloatArray) -> float:
    """Return (x − s)ᵀGx, with s the best point of the boxed simplex for the gradient: at least the excess of ½xᵀGx."""
    gradient = G @ x
    s = lower.copy()
    left = 1.0 - lower.sum()
    for k in np.argsort(gradient):
        s[k] += min(upper[k] - lower[k], left)
        left = max(left - (upper[k] - lower[k]), 0.0)
    return float((x - s) @ gradient)


def is_minimal(G: FloatArray, x: FloatArray, lower: FloatArray, upper: FloatArray) -> bool:
    """Return whether xᵀGx is the minimum over the boxed simplex, to `MAX_RELATIVE_GAP` and to what rounding allows."""
    rounding = 1e-12 * (x @ np.sqrt(np.diag(G))) ** 2
    return duality_gap(G, x, lower, upper) <= MAX_RELATIVE_GAP * float(x @ G @ x) + float(rounding)


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
        # not by rounding alone
        below = target < lower * (1.0 - 1e-15)
        beyond = target > upper * (1.0 + 1e-15)
        if (below | beyond).any():  # go as far as the first bound
            with np.errstate(divide="ignore", invalid="ignore"):
                room = np.where(below, (lower - y) / (target - y), (upper - y) / (target - y))
            k = int(np.argmin(np.where(below | beyond, room, np.inf)))
            y += room[k] * (target - y)
            y[k], at_lower[k], at_upper[k] = (lower if below[k] else upper)[k], below[k], beyond[k]
            continue
        y = np.clip(target, lower, upper)
        pull = (G @ y - nu) / lengths
        wrong = np.where(at_lower, -pull, np.where(at_upper, pull, 0.0))
        k = int(np.argmax(wrong))
        if wrong[k] <= 1e-13 * (y @ lengths):
            break
        at_lower[k] = at_upper[k] = False
    feasible = abs(y.sum() - 1.0) < 1e-12 and (y >= lower).all() and (y <= upper).all()
    return y if feasible and y @ G @ y <= x @ G @ x else x


def _on_face(
    G: FloatArray, y: FloatArray, free: NDArray[np.bool_], lengths: FloatArray
) -> tuple[FloatArray, float]:
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


def _nearest_minimiser(
    G: FloatArray, x: FloatArray, prior: FloatArray, lower: FloatArray, upper: FloatArray
) -> FloatArray:
    """Return the minimiser of λᵀGλ that is nearest to the prior, given any one minimiser x."""
    moves = _neutral_moves(G, x, lower, upper)
    if not moves.size:
        return x
    wanted = moves.T @ (prior - x)
    nearest = x + moves @ wanted
    if (nearest < lower).any() or (nearest > upper).any():
        try:
            solution = cvxopt.solvers.qp(
                cvxopt.spdiag([1.0] * len(wanted)),
                cvxopt.matrix(-wanted),
                cvxopt.matrix(np.vstack([-moves, moves])),
                cvxopt.matrix(np.maximum(np.concatenate([x - lower, upper - x]), 0.0)),
                options=SOLVER,
            )
        except SOLVER_ERRORS:
            return x
        nearest = x + moves @ np.array(solution["x"]).ravel()
    nearest = np.clip(nearest, lower, upper)
    nearest /= nearest.sum()
    lengths = np.sqrt(np.diag(G))
    rounding = 1e-15 * len(x) * (x @ lengths) ** 2 + (1e-15 * lengths.max()) ** 2
    return (
        nearest if nearest @ G @ nearest <= (1.0 + MAX_RELATIVE_GAP) * (x @ G @ x) + rounding else x
    )


def _neutral_moves(
    G: FloatArray, x: FloatArray, lower: FloatArray, upper: FloatArray
) -> FloatArray:
    """Return an orthonormal basis, shape (m, k), of the moves from the minimiser x that change neither Σλu nor Σλ.

    There are none (k = 0) where the updates that can share in the minimum are independent: a
    Cholesky factorisation says so, which costs little beside the QP. Updates whose bound holds them
    off the minimum are left out.
    """
    lengths = np.sqrt(np.diag(G))
    # rounding of the slope is relative to the reach
    slope = G @ x
    reach = lengths * (x @ lengths)
    inside = (x > lower + 1e-7) & (x < upper - 1e-7)
    pull = slope - (slope[inside][np.argmin(lengths[inside])] if inside.any() else 0.0)
    (free,) = np.nonzero(inside | ~inside.any() | (np.abs(pull) <= 1e-6 * reach))
    combinations = _combinations(G[np.ix_(free, free)])
    combinations = _kept(
        combinations, combinations.sum(axis=0), 1e-12 * np.abs(combinations).sum(axis=0)
    )
    first_order = pull[free] @ combinations
    rounding = 1e-12 * (x @ slope) + 1e-14 * len(x) * (reach[free] @ np.abs(combinations))
    combinations = _kept(combinations, first_order, rounding)
    moves = np.zeros((len(x), combinations.shape[1]))
    moves[free] = np.linalg.qr(combinations)[0]
    return moves


def _kept(vectors: FloatArray, changes: FloatArray, rounding: FloatArray) -> FloatArray:
    """Return a basis of those combinations of the columns that leave a linear quantity as it is.

    `changes`, shape (k,), says by how much each column changes that quantity, `rounding` how much
    of it is rounding.
    """
    changes = np.where(np.abs(changes) > rounding, changes, 0.0)
    if not changes.any():
        return vectors
    axes = np.linalg.svd(changes[None, :])[2]
    kept: FloatArray = vectors @ axes[1:].T
    return kept


def _combinations(G: FloatArray) -> FloatArray:
    """Return a basis, shape (m, k), of the weights that combine the updates to zero, by pivoted Cholesky.

    Each column is one update that lies in the span of others, less its combination of those. Pivots
    are taken by their length, so that the entries stay small where lengths differ widely.
    """
    m = len(G)
    lengths = np.sqrt(np.diag(G))
    lengths[lengths == 0.0] = 1.0
    try:
        np.linalg.cholesky(G / np.outer(lengths, lengths) - DEPENDENT * np.eye(m))
    except np.linalg.LinAlgError:
        pass
    else:
        return np.zeros((m, 0))
    factor = np.zeros((m, m))
    left = np.diag(G).copy()
    least = DEPENDENT * left
    pivots = list[int]()
    while (left > least).any():
        pivot = int(np.argmax(np.where(left > least, left, 0.0)))
        size = len(pivots)
        column = (G[:, pivot] - factor[:, :size] @ factor[pivot, :size]) / np.sqrt(left[pivot])
        factor[:, size] = column
        left -= column**2
        left[pivot] = 0.0
        pivots.append(pivot)
    others = np.setdiff1d(np.arange(m), pivots)
    basis = np.zeros((m, len(others)))
    basis[others, np.arange(len(others))] = 1.0
    size = len(pivots)
    basis[pivots] = -np.linalg.solve(factor[pivots, :size].T, factor[others, :size].T)
    return basis
