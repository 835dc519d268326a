"""The measures of fairness, against hand-computed numbers and their properties."""

import math
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fairbloom.server.fairness import percent_improved, summarize

accuracies = st.lists(st.floats(0.0, 100.0, allow_subnormal=False), min_size=1, max_size=40)
some_accuracy = accuracies.filter(lambda numbers: max(numbers) > 1e-3)


def named(numbers: list[float]) -> dict[str, float]:
    return {f"client-{i:02}": number for i, number in enumerate(numbers)}


# Hand-computed values -----------------------------------------------------------------------------


def test_the_measures_of_four_clients_by_hand() -> None:
    """Accuracies 10, 20, 30, 40 %: Σx = 100, Σx² = 3000, Σ_ij |x_i − x_j| = 200, shares 0.1 …
    0.4."""
    found = summarize({"d": 40.0, "a": 10.0, "c": 30.0, "b": 20.0})
    expected = {
        "mean": 25.0,
        "std": math.sqrt(125.0),
        "var": 125.0,
        "worst": 10.0,
        "best": 40.0,
        "worst_5": 10.0,
        "worst_10": 10.0,
        "worst_20": 10.0,
        "worst_30": 15.0,
        "best_5": 40.0,
        "best_10": 40.0,
        "best_20": 40.0,
        "best_30": 35.0,
        "gap": 30.0,
        "jain": 100.0**2 / (4 * 3000),
        "gini": 200.0 / (2 * 4**2 * 25.0),
        "entropy": -(
            0.1 * math.log(0.1) + 0.2 * math.log(0.2) + 0.3 * math.log(0.3) + 0.4 * math.log(0.4)
        ),
        "cosine": 100.0 / (2.0 * math.sqrt(3000.0)),
    }
    assert found == pytest.approx(expected, rel=1e-12)
    assert [*found] == [*expected]


@pytest.mark.parametrize(
    ("clients", "percent", "counted"),
    [
        (35, 20, 7),
        (100, 5, 5),
        (100, 30, 30),
        (21, 5, 2),
        (20, 5, 1),
        (10, 30, 3),
        (3, 5, 1),
        (11, 10, 2),
        (1, 30, 1),
    ],
)
def test_a_share_of_the_clients_is_counted_exactly(
    clients: int, percent: int, counted: int
) -> None:
    numbers = [float(2**i % 101 + i) for i in range(clients)]
    measures = summarize(named(numbers))
    ascending = sorted(numbers)
    assert measures[f"worst_{percent}"] == pytest.approx(sum(ascending[:counted]) / counted)
    assert measures[f"best_{percent}"] == pytest.approx(sum(ascending[-counted:]) / counted)


@pytest.mark.parametrize("clients", [1, 2, 7])
def test_all_zeros_are_even(clients: int) -> None:
    measures = summarize(named([0.0] * clients))
    assert measures.pop("entropy") == pytest.approx(math.log(clients))
    assert (measures.pop("jain"), measures.pop("cosine")) == (1.0, 1.0)
    assert set(measures.values()) == {0.0}


def test_gini_and_entropy_of_negative_values_have_no_meaning() -> None:
    measures = summarize({"a": -1.0, "b": 2.0})
    assert math.isnan(measures["gini"])
    assert math.isnan(measures["entropy"])
    assert measures["mean"] == 0.5


# Properties ---------------------------------------------------------------------------------------


@given(numbers=accuracies)
def test_measures_lie_within_their_bounds(numbers: list[float]) -> None:
    m = summarize(named(numbers))
    n = len(numbers)
    slack = 1e-9
    ascending = ["worst", "worst_5", "worst_10", "worst_20", "worst_30", "mean"]
    ascending += ["best_30", "best_20", "best_10", "best_5", "best"]
    assert [
        (lower, upper) for lower, upper in pairwise(ascending) if not (m[lower] <= m[upper] + slack)
    ] == []
    assert (m["worst"], m["best"]) == (min(numbers), max(numbers))
    assert m["gap"] == m["best"] - m["worst"]
    assert 0.0 <= m["std"] <= m["gap"] / 2 + slack
    assert 1 / n - slack <= m["jain"] <= 1 + slack
    assert -slack <= m["gini"] <= 1 - 1 / n + slack
    assert -slack <= m["entropy"] <= math.log(n) + slack
    assert m["cosine"] ** 2 == pytest.approx(m["jain"])


@given(numbers=some_accuracy, random=st.randoms(use_true_random=False))
def test_measures_do_not_depend_on_names_or_order(numbers: list[float], random: Random) -> None:
    assert summarize(named(random.sample(numbers, len(numbers)))) == summarize(
        {f"site {i}": x for i, x in enumerate(numbers)}
    )


@given(numbers=some_accuracy, factor=st.floats(1e-6, 1e6))
def test_measures_keep_the_unit_of_their_input(numbers: list[float], factor: float) -> None:
    plain = summarize(named(numbers))
    scaled = summarize(named([factor * x for x in numbers]))
    powers = dict.fromkeys(("jain", "gini", "entropy", "cosine"), 0) | {"var": 2}
    largest = max(numbers)
    for key, value in plain.items():
        power = powers.get(key, 1)
        assert scaled[key] == pytest.approx(
            value * factor**power, rel=1e-9, abs=1e-9 * (largest * factor) ** power
        )


@given(value=st.floats(1e-3, 100.0), clients=st.integers(1, 40))
def test_equal_clients_are_even(value: float, clients: int) -> None:
    m = summarize(named([value] * clients))
    expected = {
        "std": 0.0,
        "gap": 0.0,
        "jain": 1.0,
        "gini": 0.0,
        "entropy": math.log(clients),
        "cosine": 1.0,
    }
    assert {key: m[key] for key in expected} == pytest.approx(expected, abs=1e-9)


@given(numbers=some_accuracy)
def test_gini_is_the_mean_difference_over_twice_the_mean(numbers: list[float]) -> None:
    x = np.array(numbers)
    assert summarize(named(numbers))["gini"] == pytest.approx(
        np.abs(x[:, None] - x).sum() / (2 * x.size**2 * x.mean()), abs=1e-9
    )


@pytest.mark.parametrize("scale", [1e-300, 1e-150, 1e150])
def test_tiny_and_huge_values_are_as_even_as_middling_ones(scale: float) -> None:
    m = summarize({"a": scale, "b": 3 * scale})
    assert (m["jain"], m["gini"], m["cosine"]) == pytest.approx((0.8, 0.25, math.sqrt(0.8)))


def test_a_value_that_vanishes_beside_the_others_adds_nothing() -> None:
    assert summarize({"a": 5e-324, "b": 2.0})["entropy"] == pytest.approx(0.0)


# Errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "no client"),
        *(
            ({"clinic-a": 1.0, "clinic-b": value}, f"client clinic-b is {value}")
            for value in (math.nan, math.inf, -math.inf)
        ),
    ],
)
def test_values_that_cannot_be_measured_are_errors(values: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        summarize(values)


# Before and after ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("after", "percent"),
    [
        ((0.5, 1.0, 3.0, 4.0), 100.0),  # an equal loss has not risen
        ((1.1, 1.9, 3.1, 4.1), 25.0),
        ((1.1, 2.1, 3.1, 4.1), 0.0),
    ],
)
def test_improved_are_the_clients_whose_loss_did_not_rise(
    after: tuple[float, ...], percent: float
) -> None:
    before = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}
    assert percent_improved(before, dict(zip(before, after, strict=True))) == percent
