"""Defences: each against its definition on vectors, their effect on methods, and what they leave
alone."""

from dataclasses import replace

import numpy as np
import pytest

from fairbloom.rounds import defences
from fairbloom.rounds.arrays import FloatArray
from fairbloom.rounds.cohort import Cohort
from fairbloom.rounds.defences import MIXERS, Defence, left_out, mixed

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


@pytest.mark.parametrize("name", MIXERS)
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


@pytest.mark.parametrize("name", MIXERS)
def test_two_clients_cannot_be_defended(name: str) -> None:
    assert Defence(name, 0).mixing(cohort_of(updates(2))) is None


@pytest.mark.parametrize(("name", "count"), [("clip", 1), ("nnm", 2)])
def test_an_update_far_off_is_left_out(name: str, count: int) -> None:
    rows = np.random.default_rng(1).normal(size=(8, 40)) + 3.0
    rows[5] *= -20.0
    cohort = cohort_of(rows)
    found = left_out(cohort.names, Defence(name, 0).mixing(cohort))
    assert "c05" in found
    assert len(found) == count


def test_of_two_clients_none_is_left_out() -> None:
    assert left_out(("a", "b"), None) == ()
