"""The probability simplex: projection, and best combinations of vectors by convex programs.

No other file imports cvxopt, which is licensed under the GPL, version 3.
"""

import contextlib

import cvxopt.solvers
import numpy as np
from numpy.typing import NDArray

from fairbloom.rounds.method import FloatArray

# With its default tolerances, the solver leaves errors of 5e-5 in the weights.
SOLVER = {
    "show_progress": False,
    "abstol": 1e-13,
    "reltol": 1e-13,
    "feastol": 1e-13,
    "maxiters": 200,
}

# The solver's errors if rounding makes a number negative before its square root is taken.
SOLVER_ERRORS = (ArithmeticError, ValueError)

# Largest relative excess of the objective over its minimum, bounded by the duality gap, that is
# accepted without refinement.
MAX_RELATIVE_GAP = 1e-11

# Bound on the operations of exact refinement, in steps of m³ each; at least ten steps.
POLISHING_WORK = 2e8

# An update counts as in the span of others up to this squared distance from it, relative to the
# update's squared norm.
DEPENDENT = 1e-13


def project(vector: FloatArray) -> FloatArray:
    """Return the point of the simplex that is nearest to `vector`, shape (m,).

    Source: Duchi et al., Efficient Projections onto the l1-Ball for Learning in High Dimensions,
    ICML 2008, Figure 1.
    """
    shifted = vector - vector.max()  # same projection, and large entries do not cancel
    u = np.sort(shifted)[::-1]
    thresholds = (1.0 - np.cumsum(u)) / np.arange(1, len(u) + 1)
    rho = np.flatnonzero(u + thresholds > 0.0)[-1]
    return np.asarray(np.maximum(shifted + thresholds[rho], 0.0))


