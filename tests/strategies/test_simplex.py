"""The projection on the simplex and the shortest combination, by their optimality conditions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbloom.rounds.method import FloatArray
from fairbloom.strategies.simplex import project, shortest

from .helpers import edgy_updates
from .reference import nearest_in_simplex

vectors = st.lists(st.floats(-50.0, 50.0), min_size=1, max_size=12).map(np.array)


def bisected(v: FloatArray) -> FloatArray:
    return np.array(list(nearest_in_simplex(dict(enumerate(v))).values()))


# Projection: reductions ---------------------------------------------------------------------------------------------


@given(v=st.lists(st.floats(0.001, 1.0), min_size=1, max_size=12).map(np.array))
def test_a_point_of_the_simplex_is_its_own_projection(v: FloatArray) -> None:
    np.testing.assert_allclose(project(v / v.sum()), v / v.sum(), atol=1e-15)


@pytest.mark.parametrize("value", [-1e30, -3.0, 0.0, 1e-30, 0.5, 1e30])
def test_one_entry_and_equal_entries(value: float) -> None:
    assert project(np.array([value])).tolist() == [1.0]
    np.testing.assert_allclose(project(np.full(4, value)), 0.25, rtol=1e-15)


# Projection: closed forms -------------------------------------------------------------------------------------------


@given(a=st.floats(-2.0, 2.0), b=st.floats(-2.0, 2.0))
def test_two_entries_have_a_closed_form(a: float, b: float) -> None:
    first = np.clip(0.5 * (1.0 + a - b), 0.0, 1.0)
    np.testing.assert_allclose(project(np.array([a, b])), [first, 1.0 - first], atol=1e-15)


def test_it_is_not_clipping_and_renormalising() -> None:
    v = np.array([0.9, 0.5, -0.2])
    np.testing.assert_allclose(project(v), [0.7, 0.3, 0.0], atol=1e-15)
    assert not np.allclose(project(v), np.maximum(v, 0.0) / np.maximum(v, 0.0).sum(), atol=0.01)


# Projection: properties ---------------------------------------------------------------------------------------------


@given(v=vectors)
def test_the_projection_satisfies_the_kkt_conditions(v: FloatArray) -> None:
    """v − x is one number θ where x > 0 and at most θ elsewhere."""
    x = project(v)
    assert x.min() >= 0.0
    assert x.sum() == pytest.approx(1.0, abs=1e-13)
    theta = (v - x)[x > 0]
    np.testing.assert_allclose(theta, theta[0], atol=1e-12)
    assert (v[x == 0] <= theta[0] + 1e-12).all()


@given(v=vectors)
def test_the_projection_is_the_one_by_bisection(v: FloatArray) -> None:
    np.testing.assert_allclose(project(v), bisected(v), atol=1e-12)


@given(v=vectors, shift=st.floats(-100.0, 100.0), seed=st.integers(0, 99))
def test_a_common_shift_and_the_order_do_not_matter(v: FloatArray, shift: float, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(v))
    np.testing.assert_allclose(project(v + shift), project(v), atol=1e-12)
    np.testing.assert_allclose(project(v[order]), project(v)[order], atol=1e-13)


@given(v=vectors, u=vectors)
def test_the_projection_brings_no_two_points_further_apart(v: FloatArray, u: FloatArray) -> None:
    m = min(len(u), len(v))
    u, v = u[:m], v[:m]
    assert np.linalg.norm(project(u) - project(v)) <= np.linalg.norm(u - v) + 1e-12


# Projection: edge cases ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("v", "expected"),
    [
        ([1e30, 0.0, -1e30], [1.0, 0.0, 0.0]),
        ([1e30, 1e30, 0.0], [0.5, 0.5, 0.0]),
        ([-1e30, -1e30], [0.5, 0.5]),
        ([1e30, 0.5, 0.5], [1.0, 0.0, 0.0]),
        ([-1e30, 0.3, 0.3], [0.0, 0.5, 0.5]),
        ([1e-30, 0.0], [0.5, 0.5]),
        ([0.0, 1e300], [0.0, 1.0]),
    ],
)
def test_huge_and_tiny_entries(v: list[float], expected: list[float]) -> None:
    np.testing.assert_allclose(project(np.array(v)), expected, atol=1e-15)


def test_many_entries() -> None:
    v = np.random.default_rng(0).normal(size=5000)
    x = project(v)
    assert x.sum() == pytest.approx(1.0, abs=1e-12)
    np.testing.assert_allclose(x, bisected(v), atol=1e-12)


def test_the_argument_is_not_changed() -> None:
    v = np.array([3.0, -1.0, 2.0])
    project(v)
    assert v.tolist() == [3.0, -1.0, 2.0]


# The shortest combination -------------------------------------------------------------------------------------------


def degenerate(kind: str, m: int) -> FloatArray:
    """Rows whose Gram matrix is singular, or nearly so, in one way."""
    rng = np.random.default_rng(m)
    u, U = rng.normal(size=30), rng.normal(size=(m, 30)) + 0.3
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
    }[kind]


KINDS = (
    *("rank 1, one sign", "rank 1, both signs", "all equal", "opposite", "zero rows", "all zero"),
    *("more rows than columns", "more columns than rows", "pairs", "nearly equal", "of other lengths"),
    *("one huge", "one tiny"),
)


def assert_optimal(G: FloatArray, lam: FloatArray, p: FloatArray, epsilon: float) -> None:
    """Feasible, and the duality gap λᵀGλ − min_s sᵀGλ, at least half the excess, is 1e-10 of the objective."""
    lower, upper = np.maximum(p - epsilon, 0.0), np.minimum(p + epsilon, 1.0)
    assert np.isfinite(lam).all()
    assert (lower - 1e-12 <= lam).all()
    assert (lam <= upper + 1e-12).all()
    assert lam.sum() == pytest.approx(1.0, abs=1e-12)
    gradient = G @ lam
    s, left = lower.copy(), 1.0 - lower.sum()
    for k in np.argsort(gradient):  # the linear programme over the box: fill up the cheapest first
        more = min(upper[k] - lower[k], left)
        s[k], left = s[k] + more, left - more
    least = s @ gradient
    objective, size = lam @ gradient, np.trace(G) / len(G)
    assert objective - least <= 1e-10 * max(objective, 0.0) + 1e-12 * size


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("m", [1, 2, 3, 20])
@pytest.mark.parametrize("kind", KINDS)
def test_the_shortest_combination_of_degenerate_rows_has_no_duality_gap(kind: str, m: int, scale: float) -> None:
    U = scale * degenerate(kind, m)
    assert_optimal(U @ U.T, shortest(U @ U.T, np.full(m, 1.0 / m), 1.0), np.full(m, 1.0 / m), 1.0)


@pytest.mark.parametrize("epsilon", [1e-9, 0.01, 0.2])
@pytest.mark.parametrize("kind", KINDS)
def test_so_has_the_one_within_a_box(kind: str, epsilon: float) -> None:
    for m in (2, 7):
        U, n = degenerate(kind, m), 1.0 + np.arange(m)
        assert_optimal(U @ U.T, shortest(U @ U.T, n / n.sum(), epsilon), n / n.sum(), epsilon)


@pytest.mark.parametrize("kind", KINDS)
def test_three_hundred_rows(kind: str) -> None:
    m = 100 if kind in ("zero rows", "one huge", "of other lengths") else 300  # these take the exact method: seconds
    U, p = degenerate(kind, m), np.full(m, 1.0 / m)
    assert_optimal(U @ U.T, shortest(U @ U.T, p, 1.0), p, 1.0)


def test_where_nothing_is_shorter_the_prior_stays() -> None:
    p = np.array([0.1, 0.2, 0.7])
    for G in (np.zeros((3, 3)), np.eye(3)):
        np.testing.assert_array_equal(shortest(G, p, 0.0), p)
    np.testing.assert_array_equal(shortest(np.zeros((3, 3)), p, 1.0), p)
    np.testing.assert_array_equal(shortest(np.array([[4.0]]), np.ones(1), 1.0), [1.0])


@given(U=edgy_updates(min_size=2), factor=st.sampled_from((1e-30, 1e-3, 1e3, 1e30)))
def test_the_unit_of_the_rows_does_not_matter(U: FloatArray, factor: float) -> None:
    p = np.full(len(U), 1.0 / len(U))
    step = shortest(U @ U.T, p, 1.0) @ U
    scaled = shortest(factor**2 * (U @ U.T), p, 1.0) @ U
    np.testing.assert_allclose(scaled, step, atol=1e-5 * np.linalg.norm(U, axis=1).max())
