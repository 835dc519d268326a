"""Defences: each against its definition on vectors, their effect on methods, and what they leave
alone."""

from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, RecordDict
from flwr.serverapp.strategy.multikrum import select_multikrum
from hypothesis import example, given, strategies as st

from fairbloom.rounds import defences
from fairbloom.rounds.arrays import FloatArray
from fairbloom.rounds.cohort import Cohort
from fairbloom.rounds.defences import MIXING, WEIGHING, Defence, mixed
from fairbloom.rounds.vectors import Vectors

POWERS = st.integers(-6, 6)

SIZES = [(3, 1), (4, 1), (7, 2), (10, 3), (11, 5)]


def updates(m: int, seed: int = 0) -> FloatArray:
    rows = np.random.default_rng(seed).normal(size=(m, 40))
    rows[0] *= 10.0
    return np.asarray(rows)


def cohort_of(rows: FloatArray) -> Cohort:
    m = len(rows)
    return Cohort(
        round=1,
        names=tuple(f"c{k:02d}" for k in range(m)),
        counts=np.ones(m),
        prior=np.full(m, 1.0 / m),
        draws=np.ones(m),
        gram_of=lambda: rows @ rows.T,
        grams_of=lambda: np.stack([rows[:, :15] @ rows[:, :15].T, rows[:, 15:] @ rows[:, 15:].T]),
        squared_norms_of=lambda: (rows**2).sum(axis=1),
        arrays=("a", "b"),
    )


@pytest.mark.parametrize(("m", "f"), SIZES)
def test_nnm_averages_the_nearest_as_vectors_have_it(m: int, f: int) -> None:
    rows = updates(m)
    distances = np.linalg.norm(rows[:, None] - rows[None, :], axis=2)
    np.testing.assert_allclose(
        defences.nearest_neighbours(rows @ rows.T, f) @ rows,
        np.stack([rows[np.argsort(distances[k])[: m - f]].mean(axis=0) for k in range(m)]),
        atol=1e-12,
    )


def test_nnm_of_equal_updates_goes_by_name() -> None:
    np.testing.assert_array_equal(
        defences.nearest_neighbours(np.ones((4, 4)), 1)[3] > 0.0, [True, True, False, True]
    )


def test_clip_shortens_to_the_lower_median() -> None:
    rows = np.diag([0.0, 1.0, 2.0, 3.0])
    np.testing.assert_allclose(
        np.linalg.norm(defences.clip(rows @ rows.T) @ rows, axis=1), [0.0, 1.0, 1.0, 1.0]
    )


@pytest.mark.parametrize(("m", "f"), SIZES)
def test_krum_chooses_the_update_nearest_to_the_others(m: int, f: int) -> None:
    rows = updates(m)
    distances = np.linalg.norm(rows[:, None] - rows[None, :], axis=2) ** 2
    scores = np.sort(distances, axis=1)[:, 1 : max(2, m - f - 1)].sum(axis=1)
    chosen = defences.krum(rows @ rows.T, f)
    np.testing.assert_array_equal(chosen, np.arange(m) == scores.argmin())
    replies = [RecordDict({"arrays": ArrayRecord({"w": Array(each)})}) for each in rows]
    if m - f - 2 >= 2:  # with one neighbour, two updates always tie
        (flowers,) = select_multikrum(replies, num_malicious_nodes=f, num_nodes_to_select=1)
        assert flowers is replies[int(chosen.argmax())]


@pytest.mark.parametrize("m", [m for m, _ in SIZES])
def test_at_the_geometric_median_unit_vectors_sum_to_zero(m: int) -> None:
    rows = updates(m)
    median = defences.geometric_median(rows @ rows.T) @ rows
    towards = (rows - median) / np.linalg.norm(rows - median, axis=1, keepdims=True)
    assert np.linalg.norm(towards.sum(axis=0)) < 1e-5


