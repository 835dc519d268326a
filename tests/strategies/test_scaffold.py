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
from fairbloom.strategies import METHODS, SCAFFOLD, Ditto, FairStrategy, FedAvg, FedProx
from tests.strategies.helpers import ARGUMENTS, MemoryGrid, arrays, cohort_of, error, make, metrics, no_reply
from tests.strategies.keeping import Keeping, keeping, minimiser
from tests.strategies.stateful import PLAIN, Course, rest, row, run, used_states

CONTROL = "control"


def deviations(method: FairStrategy, clients: Mapping[str, Keeping]) -> FloatArray:
    """Return Σ n_k (c − c_k) / Σ n_k over all clients that the server has known; those never used have c_k = 0."""
    n = {name: size if method.weighting == "examples" else 1.0 for name, size in method.progress.roster.items()}
    states = used_states(method, clients)
    total = sum(n.values())
    c = row(method) / total if method.progress.kept else 0.0
    return np.asarray(sum(n[name] * (c - states[name]) for name in n) / total)


# Reductions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_its_first_round_is_fedavgs_to_the_bit(weighting: str) -> None:
    ours = run(SCAFFOLD(weighting=weighting, **PLAIN), keeping(4), 1)
    theirs = run(FedAvg(weighting=weighting, **PLAIN), keeping(4), 1)
    assert ours.last.tobytes() == theirs.last.tobytes()
    assert ours.rounds[0].coefficients == theirs.rounds[0].coefficients


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda **o: FedAvg(control_variates=True, **o), SCAFFOLD),
        (lambda **o: FedProx(mu=0.3, control_variates=True, **o), lambda **o: SCAFFOLD(proximal_mu=0.3, **o)),
        (lambda **o: Ditto(lam=0.7, control_variates=True, **o), lambda **o: SCAFFOLD(personal_lambda=0.7, **o)),
    ],
)
def test_scaffold_is_the_option_of_another_method(one: Any, other: Any) -> None:
    options = {"fraction_train": 0.6, "seed": 4, **PLAIN}
    ours, theirs = run(one(**options), keeping(5), 5), run(other(**options), keeping(5), 5)
    assert [model.tobytes() for model in ours.models] == [model.tobytes() for model in theirs.models]
    assert ours.sent == theirs.sent


def test_a_server_rate_multiplies_the_step_not_the_control() -> None:
    whole, half = run(SCAFFOLD(**PLAIN), keeping(3), 1), run(SCAFFOLD(server_lr=0.5, **PLAIN), keeping(3), 1)
    np.testing.assert_allclose(half.models[0] - half.last, 0.5 * (whole.models[0] - whole.last), rtol=1e-14)
    np.testing.assert_array_equal(row(half.method), row(whole.method))


def test_without_the_option_nothing_of_it_is_sent_asked_or_kept() -> None:
    course = run(FedAvg(**PLAIN), keeping(3), 3)
    for configs in course.sent.values():
        for config in configs.values():
            assert set(config) == {"server-round"}
    assert course.controls == {}
    assert course.method.progress.kept == {}
    assert {"states", "roster"}.isdisjoint(course.method.state_dict())


# Closed forms -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_after_one_full_batch_step_controls_are_the_gradients(weighting: str) -> None:
    clients = keeping(4, steps=None)
    course = run(SCAFFOLD(weighting=weighting, **PLAIN), clients, 5)
    before = course.models[-2]
    n = {name: client.examples if weighting == "examples" else 1 for name, client in clients.items()}
    total = sum(n.values())
    for name, c in used_states(course.method, clients).items():
        np.testing.assert_allclose(c, clients[name].gradient(before), rtol=1e-12)
    mean = sum(n[name] * client.gradient(before) for name, client in clients.items()) / total
    np.testing.assert_allclose(row(course.method) / total, mean, rtol=1e-12)


@pytest.mark.parametrize(("weighting", "fraction"), [("examples", 0.5), ("uniform", 0.5), ("examples", 1.0)])
def test_it_rests_at_the_minimum_where_fedavg_does_not(weighting: str, fraction: float) -> None:
    """The clients take 7 steps and other numbers of them, at rates of their own."""
    clients = keeping(4)
    options = {"weighting": weighting, "fraction_train": fraction, **PLAIN}
    best = minimiser(clients, by_examples=weighting == "examples")
    np.testing.assert_allclose(rest(SCAFFOLD(**options), clients), best, atol=1e-8)
    assert np.abs(rest(FedAvg(**options), keeping(4), 200) - best).max() > 0.03


