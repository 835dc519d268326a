"""Conflicts and Pareto-stationarity of a round, against independent computations."""

import itertools
import math
from typing import Any

import numpy as np
import pytest

from fairbloom.rounds.aggregation import measure_conflicts
from fairbloom.rounds.arrays import FloatArray
from fairbloom.rounds.cohort import Cohort
from fairbloom.rounds.method import CONFLICTS
from fairbloom.strategies import METHODS, FairStrategy, FedAvg, FedMGDA, FedMGDAPlus
from tests.federation import MemoryGrid, quadratics, run

from .helpers import ARGUMENTS, coefficients, cohort_of, make, seconds_of
from .reference import min_norm_point


class ByArray(FairStrategy):
    """A user's method, which reads the inner products within each array only."""

    requires = frozenset({"gram by array"})

    def weigh(self, cohort: Cohort) -> FloatArray:
        return np.asarray(cohort.prior * (cohort.grams[0].sum() > 0.0))


class Counting(FairStrategy):
    """A user's method with a metric of its own, of the same name."""

    requires = frozenset({"gram"})
    reports = (CONFLICTS,)

    def weigh(self, cohort: Cohort) -> FloatArray:
        assert cohort.gram.any()
        return cohort.prior

    def own_metrics(self, cohort: Cohort, coefficients: FloatArray) -> dict[str, float]:
        return {CONFLICTS: 7.0}


class Sparing(FairStrategy):
    """A method that does not read in each round what it requires."""

    requires = frozenset({"gram"})

    def weigh(self, cohort: Cohort) -> FloatArray:
        return cohort.prior


def updates_of(m: int, seed: int = 3) -> FloatArray:
    return np.random.default_rng(seed).normal(size=(m, 8))


def share_in_conflict(U: FloatArray) -> float:
    return float(np.mean([a @ b < 0.0 for a, b in itertools.combinations(U, 2)]))


def weighed(method: FairStrategy, U: FloatArray, **cohort: Any) -> dict[str, float]:
    """Return what is reported of a cohort after the method has weighed it."""
    found = cohort_of(U, **cohort)
    c = coefficients(method, found)
    return measure_conflicts(method, found) | method.own_metrics(found, c)


def reads_products(method: FairStrategy, cohort: Cohort) -> bool:
    coefficients(method, cohort)
    return not {"gram", "grams"}.isdisjoint(vars(cohort))


@pytest.mark.parametrize("name", METHODS)
def test_methods_with_inner_products_report_conflicts(name: str) -> None:
    """Others report none, and have none that could be counted."""
    method = make(name, ARGUMENTS[name][0])
    U = updates_of(5)
    seconds = seconds_of(U) if method.has_second_rows else None
    cohort = cohort_of(U, seconds=seconds)
    assert reads_products(method, cohort) == (CONFLICTS in method.all_reports)
    found = measure_conflicts(method, cohort)
    assert found == ({CONFLICTS: share_in_conflict(U)} if CONFLICTS in method.all_reports else {})


@pytest.mark.parametrize("name", ["fedmgda", "fedfv", "fedlf", "adafed"])
def test_a_round_reports_conflicts_once(name: str) -> None:
    method = make(name, ARGUMENTS[name][0])
    assert method.all_reports.count(CONFLICTS) == 1
    result, (finished,) = run(method, MemoryGrid(quadratics(6)), rounds=1)
    assert 0.0 <= finished.metrics[CONFLICTS] <= 1.0
    assert result.train_metrics_clientapp[1][CONFLICTS] == finished.metrics[CONFLICTS]


def test_products_by_array_are_enough() -> None:
    U = updates_of(4)
    assert weighed(ByArray(), U, arrays={"w": 3, "b": 5}) == {CONFLICTS: share_in_conflict(U)}


