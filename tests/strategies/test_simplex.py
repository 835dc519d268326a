"""The projection on the simplex and the shortest combination, by their optimality conditions."""

import itertools
import json
import os
import platform
import signal
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.optimize import linprog

from fairbloom.rounds.arrays import FloatArray
from fairbloom.strategies.simplex import min_norm_weights, project

from .helpers import edgy_updates

vectors = st.lists(st.floats(-50.0, 50.0), min_size=1, max_size=12).map(np.array)


# Projection: properties ---------------------------------------------------------------------------


@given(
    v=vectors | st.integers(0, 9).map(lambda seed: np.random.default_rng(seed).normal(size=5000))
)
def test_the_projection_satisfies_the_kkt_conditions(v: FloatArray) -> None:
    """v − x is one number θ where x > 0 and at most θ elsewhere."""
    before = v.copy()
    x = project(v)
    assert x.min() >= 0.0
    assert x.sum() == pytest.approx(1.0, abs=1e-12)
    theta = (v - x)[x > 0]
    np.testing.assert_allclose(theta, theta[0], atol=1e-12)
    assert (v[x == 0] <= theta[0] + 1e-12).all()
    np.testing.assert_array_equal(v, before)


# Projection: edge cases ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("v", "expected"),
    [
        ([1e30, 0.0, -1e30], [1.0, 0.0, 0.0]),
        ([1e30, 1e30, 0.0], [0.5, 0.5, 0.0]),
        ([-1e30, 0.3, 0.3], [0.0, 0.5, 0.5]),
        ([1e-30, 0.0], [0.5, 0.5]),
        ([0.0, 1e300], [0.0, 1.0]),
    ],
)
def test_huge_and_tiny_entries(v: list[float], expected: list[float]) -> None:
    np.testing.assert_allclose(project(np.array(v)), expected, atol=1e-15)


# The shortest combination -------------------------------------------------------------------------