@pytest.mark.parametrize("options", [{"proximal_mu": 0.5}, {"personal_lambda": 1.0}, {"server_lr": 0.6}])
def test_it_rests_there_with_its_other_options(options: dict[str, Any]) -> None:
    clients = keeping(4)
    best = minimiser(clients, by_examples=True)
    np.testing.assert_allclose(rest(SCAFFOLD(**options, **PLAIN), clients), best, atol=1e-8)


@pytest.mark.parametrize("optimizer", [{"server_optimizer": "avgm"}, {"server_optimizer": "adam"}])
def test_with_a_server_optimizer_it_rests_there_too(optimizer: dict[str, Any]) -> None:
    clients = keeping(4)
    method = SCAFFOLD(server_optimizer_lr=0.05, **optimizer, **PLAIN)
    np.testing.assert_allclose(rest(method, clients, 1500), minimiser(clients, by_examples=True), atol=1e-5)


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


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.parametrize("fraction", [1.0, 0.4])
def test_deviations_of_control_variates_sum_to_zero(weighting: str, fraction: float) -> None:
    clients = keeping(6)
    clients["site-3"].rates = []
    joining = Joining(clients, {"site-4": 3, "site-5": 6})
    method = SCAFFOLD(weighting=weighting, fraction_train=fraction, seed=2, **PLAIN)
    sums: list[FloatArray] = []
    run(
        method,
        clients,
        12,
        grid=joining.grid,
        before=joining,
        after=lambda finished: sums.append(deviations(method, clients)),
    )
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


def test_a_client_without_a_step_leaves_its_control_variate() -> None:
    clients = keeping(3)
    method = SCAFFOLD(**PLAIN)

    def stop(number: int, grid: MemoryGrid) -> None:
        if number == 3:
            clients["site-1"].rates = []

    course = run(method, clients, 4, before=stop)
    states = used_states(method, clients)
    np.testing.assert_array_equal(states["site-1"], clients["site-1"].state(4))
    assert np.abs(states["site-1"]).max() > 0.0
    assert course.rounds[3].refused == {}
    np.testing.assert_allclose(deviations(method, clients), 0.0, atol=1e-12)


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


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), -0.1, 1e-300])
def test_an_impossible_sum_of_steps_is_refused(value: Any) -> None:
    clients = keeping(3)
    course = run(SCAFFOLD(**PLAIN), clients, 4, faults={("site-1", 2): metrics({"step-sum": value})})
    assert set(course.rounds[1].refused) == {"site-1"}
    assert "step-sum" in course.rounds[1].refused["site-1"]
    assert course.sent[3]["site-1"]["state-round"] == 1
    np.testing.assert_allclose(deviations(course.method, clients), 0.0, atol=1e-12)


def test_a_sum_out_of_all_proportion_is_refused() -> None:
    """It would be the control variate of all: the update is divided by it."""
    course = run(SCAFFOLD(**PLAIN), keeping(4), 2, faults={("site-1", 2): metrics({"step-sum": 1e-7})})
    assert set(course.rounds[1].refused) == {"site-1"}
    assert "1000 (loss_limit)" in course.rounds[1].refused["site-1"]


def test_one_clients_control_variate_and_the_servers_cancel() -> None:
    clients = keeping(1)
    ours, theirs = run(SCAFFOLD(**PLAIN), clients, 6), run(FedAvg(**PLAIN), keeping(1), 6)
    np.testing.assert_allclose(ours.models, theirs.models, rtol=1e-12)
    (c,) = used_states(ours.method, clients).values()
    np.testing.assert_allclose(row(ours.method) / clients["site-0"].examples, c, rtol=1e-12)


def test_a_round_without_usable_replies_leaves_all_as_it_is() -> None:
    clients = keeping(3)
    faults = {(name, 3): error for name in clients}
    method = SCAFFOLD(**PLAIN)
    rows: list[bytes] = []
    course = run(method, clients, 4, faults=faults, after=lambda finished: rows.append(row(method).tobytes()))
    assert rows[1] == rows[2] != rows[3]
    assert course.models[2].tobytes() == course.models[3].tobytes()
    assert {config["state-round"] for config in course.sent[4].values()} == {2}


# Where it does not compose ------------------------------------------------------------------------------------------


