"""AFL in private rounds: clients keep their weights, and all of the first round take part in each, or none counts."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairbloom.private.errors import SkippedError
from fairbloom.private.weighing import SUMS_OF_AFL, AscentWeighing, Own
from fairbloom.strategies.simplex import project

from .federation import Federation

Array = np.ndarray[Any, Any]
VICTIM = "client-003"


def federation_of(clients: int, size: int) -> Federation:
    return Federation(clients, size, also=SUMS_OF_AFL)


def weighing_of(federation: Federation, since: int = 0, **fields: Any) -> AscentWeighing:
    return AscentWeighing(clients=federation.names, since=since, **fields)


def column(federation: Federation, key: str = "loss-before") -> Array:
    return np.array([federation.metrics[name][key] for name in federation.names])


def weights(federation: Federation, number: int) -> Array:
    """Return what the clients have kept in a round."""
    kept = [federation.clients[name]._store.load()["weights"]["run"] for name in federation.names]
    return np.array([each[str(number)] for each in kept])


def step(federation: Federation, lam: Array) -> Array:
    return np.asarray(lam @ np.array([federation.updates[name] for name in federation.names]))


@pytest.mark.parametrize("prior", ["uniform", "examples"])
def test_rounds_ascend_the_weights_of_plain_afl(prior: str) -> None:
    federation, gamma = federation_of(10, 300), 0.02
    n = column(federation, "num-examples")
    lam = n / n.sum() if prior == "examples" else np.full(10, 0.1)
    for number in range(1, 6):
        opened = federation.run(weighing_of(federation, number - 1, gamma=gamma, prior=prior), number=number)
        assert federation.server.refused == {}
        assert (opened.capped, opened.beyond) == (0, 0)
        assert opened.step == pytest.approx(step(federation, lam), abs=1e-5)
        lam = project(lam + gamma * column(federation))
        assert weights(federation, number) == pytest.approx(lam, abs=1e-13)
        for name in federation.names:
            federation.metrics[name]["loss-before"] *= 0.9


def test_without_ascent_the_step_is_the_average() -> None:
    federation = federation_of(8, 300)
    for number in (1, 2):
        opened = federation.run(weighing_of(federation, number - 1, gamma=0.0), number=number)
        assert opened.step == pytest.approx(step(federation, np.full(8, 1 / 8)), abs=1e-5)


def ascended(losses: Array, lam: Array, gamma: float) -> tuple[Array, int]:
    """Return the weights after a round whose sums are taken here, and how many steps it had."""
    weighing = AscentWeighing(since=1, gamma=gamma, loss_bound=8000.0)
    everyone = [Own(1.0, {"loss-before": float(F)}, lam=float(each)) for F, each in zip(losses, lam, strict=True)]
    opened, number = dict[str, float](), 0
    while not (number and weighing.ended(number, opened)):
        number += 1
        rows = [weighing.sums(number, own, opened) for own in everyone]
        opened |= {name: math.fsum(row[name] for row in rows) for name in weighing.formats(number)}
    return np.array([weighing.next_lam(own, opened) for own in everyone]), number


@pytest.mark.parametrize("seed", range(20))
def test_rounding_of_the_largest_gains_is_below_the_check(seed: int) -> None:
    random = np.random.default_rng(seed)
    losses = 8000.0 + random.uniform(-0.02, 0.0, size=100)
    after, _ = ascended(losses, random.dirichlet(np.ones(100)), 0.512)
    assert after.sum() == pytest.approx(1.0, abs=1e-10)


@given(st.lists(st.floats(0.0, 10.0), min_size=5, max_size=100), st.floats(0.0, 0.5), st.integers(0, 1000))
@settings(deadline=None, max_examples=200)
def test_the_ascent_projects_or_leaves_the_weights(losses: list[float], gamma: float, seed: int) -> None:
    lam = np.random.default_rng(seed).dirichlet(np.ones(len(losses)))
    after, steps = ascended(np.array(losses), lam, gamma)
    expected = project(lam + gamma * np.array(losses))
    few = (expected > 1e-12).sum() < 5 or expected @ expected > 0.5 - 1e-9
    assert after == pytest.approx(lam if few and steps < 14 else after, abs=1e-9)
    assert min(np.abs(after - expected).max(), np.abs(after - lam).max()) < 1e-9
    assert after.sum() == pytest.approx(1.0, abs=1e-9)


def test_two_levels_of_loss_have_a_closed_form() -> None:
    """Of ten clients, five have a loss that is 1 higher: by γ = 0.1 they take 0.05 each from the others."""
    losses, even = np.repeat([1.0, 2.0], 5), np.full(10, 0.1)
    assert ascended(losses, even, 0.1) == (pytest.approx(np.repeat([0.05, 0.15], 5), abs=1e-14), 2)
    assert ascended(losses, even, 0.3) == (pytest.approx(np.repeat([0.0, 0.2], 5), abs=1e-14), 4)


def test_weights_of_few_clients_are_not_taken() -> None:
    """A step would be the update of four clients, or almost of one; the round is recorded as not exact."""
    federation = federation_of(8, 50)
    for place, name in enumerate(federation.names):
        federation.metrics[name]["loss-before"] = 5.0 if place < 4 else 0.0
    opened = federation.run(weighing_of(federation, gamma=1.0))
    assert opened.beyond == 8
    assert weights(federation, 1) == pytest.approx(np.full(8, 1 / 8))


class Lasting(AscentWeighing):
    """What a forged server goes on with: sums of fewer and fewer clients."""

    def ended(self, step: int, opened: Any) -> bool:
        return step >= len(self.steps)


def test_a_forged_gamma_opens_no_sum_of_fewer_than_five() -> None:
    """With these losses, thresholds would leave eight clients, five, three and one."""
    federation = federation_of(8, 50)
    for name, loss in zip(federation.names, [0.0, 0.0, 0.0, 1.0, 1.05, 1.5, 1.6, 2.0], strict=True):
        federation.metrics[name]["loss-before"] = loss
    opened = federation.run(weighing_of(federation, gamma=250.0))
    assert {name: count for name, count in opened.sums.items() if name.startswith("number")} == {
        "number 1": 8,
        "number 2": 5,
        "number 3": 3,
    }
    assert {name for name in opened.sums if name[:-1] in ("above ", "squares ")} == {
        *("above 1", "squares 1", "above 2", "squares 2")
    }
    federation.replies.clear()
    with pytest.raises(SkippedError, match="order: step 4 is the last one"):
        federation.run(Lasting(clients=federation.names, gamma=250.0), number=2)
    assert [asked for asked, _, _ in federation.replies].count("share") == 3 * 8


@pytest.mark.parametrize(
    ("gamma", "words"),
    [
        (-1.0, "gamma = -1 is below 0: set it to 0 or more"),
        (257.0, r"gamma = 257 times loss-bound = 16 .* lower one"),
    ],
)
def test_an_impossible_gamma_is_refused_by_name(gamma: float, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        AscentWeighing(gamma=gamma)


class Unbounded(AscentWeighing):
    """What a forged server asks for, which checks nothing."""

    def __post_init__(self) -> None:
        """Accept every gamma."""


def test_a_forged_gamma_hides_no_weight_that_is_taken() -> None:
    """Rounding is less than the check allows up to the largest gamma, and clients refuse a larger one."""
    federation = federation_of(8, 50)
    federation.run(weighing_of(federation, gamma=256.0))
    federation.clients[VICTIM]._store.load()["weights"]["run"]["1"] += 1e-8
    with pytest.raises(SkippedError, match="weights: those of all clients sum to 1 in place of 1"):
        federation.run(weighing_of(federation, 1, gamma=256.0), number=2)
    forged = Unbounded(clients=federation.names, since=1, gamma=1e300)
    with pytest.raises(SkippedError, match=r"gamma = 1e\+300 times loss-bound = 16"):
        federation.run(forged, number=3)


@pytest.mark.parametrize("exchange", ["keys", "work", "open", "share", "vector", "unmask"])
def test_a_lost_client_skips_the_round_of_afl(exchange: str) -> None:
    """The next round goes on from the weights that were there before."""
    federation = federation_of(8, 50)
    federation.run(weighing_of(federation))
    before = weights(federation, 1)
    federation.forge = lambda asked, client, request: None if (asked, client) == (exchange, VICTIM) else request
    with pytest.raises(SkippedError, match="7 clients answered"):
        federation.run(weighing_of(federation, 1), number=2)
    federation.forge = lambda asked, client, request: request
    opened = federation.run(weighing_of(federation, 1), number=3)
    assert opened.step == pytest.approx(step(federation, before), abs=1e-5)
    assert weights(federation, 3) == pytest.approx(project(before + 0.1 * column(federation)), abs=1e-13)


def test_an_absent_client_skips_the_round_of_afl() -> None:
    federation = federation_of(8, 50)
    weighing = weighing_of(federation)
    federation.names = federation.names[:-1]
    with pytest.raises(SkippedError, match="client-007 is absent, and all 8 clients of the first round must take part"):
        federation.run(weighing)
    assert not federation.replies


def test_clients_refuse_a_cohort_without_one_of_the_roster() -> None:
    federation = federation_of(8, 50)

    def forge(exchange: str, client: str, request: dict[str, Any]) -> dict[str, Any]:
        if exchange == "work":
            request["cohort"] = request["cohort"][:-1]
        return request

    federation.forge = forge
    with pytest.raises(SkippedError, match="not all clients that the terms name are in it"):
        federation.run(weighing_of(federation))


@pytest.mark.parametrize("exchange", ["open", "unmask"])
def test_clients_of_afl_refuse_a_list_without_one(exchange: str) -> None:
    federation = federation_of(8, 50)

    def forge(asked: str, client: str, request: dict[str, Any]) -> dict[str, Any]:
        if asked == exchange:
            request["alive"] = [name for name in request["alive"] if name != VICTIM]
            request["lost"] = [VICTIM]
        return request

    federation.forge = forge
    with pytest.raises(SkippedError, match="small cohort: 7"):
        federation.run(weighing_of(federation))


def test_a_client_that_takes_more_weight_is_noticed() -> None:
    federation = federation_of(8, 50)
    federation.run(weighing_of(federation))
    federation.clients[VICTIM]._store.load()["weights"]["run"]["1"] = 0.9
    with pytest.raises(SkippedError, match=r"weights: those of all clients sum to 1\.\d+ in place of 1"):
        federation.run(weighing_of(federation, 1), number=2)
    assert "vector" not in {exchange for exchange, _, _ in federation.replies[-20:]}


def test_a_client_that_lost_its_weight_says_so() -> None:
    federation = federation_of(8, 50)
    federation.run(weighing_of(federation))
    federation.clients[VICTIM] = federation.client(VICTIM)
    with pytest.raises(SkippedError, match="weights: this client has none of round 1"):
        federation.run(weighing_of(federation, 1), number=2)


def test_a_server_that_goes_back_finds_the_weights_of_then() -> None:
    federation = federation_of(8, 50)
    for number in range(1, 24):
        federation.run(weighing_of(federation, number - 1), number=number)
    before = weights(federation, 1)
    opened = federation.run(weighing_of(federation, 1), number=24)
    assert opened.step == pytest.approx(step(federation, before), abs=1e-5)
    kept = federation.clients[VICTIM]._store.load()["weights"]["run"]
    assert sorted(kept) == ["1", "24"]