def min_norm_weights(gram: FloatArray, prior: FloatArray, epsilon: float) -> FloatArray:
    """Return argmin λᵀGλ over λ in the simplex with |λ_k − p_k| ≤ `epsilon`, shape (m,).

    If several λ are minimal, for example with two equal updates, the one nearest to the prior p is
    returned. So equal updates with equal priors get equal weights, and the minimiser does not
    depend on rounding. G is positive semidefinite; with `epsilon` 1 the box has no effect.
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
        active = (np.array(solution["z"]) > np.array(solution["s"])).reshape(2, m)
    if not is_minimal(G, weights, lower, upper):
        weights = _polished(G, weights, lower, upper, active)
    return _nearest_minimiser(G, weights, prior, lower, upper)


def shortest_combination(rows: FloatArray, gram: FloatArray) -> FloatArray:
    """Return the shortest vector in the hull of combinations of vectors, as coefficients.

    `rows`, shape (r, m), has the combinations, and G, shape (m, m), the inner products of the
    vectors. The coefficients have shape (m,).
    """
    products = rows @ gram @ rows.T
    products = (products + products.T) / 2.0
    # A combination that cancels out leaves only rounding, of either sign.
    cancelled = np.diag(products) <= 0.0
    products[cancelled] = 0.0
    products[:, cancelled] = 0.0
    prior = np.full(len(rows), 1.0 / len(rows))
    return np.asarray(min_norm_weights(products, prior, epsilon=1.0) @ rows)


def steepest_common_weights(gram: FloatArray, gains: FloatArray) -> FloatArray:
    """Return argmax gainsᵀα over α in the simplex with Gα ≥ 0, shape (m,); zeros if G is zero.

    G has the inner products of vectors g_k: to first order, a step along Σ α_k g_k raises no
    objective. The shortest combination is always feasible. Equal vectors get equal weights;
    otherwise any maximiser may be returned.
    """
    from scipy.optimize import linprog  # imported late, because only FCFL needs it

    m = len(gains)
    norms = np.sqrt(np.maximum(np.diag(gram), 0.0))
    largest_norm = norms.max()
    if largest_norm == 0.0:
        return np.zeros(m)
    # Both scalings are for the solver's absolute tolerances.
    slopes = gram / np.outer(np.where(norms > 0.0, norms, 1.0), np.full(m, largest_norm))
    largest_gain = np.abs(gains).max()
    result = linprog(
        -gains / largest_gain if largest_gain > 0.0 else gains,
        A_ub=-slopes,
        b_ub=np.zeros(m),
        A_eq=np.ones((1, m)),
        b_eq=np.ones(1),
        bounds=(0.0, 1.0),
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    # Rounding can leave no feasible point; the shortest combination is one in exact arithmetic.
    if not result.success:
        return min_norm_weights(gram, np.full(m, 1.0 / m), 1.0)
    weights = np.maximum(result.x, 0.0)
    _, groups, sizes = np.unique(gram, axis=0, return_inverse=True, return_counts=True)
    groups = groups.ravel()
    return np.asarray((np.bincount(groups, weights) / sizes)[groups] / weights.sum())


def duality_gap(G: FloatArray, x: FloatArray, lower: FloatArray, upper: FloatArray) -> float:
    """Return (x − s)ᵀGx, an upper bound on the excess of ½xᵀGx over its minimum.

    s minimises the linearised objective over the boxed simplex.
    """
    gradient = G @ x
    order = np.argsort(gradient)
    room = (upper - lower)[order]
    before = np.cumsum(room) - room  # what the entries with smaller slopes take
    s = lower.copy()
    s[order] += np.clip(1.0 - lower.sum() - before, 0.0, room)
    return float((x - s) @ gradient)


def is_minimal(G: FloatArray, x: FloatArray, lower: FloatArray, upper: FloatArray) -> bool:
    """Return whether x minimises xᵀGx over the boxed simplex.

    An excess of MAX_RELATIVE_GAP, and of rounding, is allowed.
    """
    rounding = 1e-12 * (x @ np.sqrt(np.diag(G))) ** 2
    return duality_gap(G, x, lower, upper) <= MAX_RELATIVE_GAP * float(x @ G @ x) + float(rounding)


def _polished(
    G: FloatArray, x: FloatArray, lower: FloatArray, upper: FloatArray, active: NDArray[np.bool_]
) -> FloatArray:
    """Return the exact solution near x by the primal active-set method.

    The solver's solution is not exact if the norms of updates differ widely. `active`, shape (2,
    m), marks the lower and the upper bounds that seem to hold with equality.
    """
    norms = np.sqrt(np.diag(G))
    norms[norms == 0.0] = 1.0
    at_lower, at_upper = active
    y = np.where(at_lower, lower, np.where(at_upper, upper, x))
    for _ in range(min(3 * len(x), max(10, int(POLISHING_WORK / len(x) ** 3)))):
        free = ~(at_lower | at_upper)
        if not free.any():
            free[np.argmax(np.where(at_upper, G @ y, -np.inf))] = True
        target, nu = _on_face(G, y, free, norms)
        # 1e-15, because rounding must not count as beyond a bound
        below = target < lower * (1.0 - 1e-15)
        beyond = target > upper * (1.0 + 1e-15)
        if (below | beyond).any():  # step to the first bound on the way
            with np.errstate(divide="ignore", invalid="ignore"):
                room = np.where(below, (lower - y) / (target - y), (upper - y) / (target - y))
            k = int(np.argmin(np.where(below | beyond, room, np.inf)))
            y += room[k] * (target - y)
            y[k] = lower[k] if below[k] else upper[k]
            at_lower[k] = below[k]
            at_upper[k] = beyond[k]
            continue
        y = np.clip(target, lower, upper)
        pull = (G @ y - nu) / norms
        wrong = np.where(at_lower, -pull, np.where(at_upper, pull, 0.0))
        k = int(np.argmax(wrong))
        if wrong[k] <= 1e-13 * (y @ norms):
            break
        at_lower[k] = at_upper[k] = False
    feasible = abs(y.sum() - 1.0) < 1e-12 and (y >= lower).all() and (y <= upper).all()
    return y if feasible and y @ G @ y <= x @ G @ x else x


def _on_face(
    G: FloatArray, y: FloatArray, free: NDArray[np.bool_], norms: FloatArray
) -> tuple[FloatArray, float]:
    """Return the minimiser with all but the `free` weights fixed, and the multiplier of Σλ = 1."""
    fixed = np.where(free, 0.0, y)
    size = int(free.sum())
    unit = G[np.ix_(free, free)] / np.outer(norms[free], norms[free])
    shares = norms.min() / norms[free]
    system = np.block([[unit, -shares[:, None]], [shares[None, :], np.zeros((1, 1))]])
    right = np.append(-(G @ fixed)[free] / norms[free], (1.0 - fixed.sum()) * norms.min())
    solution = np.linalg.lstsq(system, right, rcond=None)[0]
    target = fixed.copy()
    target[free] = solution[:size] / norms[free]
    return target, float(solution[size] * norms.min())


def _nearest_minimiser(
    G: FloatArray, x: FloatArray, prior: FloatArray, lower: FloatArray, upper: FloatArray
) -> FloatArray:
    """Return the minimiser of λᵀGλ that is nearest to the prior, given any minimiser x."""
    moves = _neutral_moves(G, x, lower, upper)
    if not moves.size:
        return x
    wanted = moves.T @ (prior - x)
    nearest = x + moves @ wanted
    if (nearest < lower).any() or (nearest > upper).any():
        room = np.maximum(np.concatenate([x - lower, upper - x]), 0.0)
        try:
            solution = cvxopt.solvers.qp(
                cvxopt.spdiag([1.0] * len(wanted)),
                cvxopt.matrix(-wanted),
                cvxopt.matrix(np.vstack([-moves, moves])),
                cvxopt.matrix(room),
                options=SOLVER,
            )
        except SOLVER_ERRORS:
            return x
        nearest = x + moves @ np.array(solution["x"]).ravel()
    nearest = np.clip(nearest, lower, upper)
    nearest /= nearest.sum()
    norms = np.sqrt(np.diag(G))
    rounding = 1e-15 * len(x) * (x @ norms) ** 2 + (1e-15 * norms.max()) ** 2
    if nearest @ G @ nearest > (1.0 + MAX_RELATIVE_GAP) * (x @ G @ x) + rounding:
        return x
    return nearest


def _neutral_moves(
    G: FloatArray, x: FloatArray, lower: FloatArray, upper: FloatArray
) -> FloatArray:
    """Return an orthonormal basis of the moves that change neither Σλu nor Σλ, shape (m, k).

    The moves start from the minimiser x. There are none (k = 0) if the updates that can share in
    the minimum are independent, which a Cholesky factorisation shows at little cost compared with
    the QP. Updates that their bound holds off the minimum are left out.
    """
    norms = np.sqrt(np.diag(G))
    slope = G @ x
    reach = norms * (x @ norms)  # the rounding of the slope is relative to it
    inside = (x > lower + 1e-7) & (x < upper - 1e-7)
    pull = slope - slope[inside][np.argmin(norms[inside])] if inside.any() else slope
    (free,) = np.nonzero(inside | ~inside.any() | (np.abs(pull) <= 1e-6 * reach))
    combinations = _combinations(G[np.ix_(free, free)])
    combinations = _neutral(
        combinations, combinations.sum(axis=0), 1e-12 * np.abs(combinations).sum(axis=0)
    )
    rounding = 1e-12 * (x @ slope) + 1e-14 * len(x) * (reach[free] @ np.abs(combinations))
    combinations = _neutral(combinations, pull[free] @ combinations, rounding)
    moves = np.zeros((len(x), combinations.shape[1]))
    moves[free] = np.linalg.qr(combinations)[0]
    return moves


def _neutral(vectors: FloatArray, changes: FloatArray, rounding: FloatArray) -> FloatArray:
    """Return a basis of the combinations of columns that do not change a linear quantity.

    `changes`, shape (k,), has the change of the quantity by each column. A change up to `rounding`
    counts as none.
    """
    changes = np.where(np.abs(changes) > rounding, changes, 0.0)
    if not changes.any():
        return vectors
    axes = np.linalg.svd(changes[None, :])[2]
    return np.asarray(vectors @ axes[1:].T)


def _combinations(G: FloatArray) -> FloatArray:
    """Return a basis, shape (m, k), of the weights that combine the updates to zero.

    It is found by pivoted Cholesky. Each column is an update in the span of others, minus its
    combination of these. The longest remaining update is the next pivot, so that entries stay small
    if norms differ widely.
    """
    m = len(G)
    norms = np.sqrt(np.diag(G))
    norms[norms == 0.0] = 1.0
    with contextlib.suppress(np.linalg.LinAlgError):
        np.linalg.cholesky(G / np.outer(norms, norms) - DEPENDENT * np.eye(m))
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
