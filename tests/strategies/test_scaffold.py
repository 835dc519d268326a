"""SCAFFOLD, and control variates as an option of methods whose weights are fixed."""

import json
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
from fairbloom.server.settings import Settings, SettingsError
from fairbloom.strategies import SCAFFOLD, Ditto, FairStrategy, FedAvg, FedDyn, FedProx
from tests.strategies.helpers import MemoryGrid, arrays, cohort_of, error, metrics, no_reply
from tests.strategies.keeping import Keeping, keeping, minimiser
from tests.strategies.stateful import PLAIN, rest, row, run, used_states

CONTROL = "control"


def deviations(method: FairStrategy, clients: Mapping[str, Keeping]) -> FloatArray:
    """Return Σ n_k (c − c_k) / Σ n_k over all clients that the server has known; those never used have c_k = 0."""
    n = {name: size if method.weighting == "examples" else 1.0 for name, size in method.progress.roster.items()}
    states = used_states(method, clients)
    total = sum(n.values())
    c = row(method) / total if method.progress.kept else 0.0
    return np.asarray(sum(n[name] * (c - states[name]) for name in n) / total)


# Reductions ---------------------------------------------------------------------------------------------------------


def test_its_first_round_is_fedavgs_to_the_bit() -> None:
    for weighting in ("examples", "uniform"):
        ours = run(SCAFFOLD(weighting=weighting, **PLAIN), keeping(4), 1)
        theirs = run(FedAvg(weighting=weighting, **PLAIN), keeping(4), 1)
        assert ours.last.tobytes() == theirs.last.tobytes()
        assert ours.rounds[0].coefficients == theirs.rounds[0].coefficients


def test_scaffold_is_the_option_of_another_method() -> None:
    options: dict[str, Any] = {"fraction_train": 0.6, "seed": 4, **PLAIN}
    for one, other in (
        (FedAvg(control_variates=True, **options), SCAFFOLD(**options)),
        (FedProx(mu=0.3, control_variates=True, **options), SCAFFOLD(proximal_mu=0.3, **options)),
        (Ditto(lam=0.7, control_variates=True, **options), SCAFFOLD(personal_lambda=0.7, **options)),
    ):
        ours, theirs = run(one, keeping(5), 5), run(other, keeping(5), 5)
        assert [model.tobytes() for model in ours.models] == [model.tobytes() for model in theirs.models]
        assert ours.sent == theirs.sent


# Closed forms -------------------------------------------------------------------------------------------------------


def test_it_rests_at_the_minimum_where_fedavg_does_not() -> None:
    """The clients take 7 steps and other numbers of them, at rates of their own."""
    for options in ({"fraction_train": 0.5, "weighting": "uniform"}, {"proximal_mu": 0.5, "server_lr": 0.6}):
        clients = keeping(4)
        best = minimiser(clients, by_examples="weighting" not in options)
        np.testing.assert_allclose(rest(SCAFFOLD(**options, **PLAIN), clients), best, atol=1e-8)
    assert np.abs(rest(FedAvg(**PLAIN), keeping(4), 200) - best).max() > 0.03
    adaptive = SCAFFOLD(server_optimizer="adam", server_optimizer_lr=0.05, **PLAIN)
    np.testing.assert_allclose(rest(adaptive, keeping(4), 1200), best, atol=1e-5)


# Properties ---------------------------------------------------------------------------------------------------------


class Joining:
    """Clients of which some come online only later."""

    def __init__(self, clients: Mapping[str, Keeping], rounds: Mapping[str, int]) -> None:
        first = {name: client for name, client in clients.items() if rounds.get(name, 1) == 1}
        self.grid = MemoryGrid(first)
        self.grid.clients = clients
        self._rounds = rounds

    def __call__(self, number: int, grid: MemoryGrid) -> None:
        for name, joins in self._rounds.items():
            if joins == number and name not in grid.nodes.values():
                grid.nodes[1000 + sum(map(ord, name))] = name


def test_deviations_of_control_variates_sum_to_zero() -> None:
    """Also where clients join, and where one takes no step."""
    for weighting, fraction in (("examples", 0.4), ("uniform", 0.4), ("examples", 1.0)):
        clients = keeping(6)
        clients["site-3"].rates = []
        joining = Joining(clients, {"site-4": 3, "site-5": 6})
        method, sums = SCAFFOLD(weighting=weighting, fraction_train=fraction, seed=2, **PLAIN), list[FloatArray]()

        def after(finished: Any, method: Any = method, clients: Any = clients, into: Any = sums) -> None:
            into.append(deviations(method, clients))

        run(method, clients, 12, grid=joining.grid, before=joining, after=after)
        assert len(sums) == 12
        np.testing.assert_allclose(sums, 0.0, atol=1e-12)
        assert any(np.abs(state).max() > 0.1 for state in used_states(method, clients).values())


def test_a_joiner_leaves_the_resting_point_where_it_is() -> None:
    """A running mean in place of the sum would bias it for good."""
    clients = keeping(5)
    model = rest(SCAFFOLD(**PLAIN), clients, joins={"site-4": 40})
    np.testing.assert_allclose(model, minimiser(clients, by_examples=True), atol=1e-8)


def test_clients_are_sent_the_sum_over_the_roster() -> None:
    clients = keeping(5)
    method = SCAFFOLD(fraction_train=0.4, seed=1, **PLAIN)
    rows: dict[int, FloatArray] = {}
    course = run(method, clients, 4, after=lambda finished: rows.update({finished.number + 1: row(method)}))
    total = sum(client.examples for client in clients.values())
    assert 1 not in course.controls
    for number in (2, 3, 4):
        assert len(course.controls[number]) == 2
        for sent in course.controls[number].values():
            np.testing.assert_allclose(sent, rows[number] / total, rtol=1e-14)


