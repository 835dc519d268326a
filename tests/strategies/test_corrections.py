"""SCAFFOLD, control variates as an option of methods with fixed weights, and FedDyn."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fairbloom.rounds.aggregation import decide
from fairbloom.rounds.cohort import Kept
from fairbloom.server.settings import Settings, SettingsError
from fairbloom.strategies import SCAFFOLD, Ditto, FairStrategy, FedAvg, FedDyn, FedProx
from tests.federation import QUIET, descend, follow, keeping, minimiser_of_means

from .helpers import client_names, cohort_of

CONTROL = "control"


# Reductions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "own", "of_scaffold"),
    [
        (FedAvg, {}, {}),
        (FedProx, {"mu": 0.3}, {"proximal_mu": 0.3}),
        (Ditto, {"lam": 0.7}, {"personal_lambda": 0.7}),
    ],
)
def test_scaffold_is_the_option_of_another_method(
    other: Any, own: dict[str, float], of_scaffold: dict[str, float]
) -> None:
    options: dict[str, Any] = {"fraction_train": 0.6, "seed": 4, **QUIET}
    ours = follow(other(control_variates=True, **own, **options), keeping(5), 5)
    theirs = follow(SCAFFOLD(**of_scaffold, **options), keeping(5), 5)
    assert [model.tobytes() for model in ours.models] == [
        model.tobytes() for model in theirs.models
    ]
    assert ours.sent == theirs.sent


# Closed forms -------------------------------------------------------------------------------------


RESTING: list[tuple[type[FairStrategy], dict[str, Any]]] = [
    (SCAFFOLD, {"fraction_train": 0.5, "weighting": "uniform"}),
    (SCAFFOLD, {"proximal_mu": 0.5, "server_lr": 0.6}),
    (FedDyn, {"fraction_train": 0.5, "alpha": 1.0}),
    (FedDyn, {"proximal_mu": 0.5, "alpha": 1.0}),
]


@pytest.mark.parametrize(("method", "options"), RESTING)
def test_they_rest_at_the_minimum(method: type[FairStrategy], options: dict[str, Any]) -> None:
    """With clients that take different numbers of steps at different rates; FedDyn's mean loss is
    that over clients."""
    by_examples = method is SCAFFOLD and "weighting" not in options
    best = minimiser_of_means(keeping(4).values(), by_examples=by_examples)
    np.testing.assert_allclose(
        descend(method(**options, **QUIET), keeping(4).values(), 200)[-1], best, atol=1e-8
    )


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_fedavg_does_not_rest_at_that_minimum(weighting: str) -> None:
    best = minimiser_of_means(keeping(4).values(), by_examples=weighting == "examples")
    plain = descend(FedAvg(weighting=weighting, **QUIET), keeping(4).values(), 60)
    assert np.abs(plain[-1] - best).max() > 0.03


def test_feddyns_first_full_round_is_twice_fedavgs_step() -> None:
    """The clients' loss is regularised in the first round already, so FedAvg's clients get the same
    proximal term."""
    ours = follow(FedDyn(alpha=0.3, **QUIET), keeping(4), 1)
    theirs = follow(FedAvg(weighting="uniform", proximal_mu=0.3, **QUIET), keeping(4), 1)
    np.testing.assert_allclose(
        ours.models[0] - ours.models[1], 2.0 * (theirs.models[0] - theirs.models[1]), rtol=1e-13
    )
    assert set(ours.rounds[0].coefficients.values()) == {0.5}


# Properties ---------------------------------------------------------------------------------------


def test_a_joiner_leaves_the_resting_point_where_it_is() -> None:
    """A running mean instead of the sum would bias it forever."""
    np.testing.assert_allclose(
        descend(SCAFFOLD(**QUIET), keeping(5).values(), 200, joins={"site-4": 40})[-1],
        minimiser_of_means(keeping(5).values(), by_examples=True),
        atol=1e-8,
    )


@given(
    seed=st.integers(0, 2**32 - 1),
    m=st.integers(1, 5),
    uniform=st.booleans(),
    idle=st.integers(0, 4),
)
def test_the_sum_that_it_keeps_is_that_of_the_papers_steps(
    seed: int, m: int, uniform: bool, idle: int
) -> None:
    """Vectors in place of coefficients: each client's c_k⁺ − c_k, weighted, added to C."""
    rng = np.random.default_rng(seed)
    U = rng.normal(size=(m, 4))
    C = rng.normal(size=4)
    H = rng.uniform(0.1, 2.0, m)
    H[idle % m] = 0.0 if idle else H[idle % m]
    n = rng.integers(1, 50, m).astype(np.float64)
    names = client_names(m)
    roster = {**dict(zip(names, n, strict=True)), "client-absent": 7.0}
    weights = dict.fromkeys(roster, 1.0) if uniform else roster
    method = SCAFFOLD(weighting="uniform" if uniform else "examples", server_lr=0.7)
    memory = {Kept(CONTROL, 1): C}
    c = C / sum(weights.values())
    sent = {CONTROL: 1.0 / sum(weights.values())}
    given: dict[str, Any] = {
        "counts": n,
        "weighting": method.weighting,
        "steps": H,
        "roster": roster,
    }
    cohort = cohort_of(U, memory=memory, round=2, sent=sent, **given)
    rows = np.vstack([U, C])
    decision = decide(method, cohort)
    p = n / n.sum() if not uniform else np.full(m, 1.0 / m)
    np.testing.assert_allclose(decision.coefficients @ rows, 0.7 * (p @ U), atol=1e-12)
    ((kept, mix),) = decision.keep.items()
    expected = C + sum(weights[names[k]] * (U[k] / H[k] - c) for k in range(m) if H[k] > 0.0)
    assert kept == Kept(CONTROL, 2)
    np.testing.assert_allclose(mix @ rows, expected, atol=1e-9)


# Where it does not compose ------------------------------------------------------------------------


def test_in_a_run_they_are_refused_by_the_settings() -> None:
    with pytest.raises(
        SettingsError, match=r"control-variates = True: .*FedFV .*leave control-variates out"
    ):
        Settings.of({"method": "fedfv", "control-variates": True}).strategy()
    assert Settings.of({"method": "fedprox", "control-variates": True}).strategy().control_variates


def test_scaffold_has_them_with_or_without_the_option() -> None:
    """So that methods of a comparison can share it."""
    assert SCAFFOLD().terms(1) == SCAFFOLD(control_variates=True).terms(1)