def degenerate(m: int) -> dict[str, FloatArray]:
    """Return rows with a Gram matrix that is singular, or nearly so, each in another way."""
    rng = np.random.default_rng(m)
    u = rng.normal(size=30)
    U = rng.normal(size=(m, 30)) + 0.3
    return {
        "rank 1, one sign": np.outer(rng.uniform(0.5, 2.0, m), u),
        "rank 1, both signs": np.outer(rng.normal(size=m), u),
        "all equal": np.tile(u, (m, 1)),
        "opposite": np.outer((-1.0) ** np.arange(m), u),
        "zero rows": U * (np.arange(m) % 3 != 0)[:, None],
        "all zero": np.zeros((m, 30)),
        "more rows than columns": U[:, : max(m // 3, 1)],
        "more columns than rows": np.hstack([U] * 3) + 0.1,
        "pairs": np.repeat(U, 2, axis=0)[:m],
        "nearly equal": u + 1e-7 * rng.normal(size=(m, 30)),
        "of other lengths": U * 10.0 ** rng.integers(-6, 7, (m, 1)),
        "one huge": U * np.where(np.arange(m) == 0, 1e30, 1.0)[:, None],
        "one tiny": U * np.where(np.arange(m) == 0, 1e-30, 1.0)[:, None],
    }


def assert_optimal(G: FloatArray, lam: FloatArray, p: FloatArray, epsilon: float) -> None:
    """Feasible, and the duality gap λᵀGλ − min_s sᵀGλ, at least half the excess, is 1e-10 of the
    objective."""
    lower = np.maximum(p - epsilon, 0.0)
    upper = np.minimum(p + epsilon, 1.0)
    assert np.isfinite(lam).all()
    assert (lower - 1e-12 <= lam).all()
    assert (lam <= upper + 1e-12).all()
    assert lam.sum() == pytest.approx(1.0, abs=1e-12)
    gradient = G @ lam
    s = lower.copy()
    left = 1.0 - lower.sum()
    for k in np.argsort(gradient):  # the linear programme over the box: fill up the cheapest first
        more = min(upper[k] - lower[k], left)
        s[k], left = s[k] + more, left - more
    least = s @ gradient
    objective = lam @ gradient
    assert objective - least <= 1e-10 * max(objective, 0.0) + 1e-12 * (np.trace(G) / len(G))


def test_degenerate_rows_leave_no_duality_gap() -> None:
    """Also within a box around a prior that is not uniform."""
    free = itertools.product((1, 2, 3, 20, 100), (1e-30, 1.0, 1e30), (1.0,))
    for m, scale, epsilon in (*free, *itertools.product((2, 7), (1.0,), (1e-9, 0.01, 0.2))):
        n = np.ones(m) if epsilon == 1.0 else 1.0 + np.arange(m)
        p = n / n.sum()
        for U in degenerate(m).values():
            G = scale * U @ (scale * U).T
            assert_optimal(G, min_norm_weights(G, p, epsilon), p, epsilon)


def test_where_nothing_is_shorter_the_prior_stays() -> None:
    p = np.array([0.1, 0.2, 0.7])
    for G in (np.zeros((3, 3)), np.eye(3)):
        np.testing.assert_array_equal(min_norm_weights(G, p, 0.0), p)
    np.testing.assert_array_equal(min_norm_weights(np.zeros((3, 3)), p, 1.0), p)
    np.testing.assert_array_equal(min_norm_weights(np.array([[4.0]]), np.ones(1), 1.0), [1.0])


# The minimiser nearest to the prior ---------------------------------------------------------------


@st.composite
def related_updates(draw: st.DrawFn) -> FloatArray:
    """Few small whole numbers: rows are equal, collinear, opposite, zero, or more than their
    columns."""
    d = draw(st.integers(1, 5))
    rows = draw(
        st.lists(st.lists(st.integers(-3, 3), min_size=d, max_size=d), min_size=1, max_size=5)
    )
    member = st.tuples(
        st.integers(0, len(rows) - 1), st.sampled_from((1.0, 1.0, 1.0, 0.5, 2.0, 0.0, -1.0))
    )
    members = draw(st.lists(member, min_size=2, max_size=9))
    return np.array([factor * np.array(rows[k]) for k, factor in members])


def most_gain(U: FloatArray, x: FloatArray, p: FloatArray, epsilon: float) -> float:
    """The largest (p − x)ᵀ(q − x) over the minimisers q, by a linear programme; 0 where x is the
    one nearest to p.

    The minimisers are the q in the box with Σq = 1 that combine the updates to x's vector.
    """
    lower = np.maximum(p - epsilon, 0.0)
    upper = np.minimum(p + epsilon, 1.0)
    same = np.vstack([U.T, np.ones(len(x))])
    found = linprog(
        x - p,
        A_ub=np.vstack([same, -same]),
        b_ub=np.concatenate([same @ x, -same @ x]) + 1e-9,
        bounds=list(zip(np.minimum(lower, x), np.maximum(upper, x), strict=True)),
    )
    assert found.success
    return float((p - x) @ (found.x - x))


@given(U=related_updates(), epsilon=st.sampled_from((1.0, 0.3, 0.1, 0.02)), data=st.data())
def test_of_all_minimisers_it_is_the_one_nearest_to_the_prior(
    U: FloatArray, epsilon: float, data: st.DataObject
) -> None:
    n = data.draw(st.lists(st.sampled_from((1.0, 1.0, 2.0, 5.0)), min_size=len(U), max_size=len(U)))
    p = np.array(n) / sum(n)
    x = min_norm_weights(U @ U.T, p, epsilon)
    assert_optimal(U @ U.T, x, p, epsilon)
    assert most_gain(U, x, p, epsilon) <= 1e-5
    for i, j in itertools.combinations(range(len(U)), 2):
        if p[i] == p[j] and (U[i] == U[j]).all():
            assert x[i] == pytest.approx(x[j], abs=1e-7)


@pytest.mark.parametrize("exponent", [-15, -6, 0, 6, 15])
def test_twins_among_updates_of_other_lengths_get_equal_weights(exponent: int) -> None:
    U = np.random.default_rng(exponent + 20).normal(size=(10, 40)) + 0.3
    U[5:] *= 10.0**exponent
    U[1], U[6], U[7] = U[0], U[5], U[5]
    x = min_norm_weights(U @ U.T, np.full(10, 0.1), 1.0)
    assert_optimal(U @ U.T, x, np.full(10, 0.1), 1.0)
    np.testing.assert_allclose(x[[1, 6, 7]], x[[0, 5, 5]], atol=1e-9)


WEIGHTS = """
import json
import numpy as np
from fairbloom.rounds import vectors
from fairbloom.strategies.simplex import min_norm_weights

vectors.EXACT_NUMBERS = 0
rng = np.random.default_rng(0)
found = []
for d in (3, 40, 5000):
    for factor in (1.0, 1e-15, 1.0 + 1e-16):
        U = rng.normal(size=(9, d)) + 0.3
        U[1] = U[2] = U[0]
        U[4] = factor * U[3]
        U[6] = 0.0 if d == 40 else 2.0 * U[5]
        p = np.full(9, 1 / 9)
        found.append(min_norm_weights(U @ U.T, p, 1.0).tolist())
        single = vectors.Vectors((U.astype(np.float32),))
        x = min_norm_weights(vectors.gram_matrices(single, (single.size,))[0], p, 1.0)
        assert np.ptp(x[:3]) < 1e-9, x
        found.append(min_norm_weights(U @ U.T, p, 0.05).tolist())
print(json.dumps(found))
"""


@pytest.mark.slow
def test_processors_agree_on_the_weights(subtests: pytest.Subtests) -> None:
    """OpenBLAS has other products for each make of processor; those that this one can run are
    tried."""
    weights = {}
    x86 = ("Prescott", "Nehalem", "Haswell", "Zen", "SkylakeX")
    for kernel in x86 if platform.machine() in ("x86_64", "AMD64") else ("ARMV8", "NEOVERSEN1"):
        with subtests.test(kernel=kernel):
            done = subprocess.run(
                [sys.executable, "-c", WEIGHTS],
                env=os.environ | {"OPENBLAS_CORETYPE": kernel, "OPENBLAS_NUM_THREADS": "1"},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != -signal.SIGILL:  # an instruction that this processor lacks
                assert done.returncode == 0, done.stderr
                weights[kernel] = json.loads(done.stdout)
    if len(weights) < 2:
        pytest.skip(f"NumPy's products are {', '.join(weights)} only")
    first, *others = weights.values()
    for other in others:
        for one, another in zip(first, other, strict=True):
            np.testing.assert_allclose(one, another, atol=1e-6)
            np.testing.assert_allclose(another[:3], another[0], atol=1e-9)


@given(U=edgy_updates())
def test_an_error_of_the_solver_ends_no_round(U: FloatArray) -> None:
    prior = np.full(len(U), 1.0 / len(U))
    gram = U @ U.T
    expected = min_norm_weights(gram, prior, 1.0)

    def fails(*_: object, **__: object) -> None:
        raise ArithmeticError(3)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cvxopt.solvers.qp", fails)
        found = min_norm_weights(gram, prior, 1.0)
    assert found.sum() == pytest.approx(1.0)
    assert (found >= 0.0).all()
    assert found @ gram @ found <= expected @ gram @ expected + 1e-9 * np.trace(gram)
