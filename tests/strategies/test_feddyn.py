"""FedDyn: clients that keep the linear term of their loss, and a server that keeps the sum of all updates."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fairbloom.rounds.cohort import Kept
from fairbloom.rounds.updates import FloatArray
from fairbloom.strategies import FairStrategy, FedAvg, FedDyn
from tests.strategies.helpers import cohort_of, error, metrics, no_reply
from tests.strategies.keeping import Keeping, keeping, minimiser
from tests.strategies.stateful import PLAIN, rest, row, run, used_states
from tests.strategies.test_scaffold import Joining

ALPHA = 0.3


def excess(method: FairStrategy, clients: Mapping[str, Keeping]) -> FloatArray:
    """Return Σ h_k − alpha R."""
    assert isinstance(method, FedDyn)
    kept = row(method) if method.progress.kept else 0.0
    return np.asarray(sum(used_states(method, clients).values()) - method.alpha * kept)


# Reductions and closed forms ----------------------------------------------------------------------------------------


def test_its_first_full_round_is_twice_fedavgs_step() -> None:
    """The clients' loss is regularised in the first round already, so FedAvg's clients get the same proximal term."""
    ours = run(FedDyn(alpha=ALPHA, **PLAIN), keeping(4), 1)
    theirs = run(FedAvg(weighting="uniform", proximal_mu=ALPHA, **PLAIN), keeping(4), 1)
    np.testing.assert_allclose(ours.models[0] - ours.last, 2.0 * (theirs.models[0] - theirs.last), rtol=1e-13)
    assert set(ours.rounds[0].coefficients.values()) == {0.5}


def test_it_rests_at_the_mean_minimum_where_fedavg_does_not() -> None:
    """Of the mean over clients, whatever their examples."""
    for options in ({"fraction_train": 0.5}, {"proximal_mu": 0.5}):
        clients = keeping(4)
        best = minimiser(clients, by_examples=False)
        np.testing.assert_allclose(rest(FedDyn(alpha=1.0, **options, **PLAIN), clients), best, atol=1e-8)
    assert np.abs(rest(FedAvg(weighting="uniform", **PLAIN), keeping(4), 200) - best).max() > 0.03


# Properties ---------------------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**32 - 1), m=st.integers(1, 5), absent=st.integers(0, 4))
def test_its_step_is_the_papers_with_all_known_clients(seed: int, m: int, absent: int) -> None:
    rng = np.random.default_rng(seed)
    U, R = rng.normal(size=(m, 4)), rng.normal(size=4)
    roster = {f"client-{k:03}": 1.0 for k in range(m + absent)}
    method = FedDyn(alpha=ALPHA)
    cohort = cohort_of(U, memory={Kept("total", 3): R}, round=4, roster=roster)
    rows, coefficients = np.vstack([U, R]), method.weigh(cohort)
    total = R + U.sum(axis=0)
    np.testing.assert_allclose(coefficients @ rows, U.mean(axis=0) + total / (m + absent), atol=1e-12)
    ((kept, mix),) = method.remember(cohort, coefficients, {}).items()
    assert kept.round == 4
    np.testing.assert_allclose(mix @ rows, total, atol=1e-12)


def test_linear_terms_sum_to_alpha_times_the_servers_state() -> None:
    for fraction in (1.0, 0.4):
        clients = keeping(6)
        joining = Joining(clients, {"site-4": 3, "site-5": 6})
        method, sums = FedDyn(alpha=ALPHA, fraction_train=fraction, seed=2, **PLAIN), list[FloatArray]()

        def after(finished: Any, method: Any = method, clients: Any = clients, into: Any = sums) -> None:
            into.append(excess(method, clients))

        run(method, clients, 12, grid=joining.grid, before=joining, after=after)
        np.testing.assert_allclose(sums, np.zeros((12, 3)), atol=1e-11)
        assert np.abs(row(method)).max() > 0.1


def test_a_joiner_and_one_that_has_gone_count_among_all_clients() -> None:
    """The sum of the updates is divided by the roster, and not by the participants."""
    clients = keeping(5)
    joining = Joining(clients, {"site-4": 3})
    course = run(FedDyn(alpha=ALPHA, fraction_train=0.5, **PLAIN), clients, 3, grid=joining.grid, before=joining)
    for finished, known in zip(course.rounds, (4, 4, 5), strict=True):
        m = len(finished.participants)
        assert set(finished.coefficients.values()) == {1.0 / m + 1.0 / known}


# Edge cases ---------------------------------------------------------------------------------------------------------


def test_a_reply_that_is_refused_or_lost_leaves_nothing_behind() -> None:
    for fault in (error, no_reply, metrics({"num-examples": 0})):
        clients = keeping(3)
        faults = {("site-1", number): fault for number in (3, 4, 5)}
        course = run(FedDyn(alpha=1.0, **PLAIN), clients, 8, faults=faults)
        assert all("site-1" not in finished.coefficients for finished in course.rounds[2:5])
        assert not any(finished.lost_states for finished in course.rounds)
        np.testing.assert_allclose(excess(course.method, clients), 0.0, atol=1e-10)
