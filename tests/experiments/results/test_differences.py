"""Differences over seeds: intervals, Holm's correction, shared data."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st
from scipy import stats

from fairbloom.errors import FairbloomError
from fairbloom.experiments.arms import Named
from fairbloom.experiments.results.differences import difference_of
from fairbloom.strategies import FedFV

from ..helpers import compared_by_hand

FIVE = (8.0, 7.0, 9.0, 12.0, 3.0)


def test_a_difference_is_that_of_the_paired_t_test() -> None:
    found = difference_of(FIVE)
    by_scipy = stats.ttest_1samp(FIVE, 0.0)
    interval = by_scipy.confidence_interval(0.95)
    assert found.mean == pytest.approx(7.8)
    assert found.error == pytest.approx(stats.sem(FIVE))
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.p_value == pytest.approx(by_scipy.pvalue)
    assert (found.better, found.worse, found.seeds, found.significant) == (5, 0, 5, True)


def test_a_single_seed_says_nothing() -> None:
    found = difference_of([4.0])
    assert (found.mean, found.better, found.seeds) == (4.0, 1, 1)
    assert all(map(math.isnan, (found.error, found.low, found.high)))
    assert (found.p_value, found.significant) == (1.0, False)


def test_differences_that_do_not_vary_are_no_claim(subtests: pytest.Subtests) -> None:
    for value in (0.0, 6.25, -1 / 3):
        with subtests.test(value=value):
            found = difference_of([value, value + value * 1e-15, value])
            assert (found.p_value, found.error, found.significant) == (1.0, 0.0, False)
            assert math.isnan(found.low)
            assert math.isnan(found.high)


@given(st.lists(st.floats(-100.0, 100.0), min_size=2, max_size=20), st.floats(0.0, 2.0))
def test_a_difference_is_as_sure_as_its_mirror_image(
    differences: Sequence[float], test_share: float
) -> None:
    found = difference_of(differences, test_share=test_share)
    mirrored = difference_of([-each for each in differences], test_share=test_share)
    assert found.p_value == pytest.approx(mirrored.p_value)
    assert (found.better, found.worse) == (mirrored.worse, mirrored.better)
    assert found.significant == (
        found.low > 0.0 or found.high < 0.0
    ) or found.p_value == pytest.approx(0.05)


def test_what_is_no_difference_is_refused(subtests: pytest.Subtests) -> None:
    for differences, test_share in (([], 0.0), ([1.0, math.nan], 0.0), ([1.0, 2.0], -0.5)):
        with subtests.test(differences=differences, test_share=test_share):
            with pytest.raises(ValueError):  # noqa: PT011 (its type is the promise)
                difference_of(differences, test_share=test_share)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("fedfv", "FedFV (alpha=0.2)"),
        ("FedFV (alpha=0.2)", "FedFV (alpha=0.2)"),
        ("fedfv(alpha=0.2)", "FedFV (alpha=0.2)"),
        (FedFV, "FedFV (alpha=0.2)"),
        ("fairbloom.strategies.afl:AFL", "AFL"),
        ("ditto (personal)", "Ditto (personal)"),
        ("qfedavg(q=5)", "QFedAvg (q=5)"),
        ("qfedavg", None),  # there are two
        ("fedfv(alpha=0.1)", None),
        ("nothing", None),
    ],
)
def test_a_method_is_found_as_compare_takes_it(name: Named, label: str | None) -> None:
    labels = ("FedFV (alpha=0.2)", "AFL", "Ditto", "Ditto (personal)", "QFedAvg (q=1)")
    labels = (*labels, "QFedAvg (q=5)")
    moved = {each: [{"a": 10.0 + k + s} for s in range(3)] for k, each in enumerate(labels, 1)}
    comparison = compared_by_hand(FedAvg=[{"a": 10.0}] * 3, **moved)
    if label is None:
        with pytest.raises(FairbloomError, match=r"are FedFV \(alpha=0.2\), AFL, Ditto"):
            comparison.difference(name, "mean")
    else:
        assert comparison.difference(name, "mean") == comparison.difference(label, "mean")
