"""Tests of every method, besides those of repeated and resumed runs: formulas, reductions, weighting and
options."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

from fairbloom.protocol.names import ARRAYS_DISPARITY
from fairbloom.rounds.arrays import FloatArray
from fairbloom.strategies import METHODS
from tests.federation import MemoryGrid, quadratics, run

from .helpers import (
    ARGUMENTS,
    CASES,
    CORNERS,
    accuracies_of,
    advance,
    baselines_of,
    client_names,
    coefficients,
    cohort_of,
    disparities_of,
    draws_of,
    edgy_updates,
    generic_updates,
    group_counts_of,
    losses_and_counts,
    make,
    rates_of,
    seconds_of,
    step_of,
)
from .reference import WEIGHTING, Seen, expected_step


def seen_of(
    U: FloatArray,
    losses: FloatArray,
    counts: FloatArray,
    round: int = 1,
    names: Sequence[str] = (),
    roster: Mapping[str, float] | None = None,
) -> Seen:
    def by_name(column: Iterable[Any]) -> dict[str, Any]:
        return dict(zip(names or client_names(len(U)), column, strict=True))

    columns = (U, losses, counts, accuracies_of(losses), rates_of(counts), draws_of(counts))
    groups = {name: by_name(column) for name, column in group_counts_of(losses, counts).items()}
    others = {
        "baselines": baselines_of(losses),
        "seconds": seconds_of(U),
        "disparities": disparities_of(counts),
    }
    others = {name: by_name(column) for name, column in others.items()}
    return Seen(round, 10, *map(by_name, columns), groups, dict(roster or {}), **others)


def weighting_of(name: str, arguments: dict[str, Any]) -> str:
    return str(arguments.get("weighting", WEIGHTING[name]) or "uniform")


def replied(
    name: str, arguments: dict[str, Any], U: FloatArray, counts: FloatArray
) -> dict[str, Any]:
    """Return the parts of a method's cohort besides updates and losses, with second updates if the
    method has them."""
    return {
        "counts": counts,
        "weighting": weighting_of(name, arguments),
        "draws": draws_of(counts) if name == "drfa" else None,
        "seconds": seconds_of(U) if METHODS[name].second == ARRAYS_DISPARITY else None,
    }


def assert_same_step(
    step: FloatArray, expected: FloatArray, U: FloatArray, case: object = ""
) -> None:
    tolerance = 1e-5 * max(np.linalg.norm(expected), 1e-3 * np.linalg.norm(U, axis=1).max())
    assert np.linalg.norm(step - expected) <= tolerance, case


def test_every_method_has_its_cases_and_its_reference() -> None:
    assert set(CORNERS) == set(METHODS) == set(WEIGHTING)


@pytest.mark.parametrize(("name", "arguments"), CASES)
@settings(max_examples=10)
@given(U=generic_updates())
def test_gram_form_equals_the_vector_form(
    U: FloatArray, name: str, arguments: dict[str, Any]
) -> None:
    losses, counts = losses_and_counts(len(U))
    expected = expected_step(name, arguments, [seen_of(U, losses, counts)])
    step = step_of(make(name, arguments), U, losses=losses, **replied(name, arguments, U, counts))
    assert_same_step(step, expected, U, (name, arguments))


def test_rounds_of_changing_clients_are_those_of_the_vectors() -> None:
    """Clients come in one by one, and one known client never; the memory goes through
    decisions alone. With the last seed, one update in each round is zero."""
    everybody = [f"site-{k}" for k in range(5)]
    for (name, arguments), seed in product(CASES, range(3)):
        rng = np.random.default_rng(seed)
        method = make(name, arguments)
        history = list[Seen]()
        sizes = dict(zip(everybody, rng.integers(60, 500, 5).astype(float), strict=True))
        roster = {"away": 77.0}
        for t in range(1, 10):
            names = [client for client in everybody[: 2 + t] if rng.random() < 0.5]
            if not names or t == 4:
                continue
            roster = dict(sorted({**roster, **{client: sizes[client] for client in names}}.items()))
            counts = np.array([sizes[client] for client in names])
            losses = rng.uniform(0.8, 1.2, len(names))
            U = rng.normal(size=(len(names), 8)) + 0.3 * (seed % 2)
            U[t % len(names)] *= seed < 2
            method.enter(method.run_state.drawn(roster))
            rows_kept = method.run_state.kept
            kept = {
                label: rows_kept[label].blocks[0][0]
                for label in method.recalls(rows_kept, names, t)
            }
            given = replied(name, arguments, U, counts)
            cohort = cohort_of(
                U,
                **{
                    "losses": losses,
                    "round": t,
                    "names": names,
                    "memory": kept,
                    "roster": roster,
                    "online": everybody,
                    "past": method.past,
                },
                **{"sent": {key: factor for key, (_, factor) in method.sends().items()}, **given},
            )
            seconds = [] if given["seconds"] is None else [given["seconds"]]
            rows = np.vstack([U, *seconds, *kept.values()])
            c = advance(method, cohort, rows)
            history.append(seen_of(U, losses, counts, t, names, roster))
            expected = expected_step(name, arguments, history)
            assert_same_step(c.ravel() @ rows, expected, U, (name, arguments, seed, t))


# The methods that step as they would without a client with a zero update.
LEFT_OUT = {"fedavgn", "fedmgdaplus", "mgdaprox", "adafed", "fedmdfg", "local"}


@pytest.mark.parametrize(("name", "arguments"), CASES)
def test_an_update_of_zero_counts_as_the_formula_says(name: str, arguments: dict[str, Any]) -> None:
    def step_among(clients: NDArray[np.bool_]) -> FloatArray:
        given = replied(name, arguments, U[clients], counts[clients])
        return step_of(make(name, arguments), U[clients], losses=losses[clients], **given)

    losses, counts = losses_and_counts(4)
    unchanged = list[bool]()
    for k in range(4):
        U = np.random.default_rng(k).normal(size=(4, 6)) + k % 2
        U[k] = 0.0
        step = step_among(np.full(4, True))
        assert np.isfinite(step).all()
        assert_same_step(step, expected_step(name, arguments, [seen_of(U, losses, counts)]), U)
        unchanged.append(np.allclose(step, step_among(np.arange(4) != k), rtol=1e-9))
    assert all(unchanged) == (name in LEFT_OUT)


@pytest.mark.parametrize(("name", "arguments"), CASES)
@pytest.mark.parametrize("length", [1e-30, 1.0, 1e30])
def test_one_client_alone_is_stepped_along(
    length: float, name: str, arguments: dict[str, Any]
) -> None:
    losses = np.array([0.7])
    counts = np.array([5.0])
    U = length * np.array([[1.0, -2.0, 2.0]]) / 3.0
    step = step_of(make(name, arguments), U, losses=losses, **replied(name, arguments, U, counts))
    expected = expected_step(name, arguments, [seen_of(U, losses, counts)])
    assert step.any() or name == "local"
    np.testing.assert_allclose(step, expected, rtol=1e-9, err_msg=name)


def test_huge_and_tiny_updates_step_as_the_formula_says() -> None:
    losses, counts = losses_and_counts(4)
    for (name, arguments), length, which in product(
        CASES, (1e-30, 1e30), (slice(None), slice(1, 2))
    ):
        U = np.random.default_rng(3 if which == slice(None) else 4).normal(size=(4, 6))
        U[which] *= length
        expected = expected_step(name, arguments, [seen_of(U, losses, counts)])
        step = step_of(
            make(name, arguments), U, losses=losses, **replied(name, arguments, U, counts)
        )
        if which == slice(None):
            assert_same_step(step, expected, U, (name, arguments))
        else:
            most = 1e-4 * np.linalg.norm(expected)
            np.testing.assert_allclose(
                step, expected, rtol=1e-4, atol=most, err_msg=f"{name} {arguments}"
            )


SOME_LOSSES = np.array([0.4, 2.0, 1.0, 3.0])
GROUPS = group_counts_of(SOME_LOSSES, np.full(4, 40.0))
# What four clients may report that is at an end of its range.
REPORTED: dict[str, dict[str, Any]] = {
    "equal losses": {"losses": np.ones(4)},
    "zero losses": {"losses": np.zeros(4)},
    "one zero loss": {"losses": SOME_LOSSES * [1.0, 0.0, 1.0, 1.0]},
    "losses below zero, as that of a density may be": {"losses": -SOME_LOSSES},
    "tiny losses": {"losses": 1e-12 * SOME_LOSSES},
    "huge losses": {"losses": 1e12 * SOME_LOSSES},
    "accuracy 0": {"accuracies": np.zeros(4)},
    "accuracy 1": {"accuracies": np.ones(4)},
    "losses of training alone": {"losses": SOME_LOSSES, "baselines": SOME_LOSSES},
    "no disparity": {"disparities": np.zeros(4)},
    "a group without positive examples": {
        "groups": GROUPS | dict.fromkeys(("positives-1", "hits-1"), np.zeros(4))
    },
    "one client without positive examples": {
        "groups": {key: each * [1.0, 0.0, 1.0, 1.0] for key, each in GROUPS.items()}
    },
    "1 to 1,000,000 examples": {"counts": np.array([1.0, 10.0, 1e3, 1e6])},
}
U_OF_FOUR = np.random.default_rng(7).normal(size=(4, 7))
FIRST_ARRAY = np.arange(7) < 3
MOVED: dict[str, FloatArray] = {
    "different updates": U_OF_FOUR,
    "no update": 0.0 * U_OF_FOUR,
    "no update of an array": np.where(FIRST_ARRAY, 0.0, U_OF_FOUR),
    "one client without an update of an array": np.where(
        FIRST_ARRAY & (np.arange(4) == 1)[:, None], 0.0, U_OF_FOUR
    ),
    "the same update": np.tile(U_OF_FOUR[0], (4, 1)),
    "opposed updates": np.outer([1.0, -1.0, 1.0, -1.0], U_OF_FOUR[0]),
    "orthogonal updates": np.eye(4, 7),
}


@pytest.mark.parametrize("name", METHODS)
def test_coefficients_are_finite_whatever_is_reported(name: str) -> None:
    """Of a model of two arrays."""
    for (moved, U), (words, reported) in product(MOVED.items(), REPORTED.items()):
        counts = reported.get("counts", np.array([10.0, 17.0, 24.0, 31.0]))
        given = {**replied(name, ARGUMENTS[name][0], U, counts), **reported}
        cohort = cohort_of(U, arrays={"first": 3, "second": 4}, **given)
        c = coefficients(make(name, ARGUMENTS[name][0]), cohort)
        assert np.isfinite(c).all(), f"{moved}, {words}"


def is_same(one: FloatArray, other: FloatArray) -> bool:
    """Return whether two arrays are the same: some methods solve a program for them."""
    return bool(np.abs(one - other).max() <= 1e-3 * max(np.abs(one).max(), np.abs(other).max()))


@pytest.mark.parametrize("in_pairs", [1, 2])
@pytest.mark.parametrize("m", [3, 5, 8, 50])
@pytest.mark.parametrize("name", METHODS)
def test_a_coefficient_goes_with_the_reply(name: str, m: int, in_pairs: int) -> None:
    """Whatever the client is called, and so in any order; ties by pairs, too."""
    ties = np.arange(m) // in_pairs * in_pairs
    losses, counts = (each[ties] for each in losses_and_counts(m))
    U = np.random.default_rng(m).normal(size=(m, m + 3)) + 0.3
    # neighbours change places: a sort that is stable would keep the order of ties
    order = np.roll(np.arange(m)[::-1], 2)
    found = list[FloatArray]()
    for rows in (np.arange(m), order):
        given = replied(name, ARGUMENTS[name][0], U[rows], counts[rows])
        method = make(name, ARGUMENTS[name][0])
        c = coefficients(method, cohort_of(U[rows], losses=losses[rows], **given))
        found.append(np.reshape(c, (-1, m)))
    first, after = found
    step, step_after = first @ U, after @ U[order]
    assert is_same(after, first[:, order]) or is_same(step_after, step)


SUM_TO_ONE = [
    *(
        "fedavg",
        "fedprox",
        "term",
        "afl",
        "drfa",
        "deltafl",
        "propfair",
        "gifair",
        "vred",
        "semivred",
        "fedfa",
    ),
    *("fairfed", "eagle", "aaggff", "fedpw", "fedmgda", "ditto"),
]


@pytest.mark.parametrize(("name", "arguments"), [case for case in CASES if case[0] in SUM_TO_ONE])
@settings(max_examples=10)
@given(U=edgy_updates())
def test_coefficients_sum_to_one(name: str, arguments: dict[str, Any], U: FloatArray) -> None:
    losses, counts = losses_and_counts(len(U))
    cohort = cohort_of(U, losses=losses, **replied(name, arguments, U, counts))
    given_step = {"server_lr": 1.0} if "server_lr" in arguments else {}
    assert coefficients(make(name, {**arguments, **given_step}), cohort).sum() == pytest.approx(
        1.0, abs=1e-9
    )


# The arguments that make a method average as FedAvg does, with the same prior.
PLAIN = {
    "fedprox": {"mu": 0.5},
    "term": {"tilt": 0.0},
    "afl": {"gamma": 0.0},
    "deltafl": {"theta": 1.0},
    "propfair": {"baseline": 3.0},
    "gifair": {"strength": 0.0},
    "vred": {"beta": 0.0},
    "semivred": {"beta": 0.0},
    "eagle": {"lam": 0.0},
    "fedmgda": {"epsilon": 0.0},
    "ditto": {"lam": 1.0},
}


@pytest.mark.parametrize(("name", "arguments"), PLAIN.items())
@given(U=edgy_updates(), weighting=st.sampled_from(("examples", "uniform")))
def test_reductions_to_fedavg(
    weighting: str, U: FloatArray, name: str, arguments: dict[str, Any]
) -> None:
    losses, counts = losses_and_counts(len(U))
    cohort = cohort_of(U, losses=losses, counts=counts, weighting=weighting)
    expected = coefficients(METHODS["fedavg"](weighting=weighting), cohort)
    c = coefficients(make(name, arguments, weighting=weighting), cohort)
    np.testing.assert_allclose(c, expected, rtol=1e-13, err_msg=name)


# The arguments with which methods that report negative weights have some.
NEGATIVE = {
    "vred": {"beta": 5.0},
    "semivred": {"beta": 5.0},
    "eagle": {"lam": 5.0},
    "fairfed": {"beta": 30.0},
    "fedpw": {},
}


@pytest.mark.parametrize(("name", "arguments"), NEGATIVE.items())
def test_negative_weights_are_used_and_counted(name: str, arguments: dict[str, Any]) -> None:
    assert {name for name, method in METHODS.items() if "negative-weights" in method.reports} == {
        *NEGATIVE
    }
    result, (finished,) = run(make(name, arguments), MemoryGrid(quadratics(20)), rounds=1)
    weights = list(finished.coefficients.values())
    assert min(weights) < 0.0, name
    assert sum(weights) == pytest.approx(1.0)
    assert finished.metrics["negative-weights"] == sum(each < 0.0 for each in weights)
    assert (
        result.train_metrics_clientapp[1]["negative-weights"]
        == finished.metrics["negative-weights"]
    )


@pytest.mark.parametrize("name", METHODS)
def test_weighting_is_as_documented_and_others_are_refused(name: str) -> None:
    arguments = {key: value for key, value in ARGUMENTS[name][0].items() if key != "weighting"}
    for weighting in ("examples", "uniform") if WEIGHTING[name] is None else ("loss", ""):
        with pytest.raises(ValueError, match=f"weighting.*'{weighting}'"):
            make(name, arguments, weighting=weighting)
    if WEIGHTING[name] is not None:
        assert make(name, arguments).weighting == WEIGHTING[name]


@pytest.mark.parametrize("name", METHODS)
def test_unknown_parameters_and_states_of_others_are_refused(name: str) -> None:
    with pytest.raises(TypeError, match="fraction_fit"):
        make(name, ARGUMENTS[name][0], fraction_fit=0.5)
    strategy = make(name, ARGUMENTS[name][0])
    with pytest.raises(ValueError, match=f"Other.*{type(strategy).__name__}"):
        strategy.load_state_dict({**strategy.state_dict(), "method": "Other"})
