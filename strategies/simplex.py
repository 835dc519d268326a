"""The probability simplex: the shortest combination of vectors, by quadratic programming.

The one file that imports cvxopt, which is licensed under the GPL, version 3.
"""

import cvxopt
import cvxopt.solvers
import numpy as np

from .cohort import FloatArray

SOLVER = {"show_progress": False, "abstol": 1e-13, "reltol": 1e-13, "feastol": 1e-13, "maxiters": 200}
"""The solver's default tolerances leave errors of 5e-5 in the weights."""


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
    lower, upper = np.maximum(prior - epsilon, 0.0), np.minimum(prior + epsilon, 1.0)
    box = cvxopt.spmatrix([-1.0] * m + [1.0] * m, range(2 * m), [*range(m), *range(m)])
    solution = cvxopt.solvers.qp(
        cvxopt.matrix(gram / scale),
        cvxopt.matrix(0.0, (m, 1)),
        box,
        cvxopt.matrix(np.concatenate([-lower, upper])),
        cvxopt.matrix(1.0, (1, m)),
        cvxopt.matrix(1.0),
        initvals={"x": cvxopt.matrix(prior)},
        options=SOLVER,
    )
    weights: FloatArray = np.clip(np.array(solution["x"]).ravel(), lower, upper)
    weights /= weights.sum()
    return weights
