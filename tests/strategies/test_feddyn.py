"""FedDyn: clients that keep the linear term of their loss, and a server that keeps the sum of all updates."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbloom.rounds.cohort import Kept
from fairbloom.rounds.updates import FloatArray
from fairbloom.server.checkpoint import load_checkpoint, save_checkpoint
from fairbloom.strategies import FairStrategy, FedAvg, FedDyn, FedFa
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


@pytest.mark.parametrize(("steps", "fraction"), [(1, 0.5), (7, 1.0), (60, 0.5)])
def test_it_rests_at_the_mean_minimum_where_fedavg_does_not(steps: int, fraction: float) -> None:
    """Of the mean over clients, whatever their examples."""
    clients = keeping(4, steps=steps)
    best = minimiser(clients, by_examples=False)
    np.testing.assert_allclose(rest(FedDyn(alpha=1.0, fraction_train=fraction, **PLAIN), clients), best, atol=1e-8)
    plain = FedAvg(weighting="uniform", fraction_train=fraction, **PLAIN)
    assert np.abs(rest(plain, keeping(4, steps=steps), 200) - best).max() > 0.03


@pytest.mark.parametrize("options", [{"proximal_mu": 0.5}, {"personal_lambda": 1.0}])
def test_it_rests_there_with_a_pull_or_personal_models(options: dict[str, Any]) -> None:
    clients = keeping(4)
    model = rest(FedDyn(alpha=1.0, **options, **PLAIN), clients)
    np.testing.assert_allclose(model, minimiser(clients, by_examples=False), atol=1e-8)


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


@pytest.mark.parametrize("fraction", [1.0, 0.4])
def test_linear_terms_sum_to_alpha_times_the_servers_state(fraction: float) -> None:
    clients = keeping(6)
    joining = Joining(clients, {"site-4": 3, "site-5": 6})
    method = FedDyn(alpha=ALPHA, fraction_train=fraction, seed=2, **PLAIN)
    sums: list[FloatArray] = []
    run(
        method,
        clients,
        12,
        grid=joining.grid,
        before=joining,
        after=lambda finished: sums.append(excess(method, clients)),
        faults=None,
    )
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


def test_it_refuses_a_weighting() -> None:
    with pytest.raises(ValueError, match="FedDyn has no prior: leave weighting out"):
        FedDyn(weighting="uniform")


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf")])
def test_its_strength_is_above_zero(alpha: float) -> None:
    with pytest.raises(ValueError, match=r"alpha = .*\(0, inf\)|alpha = .*allowed"):
        FedDyn(alpha=alpha)


def test_it_refuses_a_second_momentum() -> None:
    for method in (FedDyn, FedFa):
        with pytest.raises(ValueError, match=f"{method.__name__}.*avgm|avgm.*{method.__name__}"):
            method(server_optimizer="avgm")
        method(server_optimizer="adam", server_optimizer_lr=0.1)


@pytest.mark.parametrize("replied", [False, True])
def test_a_killed_run_resumes_to_the_same_bits(tmp_path: Path, replied: bool) -> None:
    options = {"alpha": ALPHA, "fraction_train": 0.6, "seed": 5, **PLAIN}
    whole, clients = run(FedDyn(**options), keeping(5), 8), keeping(5)
    killed = run(FedDyn(**options), clients, 5 if replied else 4)
    save_checkpoint(tmp_path / "4.safetensors", {"w": killed.models[4]}, killed.states[3])
    model, state = load_checkpoint(tmp_path / "4.safetensors")
    resumed = run(FedDyn(**options), clients, 8, first=model["w"], resume=state)
    assert [each.tobytes() for each in resumed.models[1:]] == [each.tobytes() for each in whole.models[5:]]
    assert row(resumed.method).tobytes() == row(whole.method).tobytes()


@pytest.mark.parametrize("fault", [error, no_reply, metrics({"num-examples": 0})])
def test_a_reply_that_is_refused_or_lost_leaves_nothing_behind(fault: Any) -> None:
    clients = keeping(3)
    faults = {("site-1", number): fault for number in (3, 4, 5)}
    course = run(FedDyn(alpha=1.0, **PLAIN), clients, 8, faults=faults)
    assert all("site-1" not in finished.coefficients for finished in course.rounds[2:5])
    assert not any(finished.lost_states for finished in course.rounds)
    np.testing.assert_allclose(excess(course.method, clients), 0.0, atol=1e-10)


def test_a_round_without_usable_replies_leaves_all_as_it_is() -> None:
    clients = keeping(3)
    method = FedDyn(alpha=ALPHA, **PLAIN)
    rows: list[bytes] = []
    faults = {(name, 3): error for name in clients}
    course = run(method, clients, 4, faults=faults, after=lambda finished: rows.append(row(method).tobytes()))
    assert rows[1] == rows[2] != rows[3]
    assert course.models[2].tobytes() == course.models[3].tobytes()
    assert {config["state-round"] for config in course.sent[4].values()} == {2}


def test_the_strength_goes_to_the_clients() -> None:
    course = run(FedDyn(**PLAIN), keeping(2), 1)
    assert course.sent[1]["site-0"] == {"server-round": 1, "dynamic-alpha": 0.01, "state-round": 0}