def takers() -> set[str]:
    return {name for name, method in METHODS.items() if issubclass(method, FedAvg)}


@pytest.mark.parametrize("name", sorted(set(METHODS) - takers()))
def test_methods_with_changing_weights_refuse_control_variates(name: str) -> None:
    refusal = rf"control_variates = True: .*{METHODS[name].__name__} .*leave control_variates out"
    with pytest.raises(ValueError, match=refusal):
        make(name, ARGUMENTS[name][0], control_variates=True)
    assert not make(name, ARGUMENTS[name][0], control_variates=False).control_variates  # the remedy


@pytest.mark.parametrize("name", sorted(takers() - {"scaffold"}))
def test_methods_with_fixed_weights_take_them(name: str) -> None:
    method = make(name, ARGUMENTS[name][0], control_variates=True)
    assert method.terms(1).control_variates
    assert "step-sum" in method.needs
    assert "step-sum" not in METHODS[name].needs


def test_a_users_method_that_weighs_otherwise_refuses_them() -> None:
    class Squared(FedAvg):
        def weigh(self, cohort: Any) -> FloatArray:
            return np.asarray(cohort.prior**2)

    with pytest.raises(ValueError, match=r"Squared .*leave control_variates out"):
        Squared(control_variates=True)


def test_in_a_run_they_are_refused_by_the_settings() -> None:
    with pytest.raises(SettingsError, match=r"control-variates = True: .*FedFV .*leave control-variates out"):
        Settings.of({"method": "fedfv", "control-variates": True}).strategy()
    assert Settings.of({"method": "fedprox", "control-variates": True}).strategy().control_variates


def test_scaffold_has_them_with_or_without_the_option() -> None:
    """So that methods of a comparison can share it."""
    assert SCAFFOLD().terms(1) == SCAFFOLD(control_variates=True).terms(1)


# Kill and resume ----------------------------------------------------------------------------------------------------


def through_a_checkpoint(folder: Path, course: Course, number: int) -> tuple[dict[str, Any], FloatArray]:
    """Return state and model after a round as a run that continues reads them from disk."""
    path = folder / f"{number}.safetensors"
    save_checkpoint(path, {"w": course.models[number]}, course.states[number - 1])
    model, state = load_checkpoint(path)
    return state, model["w"]


@pytest.mark.parametrize("replied", [False, True])
def test_a_killed_run_resumes_after_a_round_too_many(tmp_path: Path, replied: bool) -> None:
    """Killed after round 4 was recorded; or in round 5, when clients had replied already, and went on from there."""
    options = {"fraction_train": 0.6, "seed": 5, **PLAIN}
    whole = run(SCAFFOLD(**options), keeping(5), 8)
    clients = keeping(5)
    killed = run(SCAFFOLD(**options), clients, 5 if replied else 4)
    state, model = through_a_checkpoint(tmp_path, killed, 4)
    resumed = run(SCAFFOLD(**options), clients, 8, first=model, resume=state)
    assert [each.tobytes() for each in resumed.models[1:]] == [each.tobytes() for each in whole.models[5:]]
    assert resumed.rounds[-1].refused == {}
    assert row(resumed.method).tobytes() == row(whole.method).tobytes()
    assert json.dumps(resumed.states[-1]["states"]) == json.dumps(whole.states[-1]["states"])


@pytest.mark.parametrize("fault", [error, no_reply, arrays(w=np.full(3, np.nan)), metrics({"num-examples": 0})])
def test_a_reply_that_is_refused_or_lost_leaves_nothing_behind(fault: Any) -> None:
    """As if the client had not been asked: its state goes on from the round of its last used reply."""
    clients = keeping(3)
    faults = {("site-1", number): fault for number in (3, 4, 5)}
    course = run(SCAFFOLD(**PLAIN), clients, 8, faults=faults)
    asked = [course.sent[number]["site-1"] for number in (3, 4, 5, 6) if "site-1" in course.sent[number]]
    assert {config["state-round"] for config in asked} == {2}
    assert all("site-1" not in finished.coefficients for finished in course.rounds[2:5])
    assert ("site-1" in course.rounds[7].coefficients) == (fault is not no_reply)  # which is then not asked for a while
    assert not any(finished.lost_states for finished in course.rounds)
    np.testing.assert_allclose(deviations(course.method, clients), 0.0, atol=1e-12)
