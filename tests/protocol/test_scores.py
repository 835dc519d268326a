"""Scores: their possible values, their direction and their unit."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st
from sklearn.metrics import get_scorer_names

from fairbloom.protocol.scores import (
    ACCURACY,
    BRIER,
    CALIBRATION_ERROR,
    FURTHER,
    GAINS,
    LOSS_SCORE,
    LOSSES,
    OF_A_CLASS,
    SPECIFICITY,
    Score,
    find_direction,
    put_first,
)
from fairbloom.tasks.measures import AUC, BALANCED_ACCURACY, MAE, R2, RMSE

MEASURES = (AUC, BALANCED_ACCURACY, MAE, R2, RMSE)

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


# Directions of names -------------------------------------------------------------------------------

NEUTRAL = ("val", "validation", "test", "train", "eval", "Evaluate", "centralized", "top5")
NEGATIONS = ("neg", "negative", "minus")

KNOWN = st.sampled_from(sorted([*GAINS.split(), *LOSSES.split()]))
BEFORE = st.lists(st.sampled_from([*NEUTRAL, *NEGATIONS]))


@given(KNOWN, BEFORE, st.sampled_from("-_/. "))
def test_a_known_name_has_its_direction(known: str, before: Sequence[str], separator: str) -> None:
    name = "-".join([*before, known]).replace("-", separator)
    if known.endswith((*OF_A_CLASS.split("|"),)) and {"neg", "negative"}.intersection(before):
        assert find_direction(name) is None
        return
    is_turned = sum(word in NEGATIONS for word in before) % 2 == 1
    for written in (name, name.upper()):
        assert find_direction(written) is ((known in GAINS.split()) != is_turned)


@given(KNOWN, st.sampled_from(["gain-of-", "less-", "anti-", "re", "1-", "-", "val--"]))
def test_a_direction_is_not_guessed_from_the_end(known: str, before: str) -> None:
    assert find_direction(before + known) is None


@pytest.mark.parametrize(
    "name",
    [
        "lossless",
        "anti_loss",
        "regained_accuracy",
        "neg_recall",
        "neg_iou_macro",
        "loss_gain",
        "mae_score",
        "",
    ],
)
def test_other_names_have_no_direction(name: str) -> None:
    assert find_direction(name) is None


def test_scores_of_runs_and_of_scikit_learn_are_known() -> None:
    for score in (*FURTHER.values(), ACCURACY, LOSS_SCORE, *MEASURES):
        assert find_direction(score.name) is score.higher_is_better, score
    for name in set(get_scorer_names()) - {"max_error"}:  # an error, negated without a "neg"
        assert find_direction(name) is True, name