@given(seed=st.integers(0, 2**32 - 1), m=st.integers(1, 5), uniform=st.booleans(), idle=st.integers(0, 4))
def test_the_sum_that_it_keeps_is_that_of_the_papers_steps(seed: int, m: int, uniform: bool, idle: int) -> None:
    """Vectors in place of coefficients: each client's c_k⁺ − c_k, weighted, added to C."""
    rng = np.random.default_rng(seed)
    U, C, H = rng.normal(size=(m, 4)), rng.normal(size=4), rng.uniform(0.1, 2.0, m)
    H[idle % m] = 0.0 if idle else H[idle % m]
    n = rng.integers(1, 50, m).astype(np.float64)
    names = [f"client-{k:03}" for k in range(m)]
    roster = {**dict(zip(names, n, strict=True)), "client-absent": 7.0}
    weights = dict.fromkeys(roster, 1.0) if uniform else roster
    method = SCAFFOLD(weighting="uniform" if uniform else "examples", server_lr=0.7)
    memory = {Kept(CONTROL, 1): C}
    c = C / sum(weights.values())
    cohort = cohort_of(
        U, counts=n, weighting=method.weighting, memory=memory, round=2, steps=H, roster=roster,
        sent={CONTROL: 1.0 / sum(weights.values())},
    )  # fmt: skip
    rows = np.vstack([U, C])
    coefficients = method.weigh(cohort)
    p = n / n.sum() if not uniform else np.full(m, 1.0 / m)
    np.testing.assert_allclose(coefficients @ rows, 0.7 * (p @ U), atol=1e-12)
    ((kept, mix),) = method.remember(cohort, coefficients, {}).items()
    expected = C + sum(weights[names[k]] * (U[k] / H[k] - c) for k in range(m) if H[k] > 0.0)
    assert kept == Kept(CONTROL, 2)
    np.testing.assert_allclose(mix @ rows, expected, atol=1e-9)


# Edge cases ---------------------------------------------------------------------------------------------------------


def test_an_impossible_sum_of_steps_is_refused() -> None:
    """One out of all proportion, too: it would be the control variate of all, since the update is divided by it."""
    for value in (None, float("nan"), -0.1, 1e-300, 1e-7):
        clients = keeping(4)
        course = run(SCAFFOLD(**PLAIN), clients, 4, faults={("site-1", 2): metrics({"step-sum": value})})
        assert set(course.rounds[1].refused) == {"site-1"}
        assert "step-sum" in course.rounds[1].refused["site-1"]
        assert course.sent[3]["site-1"]["state-round"] == 1
        np.testing.assert_allclose(deviations(course.method, clients), 0.0, atol=1e-12)


# Where it does not compose ------------------------------------------------------------------------------------------


def test_in_a_run_they_are_refused_by_the_settings() -> None:
    with pytest.raises(SettingsError, match=r"control-variates = True: .*FedFV .*leave control-variates out"):
        Settings.of({"method": "fedfv", "control-variates": True}).strategy()
    assert Settings.of({"method": "fedprox", "control-variates": True}).strategy().control_variates


def test_scaffold_has_them_with_or_without_the_option() -> None:
    """So that methods of a comparison can share it."""
    assert SCAFFOLD().terms(1) == SCAFFOLD(control_variates=True).terms(1)


# Kill and resume ----------------------------------------------------------------------------------------------------


def test_a_killed_run_resumes_after_a_round_too_many(tmp_path: Path) -> None:
    """Killed after round 4 was recorded; or in round 5, when clients had replied already, and went on from there."""
    options: dict[str, Any] = {"fraction_train": 0.6, "seed": 5, **PLAIN}
    for method in (SCAFFOLD, FedDyn):
        whole = run(method(**options), keeping(5), 8)
        for rounds in (4, 5):
            clients, path = keeping(5), tmp_path / "4.safetensors"
            killed = run(method(**options), clients, rounds)
            save_checkpoint(path, {"w": killed.models[4]}, killed.states[3])
            model, state = load_checkpoint(path)
            resumed = run(method(**options), clients, 8, first=model["w"], resume=state)
            assert [each.tobytes() for each in resumed.models[1:]] == [each.tobytes() for each in whole.models[5:]]
            assert resumed.rounds[-1].refused == {}
            assert row(resumed.method).tobytes() == row(whole.method).tobytes()
            assert json.dumps(resumed.states[-1]["states"]) == json.dumps(whole.states[-1]["states"])


def test_a_reply_that_is_refused_or_lost_leaves_nothing_behind() -> None:
    """As if the client had not been asked: its state goes on from the round of its last used reply."""
    for fault in (error, no_reply, arrays(w=np.full(3, np.nan)), metrics({"num-examples": 0})):
        clients = keeping(3)
        faults = {("site-1", number): fault for number in (3, 4, 5)}
        course = run(SCAFFOLD(**PLAIN), clients, 8, faults=faults)
        asked = [course.sent[number]["site-1"] for number in (3, 4, 5, 6) if "site-1" in course.sent[number]]
        assert {config["state-round"] for config in asked} == {2}
        assert all("site-1" not in finished.coefficients for finished in course.rounds[2:5])
        assert ("site-1" in course.rounds[7].coefficients) == (fault is not no_reply)  # not asked for a while then
        assert not any(finished.lost_states for finished in course.rounds)
        np.testing.assert_allclose(deviations(course.method, clients), 0.0, atol=1e-12)
