"""Scores: their possible values, their direction and their unit."""

import math

import pytest

from fairbloom.protocol.scores import (
    ACCURACY,
    BRIER,
    CALIBRATION_ERROR,
    SPECIFICITY,
    Score,
    put_first,
)

POSSIBLE: list[tuple[Score, list[float], list[float]]] = [
    (ACCURACY, [0.0, 0.5, 1.0], [-1e-9, 1.0 + 1e-9]),
    (SPECIFICITY, [0.0, 1.0], [-0.1, 1.1]),
    (Score("auc"), [-1e-7, 0.0, 1.0, 1.0 + 1e-7], [-1e-5, 1.0 + 1e-5]),
    (CALIBRATION_ERROR, [0.0, 1.0], [-0.1, 1.1]),
    (BRIER, [0.0, 2.0], [-0.1, 2.1]),
    (Score("r2"), [-1e9, 1.0], [1.1]),
    (Score("mae", higher_is_better=False), [0.0, 1e9], [-0.1]),
    (Score("rmse", higher_is_better=False), [0.0, 1e9], [-0.1]),
    (Score("of-my-own"), [-1e9, 0.0, 1e9], [math.inf, math.nan]),
    (Score("share-of-my-own", percent=True), [0.0, 1.0], [-0.1, 1.1]),
]


@pytest.mark.parametrize(("score", "possible", "impossible"), POSSIBLE)
def test_a_score_is_possible_in_its_interval(
    score: Score, possible: list[float], impossible: list[float]
) -> None:
    assert all(map(score.has, possible))
    assert not any(map(score.has, impossible))
    assert score.cells([None, *impossible]) == [None] * (1 + len(impossible))
    assert score.shown(0.25) == (25.0 if score.percent else 0.25)
    is_better_low = score.name in ("calibration-error", "brier", "mae", "rmse")
    assert score.better(0.75, 0.5) == (-0.25 if is_better_low else 0.25)
    assert score.is_error == (score.name in ("mae", "rmse"))


def test_the_score_that_measures_fairness_is_first() -> None:
    assert put_first([ACCURACY, BRIER, SPECIFICITY], BRIER) == (BRIER, ACCURACY, SPECIFICITY)
