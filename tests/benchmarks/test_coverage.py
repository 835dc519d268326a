"""Intervals hold what the pages say of them, on a few hundred seeded draws of the benchmark's made
data."""

import csv

import numpy as np
import pytest

from benchmarks.coverage import (
    SHAPES,
    SHARE,
    SHARED,
    coverage_of_t,
    finds,
    gains_of,
    made_comparison,
    truth_of,
    two_deviations,
)
from tests.docs.pages import ROOT


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [5, 20])
@pytest.mark.parametrize("shape", ["normal", "worst of 20 clients", "worst 10 % of 20 clients"])
def test_a_mean_differences_interval_holds_in_95_of_100_trials(shape: str, seeds: int) -> None:
    rng = np.random.default_rng(3)
    truth = truth_of(SHAPES[shape], rng)
    # three standard errors of 400 trials
    assert 0.915 < coverage_of_t(SHAPES[shape](rng, (400, seeds)), truth) < 0.985


def test_a_difference_by_single_seeds_has_too_narrow_an_interval() -> None:
    rng = np.random.default_rng(5)
    draw = SHAPES["large with one seed in five"]
    assert coverage_of_t(draw(rng, (300, 5)), truth_of(draw, rng)) < 0.8


@pytest.mark.slow
def test_splits_of_the_same_clients_need_the_correction(subtests: pytest.Subtests) -> None:
    rng = np.random.default_rng(6)
    (splits, *deals) = SHARED
    gains = gains_of(rng, 120, 20, splits)[:, :, 0]
    assert coverage_of_t(gains, float(gains.mean())) < 0.9
    assert coverage_of_t(gains, float(gains.mean()), SHARE) > 0.95
    for shared in deals:
        with subtests.test(shared=shared):
            gains = gains_of(rng, 60, 20, shared)[:, :, 0]
            assert coverage_of_t(gains, float(gains.mean())) > 0.85


@pytest.mark.slow
def test_a_verdict_on_equal_methods_claims_in_5_percent() -> None:
    """Of 200 trials that are 10; 19 would be three standard errors more."""
    rng = np.random.default_rng(8)
    assert 1 <= sum(bool(made_comparison(rng, 5).verdict.claims) for _ in range(200)) <= 19


@pytest.mark.slow
def test_ten_seeds_find_a_gain_of_two_deviations() -> None:
    """As often as Holm's correction does, and no less where two of the methods are FedAvg's
    equals."""
    rng = np.random.default_rng(9)
    gain = two_deviations(rng)
    trials = [
        made_comparison(rng, 10, gain=gain, equal=equal) for equal in (0, 2) for _ in range(40)
    ]
    found = [finds(each) for each in trials]
    assert ["FedFV" in each.verdict.improving for each in trials] == found
    assert min(sum(found[:40]), sum(found[40:])) >= 36


def test_the_page_has_a_row_for_each_shape_of_differences() -> None:
    with (ROOT / "docs" / "data" / "statistics" / "intervals.csv").open(newline="") as file:
        assert set(SHAPES) <= {row["differences"] for row in csv.DictReader(file)}
    assert ":file: data/statistics/intervals.csv" in (ROOT / "docs" / "measured.md").read_text()