@given(
    m=st.integers(3, 11), place=st.sampled_from([0.0, 1.0]), seed=st.integers(0, 99), power=POWERS
)
@example(m=7, place=0.0, seed=0, power=2)
def test_where_most_updates_lie_is_their_geometric_median(
    m: int, place: float, seed: int, power: int
) -> None:
    rows = updates(m, seed)
    rows[: m // 2 + 1] = place
    weights = defences.geometric_median(rows @ rows.T)
    assert np.abs(weights @ rows - place).max() < 1e-4 * np.abs(rows).max()
    rows *= 10.0**power
    np.testing.assert_allclose(defences.geometric_median(rows @ rows.T), weights, atol=1e-6)


@pytest.mark.parametrize(("m", "f"), SIZES)
def test_the_trimmed_mean_leaves_the_extremes_out(m: int, f: int) -> None:
    rows = updates(m)
    mean, weights = defences.trimmed_mean(Vectors((rows,)), f)
    np.testing.assert_allclose(mean, np.sort(rows, axis=0)[f : m - f].mean(axis=0))
    places = np.argsort(np.argsort(rows, axis=0), axis=0)
    np.testing.assert_allclose(
        weights, ((places >= f) & (places < m - f)).mean(axis=1) / (m - 2 * f)
    )


def test_equal_values_share_what_a_trimmed_mean_leaves() -> None:
    """The middle is 1 and 1, of three; then 0 and 1, where one of two zeros is left out; then the
    same four times."""
    rows = np.array([[1.0, 0.0, 2.0], [1.0, 0.0, 2.0], [1.0, 1.0, 2.0], [0.0, 3.0, 2.0]])
    mean, weights = defences.trimmed_mean(Vectors((rows,)), 1)
    np.testing.assert_array_equal(mean, [1.0, 0.5, 2.0])
    by_number = np.array(
        [[1 / 3, 1 / 3, 1 / 3, 0.0], [1 / 4, 1 / 4, 1 / 2, 0.0], [1 / 4, 1 / 4, 1 / 4, 1 / 4]]
    )
    np.testing.assert_allclose(weights, by_number.mean(axis=0))


@pytest.mark.parametrize("name", ["krum", "geometric-median"])
def test_a_kept_row_is_no_client_to_a_weighing_defence(name: str) -> None:
    rows = updates(5)
    alone = Defence(name, 1).weights(cohort_of(rows))
    more = np.vstack([rows, rows.mean(axis=0)])  # the mean is the nearest to all
    cohort = replace(cohort_of(rows), memory=(None,), gram_of=(more @ more.T).copy)  # type: ignore[arg-type]
    weights = Defence(name, 1).weights(cohort)
    assert alone is not None
    assert weights is not None
    np.testing.assert_array_equal(weights, np.append(alone, 0.0))


@pytest.mark.parametrize("name", MIXING)
def test_mixed_cohorts_have_the_products_of_mixed_vectors(name: str) -> None:
    rows = updates(7)
    cohort = cohort_of(rows)
    mixing = Defence(name, 0).mixing(cohort)
    assert mixing is not None
    seen = mixed(cohort, mixing)
    after = mixing @ rows
    np.testing.assert_allclose(seen.gram, after @ after.T, atol=1e-9)
    np.testing.assert_allclose(seen.grams.sum(axis=0), seen.gram, atol=1e-9)
    np.testing.assert_allclose(seen.squared_norms, (after**2).sum(axis=1), atol=1e-9)


def test_kept_rows_stay_as_they_are_and_second_ones_are_mixed() -> None:
    rows = updates(9)  # four updates, four second ones, one kept
    mixing = Defence("nnm", 1).mixing(
        replace(cohort_of(rows[:4]), second=True, memory=(None,), gram_of=lambda: rows @ rows.T)
    )
    assert mixing is not None
    np.testing.assert_array_equal(mixing[:4, :4], mixing[4:8, 4:8])
    np.testing.assert_array_equal(mixing[8], np.eye(9)[8])
    assert not mixing[:4, 4:].any()


@pytest.mark.parametrize(
    ("m", "asked", "tolerated"),
    [(4, 0, 1), (12, 0, 3), (3, 2, 1), (2, 0, 0), (1, 1, 0), (10, 2, 2)],
)
def test_fewer_than_half_of_a_round_are_tolerated(m: int, asked: int, tolerated: int) -> None:
    assert Defence("nnm", asked).tolerated(m) == tolerated


@pytest.mark.parametrize("name", [*MIXING, *WEIGHING])
def test_two_clients_cannot_be_defended(name: str) -> None:
    assert Defence(name, 0).mixing(cohort_of(updates(2))) is None


@pytest.mark.parametrize("name", ["clip", "nnm", "geometric-median", "krum"])
def test_an_update_far_off_is_left_out(name: str) -> None:
    rows = np.random.default_rng(1).normal(size=(8, 40)) + 3.0
    rows[5] *= -20.0
    cohort = cohort_of(rows)
    defence = Defence(name, 0)
    mixing = defence.mixing(cohort)
    weights = defence.weights(cohort)
    left_out = defence.left_out(cohort.names, mixing, cohort.prior if weights is None else weights)
    assert "c05" in left_out
    assert len(left_out) == {"krum": 7, "nnm": 2}.get(name, 1)


def test_of_two_clients_none_is_left_out() -> None:
    assert Defence("nnm", 0).left_out(("a", "b"), None, np.array([0.9, 0.1])) == ()