def test_kept_rows_are_no_updates() -> None:
    """The products of FedFV's rows of absent clients are in the matrix, too."""
    method = METHODS["fedfv"]()
    U = np.array([[1.0, 0.0], [1.0, 0.1]])
    cohort = cohort_of(U)
    gram = np.block([[U @ U.T, -np.ones((2, 1))], [-np.ones((1, 2)), np.ones((1, 1))]])
    vars(cohort)["gram"] = gram
    assert measure_conflicts(method, cohort) == {CONFLICTS: 0.0}


def test_what_a_method_did_not_read_is_not_computed() -> None:
    def never() -> FloatArray:
        raise AssertionError("a pass over the updates that the method did not ask for")

    cohort = cohort_of(updates_of(3))
    object.__setattr__(cohort, "gram_of", never)
    object.__setattr__(cohort, "grams_of", never)
    for method in (FedAvg(), Sparing()):
        coefficients(method, cohort)
        assert measure_conflicts(method, cohort) == {}


def test_a_methods_own_metric_of_the_name_stays() -> None:
    method = Counting()
    assert method.all_reports == (CONFLICTS,)
    _, (finished,) = run(method, MemoryGrid(quadratics(3)), rounds=1)
    assert finished.metrics[CONFLICTS] == 7.0


def test_one_update_has_no_conflicts() -> None:
    assert CONFLICTS not in weighed(FedMGDA(), updates_of(1))


# Pareto-stationarity ------------------------------------------------------------------------------


@pytest.mark.parametrize("m", [1, 2, 3, 6])
@pytest.mark.parametrize("options", [{}, {"server_lr": 0.01}, {"decay": 0.5, "decay_every": 1}])
def test_stationarity_is_that_of_an_independent_solver(m: int, options: dict[str, Any]) -> None:
    """The step size changes nothing."""
    U = updates_of(m) + 0.3
    norms = np.linalg.norm(U, axis=1)
    shortest = np.linalg.norm(min_norm_point(U))
    found = weighed(FedMGDA(**options), U, round=3)
    assert found["stationarity"] == pytest.approx(shortest / norms.mean(), abs=1e-6)
    shortest = np.linalg.norm(min_norm_point(U / norms[:, None]))
    found = weighed(FedMGDAPlus(**options), U, round=3)
    assert found["stationarity"] == pytest.approx(shortest, abs=1e-6)


@pytest.mark.parametrize("method", [FedMGDA, FedMGDAPlus])
def test_opposite_updates_are_stationary_equal_ones_not(method: type[FedMGDA]) -> None:
    opposite = weighed(method(), np.array([[1.0, 2.0], [-3.0, -6.0]]))
    assert opposite == pytest.approx({CONFLICTS: 1.0, "stationarity": 0.0}, abs=1e-6)
    equal = weighed(method(), np.ones((3, 2)))
    assert equal == pytest.approx({CONFLICTS: 0.0, "stationarity": 1.0})


def test_a_client_at_its_optimum_makes_a_model_stationary() -> None:
    """FedMGDA+ leaves a zero update out, and its own combination is of the others."""
    U = np.array([[0.0, 0.0], [1.0, 0.0]])
    assert weighed(FedMGDA(), U)["stationarity"] == pytest.approx(0.0)
    assert weighed(FedMGDAPlus(), U)["stationarity"] == pytest.approx(1.0)


@pytest.mark.parametrize("method", [FedMGDA, FedMGDAPlus])
def test_without_an_update_stationarity_is_unknown(method: type[FedMGDA]) -> None:
    assert "stationarity" not in weighed(method(), np.zeros((2, 3)))


@pytest.mark.parametrize(("epsilon", "reported"), [(1.0, True), (2.0, True), (0.9, False)])
def test_bounded_weights_report_no_stationarity(epsilon: float, reported: bool) -> None:
    """Bounded weights may miss the shortest combination."""
    for method in (FedMGDA(epsilon=epsilon), METHODS["mgdaprox"](mu=0.1, epsilon=epsilon)):
        assert ("stationarity" in method.all_reports) == reported
        found = weighed(method, np.array([[1.0, 0.0], [-1.0, 0.1]]))
        assert ("stationarity" in found) == reported
        assert math.isfinite(sum(found.values()))
